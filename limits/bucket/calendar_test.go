package bucket

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // for machines without zone files
	"unsafe"
)

const second = int64(time.Second)

var unitNames = [units]string{"minute", "hour", "day", "week", "month", "year"}

func location(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// movesOn reports whether the offsets of a zone end where they are said to, around now. If they didn't, the search for
// a midnight would never end, and a test could only hang; so it asks before.
func movesOn(zone *time.Location, now int64) bool {
	this := time.Unix(0, now).UTC().Year()
	for year := this - 1; year <= this+1; year++ {
		// The day that is easily forgotten in leap years.
		at := time.Date(year, time.December, 31, 12, 0, 0, 0, time.UTC).Unix()
		if _, until, last := zoneAt(zone, at); !last && until <= at {
			return false
		}
	}
	return true
}

func unitEnd(t testing.TB, c *calendar, now int64) int64 {
	t.Helper()
	if !movesOn(c.zone, now) {
		t.Fatalf("in %v an offset ends before it begins, near %v", c.zone, time.Unix(0, now).UTC())
	}
	return c.end(now)
}

func TestCalendarUnits(t *testing.T) {
	for _, test := range []struct {
		zone, at string
		ends     [units]string // "" is not of interest here
	}{
		{"", "2026-01-01T00:00:00Z", [units]string{
			"2026-01-01T00:01:00Z", "2026-01-01T01:00:00Z", "2026-01-02T00:00:00Z",
			"2026-01-05T00:00:00Z", "2026-02-01T00:00:00Z", "2027-01-01T00:00:00Z"}},
		{"UTC", "2025-12-31T23:59:59.999999999Z", [units]string{
			"2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z",
			"2026-01-05T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"}},
		// A week starts on Monday, also where that is in another month or year.
		{"UTC", "2026-03-01T23:59:59Z", [units]string{week: "2026-03-02T00:00:00Z", month: "2026-04-01T00:00:00Z"}},
		{"UTC", "2026-03-02T00:00:00Z", [units]string{week: "2026-03-09T00:00:00Z"}},
		{"UTC", "2026-12-28T00:00:00Z", [units]string{week: "2027-01-04T00:00:00Z"}},
		// Leap years, and the years that look like one.
		{"UTC", "2028-02-28T12:00:00Z", [units]string{wholeDay: "2028-02-29T00:00:00Z", month: "2028-03-01T00:00:00Z"}},
		{"UTC", "2028-02-29T12:00:00Z", [units]string{wholeDay: "2028-03-01T00:00:00Z", year: "2029-01-01T00:00:00Z"}},
		{"UTC", "2026-02-28T12:00:00Z", [units]string{wholeDay: "2026-03-01T00:00:00Z"}},
		{"UTC", "2100-02-28T12:00:00Z", [units]string{wholeDay: "2100-03-01T00:00:00Z"}},
		{"UTC", "2024-12-31T12:00:00Z", [units]string{wholeDay: "2025-01-01T00:00:00Z", year: "2025-01-01T00:00:00Z"}},
		// Zones that aren't whole hours from UTC.
		{"Asia/Kolkata", "2026-06-15T10:10:10+05:30", [units]string{
			"2026-06-15T10:11:00+05:30", "2026-06-15T11:00:00+05:30", "2026-06-16T00:00:00+05:30",
			"2026-06-22T00:00:00+05:30", "2026-07-01T00:00:00+05:30", "2027-01-01T00:00:00+05:30"}},
		{"Asia/Kathmandu", "2026-06-15T10:10:10+05:45", [units]string{
			"2026-06-15T10:11:00+05:45", "2026-06-15T11:00:00+05:45", "2026-06-16T00:00:00+05:45",
			"2026-06-22T00:00:00+05:45", "2026-07-01T00:00:00+05:45", "2027-01-01T00:00:00+05:45"}},
		// The day that clocks go forward has 23 hours; from two it is three at once.
		{"Europe/Berlin", "2026-03-29T00:00:00+01:00", [units]string{wholeDay: "2026-03-30T00:00:00+02:00"}},
		{"Europe/Berlin", "2026-03-29T01:30:00+01:00", [units]string{hour: "2026-03-29T03:00:00+02:00"}},
		// The day that they go back has 25; the hour from two to three comes twice, and each time it is one hour.
		{"Europe/Berlin", "2026-10-25T00:00:00+02:00", [units]string{wholeDay: "2026-10-26T00:00:00+01:00"}},
		{"Europe/Berlin", "2026-10-25T02:30:00+02:00", [units]string{
			minute: "2026-10-25T02:31:00+02:00", hour: "2026-10-25T02:00:00+01:00"}},
		{"Europe/Berlin", "2026-10-25T02:59:30+02:00", [units]string{minute: "2026-10-25T02:00:00+01:00"}},
		{"Europe/Berlin", "2026-10-25T02:30:00+01:00", [units]string{hour: "2026-10-25T03:00:00+01:00"}},
		{"Europe/Berlin", "2026-10-20T12:00:00+02:00", [units]string{
			week: "2026-10-26T00:00:00+01:00", month: "2026-11-01T00:00:00+01:00", year: "2027-01-01T00:00:00+01:00"}},
		// This day began at one: clocks went forward at midnight.
		{"America/Sao_Paulo", "2018-11-03T12:00:00-03:00", [units]string{wholeDay: "2018-11-04T01:00:00-02:00"}},
		{"America/Sao_Paulo", "2018-11-03T23:30:00-03:00", [units]string{hour: "2018-11-04T01:00:00-02:00"}},
		{"America/Sao_Paulo", "2018-11-04T01:00:00-02:00", [units]string{wholeDay: "2018-11-05T00:00:00-02:00"}},
		// A minute after midnight clocks went back to the day before, which had begun to be over.
		{"America/St_Johns", "2010-11-06T12:00:00-02:30", [units]string{wholeDay: "2010-11-07T00:00:00-02:30"}},
		{"America/St_Johns", "2010-11-07T00:00:30-02:30", [units]string{
			minute: "2010-11-06T23:01:00-03:30", hour: "2010-11-06T23:01:00-03:30", wholeDay: "2010-11-08T00:00:00-03:30"}},
		{"America/St_Johns", "2010-11-06T23:30:00-03:30", [units]string{
			hour: "2010-11-07T00:00:00-03:30", wholeDay: "2010-11-08T00:00:00-03:30", week: "2010-11-08T00:00:00-03:30"}},
		// Thirty minutes are half an hour twice: 1:30 to 2:00 is shown again.
		{"Australia/Lord_Howe", "2026-04-05T01:45:00+11:00", [units]string{hour: "2026-04-05T01:30:00+10:30"}},
		{"Australia/Lord_Howe", "2026-04-05T01:30:00+10:30", [units]string{hour: "2026-04-05T02:00:00+10:30"}},
		{"Australia/Lord_Howe", "2026-10-04T01:45:00+10:30", [units]string{hour: "2026-10-04T02:30:00+11:00"}},
		{"Australia/Lord_Howe", "2026-10-04T02:30:00+11:00", [units]string{hour: "2026-10-04T03:00:00+11:00"}},
		// The thirtieth of December never was.
		{"Pacific/Apia", "2011-12-29T12:00:00-10:00", [units]string{
			wholeDay: "2011-12-31T00:00:00+14:00", week: "2012-01-02T00:00:00+14:00", year: "2012-01-01T00:00:00+14:00"}},
		{"Pacific/Apia", "2011-12-29T23:59:59-10:00", [units]string{
			minute: "2011-12-31T00:00:00+14:00", hour: "2011-12-31T00:00:00+14:00"}},
		{"Pacific/Apia", "2011-12-31T00:00:00+14:00", [units]string{wholeDay: "2012-01-01T00:00:00+14:00"}},
	} {
		for unit, want := range test.ends {
			if want == "" {
				continue
			}
			c := &calendar{unit: int64(unit), zone: location(t, test.zone)}
			end := time.Unix(0, unitEnd(t, c, instant(t, test.at).UnixNano()))
			if !end.Equal(instant(t, want)) {
				t.Errorf("%s %q of %s ends %v, want %s", unitNames[unit], test.zone, test.at, end.In(c.zone), want)
			}
		}
	}
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// The last day of a leap year is one where time.Time.ZoneBounds returns an end that has passed. Which years show it
// depends on the zone data: with the data that Go embeds all of them do, with many systems' own only those after 2037.
func TestLastDayOfLeapYears(t *testing.T) {
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "UTC"} {
		zone := location(t, name)
		for _, y := range []int{2024, 2025, 2027, 2028, 2040, 2041, 2096, 2160} {
			midnight := time.Date(y+1, time.January, 1, 0, 0, 0, 0, zone)
			for _, minutes := range []time.Duration{47 * 60, 36 * 60, 24 * 60, 12 * 60, 30} {
				ahead := minutes * time.Minute
				at := midnight.Add(-ahead)
				wants := [units]time.Time{
					minute: at.Add(time.Minute), // all of these moments are whole half hours
					hour:   at.Add(time.Hour - time.Duration(at.Minute())*time.Minute),
					month:  midnight, year: midnight,
				}
				wants[wholeDay] = time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, zone)
				wants[week] = time.Date(at.Year(), at.Month(), at.Day()+7-(int(at.Weekday())+6)%7, 0, 0, 0, 0, zone)
				for unit, want := range wants {
					c := &calendar{unit: int64(unit), zone: zone}
					if got := unitEnd(t, c, at.UnixNano()); got != want.UnixNano() {
						t.Errorf("the %s of %v ends %v, want %v", unitNames[unit], at, time.Unix(0, got).In(zone), want)
					}
				}
			}
		}
	}
}

// dateUnit numbers the units of whole days, in their order.
func dateUnit(unit int64, t time.Time) int64 {
	y, m, d := t.Date()
	days := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400
	switch unit {
	case wholeDay:
		return days
	case week:
		return (days + 3) / 7 // 1970 began on a Thursday
	case month:
		return int64(y)*12 + int64(m)
	default:
		return int64(y)
	}
}

// beginnings returns the seconds at which units begin, found by looking at the clock in every second, and in the words
// of the contract: a date begins at the first instant that shows it or a later one, whatever clocks show afterwards,
// while minutes and hours are what clocks show, each pass of its own.
func beginnings(zone *time.Location, from, to int64) (at [units][]int64) {
	const settle = 26 * 3600 // clocks were never set back by more
	latest := [units]int64{math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64, math.MinInt64}
	_, before := time.Unix(from-settle-1, 0).In(zone).Zone()
	for s := from - settle; s < to; s++ {
		now := time.Unix(s, 0).In(zone)
		_, offset := now.Zone()
		for unit := range latest {
			var begins bool
			if size := [units]int64{60, 3600}[unit]; size > 0 {
				// Clocks that are set when they were to show the next one show another all the same, be it of the same name.
				shown := (s + int64(offset)) / size
				begins = shown != latest[unit] || offset != before && (s+int64(before))%size == 0
				latest[unit] = shown
			} else if shown := dateUnit(int64(unit), now); shown > latest[unit] {
				begins = true
				latest[unit] = shown
			}
			if begins && s >= from {
				at[unit] = append(at[unit], s)
			}
		}
		before = offset
	}
	return at
}

// TestCalendarEverySecond compares the calendar with what clocks show in the days around those when they were set.
func TestCalendarEverySecond(t *testing.T) {
	for _, test := range []struct{ zone, day string }{
		{"Europe/Berlin", "2026-03-29"},
		{"Europe/Berlin", "2026-10-25"},
		{"America/Sao_Paulo", "2018-11-04"},
		{"America/St_Johns", "2010-11-07"},
		{"America/St_Johns", "2009-11-01"}, // the same at the end of a month
		{"America/Goose_Bay", "2010-03-14"},
		{"Pacific/Apia", "2011-12-30"},
		{"Pacific/Kwajalein", "1993-08-21"}, // another day that never was
		{"Australia/Lord_Howe", "2026-04-05"},
		{"Australia/Lord_Howe", "2026-10-04"},
		{"Asia/Pyongyang", "2015-08-15"}, // half an hour back at midnight
		{"Asia/Pyongyang", "2018-05-05"}, // and forward again at half past eleven
		{"Asia/Kathmandu", "1986-01-01"}, // a quarter of an hour forward at midnight
		{"America/Caracas", "2007-12-09"},
		{"Asia/Colombo", "2006-04-15"}, // from half past midnight to midnight: the hour goes on
		{"Asia/Gaza", "2011-08-01"},
		{"America/Havana", "2026-11-01"}, // from one back to midnight
		{"Antarctica/Troll", "2026-03-29"},
	} {
		t.Run(test.zone+" "+test.day, func(t *testing.T) {
			t.Parallel()
			zone := location(t, test.zone)
			day, err := time.ParseInLocation(time.DateOnly, test.day, time.UTC)
			if err != nil {
				t.Fatal(err)
			}
			for unit, at := range beginnings(zone, day.Unix()-30*3600, day.Unix()+54*3600) {
				for i := 1; i < len(at); i++ {
					begin, end := at[i-1]*second, at[i]*second
					size := end - begin
					for _, now := range []int64{begin, begin + 1, begin + size/50, begin + size/3, end - second, end - 1} {
						c := &calendar{unit: int64(unit), zone: zone} // a new one each time, since they remember
						if got := unitEnd(t, c, now); got != end {
							t.Fatalf("the %s of %v ends %v, want %v", unitNames[unit], time.Unix(0, now).In(zone),
								time.Unix(0, got).In(zone), time.Unix(0, end).In(zone))
						}
					}
				}
			}
		})
	}
}

// manyZones are the zones of the tests that draw one.
func manyZones() []string {
	return []string{
		"UTC", "Europe/Berlin", "Europe/London", "Europe/Dublin", "Europe/Lisbon", "Europe/Moscow", "Africa/Casablanca",
		"Africa/Cairo", "Africa/Monrovia", "America/New_York", "America/St_Johns", "America/Goose_Bay", "America/Sao_Paulo",
		"America/Santiago", "America/Asuncion", "America/Caracas", "America/Havana", "America/Anchorage", "America/Nuuk",
		"America/Scoresbysund", "Asia/Kolkata", "Asia/Kathmandu", "Asia/Tehran", "Asia/Gaza", "Asia/Amman", "Asia/Dhaka",
		"Asia/Colombo",
		"Asia/Pyongyang", "Asia/Singapore", "Australia/Lord_Howe", "Australia/Adelaide", "Antarctica/Troll",
		"Antarctica/Casey", "Atlantic/Azores", "Pacific/Apia", "Pacific/Kwajalein", "Pacific/Kiritimati", "Pacific/Chatham",
		"Pacific/Norfolk", "Pacific/Easter", "Etc/GMT+12", "Etc/GMT-14",
	}
}

// checkUnit checks what is true of the end of every unit everywhere.
func checkUnit(t testing.TB, c *calendar, now int64) {
	t.Helper()
	end := unitEnd(t, c, now)
	fresh := &calendar{unit: c.unit, zone: c.zone}
	longest := [units]int64{60, 3600, 86400, 7 * 86400, 31 * 86400, 366 * 86400}[c.unit] + 26*3600
	switch {
	case end <= now:
		t.Errorf("the %s of %d in %v ends at %d, which is not ahead", unitNames[c.unit], now, c.zone, end)
	case end > now+longest*second:
		t.Errorf("the %s of %d in %v ends at %d, which is too far ahead", unitNames[c.unit], now, c.zone, end)
	case fresh.end(now) != end:
		t.Errorf("the %s of %d in %v ends at %d for a calendar that was asked before, for a new one at %d",
			unitNames[c.unit], now, c.zone, end, fresh.end(now))
	case fresh.end(end-1) != end:
		t.Errorf("the %s of %d in %v ends at %d, but by the moment before at %d",
			unitNames[c.unit], now, c.zone, end, fresh.end(end-1))
	case c.unit >= wholeDay:
		before, after := time.Unix(0, end-1).In(c.zone), time.Unix(0, end).In(c.zone)
		if dateUnit(c.unit, before) >= dateUnit(c.unit, after) {
			t.Errorf("the %s of %d in %v ends at %v, right after %v", unitNames[c.unit], now, c.zone, after, before)
		}
	}
}

// TestCalendarAnywhere asks for moments near those when clocks are set, and for any others.
func TestCalendarAnywhere(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, name := range manyZones() {
		zone := location(t, name)
		var calendars [units]*calendar
		for unit := range calendars {
			calendars[unit] = &calendar{unit: int64(unit), zone: zone}
		}
		for range 500 {
			now := random.Int64N(5_000_000_000)
			if _, until := time.Unix(now, 0).In(zone).ZoneBounds(); !until.IsZero() {
				now = until.Unix() + random.Int64N(7200) - 3600
			}
			for _, c := range calendars {
				checkUnit(t, c, max(0, now)*second+random.Int64N(second))
			}
		}
	}
}

// Ends are in the order of the moments that they are asked for, and none lies between a moment and its end.
func TestCalendarIsMonotone(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, name := range []string{"America/St_Johns", "Pacific/Apia", "Europe/Berlin", "Africa/Casablanca"} {
		for unit := range units {
			c := &calendar{unit: int64(unit), zone: location(t, name)}
			now, last := int64(1_280_000_000)*second, int64(0)
			for range 3000 {
				end := unitEnd(t, c, now)
				if end < last || last > now && end != last {
					t.Fatalf("in %s the %s of %d ends at %d, the one of a moment before at %d", name, unitNames[unit], now, end, last)
				}
				last = end
				if now += random.Int64N(2 * (end - now)); now > 250*366*86400*second {
					break
				}
			}
		}
	}
}

// A calendar remembers the newest unit. Callers that ask for others meanwhile get theirs all the same.
func TestCalendarIsSharedSafely(t *testing.T) {
	zone := location(t, "Europe/Berlin")
	for unit := range units {
		c := &calendar{unit: int64(unit), zone: zone}
		var wg sync.WaitGroup
		for worker := range uint64(4) {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(worker, 7))
				for range 500 {
					checkUnit(t, c, 1_774_700_000*second+random.Int64N(4*86400*second))
				}
			})
		}
		wg.Wait()
	}
}

func FuzzCalendar(f *testing.F) {
	var zones []*time.Location
	for i, name := range manyZones() {
		zones = append(zones, location(f, name))
		f.Add(int64(1_289_097_060)*second+int64(i), uint8(i%units), uint8(i))
	}
	f.Add(int64(1_861_876_800)*second, uint8(wholeDay), uint8(1)) // the last day of a leap year
	f.Fuzz(func(t *testing.T, now int64, unit, zone uint8) {
		const last = math.MaxInt64 - 400*86400*second
		c := &calendar{unit: int64(unit) % units, zone: zones[int(zone)%len(zones)]}
		now &= math.MaxInt64
		for _, at := range []int64{now, now / 2, now - 1, now + 1, now + 3600*second} { // in no order, for what it remembers
			checkUnit(t, c, min(max(0, at), last))
		}
	})
}

func TestZones(t *testing.T) {
	z := NewZones()
	for _, name := range []string{"", "UTC", "Europe/Berlin", "Asia/Kathmandu", "Etc/GMT+5", "EST5EDT"} {
		if found, ok := z.find(name); !ok || found == nil {
			t.Errorf("%q is unknown", name)
		}
	}
	berlin, _ := z.find("Europe/Berlin")
	if again, _ := z.find("Europe/Berlin"); again != berlin {
		t.Error("a zone is not remembered, nor is what its calendars have found out")
	}

	message := []byte("Asia/Tokyo") // the name may be a part of it
	z.find(unsafe.String(&message[0], len(message)))
	copy(message, "overwrites")
	if !slices.Contains(z.found.Keys(), "Asia/Tokyo") {
		t.Errorf("a name is remembered in the caller's memory: %q", z.found.Keys())
	}

	unknown := []string{
		"Local", "localtime", "posixrules", // whatever the machine is set to
		"local", "europe/berlin", "Europe", "Europe/", "Berlin", "+01:00", "UTC+1", " UTC", "UTC ", "\x00", "UTC\x00", "\xff",
		"..",
		"../UTC", "/etc/localtime", "Europe/../UTC", `..\UTC`, "zone.tab", "tzdata.zi",
		fmt.Sprintf("Europe/%0100d", 0), fmt.Sprintf("%01000000d", 0),
	}
	for _, name := range unknown {
		if _, ok := z.find(name); ok {
			t.Errorf("%.40q is known", name)
		}
	}
}

// Which names mean a zone must not depend on whether the machine has zone files: then one node would count what another
// calls an error. Only the names themselves are the same everywhere; other paths to the files are not.
func TestZonesAreTheSameEverywhere(t *testing.T) {
	z := NewZones()
	for _, name := range []string{"./UTC", "Europe//Berlin", "Europe/./Berlin", "posix/UTC", "right/UTC"} {
		if _, ok := z.find(name); ok {
			t.Errorf("%q is known", name)
		}
	}
}

func TestZonesAreBounded(t *testing.T) {
	const bound = 1024
	z := NewZones()
	for i := range bound + 100 {
		if _, ok := z.find(fmt.Sprint("Junk/", i)); ok {
			t.Fatalf("Junk/%d is known", i)
		}
	}
	if n := z.found.Len(); n > bound {
		t.Errorf("%d names are remembered, want at most %d", n, bound)
	}
	if _, ok := z.find("Europe/Berlin"); !ok {
		t.Error("junk has made a zone unknown")
	}
	z.find(fmt.Sprintf("%01000000d", 0))
	for _, name := range z.found.Keys() {
		if len(name) > maxZoneBytes {
			t.Errorf("a name of %d bytes is remembered", len(name))
		}
	}
}
