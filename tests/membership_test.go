package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/peers/discovery"
	"weir/server"
	member "weir/server/node"
	"weir/tests/dnstest"
)

// eventually waits for something of which there is no notice.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within half a minute", what)
		}
	}
}

// TestFlapping has one node enter and leave the list of the others a hundred times while all three are asked: every
// check is answered by the node that counts for it, without doubt, and all nodes end cleanly.
func TestFlapping(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("traffic", func(t *testing.T) {
		c := startCluster(t, 3)
		flapping := c.nodes[2]
		all, two := c.members(), c.members()[:2]
		done := make(chan struct{})
		var asked atomic.Int64
		var callers sync.WaitGroup
		for i := range 4 {
			behavior := []string{"BATCHING", "NO_BATCHING"}[i%2]
			callers.Go(func() {
				for round := 0; ; round++ {
					select {
					case <-done:
						return
					default:
					}
					n := c.nodes[round%3]
					keys := []string{"a", "b", "c", "d", "e", "f"}
					for _, r := range n.checkKeys(t, keys, "limit", 1_000_000, "behavior", behavior) {
						if r.Status != "OK" || r.Metadata["degraded"] != "" {
							t.Errorf("asked at %s: %s", n.name, describe(r))
						}
					}
					asked.Add(1)
				}
			})
		}
		for i := range 100 {
			list := two
			if i%2 == 1 {
				list = all
			}
			for _, n := range c.nodes[:2] {
				n.peers.Update(n.name, list)
			}
			goal := asked.Load() + 2
			eventually(t, "checks go on", func() bool { return asked.Load() >= goal })
		}
		for _, n := range c.nodes[:2] {
			n.peers.Update(n.name, two)
		}
		close(done)
		callers.Wait()
		for _, n := range c.nodes[:2] {
			if view := n.cluster(t); len(view.Nodes) != 2 {
				t.Errorf("%s sees %d nodes", n.name, len(view.Nodes))
			}
		}
		// The two have let go of the third: what is left is its own connections, and the test's.
		http.DefaultClient.CloseIdleConnections()
		eventually(t, "the third is left alone", func() bool { return metrics(t, flapping)["weir_connections"] == 1 })
	})
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// TestJoinsAndLeaves has 200 nodes join one after the other, be asked for something, and leave again. Nothing of them
// may stay behind at the node that goes on.
func TestJoinsAndLeaves(t *testing.T) {
	c := startCluster(t, 2)
	a := c.nodes[0]
	list := c.members()
	use := func(nodes ...*node) {
		t.Helper()
		for _, n := range nodes {
			a.checkKeys(t, c.keysOf(n, 1))
		}
	}
	use(c.nodes...)
	names := func() []string { return slices.Sorted(maps.Keys(metrics(t, a))) }
	http.DefaultClient.CloseIdleConnections()
	seriesBefore, before := names(), runtime.NumGoroutine()
	for range 200 {
		joins := &cluster{clock: c.clock, wires: c.wires}
		n := joins.add(t)
		with := append(slices.Clone(list), discovery.Member{Name: n.name})
		for _, member := range []*node{a, n} {
			member.peers.Update(member.name, with)
		}
		joined := &cluster{nodes: []*node{a, n}}
		if r := a.checkKeys(t, joined.keysOf(n, 1))[0]; r.Metadata["owner"] != n.name || r.Metadata["degraded"] != "" {
			t.Fatal(describe(r))
		}
		a.peers.Update(a.name, list)
		n.stop() // does not wait for connections of a's, or this test takes minutes
	}
	use(c.nodes...)
	if after := names(); !slices.Equal(after, seriesBefore) {
		t.Errorf("%d metrics became %d: %v", len(seriesBefore), len(after),
			slices.DeleteFunc(after, func(name string) bool { return slices.Contains(seriesBefore, name) }))
	}
	eventually(t, "as many goroutines and connections as before", func() bool {
		http.DefaultClient.CloseIdleConnections()
		return runtime.NumGoroutine() <= before
	})
}

// TestSameListAgain tells a node the list that it has a thousand times, also in another order: nothing comes of it.
func TestSameListAgain(t *testing.T) {
	c := startCluster(t, 3)
	a := c.nodes[0]
	keys, owners := c.mixedKeys(3)
	check := func(remaining int64) {
		t.Helper()
		for i, r := range a.checkKeys(t, keys) {
			if *r.Remaining != remaining || r.Metadata["owner"] != owners[i].name || r.Metadata["degraded"] != "" {
				t.Errorf("%d: %s", i, describe(r))
			}
		}
	}
	check(9)
	list := c.members()
	view := a.cluster(t)
	connections := func() (counts []float64) {
		for _, n := range c.nodes {
			counts = append(counts, metrics(t, n)["weir_connections"])
		}
		return counts
	}
	connected, before := connections(), runtime.NumGoroutine()
	for i := range 1000 {
		again := slices.Clone(list)
		if i%2 == 0 {
			slices.Reverse(again)
		}
		a.peers.Update(a.name, again)
	}
	check(8)
	if after := connections(); !slices.Equal(after, connected) {
		t.Errorf("connections: %v became %v", connected, after)
	}
	if after := a.cluster(t); after.Ring != view.Ring || len(after.Nodes) != len(view.Nodes) {
		t.Errorf("%+v became %+v", view, after)
	}
	eventually(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= before })
}

// TestHealthSurvivesTheList has the list change while a node is away: that stays known.
func TestHealthSurvivesTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 4)
		a, dead := c.nodes[0], c.nodes[3]
		key := c.keysOf(dead, 1)[0]
		c.isolate(dead, cut)
		for range 3 {
			a.checkKeys(t, []string{key})
		}
		list := []discovery.Member{{Name: a.name}, {Name: dead.name}}
		a.peers.Update(a.name, list)
		if got := a.stateOf(t, dead); got != "down" {
			t.Errorf("it is %s", got)
		}
	})
}

// TestClusterView looks at what /v1/peers shows, of a healthy cluster and of one with a node that is away.
func TestClusterView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		for _, n := range c.nodes {
			keys, _ := c.mixedKeys(1)
			n.checkKeys(t, keys) // so that all have heard of each other
		}
		first := c.nodes[0].cluster(t)
		for _, n := range c.nodes {
			view := n.cluster(t)
			if view.Self != n.name || view.Ring != first.Ring || len(view.Ring) != 16 || len(view.Nodes) != 3 ||
				view.Discovery != nil {
				t.Errorf("%s shows %+v", n.name, view)
			}
			sum := 0.
			for i, node := range view.Nodes {
				sum += node.Share
				heard := view.Ring
				if node.Self {
					heard = ""
				}
				if node.Name != c.nodes[i].name || node.Self != (node.Name == n.name) ||
					node.State != "up" || node.FailingSince != 0 || node.StandIns != nil ||
					node.Share != first.Nodes[i].Share || node.Share < .2 || node.Share > .5 || node.Ring != heard {
					t.Errorf("%s shows %+v", n.name, node)
				}
			}
			if math.Abs(sum-1) > 1e-9 {
				t.Errorf("the shares add up to %v", sum)
			}
		}

		a, away := c.nodes[0], c.nodes[2]
		c.isolate(away, silent)
		key := c.keysOf(away, 1)[0]
		a.checkKeys(t, []string{key})
		since := time.Now().UnixMilli() // of the first failure
		look := func() (state string, failing int64, standIns map[string]float64) {
			synctest.Wait() // callers don't wait until the end of a call is noted
			node := a.cluster(t).Nodes[2]
			return node.State, node.FailingSince, node.StandIns
		}
		if state, failing, standIns := look(); state != "failing" || failing != since || standIns != nil {
			t.Errorf("after a failure: %s since %d, %v", state, failing, standIns)
		}
		a.checkKeys(t, []string{key})
		a.checkKeys(t, []string{key})
		if state, failing, standIns := look(); state != "down" || failing != since || standIns != nil {
			t.Errorf("after three: %s since %d, %v", state, failing, standIns)
		}
		<-time.After(4 * time.Second)
		state, failing, standIns := look()
		sum := 0.
		for name, share := range standIns {
			sum += share
			if name != "a:1" && name != "b:1" {
				t.Errorf("%s stands in", name)
			}
		}
		if state != "out" || failing != since || len(standIns) != 2 || math.Abs(sum-1) > 1e-9 {
			t.Errorf("after seconds: %s since %d, %v", state, failing, standIns)
		}
		c.isolate(away, whole)
		<-time.After(time.Second)
		if state, failing, standIns := look(); state != "up" || failing != 0 || standIns != nil {
			t.Errorf("back: %s since %d, %v", state, failing, standIns)
		}
	})
}

// TestStaticList has a node find itself in a list, and show where that came from.
func TestStaticList(t *testing.T) {
	c := startCluster(t, 1)
	n := c.nodes[0]
	port := netip.MustParseAddrPort(n.name)
	list := []discovery.Member{{Name: "192.0.2.1:" + fmt.Sprint(port.Port())}, {Name: fmt.Sprint("localhost:",
		port.Port())}}
	if err := n.peers.Static(t.Context(), list, "", port); err != nil {
		t.Fatal(err)
	}
	view := n.cluster(t)
	if view.Self != list[1].Name || len(view.Nodes) != 2 || view.Discovery == nil || view.Discovery.Source != "static" ||
		view.Discovery.At == 0 || view.Discovery.Error != "" {
		t.Errorf("%+v", view)
	}
	if err := n.peers.Static(t.Context(), list[:1], "", port); err == nil {
		t.Error("it found itself where it isn't")
	}
}

// startLost starts a node that is to have peers, but doesn't know its place among them.
func startLost(t *testing.T, settings ...setting) *node {
	t.Helper()
	c := &cluster{clock: &clock{now: time.UnixMilli(1_700_000_000_000)}, wires: newWires()}
	return c.add(t, append(settings, func(_ int, m *member.Options, _ *server.Options) { m.Advertise = "me" })...)
}

// TestWithoutAPlace looks at a node that doesn't know its place: it lives, isn't ready, and answers checks by the
// policy and with the reason. It never counts as if it owned what it is asked for.
func TestWithoutAPlace(t *testing.T) {
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			n := startLost(t, by(policy))
			limiter := n.member.Limiter()
			n.get(t, "/healthz", http.StatusOK)
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				r, err := http.NewRequestWithContext(t.Context(), method, n.url+"/readyz", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := n.client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("%s /readyz: %s", method, resp.Status)
				}
			}
			var ready struct{ Status, Error string }
			err := json.Unmarshal(n.get(t, "/readyz", http.StatusServiceUnavailable), &ready)
			if err != nil || ready.Status != "starting" || ready.Error == "" {
				t.Errorf("/readyz: %+v, %v", ready, err)
			}
			if view := n.cluster(t); view.Self != "me" || view.Ring != "" || len(view.Nodes) != 0 {
				t.Errorf("/v1/peers: %+v", view)
			}
			for hit := range int64(12) {
				r := n.check(t, item("k"))[0]
				good := r.Metadata["degraded"] == "not_ready"
				switch policy {
				case member.PolicyLocal: // of that there may be one budget a node, said to be so
					good = good && (r.Status == "OK") == (hit < 10) && *r.Remaining == max(0, 9-hit)
				case member.PolicyOpen:
					good = good && r.Status == "OK" && *r.Remaining == 10 && r.Metadata["owner"] == ""
				case member.PolicyClosed:
					good = good && r.Status == "OVER_LIMIT" && *r.Remaining == 0 && *r.RetryAfter > 0 && r.Metadata["owner"] == ""
				}
				if !good {
					t.Errorf("hit %d: %s", hit, describe(r))
				}
			}
			if r := n.check(t, item(""))[0]; r.Status != "ERROR" || r.Metadata["degraded"] != "" {
				t.Errorf("an invalid item: %s", describe(r))
			}
			if owed := metrics(t, n)["weir_debts"]; (policy == member.PolicyLocal) != (owed == 1) ||
				limiter.Stats().Entries != 0 {
				t.Errorf("it owes hits of %v limits, and holds %d states", owed, limiter.Stats().Entries)
			}
			n.peers.Update(n.name, []discovery.Member{{Name: n.name}, {Name: "127.0.0.1:1"}})
			var now struct {
				Status string
				Nodes  int
			}
			err = json.Unmarshal(n.get(t, "/readyz", http.StatusOK), &now)
			if err != nil || now.Status != "ready" || now.Nodes != 2 {
				t.Errorf("/readyz: %+v, %v", now, err)
			}
		})
	}
}

// TestListFromDNS has a node follow DNS: without records it has no place, with them it has; a list that it isn't in
// makes it an outsider, and no list at all changes nothing.
func TestListFromDNS(t *testing.T) {
	const service = "_weir._tcp.cluster.test"
	dns := dnstest.Start(t)
	dns.Host("one.node.test", "127.0.0.1")
	dns.Host("two.node.test", "127.0.0.1")
	n := startLost(t)
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() {
		n.peers.Follow(ctx, discovery.NewSRV(service, dns.Addr), 100*time.Millisecond, "", netip.MustParseAddrPort(n.name))
	})
	defer following.Wait()
	defer stop()
	_, port, _ := net.SplitHostPort(n.name)
	dead := listen(t)
	dead.Close()
	me, other := "one.node.test:"+port, fmt.Sprint("two.node.test:", dead.Addr().(*net.TCPAddr).Port)
	wait := func(what string, is func(view clusterView) bool) {
		t.Helper()
		eventually(t, what, func() bool { return is(n.cluster(t)) })
	}
	names := func(view clusterView) string {
		var names []string
		for _, node := range view.Nodes {
			names = append(names, node.Name)
		}
		return strings.Join(names, " ")
	}
	wait("no node is listed", func(view clusterView) bool {
		return view.Discovery != nil && view.Discovery.Source == service &&
			strings.Contains(view.Discovery.Error, "no service records")
	})
	n.get(t, "/readyz", http.StatusServiceUnavailable)

	dns.Serve(service, other, me)
	wait("two are listed", func(view clusterView) bool {
		return names(view) == me+" "+other && view.Self == me && view.Discovery.Error == ""
	})
	n.get(t, "/readyz", http.StatusOK)

	dns.Serve(service, other)
	wait("this one isn't listed", func(view clusterView) bool {
		return names(view) == other && view.Self == "me" &&
			strings.Contains(view.Discovery.Error, "no listed node is this one")
	})
	n.get(t, "/readyz", http.StatusServiceUnavailable)
	if r := n.check(t, item("k"))[0]; r.Metadata["degraded"] != "owner_unreachable" || r.Metadata["owner"] != "me" {
		t.Error(describe(r))
	}

	dns.Serve(service, me)
	wait("it is listed alone", func(view clusterView) bool { return names(view) == me })
	dns.Serve(service)
	wait("the list is gone", func(view clusterView) bool { return view.Discovery.Failed > 0 })
	if got := names(n.cluster(t)); got != me {
		t.Errorf("an empty answer left %q", got)
	}
	n.get(t, "/readyz", http.StatusOK)
}
