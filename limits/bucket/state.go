package bucket

import "math"

// A State is what is remembered of one limit: how much of it is used, and since when. The zero value is a whole limit.
// States are values: equal ones are equal with ==, and copies share nothing.
//
// It keeps usage, not what remains, so that a limit that is lowered and raised again has forgotten nothing.
//
// The meaning of used is each algorithm's own; zero always means whole.
type State struct {
	used      u128
	stamp     int64  // Unix nanoseconds: where the window starts (LeakyBucket: when used was true)
	duration  int64  // nanoseconds, as last in force
	limit     uint64 // as last in force
	algorithm Algorithm
	drained   bool // nothing was left at the last request
}

// Empty reports whether nothing of the limit is used, so that nothing need be remembered of it. A state whose time is
// over is not empty for that: see [State.Whole].
func (s State) Empty() bool { return s.used == u128{} }

// Drained reports whether the last request left nothing, or found nothing left.
func (s *State) Drained() bool { return s.drained }

// Step answers one query in r and returns the state that follows s. It is the whole of a decision: nothing else is
// read, nothing else is changed. now is in Unix nanoseconds.
func Step(s State, q *Query, now int64, r *Result) (next State) {
	*r = Result{Limit: q.Limit}
	next.advance(&s, q, now)
	if q.Behavior&ResetRemaining != 0 {
		next.used = u128{}
		next.accept(r, q, now, q.capacity)
		return State{}
	}
	free := next.free(q, now)
	switch hits := uint64(q.Hits); {
	case q.Hits == 0:
		next.accept(r, q, now, free)
		return s
	case q.Hits < 0:
		wasWhole := next.Empty()
		next.giveBack(-hits)
		free = next.free(q, now)
		next.drained = free == 0
		next.accept(r, q, now, free)
		if wasWhole {
			next = s.unused(q)
		}
	case hits <= free:
		next.take(hits)
		next.drained = hits == free
		next.accept(r, q, now, free-hits)
	default:
		if q.Behavior&DrainOverLimit != 0 {
			next.take(free)
			free = 0
		}
		next.drained = free == 0
		next.refuse(r, q, now, free)
		if next.Empty() {
			next = s.unused(q)
		}
	}
	return next
}

// unused returns what follows s when its limit was whole in q's eyes and no hit was counted: nothing, but for the count
// of another algorithm, which is not q's to drop.
func (s *State) unused(q *Query) State {
	if s.algorithm == q.algorithm {
		return State{}
	}
	return *s
}

// advance makes s what was is at now, in the algorithm and under the terms of q: whole if was has run out, or belongs
// to another algorithm.
func (s *State) advance(was *State, q *Query, now int64) {
	s.algorithm, s.limit, s.stamp = q.algorithm, uint64(q.Limit), now
	if !was.Empty() && was.algorithm == q.algorithm {
		start := min(was.stamp, now) // a clock that was set back neither refills nor locks
		switch q.algorithm {
		case TokenBucket:
			s.used, s.stamp = was.tokenAt(start, q, now)
		case LeakyBucket:
			s.used = was.leakyAt(start, q, now)
		case SlidingWindow:
			s.used, s.stamp = was.slidingAt(start, q, now)
		}
	}
	s.duration = q.windowFrom(s.stamp)
}

// free returns the whole hits that fit now.
func (s *State) free(q *Query, now int64) uint64 {
	var used u128
	switch s.algorithm {
	case TokenBucket:
		used = s.used
	case LeakyBucket:
		used = s.leakyUsed()
	case SlidingWindow:
		used = s.slidingUsed(now)
	}
	if used.hi != 0 || used.lo >= q.capacity {
		return 0
	}
	return q.capacity - used.lo
}

// take counts n hits.
func (s *State) take(n uint64) {
	if s.algorithm == LeakyBucket {
		s.used = s.used.add(mul(n, uint64(s.duration)))
		return
	}
	s.used.lo += n // both are at most a limit: 63 bits
}

// giveBack returns n hits to the limit, at most those that were taken.
func (s *State) giveBack(n uint64) {
	switch s.algorithm {
	case TokenBucket:
		s.used.lo -= min(n, s.used.lo)
	case LeakyBucket:
		s.used = s.used.less0(mul(n, uint64(s.duration)))
	case SlidingWindow:
		s.slidingGiveBack(n)
	}
}

// untilWhole returns the nanoseconds until nothing is used any more; the largest number if that never happens.
func (s *State) untilWhole(now int64) u128 {
	switch {
	case s.Empty():
		return u128{}
	case s.algorithm == TokenBucket:
		return u128{lo: uint64(s.stamp + s.duration - now)}
	case s.algorithm == LeakyBucket:
		return s.leakyUntil(s.used)
	default:
		return s.slidingUntilWhole(now)
	}
}

// untilFits returns the nanoseconds until hits, which fit an unused limit but not this one now, would be taken.
func (s *State) untilFits(hits uint64, q *Query, now int64) u128 {
	switch s.algorithm {
	case TokenBucket:
		return s.untilWhole(now)
	case LeakyBucket:
		return s.leakyUntil(s.used.add(mul(hits, uint64(s.duration))).less0(mul(q.capacity, uint64(s.duration))))
	default:
		return s.slidingUntilFits(hits, q, now)
	}
}

// Expiry returns when nothing is used any more if no hits are taken until then, in Unix nanoseconds; the largest number
// for never.
func (s *State) Expiry() int64 {
	wait := s.untilWhole(s.stamp).int64() // all of s is as it was at its stamp
	if s.stamp > math.MaxInt64-wait {
		return math.MaxInt64
	}
	return s.stamp + wait
}

// MayEndBefore reports whether s, which follows was, may be whole earlier than was would have been. Hits that are given
// back can do that, too.
func (s *State) MayEndBefore(was *State) bool {
	return s.duration < was.duration || s.limit > was.limit || s.stamp < was.stamp || s.algorithm != was.algorithm
}

// accept completes r where hits were taken, given back or only looked at.
func (s *State) accept(r *Result, q *Query, now int64, free uint64) {
	r.Status, r.Remaining = StatusOK, int64(free)
	wait := s.untilWhole(now)
	if q.Limit == 0 || s.Empty() && s.algorithm == TokenBucket {
		wait = u128{lo: uint64(q.windowFrom(now))}
	}
	r.ResetTime = msAfter(now, wait)
}

// refuse completes r where hits were refused.
func (s *State) refuse(r *Result, q *Query, now int64, free uint64) {
	r.Status, r.Remaining = StatusOverLimit, int64(free)
	hits := uint64(q.Hits)
	if hits > q.capacity {
		r.Metadata.Reason = ReasonTooManyHits
		if q.Limit == 0 {
			r.Metadata.Reason = ReasonLimitZero
		}
		r.ResetTime = msAfter(now, u128{lo: uint64(q.windowFrom(now))})
		return
	}
	wait := s.untilFits(hits, q, now)
	r.ResetTime = msAfter(now, wait)
	r.RetryAfter = max(1, wait.divUp(nsPerMs).int64())
}

// msAfter returns the Unix milliseconds, rounded up, of the moment wait nanoseconds after now. It saturates.
func msAfter(now int64, wait u128) int64 {
	if wait.hi == 0 && wait.lo <= math.MaxInt64/2 && 0 <= now && now <= math.MaxInt64/2 {
		return int64((uint64(now) + wait.lo + nsPerMs - 1) / nsPerMs)
	}
	if now < 0 {
		wait, now = wait.less0(u128{lo: uint64(-now)}), 0 // clocks before 1970 need no more than to do no harm
	}
	return wait.add(u128{lo: uint64(now)}).divUp(nsPerMs).int64()
}
