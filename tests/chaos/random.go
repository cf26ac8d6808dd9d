package main

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// An episode is a fault, or several, and how it ends. It needs so many nodes.
type episode struct {
	name  string
	nodes int
	play  func(*cluster)
}

// What may happen to processes, wherever they are.
var faults = []episode{
	{"restart", 2, func(c *cluster) { c.bounce(0, c.any()) }},
	{"restart twice", 2, func(c *cluster) { n := c.any(); c.bounce(0, n); c.bounce(0, n) }},
	{"rolling restart", 2, func(c *cluster) { // one by one
		for _, n := range c.alive() {
			c.bounce(0, n)
		}
	}},
	{"two restarted", 3, func(c *cluster) { c.bounce(pick(c.run, 0, 500*time.Millisecond), c.some(2)...) }},
	{"others restarted", 3, func(c *cluster) { // one is down while the others are restarted
		n := c.any()
		c.leave(0, n)
		for _, other := range c.alive() {
			c.bounce(0, other)
		}
		c.again(n)
	}},
	{"kill", 2, func(c *cluster) { n := c.any(); c.kill(n); c.during(0, 4000); c.again(n) }},
	{"kill two", 3, func(c *cluster) { some := c.some(2); c.kill(some...); c.during(0, 2000); c.again(some...) }},
	{"kill, other restarted", 3, func(c *cluster) {
		some := c.some(2)
		c.kill(some[0])
		c.during(0, 4000)
		c.bounce(0, some[1])
		c.again(some[0])
	}},
	{"kill leaving", 2, func(c *cluster) { n := c.any(); c.term(n); c.during(0, 100); c.kill(n); c.again(n) }}, // it dies as it leaves
	{"freeze shortly", 2, func(c *cluster) { thaw := c.freeze(c.any()); c.during(100, 1500); thaw() }},
	{"freeze", 2, func(c *cluster) { thaw := c.freeze(c.any()); c.during(3500, 6000); thaw() }},
	{"freeze, other restarted", 3, func(c *cluster) {
		some := c.some(2)
		thaw := c.freeze(some[0])
		c.during(3500, 4500)
		c.bounce(0, some[1])
		thaw()
	}},
	{"kill frozen", 2, func(c *cluster) { n := c.any(); c.freeze(n); c.during(1000, 5000); c.kill(n); c.again(n) }},
}

// What may happen to links. Nodes that can't hear each other for long count both.
var cuts = []episode{
	{"slow", 2, func(c *cluster) { // slow
		c.weather(nil, weather{delay: time.Duration(5+c.rng.IntN(50)) * time.Millisecond})
		c.during(2000, 3000)
	}},
	{"isolate shortly", 2, func(c *cluster) { c.isolate(pick(c.run, "out", "in", "both"), 100, 1500) }},
	{"isolate", 2, func(c *cluster) { c.isolate(pick(c.run, "out", "in", "both"), 3500, 6000) }},
	{"break", 2, func(c *cluster) { // connections break
		c.worse(silent)
		for range 3 {
			for ends, l := range c.links {
				if ends[0] == 0 || ends[1] == 0 {
					l.reset()
				}
			}
			c.during(100, 500)
		}
	}},
	{"refuse", 2, func(c *cluster) { // and can't be made again
		c.worse(silent)
		c.side()
		n := c.any()
		for ends, l := range c.links {
			if slices.Contains(ends[:], n.number) {
				l.refuse()
				l.reset()
			}
		}
		c.during(500, 5000)
		for _, l := range c.links {
			l.open()
		}
	}},
}

// What may happen to the list.
var lists = []episode{
	{"join and leave", 2, func(c *cluster) { // one joins, and leaves again
		n := c.nodes[len(c.nodes)-1]
		c.relist(n, true)
		c.again(n)
		c.settle(patience)
		c.leave(0, n)
		c.relist(n, false)
	}},
	{"unlist", 3, func(c *cluster) { // one isn't listed for a while, though it is there
		n := c.any()
		c.relist(n, false)
		c.during(2000, 4000)
		c.relist(n, true)
		c.waitReady(n)
	}},
}

// relist has a node listed or not. Until all have heard of it, their lists name different holders of a limit: one by the list with the
// node, as long as it isn't there, and one by that without. If it is there, it is a third.
func (c *cluster) relist(n *node, listed bool) {
	c.worse(absent)
	c.side()
	if n.state.Load() == running {
		c.side()
	}
	n.listed = listed
	var told sync.WaitGroup
	for _, dns := range c.dns {
		lag := time.Duration(c.rng.IntN(2000)) * time.Millisecond
		told.Go(func() {
			time.Sleep(lag)
			c.list(dns)
		})
	}
	told.Wait()
}

// any returns one of the nodes that are there.
func (c *cluster) any() *node { return c.some(1)[0] }

// some returns some of them.
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

// weather changes the weather of all links, or of those that a function knows better.
func (c *cluster) weather(of func(ends [2]int) weather, else_ weather) {
	for ends, l := range c.links {
		if of != nil {
			else_ = of(ends)
		}
		l.set(else_)
	}
}

// isolate has nothing come out of a node for some milliseconds, or into it, or neither.
func (c *cluster) isolate(way string, from, to int) {
	n := c.any().number
	c.worse(silent)
	long := time.AfterFunc(2*time.Second, c.side)
	c.weather(func(ends [2]int) (w weather) {
		w.stalled[forth] = ends[0] == n && way != "in" || ends[1] == n && way != "out"
		w.stalled[back] = ends[0] == n && way != "out" || ends[1] == n && way != "in"
		return w
	}, weather{})
	c.during(from, to)
	long.Stop()
	c.weather(nil, weather{})
}

// mixture adds limits of all kinds.
func (c *cluster) mixture() (all []*ledger) {
	slack := int64(100 * len(c.nodes))
	for _, algorithm := range algorithms {
		for _, like := range []limit{
			{item: item{Limit: 10}},
			{item: item{Limit: 1000}},
			{item: item{Limit: 100}, gives: true},
			{item: item{Limit: 50}, gives: true, resets: true},
			{item: item{Limit: 200, Behavior: drain}},
			{item: item{Limit: 99, Behavior: global}, gives: true},
			{item: item{Limit: 99, Behavior: global}, resets: true},
			{item: item{Limit: 3 * slack, Behavior: global}},
			{item: item{Limit: 30, Duration: 3000}, short: true},
		} {
			like.Algorithm = algorithm
			all = append(all, c.limits(1, "mixed", like)...)
		}
	}
	return all
}

// randomFaults has what the seed says happen, under load of all kinds.
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
		e := choice[r.rng.IntN(len(choice))]
		for e.nodes > o.n {
			e = choice[r.rng.IntN(len(choice))]
		}
		r.note += " " + e.name + ","
		e.play(c)
		c.weather(nil, weather{})
		c.during(100, 500)
		c.settle(patience)
	}
	stop()
}
