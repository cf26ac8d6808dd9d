package bucket

import (
	"strings"
	"unicode/utf8"
)

// The bounds of a [Request].
const (
	MaxNameBytes  = 255             // of Request.Name
	MaxKeyBytes   = 1024            // of Request.UniqueKey
	MaxDurationMs = 316_224_000_000 // of Request.Duration: 3,660 days
)

// A Request asks to take Hits from the limit that Name and UniqueKey name together. It carries the whole limit: nothing
// about it is configured anywhere. The zero values of Limit and of most other fields are meaningful, so set all you
// mean.
type Request struct {
	Name      string // 1 to 255 bytes of UTF-8, not blank, no NUL
	UniqueKey string // 1 to 1,024 bytes of UTF-8, not blank, no NUL
	Hits      int64  // what to take; 0 looks, a negative number returns hits
	Limit     int64  // 0 to 2^63-1; 0 refuses everything
	Duration  int64  // milliseconds, 1 to 316,224,000,000 (3,660 days); a calendar unit with DurationIsGregorian
	Algorithm Algorithm
	Behavior  Behavior
	Burst     int64  // capacity of LeakyBucket; 0 means Limit; ignored by the others
	TimeZone  string // IANA name, "" is UTC; ignored without DurationIsGregorian
}

// Clone returns a copy that shares no memory with what r was read from.
func (r *Request) Clone() Request {
	c := *r
	text := strings.Join([]string{r.Name, r.UniqueKey, r.TimeZone}, "") // one piece of memory instead of three
	key, zone := len(r.Name), len(r.Name)+len(r.UniqueKey)
	c.Name, c.UniqueKey, c.TimeZone = text[:key], text[key:zone], text[zone:]
	return c
}

// MaxIDBytes is the longest that AppendID appends for a valid request.
const MaxIDBytes = 1 + MaxNameBytes + MaxKeyBytes

// AppendID appends the one string that names r's limit. Different pairs of Name and UniqueKey never have the same.
func (r *Request) AppendID(dst []byte) []byte { return AppendID(dst, r.Name, r.UniqueKey) }

// AppendID appends the one string that names the limit of a valid name and key. A length comes first, which keeps pairs
// apart that would be equal when merely joined: "a_b" and "c", "a" and "b_c".
func AppendID(dst []byte, name, key string) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, key...)
}

// SplitID returns the name and the key of an id that [AppendID] made. They share its memory.
func SplitID(id string) (name, key string) {
	n := 1 + int(id[0])
	return id[1:n], id[n:]
}

// An invalid is an error in one field of a request, which its text names first.
type invalid string

func (e invalid) Error() string { return string(e) }

const (
	errLimit    = invalid("limit: required, from 0 to 9223372036854775807")
	errDuration = invalid("duration: required, from 1 to 316224000000 milliseconds")
	errUnit     = invalid("duration: with DURATION_IS_GREGORIAN required as 0 minute, 1 hour, 2 day, 3 week, " +
		"4 month or 5 year")
	errAlgorithm = invalid(`algorithm: must be "TOKEN_BUCKET" (0), "LEAKY_BUCKET" (1) or "SLIDING_WINDOW" (2)`)
	errBehavior  = invalid(`behavior: must be made of "BATCHING" (0), "NO_BATCHING" (1), "GLOBAL" (2), ` +
		`"DURATION_IS_GREGORIAN" (4), "RESET_REMAINING" (8) and "DRAIN_OVER_LIMIT" (32)`)
	errSlidingUnit = invalid("behavior: DURATION_IS_GREGORIAN is not defined for algorithm SLIDING_WINDOW; " +
		"give duration in milliseconds")
	errBurst = invalid("burst: must not be negative")
	errZone  = invalid(`time_zone: not a known IANA name such as "Europe/Berlin"`)
)

// CheckName returns what is wrong with the name of a limit, nil if nothing is.
func CheckName(name string) error {
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

// CheckKey returns what is wrong with the key of a limit, nil if nothing is.
func CheckKey(key string) error {
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

// isPlain reports whether s is ASCII without NUL. Every check asks twice, so it looks at eight bytes at a time.
func isPlain(s string) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; len(s) >= 8; s = s[8:] {
		w := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
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
