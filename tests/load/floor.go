//go:build linux

package main

import (
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/VictoriaMetrics/metrics"
	"github.com/go-chi/chi/v5"
)

// serveFloor serves what no JSON service on this stack can be cheaper than: a chi handler that reads the body and writes
// a fixed answer of the size that weir's has. It says when it is ready, and what it uses, in the same way as weir.
func serveFloor(addr string, batch int) error {
	const one = `{"status":"OK","limit":1000000000,"remaining":999999999,"reset_time":1796000000000,"metadata":{"owner":"127.0.0.1:8080"}}`
	answer := []byte(`{"rate_limits":[` + strings.Repeat(one+",", batch-1) + one + "]}\n")
	length := strconv.Itoa(len(answer))
	r := chi.NewRouter()
	r.Post("/v1/check", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", length)
		w.Write(answer)
	})
	r.Get("/readyz", func(http.ResponseWriter, *http.Request) {})
	r.Get("/metrics", func(w http.ResponseWriter, _ *http.Request) { metrics.WriteProcessMetrics(w) })
	return http.ListenAndServe(addr, r)
}
