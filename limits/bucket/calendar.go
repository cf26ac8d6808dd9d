package bucket

import (
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// The calendar units, as they are numbered in Request.Duration.
const (
	minute = iota
	hour
	wholeDay
	week
	month
	year
	units
)

// A calendar knows where the units of one kind end in one time zone.
// It is safe for concurrent use.
type calendar struct {
	unit int64
	zone *time.Location
	last atomic.Pointer[span] // the newest unit asked for, since nearly all callers ask for the current one
}

// A span is a stretch of one unit: every instant from from, before to, has its unit end at to. Unix nanoseconds.
type span struct{ from, to int64 }

// end returns the first instant after now, in Unix nanoseconds, that belongs to another unit than now does.
func (c *calendar) end(now int64) int64 {
	last := c.last.Load()
	if last != nil && last.from <= now && now < last.to {
		return last.to
	}
	to := c.next(floorDiv(now, int64(time.Second))) * int64(time.Second)
	if last == nil || to > last.to || to == last.to && now < last.from {
		c.last.Store(&span{now, to})
	}
	return to
}

// next does the work of end, in Unix seconds.
func (c *calendar) next(now int64) int64 {
	switch c.unit {
	case minute:
		return clockEnd(c.zone, now, 60)
	case hour:
		return clockEnd(c.zone, now, 3600)
	}
	date := time.Unix(now, 0).In(c.zone)
	// A clock set back over midnight shows yesterday's date once more. Today has begun all the same, so its start is not
	// ahead of now, and the next unit is the one after it.
	for {
		date = c.following(date)
		if start := dateStart(c.zone, date); start > now {
			return start
		}
	}
}

// following returns the first date of the unit after the one that holds t's date, as midnight UTC.
func (c *calendar) following(t time.Time) time.Time {
	y, m, d := t.Date()
	switch c.unit {
	case wholeDay:
		d++
	case week:
		d += 7 - (int(t.Weekday())+6)%7 // Monday comes first
	case month:
		m, d = m+1, 1
	case year:
		y, m, d = y+1, time.January, 1
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// dateStart returns the first instant at which zone's calendar shows date or a later one: midnight, or where clocks
// skip midnight (or the whole day), the instant of that skip.
func dateStart(zone *time.Location, date time.Time) int64 {
	const widest = 26 * 60 * 60 // no zone was ever further from UTC
	local := date.Unix()        // what a local clock, read as if it showed UTC, shows at midnight
	at := local - widest
	for {
		offset, until, last := zoneAt(zone, at)
		if start := max(at, local-offset); last || start < until {
			return start
		}
		at = until
	}
}

// clockEnd returns the end of the minute or hour (size seconds) that zone's clocks show at now. An hour that is shown
// twice is two hours.
func clockEnd(zone *time.Location, now, size int64) int64 {
	for {
		offset, until, last := zoneAt(zone, now)
		shown := floorDiv(now+offset, size)
		end := (shown+1)*size - offset
		if last || end <= until {
			return end
		}
		// The clocks are set within this hour. It goes on if they still show it afterwards.
		after, _, _ := zoneAt(zone, until)
		if floorDiv(until+after, size) != shown {
			return until
		}
		now = until
	}
}

// zoneAt returns the seconds by which zone is ahead of UTC at an instant, and until when; last means for ever.
func zoneAt(zone *time.Location, at int64) (offset, until int64, last bool) {
	t := time.Unix(at, 0).In(zone)
	_, ahead := t.Zone()
	_, end := t.ZoneBounds()
	if until = end.Unix(); until <= at {
		// ZoneBounds takes every year for one of 365 days: on the last day of a leap year it returns an end that has passed.
		until = (floorDiv(at, 86400) + 1) * 86400
	}
	return int64(ahead), until, end.IsZero()
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// The cache of zones is bounded. There are some 600 names of up to 32 bytes; the rest is for what callers misspell.
const (
	maxZones     = 1024
	maxZoneBytes = 64
)

// Zones finds time zones by name for [Query.Prepare], and remembers a bounded number of them, also that a name is
// unknown. It is safe for concurrent use.
type Zones struct {
	loading chan struct{} // held while a zone is loaded: unknown names are dear, and must not take all processors

	mu    sync.Mutex
	found *simplelru.LRU[string, *zone] // guarded by mu; nil values are unknown names
}

// A zone has the calendars of one time zone, by unit.
type zone struct{ calendars [units]*calendar }

// NewZones returns Zones that remember nothing yet.
func NewZones() *Zones {
	found, err := simplelru.NewLRU[string, *zone](maxZones, nil)
	if err != nil {
		panic(err) // maxZones is positive
	}
	return &Zones{found: found, loading: make(chan struct{}, 1)}
}

// find returns the zone of an IANA name; "" is UTC.
func (z *Zones) find(name string) (*zone, bool) {
	if len(name) > maxZoneBytes {
		return nil, false
	}
	z.mu.Lock()
	found, ok := z.found.Get(name)
	z.mu.Unlock()
	if !ok {
		name = strings.Clone(name) // that of a request doesn't last
		z.loading <- struct{}{}
		found = loadZone(name) // reads a file, so not under the lock
		<-z.loading
		z.mu.Lock()
		z.found.Add(name, found)
		z.mu.Unlock()
	}
	return found, found != nil
}

// loadZone reads a zone from the machine's or the program's own zone data, nil if there is none of that name. Names
// that mean another zone on another machine are refused: all nodes must agree where a day ends.
func loadZone(name string) *zone {
	switch first, _, _ := strings.Cut(name, "/"); first {
	case "Local", "localtime", "posixrules", "posix", "right":
		return nil
	}
	if name != "" && path.Clean(name) != name {
		return nil // "Europe//Berlin": a path to the file, if there is a file
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil
	}
	z := &zone{}
	for unit := range z.calendars {
		z.calendars[unit] = &calendar{unit: int64(unit), zone: location}
	}
	return z
}
