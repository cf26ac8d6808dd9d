package wire

import (
	"strings"

	"weir/limits/bucket"
)

// How values are read that are neither plain numbers nor plain texts. The methods of replay find what is wrong with the
// same.

// No valid request has these. They stand for what is not known, which is one item's error instead of the message's.
const (
	unknownAlgorithm = bucket.Algorithm(255)
	unknownBehavior  = bucket.Behavior(128)
)

func (s *scanner) algorithm() bucket.Algorithm {
	if s.peek() == '"' {
		name := s.text()
		for a := range bucket.SlidingWindow + 1 {
			if name == a.String() {
				return a
			}
		}
		return unknownAlgorithm
	}
	if n := s.integer(); 0 <= n && n <= int64(bucket.SlidingWindow) {
		return bucket.Algorithm(n)
	}
	return unknownAlgorithm
}

func (r *replay) algorithm() {
	switch r.kind() {
	case '"':
		r.text()
	case '0':
		r.integer()
	default:
		r.other("a name or a number")
	}
}

func (s *scanner) octet() bucket.Algorithm {
	n := s.integer()
	if n < 0 || n > 255 {
		s.fail()
	}
	return bucket.Algorithm(n)
}

func (r *replay) octet() {
	if n := r.integer(); n < 0 || n > 255 {
		r.wrong("integer beyond 8 bits")
	}
}

var flags = []struct {
	name string
	flag bucket.Behavior
}{
	{"BATCHING", bucket.Batching},
	{"NO_BATCHING", bucket.NoBatching},
	{"GLOBAL", bucket.Global},
	{"DURATION_IS_GREGORIAN", bucket.DurationIsGregorian},
	{"RESET_REMAINING", bucket.ResetRemaining},
	{"DRAIN_OVER_LIMIT", bucket.DrainOverLimit},
}

// allFlags are all that a number may have. StandIn is a word of nodes; a client's is refused when the request is
// prepared.
const allFlags = bucket.NoBatching | bucket.Global | bucket.DurationIsGregorian | bucket.ResetRemaining |
	bucket.DrainOverLimit | bucket.StandIn

func (s *scanner) behavior() (b bucket.Behavior) {
	switch s.peek() {
	case '"':
		return flagOf(s.text())
	case '[':
		s.eat('[')
		for n := 0; s.more(']', n); n++ {
			b |= flagOf(s.text())
		}
		return b
	}
	if sum := s.integer(); sum&^int64(allFlags) == 0 {
		return bucket.Behavior(sum)
	}
	return unknownBehavior
}

func flagOf(name string) bucket.Behavior {
	for i := range flags {
		if flags[i].name == name {
			return flags[i].flag
		}
	}
	return unknownBehavior
}

func (r *replay) behavior() {
	switch r.kind() {
	case '"':
		r.text()
	case '[':
		for r.open('['); r.more(']'); {
			r.text()
		}
	case '0':
		r.integer()
	default:
		r.other("a name, a list of names or a number")
	}
}

func (s *scanner) status() bucket.Status {
	status, known := statusOf(s.text())
	if !known {
		s.fail()
	}
	return status
}

func (r *replay) status() {
	if _, known := statusOf(r.text()); !known {
		r.wrong("unknown status")
	}
}

func statusOf(name string) (status bucket.Status, known bool) {
	for status := range bucket.StatusOverLimit + 1 {
		if name == status.String() {
			return status, true
		}
	}
	return bucket.StatusError, false
}

func (s *scanner) truth() bool {
	s.peek()
	switch rest := s.message[s.at:]; {
	case strings.HasPrefix(rest, "true"):
		s.at += len("true")
		return true
	case strings.HasPrefix(rest, "false"):
		s.at += len("false")
	default:
		s.fail()
	}
	return false
}

func (r *replay) truth() {
	if kind := r.kind(); kind == 't' || kind == 'f' {
		r.skip()
	} else {
		r.other("true or false")
	}
}
