package limits

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"weir/limits/bucket"
)

// tableStart is when the tests begin: Thursday, 2026-01-01 12:00 UTC.
const tableStart = int64(1_767_268_800_000_000_000)

// TestSweepsFindAllThatHasRunOut has anything happen to limits, and to the clock. A sweep finds all that have run out
// by then without looking at the others, so what the index has of each must never be later than the truth.
func TestSweepsFindAllThatHasRunOut(t *testing.T) {
	minutes := []int64{1, 900, 5_000, 100_000, 1_000_000} // of duration, in milliseconds
	years := append(minutes, 86_400_000, 50*86_400_000, bucket.MaxDurationMs)
	small := []int64{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, int64(time.Millisecond), int64(10 * time.Second), int64(time.Minute),
		int64(5 * time.Minute)}
	large := append(small, 1<<tickBits, int64(time.Hour), horizon/2, horizon, 3*horizon, math.MaxInt64/64)
	for seed := range uint64(40) {
		if seed%2 == 0 {
			haveAnythingHappen(t, seed, minutes, small)
		} else {
			haveAnythingHappen(t, seed, years, large)
		}
	}
}

func haveAnythingHappen(t *testing.T, seed uint64, durations, steps []int64) {
	random := rand.New(rand.NewPCG(seed, 1))
	now := tableStart
	l := New(6, func() time.Time { return time.Unix(0, now) })
	s := &l.shards[0]
	for range 3_000 {
		if step := steps[random.IntN(len(steps))]; step > 0 {
			now += random.Int64N(step) * int64(1-2*random.IntN(2)*random.IntN(2))
		}
		if now < 0 || now > math.MaxInt64/2 {
			now = tableStart
		}
		r := Request{
			Name: "name", UniqueKey: fmt.Sprint(random.IntN(14)), Hits: random.Int64N(10) - 3, Limit: random.Int64N(7),
			Burst:    random.Int64N(9),
			Duration: durations[random.IntN(len(durations))], Algorithm: Algorithm(random.IntN(3)),
			Behavior: []Behavior{0, 0, 0, 0, 0, 0, 0, DrainOverLimit, ResetRemaining}[random.IntN(9)],
		}
		if key := int(r.UniqueKey[0]); random.IntN(4) > 0 { // the usual terms of this limit
			r.Limit, r.Duration, r.Algorithm = 5, durations[key%len(durations)], Algorithm(key%3)
		}
		if r.Algorithm != LeakyBucket {
			r.Burst = 0
		}
		if r.Algorithm != SlidingWindow && random.IntN(8) == 0 {
			r.Behavior, r.Duration = r.Behavior|DurationIsGregorian, random.Int64N(6)
		}
		if err := l.Prepare(&r, new(bucket.Query)); err != nil {
			t.Fatal(err)
		}
		id := r.AppendID(nil)
		switch random.IntN(10) {
		case 0:
			l.Put(id, l.Take(id))
		case 1:
			other := r
			other.UniqueKey = fmt.Sprint(random.IntN(14))
			l.Put(id, l.State(other.AppendID(nil)))
		case 2:
			st := l.State(id)
			var used bucket.Snapshot
			used.Set(st, l.Now())
			owed := bucket.DebtSnapshot{Algorithm: used.Algorithm, Limit: used.Limit, Duration: used.Duration, Age: used.Age,
				Hits: used.Used}
			if used.Algorithm == SlidingWindow {
				owed.Previous = used.Rest
			}
			debt, _ := owed.Debt(l.Now()) // none if the state is over
			l.ApplyDebt(id, &debt)
		case 3:
			l.Sweep()
			for i := range s.expiries.size {
				if held, due := s.expiries.at(i); held.Whole(time.Unix(0, now)) {
					t.Fatalf("seed %d: a sweep left %+v, indexed for %d, at %d (%d)", seed, held.State, due, tickOf(now), now)
				}
			}
		default:
			l.Check(r)
		}
		if n := s.states.len(); n != s.expiries.size {
			t.Fatalf("seed %d: %d records in the expiries, %d in all", seed, s.expiries.size, n)
		}
	}
	if stats := l.Stats(); stats.Expired == 0 || stats.EvictedUsed == 0 {
		t.Errorf("seed %d: not all of it came up: %+v", seed, stats)
	}
}

// TestSweepsLookAtLittle: of many limits only those that are near their end are looked at.
func TestSweepsLookAtLittle(t *testing.T) {
	now := tableStart
	l := New(shardSize, func() time.Time { return time.Unix(0, now) })
	s := &l.shards[0]
	for i := range shardSize {
		l.Check(Request{Name: "name", UniqueKey: fmt.Sprint(i), Hits: 1, Limit: 5, Duration: int64(i+1) * 600_000})
	}
	for range 3 {
		now += int64(10 * time.Minute)
		l.Sweep()
		for i := range s.expiries.size {
			held, due := s.expiries.at(i)
			ahead, want := due.ahead(tickOf(now)), held.Expiry()>>tickBits-now>>tickBits
			if ahead != want && (ahead > want || ahead < horizon>>tickBits-1000) {
				t.Fatalf("what runs out in %v is indexed for %d ticks ahead, want %d", time.Duration(held.Expiry()-now), ahead,
					want)
			}
		}
		if next := s.due - now; next <= 0 || next > int64(10*time.Minute) {
			t.Errorf("the next sweep is due in %v", time.Duration(next))
		}
	}
	if stats := l.Stats(); stats.Expired != 3 {
		t.Errorf("%+v", stats)
	}
	one := bucket.Snapshot{Now: tableStart, Limit: 5, Duration: 1, Used: 1}
	ended, _ := one.State()
	for i := range s.expiries.size { // what it doesn't look at it can't know
		held, _ := s.expiries.at(i)
		held.State = ended
	}
	before := s.expiries.size
	now += int64(10 * time.Minute)
	if l.Sweep(); s.expiries.size < before-2 || s.expiries.size == before {
		t.Errorf("a sweep with one limit near its end forgot %d", before-s.expiries.size)
	}
}

// TestExpiryIndexGivesItsMemoryBack: where most records have gone, so have most pages.
func TestExpiryIndexGivesItsMemoryBack(t *testing.T) {
	var a expiryIndex
	var records []*record
	for i := range 10 * pageSize {
		records = append(records, newRecord(fmt.Sprint(i), bucket.State{}))
		a.add(records[i], tick(i))
	}
	random := rand.New(rand.NewPCG(1, 1))
	random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	for n, r := range records {
		if a.size > 0 && len(a.pages) > a.size/pageSize+2 {
			t.Fatalf("%d pages for %d records", len(a.pages), a.size)
		}
		a.remove(r)
		for _, left := range records[n+1:] {
			if held, due := a.at(int(left.place)); held != left || fmt.Sprint(due) != left.id() {
				t.Fatalf("%q is at the place of %q, indexed for %d", held.id(), left.id(), due)
			}
		}
	}
	for _, p := range a.pages {
		for _, r := range p.records {
			if r != nil {
				t.Errorf("%q has been removed, but is held", r.id())
			}
		}
	}
}
