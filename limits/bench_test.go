package limits

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// benchRequest is a check of an everyday limit, with a key of 40 bytes.
func benchRequest(a Algorithm, key string) Request {
	return Request{Name: "requests", UniqueKey: key, Hits: 1, Limit: 1e9, Duration: 3_600_000, Algorithm: a}
}

// benchKeys makes n keys in a random order, each in memory of its own. With another seed they are the same keys in another
// order, as if read from other messages.
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
			lru, err := simplelru.NewLRU[string, *State](n, nil)
			if err != nil {
				b.Fatal(err)
			}
			for _, key := range benchKeys(n, 1) {
				lru.Add(key, new(State))
			}
			keys := benchKeys(n, 2)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				mu.Lock()
				state, _ := lru.Get(keys[i%n])
				state.stamp = time.Now().UnixNano()
				lru.Add(keys[i%n], state)
				mu.Unlock()
				i++
			}
		})
	}
}

func BenchmarkCheckOneKey(b *testing.B) {
	for a := range Algorithm(algorithms) {
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

// BenchmarkSweep sweeps a million limits of which none has run out: where that is known of all but a few, and, as after the
// clock has been set, where it is known of none.
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

// BenchmarkReadRequests reads messages of 1,000 everyday checks, in the plain form and in one that only the strict
// reader knows.
func BenchmarkReadRequests(b *testing.B) {
	var requests []Request
	for _, key := range benchKeys(MaxItems, 1) {
		requests = append(requests, benchRequest(LeakyBucket, key))
	}
	plain := AppendRequests(nil, requests)
	escaped := bytes.Replace(plain, []byte("name"), []byte(`n\u0061me`), 1)
	for name, message := range map[string][]byte{"plain": plain, "escaped": escaped} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if requests, err = ReadRequests(requests[:0], message); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/MaxItems, "ns/item")
		})
	}
}

func BenchmarkAppendResults(b *testing.B) {
	results := slices.Repeat([]Result{{Status: StatusOK, Limit: 1e9, Remaining: 1e9 - 1, ResetTime: 1_796_000_000_000,
		Metadata: Metadata{Owner: "10.0.0.3:8080"}}}, MaxItems)
	var message []byte
	b.ReportAllocs()
	for b.Loop() {
		message = AppendResults(message[:0], results)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/MaxItems, "ns/item")
}

// BenchmarkReport writes and reads a report of 1,000 states that move, as the two nodes do.
func BenchmarkReport(b *testing.B) {
	report := Report{Start: 1, Seq: 1}
	for i := range MaxItems {
		var n Named
		n.Name, n.UniqueKey = "requests_per_second", fmt.Sprintf("account=%08d|source=10.1.2.3", i)
		n.Take = int64(i + 1)
		n.Snapshot = Snapshot{Start: 1 << 60, Now: 1 << 60, Limit: 1000, Duration: 3_600_000_000_000, Age: 1_000_000_000, Used: 500}
		report.States = append(report.States, n)
	}
	text, err := AppendMessage(nil, &report)
	if err != nil {
		b.Fatal(err)
	}
	perState := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*MaxItems), "ns/state")
	}
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			if text, err = AppendMessage(text[:0], &report); err != nil {
				b.Fatal(err)
			}
		}
		perState(b)
		b.ReportMetric(float64(len(text))/MaxItems, "B/state")
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			var got Report
			if err := Unmarshal(text, &got); err != nil || len(got.States) != MaxItems {
				b.Fatal(err)
			}
		}
		perState(b)
	})
}
