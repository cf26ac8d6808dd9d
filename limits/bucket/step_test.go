package bucket

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// tableStart is when the tables begin: Thursday, 2026-01-01 12:00 UTC.
const tableStart = int64(1_767_268_800_000_000_000)

// A row is one request of a table and the answer to it.
type row struct {
	at      time.Duration // since the start of the table
	request Request
	want    string // see answer
}

// answer writes a result in the short form of the tables: status, remaining of limit, reset_time in milliseconds since
// the start of the table; then what only refusals have, the wait in milliseconds or the reason why there is none.
func answer(r Result) string {
	s := fmt.Sprintf("%v %d of %d @%d", r.Status, r.Remaining, r.Limit, r.ResetTime-tableStart/nsPerMs)
	if r.RetryAfter != 0 {
		s += fmt.Sprintf(" wait %d", r.RetryAfter)
	}
	if r.Metadata.Reason != "" {
		s += " " + r.Metadata.Reason
	}
	return s
}

// A table is the life of one limit.
type table struct {
	name string
	rows []row
}

func walk(t *testing.T, tables []table) {
	t.Helper()
	zones := NewZones()
	for _, table := range tables {
		t.Run(table.name, func(t *testing.T) {
			var s State
			for i, row := range table.rows {
				var q Query
				row.request.Name, row.request.UniqueKey = "name", "key"
				if err := q.Prepare(&row.request, zones); err != nil {
					t.Fatalf("row %d: %v", i, err)
				}
				next, result := stepped(s, &q, tableStart+int64(row.at))
				if got := answer(result); got != row.want {
					t.Fatalf("row %d, at %v: %+v\n got %s\nwant %s", i, row.at, row.request, got, row.want)
				}
				if q.Hits == 0 && q.Behavior&ResetRemaining == 0 && next != s {
					t.Fatalf("row %d: a look made %+v of %+v", i, next, s)
				}
				s = next
			}
		})
	}
}

// token, leaky and sliding make requests; with adds flags to one.
func token(hits, limit, duration int64) Request {
	return Request{Hits: hits, Limit: limit, Duration: duration, Algorithm: TokenBucket}
}

func leaky(hits, limit, duration int64) Request {
	return Request{Hits: hits, Limit: limit, Duration: duration, Algorithm: LeakyBucket}
}

func sliding(hits, limit, duration int64) Request {
	return Request{Hits: hits, Limit: limit, Duration: duration, Algorithm: SlidingWindow}
}

func with(b Behavior, r Request) Request {
	r.Behavior |= b
	return r
}

func deep(burst int64, r Request) Request {
	r.Burst = burst
	return r
}

const (
	msec = time.Millisecond
	sec  = time.Second
)

func TestTokenBucket(t *testing.T) {
	walk(t, []table{
		{"whole again one duration after the first hit, at once", []row{
			{0, token(0, 3, 1000), "OK 3 of 3 @1000"},
			{100 * msec, token(1, 3, 1000), "OK 2 of 3 @1100"},
			{200 * msec, token(1, 3, 1000), "OK 1 of 3 @1100"},
			{300 * msec, token(1, 3, 1000), "OK 0 of 3 @1100"},
			{400 * msec, token(1, 3, 1000), "OVER_LIMIT 0 of 3 @1100 wait 700"},
			{1100*msec - 1, token(1, 3, 1000), "OVER_LIMIT 0 of 3 @1100 wait 1"},
			{1100 * msec, token(1, 3, 1000), "OK 2 of 3 @2100"},
		}},
		{"steady traffic gets its share of every window", []row{
			{0, token(1, 1, 1000), "OK 0 of 1 @1000"},
			{500 * msec, token(1, 1, 1000), "OVER_LIMIT 0 of 1 @1000 wait 500"},
			{1000 * msec, token(1, 1, 1000), "OK 0 of 1 @2000"},
			{1500 * msec, token(1, 1, 1000), "OVER_LIMIT 0 of 1 @2000 wait 500"},
			{2000 * msec, token(1, 1, 1000), "OK 0 of 1 @3000"},
		}},
		{"two windows may meet", []row{
			{0, token(1, 10, 1000), "OK 9 of 10 @1000"},
			{950 * msec, token(9, 10, 1000), "OK 0 of 10 @1000"},
			{1010 * msec, token(10, 10, 1000), "OK 0 of 10 @2010"},
		}},
		{"a clock between milliseconds rounds up", []row{
			{1, token(1, 1, 1000), "OK 0 of 1 @1001"},
			{2, token(1, 1, 1000), "OVER_LIMIT 0 of 1 @1001 wait 1000"},
			{msec + 1, token(1, 1, 1000), "OVER_LIMIT 0 of 1 @1001 wait 999"},
			{1000 * msec, token(1, 1, 1000), "OVER_LIMIT 0 of 1 @1001 wait 1"},
			{1000*msec + 1, token(1, 1, 1000), "OK 0 of 1 @2001"},
		}},
		{"all or nothing", []row{
			{0, token(10, 10, 1000), "OK 0 of 10 @1000"},
			{2 * sec, token(11, 10, 1000), "OVER_LIMIT 10 of 10 @3000 hits_exceed_capacity"},
			{2 * sec, token(4, 10, 1000), "OK 6 of 10 @3000"},
			{2 * sec, token(7, 10, 1000), "OVER_LIMIT 6 of 10 @3000 wait 1000"},
			{2 * sec, token(6, 10, 1000), "OK 0 of 10 @3000"},
		}},
		{"looks are free, also at nothing left", []row{
			{0, token(2, 2, 1000), "OK 0 of 2 @1000"},
			{100 * msec, token(0, 2, 1000), "OK 0 of 2 @1000"},
			{1000 * msec, token(0, 2, 1000), "OK 2 of 2 @2000"},
			{1500 * msec, token(1, 2, 1000), "OK 1 of 2 @2500"},
		}},
		{"giving back", []row{
			{0, token(5, 5, 60_000), "OK 0 of 5 @60000"},
			{1 * sec, token(1, 5, 60_000), "OVER_LIMIT 0 of 5 @60000 wait 59000"},
			{2 * sec, token(-2, 5, 60_000), "OK 2 of 5 @60000"},
			{3 * sec, token(1, 5, 60_000), "OK 1 of 5 @60000"},
			{4 * sec, token(-100, 5, 60_000), "OK 5 of 5 @64000"},
			{5 * sec, token(-1, 5, 60_000), "OK 5 of 5 @65000"},
			{6 * sec, token(1, 5, 60_000), "OK 4 of 5 @66000"},
			{7 * sec, token(math.MinInt64, 5, 60_000), "OK 5 of 5 @67000"},
		}},
		{"what was given back beyond full is not kept for a higher limit", []row{
			{0, token(3, 10, 60_000), "OK 7 of 10 @60000"},
			{0, token(-10, 10, 60_000), "OK 10 of 10 @60000"},
			{0, token(1, 20, 60_000), "OK 19 of 20 @60000"},
		}},
		{"a new limit keeps what is used", []row{
			{0, token(50, 100, 60_000), "OK 50 of 100 @60000"},
			{1 * sec, token(1, 10, 60_000), "OVER_LIMIT 0 of 10 @60000 wait 59000"},
			{2 * sec, token(0, 10, 60_000), "OK 0 of 10 @60000"},
			{3 * sec, token(0, 100, 60_000), "OK 50 of 100 @60000"},
			{4 * sec, token(1, 60, 60_000), "OK 9 of 60 @60000"},
		}},
		{"a limit of 0 refuses everything and forgets nothing", []row{
			{0, token(1, 0, 1000), "OVER_LIMIT 0 of 0 @1000 limit_is_zero"},
			{0, token(0, 0, 1000), "OK 0 of 0 @1000"},
			{0, token(-1, 0, 1000), "OK 0 of 0 @1000"},
			{0, token(2, 5, 1000), "OK 3 of 5 @1000"},
			{100 * msec, token(1, 0, 1000), "OVER_LIMIT 0 of 0 @1100 limit_is_zero"},
			{200 * msec, token(0, 5, 1000), "OK 3 of 5 @1000"},
		}},
		{"a shorter duration ends the window earlier", []row{
			{0, token(1, 1, 60_000), "OK 0 of 1 @60000"},
			{200 * msec, token(1, 1, 1000), "OVER_LIMIT 0 of 1 @1000 wait 800"},
			{1000 * msec, token(1, 1, 1000), "OK 0 of 1 @2000"},
		}},
		{"a duration so short that the window is over begins a new one", []row{
			{0, token(1, 1, 60_000), "OK 0 of 1 @60000"},
			{1000 * msec, token(1, 1, 1000), "OK 0 of 1 @2000"},
		}},
		{"a longer duration ends it later and does not refill", []row{
			{0, token(1, 1, 1000), "OK 0 of 1 @1000"},
			{900 * msec, token(1, 1, 60_000), "OVER_LIMIT 0 of 1 @60000 wait 59100"},
			{59 * sec, token(1, 1, 60_000), "OVER_LIMIT 0 of 1 @60000 wait 1000"},
			{60 * sec, token(1, 1, 60_000), "OK 0 of 1 @120000"},
		}},
		{"a longer duration cannot bring back a window that is over", []row{
			{0, token(1, 1, 1000), "OK 0 of 1 @1000"},
			{1000 * msec, token(1, 1, 60_000), "OK 0 of 1 @61000"},
		}},
		{"a look under other terms leaves those in force", []row{
			{0, token(3, 10, 1000), "OK 7 of 10 @1000"},
			{100 * msec, token(0, 5, 60_000), "OK 2 of 5 @60000"},
			{1000 * msec, token(1, 10, 60_000), "OK 9 of 10 @61000"},
		}},
		{"RESET_REMAINING makes whole and takes nothing", []row{
			{0, with(ResetRemaining, token(3, 10, 1000)), "OK 10 of 10 @1000"},
			{0, token(10, 10, 1000), "OK 0 of 10 @1000"},
			{200 * msec, with(ResetRemaining, token(3, 10, 1000)), "OK 10 of 10 @1200"},
			{300 * msec, token(1, 10, 1000), "OK 9 of 10 @1300"},
			{400 * msec, with(ResetRemaining, token(99, 0, 1000)), "OK 0 of 0 @1400"},
			{500 * msec, token(0, 10, 1000), "OK 10 of 10 @1500"},
		}},
		{"DRAIN_OVER_LIMIT takes what is left, and refuses", []row{
			{0, token(7, 10, 1000), "OK 3 of 10 @1000"},
			{100 * msec, with(DrainOverLimit, token(2, 10, 1000)), "OK 1 of 10 @1000"},
			{200 * msec, with(DrainOverLimit, token(2, 10, 1000)), "OVER_LIMIT 0 of 10 @1000 wait 800"},
			{300 * msec, token(1, 10, 1000), "OVER_LIMIT 0 of 10 @1000 wait 700"},
			{400 * msec, with(DrainOverLimit, token(11, 10, 1000)), "OVER_LIMIT 0 of 10 @1400 hits_exceed_capacity"},
			{1000 * msec, token(1, 10, 1000), "OK 9 of 10 @2000"},
		}},
		{"DRAIN_OVER_LIMIT begins a window where there was none", []row{
			{0, with(DrainOverLimit, token(11, 10, 1000)), "OVER_LIMIT 0 of 10 @1000 hits_exceed_capacity"},
			{500 * msec, token(1, 10, 1000), "OVER_LIMIT 0 of 10 @1000 wait 500"},
			{1000 * msec, token(1, 10, 1000), "OK 9 of 10 @2000"},
		}},
		{"DRAIN_OVER_LIMIT with nothing to drain begins none", []row{
			{0, with(DrainOverLimit, token(1, 0, 1000)), "OVER_LIMIT 0 of 0 @1000 limit_is_zero"},
			{500 * msec, token(1, 10, 1000), "OK 9 of 10 @1500"},
		}},
		{"burst is for leaky buckets", []row{
			{0, deep(20, token(11, 10, 1000)), "OVER_LIMIT 10 of 10 @1000 hits_exceed_capacity"},
			{0, deep(5, token(10, 10, 1000)), "OK 0 of 10 @1000"},
		}},
		{"the largest limit", []row{
			{0, token(math.MaxInt64-1, math.MaxInt64, MaxDurationMs), "OK 1 of 9223372036854775807 @316224000000"},
			{1, token(2, math.MaxInt64, MaxDurationMs), "OVER_LIMIT 1 of 9223372036854775807 @316224000000 wait 316224000000"},
			{2, token(1, math.MaxInt64, MaxDurationMs), "OK 0 of 9223372036854775807 @316224000000"},
			{3, token(math.MinInt64, math.MaxInt64, MaxDurationMs),
				"OK 9223372036854775807 of 9223372036854775807 @316224000001"},
		}},
	})
}

func TestLeakyBucket(t *testing.T) {
	walk(t, []table{
		{"leaks one hit at a time", []row{
			{0, leaky(0, 10, 10_000), "OK 10 of 10 @0"},
			{0, leaky(6, 10, 10_000), "OK 4 of 10 @6000"},
			{0, leaky(4, 10, 10_000), "OK 0 of 10 @10000"},
			{0, leaky(1, 10, 10_000), "OVER_LIMIT 0 of 10 @1000 wait 1000"},
			{500 * msec, leaky(1, 10, 10_000), "OVER_LIMIT 0 of 10 @1000 wait 500"},
			{1000*msec - 1, leaky(1, 10, 10_000), "OVER_LIMIT 0 of 10 @1000 wait 1"},
			{1000 * msec, leaky(1, 10, 10_000), "OK 0 of 10 @11000"},
			{2500 * msec, leaky(0, 10, 10_000), "OK 1 of 10 @11000"},
			{2500 * msec, leaky(3, 10, 10_000), "OVER_LIMIT 1 of 10 @4000 wait 1500"},
			{11 * sec, leaky(0, 10, 10_000), "OK 10 of 10 @11000"},
			{12 * sec, leaky(10, 10, 10_000), "OK 0 of 10 @22000"},
		}},
		{"leaks while hits keep coming", []row{
			{0, leaky(1, 10, 30_000), "OK 9 of 10 @3000"},
			{1 * sec, leaky(1, 10, 30_000), "OK 8 of 10 @6000"},
			{2 * sec, leaky(1, 10, 30_000), "OK 7 of 10 @9000"},
			{3 * sec, leaky(1, 10, 30_000), "OK 7 of 10 @12000"},
			{4 * sec, leaky(1, 10, 30_000), "OK 6 of 10 @15000"},
		}},
		{"refusals cost nothing", []row{
			{0, leaky(10, 10, 1000), "OK 0 of 10 @1000"},
			{300 * msec, leaky(11, 10, 1000), "OVER_LIMIT 3 of 10 @1300 hits_exceed_capacity"},
			{650 * msec, leaky(11, 10, 1000), "OVER_LIMIT 6 of 10 @1650 hits_exceed_capacity"},
			{899 * msec, leaky(9, 10, 1000), "OVER_LIMIT 8 of 10 @900 wait 1"},
			{900 * msec, leaky(9, 10, 1000), "OK 0 of 10 @1900"},
		}},
		{"many hits per millisecond", []row{
			{0, leaky(2000, 2000, 1000), "OK 0 of 2000 @1000"},
			{0, leaky(1, 2000, 1000), "OVER_LIMIT 0 of 2000 @1 wait 1"},
			{500_000 - 1, leaky(1, 2000, 1000), "OVER_LIMIT 0 of 2000 @1 wait 1"},
			{500_000, leaky(1, 2000, 1000), "OK 0 of 2000 @1001"},
			{500 * msec, leaky(999, 2000, 1000), "OK 0 of 2000 @1500"},
			{500 * msec, leaky(500, 2000, 1000), "OVER_LIMIT 0 of 2000 @750 wait 250"},
		}},
		{"more hits than nanoseconds", []row{
			{0, leaky(2_000_000_000, 2_000_000_000, 1000), "OK 0 of 2000000000 @1000"},
			{1, leaky(3, 2_000_000_000, 1000), "OVER_LIMIT 2 of 2000000000 @1 wait 1"},
			{1, leaky(2, 2_000_000_000, 1000), "OK 0 of 2000000000 @1001"},
		}},
		{"three a month", []row{
			{0, leaky(3, 3, 30*day), "OK 0 of 3 @2592000000"},
			{10*24*time.Hour - 1, leaky(1, 3, 30*day), "OVER_LIMIT 0 of 3 @864000000 wait 1"},
			{10 * 24 * time.Hour, leaky(1, 3, 30*day), "OK 0 of 3 @3456000000"},
		}},
		{"thirds are exact", []row{
			{0, leaky(1, 3, 1000), "OK 2 of 3 @334"},
			{0, leaky(2, 3, 1000), "OK 0 of 3 @1000"},
			{333_333_333, leaky(1, 3, 1000), "OVER_LIMIT 0 of 3 @334 wait 1"},
			{333_333_334, leaky(1, 3, 1000), "OK 0 of 3 @1334"},
			{1_333_333_333, leaky(0, 3, 1000), "OK 2 of 3 @1334"},
			{1_333_333_334, leaky(3, 3, 1000), "OK 0 of 3 @2334"},
		}},
		{"burst is the capacity", []row{
			{0, deep(20, leaky(20, 10, 1000)), "OK 0 of 10 @2000"},
			{100 * msec, deep(20, leaky(1, 10, 1000)), "OK 0 of 10 @2100"},
			{100 * msec, deep(20, leaky(20, 10, 1000)), "OVER_LIMIT 0 of 10 @2100 wait 2000"},
			{100 * msec, deep(20, leaky(21, 10, 1000)), "OVER_LIMIT 0 of 10 @1100 hits_exceed_capacity"},
			{200 * msec, deep(3, leaky(1, 10, 1000)), "OVER_LIMIT 0 of 10 @1900 wait 1700"},
			{300 * msec, deep(30, leaky(0, 10, 1000)), "OK 12 of 10 @2100"},
			{3 * sec, deep(1, leaky(2, 10, 1000)), "OVER_LIMIT 1 of 10 @4000 hits_exceed_capacity"},
			{3 * sec, deep(1, leaky(1, 10, 1000)), "OK 0 of 10 @3100"},
		}},
		{"a limit of 0 has no capacity, and leaks nothing", []row{
			{0, deep(5, leaky(1, 0, 1000)), "OVER_LIMIT 0 of 0 @1000 limit_is_zero"},
			{0, deep(5, leaky(0, 0, 1000)), "OK 0 of 0 @1000"},
			{0, leaky(10, 10, 1000), "OK 0 of 10 @1000"},
			{200 * msec, deep(5, leaky(1, 0, 1000)), "OVER_LIMIT 0 of 0 @1200 limit_is_zero"},
			{900 * msec, leaky(0, 10, 1000), "OK 2 of 10 @1700"},
		}},
		{"giving back", []row{
			{0, leaky(8, 10, 1000), "OK 2 of 10 @800"},
			{50 * msec, leaky(-3, 10, 1000), "OK 5 of 10 @500"},
			{50 * msec, leaky(-100, 10, 1000), "OK 10 of 10 @50"},
			{50 * msec, leaky(1, 10, 1000), "OK 9 of 10 @150"},
		}},
		{"a new rate keeps the hits, not the time that they stand for", []row{
			{0, leaky(3, 16, 20_000), "OK 13 of 16 @3750"},
			{0, leaky(1, 1000, 20_000), "OK 996 of 1000 @80"},
		}},
		{"a new limit is the new capacity", []row{
			{0, leaky(1, 100, 60_000), "OK 99 of 100 @600"},
			{0, leaky(6, 5, 60_000), "OVER_LIMIT 4 of 5 @60000 hits_exceed_capacity"},
			{0, leaky(1, 5, 60_000), "OK 3 of 5 @24000"},
		}},
		{"50 of 100 used are 50 used", []row{
			{0, leaky(50, 100, 86_400_000), "OK 50 of 100 @43200000"},
			{0, leaky(1, 10, 86_400_000), "OVER_LIMIT 0 of 10 @354240000 wait 354240000"},
			{0, leaky(0, 100, 86_400_000), "OK 50 of 100 @43200000"},
		}},
		{"the old rate leaks up to the change", []row{
			{0, leaky(10, 10, 1000), "OK 0 of 10 @1000"},
			{500 * msec, leaky(1, 10, 100_000), "OK 4 of 10 @60500"},
			{5500 * msec, leaky(0, 10, 100_000), "OK 4 of 10 @60500"},
			{10500 * msec, leaky(0, 10, 100_000), "OK 5 of 10 @60500"},
		}},
		{"converting rounds against the caller, by less than a nanosecond's leak", []row{
			{0, leaky(1, 1, 3), "OK 0 of 1 @3"},
			{1_000_000, leaky(0, 1, 10), "OK 0 of 1 @8"},
			{1_000_000, leaky(1, 1, 10), "OVER_LIMIT 0 of 1 @8 wait 7"},
			{7_666_666, leaky(1, 1, 10), "OVER_LIMIT 0 of 1 @8 wait 1"},
			{7_666_667, leaky(1, 1, 10), "OK 0 of 1 @18"},
		}},
		{"a look under another rate converts nothing", []row{
			{0, leaky(1, 1, 3), "OK 0 of 1 @3"},
			{1_000_000, leaky(0, 1, 10), "OK 0 of 1 @8"},
			{3_000_000, leaky(1, 1, 3), "OK 0 of 1 @6"},
		}},
		{"RESET_REMAINING makes whole", []row{
			{0, leaky(10, 10, 1000), "OK 0 of 10 @1000"},
			{0, with(ResetRemaining, leaky(1, 10, 1000)), "OK 10 of 10 @0"},
			{0, leaky(1, 10, 1000), "OK 9 of 10 @100"},
		}},
		{"DRAIN_OVER_LIMIT takes whole hits, never a fraction", []row{
			{0, leaky(8, 10, 1000), "OK 2 of 10 @800"},
			{50 * msec, with(DrainOverLimit, leaky(5, 10, 1000)), "OVER_LIMIT 0 of 10 @500 wait 450"},
			{100 * msec, leaky(1, 10, 1000), "OK 0 of 10 @1100"},
		}},
		{"DRAIN_OVER_LIMIT fills a bucket that was whole", []row{
			{0, with(DrainOverLimit, leaky(11, 10, 1000)), "OVER_LIMIT 0 of 10 @1000 hits_exceed_capacity"},
			{100 * msec, leaky(1, 10, 1000), "OK 0 of 10 @1100"},
		}},
		{"the slowest and deepest bucket saturates", []row{
			{0, deep(math.MaxInt64, leaky(math.MaxInt64-1, 1, MaxDurationMs)), "OK 1 of 1 @9223370269585975807"},
			{0, deep(math.MaxInt64, leaky(2, 1, MaxDurationMs)), "OVER_LIMIT 1 of 1 @316224000000 wait 316224000000"},
			{0, deep(math.MaxInt64, leaky(math.MaxInt64, 1, MaxDurationMs)),
				"OVER_LIMIT 1 of 1 @9223370269585975807 wait 9223372036854775807"},
		}},
	})
}

func TestSlidingWindow(t *testing.T) {
	walk(t, []table{
		{"the previous window counts as far as it is overlapped", []row{
			{0, sliding(0, 10, 1000), "OK 10 of 10 @0"},
			{0, sliding(10, 10, 1000), "OK 0 of 10 @2000"},
			{999 * msec, sliding(1, 10, 1000), "OVER_LIMIT 0 of 10 @1100 wait 101"},
			{1000 * msec, sliding(1, 10, 1000), "OVER_LIMIT 0 of 10 @1100 wait 100"},
			{1100*msec - 1, sliding(1, 10, 1000), "OVER_LIMIT 0 of 10 @1100 wait 1"},
			{1100 * msec, sliding(1, 10, 1000), "OK 0 of 10 @3000"},
			{1500 * msec, sliding(0, 10, 1000), "OK 4 of 10 @3000"},
			{1500 * msec, sliding(5, 10, 1000), "OVER_LIMIT 4 of 10 @1600 wait 100"},
			{1500 * msec, sliding(4, 10, 1000), "OK 0 of 10 @3000"},
			{1999 * msec, sliding(0, 10, 1000), "OK 4 of 10 @3000"},
			{2000 * msec, sliding(0, 10, 1000), "OK 5 of 10 @3000"},
		}},
		{"aligned to the first hit", []row{
			{700 * msec, sliding(4, 4, 1000), "OK 0 of 4 @2700"},
			{1699 * msec, sliding(1, 4, 1000), "OVER_LIMIT 0 of 4 @1950 wait 251"},
			{1950 * msec, sliding(1, 4, 1000), "OK 0 of 4 @3700"},
		}},
		{"waits across two windows", []row{
			{0, sliding(10, 10, 1000), "OK 0 of 10 @2000"},
			{1900 * msec, sliding(9, 10, 1000), "OK 0 of 10 @3000"},
			{1900 * msec, sliding(1, 10, 1000), "OVER_LIMIT 0 of 10 @2000 wait 100"},
			{1900 * msec, sliding(4, 10, 1000), "OVER_LIMIT 0 of 10 @2334 wait 434"},
			{1900 * msec, sliding(10, 10, 1000), "OVER_LIMIT 0 of 10 @3000 wait 1100"},
			{2_333_333_333, sliding(4, 10, 1000), "OVER_LIMIT 3 of 10 @2334 wait 1"},
			{2_333_333_334, sliding(4, 10, 1000), "OK 0 of 10 @4000"},
		}},
		{"whole after two idle windows, and aligned anew", []row{
			{0, sliding(1, 1, 1000), "OK 0 of 1 @2000"},
			{2000*msec - 1, sliding(1, 1, 1000), "OVER_LIMIT 0 of 1 @2000 wait 1"},
			{2300 * msec, sliding(0, 1, 1000), "OK 1 of 1 @2300"},
			{2300 * msec, sliding(1, 1, 1000), "OK 0 of 1 @4300"},
		}},
		{"never twice the limit around an edge", []row{
			{0, sliding(1, 10, 1000), "OK 9 of 10 @2000"},
			{950 * msec, sliding(9, 10, 1000), "OK 0 of 10 @2000"},
			{1010 * msec, sliding(1, 10, 1000), "OVER_LIMIT 0 of 10 @1100 wait 90"},
		}},
		{"giving back takes from this window first, the rest from the one before", []row{
			{0, sliding(10, 10, 1000), "OK 0 of 10 @2000"},
			{1500 * msec, sliding(2, 10, 1000), "OK 3 of 10 @3000"},
			{1500 * msec, sliding(-1, 10, 1000), "OK 4 of 10 @3000"},
			{1500 * msec, sliding(-3, 10, 1000), "OK 6 of 10 @2000"},
			{1500 * msec, sliding(-100, 10, 1000), "OK 10 of 10 @1500"},
			{1600 * msec, sliding(1, 10, 1000), "OK 9 of 10 @3600"},
		}},
		{"a new limit keeps what is used", []row{
			{0, sliding(50, 100, 1000), "OK 50 of 100 @2000"},
			{100 * msec, sliding(1, 10, 1000), "OVER_LIMIT 0 of 10 @1820 wait 1720"},
			{200 * msec, sliding(0, 100, 1000), "OK 50 of 100 @2000"},
			{1500 * msec, sliding(0, 100, 1000), "OK 75 of 100 @2000"},
			{1500 * msec, sliding(26, 30, 1000), "OVER_LIMIT 5 of 30 @1920 wait 420"},
		}},
		{"a limit of 0", []row{
			{0, sliding(1, 0, 1000), "OVER_LIMIT 0 of 0 @1000 limit_is_zero"},
			{0, sliding(0, 0, 1000), "OK 0 of 0 @1000"},
			{0, sliding(3, 5, 1000), "OK 2 of 5 @2000"},
			{0, sliding(1, 0, 1000), "OVER_LIMIT 0 of 0 @1000 limit_is_zero"},
			{0, sliding(0, 5, 1000), "OK 2 of 5 @2000"},
		}},
		{"moved on by the old duration, then re-dated by the new one", []row{
			{0, sliding(10, 10, 1000), "OK 0 of 10 @2000"},
			{1500 * msec, sliding(0, 10, 4000), "OK 1 of 10 @5000"},
			{1500 * msec, sliding(2, 10, 4000), "OVER_LIMIT 1 of 10 @1800 wait 300"},
			{3 * sec, sliding(0, 10, 4000), "OK 5 of 10 @5000"},
			{3 * sec, sliding(2, 10, 4000), "OK 3 of 10 @9000"},
			{3 * sec, sliding(4, 10, 1500), "OK 4 of 10 @5500"},
		}},
		{"a duration that is over twice leaves nothing", []row{
			{0, sliding(10, 10, 10_000), "OK 0 of 10 @20000"},
			{1999 * msec, sliding(0, 10, 1000), "OK 9 of 10 @2000"},
			{2000 * msec, sliding(10, 10, 1000), "OK 0 of 10 @4000"},
		}},
		{"RESET_REMAINING forgets both windows", []row{
			{0, sliding(10, 10, 1000), "OK 0 of 10 @2000"},
			{1500 * msec, sliding(2, 10, 1000), "OK 3 of 10 @3000"},
			{1600 * msec, with(ResetRemaining, sliding(2, 10, 1000)), "OK 10 of 10 @1600"},
			{1700 * msec, sliding(1, 10, 1000), "OK 9 of 10 @3700"},
		}},
		{"DRAIN_OVER_LIMIT", []row{
			{0, sliding(9, 10, 1000), "OK 1 of 10 @2000"},
			{1050 * msec, with(DrainOverLimit, sliding(3, 10, 1000)), "OVER_LIMIT 0 of 10 @1334 wait 284"},
			{1999 * msec, sliding(0, 10, 1000), "OK 8 of 10 @3000"},
			{9 * sec, with(DrainOverLimit, sliding(11, 10, 1000)), "OVER_LIMIT 0 of 10 @10000 hits_exceed_capacity"},
			{9 * sec, sliding(10, 10, 1000), "OVER_LIMIT 0 of 10 @11000 wait 2000"},
		}},
		{"the largest limit and duration", []row{
			{0, sliding(math.MaxInt64, math.MaxInt64, MaxDurationMs), "OK 0 of 9223372036854775807 @632448000000"},
			{1, sliding(1, math.MaxInt64, MaxDurationMs),
				"OVER_LIMIT 0 of 9223372036854775807 @316224000001 wait 316224000000"},
			{1, sliding(math.MaxInt64, math.MaxInt64, MaxDurationMs),
				"OVER_LIMIT 0 of 9223372036854775807 @632448000000 wait 632448000000"},
		}},
	})
}

func TestAlgorithmChanges(t *testing.T) {
	walk(t, []table{
		{"nothing is carried over", []row{
			{0, token(10, 10, 60_000), "OK 0 of 10 @60000"},
			{1 * sec, leaky(1, 10, 10_000), "OK 9 of 10 @2000"},
			{1 * sec, sliding(2, 10, 10_000), "OK 8 of 10 @21000"},
			{1 * sec, token(3, 10, 60_000), "OK 7 of 10 @61000"},
		}},
		{"the old count stays until a hit of the new algorithm counts", []row{
			{0, token(10, 10, 60_000), "OK 0 of 10 @60000"},
			{1 * sec, leaky(0, 10, 10_000), "OK 10 of 10 @1000"},
			{1 * sec, leaky(-5, 10, 10_000), "OK 10 of 10 @1000"},
			{1 * sec, leaky(11, 10, 10_000), "OVER_LIMIT 10 of 10 @11000 hits_exceed_capacity"},
			{1 * sec, with(DrainOverLimit, sliding(1, 0, 10_000)), "OVER_LIMIT 0 of 0 @11000 limit_is_zero"},
			{2 * sec, token(1, 10, 60_000), "OVER_LIMIT 0 of 10 @60000 wait 58000"},
		}},
		{"what DRAIN_OVER_LIMIT takes, counts", []row{
			{0, token(10, 10, 60_000), "OK 0 of 10 @60000"},
			{1 * sec, with(DrainOverLimit, leaky(11, 10, 10_000)), "OVER_LIMIT 0 of 10 @11000 hits_exceed_capacity"},
			{1 * sec, token(1, 10, 60_000), "OK 9 of 10 @61000"},
		}},
		{"RESET_REMAINING drops it", []row{
			{0, token(10, 10, 60_000), "OK 0 of 10 @60000"},
			{1 * sec, with(ResetRemaining, leaky(1, 10, 10_000)), "OK 10 of 10 @1000"},
			{1 * sec, token(1, 10, 60_000), "OK 9 of 10 @61000"},
		}},
	})
}

func TestClockSteps(t *testing.T) {
	walk(t, []table{
		{"a token bucket whose window lies ahead starts now", []row{
			{1000 * sec, token(3, 3, 10_000), "OK 0 of 3 @1010000"},
			{990 * sec, token(0, 3, 10_000), "OK 0 of 3 @1000000"},
			{990 * sec, token(1, 3, 10_000), "OVER_LIMIT 0 of 3 @1000000 wait 10000"},
			{999 * sec, token(1, 3, 10_000), "OVER_LIMIT 0 of 3 @1000000 wait 1000"},
			{1000 * sec, token(1, 3, 10_000), "OK 2 of 3 @1010000"},
		}},
		{"a step back inside the window changes nothing", []row{
			{0, token(1, 3, 10_000), "OK 2 of 3 @10000"},
			{9 * sec, token(1, 3, 10_000), "OK 1 of 3 @10000"},
			{1 * sec, token(1, 3, 10_000), "OK 0 of 3 @10000"},
			{10 * sec, token(1, 3, 10_000), "OK 2 of 3 @20000"},
		}},
		{"looks, however many, don't hold the window where they were made", []row{
			{1000 * sec, token(3, 3, 10_000), "OK 0 of 3 @1010000"},
			{900 * sec, token(0, 3, 10_000), "OK 0 of 3 @910000"},
			{1000 * sec, token(0, 3, 10_000), "OK 0 of 3 @1010000"},
			{1010 * sec, token(0, 3, 10_000), "OK 3 of 3 @1020000"},
		}},
		{"a leaky bucket keeps its level and leaks on", []row{
			{1000 * sec, leaky(10, 10, 10_000), "OK 0 of 10 @1010000"},
			{500 * sec, leaky(1, 10, 10_000), "OVER_LIMIT 0 of 10 @501000 wait 1000"},
			{502 * sec, leaky(2, 10, 10_000), "OK 0 of 10 @512000"},
			{512 * sec, leaky(0, 10, 10_000), "OK 10 of 10 @512000"},
		}},
		{"a sliding window starts now, with both counts", []row{
			{1000 * sec, sliding(8, 10, 10_000), "OK 2 of 10 @1020000"},
			{1015 * sec, sliding(6, 10, 10_000), "OK 0 of 10 @1030000"},
			{100 * sec, sliding(0, 10, 10_000), "OK 0 of 10 @120000"},
			{100 * sec, sliding(1, 10, 10_000), "OVER_LIMIT 0 of 10 @106250 wait 6250"},
			{110 * sec, sliding(0, 10, 10_000), "OK 4 of 10 @120000"},
			{120 * sec, sliding(10, 10, 10_000), "OK 0 of 10 @140000"},
		}},
		{"a jump ahead is one refill, the way back none", []row{
			{0, token(3, 3, 10_000), "OK 0 of 3 @10000"},
			{24 * time.Hour, token(1, 3, 10_000), "OK 2 of 3 @86410000"},
			{1 * sec, token(1, 3, 10_000), "OK 1 of 3 @11000"},
			{2 * sec, token(2, 3, 10_000), "OVER_LIMIT 1 of 3 @11000 wait 9000"},
			{11 * sec, token(2, 3, 10_000), "OK 1 of 3 @21000"},
		}},
	})
}

func TestCalendarDurations(t *testing.T) {
	unit := func(hits, limit, unit int64) Request { return with(DurationIsGregorian, token(hits, limit, unit)) }
	in := func(zone string, r Request) Request {
		r.TimeZone = zone
		return r
	}
	const hours = time.Hour
	walk(t, []table{
		{"a day ends at midnight UTC", []row{
			{0, unit(0, 2, 2), "OK 2 of 2 @43200000"},
			{5 * hours, unit(2, 2, 2), "OK 0 of 2 @43200000"},
			{12*hours - 1, unit(1, 2, 2), "OVER_LIMIT 0 of 2 @43200000 wait 1"},
			{12 * hours, unit(1, 2, 2), "OK 1 of 2 @129600000"},
		}},
		{"or at that of a zone", []row{
			{0, in("Asia/Kathmandu", unit(2, 2, 2)), "OK 0 of 2 @22500000"},
			{0, in("America/Los_Angeles", unit(1, 2, 2)), "OVER_LIMIT 0 of 2 @72000000 wait 72000000"},
			{20 * hours, in("America/Los_Angeles", unit(2, 2, 2)), "OK 0 of 2 @158400000"},
		}},
		{"each unit", []row{
			{1, unit(1, 9, 0), "OK 8 of 9 @60000"},
			{1, unit(1, 9, 1), "OK 7 of 9 @3600000"},
			{1, unit(1, 9, 2), "OK 6 of 9 @43200000"},
			{1, unit(1, 9, 3), "OK 5 of 9 @302400000"},
			{1, unit(1, 9, 4), "OK 4 of 9 @2635200000"},
			{1, unit(1, 9, 5), "OK 3 of 9 @31492800000"},
			{1, unit(9, 0, 4), "OVER_LIMIT 0 of 0 @2635200000 limit_is_zero"},
			{1, unit(9, 8, 4), "OVER_LIMIT 2 of 8 @2635200000 hits_exceed_capacity"},
		}},
		{"milliseconds and units follow each other", []row{
			{0, token(1, 9, 60_000), "OK 8 of 9 @60000"},
			{1 * sec, unit(1, 9, 1), "OK 7 of 9 @3600000"},
			{2 * sec, token(1, 9, 90_000), "OK 6 of 9 @90000"},
			{90 * sec, unit(1, 9, 1), "OK 8 of 9 @3600000"},
		}},
		{"a step back dates the window in the unit before", []row{
			{13 * hours, unit(2, 2, 2), "OK 0 of 2 @129600000"},
			{11 * hours, unit(1, 2, 2), "OVER_LIMIT 0 of 2 @43200000 wait 3600000"},
			{12 * hours, unit(1, 2, 2), "OK 1 of 2 @129600000"},
		}},
		{"a leaky bucket takes the usual length of the unit", []row{
			{0, with(DurationIsGregorian, leaky(6, 6, 0)), "OK 0 of 6 @60000"},
			{10 * sec, with(DurationIsGregorian, leaky(1, 6, 0)), "OK 0 of 6 @70000"},
			{10 * sec, with(DurationIsGregorian, leaky(2, 6, 1)), "OVER_LIMIT 0 of 6 @1210000 wait 1200000"},
			{10 * sec, with(DurationIsGregorian, leaky(0, 6, 2)), "OK 0 of 6 @86410000"},
			{10 * sec, with(DurationIsGregorian, leaky(0, 6, 3)), "OK 0 of 6 @604810000"},
			{10 * sec, in("Asia/Kolkata", with(DurationIsGregorian, leaky(0, 6, 4))), "OK 0 of 6 @2592010000"},
			{10 * sec, with(DurationIsGregorian, leaky(0, 6, 5)), "OK 0 of 6 @31536010000"},
		}},
	})
}

// Clocks that were never set show 1970, and some things show less. The answers need not mean much then, but limits
// hold.
func TestClockBefore1970(t *testing.T) {
	zones := NewZones()
	for _, r := range []Request{
		token(1, 3, 1000), leaky(1, 3, 1000), sliding(1, 3, 1000), with(DurationIsGregorian, token(1, 3, 3)),
	} {
		r.Name, r.UniqueKey = "name", "key"
		var q Query
		if err := q.Prepare(&r, zones); err != nil {
			t.Fatal(err)
		}
		for _, now := range []int64{0, 1, -1, -1_000_000_001, -86400e9, -5e18} {
			var s State
			admitted := 0
			for range 10 {
				var result Result
				if s, result = stepped(s, &q, now); result.Status == StatusOK {
					admitted++
				}
				if result.ResetTime < 0 || result.ResetTime < now/nsPerMs {
					t.Errorf("%v at %d: reset_time %d", r.Algorithm, now, result.ResetTime)
				}
			}
			if admitted != 3 {
				t.Errorf("%v at %d: %d admitted, want 3", r.Algorithm, now, admitted)
			}
		}
	}
}

// stepped is step as a function of three arguments.
func stepped(s State, q *Query, now int64) (next State, r Result) {
	next = Step(s, q, now, &r)
	return next, r
}
