package peers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"weir/limits"
	"weir/limits/wire"
)

// BenchmarkCheck asks a peer over the loopback for groups of items: a whole request from node to node, of both sides,
// but for the decisions.
func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(n, " items"), func(b *testing.B) {
			answer := wire.AppendResults(nil, make([]limits.Result, n))
			peer := startPeer(b, func(w http.ResponseWriter, r *http.Request) {
				body := make([]byte, r.ContentLength)
				io.ReadFull(r.Body, body)
				if items, err := wire.ReadPeerRequests(nil, body); err != nil || len(items) != n {
					b.Error(len(items), err)
				}
				w.Write(answer)
			})
			p, items := know(b, peer, Options{Timeout: time.Minute}), group(n)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Check(context.Background(), items, true); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/item")
		})
	}
}
