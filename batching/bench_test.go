package batching

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// item is about as large as a request for one limit.
type item struct {
	name, key string
	_         [8]int64
}

// instant returns a Batcher with the options of the service whose batches land at once, and their count.
func instant() (*Batcher[item, int64], *atomic.Int64) {
	var batches atomic.Int64
	o := Options{Window: 500 * time.Microsecond, Items: 1000, Bytes: 512 << 10, Flights: 4, Waiting: 10_000}
	return New(o, func(i item) int { return 100 + len(i.name) + len(i.key) }, func(items []item) ([]int64, error) {
		batches.Add(1)
		return make([]int64, len(items)), nil
	}), &batches
}

func BenchmarkLone(b *testing.B) {
	batcher, _ := instant()
	group := []item{{name: "per second", key: "user"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := batcher.Do(b.Context(), group); err != nil {
			b.Fatal(err)
		}
	}
}

func Benchmark64Callers(b *testing.B) {
	batcher, batches := instant()
	b.ReportAllocs()
	b.SetParallelism((64 + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	b.RunParallel(func(p *testing.PB) {
		group := []item{{name: "per second", key: "user"}}
		for p.Next() {
			if _, err := batcher.Do(b.Context(), group); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/float64(batches.Load()), "items/batch")
}
