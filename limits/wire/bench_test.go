package wire

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"weir/limits/bucket"
)

// BenchmarkReadRequests reads messages of 1,000 everyday checks, and the same with an escape in each key.
func BenchmarkReadRequests(b *testing.B) {
	var requests []bucket.Request
	for i := range MaxItems {
		requests = append(requests, bucket.Request{Name: "requests",
			UniqueKey: fmt.Sprintf("tenant-7f3a9c04:user-session-id%09d", i),
			Hits:      1, Limit: 1e9, Duration: 3_600_000, Algorithm: bucket.LeakyBucket})
	}
	plain := AppendRequests(nil, requests)
	escaped := bytes.ReplaceAll(plain, []byte("tenant"), []byte(`t\u0065nant`))
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
	results := slices.Repeat([]bucket.Result{{Status: bucket.StatusOK, Limit: 1e9, Remaining: 1e9 - 1,
		ResetTime: 1_796_000_000_000,
		Metadata:  bucket.Metadata{Owner: "10.0.0.3:8080"}}}, MaxItems)
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
		var n KeyedState
		n.Name, n.UniqueKey = "requests_per_second", fmt.Sprintf("account=%08d|source=10.1.2.3", i)
		n.Take = int64(i + 1)
		n.Snapshot = bucket.Snapshot{Start: 1 << 60, Now: 1 << 60, Limit: 1000, Duration: 3_600_000_000_000,
			Age: 1_000_000_000, Used: 500}
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
