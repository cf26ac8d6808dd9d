package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/limits"
	"weir/limits/wire"
	"weir/server"
	member "weir/server/node"
)

// An air is a network without sockets: a request goes straight to the handler of the node that it is for. It is safe
// for concurrent use.
type air struct{ nodes sync.Map }

func (a *air) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	body := io.Reader(http.NoBody)
	if r.Body != nil {
		body = r.Body
	}
	in := httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.RequestURI(), body)
	in.Header = r.Header.Clone()
	out := httptest.NewRecorder()
	there, _ := a.nodes.Load(r.URL.Host)
	there.(*node).server.Handler().ServeHTTP(out, in)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return out.Result(), nil
}

// startAir starts a cluster without sockets, of nodes a:1, b:1 and so on. It is for bubbles, whose time it has: there
// an outage of seconds costs none, and lengths of time are exact.
func startAir(t *testing.T, n int, settings ...setting) *cluster {
	t.Helper()
	c := &cluster{}
	c.startAir(t, n, settings...)
	return c
}

func (c *cluster) startAir(t *testing.T, n int, settings ...setting) {
	t.Helper()
	c.wires, c.air = newWires(), new(air)
	for i := range n {
		c.nodes = append(c.nodes, c.newInAir(t, i, settings...))
	}
	c.tellAll()
	c.settle(t)
	t.Cleanup(func() { <-time.After(2 * time.Hour) }) // abandoned calls end by themselves
	c.letGo(t)
}

// newInAir makes the node at a place in the list, which takes over its name.
func (c *cluster) newInAir(t *testing.T, i int, settings ...setting) *node {
	t.Helper()
	name := string('a'+rune(i)) + ":1"
	m, s := c.options(i, name, settings)
	n := newNode(t, name, m, s)
	n.client = &http.Client{Transport: c.air}
	c.air.nodes.Store(name, n)
	return n
}

// The words that metadata.degraded may hold.
var degradedWords = []string{
	"owner_unreachable", "owner_busy", "owner_down", "owner_timeout", "owner_broken", "owner_refused",
	"owner_out", "owner_silent", "not_ready",
}

// by sets the policy of all nodes.
func by(policy member.Policy) setting {
	return func(_ int, m *member.Options, _ *server.Options) { m.Policy = policy }
}

var policies = []member.Policy{member.PolicyLocal, member.PolicyOpen, member.PolicyClosed}

// byPolicy is the exact answer of n to a hit that no node could count: by a policy, in a bubble, and for a fresh limit.
func byPolicy(policy member.Policy, n *node, degraded string) string {
	at := func(d time.Duration) *int64 {
		ms := time.Now().Add(d).UnixMilli()
		return &ms
	}
	r := result{Status: "OK", Limit: new(int64(10)), Metadata: map[string]string{"degraded": degraded}}
	switch policy {
	case member.PolicyLocal:
		r.Metadata["owner"] = n.name
		r.Remaining, r.ResetTime = new(int64(9)), at(time.Minute)
	case member.PolicyOpen:
		r.Remaining, r.ResetTime = new(int64(10)), at(time.Millisecond)
	case member.PolicyClosed:
		r.Status, r.Remaining, r.ResetTime, r.RetryAfter = "OVER_LIMIT", new(int64(0)), at(301*time.Millisecond),
			new(int64(300))
	}
	return describe(r)
}

// TestSixtyItems sends 60 items over three nodes, one of which is bad in some way. Those of the others are answered as
// ever; its own by the policy, to the letter, and with the reason; and no wait is longer than one timeout.
func TestSixtyItems(t *testing.T) {
	for _, bad := range []struct {
		name     string
		state    wireState
		degraded string
		takes    time.Duration
	}{
		{"frozen", slow, "owner_timeout", 500 * time.Millisecond},
		{"silent", silent, "owner_timeout", 500 * time.Millisecond},
		{"garbled", garbled, "owner_broken", 0},
		{"failing", failing, "owner_broken", 0},
		{"refusing", refusing, "owner_refused", 0},
	} {
		for _, policy := range policies {
			t.Run(fmt.Sprint(bad.name, " ", policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := startAir(t, 3, by(policy))
					c.isolate(c.nodes[1], bad.state)
					keys, owners := c.mixedKeys(20)
					start := time.Now()
					results := c.nodes[0].checkKeys(t, keys)
					if took := time.Since(start); took != bad.takes {
						t.Errorf("it took %v, want %v", took, bad.takes)
					}
					for i, r := range results {
						if owners[i] == c.nodes[1] {
							if got, want := describe(r), byPolicy(policy, c.nodes[0], bad.degraded); got != want {
								t.Errorf("item %d\ngot  %swant %s", i, got, want)
							}
						} else if r.Status != "OK" || *r.Remaining != 9 ||
							fmt.Sprint(r.Metadata) != fmt.Sprintf("map[owner:%s]", owners[i].name) {
							t.Errorf("item %d, of %s: %s", i, owners[i].name, describe(r))
						}
					}
				})
			})
		}
	}
}

// mixedKeys returns some keys of each node, mixed, and their owners.
func (c *cluster) mixedKeys(each int) (keys []string, owners []*node) {
	var of [][]string
	for _, n := range c.nodes {
		of = append(of, c.keysOf(n, each))
	}
	for i := range each {
		for j, n := range c.nodes {
			keys, owners = append(keys, of[j][i]), append(owners, n)
		}
	}
	return keys, owners
}

// checkKeys hits each key once, in one request.
func (n *node) checkKeys(t *testing.T, keys []string, members ...any) []result {
	t.Helper()
	items := make([]json.RawMessage, len(keys))
	for i, key := range keys {
		items[i] = item(key, members...)
	}
	return n.check(t, items...)
}

// TestSixtyItemsWithAStranger sends 60 items over sockets, where the third of the list is no node at all.
func TestSixtyItemsWithAStranger(t *testing.T) {
	for _, stranger := range []struct {
		name     string
		talk     func(net.Conn)
		degraded []string
	}{
		{"no listener", nil, []string{"owner_unreachable"}},
		{"silent", func(c net.Conn) { io.Copy(io.Discard, c) }, []string{"owner_timeout"}},
		{"closes at once", func(net.Conn) {}, []string{"owner_broken", "owner_unreachable"}},
		{"garbage", func(c net.Conn) {
			io.WriteString(c, strings.Repeat("\x00\xffgarbage\r\n", 100))
			io.Copy(io.Discard, c)
		}, []string{"owner_broken"}},
	} {
		t.Run(stranger.name, func(t *testing.T) {
			c := startCluster(t, 2, func(_ int, m *member.Options, _ *server.Options) {
				m.Cluster.Timeout = 2 * time.Second
			})
			ln := listen(t)
			c.nodes = append(c.nodes, &node{name: ln.Addr().String()})
			list := c.members()
			for _, n := range c.nodes[:2] {
				n.peers.Update(n.name, list)
			}
			keys, owners := c.mixedKeys(20)
			c.nodes = c.nodes[:2]
			if stranger.talk == nil {
				ln.Close()
			}
			var talking sync.WaitGroup
			talking.Go(func() {
				for {
					conn, err := ln.Accept()
					if err != nil {
						return
					}
					talking.Go(func() {
						defer conn.Close()
						stranger.talk(conn)
					})
				}
			})
			for i, r := range c.nodes[0].checkKeys(t, keys) {
				switch {
				case r.Status != "OK" || *r.Remaining != 9:
					t.Errorf("item %d: %s", i, describe(r))
				case owners[i].peers != nil && fmt.Sprint(r.Metadata) != fmt.Sprintf("map[owner:%s]", owners[i].name):
					t.Errorf("item %d, of %s: %s", i, owners[i].name, describe(r))
				case owners[i].peers == nil && (!slices.Contains(stranger.degraded, r.Metadata["degraded"]) ||
					r.Metadata["owner"] != c.nodes[0].name && r.Metadata["owner"] != c.nodes[1].name):
					t.Errorf("item %d, of the stranger: %s", i, describe(r))
				}
			}
			for _, n := range c.nodes {
				n.peers.Close()
			}
			ln.Close()
			talking.Wait()
		})
	}
}

// TestLocalCountsTheLimitOnce has two nodes count for a third by themselves: each lets through what the limit allows,
// and no more.
func TestLocalCountsTheLimitOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		c.isolate(c.nodes[2], silent)
		key := c.keysOf(c.nodes[2], 1)[0]
		for _, n := range c.nodes[:2] {
			for hit := range 15 {
				r := n.check(t, item(key))[0]
				want := max(0, 9-int64(hit))
				if *r.Remaining != want || (r.Status == "OK") != (hit < 10) || r.Metadata["owner"] != n.name ||
					r.Metadata["degraded"] != "owner_timeout" && r.Metadata["degraded"] != "owner_down" {
					t.Errorf("hit %d at %s: %s", hit, n.name, describe(r))
				}
			}
		}
	})
}

// TestOutage follows a limit through an outage of its owner, as two other nodes see it: the first calls pay for the
// silence, then each node counts by itself, then one of them for both, and in the end the owner again.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		a, b, bad := c.nodes[0], c.nodes[1], c.nodes[2]
		key := c.keysOf(bad, 1)[0]
		others := append(c.keysOf(a, 5), c.keysOf(b, 5)...)
		ask := func(n *node) (result, time.Duration) {
			start := time.Now()
			r := n.check(t, item(key, "limit", 1000))[0]
			synctest.Wait() // until it is noted how the call went, which the caller doesn't wait for
			if r.Status != "OK" {
				t.Fatal(describe(r))
			}
			for i, r := range n.checkKeys(t, others) {
				if want := c.nodes[i/5].name; r.Metadata["owner"] != want || r.Metadata["degraded"] != "" {
					t.Fatalf("a limit of %s: %s", want, describe(r))
				}
			}
			return r, time.Since(start)
		}
		if r, _ := ask(a); *r.Remaining != 999 {
			t.Fatal(describe(r))
		}
		c.isolate(bad, slow)
		began := time.Now()
		for _, n := range []*node{a, b} {
			for i := range 3 {
				r, took := ask(n)
				if r.Metadata["degraded"] != "owner_timeout" || took != 500*time.Millisecond || r.Metadata["owner"] != n.name {
					t.Errorf("call %d at %s: %s, after %v", i, n.name, describe(r), took)
				}
			}
		}
		// Both know by now, and no check waits any more. Until 3 s after the first failure of each it counts by itself.
		for _, n := range []*node{a, b} {
			first := began.Add(500 * time.Millisecond)
			if n == b {
				first = first.Add(1500 * time.Millisecond)
			}
			for {
				r, took := ask(n)
				if took != 0 {
					t.Fatalf("at %s a call took %v", n.name, took)
				}
				if r.Metadata["degraded"] == "owner_out" {
					// It is noticed with a probe that fails: they come every 375 ms at most, and take 500 ms.
					if since := time.Since(first); since < 3*time.Second || since > 4*time.Second {
						t.Errorf("%s counts it as out after %v", n.name, since)
					}
					break
				}
				if r.Metadata["degraded"] != "owner_down" || r.Metadata["owner"] != n.name {
					t.Fatalf("at %s: %s", n.name, describe(r))
				}
				<-time.After(20 * time.Millisecond)
			}
		}
		// Now they agree on one node.
		first, _ := ask(a)
		for i := range 10 {
			r, took := ask(c.nodes[i%2])
			if r.Metadata["owner"] != first.Metadata["owner"] || *r.Remaining != *first.Remaining-int64(i)-1 || took != 0 ||
				r.Metadata["degraded"] != "owner_out" {
				t.Fatalf("stand-in: %s after %s", describe(r), describe(first))
			}
		}
		// It is back. What it had counted is still there; nothing was added to it (the hits that waited were given up).
		c.isolate(bad, whole)
		<-time.After(2 * time.Second)
		for i, n := range []*node{a, b} {
			r, took := ask(n)
			if r.Metadata["owner"] != bad.name || r.Metadata["degraded"] != "" || *r.Remaining != 998-int64(i) || took != 0 {
				t.Errorf("back, at %s: %s", n.name, describe(r))
			}
		}
	})
}

// TestDeadNode has a node that can't be reached. Its limits, and only those, go to stand-ins, on which all agree,
// whatever the policy; and they return when it does.
func TestDeadNode(t *testing.T) {
	for _, policy := range policies {
		synctest.Test(t, func(t *testing.T) {
			c := startAir(t, 4, by(policy))
			dead, living := c.nodes[3], c.nodes[:3]
			keys, owners := c.mixedKeys(50)
			check := func(want func(i int, r result) bool) {
				t.Helper()
				for _, n := range living {
					for i, r := range n.checkKeys(t, keys, "limit", 100) {
						if r.Status != "OK" || !want(i, r) {
							t.Fatalf("%s: a limit of %s, asked at %s: %s", policy, owners[i].name, n.name, describe(r))
						}
					}
				}
			}
			healthy := func(i int, r result) bool {
				return r.Metadata["owner"] == owners[i].name && r.Metadata["degraded"] == ""
			}
			check(healthy)
			c.isolate(dead, cut)
			standIns := map[int]string{}
			counted := map[int]int64{}
			// Each node finds out by itself: it dials three times, and from then on knows.
			for round := range 5 {
				check(func(i int, r result) bool {
					if owners[i] != dead {
						return healthy(i, r)
					}
					if standIns[i] == "" {
						standIns[i] = r.Metadata["owner"]
					}
					counted[i]++
					why := "owner_unreachable"
					if round >= 3 {
						why = "owner_out"
					}
					return r.Metadata["degraded"] == why && *r.Remaining == 100-counted[i] &&
						r.Metadata["owner"] == standIns[i] && r.Metadata["owner"] != dead.name
				})
			}
			used := map[string]bool{}
			for _, name := range standIns {
				used[name] = true
			}
			if len(used) < 2 {
				t.Errorf("all limits went to %v", used)
			}
			c.isolate(dead, whole)
			<-time.After(2 * time.Second)
			check(healthy)
		})
	}
}

// TestOneTimeoutForAll has several nodes fall silent at once: a request waits for all of them together.
func TestOneTimeoutForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 5)
		for _, n := range c.nodes[1:4] {
			c.isolate(n, silent)
		}
		keys, owners := c.mixedKeys(10)
		start := time.Now()
		for i, r := range c.nodes[0].checkKeys(t, keys) {
			bad := slices.Contains(c.nodes[1:4], owners[i])
			if r.Status != "OK" || bad != (r.Metadata["degraded"] == "owner_timeout") {
				t.Errorf("item %d: %s", i, describe(r))
			}
		}
		if took := time.Since(start); took != 500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// TestNoOtherCallerWaits lets a silent node take an hour to answer: callers that ask for nothing of it don't notice.
func TestNoOtherCallerWaits(t *testing.T) {
	for _, behavior := range []string{"BATCHING", "NO_BATCHING"} {
		synctest.Test(t, func(t *testing.T) {
			c := startAir(t, 3, patient)
			a, bad := c.nodes[0], c.nodes[2]
			c.isolate(bad, slow)
			keys, owners := c.mixedKeys(10)
			start := time.Now()
			var waiting sync.WaitGroup
			waiting.Go(func() {
				for i, r := range a.checkKeys(t, keys, "behavior", behavior) {
					if r.Status != "OK" || (owners[i] == bad) != (r.Metadata["degraded"] == "owner_timeout") {
						t.Errorf("item %d: %s", i, describe(r))
					}
				}
				if took := time.Since(start); took != time.Hour {
					t.Errorf("a caller that asks for it waits for %v", took)
				}
			})
			synctest.Wait()
			for _, n := range c.nodes[:2] {
				keys := append(c.keysOf(c.nodes[0], 10), c.keysOf(c.nodes[1], 10)...)
				for _, r := range n.checkKeys(t, keys, "behavior", behavior) {
					if r.Status != "OK" || r.Metadata["degraded"] != "" {
						t.Error(describe(r))
					}
				}
			}
			if took := time.Since(start); took != 0 {
				t.Errorf("others waited for %v", took)
			}
			waiting.Wait()
		})
	}
}

// patient is for nodes that wait for each other as long as it takes.
func patient(_ int, m *member.Options, _ *server.Options) { m.Cluster.Timeout = time.Hour }

// hit checks a key once, in the background, until ctx ends. The status is that of the result, or empty.
func (n *node) hit(ctx context.Context, key string) <-chan string {
	status := make(chan string, 1)
	go func() {
		body := fmt.Sprintf(`{"rate_limits":[%s]}`, item(key))
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/v1/check", strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		resp, err := n.client.Do(r)
		if err != nil {
			status <- ""
			return
		}
		defer resp.Body.Close()
		var answer struct {
			RateLimits []result `json:"rate_limits"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			panic(err)
		}
		status <- answer.RateLimits[0].Status + answer.RateLimits[0].Metadata["degraded"]
	}()
	return status
}

// TestCallerHangsUp has callers go while their items wait for company, and while they are on their way. Those that
// travel with them don't notice. What had not left is counted nowhere, what had left once, and under its own key.
func TestCallerHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 2, patient)
		a, b := c.nodes[0], c.nodes[1]
		c.isolate(b, slow)
		keys := c.keysOf(b, 100)
		own := c.keysOf(a, 100)
		going, hangUp := context.WithCancel(t.Context())

		first := a.hit(t.Context(), keys[0]) // leaves at once
		synctest.Wait()
		gone, stays := a.hit(going, keys[1]), a.hit(t.Context(), keys[2]) // gather behind it
		synctest.Wait()
		hangUp()
		<-gone
		<-time.After(time.Second)

		going, hangUp = context.WithCancel(t.Context())
		goneLater, staysToo := a.hit(going, keys[3]), a.hit(t.Context(), keys[4])
		<-time.After(time.Second) // on their way
		hangUp()
		<-goneLater
		a.checkKeys(t, own) // so that its memory is used again
		c.isolate(b, whole)
		for i, status := range []<-chan string{first, stays, staysToo} {
			if got := <-status; got != "OK" {
				t.Errorf("neighbour %d got %s", i, got)
			}
		}
		for i, r := range b.checkKeys(t, keys, "hits", 0) {
			want := int64(10)
			if i == 0 || i >= 2 && i <= 4 {
				want = 9
			}
			if *r.Remaining != want {
				t.Errorf("%s has %d left, want %d", keys[i], *r.Remaining, want)
			}
		}
		for name, n := range metrics(t, a) {
			if strings.HasPrefix(name, "weir_degraded_checks_total") && n != 0 {
				t.Errorf("%s %v: no caller waited for an answer", name, n)
			}
		}
	})
}

// TestTooManyWait has 5,000 callers come at once, each with four items of a frozen node. As many as may wait do, until
// the timeout; the others get an answer at once. In the end nothing is left, or the bubble would not end.
func TestTooManyWait(t *testing.T) {
	for _, test := range []struct {
		behavior    string
		least, most int64 // of those that don't wait
	}{
		{"BATCHING", 1500, 2500}, // 10,000 items may wait, and some are on their way
		{"NO_BATCHING", 2300, 2500},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := startAir(t, 2, by(member.PolicyClosed))
			a, bad := c.nodes[0], c.nodes[1]
			c.isolate(bad, slow)
			keys := c.keysOf(bad, 4)
			var busy atomic.Int64
			var callers sync.WaitGroup
			start := time.Now()
			for range 5000 {
				callers.Go(func() {
					results := a.checkKeys(t, keys, "behavior", test.behavior)
					took := time.Since(start)
					for _, r := range results {
						if r.Status != "OVER_LIMIT" || *r.Remaining != 0 || *r.RetryAfter == 0 ||
							!slices.Contains(degradedWords, r.Metadata["degraded"]) {
							t.Errorf("after %v: %s", took, describe(r))
						}
					}
					switch {
					case took == 0 && results[0].Metadata["degraded"] == "owner_busy":
						busy.Add(1)
					case took != 500*time.Millisecond:
						t.Errorf("after %v: %s", took, describe(results[0]))
					}
				})
			}
			callers.Wait()
			if n := busy.Load(); n < test.least || n > test.most {
				t.Errorf("%s: %d callers were not let wait, want %d to %d", test.behavior, n, test.least, test.most)
			}
		})
	}
}

// TestRejectedItems has a node that doesn't understand what it is sent, as one of another version might. That is told
// of the items, and not held against the node.
func TestRejectedItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		c.isolate(c.nodes[1], rejecting)
		keys, owners := c.mixedKeys(5)
		for range 5 {
			for i, r := range c.nodes[0].checkKeys(t, keys) {
				switch {
				case owners[i] != c.nodes[1]:
					if r.Status != "OK" || r.Metadata["degraded"] != "" {
						t.Errorf("item %d: %s", i, describe(r))
					}
				case r.Status != "ERROR" || !strings.Contains(r.Error, "the test says so") ||
					r.Metadata["degraded"] != "" || r.Limit != nil:
					t.Errorf("item %d: %s", i, describe(r))
				}
			}
		}
		if got := c.nodes[0].stateOf(t, c.nodes[1]); got != "up" {
			t.Errorf("it is %s", got)
		}
	})
}

// stateOf returns the state of another node as n shows it.
func (n *node) stateOf(t *testing.T, other *node) string {
	t.Helper()
	for _, status := range n.cluster(t).Nodes {
		if status.Name == other.name {
			return status.State
		}
	}
	return ""
}

// A clusterView is the answer of /v1/peers.
type clusterView struct {
	Self  string
	Ring  string
	Nodes []struct {
		Name         string
		Self         bool
		State        string
		FailingSince int64 `json:"failing_since"`
		Share        float64
		Ring         string
		StandIns     map[string]float64 `json:"stand_ins"`
	}
	Discovery *struct {
		Source string
		At     int64
		Error  string
		Failed int64
	}
}

func (n *node) cluster(t *testing.T) (view clusterView) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(n.get(t, "/v1/peers", http.StatusOK))))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&view); err != nil {
		t.Fatal(err)
	}
	return view
}

// TestLastNode has all nodes but one go: that one counts for all, whatever the policy.
func TestLastNode(t *testing.T) {
	for _, policy := range policies {
		synctest.Test(t, func(t *testing.T) {
			c := startAir(t, 3, by(policy))
			keys, owners := c.mixedKeys(20)
			last := c.nodes[0]
			c.isolate(c.nodes[1], cut)
			c.isolate(c.nodes[2], cut)
			for range 10 { // of which the first find out
				last.checkKeys(t, keys, "name", "before")
			}
			for hit := range int64(12) {
				for i, r := range last.checkKeys(t, keys) {
					if (r.Status == "OK") != (hit < 10) || *r.Remaining != max(0, 9-hit) || r.Metadata["owner"] != last.name ||
						(r.Metadata["degraded"] == "owner_out") != (owners[i] != last) {
						t.Fatalf("%s: item %d, of %s: %s", policy, i, owners[i].name, describe(r))
					}
				}
			}
		})
	}
}

// TestPeerAnswer is what a node answers another, to the byte. A change of it is one that older nodes must understand.
func TestPeerAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock starts with the year 2000
		c := startAir(t, 2)
		const message = `{"rate_limits":[
			{"name":"n","unique_key":"k","hits":1,"limit":10,"duration":60000},
			{"name":"n","unique_key":"k","hits":10,"limit":10,"duration":60000},
			{"name":"n","unique_key":"k","hits":11,"limit":10,"duration":60000,"of_a_newer_version":[{}]},
			{"name":"n","unique_key":"k2","hits":1,"limit":0,"duration":60000,"algorithm":1},
			{"name":"n","unique_key":"k3","limit":5,"duration":1000,"algorithm":"OF_A_NEWER_VERSION"},
			{"name":"n","unique_key":"k4","limit":5,"duration":1000,"behavior":1073741824}
		],"and":null}`
		url := c.nodes[0].url + "/v1/peer/batch"
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.nodes[0].client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var text strings.Builder
		fmt.Fprintln(&text, resp.Status)
		if resp.Header.Get(wire.HeaderStart) == "" {
			t.Error("the answer doesn't name the process that sends it")
		}
		resp.Header.Set(wire.HeaderStart, "7") // another one each time
		resp.Header.Write(&text)               // sorted
		if _, err := io.Copy(&text, resp.Body); err != nil {
			t.Fatal(err)
		}
		const want = `200 OK
Content-Type: application/json
Weir-Protocol: 1
Weir-Ring: 824a4ab304b71699
Weir-Start: 7
{"rate_limits":[` +
			`{"status":"OK","limit":10,"remaining":9,"reset_time":946684860000,"metadata":{}},` +
			`{"status":"OVER_LIMIT","limit":10,"remaining":9,"reset_time":946684860000,"retry_after":60000,"metadata":{}},` +
			`{"status":"OVER_LIMIT","limit":10,"remaining":9,"reset_time":946684860000,` +
			`"metadata":{"reason":"hits_exceed_capacity"}},` +
			`{"status":"OVER_LIMIT","limit":0,"remaining":0,"reset_time":946684860000,"metadata":{"reason":"limit_is_zero"}},` +
			`{"status":"ERROR","error":"algorithm: must be \"TOKEN_BUCKET\" (0), \"LEAKY_BUCKET\" (1) ` +
			`or \"SLIDING_WINDOW\" (2)","metadata":{}},` +
			`{"status":"ERROR","error":"behavior: must be made of \"BATCHING\" (0), \"NO_BATCHING\" (1), \"GLOBAL\" (2), ` +
			`\"DURATION_IS_GREGORIAN\" (4), \"RESET_REMAINING\" (8) and \"DRAIN_OVER_LIMIT\" (32)","metadata":{}}]}
`
		if got := strings.ReplaceAll(text.String(), "\r\n", "\n"); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// TestWaitingChecksGoToTheStandIn has more checks wait for an owner than fit on their way, when it turns out that
// it refuses connections. Those that never left surely were not counted, so the stand-in counts them, too: all of them
// are one count.
func TestWaitingChecksGoToTheStandIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		asked, owner, standIn := c.nodes[0], c.nodes[1], c.nodes[2]
		key := c.keyWithStandIn(t, asked, owner, standIn)
		c.wires.set(asked, owner, ringing)
		results := make([]result, 500)
		var all sync.WaitGroup
		for i := range results {
			all.Go(func() { results[i] = asked.check(t, item(key, "behavior", "NO_BATCHING"))[0] })
		}
		synctest.Wait() // until as many are on their way as may, and the others wait
		c.wires.set(asked, owner, cut)
		all.Wait()
		passed, why := 0, map[string]int{}
		for _, r := range results {
			if r.Status == "OK" {
				passed++
			}
			why[r.Metadata["degraded"]+" "+r.Metadata["owner"]]++
		}
		if passed != 10 || why["owner_unreachable "+standIn.name] != len(results) {
			t.Errorf("%d of 500 hits passed a limit of 10: %v", passed, why)
		}
	})
}

// keyWithStandIn returns a key of an owner's, for which standIn counts while that is away.
func (c *cluster) keyWithStandIn(t *testing.T, asked, owner, standIn *node) string {
	t.Helper()
	view := asked.peers.View()
	for _, key := range c.keysOf(owner, 50) {
		r := limits.Request{Name: "test", UniqueKey: key}
		id := r.AppendID(nil)
		if peer := view.StandIn(id, view.Owner(id)); peer != nil && peer.Name() == standIn.name {
			return key
		}
	}
	t.Fatalf("%s stands in for none of 50 keys of %s", standIn.name, owner.name)
	return ""
}
