package bucket

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

const (
	debtStart = tableStart
	ms1       = int64(time.Millisecond)
)

func at(ns int64) time.Time { return time.Unix(0, ns) }

// owing runs a test with many random sequences. The name of a failure tells how to repeat it.
func owing(t *testing.T, n uint64, test func(t *testing.T, random *rand.Rand)) {
	t.Helper()
	for seed := range n {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

// plain makes the terms of a limit without a burst.
func plain(a Algorithm, limit uint64, duration int64) *Query {
	return &Query{algorithm: a, Limit: int64(limit), capacity: limit, duration: duration}
}

// force counts hits whether they fit or not: what a debt is to amount to in the end.
func force(s State, q *Query, hits, now int64) (next State) {
	next.advance(&s, q, now)
	next.take(uint64(hits))
	return next
}

// load returns what is used at now, in parts of a hit where the algorithm knows them.
func load(s State, now int64) u128 {
	s = s.at(now)
	if s.Empty() {
		return u128{}
	}
	if s.algorithm == SlidingWindow {
		return s.slidingLoad(now)
	}
	return s.used
}

func (a u128) less(b u128) bool { return a.hi < b.hi || a.hi == b.hi && a.lo < b.lo }

// A taking is hits at a time, by the owner or away from it.
type taking struct {
	at   int64
	hits int64
	away bool
}

// takings draws hits in the order of their times. The first is the owner's.
func takings(random *rand.Rand, from, span int64) (list []taking) {
	step := span / (1 + random.Int64N(20))
	for now := from; now < from+span && len(list) < 20; now += random.Int64N(step) {
		list = append(list, taking{now, 1 + random.Int64N(9), len(list) > 0 && random.IntN(2) == 0})
	}
	return list
}

// tell plays takings: what the owner has counted, what is owed to it, and what it would have counted if it had been
// told of each hit at once. The debt is taken from a copy, whose windows are the owner's.
func tell(s State, q *Query, list []taking) (counted, all State, debt Debt) {
	counted, all = s, s
	copied := s
	for _, taking := range list {
		all = force(all, q, taking.hits, taking.at)
		if !taking.away {
			counted = force(counted, q, taking.hits, taking.at)
			if copied.Empty() {
				copied = counted
			}
			continue
		}
		copied = force(copied, q, taking.hits, taking.at)
		debt.Add(taking.hits, &copied, at(taking.at))
	}
	return counted, all, debt
}

func TestJoiningADebtOfATokenBucketIsAsIfItHadBeenTaken(t *testing.T) {
	owing(t, 200, func(t *testing.T, random *rand.Rand) {
		duration := (1 + random.Int64N(1000)) * 20 * ms1
		q := plain(TokenBucket, 1+random.Uint64N(100), duration)
		list := takings(random, debtStart, duration)
		counted, all, debt := tell(State{}, q, list)
		now := list[len(list)-1].at
		for _, then := range []int64{now, now + (debtStart+duration-now)/2, debtStart + duration - 1, debtStart + duration} {
			joined, ok := counted.Join(&debt, at(then))
			if !ok || load(joined, then) != load(all, then) {
				t.Fatalf("%+v\n%+v + %+v\n= %+v, %v\nwant %+v", list, counted, debt, joined, ok, all)
			}
		}
	})
}

func TestJoiningADebtOfASlidingWindowIsAsIfItHadBeenTaken(t *testing.T) {
	owing(t, 200, func(t *testing.T, random *rand.Rand) {
		duration := (1 + random.Int64N(1000)) * 20 * ms1
		q := plain(SlidingWindow, 1+random.Uint64N(100), duration)
		list := takings(random, debtStart, 2*duration) // both windows, since none may begin anew
		counted, all, debt := tell(State{}, q, list)
		now := list[len(list)-1].at
		for _, then := range []int64{now, now + (debtStart+2*duration-now)/2, debtStart + 2*duration - 1} {
			joined, ok := counted.Join(&debt, at(then))
			if !ok || load(joined, then) != load(all, then) {
				t.Fatalf("%+v\n%+v + %+v\n= %+v, %v\nwant %+v", list, counted, debt, joined, ok, all)
			}
			// A message makes the debt look younger by the time that it takes, unless that is a large part of the window.
			late := debt.Shift(time.Duration(random.Int64N(min(duration/2, int64(time.Second)))))
			if late.state.at(then).stamp != debt.state.at(then).stamp+late.state.stamp-debt.state.stamp {
				continue // it makes another window the present one, too
			}
			if joined, ok = counted.Join(&late, at(then)); !ok || load(joined, then) != load(all, then) {
				t.Fatalf("%+v\n%+v + %+v, late\n= %+v, %v\nwant %+v", list, counted, late, joined, ok, all)
			}
		}
	})
}

// TestJoiningADebtOfOtherWindowsIsNeverTooLittle has a node begin windows of its own, as one does that can't ask.
func TestJoiningADebtOfOtherWindowsIsNeverTooLittle(t *testing.T) {
	owing(t, 500, func(t *testing.T, random *rand.Rand) {
		duration := (1 + random.Int64N(300)) * 20 * ms1
		q := plain(SlidingWindow, 1+random.Uint64N(100), duration)
		var counted, all, away State
		var debt Debt
		list := takings(random, debtStart, 2*duration)
		for _, taking := range list {
			all = force(all, q, taking.hits, taking.at)
			if taking.away {
				away = force(away, q, taking.hits, taking.at)
				debt.Add(taking.hits, &away, at(taking.at))
			} else {
				counted = force(counted, q, taking.hits, taking.at)
			}
		}
		now := list[len(list)-1].at
		behind := away.at(now).stamp - counted.at(now).stamp
		if 0 < behind && behind <= min(duration/2, int64(time.Second)) {
			return // passes for a message that took its time
		}
		joined, ok := counted.Join(&debt, at(now))
		if !ok || load(joined, now).less(load(all, now)) {
			t.Fatalf("%+v\n%+v + %+v\n= %+v, %v\nwant at least %+v", list, counted, debt, joined, ok, all)
		}
	})
}

// TestJoiningADebtOfALeakyBucketIsNeverTooLittle has the owner's bucket leak all the time, so that a debt which has
// leaked, too, would be too little.
func TestJoiningADebtOfALeakyBucketIsNeverTooLittle(t *testing.T) {
	owing(t, 200, func(t *testing.T, random *rand.Rand) {
		duration := (1 + random.Int64N(3000)) * ms1
		q := plain(LeakyBucket, 1+random.Uint64N(100), duration)
		full := force(State{}, q, 2+2*q.Limit*int64(time.Second)/duration, debtStart) // for more than a second
		list := takings(random, debtStart, int64(time.Second))
		counted, all, debt := tell(full, q, list)
		raw := int64(0)
		for _, taking := range list {
			if taking.away {
				raw += taking.hits
			}
		}
		now := list[len(list)-1].at
		for _, then := range []int64{now, now + (debtStart+int64(leakSpan)-now)/2, debtStart + int64(leakSpan)} {
			joined, ok := counted.Join(&debt, at(then))
			got, least := load(joined, then), load(all, then)
			most := load(counted, then).add(mul(uint64(raw), uint64(duration)))
			if !ok || got.less(least) || most.less(got) {
				t.Fatalf("%+v\n%+v + %+v\n= %+v, %v\nwant from %+v to %+v", list, counted, debt, joined, ok, least, most)
			}
			if hits := debt.Hits(at(then)); hits > raw {
				t.Fatalf("%+v owes %d, but only %d were taken", list, hits, raw)
			}
		}
	})
}

// TestADebtIsTheSameByAnyWay adds hits to one debt, to two that are merged, and sends them by way of a third node.
func TestADebtIsTheSameByAnyWay(t *testing.T) {
	for a := range Algorithm(algorithms) {
		t.Run(a.String(), func(t *testing.T) {
			owing(t, 100, func(t *testing.T, random *rand.Rand) {
				duration := (1 + random.Int64N(1000)) * 20 * ms1
				q := plain(a, 1+random.Uint64N(100), duration)
				list := takings(random, debtStart, min(duration, int64(leakSpan)))
				now := list[len(list)-1].at
				counted, _, debt := tell(State{}, q, list)
				want, _ := counted.Join(&debt, at(now))

				var parts [2]Debt
				on := force(State{}, q, 1, debtStart)
				for _, taking := range list {
					if taking.away {
						parts[random.IntN(2)].Add(taking.hits, &on, at(taking.at))
					}
				}
				skew := time.Duration(random.Int64N(int64(time.Hour))) - 30*time.Minute
				merged := parts[0]
				merged.Merge(&parts[1], at(now))
				moved := debt.Shift(skew)
				for what, other := range map[string]Debt{"merged": merged, "there and back": moved.Shift(-skew)} {
					got, ok := counted.Join(&other, at(now))
					if !ok || load(got, now) != load(want, now) || other.Hits(at(now)) != debt.Hits(at(now)) {
						t.Errorf("%+v, %s: %+v, want %+v", list, what, other, debt)
					}
				}
				if got, want := moved.Hits(at(now).Add(skew)), debt.Hits(at(now)); got != want {
					t.Errorf("%+v: %d hits by another clock, want %d", list, got, want)
				}
				owed, ok := debt.Snapshot(at(now))
				if ok != (debt.Hits(at(now)) > 0) {
					t.Fatalf("%+v: %+v, %v", list, owed, ok)
				}
				if !ok {
					return
				}
				arrived, err := owed.Debt(at(now).Add(skew))
				if err != nil {
					t.Fatalf("%+v: %v", owed, err)
				}
				back := arrived.Shift(-skew)
				if a != LeakyBucket && back.state.stamp != debt.state.at(now).stamp {
					t.Errorf("%+v: %+v by message, in another window than %+v", list, back, debt)
				}
				if got, _ := counted.Join(&back, at(now)); load(got, now) != load(want, now) {
					t.Errorf("%+v: %+v by message, want %+v", list, got, want)
				}
			})
		})
	}
}

func TestDebtsEndWithTheirWindow(t *testing.T) {
	const second = int64(time.Second)
	type owed struct{ at, hits int64 }
	for _, test := range []struct {
		what string
		q    *Query
		took []owed
		want []owed
	}{
		{"token", plain(TokenBucket, 10, 10*second), []owed{{0, 3}, {5 * second, 4}},
			[]owed{{5 * second, 7}, {10*second - 1, 7}, {10 * second, 0}, {20 * second, 0}}},
		{"token, from an older window on", plain(TokenBucket, 10, 10*second), []owed{{0, 3}, {10 * second, 4}},
			[]owed{{10 * second, 4}, {20*second - 1, 4}, {20 * second, 0}}},
		{"sliding", plain(SlidingWindow, 10, 10*second), []owed{{0, 3}, {12 * second, 4}},
			[]owed{{12 * second, 7}, {20*second - 1, 7}, {20 * second, 4}, {30*second - 1, 4}, {30 * second, 0}}},
		{"leaky: in full for a second, then less by one in 100 ms", plain(LeakyBucket, 10, second), []owed{{0, 5}},
			[]owed{{0, 5}, {second, 5}, {second + 1, 5}, {second + 100*ms1, 4}, {second + 101*ms1, 4}, {second + 499*ms1, 1},
				{second + 500*ms1, 0}}},
		{"leaky: no more than a second's leak above the level", plain(LeakyBucket, 10, second),
			[]owed{{0, 5}, {5 * second, 2}},
			[]owed{{5 * second, 2}, {6 * second, 2}, {6*second + 200*ms1, 0}}},
		{"leaky: what has not leaked", plain(LeakyBucket, 10, second), []owed{{0, 30}, {2 * second, 2}},
			[]owed{{2 * second, 22}, {3 * second, 12}, {4*second + 200*ms1, 0}}},
		{"leaky, a limit of 0 never leaks", plain(LeakyBucket, 0, second), []owed{{0, 5}}, []owed{{1000 * second, 5}}},
	} {
		t.Run(test.what, func(t *testing.T) {
			var s State
			var debt Debt
			if !debt.IsZero() {
				t.Error("the zero Debt is one")
			}
			for _, took := range test.took {
				s = force(s, test.q, took.hits, debtStart+took.at)
				if dropped := debt.Add(took.hits, &s, at(debtStart+took.at)); dropped != 0 {
					t.Errorf("%d hits were dropped", dropped)
				}
				if debt.IsZero() {
					t.Errorf("%+v: is none", debt)
				}
			}
			for _, want := range test.want {
				now := at(debtStart + want.at)
				if got := debt.Hits(now); got != want.hits {
					t.Errorf("%d hits at %d, want %d", got, want.at, want.hits)
				}
				if owed, ok := debt.Snapshot(now); ok != (want.hits > 0) || owed.Hits+owed.Previous != want.hits {
					t.Errorf("at %d: %+v, %v, want %d hits", want.at, owed, ok, want.hits)
				}
				var s State
				if joined, ok := s.Join(&debt, now); !ok || int64(joined.hits()) != want.hits {
					t.Errorf("at %d: %+v, %v, want %d hits", want.at, joined, ok, want.hits)
				}
			}
		})
	}
}

func TestADebtInAnotherAlgorithmIsDropped(t *testing.T) {
	now := at(debtStart)
	for a := range Algorithm(algorithms) {
		for b := range Algorithm(algorithms) {
			if a == b {
				continue
			}
			old := force(State{}, plain(a, 10, minuteNs), 7, debtStart)
			young := force(State{}, plain(b, 10, minuteNs), 2, debtStart)
			var debt, other Debt
			debt.Add(7, &old, now)
			other.Add(2, &young, now)
			if _, ok := old.Join(&other, now); ok {
				t.Errorf("a debt of %v joins a state of %v", b, a)
			}
			if joined, ok := old.Join(&other, now.Add(2*time.Minute)); !ok || joined != old {
				t.Errorf("%v after %v, all is over: %+v, %v", b, a, joined, ok)
			}
			ended := old
			ended.stamp -= 2 * minuteNs
			if joined, ok := ended.Join(&other, now); !ok || joined.hits() != 2 {
				t.Errorf("%v after %v that is over: %+v, %v", b, a, joined, ok)
			}
			merged := debt
			if dropped := merged.Merge(&other, now); dropped != 7 || merged.Hits(now) != 2 || merged.state.algorithm != b {
				t.Errorf("%v merged into %v: %+v, %d dropped", b, a, merged, dropped)
			}
			if dropped := debt.Add(2, &young, now); dropped != 7 || debt.Hits(now) != 2 || debt.state.algorithm != b {
				t.Errorf("%v after %v: %+v, %d dropped", b, a, debt, dropped)
			}
		}
	}
}

const minuteNs = 60 * int64(time.Second)

func TestDebtsSaturate(t *testing.T) {
	const most = math.MaxInt64
	now := at(debtStart)
	for a := range Algorithm(algorithms) {
		s := force(State{}, plain(a, most, MaxDurationMs*nsPerMs), most, debtStart)
		var debt Debt
		for range 3 {
			debt.Add(most, &s, now)
		}
		other := debt
		other.Merge(&debt, now)
		for range 300 { // 2^122 as often as 128 bits can't bear
			s, _ = s.Join(&other, now)
		}
		if debt.Hits(now) != most || other.Hits(now) != most || min(s.hits(), most) != most {
			t.Errorf("%v: %d hits, merged %d, joined %d", a, debt.Hits(now), other.Hits(now), s.hits())
		}
		var n Snapshot
		n.Set(s, now)
		if again, ok := n.State(); !ok || min(again.hits(), most) != most {
			t.Errorf("%v: %+v, %v", a, n, ok)
		}
	}
}

func TestBegins(t *testing.T) {
	for a := range Algorithm(algorithms) {
		q := plain(a, 10, minuteNs)
		first := force(State{}, q, 1, debtStart)
		more := force(first, q, 1, debtStart+1)
		second := force(State{}, q, 1, debtStart+1)
		var none State
		other := force(State{}, plain((a+1)%algorithms, 10, minuteNs), 1, debtStart)
		isToken := a == TokenBucket
		for i, test := range []struct {
			s, was *State
			want   bool
		}{
			{&first, &none, isToken}, {&more, &first, false}, {&first, &first, false}, {&second, &first, isToken},
			{&first, &other, isToken}, {&none, &first, false}, {&none, &none, false},
		} {
			if got := test.s.Begins(test.was); got != test.want {
				t.Errorf("%v, %d: %+v after %+v: %v", a, i, test.s, test.was, got)
			}
		}
	}
}

func TestWindow(t *testing.T) {
	zones := NewZones()
	const aDay = 24 * time.Hour
	for _, test := range []struct {
		r    Request
		want time.Duration
	}{
		{token(1, 1, 1), time.Millisecond},
		{leaky(1, 1, 60_000), time.Minute},
		{sliding(0, 0, MaxDurationMs), MaxDurationMs * time.Millisecond},
		{with(DurationIsGregorian, token(1, 1, minute)), time.Minute},
		{with(DurationIsGregorian, token(1, 1, wholeDay)), aDay},
		{with(DurationIsGregorian, token(1, 1, month)), 30 * aDay},
		{with(DurationIsGregorian, leaky(1, 1, year)), 365 * aDay},
	} {
		test.r.Name, test.r.UniqueKey = "name", "key"
		var q Query
		if err := q.Prepare(&test.r, zones); err != nil {
			t.Error(err)
		}
		if got := q.Window(); got != test.want {
			t.Errorf("%+v: %v, want %v", test.r, got, test.want)
		}
	}
}
