package global

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"weir/limits"
	"weir/limits/bucket"
)

// benchKey is a key of 40 bytes.
func benchKey() string { return fmt.Sprintf("account=%016x|source=10.1.2.3", rand.Uint64()) }

// BenchmarkCheck answers from a copy, again and again: within the allowance, and when the limit is exhausted.
func BenchmarkCheck(b *testing.B) {
	const limit = 1_000_000_000
	for _, test := range []struct {
		what string
		used int64
	}{{"taken", 1}, {"refused", limit}} {
		b.Run(test.what, func(b *testing.B) {
			w := newWorld(&testing.T{}, 2)
			w.slack = 1
			w.nodes[1].restart()
			owner, n := w.nodes[0], w.nodes[1]
			r := limits.Request{Name: "requests", UniqueKey: benchKey(), Hits: test.used, Limit: limit, Duration: 3_600_000,
				Behavior: bucket.Global}
			w.place[r.UniqueKey] = owner.name
			n.check(r) // asks, and has a copy then
			r.Hits = 1
			q := queryOf(&r)
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := n.sync.Check(q, owner.name, false); !ok {
					b.Fatal("there is no copy")
				}
			}
		})
	}
}

// BenchmarkMemory returns the heap that a copy with hits owed takes.
func BenchmarkMemory(b *testing.B) {
	const copies = 100_000
	for b.Loop() {
		w := newWorld(&testing.T{}, 2)
		w.size, w.slack = 2*copies, 1
		w.place[""] = w.nodes[0].name
		n := w.nodes[1]
		n.restart()
		keys := make([]string, copies)
		for i := range keys {
			keys[i] = benchKey()
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		r := limits.Request{Name: "requests", Hits: 1, Limit: 1_000_000, Duration: 3_600_000, Behavior: bucket.Global}
		var q bucket.Query
		for _, key := range keys {
			r.UniqueKey = key
			if err := q.Prepare(&r, zones); err != nil {
				b.Fatal(err)
			}
			told := &bucket.Snapshot{Start: 1, Version: 1, Now: n.time().UnixNano(), Limit: 1_000_000,
				Duration: 3_600_000_000_000, Used: 1}
			n.sync.Learn(&q, w.nodes[0].name, told)
			n.sync.Check(&q, w.nodes[0].name, false)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if n.sync.Pending() != copies {
			b.Fatal(n.sync.Pending())
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/copies, "heap-B/copy")
		runtime.KeepAlive(w)
	}
}

// BenchmarkHandOver hands many limits over to another node, without a network.
func BenchmarkHandOver(b *testing.B) {
	const states = 100_000
	elapsed := time.Duration(0)
	for b.Loop() {
		w := newWorld(&testing.T{}, 2)
		w.moving, w.size = true, 2*states
		from, to := w.nodes[0], w.nodes[1]
		from.restart()
		to.restart()
		r := limits.Request{Name: "requests", Hits: 1, Limit: 10, Duration: 3_600_000}
		w.place[""] = from.name
		for range states {
			r.UniqueKey = benchKey()
			from.limiter.Check(r)
		}
		w.place[""] = to.name
		start := time.Now()
		from.mustSync()
		elapsed += time.Since(start)
		if n := to.limiter.Stats().Entries; n != states {
			b.Fatal(n)
		}
	}
	b.ReportMetric(float64(elapsed.Nanoseconds())/float64(b.N)/states, "ns/state")
}
