package tests

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/limits"
	"weir/peers/discovery"
	"weir/server"
	member "weir/server/node"
)

// A cluster is some nodes in this process, over real sockets, that have one clock, and wires between them that a test
// can cut.
type cluster struct {
	nodes []*node
	clock *clock
	wires *wires
	air   *air // what they are in, if not over sockets
	room  int  // for copies and debts in each of those; 0 means the default
}

// A setting changes the options of one of a cluster's nodes.
type setting func(i int, m *member.Options, s *server.Options)

// startCluster starts n nodes that know each other from the start.
func startCluster(t *testing.T, n int, settings ...setting) *cluster {
	t.Helper()
	c := &cluster{clock: &clock{now: time.UnixMilli(1_700_000_000_000)}, wires: newWires()}
	for range n {
		c.add(t, settings...)
	}
	c.tellAll()
	c.settle(t)
	c.letGo(t)
	return c
}

// settle has all nodes tell each other that they have nothing that belongs to others, as far as they can talk.
func (c *cluster) settle(t *testing.T) {
	t.Helper()
	for _, n := range c.nodes {
		n.global.Sync(t.Context())
	}
}

// letGo has all nodes give up their connections before the first of them is stopped.
func (c *cluster) letGo(t *testing.T) {
	// An idle HTTP/2 connection makes its server wait a second before it stops, so all clients let go first. (Cleanups
	// run last in, first out.)
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.member.Close()
		}
	})
}

// add starts a node that knows no other yet.
func (c *cluster) add(t *testing.T, settings ...setting) *node {
	t.Helper()
	n := c.serve(t, listen(t), settings...)
	c.nodes = append(c.nodes, n)
	return n
}

// again starts a node anew, with nothing but the name and the address of one that was stopped.
func (c *cluster) again(t *testing.T, was *node, settings ...setting) *node {
	t.Helper()
	ln, err := net.Listen("tcp", was.name)
	if err != nil {
		t.Fatal(err)
	}
	return c.serve(t, ln, settings...)
}

func (c *cluster) serve(t *testing.T, ln net.Listener, settings ...setting) *node {
	t.Helper()
	m, s := c.options(len(c.nodes), ln.Addr().String(), settings)
	n := serve(t, ln, m, s)
	n.clock = c.clock
	return n
}

// options are those of a node at a place in the list, which knows no other one yet.
func (c *cluster) options(i int, name string, settings []setting) (m member.Options, s server.Options) {
	m.CacheSize = 10_000
	m.Cluster = &member.Cluster{GlobalSlack: 0.01, GlobalSize: cmp.Or(c.room, 100_000)}
	if c.air == nil {
		m.Now, m.Cluster.Timeout = c.clock.Now, time.Minute
	}
	m.Cluster.Transport = func(to string, real http.RoundTripper) http.RoundTripper {
		if c.air != nil {
			real = c.air
		}
		return &link{c.wires, name, to, real}
	}
	for _, set := range settings {
		set(i, &m, &s)
	}
	return m, s
}

// tellAll tells all nodes the list of all nodes.
func (c *cluster) tellAll() {
	list := c.members()
	for _, n := range c.nodes {
		n.peers.Update(n.name, list)
	}
}

// members is the list of all nodes.
func (c *cluster) members() (list []discovery.Member) {
	for _, n := range c.nodes {
		list = append(list, discovery.Member{Name: n.name})
	}
	return list
}

// owner returns the node that owns a key of name "test", and another one.
func (c *cluster) owner(key string) (owner, other *node) {
	r := limits.Request{Name: "test", UniqueKey: key}
	name := c.nodes[0].name
	if peer := c.nodes[0].peers.View().Owner(r.AppendID(nil)); peer != nil {
		name = peer.Name()
	}
	for _, n := range c.nodes {
		if n.name == name {
			owner = n
		} else {
			other = n
		}
	}
	return owner, other
}

// keysOf returns some keys that n owns.
func (c *cluster) keysOf(n *node, count int) (keys []string) {
	for i := 0; len(keys) < count; i++ {
		key := fmt.Sprint("key-", i)
		if owner, _ := c.owner(key); owner == n {
			keys = append(keys, key)
		}
	}
	return keys
}

// item is a check of limit 10 per minute, with members changed or added.
func item(key string, members ...any) json.RawMessage {
	m := map[string]any{"name": "test", "unique_key": key, "limit": 10, "duration": 60_000}
	for i := 0; i < len(members); i += 2 {
		m[members[i].(string)] = members[i+1]
	}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return text
}

// The states of a link.
type wireState int

const (
	whole     wireState = iota
	cut                 // connections are refused
	ringing             // connections are refused, which turns out when the wire changes
	silent              // requests arrive, answers never do
	slow                // connected, but nothing gets through until the link is whole again
	garbled             // what comes back is no answer
	failing             // each answer is 500
	refusing            // each answer is 503
	rejecting           // each answer is 400
)

// wires are the ways between nodes. It is safe for concurrent use.
type wires struct {
	mu      sync.Mutex
	states  map[[2]string]wireState // by caller and called node; guarded by mu
	calls   int                     // guarded by mu
	changed chan struct{}           // closed with the next change; guarded by mu
}

func newWires() *wires {
	return &wires{states: map[[2]string]wireState{}, changed: make(chan struct{})}
}

func (w *wires) set(from, to *node, state wireState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states[[2]string{from.name, to.name}] = state
	close(w.changed)
	w.changed = make(chan struct{})
}

// isolate changes all wires to and from a node.
func (c *cluster) isolate(n *node, state wireState) {
	for _, other := range c.nodes {
		c.wires.set(n, other, state)
		c.wires.set(other, n, state)
	}
}

func (w *wires) call(from, to string) wireState {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	return w.states[[2]string{from, to}]
}

// wait waits until a link is not in a state any more.
func (w *wires) wait(ctx context.Context, from, to string, in wireState) error {
	for {
		w.mu.Lock()
		state, changed := w.states[[2]string{from, to}], w.changed
		w.mu.Unlock()
		if state != in {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

func (w *wires) countCalls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

// A link is the way from one node to another.
type link struct {
	wires    *wires
	from, to string
	real     http.RoundTripper
}

func (w *link) RoundTrip(r *http.Request) (*http.Response, error) {
	state := w.wires.call(w.from, w.to)
	switch state {
	case whole:
		return w.real.RoundTrip(r)
	case ringing:
		if err := w.wires.wait(r.Context(), w.from, w.to, ringing); err != nil {
			return nil, err
		}
		fallthrough
	case cut:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("the test cut the wire")}
	case silent:
		resp, err := w.real.RoundTrip(r)
		if err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	// There is a connection, so that the caller can't know what became of the request.
	resp, err := w.real.RoundTrip(probeOf(r))
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	switch state {
	case garbled:
		return answer(http.StatusOK, "<html>It works!</html>"), nil
	case failing:
		return answer(http.StatusInternalServerError, ""), nil
	case refusing:
		return answer(http.StatusServiceUnavailable, ""), nil
	case rejecting:
		return answer(http.StatusBadRequest, `{"error":"the test says so"}`), nil
	}
	if err := w.wires.wait(r.Context(), w.from, w.to, slow); err != nil {
		return nil, err
	}
	return w.real.RoundTrip(r)
}

func answer(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// probeOf is a request to the same place with nothing in it.
func probeOf(r *http.Request) *http.Request {
	empty, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.URL.Scheme+"://"+r.URL.Host+"/healthz", nil)
	if err != nil {
		panic(err)
	}
	return empty
}

func (w *link) CloseIdleConnections() {
	if c, ok := w.real.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func TestParallelHitsAreCountedExactly(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
			c := startCluster(t, n)
			for _, behavior := range []string{"BATCHING", "NO_BATCHING", "GLOBAL"} {
				results := make([]result, 300)
				var all sync.WaitGroup
				for i := range results {
					all.Go(func() {
						results[i] = c.nodes[i%n].check(t, item("hot", "name", behavior, "limit", 30, "behavior", behavior))[0]
					})
				}
				all.Wait()
				ok, doubt := 0, map[string]int{}
				for _, r := range results {
					if r.Status == "OK" {
						ok++
					}
					if why := r.Metadata["degraded"]; why != "" {
						doubt[why]++
					}
				}
				silent := 0
				if behavior == "GLOBAL" { // whose callers wait for 50 ms only, which a busy machine may need for itself
					silent = doubt["owner_silent"]
					delete(doubt, "owner_silent")
				}
				if ok < 30-silent || ok > 30+silent || len(doubt) > 0 {
					t.Errorf("%s: %d of 300 hits passed a limit of 30; in doubt were %v", behavior, ok, doubt)
				}
			}
		})
	}
}

func TestRoundRobinCountsDownWithoutGap(t *testing.T) {
	for _, algorithm := range []string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"} {
		c := startCluster(t, 3)
		for i := range 13 {
			got := c.nodes[i%3].check(t, item("k", "algorithm", algorithm))[0]
			want := max(0, 9-int64(i))
			if *got.Remaining != want || (got.Status == "OK") != (i < 10) {
				t.Errorf("%s: hit %d: %s, remaining %d, want %d", algorithm, i, got.Status, *got.Remaining, want)
			}
		}
	}
}

// TestForwardedAnswersAreTheOwners asks the owner and another node the same, and wants the same answer.
func TestForwardedAnswersAreTheOwners(t *testing.T) {
	c := startCluster(t, 3)
	owner, other := c.owner("k")
	for _, members := range [][]any{
		{"hits", 0},
		{"hits", 11},
		{"hits", 10, "algorithm", "LEAKY_BUCKET", "burst", 3},
		{"hits", 0, "limit", 0},
		{"hits", 0, "duration", 2, "behavior", "DURATION_IS_GREGORIAN", "time_zone", "Asia/Kathmandu"},
		{"hits", -3},
		{"hits", 5, "algorithm", "SLIDING_WINDOW", "behavior", []string{"DRAIN_OVER_LIMIT", "NO_BATCHING"},
			"limit", 4, "duration", 1},
		{"limit", int64(math.MaxInt64), "hits", 0},
	} {
		here, there := owner.check(t, item("k", members...))[0], other.check(t, item("k", members...))[0]
		if a, b := fmt.Sprint(describe(here)), fmt.Sprint(describe(there)); a != b {
			t.Errorf("%v\nat the owner   %s\nat another node %s", members, a, b)
		}
		if there.Metadata["owner"] != owner.name || there.Metadata["degraded"] != "" {
			t.Errorf("metadata %v, want owner %s", there.Metadata, owner.name)
		}
	}
}

func describe(r result) string {
	return fmt.Sprintln(r.Status, show(r.Limit), show(r.Remaining), show(r.ResetTime), show(r.RetryAfter),
		r.Error, r.Metadata)
}

// TestManyItemsComeBackInOrder sends items each of a limit of its own, by which the result is known again; also with a
// node that is away, for whose items another one answers.
func TestManyItemsComeBackInOrder(t *testing.T) {
	c := startCluster(t, 3)
	for _, state := range []wireState{whole, cut} {
		c.isolate(c.nodes[2], state)
		var items []json.RawMessage
		for i := range 200 {
			items = append(items, item(fmt.Sprint("key-", i), "limit", 1000+i, "name", fmt.Sprint("n", state)))
		}
		items[77] = item("", "limit", 1077)
		for i, r := range c.nodes[0].check(t, items...) {
			switch {
			case i == 77:
				if r.Status != "ERROR" {
					t.Errorf("item %d is invalid, and is %s", i, r.Status)
				}
			case r.Status != "OK" || *r.Limit != int64(1000+i) || *r.Remaining != int64(999+i):
				t.Errorf("item %d: %s", i, describe(r))
			case state == cut && r.Metadata["owner"] == c.nodes[2].name:
				t.Errorf("item %d was counted by a node that can't be reached", i)
			}
		}
	}
}

func TestSameKeyTwiceIsDecidedInOrder(t *testing.T) {
	c := startCluster(t, 3)
	for _, n := range c.nodes {
		key := "twice-" + n.name
		results := n.check(t, item(key, "hits", 4), item("other"), item(key, "hits", 5), item(key, "hits", 2), item(key))
		got := []int64{*results[0].Remaining, *results[2].Remaining, *results[3].Remaining, *results[4].Remaining}
		if fmt.Sprint(got) != "[6 1 1 0]" || results[3].Status != "OVER_LIMIT" {
			t.Errorf("remaining %v, third %s; want [6 1 1 0] and OVER_LIMIT", got, results[3].Status)
		}
	}
}

// TestItemsForOnePeerTravelTogether counts calls: one for all items of a request that have the same owner.
func TestItemsForOnePeerTravelTogether(t *testing.T) {
	c := startCluster(t, 2)
	var items []json.RawMessage
	for _, key := range c.keysOf(c.nodes[1], 50) {
		items = append(items, item(key))
	}
	before := c.wires.countCalls()
	c.nodes[0].check(t, items...)
	if calls := c.wires.countCalls() - before; calls != 1 {
		t.Errorf("50 items took %d calls", calls)
	}
}

// TestPeersNeverForward tells two nodes lists by which each believes the other to own everything: checks must not go
// round.
func TestPeersNeverForward(t *testing.T) {
	c := startCluster(t, 3)
	a, b := c.nodes[0], c.nodes[1]
	a.peers.Update(a.name, []discovery.Member{{Name: a.name}, {Name: b.name}, {Name: c.nodes[2].name}})
	b.peers.Update(b.name, []discovery.Member{{Name: a.name}, {Name: b.name}})
	for i := range 100 {
		for _, n := range []*node{a, b} {
			if r := n.check(t, item(fmt.Sprint(i)))[0]; r.Status != "OK" {
				t.Fatal(describe(r))
			}
		}
	}
	status := metrics(t, b)
	if status["weir_ring_mismatches_total"] == 0 {
		t.Error("no node noticed that the lists differ")
	}
}

// TestAnOutsiderForwards takes a node off the list that it gets itself, as happens to one that is about to stop: the
// owners still count what it is asked, so no limit gets a second budget.
func TestAnOutsiderForwards(t *testing.T) {
	c := startCluster(t, 3)
	outsider := c.nodes[2]
	var list []discovery.Member
	for _, n := range c.nodes[:2] {
		list = append(list, discovery.Member{Name: n.name})
	}
	for _, n := range c.nodes[:2] {
		n.peers.Update(n.name, list)
	}
	outsider.peers.Update("", list)
	for _, n := range c.nodes[:2] {
		key := c.keysOf(n, 1)[0]
		n.check(t, item(key, "hits", 10))
		if r := outsider.check(t, item(key))[0]; r.Status != "OVER_LIMIT" || r.Metadata["owner"] != n.name {
			t.Errorf("an exhausted limit at an outsider: %s", describe(r))
		}
	}
	resp, err := http.Get(outsider.url + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("an outsider's /readyz is %d", resp.StatusCode)
	}
	// With no node left to ask it counts by itself, and its answers show that.
	for _, n := range c.nodes[:2] {
		c.wires.set(outsider, n, cut)
	}
	for i := range 10 {
		r := outsider.check(t, item(fmt.Sprint("alone-", i)))[0]
		if r.Status != "OK" || r.Metadata["degraded"] == "" || r.Metadata["owner"] != outsider.name {
			t.Errorf("with no node left: %s", describe(r))
		}
	}
}
