// Package tests drives whole nodes over real sockets, with a clock under the test's control.
package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"weir/limits"
	"weir/server"
)

// A clock stands still until it is set. It is safe for concurrent use.
type clock struct {
	mu  sync.Mutex
	now time.Time // guarded by mu
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t
}

// A node is one weir on a port of its own.
type node struct {
	clock *clock
	url   string
}

// startNode starts a node that lives as long as the test.
func startNode(t *testing.T, size int) *node {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{now: time.UnixMilli(1_700_000_000_000)}
	srv := server.New(server.Options{Limiter: limits.New(size, c.Now), Owner: ln.Addr().String()})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := srv.Shutdown(context.Background()); err != nil {
			t.Error("shutdown:", err)
		}
		if err := <-done; err != nil {
			t.Error("serve:", err)
		}
	})
	return &node{clock: c, url: "http://" + ln.Addr().String()}
}

// post sends a body to /v1/check and gives the answer's status and body.
func (n *node) post(t *testing.T, body []byte) (int, []byte) {
	t.Helper()
	resp, err := http.Post(n.url+"/v1/check", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// A result is an item of the answer, as a caller sees it. Pointers tell what is absent.
type result struct {
	Status     string
	Limit      *int64
	Remaining  *int64
	ResetTime  *int64 `json:"reset_time"`
	RetryAfter *int64 `json:"retry_after"`
	Error      string
	Metadata   map[string]string
}

// check sends items, each a JSON object, and gives their results.
func (n *node) check(t *testing.T, items ...json.RawMessage) []result {
	t.Helper()
	body, err := json.Marshal(map[string]any{"rate_limits": items})
	if err != nil {
		t.Fatal(err)
	}
	status, answer := n.post(t, body)
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, answer)
	}
	var message struct {
		RateLimits []result `json:"rate_limits"`
	}
	if err := json.Unmarshal(answer, &message); err != nil {
		t.Fatalf("%v in %s", err, answer)
	}
	if len(message.RateLimits) != len(items) {
		t.Fatalf("%d results for %d items", len(message.RateLimits), len(items))
	}
	return message.RateLimits
}
