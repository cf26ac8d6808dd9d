package limits

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"weir/limits/bucket"
)

// benchRequest is a check of an everyday limit, with a key of 40 bytes.
func benchRequest(a Algorithm, key string) Request {
	return Request{Name: "requests", UniqueKey: key, Hits: 1, Limit: 1e9, Duration: 3_600_000, Algorithm: a}
}

// benchKeys makes n keys in a random order, each in memory of its own. With another seed they are the same keys in
// another order, as if read from other messages.
func benchKeys(n int, seed uint64) []string {
	keys := make([]string, n)
	for i, k := range rand.New(rand.NewPCG(seed, 0)).Perm(n) {
		keys[i] = fmt.Sprintf("tenant-7f3a9c04:user-session-id%09d", k)
	}
	return keys
}

// BenchmarkFloor does what no check can do without: a bare LRU, found and put back under one lock, and the time.
func BenchmarkFloor(b *testing.B) {
	for name, n := range map[string]int{"one key": 1, "million keys": million} {
		b.Run(name, func(b *testing.B) {
			var mu sync.Mutex
			lru, err := simplelru.NewLRU[string, *bucket.State](n, nil)
			if err != nil {
				b.Fatal(err)
			}
			for _, key := range benchKeys(n, 1) {
				lru.Add(key, new(bucket.State))
			}
			keys := benchKeys(n, 2)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				mu.Lock()
				state, _ := lru.Get(keys[i%n])
				*state = state.Shift(time.Duration(time.Now().UnixNano()))
				lru.Add(keys[i%n], state)
				mu.Unlock()
				i++
			}
		})
	}
}

func BenchmarkCheckOneKey(b *testing.B) {
	for a := range SlidingWindow + 1 {
		b.Run(a.String(), func(b *testing.B) {
			l := New(1000, time.Now)
			r := benchRequest(a, benchKeys(1, 1)[0])
			l.Check(r)
			b.ReportAllocs()
			for b.Loop() {
				l.Check(r)
			}
		})
	}
}

func BenchmarkCheckOneKeyParallel(b *testing.B) {
	l := New(1000, time.Now)
	r := benchRequest(TokenBucket, benchKeys(1, 1)[0])
	l.Check(r)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Check(r)
		}
	})
}

const million = 1 << 20

// filled makes a Limiter that holds a state for each key.
func filled(keys []string) *Limiter {
	l := New(2*len(keys), time.Now)
	for _, key := range keys {
		l.Check(benchRequest(TokenBucket, key))
	}
	return l
}

func BenchmarkCheckMillionKeys(b *testing.B) {
	l := filled(benchKeys(million, 1))
	keys := benchKeys(million, 2)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		l.Check(benchRequest(TokenBucket, keys[i%million]))
		i++
	}
}

func BenchmarkCheckMillionKeysParallel(b *testing.B) {
	l := filled(benchKeys(million, 1))
	keys := benchKeys(million, 2)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := rand.IntN(million); pb.Next(); i++ {
			l.Check(benchRequest(TokenBucket, keys[i%million]))
		}
	})
}

// BenchmarkMemory reports the heap that one live key takes, its own bytes included.
func BenchmarkMemory(b *testing.B) {
	keys := benchKeys(million, 1)
	for b.Loop() {
		before := heap()
		l := filled(keys)
		b.ReportMetric(float64(heap()-before)/million, "heap-B/key")
		if n := l.Stats().Entries; n != million {
			b.Fatalf("%d entries, want %d", n, million)
		}
	}
	b.ReportMetric(0, "ns/op")
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkSweep sweeps a million limits of which none has run out: where that is known of all but a few, and, as after
// the clock has been set, where it is known of none.
func BenchmarkSweep(b *testing.B) {
	l := filled(benchKeys(million, 1))
	l.Sweep()
	for name, due := range map[string]int64{"few may": time.Now().UnixNano(), "all may": 0} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				for i := range l.shards {
					l.shards[i].due = due
				}
				l.Sweep()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(len(l.shards)), "lock-µs/shard")
		})
	}
}
