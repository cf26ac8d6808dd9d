// Package tests drives whole nodes over real sockets, with a clock under the test's control.
package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/global"
	"weir/limits"
	"weir/peers"
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
	clock  *clock
	url    string
	name   string         // host:port, its name in the cluster
	peers  *peers.Set     // nil on a single node
	global *global.Syncer // the same
	stop   func()         // ends it; not twice
	server *server.Server
	client *http.Client // of the test
}

// startNode starts a single node that lives as long as the test.
func startNode(t *testing.T, size int) *node {
	t.Helper()
	ln := listen(t)
	c := &clock{now: time.UnixMilli(1_700_000_000_000)}
	return serve(t, ln, &node{clock: c}, server.Options{Limiter: limits.New(size, c.Now), Owner: ln.Addr().String()})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// serve makes n answer on ln until it is stopped, or the test ends.
func serve(t *testing.T, ln net.Listener, n *node, o server.Options) *node {
	t.Helper()
	n.name, n.url, n.peers, n.global, n.client = ln.Addr().String(), "http://"+ln.Addr().String(), o.Peers, o.Global, http.DefaultClient
	if o.TLS != nil {
		n.url = "https://" + n.name
	}
	n.server = server.New(o)
	done := make(chan error, 1)
	go func() { done <- n.server.Serve(ln) }()
	n.stop = sync.OnceFunc(func() {
		n.client.CloseIdleConnections()
		if n.peers != nil {
			n.peers.Close()
		}
		if err := n.server.Shutdown(context.Background()); err != nil {
			t.Error("shutdown:", err)
		}
		if err := <-done; err != nil {
			t.Error("serve:", err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

// post sends a body to /v1/check and gives the answer's status and body.
func (n *node) post(t *testing.T, body []byte) (int, []byte) {
	t.Helper()
	resp, err := n.client.Post(n.url+"/v1/check", "application/json", bytes.NewReader(body))
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

// metrics gives a node's metrics by their names with labels.
func metrics(t *testing.T, n *node) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for line := range strings.Lines(string(n.get(t, "/metrics", http.StatusOK))) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			var err error
			if values[line[:i]], err = strconv.ParseFloat(strings.TrimSpace(line[i:]), 64); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
		}
	}
	return values
}

// get gives the body of an answer that must have that status.
func (n *node) get(t *testing.T, path string, status int) []byte {
	t.Helper()
	resp, err := n.client.Get(n.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != status {
		t.Fatalf("%s: status %d, want %d: %s", path, resp.StatusCode, status, body)
	}
	return body
}
