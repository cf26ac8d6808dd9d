package global

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"weir/limits"
)

// BenchmarkHandOver hands many limits over to another node, without a network or JSON.
func BenchmarkHandOver(b *testing.B) {
	const states = 100_000
	elapsed := time.Duration(0)
	for b.Loop() {
		b.StopTimer()
		w := newWorld(&testing.T{}, 2)
		w.moving, w.size = true, 2*states
		from, to := w.nodes[0], w.nodes[1]
		from.restart()
		to.restart()
		r := limits.Request{Name: "requests_per_second", Hits: 1, Limit: 10, Duration: 3_600_000}
		w.place[""] = from.name
		for range states {
			r.UniqueKey = fmt.Sprintf("account=%016x|source=10.1.2.3", rand.Uint64())
			from.limiter.Check(r)
		}
		w.place[""] = to.name
		b.StartTimer()
		start := time.Now()
		from.mustSync()
		elapsed += time.Since(start)
		if n := to.limiter.Stats().Entries; n != states {
			b.Fatal(n)
		}
	}
	b.ReportMetric(float64(elapsed.Nanoseconds())/float64(b.N)/states, "ns/state")
}
