package bucket

import (
	"math"
	"time"
)

// A Debt is hits that were taken from a limit away from the node that owns it, of which that has yet to hear. The zero
// value is none. Debts are values: copies share nothing.
//
// All hits of a debt belong to one window. Once that has ended they are owed no more.
type Debt struct {
	state State  // as if these hits were all that was ever taken, in the algorithm and under the terms that took them
	raw   uint64 // LeakyBucket: the hits themselves, which state loses to the leak
}

// leakSpan is how long hits of a LeakyBucket are owed in full. While the owner counts, its bucket leaks anyway, so what
// it hears of late must not have leaked, too; but where no other node counted for long, a debt leaks as any bucket
// does.
const leakSpan = time.Second

// IsZero reports whether nothing was ever added.
func (d *Debt) IsZero() bool { return d.state.Empty() }

// Hits returns the hits that are owed at now: none once their window has ended.
func (d *Debt) Hits(now time.Time) int64 {
	s := d.at(now.UnixNano())
	return int64(s.hits())
}

// hits returns what was taken, in whole hits.
func (s *State) hits() uint64 {
	if s.algorithm == LeakyBucket {
		return s.leakyUsed().uint64()
	}
	return sum63(s.used.lo, s.used.hi)
}

// at returns the state of a limit from which only these hits were taken; empty if they are not owed any more.
func (d *Debt) at(now int64) State {
	s := d.state
	if s.Empty() || s.algorithm != LeakyBucket {
		return s.at(now)
	}
	parts := s.used.add(mul(s.limit, uint64(leakSpan))).less0(mul(s.limit, uint64(max(0, now-s.stamp))))
	hits := min(d.raw, parts.divUp(uint64(s.duration)).uint64())
	s.used, s.stamp = mul(hits, uint64(s.duration)), now
	return s
}

// Add adds hits that were taken at now, after which the limit was as on tells. It returns the hits that were owed in
// another algorithm, and are not any more.
func (d *Debt) Add(hits int64, on *State, now time.Time) (dropped int64) {
	t := now.UnixNano()
	was := *d
	owed := was.at(t)
	d.state, d.raw = *on, uint64(hits)
	d.state.used, d.state.drained = u128{}, false
	if on.algorithm == LeakyBucket {
		d.state.stamp = t
	}
	switch {
	case owed.Empty():
	case owed.algorithm != on.algorithm:
		dropped = int64(owed.hits())
	case on.algorithm == LeakyBucket:
		d.raw = sum63(d.raw, owed.hits())
		d.state.advance(&was.state, on.terms(), t)
	default:
		d.state.take(uint64(hits))
		d.state, _ = d.state.Join(&was, now) // the window that counts is the present one
		return 0
	}
	d.state.take(uint64(hits))
	return dropped
}

// Merge adds the hits of another debt of the same limit. It returns the hits that were owed in another algorithm, and
// are not any more.
func (d *Debt) Merge(other *Debt, now time.Time) (dropped int64) {
	t := now.UnixNano()
	owed := other.at(t)
	switch mine := d.at(t); {
	case owed.Empty():
	case mine.Empty():
		*d = *other
	case mine.algorithm != owed.algorithm:
		dropped = int64(mine.hits())
		*d = *other
	default:
		d.raw = sum63(mine.hits(), owed.hits())
		d.state, _ = mine.Join(other, now)
	}
	return dropped
}

// Shift returns the same debt by a clock that is ahead by some time.
func (d Debt) Shift(by time.Duration) Debt {
	d.state.stamp += int64(by)
	return d
}

// Shift returns the same state by a clock that is ahead by some time.
func (s State) Shift(by time.Duration) State {
	s.stamp += int64(by)
	return s
}

// Join returns s at now with the hits of a debt, beyond the limit too, since they have been taken already. It returns s
// and false where s is of another algorithm.
func (s State) Join(d *Debt, now time.Time) (next State, ok bool) {
	t := now.UnixNano()
	next, owed := s.at(t), d.at(t)
	switch {
	case owed.Empty():
		return s, true
	case next.Empty():
		next = owed
	case next.algorithm != owed.algorithm:
		return s, false
	case owed.algorithm == TokenBucket:
		next.used.lo = sum63(next.used.lo, owed.used.lo)
	case owed.algorithm == LeakyBucket:
		next.used = next.used.add(mul(owed.hits(), uint64(next.duration)))
	default:
		next.joinWindows(&owed)
	}
	next.drained = next.free(next.terms(), t) == 0
	return next, true
}

// Add is Join with all that is used of another state of the same limit.
func (s State) Add(other State, now time.Time) (next State, ok bool) {
	return s.Join(&Debt{other, other.hits()}, now)
}

// underWay is the longest time that a message takes, which is by how much a debt looks younger than it is.
const underWay = time.Second

// joinWindows adds the hits of a sliding window, where the windows of the two are the same but for the time that a
// message takes. Otherwise what was taken in the present one counts in the present one, and so does the one before if
// it reaches into it: rather too much than too little.
func (s *State) joinWindows(owed *State) {
	if owed.stamp-s.stamp > min(s.duration/2, int64(underWay)) {
		s.used.lo = sum63(s.used.lo, owed.used.hi)
	} else {
		s.used.hi = sum63(s.used.hi, owed.used.hi)
	}
	s.used.lo = sum63(s.used.lo, owed.used.lo)
}

// sum63 adds, up to the largest limit.
func sum63(a, b uint64) uint64 { return min(a+b, math.MaxInt64) }

// terms returns the query that asks under the state's own terms.
func (s *State) terms() *Query {
	return &Query{algorithm: s.algorithm, Limit: int64(s.limit), capacity: s.limit, duration: s.duration}
}

// At returns s at now, under its own terms: the zero State if nothing is used any more by then.
func (s State) At(now time.Time) State { return s.at(now.UnixNano()) }

func (s *State) at(now int64) (at State) {
	if s.Empty() {
		return State{}
	}
	at.advance(s, s.terms(), now)
	if at.Empty() {
		return State{}
	}
	at.drained = s.drained
	return at
}

// Whole reports whether nothing is used at now, under the state's own terms.
func (s *State) Whole(now time.Time) bool { return s.Empty() || s.Expiry() <= now.UnixNano() }

// CheckCopy answers a query as [Step] does, on a copy of a state that is kept elsewhere, and returns the state that
// follows. enough is false where only the keeper of the state can answer: where q begins a window, has other terms than
// the state, or resets the limit. Then the answer is the best that is to be had without it. now is the time of the
// state's own clock.
func (s *State) CheckCopy(q *Query, now time.Time) (next State, result Result, enough bool) {
	t := now.UnixNano()
	next = Step(*s, q, t, &result)
	if q.Hits == 0 {
		return next, result, q.Behavior&ResetRemaining == 0
	}
	if at := s.at(t); at.Empty() {
		return next, result, q.algorithm == LeakyBucket
	}
	sameTerms := s.algorithm == q.algorithm && s.limit == uint64(q.Limit) && s.duration == q.windowFrom(s.stamp)
	return next, result, sameTerms
}

// Begins reports whether s began after was, so that hits taken from was have nothing to do with it: a TokenBucket is in
// another window. The other algorithms have no such moment. A window that starts earlier is the same one, re-dated by a
// clock that stepped back.
func (s *State) Begins(was *State) bool {
	return s.algorithm == TokenBucket && !s.Empty() && (was.Empty() || was.algorithm != s.algorithm || was.stamp < s.stamp)
}
