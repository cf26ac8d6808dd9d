//go:build linux

package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/VictoriaMetrics/metrics"
	"github.com/go-chi/chi/v5"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// serveFloor serves what no JSON service on this stack can be cheaper than: a chi handler that reads the body and
// writes a fixed answer of the size that weir's has. With keys it also remembers as many, and looks one of them up for
// each item. It says when it is ready, and what it uses, in the same way as weir.
func serveFloor(addr string, batch, keys int) error {
	const one = `{"status":"OK","limit":1000000000,"remaining":999999999,"reset_time":1796000000000,"metadata":{"owner":"127.0.0.1:8080"}}`
	answer := []byte(`{"rate_limits":[` + strings.Repeat(one+",", batch-1) + one + "]}\n")
	length := strconv.Itoa(len(answer))
	known := remember(keys)
	r := chi.NewRouter()
	r.Post("/v1/check", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for range min(batch, keys) {
			known.use(rand.IntN(keys))
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", length)
		w.Write(answer)
	})
	r.Get("/readyz", func(http.ResponseWriter, *http.Request) {})
	r.Get("/metrics", func(w http.ResponseWriter, _ *http.Request) { metrics.WriteProcessMetrics(w) })
	return http.ListenAndServe(addr, r)
}

// memory is what a service that knows many keys can't do without: a bare LRU in parts, each under a lock.
type memory []struct {
	sync.Mutex
	lru *simplelru.LRU[string, *[64]byte]
}

func remember(keys int) memory {
	m := make(memory, 1+keys/1000)
	for i := range m {
		m[i].lru, _ = simplelru.NewLRU[string, *[64]byte](1000, nil)
	}
	for i := range keys {
		m[i%len(m)].lru.Add(keyOf(i), new([64]byte))
	}
	return m
}

// use finds a key and writes to what is known of it.
func (m memory) use(i int) {
	part := &m[i%len(m)]
	part.Lock()
	defer part.Unlock()
	if state, ok := part.lru.Get(keyOf(i)); ok {
		state[0]++
	}
}

// keyOf makes a key of 40 bytes.
func keyOf(i int) string { return fmt.Sprintf("%040d", i) }
