package bucket

import (
	"math"
	"math/rand/v2"
	"testing"
)

// anyState draws any state that may be remembered.
func anyState(random *rand.Rand, now int64) State {
	large := func() uint64 { return random.Uint64() >> 1 >> random.IntN(63) }
	s := State{
		algorithm: Algorithm(random.IntN(algorithms)), limit: large(),
		duration: 1 + random.Int64N(MaxDurationMs*nsPerMs)>>random.IntN(58), drained: random.IntN(2) == 0,
	}
	s.stamp = now - random.Int64N(s.duration)
	switch s.used.lo = 1 + large()/2; s.algorithm {
	case LeakyBucket:
		s.used = mul(s.used.lo, uint64(s.duration)).add(u128{lo: random.Uint64N(uint64(s.duration))})
	case SlidingWindow:
		s.used.hi = large()
	}
	return s
}

func TestSnapshotsRoundTrip(t *testing.T) {
	owing(t, 300, func(t *testing.T, random *rand.Rand) {
		s := anyState(random, debtStart)
		n := Snapshot{Start: random.Int64(), Epoch: random.Int64(), Version: random.Int64(), Acked: random.Int64()}
		before := n
		n.Set(s, at(debtStart))
		if n.Start != before.Start || n.Epoch != before.Epoch || n.Version != before.Version || n.Acked != before.Acked ||
			n.Now != debtStart {
			t.Errorf("%+v became %+v", before, n)
		}
		want := s
		want.drained = false // which is about what goes first when a Limiter is full, and a copy is not in one
		if s.Whole(at(debtStart)) {
			want = State{}
		}
		if got, ok := n.State(); !ok || got != want {
			t.Errorf("%+v, %v of %+v\nwant %+v", got, ok, n, want)
		}
	})
}

func TestASnapshotOfAClockThatWasSetBack(t *testing.T) {
	s := force(State{}, plain(TokenBucket, 10, minuteNs), 3, debtStart)
	var n Snapshot
	n.Set(s, at(debtStart-5))
	got, ok := n.State()
	if want := s.at(debtStart - 5); !ok || got != want || n.Age != 0 {
		t.Errorf("%+v, %v, want %+v", got, ok, want)
	}
}

func TestSnapshotsThatCannotBe(t *testing.T) {
	good := Snapshot{Start: 1, Version: 1, Now: debtStart, Limit: 10, Duration: minuteNs, Age: 5, Used: 3}
	of := func(a Algorithm, used, rest int64) func(n *Snapshot) {
		return func(n *Snapshot) { n.Algorithm, n.Used, n.Rest = a, used, rest }
	}
	for _, test := range []struct {
		what   string
		change func(n *Snapshot)
		want   bool
	}{
		{"nothing changed", func(n *Snapshot) {}, true},
		{"whole", of(TokenBucket, 0, 0), true},
		{"whole, and nothing else known", func(n *Snapshot) { *n = Snapshot{Start: 1, Now: debtStart} }, true},
		{"whole, at a time before all", func(n *Snapshot) { *n = Snapshot{Now: -1} }, false},
		{"whole, at no time at all", func(n *Snapshot) { *n = Snapshot{Now: math.MinInt64} }, false},
		{"whole, at the end of time", func(n *Snapshot) { *n = Snapshot{Now: math.MaxInt64} }, false},
		{"negative hits", of(TokenBucket, -1, 0), false},
		{"negative sliding hits", of(SlidingWindow, -1, 1), false},
		{"negative hits before", of(SlidingWindow, 1, -1), false},
		{"only hits before", of(SlidingWindow, 0, 1), true},
		{"hits before a token's window", of(TokenBucket, 1, 1), false},
		{"most hits", of(SlidingWindow, math.MaxInt64, math.MaxInt64), true},
		{"most leaky hits", of(LeakyBucket, math.MaxInt64, minuteNs-1), true},
		{"a part of a hit", of(LeakyBucket, 0, 1), true},
		{"a whole hit as parts", of(LeakyBucket, 0, minuteNs), false},
		{"a negative part", of(LeakyBucket, 1, -1), false},
		{"an unknown algorithm", of(3, 1, 0), false},
		{"the largest algorithm", of(255, 1, 0), false},
		{"a limit of 0", func(n *Snapshot) { n.Limit = 0 }, true},
		{"a negative limit", func(n *Snapshot) { n.Limit = -1 }, false},
		{"the largest limit", func(n *Snapshot) { n.Limit = math.MaxInt64 }, true},
		{"no duration", func(n *Snapshot) { n.Duration = 0 }, false},
		{"a negative duration", func(n *Snapshot) { n.Duration = math.MinInt64 }, false},
		{"the longest duration", func(n *Snapshot) { n.Duration = longest }, true},
		{"a longer duration", func(n *Snapshot) { n.Duration = longest + 1 }, false},
		{"from the future", func(n *Snapshot) { n.Age = -1 }, false},
		{"a great age", func(n *Snapshot) { n.Age = 2 * longest }, true},
		{"a greater age", func(n *Snapshot) { n.Age = 2*longest + 1 }, false},
		{"the greatest age", func(n *Snapshot) { n.Age = math.MaxInt64 }, false},
		{"1970", func(n *Snapshot) { n.Now = 0 }, true},
		{"before", func(n *Snapshot) { n.Now = -1 }, false},
		{"the end of time", func(n *Snapshot) { n.Now = math.MaxInt64 }, false},
	} {
		n := good
		test.change(&n)
		s, ok := n.State()
		if ok != test.want {
			t.Errorf("%s: %+v: %v", test.what, s, ok)
		}
		if !ok && s != (State{}) {
			t.Errorf("%s: %+v, though it can't be", test.what, s)
		}
	}
}
