package tests

import (
	"fmt"
	"sync"
	"testing"
)

// use takes hits of some keys, all through the same node.
func (n *node) use(t *testing.T, keys []string, hits int, members ...any) {
	t.Helper()
	for _, r := range n.checkKeys(t, keys, append([]any{"hits", hits}, members...)...) {
		if r.Status != "OK" {
			t.Fatal(describe(r))
		}
	}
}

// wantAll wants the same to remain of all keys, whichever of some nodes is asked.
func wantAll(t *testing.T, keys []string, remaining int64, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		for i, r := range n.checkKeys(t, keys, "hits", 0) {
			if *r.Remaining != remaining || r.Metadata["degraded"] != "" {
				t.Errorf("%s at %s, want %d: %s", keys[i], n.name, remaining, describe(r))
			}
		}
	}
}

func someKeys(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("key-", i))
	}
	return keys
}

// TestOneMoreNode has a node join three others, and leave again. Half of 200 limits is used; no limit shows more than its half
// left at any time, whether its state has been sent already or is asked for.
func TestOneMoreNode(t *testing.T) {
	for _, sent := range []bool{false, true} {
		t.Run(fmt.Sprint("sent ", sent), func(t *testing.T) {
			c := startCluster(t, 3)
			keys := someKeys(200)
			c.nodes[0].use(t, keys, 5)
			fourth := c.add(t)
			c.tellAll()
			if sent {
				c.settle(t)
			}
			wantAll(t, keys, 5, c.nodes...)
			c.settle(t)
			wantAll(t, keys, 5, c.nodes...)
			if n := metrics(t, fourth)["weir_taken_states_total"]; n < 20 || n > 90 {
				t.Errorf("the fourth node took over %v limits", n)
			}
			fourth.peers.Leave()
			if sent {
				c.settle(t)
			}
			fourth.peers.TellLeaving(t.Context())
			wantAll(t, keys, 5, c.nodes...)
			c.settle(t)
			wantAll(t, keys, 5, c.nodes...)
			sum := 0.
			for _, n := range c.nodes[:3] {
				sum += metrics(t, n)["weir_state_entries"]
			}
			if left := metrics(t, fourth)["weir_state_entries"]; sum != 200 || left != 0 {
				t.Errorf("the others hold %v limits, and the fourth still %v", sum, left)
			}
		})
	}
}

// TestLateHit has a node that has not heard of a change ask the former owner, which says who counts now.
func TestLateHit(t *testing.T) {
	c := startCluster(t, 2)
	keys := someKeys(50)
	c.nodes[0].use(t, keys, 5)
	third := c.add(t)
	for _, n := range []*node{c.nodes[0], third} {
		n.peers.Update(n.name, c.members())
	}
	late := c.nodes[1]
	late.use(t, keys, 1) // it doesn't know the third node, so the first counts for it what that took over, and owes it
	wantAll(t, keys, 4, late)
	for range 3 {
		c.settle(t)
	}
	late.peers.Update(late.name, c.members())
	for range 3 {
		c.settle(t)
	}
	wantAll(t, keys, 4, c.nodes...)
}

// TestLeaveUnderLoad has a node leave while all limits are used from the other two. In the end each has admitted its limit
// exactly, since the node hands over all it knows and nobody is cut off.
func TestLeaveUnderLoad(t *testing.T) {
	c := startCluster(t, 3)
	keys := someKeys(20)
	const limit, each = 200, 50
	var mu sync.Mutex
	passed := map[string]int{}
	doubts := 0
	var callers sync.WaitGroup
	done := make(chan struct{})
	for i := range 6 {
		callers.Go(func() {
			n := c.nodes[i%2] // the third is the one that leaves
			for range each {
				for j, r := range n.checkKeys(t, keys, "limit", limit) {
					mu.Lock()
					if r.Status == "OK" {
						passed[keys[j]]++
					}
					if r.Status == "ERROR" {
						t.Error(describe(r))
					}
					if r.Metadata["degraded"] != "" {
						doubts++
					}
					mu.Unlock()
				}
			}
		})
	}
	go func() {
		callers.Wait()
		close(done)
	}()
	last := c.nodes[2]
	last.peers.Leave()
	last.peers.TellLeaving(t.Context())
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		c.settle(t)
	}
	for range 3 {
		c.settle(t)
	}
	for _, key := range keys {
		if n := passed[key]; n != limit {
			t.Errorf("%s: %d passed, want %d (%d answers in doubt)", key, n, limit, doubts)
		}
	}
}

// TestLeaveIsToldByAnyCall: the first call of a node that leaves says so, before its notice arrives.
func TestLeaveIsToldByAnyCall(t *testing.T) {
	c := startCluster(t, 2)
	leaves, stays := c.nodes[0], c.nodes[1]
	keys := c.keysOf(leaves, 20)
	stays.use(t, keys, 5)
	leaves.peers.Leave()
	wantAll(t, keys, 5, leaves, stays)
	if view := stays.cluster(t); len(view.Nodes) != 2 || view.Nodes[0].State == view.Nodes[1].State {
		t.Errorf("%+v", view)
	}
	if leaves.peers.Leave(); leaves.peers.View().Self() != "" {
		t.Error("leaving twice brings it back")
	}
}

// TestComesBack has a node leave and start again under its name: it gets back what it handed over.
func TestComesBack(t *testing.T) {
	c := startCluster(t, 3)
	keys := someKeys(100)
	c.nodes[0].use(t, keys, 5)
	leaves := c.nodes[2]
	leaves.peers.Leave()
	leaves.peers.TellLeaving(t.Context())
	c.settle(t)
	wantAll(t, keys, 5, c.nodes[:2]...)
	leaves.stop()
	c.nodes[2] = c.again(t, leaves)
	c.nodes[2].peers.Update(leaves.name, c.members())
	c.settle(t) // its first call brings it back
	wantAll(t, keys, 5, c.nodes...)
	c.settle(t)
	wantAll(t, keys, 5, c.nodes...)
	owned := 0
	for _, key := range keys {
		if owner, _ := c.owner(key); owner == c.nodes[2] {
			owned++
		}
	}
	if held := metrics(t, c.nodes[2])["weir_state_entries"]; owned == 0 || held != float64(owned) {
		t.Errorf("it holds %v limits, and owns %d", held, owned)
	}
}

// TestGlobalMoves: copies go on when the owner of a GLOBAL limit changes, and what they owe reaches the new one.
func TestGlobalMoves(t *testing.T) {
	c := startCluster(t, 3)
	owner, _ := c.owner("k")
	hit := func(n *node, hits int) result {
		return n.one(t, "k", "limit", 3000, "hits", hits, "behavior", "GLOBAL")
	}
	taken := int64(0)
	for _, n := range c.nodes {
		hit(n, 100)
		hit(n, 10)
		taken += 110
	}
	owner.peers.Leave()
	owner.peers.TellLeaving(t.Context())
	for range 3 {
		c.settle(t)
	}
	for _, n := range c.nodes {
		if n == owner {
			continue
		}
		if r := hit(n, 0); *r.Remaining != 3000-taken {
			t.Errorf("want %d: %s", 3000-taken, describe(r))
		}
	}
}

// TestKilled has a node die: what it alone knew is lost, and said to be; what others owe it is not.
func TestKilled(t *testing.T) {
	c := startCluster(t, 2)
	dies, other := c.nodes[0], c.nodes[1]
	keys := c.keysOf(dies, 5)
	other.use(t, keys, 3)
	dies.stop()
	other.use(t, keys, 2) // here, and owed
	c.nodes[0] = c.again(t, dies)
	c.nodes[0].peers.Update(dies.name, c.members())
	eventually(t, "the other hears of it", func() bool {
		other.global.Sync(t.Context())
		return metrics(t, other)["weir_debts"] == 0
	})
	wantAll(t, keys, 8, c.nodes...)
	if n := metrics(t, other)["weir_peer_restarts_without_handover_total"]; n != 1 {
		t.Errorf("%v restarts are said to have lost something, want 1", n)
	}
}
