// Package limits decides whether hits fit a limit, and keeps the count.
//
// It needs no network and no other package of weir, so a Go program can limit its own work with it:
//
//	limiter := limits.New(100_000, time.Now)            // room for 100,000 keys
//	mail := limiter.Rate("mail", 10, time.Second, 20)   // 10 per second, up to 20 at once
//	if mail.Allow("account=123") {
//		send()
//	}
//
// [Limiter.Check] is the same for programs that need another algorithm, calendar windows, or the numbers behind the
// decision: it takes a [Request], which is also what travels over HTTP, and gives a [Result].
//
// Counts are exact integers. Decisions are pure functions of (state, request, time), one file for each algorithm; the
// [Limiter] adds the store, the locks and the clock.
package limits

import (
	"math"
	"strings"
	"unicode/utf8"
)

// The bounds of a [Request].
const (
	MaxNameBytes  = 255             // of Request.Name
	MaxKeyBytes   = 1024            // of Request.UniqueKey
	MaxDurationMs = 316_224_000_000 // of Request.Duration: 3,660 days
)

// An Algorithm says how hits are counted. Its numbers are part of the API.
type Algorithm uint8

// The algorithms. README.md shows what each of them lets pass.
const (
	TokenBucket   Algorithm = 0 // whole at the first hit, whole again one duration later
	LeakyBucket   Algorithm = 1 // leaks continuously, limit hits per duration
	SlidingWindow Algorithm = 2 // this window plus the part of the previous one that it overlaps

	algorithms       = 3
	unknownAlgorithm = Algorithm(math.MaxUint8)
)

var algorithmNames = [algorithms]string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"}

// String gives the name that the API uses, or "UNKNOWN".
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

	unknownBehavior = Behavior(128)
	knownBehaviors  = NoBatching | Global | DurationIsGregorian | ResetRemaining | DrainOverLimit
)

// A Request asks to take Hits from the limit that Name and UniqueKey name together. It carries the whole limit: nothing
// about it is configured anywhere. The zero values of Limit and of most other fields are meaningful, so set all you mean.
type Request struct {
	Name      string // 1 to MaxNameBytes bytes of UTF-8, not blank, no NUL
	UniqueKey string // 1 to MaxKeyBytes bytes of UTF-8, not blank, no NUL
	Hits      int64  // what to take; 0 looks, a negative number gives back
	Limit     int64  // 0 to 2^63-1; 0 refuses everything
	Duration  int64  // milliseconds, 1 to MaxDurationMs; a calendar unit with DurationIsGregorian
	Algorithm Algorithm
	Behavior  Behavior
	Burst     int64  // capacity of LeakyBucket; 0 means Limit; ignored by the others
	TimeZone  string // IANA name, "" is UTC; ignored without DurationIsGregorian
}

// Clone gives a copy that shares no memory with what r was read from.
func (r *Request) Clone() Request {
	c := *r
	text := strings.Join([]string{r.Name, r.UniqueKey, r.TimeZone}, "") // one piece of memory instead of three
	key, zone := len(r.Name), len(r.Name)+len(r.UniqueKey)
	c.Name, c.UniqueKey, c.TimeZone = text[:key], text[key:zone], text[zone:]
	return c
}

// absent stands in Limit and Duration for a field that was not there. No valid request has it.
const absent = math.MinInt64

// A Status is the verdict on one [Request]. The zero value is the error, so that nothing forgotten reads as allowed.
type Status uint8

// The verdicts. Test for StatusOK, never for "not StatusOverLimit".
const (
	StatusError     Status = iota // nothing was decided, Result.Error says why
	StatusOK                      // the hits were taken
	StatusOverLimit               // refused; the hits were not taken

	statuses
)

var statusNames = [statuses]string{"ERROR", "OK", "OVER_LIMIT"}

// String gives the name that the API uses.
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

// Metadata says how a [Result] came about.
type Metadata struct {
	Owner    string // the node that counted
	Degraded string // why another node than the owner answered, or nobody counted; "" if the owner did
	Reason   string // why hits can never fit: ReasonLimitZero or ReasonTooManyHits
	Source   string // SourceReplica if the node answered from its copy of the owner's state; "" if the owner did
}

// The reasons why hits can never fit, however long the caller waits.
const (
	ReasonLimitZero   = "limit_is_zero"
	ReasonTooManyHits = "hits_exceed_capacity"
)

// ReasonMoved is Metadata.Reason of an answer among nodes: nothing was counted, since Metadata.Owner has taken over the limit.
const ReasonMoved = "moved"

// SourceReplica is Metadata.Source of an answer from a copy.
const SourceReplica = "replica"

// AppendID appends the one string that names r's limit. Different pairs of Name and UniqueKey never give the same.
func (r *Request) AppendID(dst []byte) []byte { return appendID(dst, r.Name, r.UniqueKey) }

// appendID puts a length in front, which keeps pairs apart that would be equal when merely joined: "a_b" and "c", "a" and
// "b_c".
func appendID(dst []byte, name, key string) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, key...)
}

// MaxIDBytes is the longest that AppendID appends for a valid request.
const MaxIDBytes = 1 + MaxNameBytes + MaxKeyBytes

// An invalid is an error in one field of a request, which its text names first.
type invalid string

func (e invalid) Error() string { return string(e) }

const (
	errLimit     = invalid("limit: required, from 0 to 9223372036854775807")
	errDuration  = invalid("duration: required, from 1 to 316224000000 milliseconds")
	errUnit      = invalid("duration: with DURATION_IS_GREGORIAN required as 0 minute, 1 hour, 2 day, 3 week, 4 month or 5 year")
	errAlgorithm = invalid(`algorithm: must be "TOKEN_BUCKET" (0), "LEAKY_BUCKET" (1) or "SLIDING_WINDOW" (2)`)
	errBehavior  = invalid(`behavior: must be made of "BATCHING" (0), "NO_BATCHING" (1), "GLOBAL" (2), ` +
		`"DURATION_IS_GREGORIAN" (4), "RESET_REMAINING" (8) and "DRAIN_OVER_LIMIT" (32)`)
	errSlidingUnit = invalid("behavior: DURATION_IS_GREGORIAN is not defined for algorithm SLIDING_WINDOW; " +
		"give duration in milliseconds")
	errBurst = invalid("burst: must not be negative")
	errZone  = invalid(`time_zone: not a known IANA name such as "Europe/Berlin"`)
)

func checkName(name string) error {
	switch {
	case name == "":
		return invalid("name: required, must not be empty")
	case len(name) > MaxNameBytes:
		return invalid("name: longer than 255 bytes")
	case !isText(name):
		return invalid("name: must be valid UTF-8, not blank and without NUL")
	}
	return nil
}

func checkKey(key string) error {
	switch {
	case key == "":
		return invalid("unique_key: required, must not be empty")
	case len(key) > MaxKeyBytes:
		return invalid("unique_key: longer than 1024 bytes")
	case !isText(key):
		return invalid("unique_key: must be valid UTF-8, not blank and without NUL")
	}
	return nil
}

// isText refuses what is most likely a caller's mistake: a template without its value, a buffer with its padding.
func isText(s string) bool {
	if !isPlain(s) && (!utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0) {
		return false
	}
	return ' ' < s[0] && s[0] < utf8.RuneSelf || strings.TrimSpace(s) != ""
}

// isPlain says whether s is ASCII without NUL, eight bytes at a time since every check asks twice.
func isPlain(s string) bool {
	for ; len(s) >= 8; s = s[8:] {
		w := word(s)
		if (w|(w-ones))&tops != 0 { // a byte above 127, or one that borrows: 0
			return false
		}
	}
	for i := range len(s) {
		if s[i]-1 >= 127 {
			return false
		}
	}
	return true
}

// For eight bytes at a time.
const ones, tops = 0x0101010101010101, 0x8080808080808080

// word gives the first eight bytes of s as a number.
func word(s string) uint64 {
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}
