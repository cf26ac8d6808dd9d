// Package wire is what travels between clients and nodes, and from node to node: the messages, how they are read and
// written, and the paths and headers of HTTP that go with them. All of it is part of the contract between versions.
package wire

// The paths of the calls from node to node.
const (
	BatchPath  = "/v1/peer/batch"  // takes and returns the messages of /v1/check
	ReportPath = "/v1/peer/report" // takes a Report, returns a StateUpdate
	StatesPath = "/v1/peer/states" // takes a StateUpdate, returns an empty object
	TakePath   = "/v1/peer/take"   // takes a TakeRequest, returns a StateUpdate
	LeavePath  = "/v1/peer/leave"  // takes and returns an empty object; the header tells all
)

// What one node tells another with each call, in headers, which HTTP/2 sends once and then refers to.
const (
	HeaderProtocol = "Weir-Protocol" // Protocol, both ways
	HeaderRing     = "Weir-Ring"     // the fingerprint of the sender's ring, both ways
	HeaderFrom     = "Weir-From"     // the caller's name
	HeaderStart    = "Weir-Start"    // the sender's incarnation: a number of its process, both ways
	HeaderLeaving  = "Weir-Leaving"  // the sender is about to stop, both ways
)

// Protocol is the version of all this. It grows when nodes of two versions can no longer work together.
const Protocol = "1"

// MaxMessage bounds a message between nodes, in bytes: 1,000 of the longest items.
const MaxMessage = 4 << 20
