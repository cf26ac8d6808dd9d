package bucket

import "math"

// LEAKY_BUCKET: used is the level at stamp in 1/duration of a hit (duration in ns), so that one nanosecond leaks
// exactly limit of these parts and nothing is ever rounded away.

// leakyAt returns the level at now: leaked at the old rate, then measured in parts of q's duration, rounded up.
func (s *State) leakyAt(start int64, q *Query, now int64) u128 {
	level := s.used.less0(mul(s.limit, uint64(now-start)))
	if s.duration == q.duration {
		return level
	}
	hits, parts := level.div(uint64(s.duration))
	return mul(hits.uint64(), uint64(q.duration)).add(mul(parts, uint64(q.duration)).divUp(uint64(s.duration)))
}

// leakyUsed returns the level in hits, rounded up: a hit that has leaked in part leaves no room for a whole one.
func (s *State) leakyUsed() u128 { return s.used.divUp(uint64(s.duration)) }

// leakyUntil returns the nanoseconds in which parts leak, rounded up.
func (s *State) leakyUntil(parts u128) u128 {
	if s.limit == 0 {
		return u128{math.MaxUint64, math.MaxUint64}
	}
	return parts.divUp(s.limit)
}
