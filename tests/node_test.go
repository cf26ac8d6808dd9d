// Package tests drives whole nodes over real sockets, with a clock under the test's control.
package tests

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/global"
	"weir/peers"
	"weir/server"
	member "weir/server/node"
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
	name   string // host:port, its name in the cluster
	member *member.Node
	peers  *peers.Set     // nil on a single node
	global *global.Syncer // the same
	stop   func()         // ends it as the program does; not twice
	server *server.Server
	client *http.Client // of the test
}

// startNode starts a single node that lives as long as the test.
func startNode(t *testing.T, size int) *node {
	t.Helper()
	c := &clock{now: time.UnixMilli(1_700_000_000_000)}
	n := serve(t, listen(t), member.Options{CacheSize: size, Now: c.Now}, server.Options{})
	n.clock = c
	return n
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// newNode makes a node that listens nowhere yet, of the parts that the program is made of.
func newNode(t *testing.T, name string, m member.Options, s server.Options) *node {
	t.Helper()
	made, err := member.New(m)
	if err != nil {
		t.Fatal(err)
	}
	s.Node = made
	n := &node{
		name: name, url: "http://" + name, member: made, peers: made.Peers(), global: made.Global(),
		server: server.New(s), client: http.DefaultClient,
	}
	if s.TLS != nil {
		n.url = "https://" + name
	}
	return n
}

// serve makes a node that answers on ln until it is stopped, or killed when the test ends.
func serve(t *testing.T, ln net.Listener, m member.Options, s server.Options) *node {
	t.Helper()
	m.Listen = netip.MustParseAddrPort(ln.Addr().String())
	n := newNode(t, m.Listen.String(), m, s)
	done := make(chan error, 1)
	go func() { done <- n.server.Serve(ln) }()
	n.stop = sync.OnceFunc(func() {
		n.client.CloseIdleConnections()
		if err := n.server.Stop(0, time.Minute, nil); err != nil {
			t.Error("stop:", err)
		}
		if err := <-done; err != nil {
			t.Error("serve:", err)
		}
	})
	t.Cleanup(n.kill)
	return n
}

// kill ends a node that tells no other one, and hands over nothing.
func (n *node) kill() {
	n.member.Close()
	n.stop()
}

// post sends a body to /v1/check and returns the answer's status and body.
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

// check sends items, each a JSON object, and returns their results.
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

// metrics returns a node's metrics by their names with labels.
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

// get returns the body of an answer that must have that status.
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
