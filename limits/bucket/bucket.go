// Package bucket is the arithmetic of limits: what is remembered of one, and how a request changes it. It needs no
// clock, no lock, no memory of its own and no other package of weir: its caller keeps the states and tells the time.
//
// The way of a check: [Query.Prepare] validates a [Request] and converts it to the units of decisions. [Step] answers
// the query on a [State] and returns the state that follows. It is a pure function; token.go, leaky.go and sliding.go
// hold what the algorithms differ in, calendar.go where days and months end.
//
// In a cluster states and hits travel between nodes. A [Snapshot] is a state on its way; a [Debt] is hits that were
// taken away from the node that owns the limit, until that has counted them.
//
// All numbers are exact integers; where a result can't be, it is rounded so that no caller gets more than the limit.
package bucket

// An Algorithm selects how hits are counted. Its numbers are part of the API.
type Algorithm uint8

// The algorithms. README.md shows what each of them lets pass.
const (
	TokenBucket   Algorithm = 0 // whole at the first hit, whole again one duration later
	LeakyBucket   Algorithm = 1 // leaks continuously, limit hits per duration
	SlidingWindow Algorithm = 2 // this window plus the part of the previous one that it overlaps

	algorithms = 3
)

var algorithmNames = [algorithms]string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"}

// String returns the name that the API uses, or "UNKNOWN".
func (a Algorithm) String() string {
	if a < algorithms {
		return algorithmNames[a]
	}
	return "UNKNOWN"
}

// A Behavior is a set of flags. Its bits are part of the API.
type Behavior uint8

// The flags. Batching, the absence of all, is the default.
const (
	Batching            Behavior = 0  // forwarded checks gather for a moment
	NoBatching          Behavior = 1  // a forwarded check goes out by itself
	Global              Behavior = 2  // any node answers from its own copy
	DurationIsGregorian Behavior = 4  // Duration is a calendar unit, 0 minute to 5 year
	ResetRemaining      Behavior = 8  // make the limit whole, apply no hits
	DrainOverLimit      Behavior = 32 // a refused request takes what is left
	StandIn             Behavior = 64 // among nodes only: count it, though another node owns it

	knownBehaviors = NoBatching | Global | DurationIsGregorian | ResetRemaining | DrainOverLimit
)

// A Status is the verdict on one [Request]. The zero value is the error, so that nothing forgotten reads as allowed.
type Status uint8

// The verdicts. Test for StatusOK, never for "not StatusOverLimit".
const (
	StatusError     Status = iota // nothing was decided; Result.Error tells why
	StatusOK                      // the hits were taken
	StatusOverLimit               // refused; the hits were not taken

	statuses
)

var statusNames = [statuses]string{"ERROR", "OK", "OVER_LIMIT"}

// String returns the name that the API uses.
func (s Status) String() string {
	if s < statuses {
		return statusNames[s]
	}
	return "ERROR"
}

// A Result answers one [Request].
type Result struct {
	Status     Status
	Limit      int64  // the limit in force
	Remaining  int64  // hits that fit now: 0 to the capacity
	ResetTime  int64  // Unix milliseconds, rounded up: whole again (OK), or the same hits would pass (OVER_LIMIT)
	RetryAfter int64  // milliseconds until these hits would pass, at least 1; 0 unless OVER_LIMIT, and when they never can
	Error      string // names the field and what is wrong with it; only with StatusError
	Metadata   Metadata
	State      *Snapshot // of the limit after the decision, for another node that keeps a copy of it; nil for clients
}

// Metadata tells how a [Result] came about.
type Metadata struct {
	Owner    string // the node that counted
	Degraded string // why another node than the owner answered, or none counted; "" if the owner did
	Reason   string // why hits can never fit: ReasonLimitZero or ReasonTooManyHits
	Source   string // SourceReplica if the node answered from its copy of the owner's state; "" if the owner did
}

// The reasons why hits can never fit, however long the caller waits.
const (
	ReasonLimitZero   = "limit_is_zero"
	ReasonTooManyHits = "hits_exceed_capacity"
)

// ReasonMoved is Metadata.Reason of an answer among nodes: nothing was counted, since Metadata.Owner has taken over the
// limit.
const ReasonMoved = "moved"

// SourceReplica is Metadata.Source of an answer from a copy.
const SourceReplica = "replica"
