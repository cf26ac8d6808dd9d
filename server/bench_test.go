package server_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"weir/server"
	member "weir/server/node"
)

// A sink is a ResponseWriter that costs nothing.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(int)             {}

// BenchmarkHandler measures a request without the network and net/http around it, beside the floor: a chi handler that
// reads the body and writes an answer of the same size.
func BenchmarkHandler(b *testing.B) {
	for _, items := range []int{1, 100, 1000} {
		var list []string
		for i := range items {
			list = append(list, fmt.Sprintf(`{"name":"bench","unique_key":"tenant-7f3a9c04:user-session-id%09d","hits":1,`+
				`"limit":1000000000,"duration":3600000,"algorithm":"TOKEN_BUCKET","behavior":"BATCHING"}`, i))
		}
		body := []byte(`{"rate_limits":[` + strings.Join(list, ",") + `]}`)
		floor := chi.NewRouter()
		floor.Post("/v1/check", func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Write(body[:130*items])
		})
		node := alone(b, member.Options{Advertise: "10.0.0.3:8080", CacheSize: 100_000})
		weir := server.New(server.Options{Node: node, Log: zerolog.Nop()})
		for name, handler := range map[string]http.Handler{"floor": floor, "weir": weir.Handler()} {
			b.Run(fmt.Sprintf("%s/%d", name, items), func(b *testing.B) {
				reader := bytes.NewReader(body)
				r, err := http.NewRequest(http.MethodPost, "/v1/check", io.NopCloser(reader))
				if err != nil {
					b.Fatal(err)
				}
				w := &sink{http.Header{}}
				b.ReportAllocs()
				for b.Loop() {
					reader.Seek(0, io.SeekStart)
					handler.ServeHTTP(w, r)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*items), "ns/item")
			})
		}
	}
}
