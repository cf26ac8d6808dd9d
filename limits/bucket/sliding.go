package bucket

// SLIDING_WINDOW: used.lo is the hits of the window that started at stamp, used.hi those of the window before it.

// slidingAt returns both counts at now and the start of the window now is in: first moved on by the old duration, then
// re-dated by q's.
func (s *State) slidingAt(start int64, q *Query, now int64) (used u128, from int64) {
	used, start = slide(s.used, start, s.duration, now)
	if q.duration != s.duration {
		used, start = slide(used, start, q.duration, now)
	}
	if used == (u128{}) {
		return used, now
	}
	return used, start
}

// slide moves windows of one duration on until now is in the current one.
func slide(used u128, start, duration, now int64) (u128, int64) {
	switch windows := (now - start) / duration; windows {
	case 0:
		return used, start
	case 1:
		return u128{hi: used.lo}, start + duration
	default:
		return u128{}, now
	}
}

// slidingLoad returns the estimate at now in 1/duration of a hit: this window, and of the previous one the part that a
// window ending now still overlaps.
func (s *State) slidingLoad(now int64) u128 {
	overlap := uint64(s.stamp + s.duration - now)
	return mul(s.used.lo, uint64(s.duration)).add(mul(s.used.hi, overlap))
}

// slidingUsed returns the estimate in hits, rounded up.
func (s *State) slidingUsed(now int64) u128 { return s.slidingLoad(now).divUp(uint64(s.duration)) }

// slidingGiveBack returns hits to this window first, the rest to the previous one.
func (s *State) slidingGiveBack(n uint64) {
	current := min(n, s.used.lo)
	s.used.lo -= current
	s.used.hi -= min(n-current, s.used.hi)
}

// slidingUntilWhole: this window's hits weigh until the next one has passed, the previous one's until this one has.
func (s *State) slidingUntilWhole(now int64) u128 {
	end := s.stamp + s.duration - now
	if s.used.lo > 0 {
		end += s.duration
	}
	return u128{lo: uint64(end)}
}

// slidingUntilFits finds when the estimate has fallen to limit - hits. It falls linearly to the end of this window, as
// the previous one loses its weight, and then to the end of the next, as this one does.
func (s *State) slidingUntilFits(hits uint64, q *Query, now int64) u128 {
	room := uint64(q.Limit) - hits
	end, falling, rest := s.stamp+s.duration, s.used.hi, room
	if s.used.lo > room {
		end, falling = end+s.duration, s.used.lo
	} else {
		rest = room - s.used.lo
	}
	// falling > rest, or the hits would have fitted; so they fit when falling × (time to end) / duration is rest.
	overlap, _ := mul(rest, uint64(s.duration)).div(falling)
	return u128{lo: uint64(end - now - overlap.int64())}
}
