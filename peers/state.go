package peers

// A PeerState is how a peer stands, as this node sees it.
type PeerState int32

// The states of a peer. The calls of one that is StateDown or worse fail at once.
const (
	StateUp      PeerState = iota // it answers
	StateFailing                  // its last calls failed, and it is still asked
	StateDown                     // too many failed in a row: only probes ask it
	StateOut                      // it has been silent for so long that stand-ins count for it
	StateLeft                     // it said that it is about to stop: others have taken over its limits
)

var stateNames = [...]string{"up", "failing", "down", "out", "left"}

// String returns the state's word in /v1/peers and in the metrics.
func (s PeerState) String() string { return stateNames[s] }

// MarshalText returns the same word for JSON. It never fails.
func (s PeerState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
