package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// The scenarios. Besides what they check, settle checks that all nodes that are there say the same of all limits, and
// what is right.
var scenarios = map[string]func(*run){
	"a": oneGoneOneRestarted, "b": oneLeftOthersRestarted, "c": twoAtOnce, "d": takenAndGivenBack, "e": resetAway,
	"f": noThirdBudget, "g": globalOwnerRestarted, "h": globalFlood, "i": globalFarAway, "j": lateMessages, "k": idleNodes,
	"l": drainingClients, "m": undrainedClients, "n": scaledByDNS, "calm": nothing, "full": fullCaches,
	"full-restart": fullRestart, "random": randomFaults,
}

// onDemand are those that are not played unless they are asked for.
var onDemand = map[string]bool{"random": true, "full-restart": true}

// scenarioNames returns all names, those of one letter first.
func scenarioNames() []string {
	return slices.SortedFunc(maps.Keys(scenarios), func(a, b string) int {
		if byLength := min(len(a), 2) - min(len(b), 2); byLength != 0 {
			return byLength
		}
		return strings.Compare(a, b)
	})
}

var algorithms = []string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"}

func pick[T any](r *run, from ...T) T { return from[r.rng.IntN(len(from))] }

// limitsOf adds limits of all algorithms that a node holds, so many of each.
func (c *cluster) limitsOf(n *node, count int, prefix string, like limit) (all []*ledger) {
	for _, algorithm := range algorithms {
		like.Algorithm = algorithm
		before := len(c.all())
		c.limits(50*count, prefix, like)
		held := c.heldBy(n)
		c.mu.Lock()
		some := slices.DeleteFunc(slices.Clone(c.ledgers[before:]), func(l *ledger) bool { return !held[l] })[:count]
		c.ledgers = append(c.ledgers[:before:before], some...)
		c.mu.Unlock()
		all = append(all, some...)
	}
	return all
}

// each takes some hits of each limit, or gives them back.
func (c *caller) each(n *node, all []*ledger, hits int64) {
	for some := range slices.Chunk(all, 50) {
		var ops []op
		for _, l := range some {
			ops = append(ops, l.op(hits))
		}
		c.do(n, ops...)
	}
}

// whole makes each limit whole.
func (c *caller) whole(n *node, all []*ledger) {
	for _, l := range all {
		c.one(n, op{ledger: l, whole: true})
	}
}

// away kills a node or freezes it, and waits until others count for it, whatever they are asked for. The returned
// function brings it back.
func (c *cluster) away(n *node, all []*ledger) (back func()) {
	if pick(c.run, true, false) {
		c.kill(n)
		back = func() { c.again(n) }
	} else {
		back = c.freeze(n)
	}
	c.await(patience, func() string {
		for _, other := range c.alive() {
			results, err := c.post(c.admin, other, looks(all))
			if err != nil {
				return err.Error()
			}
			for _, r := range results {
				if m := r.Metadata; !told[m["degraded"]] || m["owner"] == n.name {
					return fmt.Sprint(other.name, " still waits for ", n.name, ": ", m)
				}
			}
		}
		return ""
	})
	return back
}

func oneGoneOneRestarted(r *run) {
	c := r.start(options{n: pick(r, 3, 3, 4, 5)})
	all := c.limits(150, "a", limit{item: item{Limit: 10, Algorithm: pick(r, algorithms...)}})
	back := c.away(c.nodes[1], all)
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
	c.during(400, 600)
	c.leave(c.nodes[1])
	for _, n := range c.alive() {
		c.bounce(0, n)
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
	c.during(400, 600)
	c.bounce(pick(r, 0, 500*time.Millisecond), c.nodes[1], c.nodes[2])
	stop()
	c.settle(patience)
}

func takenAndGivenBack(r *run) {
	c := r.start(options{n: 3, timeout: time.Second})
	all := c.limitsOf(c.nodes[1], 1, "d", limit{item: item{Limit: 10}})
	all = append(all, c.limitsOf(c.nodes[1], 1, "d", limit{item: item{Limit: 10, Behavior: global}})...)
	caller := c.caller(0, false)
	caller.each(c.nodes[0], all, 1)
	caller.each(c.nodes[0], all, -1)
	back := c.away(c.nodes[1], all)
	for i := range 500 {
		caller.each(c.nodes[0], all, 1)
		caller.each(c.nodes[i%2*2], all, -1)
	}
	back()
	c.settle(patience)
}

func resetAway(r *run) {
	c := r.start(options{n: 3, timeout: time.Second})
	all := c.limitsOf(c.nodes[1], 1, "e", limit{item: item{Limit: 10}})
	caller := c.caller(0, false)
	for range 12 {
		caller.each(c.nodes[0], all, 1)
	}
	back := c.away(c.nodes[1], all)
	for range 5 {
		caller.whole(c.nodes[0], all)
		for range 11 {
			caller.each(c.nodes[0], all, 1)
		}
	}
	back()
	c.settle(patience)
}

// noThirdBudget kills the owner of limits that are spent, has them spent where others count for it, and asks it at
// once when it is back.
func noThirdBudget(r *run) {
	c := r.start(options{n: 3})
	all := c.limitsOf(c.nodes[1], 2, "f", limit{item: item{Limit: 50}})
	caller := c.caller(0, false)
	spend := func(while time.Duration, nodes ...*node) {
		for end := time.Now().Add(while); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			for _, n := range nodes {
				caller.each(n, all, 1)
			}
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

// shortly is some intervals of GLOBAL limits, or the life of a copy, and what a busy machine needs.
const shortly = 6 * time.Second

func globalOwnerRestarted(r *run) {
	c := r.start(options{n: 3})
	owner, how := c.nodes[1], pick(r, "leave", "kill", "stay away")
	all := c.limitsOf(owner, 3, "g", limit{item: item{Limit: 100, Behavior: global}})
	caller := c.caller(0, false)
	for i := range 110 {
		caller.each(c.nodes[i%3], all, 1)
	}
	c.settle(shortly)
	if how == "kill" {
		c.kill(owner)
	} else {
		c.leave(owner)
	}
	at := c.nodes[0]
	if how != "stay away" {
		c.again(owner)
		at = owner
	}
	c.settle(patience)
	if pick(r, true, false) {
		caller.whole(at, all)
	} else {
		caller.each(c.nodes[0], all, -50)
	}
	c.settle(shortly)
}

// flood asks a node for limits that are asked for once, and that take room.
func (c *cluster) flood(n *node, count, behavior int) {
	for i := 0; i < count; i += 500 {
		var items []item
		for j := i; j < i+500; j++ {
			like := item{Name: "flood", Key: fmt.Sprint(n.name, j), Hits: 1, Limit: 10, Duration: hour, Behavior: behavior}
			items = append(items, like)
		}
		if _, err := c.post(c.caller(0, false).client, n, items); err != nil {
			c.Errorf("flood: %v", err)
			return
		}
		c.during(30, 50) // so that limits in use are asked for in between
	}
}

func globalFlood(r *run) {
	const size = 20_000
	c := r.start(options{n: 3, cache: size})
	all := c.limitsOf(c.nodes[0], 10, "h", limit{item: item{Limit: 100, Behavior: global}})
	caller := c.caller(0, false)
	for range 6 {
		caller.each(c.nodes[1], all, 20)
	}
	c.settle(shortly)
	c.flood(c.nodes[2], size, global) // a third of it is owned by node 0, which is more copies than it may know of
	caller.whole(c.nodes[0], all)
	c.settle(shortly)
}

func globalFarAway(r *run) {
	c := r.start(options{n: 3, dns: true, links: true})
	c.weather(weather{delay: time.Duration(pick(r, 30, 40)) * time.Millisecond})
	var all []*ledger
	for _, most := range []int64{100, 1000} {
		like := limit{item: item{Limit: most, Behavior: global, Algorithm: pick(r, algorithms...)}, strict: true}
		all = append(all, c.limits(4, "i", like)...)
	}
	stop := c.load(6, 10*time.Millisecond, false, all...)
	c.await(patience, func() string {
		for _, l := range all {
			if !l.spent() {
				return l.Key + " isn't spent"
			}
		}
		return ""
	})
	stop()
	c.settle(shortly)
}

// lateMessages has publications of GLOBAL limits be late, and then states that move. Neither may change when a limit
// is whole again.
func lateMessages(r *run) {
	c := r.start(options{n: 3, dns: true, links: true})
	owner, other, late := c.nodes[0], c.nodes[1], c.links[[2]int{0, 1}]
	l := c.limitsOf(owner, 1, "j", limit{item: item{Limit: 100, Duration: 3000, Behavior: global}, short: true})[0]
	caller := c.caller(0, false)
	for range 2 {
		late.set(weather{})
		for _, n := range []*node{other, owner, other} { // so that they know each other's clocks, and other has a copy
			caller.one(n, l.op(10))
			c.during(200, 300)
		}
		late.set(weather{delay: 400 * time.Millisecond})
		for caller.one(owner, l.op(10)).Status == "OK" {
		}
		whole := caller.one(owner, l.op(10)).ResetTime
		c.during(700, 800) // and is told before it asks again
		for {
			sent := time.Now().UnixMilli()
			o := caller.one(other, l.op(10))
			if o.Status == "OK" {
				break
			}
			if o.ResetTime < sent-20 || sent > whole+150 {
				c.Fatal(fmt.Sprintf("%d ms before the reset %s refuses, and tells one %d ms ahead: %v", whole-sent, other.name,
					o.ResetTime-sent, o.Metadata))
			}
			c.during(5, 15)
		}
	}
	late.set(weather{})
	c.lateStates(owner, caller)
}

// lateStates has a node leave whom the others hear only seconds later.
func (c *cluster) lateStates(n *node, caller *caller) {
	all := c.limitsOf(n, 10, "moved", limit{item: item{Limit: 10, Duration: 600_000}})
	whole := map[*ledger]int64{}
	for _, l := range all {
		whole[l] = caller.one(n, l.op(3)).ResetTime
	}
	for ends, l := range c.links {
		if ends[0] == n.number {
			l.set(weather{stalled: [2]bool{forth: true}})
		}
	}
	time.AfterFunc(2*time.Second, func() { c.weather(weather{}) })
	c.leave(n)
	c.settle(patience)
	for _, l := range all {
		for _, other := range c.alive() {
			if later := caller.one(other, l.op(0)).ResetTime - whole[l]; max(later, -later) > 100 {
				c.Fatal(fmt.Sprintf("a limit that moved in 2 s is whole %d ms later than it was: %v", later, l))
			}
		}
	}
}

// idleNodes asks for nothing. That a node is away is seen all the same, and that a name in the list is
// wrong.
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
			if states, err := c.peers(n); err != nil || states[name] == "up" {
				return fmt.Sprint(n.name, " takes ", name, " for ", states[name], ": ", err)
			}
			if c.metric(n, fmt.Sprintf(`weir_peer_state{peer="%s",state="up"}`, name)) != 0 {
				return fmt.Sprint(n.name, " takes ", name, " for up in its metrics")
			}
			warns := func(line string) bool { return strings.Contains(line, name) && strings.Contains(line, "warn") }
			if !slices.ContainsFunc(strings.Split(n.log.String(), "\n"), warns) {
				return fmt.Sprint(n.name, " doesn't warn of ", name)
			}
		}
		return ""
	})
}

// drainingClients has clients that keep connections ask on while a node stops with a delay. Its answers end each
// connection in time.
func drainingClients(r *run) {
	c := r.start(options{n: 3, drain: 2 * time.Second})
	stop := c.load(72, 150*time.Millisecond, true, c.limits(20, "l", limit{item: item{Limit: 1_000_000}})...)
	c.during(400, 600)
	c.bounce(0, c.nodes[1])
	stop()
	c.settle(patience)
}

// undrainedClients does the same without a delay, where clients ask elsewhere when their connection is refused. A
// request that is on its way when a server closes its idle connection breaks, whatever the server does; but there are
// few.
func undrainedClients(r *run) {
	c := r.start(options{n: 3})
	stop := c.load(32, 20*time.Millisecond, true, c.limits(20, "m", limit{item: item{Limit: 1_000_000}})...)
	for range 2 {
		for _, n := range c.nodes {
			c.bounce(0, n)
			c.during(400, 600)
		}
	}
	stop()
	c.settle(patience)
	broken, sent := c.broken.Load(), c.sent.Load()
	if r.note = fmt.Sprintf(" %d of %d requests broke", broken, sent); broken*4000 > sent {
		c.Errorf("too many requests broke")
	}
}

// scaledByDNS has a fourth node join, of which the others hear at different times, and leave again. It isn't ready
// before they have.
func scaledByDNS(r *run) {
	c := r.start(options{n: 3, spare: 1, dns: true, drain: pick(r, 0, time.Second)})
	all := c.limits(60, "n", limit{item: item{Limit: 300, Algorithm: pick(r, algorithms...)}})
	stop := c.load(4, 20*time.Millisecond, false, all...)
	joins := c.nodes[3]
	wait := c.relist(joins, true, 0, time.Second, 2*time.Second, 0)
	c.again(joins)
	for _, n := range c.nodes[:3] {
		if states, err := c.peers(n); err == nil && states[joins.name] == "" {
			c.Errorf("%s is ready, and %s hasn't heard of it", joins.name, n.name)
		}
	}
	wait()
	c.settle(patience)
	c.leave(joins)
	c.relist(joins, false, 0, time.Second, 2*time.Second, 0)()
	stop()
	c.settle(patience)
}

// relist has a node listed or not, as each node's DNS says after a while. Until all nodes have heard of it, their
// lists name different holders of a limit: one by the list with the node, as long as it isn't there, and one by that
// without. If it is there, it is a third. The returned function waits until all DNS servers say so.
func (c *cluster) relist(n *node, listed bool, after ...time.Duration) (wait func()) {
	c.worse(silent)
	c.side()
	if n.state.Load() == running {
		c.side()
	}
	n.listed = listed
	var all sync.WaitGroup
	for i, dns := range c.dns {
		all.Go(func() {
			time.Sleep(after[i])
			c.list(dns)
		})
	}
	return all.Wait
}

// fullCaches floods two nodes with more limits than they have room for. Those that are in use are not forgotten.
func fullCaches(r *run) { flooded(r, func(c *cluster) {}) }

// fullRestart has a node restarted besides, so that nodes get more at once than they have room for. That they forget
// what is in use is not excluded by any bound, and so this is played only when it is asked for.
func fullRestart(r *run) { flooded(r, func(c *cluster) { c.bounce(0, c.nodes[1]) }) }

func flooded(r *run, between func(*cluster)) {
	const size = 10_000
	c := r.start(options{n: 3, cache: size})
	all := c.limits(20, "full", limit{item: item{Limit: 100, Algorithm: pick(r, algorithms...)}, gives: true})
	stop := c.load(4, 10*time.Millisecond, false, all...)
	c.flood(c.nodes[0], 4*size, 0)
	between(c)
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
