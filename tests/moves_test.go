package tests

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
	"weir/peers/discovery"
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

// TestOneMoreNode has a node join three others, and leave again. Half of 200 limits is used; no limit shows more than
// its half left at any time, whether its state has been sent already or is asked for.
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

// TestLeaveUnderLoad has a node leave while all limits are used from the other two. In the end each has admitted its
// limit exactly, since the node hands over all it knows and no caller is cut off.
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
	dies.kill()
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

// know tells a node a list of some nodes. If it isn't among them it is an outsider.
func (n *node) know(some ...*node) {
	self := ""
	var list []discovery.Member
	for _, other := range some {
		list = append(list, discovery.Member{Name: other.name})
		if other == n {
			self = n.name
		}
	}
	n.peers.Update(self, list)
}

// ownerOf returns the owner of a key by the list of n.
func (n *node) ownerOf(key string) string {
	r := limits.Request{Name: "test", UniqueKey: key}
	if owner := n.peers.View().Owner(r.AppendID(nil)); owner != nil {
		return owner.Name()
	}
	return n.name
}

// TestListsDiffer has four nodes with three different lists, all of which are asked. Of no limit passes more than once
// what it is for each node that one of the lists has own it. Once the lists are the same, one node knows of all that
// has passed.
func TestListsDiffer(t *testing.T) {
	for _, moving := range []bool{false, true} {
		t.Run(fmt.Sprint("moving ", moving), func(t *testing.T) {
			c := startCluster(t, 4)
			a, b, cc, d := c.nodes[0], c.nodes[1], c.nodes[2], c.nodes[3]
			keys := someKeys(60)
			passed := map[string]int64{}
			hit := func(n *node) {
				for i, r := range n.checkKeys(t, keys) {
					if r.Status == "OK" {
						passed[keys[i]]++
					} else if r.Status != "OVER_LIMIT" {
						t.Error(describe(r))
					}
				}
			}
			for _, n := range c.nodes { // four of ten, while they agree
				hit(n)
			}
			a.know(a, b, cc)
			b.know(a, b, cc, d)
			cc.know(b, cc, d)
			d.know(a, b, cc, d)
			for range 12 {
				for _, n := range c.nodes {
					hit(n)
				}
				if moving {
					c.settle(t)
				}
			}
			for _, key := range keys {
				owners := map[string]bool{}
				for _, n := range c.nodes {
					owners[n.ownerOf(key)] = true
				}
				if n := passed[key]; n < 10 || n > 10*int64(len(owners)) {
					t.Errorf("%s: %d passed, with %d owners", key, n, len(owners))
				}
			}
			c.tellAll()
			for range 3 {
				c.settle(t)
			}
			c.wantUsed(t, passed)
			for _, n := range c.nodes {
				wantAll(t, keys, 0, n)
			}
		})
	}
}

// wantUsed wants the owners to know of all hits that have passed, by key, and no other node to hold anything.
func (c *cluster) wantUsed(t *testing.T, passed map[string]int64) {
	t.Helper()
	const limit = 1_000_000
	keys := slices.Collect(maps.Keys(passed))
	for _, n := range c.nodes {
		for i, r := range n.checkKeys(t, keys, "hits", 0, "limit", limit) {
			if want := passed[keys[i]]; limit-*r.Remaining != want || r.Metadata["degraded"] != "" {
				t.Errorf("%s: %d passed, and %s answers %s", keys[i], want, n.name, describe(r))
			}
		}
	}
	if held := c.sum(t, "weir_state_entries"); held != len(keys) {
		t.Errorf("%d states are held of %d limits", held, len(keys))
	}
}

// sum adds up a number of all nodes.
func (c *cluster) sum(t *testing.T, metric string) (sum int) {
	t.Helper()
	for _, n := range c.nodes {
		sum += int(metrics(t, n)[metric])
	}
	return sum
}

// TestFlappingMovesLittle has one node lose another one from its list, and find it again, many times, while all are
// asked. What it counts meanwhile moves once for each change. When that is over nothing moves any more.
func TestFlappingMovesLittle(t *testing.T) {
	c := startCluster(t, 3)
	sees, other, flaps := c.nodes[0], c.nodes[1], c.nodes[2]
	keys := append(c.keysOf(flaps, 30), c.keysOf(other, 10)...)
	passed := map[string]int64{}
	const changes = 40
	for i := range changes {
		if i%2 == 0 {
			sees.know(sees, other)
		} else {
			sees.know(c.nodes...)
		}
		for _, n := range c.nodes {
			n.use(t, keys, 1, "limit", 1_000_000)
			c.settle(t)
		}
		for _, key := range keys {
			passed[key] += int64(len(c.nodes))
		}
	}
	for range 3 {
		c.settle(t)
	}
	c.wantUsed(t, passed)
	moved, taken := c.sum(t, "weir_moved_states_total"), c.sum(t, "weir_taken_states_total")
	if moved != taken || moved == 0 || moved > changes/2*30 {
		t.Errorf("with %d changes of 30 limits' owner %d states were given, and %d taken", changes, moved, taken)
	}
	for range 10 {
		c.settle(t)
	}
	if now := c.sum(t, "weir_moved_states_total"); now != moved {
		t.Errorf("%d more states have moved since", now-moved)
	}
}

// leave has a node leave, which only some of the others hear from it.
func (c *cluster) leave(t *testing.T, n *node, hear ...*node) {
	t.Helper()
	for _, other := range c.nodes {
		if !slices.Contains(hear, other) {
			c.wires.set(n, other, cut)
		}
	}
	n.peers.Leave()
	n.peers.TellLeaving(t.Context())
	for _, other := range c.nodes {
		c.wires.set(n, other, whole)
	}
}

// TestNewOwnerHasNotHeard has a node leave, which its successor hears only when it is asked, by a client, or as its
// successor by a node that has heard: it makes sure, and takes over before it counts.
func TestNewOwnerHasNotHeard(t *testing.T) {
	for _, byClient := range []bool{false, true} {
		t.Run(fmt.Sprint("by a client ", byClient), func(t *testing.T) {
			c := startCluster(t, 3)
			leaves, knows, successor := c.nodes[0], c.nodes[1], c.nodes[2]
			all := c.keysOf(leaves, 40)
			knows.use(t, all, 5)
			c.leave(t, leaves, knows)
			keys := slices.DeleteFunc(all, func(key string) bool { return knows.ownerOf(key) != successor.name })
			if len(keys) == 0 || successor.ownerOf(keys[0]) != leaves.name {
				t.Fatalf("%d limits, and the successor says that %s owns them", len(keys), successor.ownerOf(keys[0]))
			}
			if byClient {
				successor.use(t, keys, 1)
			} else {
				knows.use(t, keys, 1)
			}
			wantAll(t, keys, 4, c.nodes...)
			if n := metrics(t, successor)["weir_taken_states_total"]; int(n) != len(keys) {
				t.Errorf("%v states were taken over, of %d", n, len(keys))
			}
		})
	}
}

// wantAtMost wants no more than that to remain, and no answer in doubt.
func wantAtMost(t *testing.T, most int64, results []result) {
	t.Helper()
	for _, r := range results {
		if *r.Remaining > most || r.Metadata["degraded"] != "" {
			t.Errorf("want %d at most: %s", most, describe(r))
		}
	}
}

// TestLeavesWhileItAsks has a node join and leave again while it still asks for the states of what it is asked for,
// itself or by another node. The node that counts then goes on from them. What is on its way to a node that leaves, and
// is given back by it, may count twice; no limit has more left than before.
func TestLeavesWhileItAsks(t *testing.T) {
	for _, itself := range []bool{false, true} {
		t.Run(fmt.Sprint("itself ", itself), func(t *testing.T) {
			c := startCluster(t, 2)
			before, other := c.nodes[0], c.nodes[1]
			all := c.keysOf(before, 60)
			other.use(t, all, 5)
			comes := c.add(t)
			c.tellAll()
			keys := slices.DeleteFunc(all, func(key string) bool { return other.ownerOf(key) != comes.name })
			c.wires.set(comes, before, slow)
			asked := other
			if itself {
				asked = comes
			}
			calls := c.wires.countCalls()
			var caller sync.WaitGroup
			var results []result
			caller.Go(func() { results = asked.checkKeys(t, keys) })
			more := 2 // the check, and the question
			if itself {
				more = 1
			}
			eventually(t, "it asks", func() bool { return c.wires.countCalls() >= calls+more })
			comes.peers.Leave()
			c.wires.set(comes, before, whole)
			caller.Wait()
			wantAtMost(t, 4, results)
			for _, r := range results {
				if r.Metadata["owner"] == comes.name {
					t.Errorf("who leaves has counted: %s", describe(r))
				}
			}
			wantAtMost(t, 3, asked.checkKeys(t, keys))
			for range 3 {
				for _, n := range c.nodes {
					wantAtMost(t, 3, n.checkKeys(t, keys, "hits", 0))
				}
				c.settle(t)
			}
		})
	}
}

// TestBackUnheard has a node come back, which one of the others has not heard of; and the list changes once more before
// that asks who counted meanwhile.
func TestBackUnheard(t *testing.T) {
	c := startCluster(t, 4)
	meanwhile, late, back, last := c.nodes[0], c.nodes[1], c.nodes[2], c.nodes[3]
	all := c.keysOf(back, 60)
	late.use(t, all, 5)
	c.leave(t, back, meanwhile, late, last)
	c.settle(t)
	keys := slices.DeleteFunc(all, func(key string) bool { return late.ownerOf(key) != meanwhile.name })
	back.stop()
	c.wires.set(late, back, cut) // or it finds out by itself
	members := c.members()
	back = c.again(t, back)
	c.nodes[2] = back
	c.wires.set(back, late, cut)
	back.peers.Update(back.name, members)
	c.settle(t)
	c.leave(t, last, meanwhile, late, back)
	c.settle(t)
	if late.ownerOf(keys[0]) != meanwhile.name || meanwhile.ownerOf(keys[0]) != back.name {
		t.Fatal("it has heard")
	}
	c.wires.set(late, back, whole)
	late.use(t, keys, 1)
	wantAll(t, keys, 4, meanwhile, late, back)
}

// TestAsksOnce: what a new owner has taken over, or begun anew, it asks no node for again.
func TestAsksOnce(t *testing.T) {
	c := startCluster(t, 2)
	comes := c.add(t)
	c.tellAll()
	keys := c.keysOf(comes, 20)
	comes.use(t, keys, 1)
	calls := c.wires.countCalls()
	comes.use(t, keys, 1)
	if more := c.wires.countCalls() - calls; calls == 0 || more != 0 {
		t.Errorf("%d calls, and then %d more", calls, more)
	}
}

// TestStandsInAsOwner has a new owner be asked to stand in for another, by a node that hasn't heard that it is one: it
// takes over what was counted before, all the same.
func TestStandsInAsOwner(t *testing.T) {
	c := startCluster(t, 2)
	keys := someKeys(20)
	c.nodes[0].use(t, keys, 5)
	comes := c.add(t)
	c.tellAll()
	key := keys[slices.IndexFunc(keys, func(key string) bool { return comes.ownerOf(key) == comes.name })]
	body := fmt.Sprintf(`{"rate_limits":[%s]}`, item(key, "behavior", bucket.StandIn))
	if status, answer := comes.tell(t, wire.BatchPath, body); status != http.StatusOK || !strings.Contains(answer,
		`"remaining":4`) {
		t.Errorf("%d %s", status, answer)
	}
}

// TestTakesBackWhatItHandsOver has a node take another one for the owner for a moment, and then itself again. What the
// other has counted meanwhile comes back, though it has never had another list.
func TestTakesBackWhatItHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 2)
		a, b := c.nodes[0], c.nodes[1]
		keys := c.keysOf(b, 20)
		a.looksAgain(t) // so that it has no reason left to
		b.know(a)
		a.use(t, keys, 4)
		b.know(a, b)
		a.looksAgain(t)
		if held := metrics(t, a)["weir_state_entries"]; held != 0 {
			t.Errorf("it still holds %v limits", held)
		}
		wantAll(t, keys, 6, a, b)
	})
}

// looksAgain lets the time of a bubble pass in which a node looks for limits that belong elsewhere, if it has a reason
// to.
func (n *node) looksAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	n.member.Run(ctx)
}
