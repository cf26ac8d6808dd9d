package limits

import (
	"math"
	"time"
)

// A Debt is hits that were taken from a limit away from the node that owns it, and that this node has yet to hear of. The
// zero value is none.
//
// All hits of a debt belong to one window: those of one that has ended are of no interest to anybody.
type Debt struct {
	state State  // as if these hits were all that was ever taken, in the algorithm and under the terms that took them
	raw   uint64 // LeakyBucket: the hits themselves, which state loses to the leak
}

// leakSpan is how long hits of a LeakyBucket are owed in full. While the owner counts, its bucket leaks anyway, so what it
// hears of late must not have leaked, too; but where nobody else counted for long, a debt leaks as any bucket does.
const leakSpan = time.Second

// IsZero says whether nothing was ever added.
func (d *Debt) IsZero() bool { return d.state.whole() }

// Hits gives the hits that are owed at now: none once their window has ended.
func (d *Debt) Hits(now time.Time) int64 {
	s := d.at(now.UnixNano())
	return int64(s.hits())
}

// hits gives what was taken, in whole hits.
func (s *State) hits() uint64 {
	if s.algorithm == LeakyBucket {
		return s.leakyUsed().uint64()
	}
	return sum63(s.used.lo, s.used.hi)
}

// at gives the state that somebody would have who knew of these hits alone; whole if they are not owed any more.
func (d *Debt) at(now int64) State {
	s := d.state
	if s.whole() || s.algorithm != LeakyBucket {
		return s.now(now)
	}
	parts := s.used.add(mul(s.limit, uint64(leakSpan))).less0(mul(s.limit, uint64(max(0, now-s.stamp))))
	hits := min(d.raw, parts.divUp(uint64(s.duration)).uint64())
	s.used, s.stamp = mul(hits, uint64(s.duration)), now
	return s
}

// Add adds hits that were taken at now, after which the limit was as on says. It gives the hits that were owed in another
// algorithm, and are not any more.
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
	case owed.whole():
	case owed.algorithm != on.algorithm:
		dropped = int64(owed.hits())
	case on.algorithm == LeakyBucket:
		d.raw = sum63(d.raw, owed.hits())
		d.state.at(&was.state, on.terms(), t)
	default:
		d.state.take(uint64(hits))
		d.state, _ = d.state.join(&was, t) // the window that counts is the present one
		return 0
	}
	d.state.take(uint64(hits))
	return dropped
}

// Merge adds the hits of another debt of the same limit. It gives the hits that were owed in another algorithm, and are not
// any more.
func (d *Debt) Merge(other *Debt, now time.Time) (dropped int64) {
	t := now.UnixNano()
	owed := other.at(t)
	switch mine := d.at(t); {
	case owed.whole():
	case mine.whole():
		*d = *other
	case mine.algorithm != owed.algorithm:
		dropped = int64(mine.hits())
		*d = *other
	default:
		d.raw = sum63(mine.hits(), owed.hits())
		d.state, _ = mine.join(other, t)
	}
	return dropped
}

// Shift gives the same debt by a clock that is ahead by some time.
func (d Debt) Shift(by time.Duration) Debt {
	d.state.stamp += int64(by)
	return d
}

// Shift gives the same state by a clock that is ahead by some time.
func (s State) Shift(by time.Duration) State {
	s.stamp += int64(by)
	return s
}

// Join gives a state with the hits of a debt, beyond the limit too: they have been taken, and what is left to do is to
// know it. It is false where a state of another algorithm stands against that.
func (s State) Join(d *Debt, now time.Time) (next State, ok bool) { return s.join(d, now.UnixNano()) }

func (s State) join(d *Debt, now int64) (next State, ok bool) {
	next, owed := s.now(now), d.at(now)
	switch {
	case owed.whole():
		return s, true
	case next.whole():
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
	next.drained = next.free(next.terms(), now) == 0
	return next, true
}

// underWay is the longest time that a message takes, which is by how much a debt looks younger than it is.
const underWay = time.Second

// joinWindows adds the hits of a sliding window, where the windows of the two are the same but for the time that a message
// takes. Otherwise what was taken in the present one counts in the present one, and so does the one before if it reaches
// into it: rather too much than too little.
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

// terms gives the query that asks under the state's own terms.
func (s *State) terms() *query {
	return &query{algorithm: s.algorithm, limit: s.limit, capacity: s.limit, duration: s.duration}
}

// now gives the state at now, under its own terms.
func (s *State) now(now int64) (at State) {
	if s.whole() {
		return State{}
	}
	at.at(s, s.terms(), now)
	if at.whole() {
		return State{}
	}
	at.drained = s.drained
	return at
}

// Whole says whether nothing is used at now, under the state's own terms.
func (s *State) Whole(now time.Time) bool {
	return s.expired(now.UnixNano())
}

// Uses says whether r asks under the terms of s: in its algorithm, with its limit and its duration.
func (s *State) uses(q *query) bool {
	return s.algorithm == q.algorithm && s.limit == q.limit && s.duration == q.windowFrom(s.stamp)
}

// Try decides on r as [Limiter.Check] does, but on a copy of a state that is kept elsewhere, and gives the state that
// follows. It is false where a copy is not enough, because r begins a window or brings other terms than the state has, and
// with the same request one that only looks is not. now is the time of the state's own clock.
func (l *Limiter) Try(s *State, r *Request, now time.Time) (next State, result Result, ok bool) {
	var q query
	if err := l.query(r, &q); err != nil {
		return *s, Result{Error: err.Error()}, true
	}
	t := now.UnixNano()
	next = step(*s, &q, t, &result)
	if q.hits == 0 {
		return next, result, !q.reset
	}
	if at := s.now(t); at.whole() {
		return next, result, q.algorithm == LeakyBucket
	}
	return next, result, s.uses(&q)
}

// State gives what is remembered of the limit that id names (see [Request.AppendID]): the zero State if nothing is.
func (l *Limiter) State(id []byte) State {
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if held := s.states.peek(id); held != nil {
		return held.State
	}
	return State{}
}

// Owe has the limit that id names count the hits of a debt, and gives how many these are. It is false where a state of
// another algorithm stands against that.
func (l *Limiter) Owe(id []byte, d *Debt) (hits int64, ok bool) {
	s, now := l.lock(id)
	defer s.mu.Unlock()
	owed := d.at(now)
	return int64(owed.hits()), s.join(textOf(id), d, now)
}

// Window gives the length of the time in which the limit of r is whole again if nobody takes anything; for calendar units
// what they usually have. r must be valid.
func (l *Limiter) Window(r *Request) time.Duration {
	var q query
	if l.query(r, &q) != nil {
		return 0
	}
	return time.Duration(q.duration)
}

// Begins says whether s began after was, so that hits taken from was have nothing to do with it: a TokenBucket is in another
// window. The other algorithms have no such moment. A window that starts earlier is the same one, re-dated by a clock that
// stepped back.
func (s *State) Begins(was *State) bool {
	return s.algorithm == TokenBucket && !s.whole() && (was.whole() || was.algorithm != s.algorithm || was.stamp < s.stamp)
}
