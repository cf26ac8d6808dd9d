package bucket

import "time"

// A Query is a valid [Request] with its id, in the units in which decisions are made. [Query.Prepare] makes it, and
// makes another in the same memory; only Hits may be changed by hand. It must not be shared while it is prepared.
type Query struct {
	ID       []byte // names the limit
	Behavior Behavior
	Hits     int64
	Limit    int64

	algorithm Algorithm
	capacity  uint64 // Limit, or the burst
	duration  int64  // nanoseconds; nominal for calendar units
	calendar  *calendar
}

const (
	nsPerMs = 1_000_000
	day     = 24 * 60 * 60 * 1000 // milliseconds
)

// nominalMs holds the lengths that calendar units have where no calendar can be consulted: a leak has no first of the
// month.
var nominalMs = [units]int64{
	minute: 60_000, hour: 3_600_000, wholeDay: day, week: 7 * day, month: 30 * day, year: 365 * day,
}

// Prepare makes q the query of r, or returns which field of r is wrong, and why; then q must not be used. The id goes
// into the memory of q.ID, so that it costs no allocation where there is room.
func (q *Query) Prepare(r *Request, zones *Zones) error {
	if err := q.PrepareWithoutID(r, zones); err != nil {
		return err
	}
	q.ID = r.AppendID(q.ID[:0])
	return nil
}

// PrepareWithoutID is Prepare but for the ID, for a query that lives for one decision: its id is better kept outside,
// where it needs no memory of the heap.
func (q *Query) PrepareWithoutID(r *Request, zones *Zones) error {
	if err := CheckName(r.Name); err != nil {
		return err
	}
	if err := CheckKey(r.UniqueKey); err != nil {
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
	q.Behavior, q.Hits, q.Limit = r.Behavior, r.Hits, r.Limit
	q.algorithm, q.capacity, q.calendar = r.Algorithm, uint64(r.Limit), nil
	if r.Algorithm == LeakyBucket && r.Burst > 0 && r.Limit > 0 {
		q.capacity = uint64(r.Burst)
	}
	if r.Behavior&DurationIsGregorian != 0 {
		return q.prepareUnit(r, zones)
	}
	if r.Duration < 1 || r.Duration > MaxDurationMs {
		return errDuration
	}
	q.duration = r.Duration * nsPerMs
	return nil
}

// prepareUnit completes a query whose duration is a calendar unit.
func (q *Query) prepareUnit(r *Request, zones *Zones) error {
	switch {
	case r.Algorithm == SlidingWindow:
		return errSlidingUnit
	case r.Duration < 0 || r.Duration >= units:
		return errUnit
	}
	zone, ok := zones.find(r.TimeZone)
	if !ok {
		return errZone
	}
	q.duration = nominalMs[r.Duration] * nsPerMs
	if r.Algorithm == TokenBucket {
		q.calendar = zone.calendars[r.Duration]
	}
	return nil
}

// Window returns the time in which the limit is whole again if no hits are taken; for calendar units what they usually
// have.
func (q *Query) Window() time.Duration { return time.Duration(q.duration) }

// SetWindow sets another window than the request has, for one that is no whole milliseconds. It must be positive, and
// at most MaxDurationMs.
func (q *Query) SetWindow(window time.Duration) { q.duration = int64(window) }

// AtOnce returns the hits that pass at once when the limit is whole, but no more than the limit.
func (q *Query) AtOnce() int64 { return int64(min(uint64(q.Limit), q.capacity)) }

// windowFrom returns the length in nanoseconds of a window that starts at start.
func (q *Query) windowFrom(start int64) int64 {
	if q.calendar == nil {
		return q.duration
	}
	return q.calendar.end(start) - start
}
