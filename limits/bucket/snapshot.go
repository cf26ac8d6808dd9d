package bucket

import (
	"math"
	"time"
)

// A Snapshot is a [State] as it travels between nodes: what the owner of a limit knows of it at one moment. It holds an
// age instead of dates, so that the receiver's clock doesn't matter; Now tells it the owner's.
//
// Receivers skip members that they don't know, so that later versions can say more.
type Snapshot struct {
	Start   int64 `json:"start"`   // the incarnation of the owner
	Epoch   int64 `json:"epoch"`   // grows when the limit begins anew: hits of an earlier epoch don't count in this one
	Version int64 `json:"version"` // grows with each change, also from epoch to epoch
	Acked   int64 `json:"acked"`   // the number of the receiver's last report that is in it; 0 for none
	Now     int64 `json:"now"`     // the owner's clock, Unix nanoseconds

	Algorithm Algorithm `json:"algorithm"`
	Limit     int64     `json:"limit"`    // as last in force
	Duration  int64     `json:"duration"` // nanoseconds
	Age       int64     `json:"age"`      // nanoseconds since the window began; LeakyBucket: since used was true
	Used      int64     `json:"used"`     // hits; 0 with no Rest is a whole limit, of which nothing else is known
	Rest      int64     `json:"rest"`     // SlidingWindow: hits of the window before; LeakyBucket: 1/Duration of a hit
}

// Set makes n the snapshot of s at now. Start, Epoch, Version and Acked stay as they are.
func (n *Snapshot) Set(s State, now time.Time) {
	n.Now = now.UnixNano()
	if s.Whole(now) {
		return
	}
	n.Algorithm, n.Limit, n.Duration = s.algorithm, int64(s.limit), s.duration
	n.Age = max(0, n.Now-s.stamp)
	n.Used, n.Rest = int64(s.used.lo), int64(s.used.hi)
	if s.algorithm == LeakyBucket {
		hits, parts := s.used.div(uint64(s.duration))
		n.Used, n.Rest = hits.int64(), int64(parts)
	}
}

// State returns the state, by the owner's clock. It is false if n is not what Set makes.
func (n *Snapshot) State() (s State, ok bool) {
	switch {
	case !saneClock(n.Now):
		return State{}, false
	case n.Used == 0 && n.Rest == 0:
		return State{}, true
	case n.Used < 0, n.Rest < 0, !saneTerms(n.Algorithm, n.Limit, n.Duration, n.Age):
		return State{}, false
	}
	s = State{algorithm: n.Algorithm, limit: uint64(n.Limit), duration: n.Duration, stamp: n.Now - n.Age}
	s.used = u128{hi: uint64(n.Rest), lo: uint64(n.Used)}
	switch {
	case s.algorithm == LeakyBucket && n.Rest < n.Duration:
		s.used = mul(uint64(n.Used), uint64(n.Duration)).add(u128{lo: uint64(n.Rest)})
	case s.algorithm == LeakyBucket, s.algorithm == TokenBucket && n.Rest != 0:
		return State{}, false
	}
	return s, true
}

// longest is the longest window. Calendar units may be a little longer than the longest duration in milliseconds.
const longest = (MaxDurationMs + day) * nsPerMs

// saneTerms reports whether what another node tells of a limit can be.
func saneTerms(a Algorithm, limit, duration, age int64) bool {
	return a < algorithms && limit >= 0 && 0 < duration && duration <= longest && 0 <= age && age <= 2*longest
}

// saneClock reports whether a clock can be reckoned with.
func saneClock(now int64) bool { return 0 <= now && now <= math.MaxInt64-2*longest }

// A DebtSnapshot is a [Debt] as it travels between nodes. Like a [Snapshot] it holds an age instead of dates.
type DebtSnapshot struct {
	Algorithm Algorithm `json:"algorithm"`
	Limit     int64     `json:"limit"`
	Duration  int64     `json:"duration"`          // nanoseconds
	Age       int64     `json:"age"`               // nanoseconds since the window of the hits began
	Hits      int64     `json:"hits"`              // that were taken in it
	Previous  int64     `json:"previous,omitzero"` // SlidingWindow: and in the one before
}

// Snapshot returns what d is at now. It is false if nothing is owed any more.
func (d *Debt) Snapshot(now time.Time) (n DebtSnapshot, ok bool) {
	s := d.at(now.UnixNano())
	if s.Empty() {
		return n, false
	}
	n.Algorithm, n.Limit, n.Duration = s.algorithm, int64(s.limit), s.duration
	n.Age = max(0, now.UnixNano()-s.stamp)
	n.Hits, n.Previous = int64(min(s.used.lo, math.MaxInt64)), int64(min(s.used.hi, math.MaxInt64))
	if s.algorithm == LeakyBucket {
		n.Hits, n.Previous = int64(s.hits()), 0
	}
	return n, true
}

// Debt returns the debt by a clock that shows now, or an error if there can be none such.
func (n *DebtSnapshot) Debt(now time.Time) (d Debt, err error) {
	t := now.UnixNano()
	if n.Hits < 0 || n.Previous < 0 || n.Hits == 0 && n.Previous == 0 || n.Previous > 0 && n.Algorithm != SlidingWindow ||
		!saneTerms(n.Algorithm, n.Limit, n.Duration, n.Age) || !saneClock(t) {
		return d, invalid("no such debt can be")
	}
	d.state = State{algorithm: n.Algorithm, limit: uint64(n.Limit), duration: n.Duration, stamp: t - n.Age}
	d.state.used = u128{hi: uint64(n.Previous), lo: uint64(n.Hits)}
	if n.Algorithm == LeakyBucket {
		d.state.stamp, d.state.used, d.raw = t, mul(uint64(n.Hits), uint64(n.Duration)), uint64(n.Hits)
	}
	return d, nil
}
