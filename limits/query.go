package limits

// A query is a valid request in the units in which decisions are made: nanoseconds and capacities.
type query struct {
	algorithm Algorithm
	reset     bool
	drain     bool
	hits      int64
	limit     uint64
	capacity  uint64 // limit, or burst
	duration  int64  // nanoseconds; nominal for calendar units
	calendar  *calendar
}

const (
	nsPerMs = 1_000_000
	day     = 24 * 60 * 60 * 1000 // milliseconds
)

// nominalMs holds the lengths that calendar units have where no calendar can be consulted: a leak has no first of the month.
var nominalMs = [units]int64{minute: 60_000, hour: 3_600_000, wholeDay: day, week: 7 * day, month: 30 * day, year: 365 * day}

// query makes q of r, or says which field of r is wrong.
func (l *Limiter) query(r *Request, q *query) error {
	if err := checkName(r.Name); err != nil {
		return err
	}
	if err := checkKey(r.UniqueKey); err != nil {
		return err
	}
	switch {
	case r.Limit < 0:
		return errLimit
	case r.Algorithm >= algorithms:
		return errAlgorithm
	case r.Behavior&^knownBehaviors != 0:
		return errBehavior
	case r.Algorithm == LeakyBucket && r.Burst < 0:
		return errBurst
	}
	q.algorithm = r.Algorithm
	q.reset = r.Behavior&ResetRemaining != 0
	q.drain = r.Behavior&DrainOverLimit != 0
	q.hits = r.Hits
	q.limit, q.capacity = uint64(r.Limit), uint64(r.Limit)
	if r.Algorithm == LeakyBucket && r.Burst > 0 && r.Limit > 0 {
		q.capacity = uint64(r.Burst)
	}
	if r.Behavior&DurationIsGregorian != 0 {
		return l.addUnit(q, r)
	}
	if r.Duration < 1 || r.Duration > MaxDurationMs {
		return errDuration
	}
	q.duration = r.Duration * nsPerMs
	return nil
}

// addUnit completes a query whose duration is a calendar unit.
func (l *Limiter) addUnit(q *query, r *Request) error {
	switch {
	case r.Algorithm == SlidingWindow:
		return errSlidingUnit
	case r.Duration < 0 || r.Duration >= units:
		return errUnit
	}
	zone, ok := l.zones.find(r.TimeZone)
	if !ok {
		return errZone
	}
	q.duration = nominalMs[r.Duration] * nsPerMs
	if r.Algorithm == TokenBucket {
		q.calendar = zone.calendars[r.Duration]
	}
	return nil
}

// windowFrom is the length in nanoseconds of a window that starts at start.
func (q *query) windowFrom(start int64) int64 {
	if q.calendar == nil {
		return q.duration
	}
	return q.calendar.end(start) - start
}
