package limits

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"weir/limits/bucket"
)

// TestScan: each limit is found in one part, where it belongs, and what is whole again soonest comes last.
func TestScan(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := New(5000, func() time.Time { return now })
	want := map[string]string{}
	for i := range 3000 {
		r := Request{Name: "n", UniqueKey: fmt.Sprint("key", i), Hits: 1, Limit: 10, Duration: int64(1000 << (i * 7919 % 20))}
		if l.Check(r); i%3 > 0 {
			want[string(r.AppendID(nil))] = fmt.Sprint(i % 3)
		}
	}
	where := func(id []byte) (string, bool) {
		var i int
		fmt.Sscanf(string(id), "\x01nkey%d", &i)
		return fmt.Sprint(i % 3), i%3 > 0
	}
	for _, parts := range []int{1, 2, 5, 100} {
		got := map[string]string{}
		for part := range parts {
			for place, all := range l.Scan(part, parts, where) {
				if !slices.IsSortedFunc(all, func(a, b Found) int { return cmp.Compare(b.TTLClass, a.TTLClass) }) {
					t.Errorf("part %d of %d: not the highest rank first", part, parts)
				}
				for _, found := range all {
					got[found.ID] = place
					st := l.State([]byte(found.ID))
					if left := st.Expiry() - now.UnixNano(); left >= 1<<found.TTLClass || left < 1<<found.TTLClass/2 {
						t.Errorf("%q is whole again in %v, not in %v", found.ID, time.Duration(left), time.Duration(1<<found.TTLClass))
					}
				}
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%d are found in %d parts, want %d", len(got), parts, len(want))
		}
	}
}

// token, leaky and sliding make requests; with adds flags to one, deep sets the burst.
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

// after returns the state of a limit of 10 per minute after hits.
func after(a Algorithm, hits int64, now time.Time) bucket.State {
	r := Request{Name: "name", UniqueKey: "key", Hits: hits, Limit: 10, Duration: 60_000, Algorithm: a}
	var q bucket.Query
	if err := q.Prepare(&r, nil); err != nil {
		panic(err)
	}
	return bucket.Step(bucket.State{}, &q, now.UnixNano(), new(Result))
}

// used returns the hits of a state.
func used(s bucket.State, now time.Time) int64 {
	var n bucket.Snapshot
	n.Set(s, now)
	if n.Algorithm == LeakyBucket && n.Rest > 0 {
		return n.Used + 1
	}
	return n.Used
}

// TestCheckCopy compares decisions on a copy with those of a Limiter, and checks where a copy is not enough.
func TestCheckCopy(t *testing.T) {
	const day1 = 24 * 60 * 60 * 1000
	gregorian := func(r Request) Request { return with(DurationIsGregorian, r) }
	for _, test := range []struct {
		what    string
		before  *Request // what the limit was used by, one second ago
		r       Request
		enough  bool
		status  bucket.Status
		remains int64
	}{
		{"a look", new(token(3, 10, 60_000)), token(0, 10, 60_000), true, StatusOK, 7},
		{"a look on other terms", new(token(3, 10, 60_000)), token(0, 5, 30_000), true, StatusOK, 2},
		{"a look in another algorithm", new(token(3, 10, 60_000)), leaky(0, 10, 60_000), true, StatusOK, 10},
		{"a look on nothing", nil, token(0, 10, 60_000), true, StatusOK, 10},
		{"a reset without hits", new(token(3, 10, 60_000)), with(ResetRemaining, token(0, 10, 60_000)), false, StatusOK, 10},
		{"hits", new(token(3, 10, 60_000)), token(7, 10, 60_000), true, StatusOK, 0},
		{"too many hits", new(token(3, 10, 60_000)), token(8, 10, 60_000), true, StatusOverLimit, 7},
		{"hits given back", new(token(3, 10, 60_000)), token(-2, 10, 60_000), true, StatusOK, 9},
		{"a window that begins", nil, token(1, 10, 60_000), false, StatusOK, 9},
		{"a window after another", new(token(3, 10, 999)), token(1, 10, 999), false, StatusOK, 9},
		{"a window that ends now", new(token(3, 10, 1000)), token(1, 10, 1000), false, StatusOK, 9},
		{"a higher limit", new(token(3, 10, 60_000)), token(1, 11, 60_000), false, StatusOK, 7},
		{"a lower limit", new(token(3, 10, 60_000)), token(1, 9, 60_000), false, StatusOK, 5},
		{"a longer window", new(token(3, 10, 60_000)), token(1, 10, 60_001), false, StatusOK, 6},
		{"another algorithm", new(token(3, 10, 60_000)), sliding(1, 10, 60_000), false, StatusOK, 9},
		{"a calendar's day", new(gregorian(token(3, 10, 2))), gregorian(token(1, 10, 2)), true, StatusOK, 6},
		{"a calendar's week after a day", new(gregorian(token(3, 10, 2))), gregorian(token(1, 10, 3)), false, StatusOK, 6},
		{"a calendar's day after 24 hours", new(token(3, 10, day1)), gregorian(token(1, 10, 2)), false, StatusOK, 6},
		{"sliding hits", new(sliding(3, 10, 60_000)), sliding(1, 10, 60_000), true, StatusOK, 6},
		{"the window after a sliding one", new(sliding(3, 10, 1000)), sliding(1, 10, 1000), true, StatusOK, 6},
		{"sliding windows that begin", new(sliding(3, 10, 500)), sliding(1, 10, 500), false, StatusOK, 9},
		{"a leak", new(leaky(3, 10, 10_000)), leaky(1, 10, 10_000), true, StatusOK, 7},
		{"a leaky bucket that is whole", nil, leaky(1, 10, 60_000), true, StatusOK, 9},
		{"a leaky bucket that is whole again", new(leaky(1, 10, 1_000)), leaky(1, 10, 60_000), true, StatusOK, 9},
		{"another burst", new(leaky(3, 10, 10_000)), deep(20, leaky(1, 10, 10_000)), true, StatusOK, 17},
		{"another rate", new(leaky(3, 10, 10_000)), leaky(1, 20, 10_000), false, StatusOK, 17},
		{"no request", new(token(3, 10, 60_000)), token(1, -1, 60_000), true, StatusError, 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			now := time.Unix(0, tableStart)
			l := New(10, func() time.Time { return now })
			if test.before != nil {
				test.before.Name, test.before.UniqueKey = "name", "key"
				l.Check(*test.before)
			}
			test.r.Name, test.r.UniqueKey = "name", "key"
			id := test.r.AppendID(nil)
			before := l.State(id)
			now = now.Add(time.Second)
			var q bucket.Query
			if err := l.Prepare(&test.r, &q); err != nil {
				if test.status != StatusError {
					t.Error(err)
				}
				return
			}
			next, result, enough := before.CheckCopy(&q, now)
			if enough != test.enough || result.Status != test.status || result.Remaining != test.remains {
				t.Errorf("%+v, %v", result, enough)
			}
			if l.State(id) != before {
				t.Errorf("%+v became %+v by trying", before, l.State(id))
			}
			want := l.Check(test.r)
			if result != want {
				t.Errorf("%+v on a copy, otherwise %+v", result, want)
			}
			if after := l.State(id); next.At(now) != after.At(now) {
				t.Errorf("%+v on a copy, otherwise %+v", next, after)
			}
		})
	}
}

func TestStateOfALimiter(t *testing.T) {
	now := time.Unix(0, tableStart)
	l := New(10_000, func() time.Time { return now })
	r := token(3, 10, 60_000)
	r.Name, r.UniqueKey = "name", "key"
	id := r.AppendID(nil)
	if got := l.State(id); got != (bucket.State{}) || !got.Whole(now) {
		t.Errorf("nothing is remembered: %+v", got)
	}
	l.Check(r)
	first := l.State(id)
	if first.Whole(now) || used(first, now) != 3 {
		t.Errorf("%+v", first)
	}
	if !first.Whole(now.Add(time.Minute)) || first.Whole(now.Add(time.Minute-1)) {
		t.Errorf("%+v is not whole when its window ends, and then only", first)
	}
	for range 3 {
		if got := l.State(id); got != first {
			t.Errorf("looking made %+v of %+v", got, first)
		}
	}
	l.Check(with(ResetRemaining, r))
	if got := l.State(id); got != (bucket.State{}) {
		t.Errorf("after a reset: %+v", got)
	}
}

// TestApplyDebt has a Limiter count debts.
func TestApplyDebt(t *testing.T) {
	now := time.Unix(0, tableStart)
	newLimiter := func() *Limiter { return New(10, func() time.Time { return now }) }
	named := func(r Request) Request {
		r.Name, r.UniqueKey = "name", "key"
		return r
	}
	id := new(named(Request{})).AppendID(nil)
	look := func(t *testing.T, l *Limiter, r Request, remains int64) {
		t.Helper()
		r.Hits = 0
		if got := l.Check(named(r)); got.Remaining != remains {
			t.Errorf("%+v, want %d to remain", got, remains)
		}
	}
	for a := range SlidingWindow + 1 {
		t.Run(a.String(), func(t *testing.T) {
			r := named(token(3, 10, 60_000))
			r.Algorithm = a
			taken := after(a, 4, now)
			var debt bucket.Debt
			debt.Add(4, &taken, now)

			l := newLimiter()
			if hits, ok := l.ApplyDebt(id, &debt); hits != 4 || !ok {
				t.Errorf("%d, %v", hits, ok)
			}
			look(t, l, r, 6)
			l.Check(r)
			look(t, l, r, 3)
			for range 2 { // beyond the limit, too
				if hits, ok := l.ApplyDebt(id, &debt); hits != 4 || !ok {
					t.Errorf("%d, %v", hits, ok)
				}
			}
			look(t, l, r, 0)
			r.Limit = 100
			look(t, l, r, 100-15)

			blocked := New(2, func() time.Time { return now })
			for range 3 {
				blocked.ApplyDebt(id, &debt)
			}
			flood := named(token(1, 10, 60_000))
			for i := range 10 { // which frees no caller that has nothing left
				flood.UniqueKey = fmt.Sprint("other", i)
				blocked.Check(flood)
			}
			r.Limit = 10
			look(t, blocked, r, 0)

			var none bucket.Debt
			before := l.State(id)
			if hits, ok := l.ApplyDebt(id, &none); hits != 0 || !ok || l.State(id) != before {
				t.Errorf("no debt: %d, %v, %+v", hits, ok, l.State(id))
			}
			l = newLimiter()
			if hits, ok := l.ApplyDebt(id, &none); hits != 0 || !ok || l.Stats().Entries != 0 {
				t.Errorf("no debt: %d, %v, %+v", hits, ok, l.Stats())
			}

			other := r
			other.Algorithm = (a + 1) % 3
			l.Check(other)
			before = l.State(id)
			if hits, ok := l.ApplyDebt(id, &debt); hits != 4 || ok || l.State(id) != before {
				t.Errorf("on another algorithm: %d, %v, %+v", hits, ok, l.State(id))
			}
		})
	}
}

// TestStatesOfDebtsAreSwept checks that a debt's window, which is older than the present, ends when it should.
func TestStatesOfDebtsAreSwept(t *testing.T) {
	for _, held := range []bool{false, true} {
		now := time.Unix(0, tableStart)
		l := New(10, func() time.Time { return now })
		r := token(1, 10, 60_000)
		r.Name, r.UniqueKey = "name", "key"
		taken := after(TokenBucket, 4, now.Add(-50*time.Second))
		var debt bucket.Debt
		debt.Add(4, &taken, now)
		if held { // a state whose window is over, and which was not swept
			r.Duration = 1
			l.Check(r)
			now = now.Add(time.Second)
		}
		l.ApplyDebt(r.AppendID(nil), &debt)
		l.Sweep()
		if n := l.Stats().Entries; n != 1 {
			t.Errorf("held %v: %d entries", held, n)
		}
		now = now.Add(10 * time.Second)
		l.Sweep()
		if n := l.Stats().Entries; n != 0 {
			t.Errorf("held %v: %d entries after the window", held, n)
		}
	}
}

// FuzzPeerStates takes in what another node might say of a limit: if it is believed, nothing worse may follow than
// wrong counts.
func FuzzPeerStates(f *testing.F) {
	f.Add(uint8(0), int64(10), int64(time.Minute), int64(0), int64(3), int64(0), int64(0), int64(1), int64(tableStart))
	f.Add(uint8(1), int64(math.MaxInt64), int64(1), int64(0), int64(math.MaxInt64), int64(0), int64(math.MaxInt64),
		int64(7), int64(0))
	f.Add(uint8(2), int64(0), int64(316_310_400_000*int64(time.Millisecond)), int64(math.MaxInt64), int64(1),
		int64(math.MaxInt64), int64(1), int64(-7), int64(math.MinInt64))
	f.Add(uint8(2), int64(5), int64(1000), int64(999), int64(1), int64(1<<62), int64(1<<40), int64(math.MinInt64),
		int64(math.MaxInt64))
	f.Add(uint8(7), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(0), int64(-1))
	f.Fuzz(func(t *testing.T, algorithm uint8, limit, duration, age, used, rest, later, hits, clock int64) {
		now := time.Unix(0, tableStart)
		l := New(10, func() time.Time { return now })
		a := Algorithm(algorithm)
		o := bucket.DebtSnapshot{Algorithm: a, Limit: limit, Duration: duration, Age: age, Hits: used, Previous: rest}
		n := bucket.Snapshot{Now: clock, Algorithm: a, Limit: limit, Duration: duration, Age: age, Used: used, Rest: rest}
		s, ok := n.State()
		if ok != (s != bucket.State{}) && (used != 0 || rest != 0) {
			t.Fatalf("%+v: %+v, %v", n, s, ok)
		}
		r := Request{Name: "n", UniqueKey: "k", Hits: hits, Limit: max(0, limit), Algorithm: a % 3}
		r.Duration = 1 + max(0, duration/int64(time.Millisecond))%bucket.MaxDurationMs
		var q bucket.Query
		if err := l.Prepare(&r, &q); err != nil {
			t.Fatal(err)
		}
		use := func(what string, s bucket.State, now time.Time) bucket.State {
			next, result, _ := s.CheckCopy(&q, now)
			if result.Status == StatusError || result.Remaining < 0 || result.Remaining > r.Limit {
				t.Fatalf("%s: %+v on %+v: %+v, %+v", what, r, s, next, result)
			}
			return next
		}
		ahead := time.Duration(0)
		if ok {
			ahead = time.Unix(0, clock).Sub(now)
			next := use("a copy", s, now.Add(ahead))
			use("a copy later", next, now.Add(ahead).Add(time.Duration(later&math.MaxInt64>>2)))
			use("a copy before", next, now.Add(ahead).Add(-time.Duration(later&math.MaxInt64>>2)))
			var again bucket.Snapshot
			again.Set(s, time.Unix(0, clock))
			if _, ok := again.State(); !ok {
				t.Fatalf("%+v became %+v", n, again)
			}
		}
		d, err := o.Debt(now)
		if err != nil {
			if d != (bucket.Debt{}) {
				t.Fatalf("%+v: %+v, %v", o, d, err)
			}
			return
		}
		if got := d.Hits(now); got < 0 || got > int64(min(uint64(used)+uint64(rest), math.MaxInt64)) {
			t.Fatalf("%+v: %d hits", o, got)
		}
		shifted := d.Shift(ahead)
		if joined, ok := s.Join(&shifted, now.Add(ahead)); ok {
			use("a copy with a debt", joined, now.Add(ahead))
		}
		other := d
		other.Merge(&d, now.Add(time.Duration(later&math.MaxInt64>>2)))
		alone, _ := bucket.State{}.Join(&d, now)
		own := use("a debt", alone, now)
		other.Add(1+hits&math.MaxInt64>>1, &own, now)
		for _, d := range []bucket.Debt{d, other, d} {
			if got, ok := l.ApplyDebt(r.AppendID(nil), &d); got < 0 || !ok && got == 0 {
				t.Fatalf("%+v: %d, %v", d, got, ok)
			}
			if got := l.Check(r); got.Status == StatusError || got.Remaining < 0 || got.Remaining > r.Limit {
				t.Fatalf("%+v after %+v: %+v", r, d, got)
			}
		}
		var held bucket.Snapshot
		held.Set(l.State(r.AppendID(nil)), now)
		if _, ok := held.State(); !ok {
			t.Fatalf("a Limiter holds what can't be: %+v", held)
		}
		if back, ok := d.Snapshot(now); ok {
			if _, err := back.Debt(now); err != nil {
				t.Fatalf("%+v: %+v: %v", o, back, err)
			}
		}
		now = now.Add(2 * bucket.MaxDurationMs * time.Millisecond)
		l.Sweep()
	})
}
