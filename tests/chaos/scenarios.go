package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// The scenarios. What they check besides is what settle does: that all nodes that are there say the same, and what is right.
var scenarios = map[string]func(*run){
	"a": oneGoneOneRestarted, "b": oneLeftOthersRestarted, "c": twoAtOnce, "d": takenAndGivenBack, "e": resetAway, "f": noThirdBudget,
	"g": globalOwnerRestarted, "h": globalFlood, "i": globalFarAway, "j": lateMessages, "k": idleNodes, "l": drainingClients,
	"m": undrainedClients, "n": scaledByDNS, "calm": nothing, "full": fullCaches, "random": randomFaults,
}

// scenarioNames returns all names, the rows first, and the random one last.
func scenarioNames() []string {
	return slices.SortedFunc(maps.Keys(scenarios), func(a, b string) int {
		return len(a)*1000 + int(a[0]) - len(b)*1000 - int(b[0])
	})
}

var algorithms = []string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"}

func pick[T any](r *run, from ...T) T { return from[r.rng.IntN(len(from))] }

// limitsOf adds limits that a node holds.
func (c *cluster) limitsOf(n *node, count int, prefix string, like limit) []*ledger {
	before := len(c.all())
	c.limits(50*count, prefix, like)
	held := c.heldBy([]*node{n})
	c.mu.Lock()
	defer c.mu.Unlock()
	some := slices.DeleteFunc(slices.Clone(c.ledgers[before:]), func(l *ledger) bool { return !held[l] })
	c.ledgers = append(c.ledgers[:before:before], some[:count]...)
	return some[:count]
}

// each takes some hits of each limit, or gives them back, unless they weren't taken.
func (c *caller) each(n *node, all []*ledger, hits int64) {
	for some := range slices.Chunk(all, 50) {
		var ops []op
		for _, l := range some {
			ops = append(ops, op{ledger: l, hits: max(hits, -l.owned)})
		}
		c.do(n, ops...)
	}
}

// awaitOut waits until others count for a node that is away, whatever limit they are asked for.
func (c *cluster) awaitOut(away *node, all []*ledger) {
	c.await(patience, func() string {
		for _, n := range c.alive() {
			results, err := c.post(c.admin, n, looks(all))
			if err != nil {
				return err.Error()
			}
			for _, r := range results {
				if why := r.Metadata["degraded"]; !told[why] || r.Metadata["owner"] == away.name {
					return n.name + " still waits for " + away.name + ": " + why
				}
			}
		}
		return ""
	})
}

// away kills a node or freezes it, and waits until others count for it. The returned function brings it back.
func (c *cluster) away(n *node, how string, all []*ledger) (back func()) {
	if how == "kill" {
		c.kill(n)
		back = func() { c.again(n) }
	} else {
		back = c.freeze(n)
	}
	c.awaitOut(n, all)
	return back
}

func oneGoneOneRestarted(r *run) {
	c := r.start(options{n: pick(r, 3, 3, 4, 5)})
	all := c.limits(150, "a", limit{item: item{Limit: 10, Algorithm: pick(r, algorithms...)}})
	back := c.away(c.nodes[1], pick(r, "kill", "freeze"), all)
	c.caller(0, false).each(c.nodes[0], all, 4)
	c.bounce(0, c.nodes[2])
	c.settle(patience)
	back()
	c.settle(patience)
}

func oneLeftOthersRestarted(r *run) {
	c := r.start(options{n: pick(r, 3, 3, 4, 5), drain: pick(r, time.Second, 0)})
	all := c.limits(40, "b", limit{item: item{Limit: 60, Algorithm: pick(r, algorithms...)}})
	stop := c.load(4, 20*time.Millisecond, false, all...)
	time.Sleep(500 * time.Millisecond) // of load
	c.leave(0, c.nodes[1])
	for i, n := range c.nodes {
		if i != 1 {
			c.bounce(0, n)
		}
	}
	stop()
	c.settle(patience)
	c.again(c.nodes[1])
	c.settle(patience)
}

func twoAtOnce(r *run) {
	c := r.start(options{n: pick(r, 3, 4, 5), drain: pick(r, 0, 2*time.Second)})
	all := c.limits(40, "c", limit{item: item{Limit: 50, Algorithm: pick(r, algorithms...)}, gives: pick(r, true, false)})
	stop := c.load(4, 20*time.Millisecond, false, all...)
	time.Sleep(500 * time.Millisecond)
	c.bounce(pick(r, 0, 500*time.Millisecond), c.nodes[1], c.nodes[2])
	stop()
	c.settle(patience)
}

func takenAndGivenBack(r *run) {
	c := r.start(options{n: 3, timeout: time.Second})
	var all []*ledger
	for _, algorithm := range algorithms {
		all = append(all, c.limitsOf(c.nodes[1], 1, "d", limit{item: item{Limit: 10, Algorithm: algorithm}})...)
		all = append(all, c.limitsOf(c.nodes[1], 1, "d", limit{item: item{Limit: 10, Algorithm: algorithm, Behavior: global}})...)
	}
	caller := c.caller(0, false)
	caller.each(c.nodes[0], all, 1)
	caller.each(c.nodes[0], all, -1)
	back := c.away(c.nodes[1], pick(r, "kill", "freeze"), all)
	for i := range 500 {
		caller.each(c.nodes[0], all, 1)
		caller.each(c.nodes[i%2*2], all, -1)
	}
	back()
	c.settle(patience)
}

func resetAway(r *run) {
	c := r.start(options{n: 3, timeout: time.Second})
	var all []*ledger
	for _, algorithm := range algorithms {
		all = append(all, c.limitsOf(c.nodes[1], 1, "e", limit{item: item{Limit: 10, Algorithm: algorithm}})...)
	}
	caller := c.caller(0, false)
	for range 12 {
		caller.each(c.nodes[0], all, 1)
	}
	back := c.away(c.nodes[1], pick(r, "kill", "freeze"), all)
	for range 5 {
		for _, l := range all {
			caller.one(c.nodes[0], op{ledger: l, whole: true})
		}
		for range 11 {
			caller.each(c.nodes[0], all, 1)
		}
	}
	back()
	c.settle(patience)
}

// noThirdBudget kills the owner of limits that are spent, spends them where others count for it, and asks it at once when it is back.
func noThirdBudget(r *run) {
	c := r.start(options{n: 3})
	var all []*ledger
	for _, algorithm := range algorithms {
		all = append(all, c.limitsOf(c.nodes[1], 2, "f", limit{item: item{Limit: 50, Algorithm: algorithm}})...)
	}
	caller := c.caller(0, false)
	spend := func(while time.Duration, nodes ...*node) {
		for end := time.Now().Add(while); time.Now().Before(end); {
			for _, n := range nodes {
				caller.each(n, all, 1)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	spend(500*time.Millisecond, c.nodes...)
	c.kill(c.nodes[1])
	spend(1500*time.Millisecond, c.nodes[0], c.nodes[2])
	c.launch(c.nodes[1])
	spend(2*time.Second, c.nodes[1])
	c.waitReady(c.nodes[1])
	c.settle(patience)
}

// shortly is some intervals of GLOBAL limits, and the life of a copy, and what a busy machine needs.
const shortly = 6 * time.Second

func globalOwnerRestarted(r *run) {
	c := r.start(options{n: 3})
	owner, how := c.nodes[1], pick(r, "leave", "kill", "away")
	all := c.limitsOf(owner, 8, "g", limit{item: item{Limit: 100, Behavior: global, Algorithm: pick(r, algorithms...)}})
	caller := c.caller(0, false)
	for i := range 110 {
		caller.each(c.nodes[i%3], all, 1)
	}
	c.settle(shortly)
	if how == "kill" {
		c.kill(owner)
	} else {
		c.leave(0, owner)
	}
	if how != "away" {
		c.again(owner)
	}
	c.settle(patience)
	at := c.alive()[0]
	if how != "away" {
		at = owner
	}
	if pick(r, true, false) {
		caller.each(c.alive()[0], all, -50)
	} else {
		for _, l := range all {
			caller.one(at, op{ledger: l, whole: true})
		}
	}
	c.settle(shortly)
}

// flood asks a node for limits that are asked for once, and that nothing is known of but that they take room.
func (c *cluster) flood(n *node, count, behavior int) {
	client := newClient(false, slowest)
	defer client.CloseIdleConnections()
	for i := 0; i < count; i += 500 {
		var items []item
		for j := i; j < i+500; j++ {
			items = append(items, item{Name: "flood", Key: fmt.Sprint(n.name, j), Hits: 1, Limit: 10, Duration: hour, Behavior: behavior})
		}
		if _, err := c.post(client, n, items); err != nil {
			c.Errorf("flood: %v", err)
			return
		}
	}
}

func globalFlood(r *run) {
	const size = 20_000
	c := r.start(options{n: 3, env: []string{fmt.Sprint("WEIR_CACHE_SIZE=", size)}})
	all := c.limitsOf(c.nodes[0], 30, "h", limit{item: item{Limit: 100, Behavior: global, Algorithm: pick(r, algorithms...)}})
	caller := c.caller(0, false)
	for range 6 {
		caller.each(c.nodes[1], all, 20)
	}
	c.settle(shortly)
	c.flood(c.nodes[2], size, global) // a third of it is owned by node 0, more than the copies that it may know of
	for _, l := range all {
		caller.one(c.nodes[0], op{ledger: l, whole: true})
	}
	c.settle(shortly)
}

func globalFarAway(r *run) {
	c := r.start(options{n: 3, dns: true, links: true})
	for _, l := range c.links {
		l.set(weather{delay: time.Duration(pick(r, 30, 40)) * time.Millisecond})
	}
	small := c.limits(4, "i", limit{item: item{Limit: 100, Behavior: global, Algorithm: pick(r, algorithms...)}, strict: true})
	large := c.limits(4, "i", limit{item: item{Limit: 1000, Behavior: global, Algorithm: pick(r, algorithms...)}, strict: true})
	stop := c.load(6, 10*time.Millisecond, false, append(small, large...)...)
	c.await(patience, func() string {
		for _, l := range append(small, large...) {
			l.mu.Lock()
			net := l.net
			l.mu.Unlock()
			if net < l.Limit {
				return l.Key + " isn't spent"
			}
		}
		return ""
	})
	stop()
	c.settle(shortly)
}

// lateMessages has publications of GLOBAL limits be late, and then states that move. Neither may change when a limit is whole again.
func lateMessages(r *run) {
	c := r.start(options{n: 3, dns: true, links: true})
	owner, other, caller := c.nodes[0], c.nodes[1], c.caller(0, false)
	l := c.limitsOf(owner, 1, "j", limit{item: item{Limit: 100, Duration: 3000, Behavior: global}, short: true})[0]
	for range 3 {
		c.links[[2]int{0, 1}].set(weather{})
		for _, n := range []*node{other, owner, other} { // so that they know each other's clocks, and it has a copy
			caller.one(n, op{ledger: l, hits: 10})
			time.Sleep(200 * time.Millisecond)
		}
		c.links[[2]int{0, 1}].set(weather{delay: 400 * time.Millisecond})
		for caller.one(owner, op{ledger: l, hits: 10}).Status == "OK" {
		}
		whole := caller.one(owner, op{ledger: l, hits: 10}).ResetTime
		time.Sleep(700 * time.Millisecond) // the other one is not to ask before it was told
		for {
			sent := time.Now().UnixMilli()
			o := caller.one(other, op{ledger: l, hits: 10})
			if o.Status == "OK" && sent > whole {
				break
			}
			if o.Status != "OK" && (o.ResetTime < sent-20 || sent > whole+150) {
				c.Fatal(fmt.Sprintf("%d ms before the reset %s refuses, and tells a reset %d ms ahead: %v", whole-sent, other.name,
					o.ResetTime-sent, o.Metadata))
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	c.links[[2]int{0, 1}].set(weather{})
	c.lateStates(owner, caller)
}

// lateStates has a node leave that the others hear only seconds later.
func (c *cluster) lateStates(n *node, caller *caller) {
	all := c.limitsOf(n, 30, "moved", limit{item: item{Limit: 10, Duration: 60_000}})
	whole := map[*ledger]int64{}
	for _, l := range all {
		whole[l] = caller.one(n, op{ledger: l, hits: 3}).ResetTime
	}
	stall := func(on bool) {
		for ends, l := range c.links {
			if ends[0] == n.number {
				l.set(weather{stalled: [2]bool{forth: on}})
			}
		}
	}
	stall(true)
	time.AfterFunc(2*time.Second, func() { stall(false) })
	c.leave(0, n)
	c.settle(patience)
	for _, l := range all {
		for _, other := range c.alive() {
			if got := caller.one(other, op{ledger: l}).ResetTime; got < whole[l]-100 || got > whole[l]+100 {
				c.Fatal(fmt.Sprintf("a limit that moved in 2 s is whole %d ms later than it was", got-whole[l]))
			}
		}
	}
}

// idleNodes: nobody asks for anything. That a node is away is seen all the same, and also that a name in the list is wrong.
func idleNodes(r *run) {
	c := r.start(options{n: 3})
	c.kill(c.nodes[1])
	c.seenAway(c.nodes[1].name)
	c.again(c.nodes[1])
	c.settle(patience)
	const misspelt = "misspelt.invalid:1"
	r.start(options{n: 2, stranger: misspelt}).seenAway(misspelt)
}

// seenAway waits until all say of a node that it isn't there, in the log, in the metrics and at /v1/peers.
func (c *cluster) seenAway(name string) {
	const soon = 5 * time.Second // 3, and what a busy machine needs
	c.await(soon, func() string {
		for _, n := range c.alive() {
			states, err := c.peers(n)
			if err != nil || states[name] == "up" {
				return fmt.Sprint(n.name, " takes ", name, " for ", states[name], err)
			}
			if c.metric(n, fmt.Sprintf(`weir_peer_state{peer="%s",state="up"}`, name)) != 0 {
				return n.name + " says so in its metrics"
			}
			warned := slices.ContainsFunc(strings.Split(n.log.all(), "\n"), func(line string) bool {
				return strings.Contains(line, name) && strings.Contains(line, "warn")
			})
			if !warned {
				return n.name + " doesn't warn of " + name
			}
		}
		return ""
	})
}

// drainingClients: clients that keep connections ask on while a node stops with a delay. Each of its answers ends a connection, in time.
func drainingClients(r *run) {
	c := r.start(options{n: 3, drain: 2 * time.Second})
	all := c.limits(20, "l", limit{item: item{Limit: 1_000_000}})
	stop := c.load(72, 150*time.Millisecond, true, all...)
	time.Sleep(500 * time.Millisecond)
	c.bounce(0, c.nodes[1])
	stop()
	c.settle(patience)
}

// undrainedClients: the same without a delay, but clients ask elsewhere when their connection is refused.
func undrainedClients(r *run) {
	c := r.start(options{n: 3})
	all := c.limits(20, "m", limit{item: item{Limit: 1_000_000}})
	stop := c.load(16, 20*time.Millisecond, true, all...)
	for range 2 {
		for _, n := range c.nodes {
			c.bounce(0, n)
			time.Sleep(500 * time.Millisecond)
		}
	}
	stop()
	c.settle(patience)
	if broken, sent := c.broken.Load(), c.sent.Load(); broken*3000 > sent {
		c.Errorf("%d of %d requests broke", broken, sent)
	}
}

// scaledByDNS has a fourth node join, and leave again. The others hear of it at different times. It isn't ready before they have.
func scaledByDNS(r *run) {
	c := r.start(options{n: 3, spare: 1, dns: true, drain: pick(r, 0, time.Second)})
	joins := c.nodes[3]
	all := c.limits(60, "n", limit{item: item{Limit: 300, Algorithm: pick(r, algorithms...)}})
	stop := c.load(4, 20*time.Millisecond, false, all...)
	joins.listed = true
	c.side() // while lists differ
	c.worse(absent)
	var told sync.WaitGroup
	for i, dns := range c.dns {
		told.Go(func() {
			time.Sleep(time.Duration(i%3) * time.Second)
			c.list(dns)
		})
	}
	c.again(joins)
	for _, n := range c.nodes[:3] {
		if states, err := c.peers(n); err == nil && states[joins.name] == "" {
			c.Errorf("%s is ready, and %s hasn't heard of it", joins.name, n.name)
		}
	}
	told.Wait()
	time.Sleep(time.Second)
	c.settle(patience)
	c.side()
	c.leave(0, joins)
	joins.listed = false
	c.list(c.dns...)
	time.Sleep(2 * time.Second)
	stop()
	c.settle(patience)
}

// fullCaches floods two nodes with limits that are asked for once, more than they have room for. Those that are in use are not
// forgotten, also when a node leaves.
func fullCaches(r *run) {
	const size = 10_000
	c := r.start(options{n: 3, env: []string{fmt.Sprint("WEIR_CACHE_SIZE=", size)}})
	all := c.limits(20, "full", limit{item: item{Limit: 100, Algorithm: pick(r, algorithms...)}, gives: true})
	stop := c.load(4, 10*time.Millisecond, false, all...)
	c.flood(c.nodes[0], 4*size, 0)
	c.bounce(0, c.nodes[1])
	c.flood(c.nodes[1], 4*size, 0)
	stop()
	c.settle(patience)
}

// nothing happens, but for load of all kinds.
func nothing(r *run) {
	c := r.start(options{n: 2 + r.rng.IntN(4)})
	stop := c.load(6, 20*time.Millisecond, false, c.mixture()...)
	for range 3 {
		c.during(500, 1500)
		c.settle(shortly)
	}
	stop()
}
