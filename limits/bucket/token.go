package bucket

// TOKEN_BUCKET: used is the hits taken in the window that started at stamp.

// tokenAt returns the hits used at now and the start of their window, which is re-dated if q brings a new duration. A
// window that has ended, under the old duration or the new one, leaves nothing.
func (s *State) tokenAt(start int64, q *Query, now int64) (used u128, from int64) {
	if start+s.duration <= now || start+q.windowFrom(start) <= now {
		return u128{}, now
	}
	return s.used, start
}
