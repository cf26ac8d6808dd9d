package main

import (
	"fmt"
	"slices"
	"time"
)

// An episode is a fault, or several, and how it ends.
type episode struct {
	name  string
	nodes int // needed at least
	play  func(*cluster)
}

// Faults of processes.
var faults = []episode{
	{"restart", 2, func(c *cluster) { c.bounce(0, c.some(1)...) }},
	{"restart twice", 2, func(c *cluster) { n := c.some(1)[0]; c.bounce(0, n); c.bounce(0, n) }},
	{"rolling restart", 2, (*cluster).roll},
	{"two restarted", 3, func(c *cluster) { c.bounce(pick(c.run, 0, 500*time.Millisecond), c.some(2)...) }},
	{"others restarted", 3, func(c *cluster) { n := c.some(1)[0]; c.leave(n); c.roll(); c.again(n) }},
	{"kill", 2, func(c *cluster) { n := c.some(1)[0]; c.kill(n); c.during(0, 4000); c.again(n) }},
	{"kill two", 3, func(c *cluster) { some := c.some(2); c.kill(some...); c.during(0, 2000); c.again(some...) }},
	{"kill, other restarted", 3, func(c *cluster) {
		some := c.some(2)
		c.kill(some[0])
		c.during(0, 4000)
		c.bounce(0, some[1])
		c.again(some[0])
	}},
	{"kill leaving", 2, func(c *cluster) { n := c.some(1)[0]; c.term(n); c.during(0, 100); c.kill(n); c.again(n) }},
	{"freeze shortly", 2, func(c *cluster) { thaw := c.freeze(c.some(1)[0]); c.during(100, 1500); thaw() }},
	{"freeze", 2, func(c *cluster) { thaw := c.freeze(c.some(1)[0]); c.during(3500, 6000); thaw() }},
	{"freeze, other restarted", 3, func(c *cluster) {
		some := c.some(2)
		thaw := c.freeze(some[0])
		c.during(3500, 4500)
		c.bounce(0, some[1])
		thaw()
	}},
	{"kill frozen", 2, func(c *cluster) { n := c.some(1)[0]; c.freeze(n); c.during(1000, 5000); c.kill(n); c.again(n) }},
}

// Faults of links. Nodes that can't hear each other for long count both.
var cuts = []episode{
	{"slow", 2, func(c *cluster) {
		c.weather(weather{delay: time.Duration(5+c.rng.IntN(50)) * time.Millisecond})
		c.during(2000, 3000)
	}},
	{"isolate shortly", 2, func(c *cluster) { c.isolate(100, 1500) }},
	{"isolate", 2, func(c *cluster) { c.isolate(3500, 6000) }},
	{"break", 2, func(c *cluster) {
		c.worse(silent)
		for range 3 {
			c.linksOf(c.nodes[0], (*link).reset)
			c.during(100, 500)
		}
	}},
	{"refuse", 2, func(c *cluster) {
		c.worse(silent)
		c.side()
		n := c.some(1)[0]
		c.linksOf(n, (*link).refuse)
		c.linksOf(n, (*link).reset)
		c.during(500, 5000)
		c.linksOf(n, c.open)
	}},
}

// Faults of the list.
var lists = []episode{
	{"join and leave", 2, func(c *cluster) {
		n := c.nodes[len(c.nodes)-1]
		wait := c.relist(n, true, c.lags()...)
		c.again(n)
		wait()
		c.settle(patience)
		c.leave(n)
		c.relist(n, false, c.lags()...)()
	}},
	{"unlist", 3, func(c *cluster) {
		n := c.some(1)[0]
		c.relist(n, false, c.lags()...)()
		c.during(1000, 3000)
		c.relist(n, true, c.lags()...)()
		c.waitReady(n)
	}},
}

// roll restarts all nodes that are there, one after the other.
func (c *cluster) roll() {
	for _, n := range c.alive() {
		c.bounce(0, n)
	}
}

// lags returns how long it takes until each node's DNS has heard of something.
func (c *cluster) lags() (lags []time.Duration) {
	for range c.dns {
		lags = append(lags, time.Duration(c.rng.IntN(2000))*time.Millisecond)
	}
	return lags
}

// some returns some of the nodes that are there.
func (c *cluster) some(count int) (nodes []*node) {
	alive := c.alive()
	for _, i := range c.rng.Perm(len(alive))[:count] {
		nodes = append(nodes, alive[i])
	}
	return nodes
}

// during lets some milliseconds pass.
func (c *cluster) during(from, to int) {
	time.Sleep(time.Duration(from+c.rng.IntN(to-from)) * time.Millisecond)
}

// linksOf does something with all links of a node.
func (c *cluster) linksOf(n *node, do func(*link)) {
	for ends, l := range c.links {
		if slices.Contains(ends[:], n.number) {
			do(l)
		}
	}
}

// weather is that of all links from now on.
func (c *cluster) weather(w weather) {
	for _, l := range c.links {
		l.set(w)
	}
}

// isolate has nothing come out of a node for some milliseconds, or into it, or neither.
func (c *cluster) isolate(from, to int) {
	n, way := c.some(1)[0].number, pick(c.run, "out", "in", "both")
	c.worse(silent)
	long := time.AfterFunc(2*time.Second, c.side)
	for ends, l := range c.links {
		var w weather
		w.stalled[forth] = ends[0] == n && way != "in" || ends[1] == n && way != "out"
		w.stalled[back] = ends[0] == n && way != "out" || ends[1] == n && way != "in"
		l.set(w)
	}
	c.during(from, to)
	long.Stop()
	c.weather(weather{})
}

// mixture adds limits of all kinds.
func (c *cluster) mixture() (all []*ledger) {
	large := int64(300 * len(c.nodes)) // so that copies of it have some slack
	for _, algorithm := range algorithms {
		for _, like := range []limit{
			{item: item{Limit: 10}},
			{item: item{Limit: 1000}},
			{item: item{Limit: 100}, gives: true},
			{item: item{Limit: 50}, gives: true, resets: true},
			{item: item{Limit: 200, Behavior: drain}},
			{item: item{Limit: 99, Behavior: global}, gives: true},
			{item: item{Limit: 99, Behavior: global}, resets: true},
			{item: item{Limit: large, Behavior: global}},
			{item: item{Limit: 30, Duration: 3000}, short: true},
		} {
			like.Algorithm = algorithm
			all = append(all, c.limits(1, "mixed", like)...)
		}
	}
	return all
}

// randomFaults has happen what the seed says, under load of all kinds.
func randomFaults(r *run) {
	o := options{n: 2 + r.rng.IntN(4), drain: pick(r, 0, 0, time.Second), timeout: pick(r, 2*time.Second, 5*time.Second)}
	choice := faults
	switch r.rng.IntN(4) {
	case 0:
		o.dns, o.spare = true, 1
		choice = slices.Concat(lists, lists, faults)
	case 1:
		o.dns, o.links, o.n = true, true, min(o.n, 4)
		choice = cuts
	}
	sticky := r.rng.IntN(3) == 0
	r.note = fmt.Sprintf(" %d nodes, drain %v, timeout %v, sticky %v:", o.n, o.drain, o.timeout, sticky)
	c := r.start(o)
	stop := c.load(6, 20*time.Millisecond, sticky)
	for range 2 + r.rng.IntN(2) {
		c.focus(c.mixture()...)
		c.during(200, 1000)
		e := pick(r, slices.DeleteFunc(slices.Clone(choice), func(e episode) bool { return e.nodes > o.n })...)
		r.note += " " + e.name + ";"
		e.play(c)
		c.weather(weather{})
		c.during(100, 500)
		c.settle(patience)
	}
	stop()
}
