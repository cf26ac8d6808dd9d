package limits_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"weir/limits"
)

// A clock stands still until it is told otherwise.
type clock struct{ ns atomic.Int64 }

// newClock makes a clock that shows Thursday, 2026-01-01 12:00 UTC.
func newClock() *clock {
	c := &clock{}
	c.ns.Store(1_767_268_800_000_000_000)
	return c
}

func (c *clock) now() time.Time      { return time.Unix(0, c.ns.Load()) }
func (c *clock) add(d time.Duration) { c.ns.Add(int64(d)) }

func eachAlgorithm(t *testing.T, test func(t *testing.T, a limits.Algorithm)) {
	t.Helper()
	for a := limits.TokenBucket; a <= limits.SlidingWindow; a++ {
		t.Run(a.String(), func(t *testing.T) { test(t, a) })
	}
}

// seeds runs a test with many random sequences. The name of a failure tells how to repeat it.
func seeds(t *testing.T, n uint64, test func(t *testing.T, random *rand.Rand)) {
	t.Helper()
	for seed := range n {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

// minute makes a request for one hit of 10 a minute.
func minute(a limits.Algorithm, key string) limits.Request {
	return limits.Request{Name: "name", UniqueKey: key, Hits: 1, Limit: 10, Duration: 60_000, Algorithm: a}
}

func isOK(r limits.Result) bool   { return r.Status == limits.StatusOK }
func isOver(r limits.Result) bool { return r.Status == limits.StatusOverLimit }
