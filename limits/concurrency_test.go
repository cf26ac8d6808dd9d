package limits_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/limits"
)

const workers = 8

// together runs work in several goroutines and waits for all.
func together(work func(worker int)) {
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() { work(worker) })
	}
	wg.Wait()
}

func TestExactlyTheLimitIsAdmitted(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		const keys, limit = 5, 1000
		l := limits.New(10_000, newClock().now)
		var admitted [keys]atomic.Int64
		together(func(worker int) {
			for i := range keys * limit / 4 {
				key := (i + worker) % keys
				r := minute(a, fmt.Sprint(key))
				r.Limit = limit
				switch got := l.Check(r); {
				case isOK(got):
					admitted[key].Add(1)
				case got.Remaining != 0:
					t.Errorf("refused with %+v", got)
				}
			}
		})
		for key := range admitted {
			if n := admitted[key].Load(); n != limit {
				t.Errorf("key %d: %d admitted, want %d", key, n, limit)
			}
		}
	})
}

// TestLimitsHoldWhileTimePasses stops the clock for each rush, so that it is known when each hit passed.
func TestLimitsHoldWhileTimePasses(t *testing.T) {
	const limit, duration, step, rushes = 20, 1000 * time.Millisecond, 130*time.Millisecond + 7, 150
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		c := newClock()
		l := limits.New(10, c.now)
		r := minute(a, "key")
		r.Limit, r.Duration = limit, duration.Milliseconds()
		var passed []admission
		for range rushes {
			c.add(step)
			var admitted atomic.Int64
			together(func(int) {
				for range limit/workers + 1 {
					if isOK(l.Check(r)) {
						admitted.Add(1)
					}
				}
			})
			passed = append(passed, admission{c.ns.Load(), admitted.Load()})
		}
		for i, first := range passed {
			hits := int64(0)
			for _, last := range passed[i:] {
				hits += last.hits
				span := last.at - first.at
				most := limit + limit*span/int64(duration) // what a bucket admits
				switch a {
				case limits.TokenBucket: // the end of one window, whole ones, the beginning of another
					most = limit * (span/int64(duration) + 2)
				case limits.SlidingWindow:
					most = limit*(span/int64(duration)+2) - 1
				}
				if hits > most {
					t.Fatalf("%d hits in %v, want at most %d", hits, time.Duration(span), most)
				}
			}
		}
		if a == limits.LeakyBucket { // this rush takes all that there is, so the bound is met
			hits, whole := int64(0), int64(limit+limit*(passed[rushes-1].at-passed[0].at)/int64(duration))
			for _, p := range passed {
				hits += p.hits
			}
			if hits != whole {
				t.Errorf("%d hits in all, want %d", hits, whole)
			}
		}
	})
}

// TestTheClockIsReadInOrder lets time pass with each reading. If it were read before the limit is locked, later
// readings would be used before earlier ones, and a clock that seems to step back admits what has leaked a second time.
func TestTheClockIsReadInOrder(t *testing.T) {
	c := newClock()
	start := c.ns.Load()
	l := limits.New(10, func() time.Time { return time.Unix(0, c.ns.Add(1000)) })
	r := minute(limits.LeakyBucket, "key")
	r.Limit, r.Duration, r.Burst = 250_000, 1000, 1 // one hit in four readings
	var admitted atomic.Int64
	together(func(int) {
		for range 5000 {
			if isOK(l.Check(r)) {
				admitted.Add(1)
			}
		}
	})
	span := c.ns.Load() - start
	if n, most := admitted.Load(), 1+r.Limit*span/int64(time.Second); n > most {
		t.Errorf("%d hits in %d ns, want at most %d", n, span, most)
	}
}

// TestSweepsTakeNothingThatIsInUse sweeps as fast as it can while hits are counted.
func TestSweepsTakeNothingThatIsInUse(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		const hits = 3000
		c := newClock()
		l := limits.New(10_000, func() time.Time { return time.Unix(0, c.ns.Add(1000)) })
		done := make(chan struct{})
		var sweeper sync.WaitGroup
		sweeper.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					l.Sweep()
				}
			}
		})
		r := minute(a, "key")
		r.Limit, r.Duration = hits*workers/2, 3_600_000_000
		var admitted atomic.Int64
		together(func(worker int) {
			for i := range hits {
				if isOK(l.Check(r)) {
					admitted.Add(1)
				}
				short := minute(a, fmt.Sprint(worker, i)) // for the sweeps to have something to do
				short.Duration = 1
				l.Check(short)
			}
		})
		close(done)
		sweeper.Wait()
		l.Sweep()
		if n := admitted.Load(); n != r.Limit {
			t.Errorf("%d admitted, want %d", n, r.Limit)
		}
		if s := l.Stats(); s.Expired == 0 {
			t.Errorf("nothing was swept: %+v", s)
		}
	})
}

// TestMixedUse has everybody do everything to a few limits, for the race detector, and for what must hold all the same.
func TestMixedUse(t *testing.T) {
	c := newClock()
	l := limits.New(64, func() time.Time { return time.Unix(0, c.ns.Add(100_000)) })
	together(func(worker int) {
		rate := l.Rate("name", 10, time.Minute, 0)
		for i := range 2000 {
			r := minute(limits.Algorithm((i+worker)%3), fmt.Sprint(i%100))
			r.Hits = int64(i%7) - 2
			r.Limit = int64(i % 11)
			if i%5 == 0 {
				r.Behavior = limits.DrainOverLimit
			}
			if i%50 == 0 {
				r.Behavior = limits.ResetRemaining
			}
			if i%3 == 0 && r.Algorithm != limits.SlidingWindow {
				r.Behavior |= limits.DurationIsGregorian
				r.Duration, r.TimeZone = int64(i%6), []string{"", "Europe/Berlin", "No/Where"}[i%9/3]
			}
			got := l.Check(r)
			if got.Status != limits.StatusError && (got.Remaining < 0 || got.Remaining > r.Limit) {
				t.Errorf("%+v: %+v", r, got)
			}
			rate.AllowN(fmt.Sprint(i%100), int64(i%3))
			if i%200 == 0 {
				l.Sweep()
			}
			if n := l.Stats().Entries; n > 64 {
				t.Errorf("%d entries", n)
			}
		}
	})
}
