package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// settle waits, while no load is put on the cluster, until all nodes that are there say the same of all limits, and
// what is right. From there on the ledgers begin anew.
func (c *cluster) settle(within time.Duration) {
	c.pause.Lock()
	defer c.pause.Unlock()
	var used map[*ledger]int64
	seen := 0
	c.await(within, func() (wrong string) {
		if used, wrong = c.unsettled(); wrong != "" {
			seen = 0
			return wrong
		}
		if seen++; seen < 5 { // so that it stays so is seen, too
			return "not settled for long"
		}
		return ""
	})
	for l, u := range used {
		l.rest(u)
	}
	c.trouble.Store(int32(calm))
	if !c.whole() {
		c.trouble.Store(int32(absent))
	}
	c.quiet.Store(true)
}

// unsettled returns what is used of each limit, and why the cluster isn't settled yet.
func (c *cluster) unsettled() (used map[*ledger]int64, wrong string) {
	used = map[*ledger]int64{}
	var mistakes []string
	exact := slices.DeleteFunc(slices.Clone(c.all()), func(l *ledger) bool { return l.short })
	for _, n := range c.alive() {
		for some := range slices.Chunk(exact, 500) {
			mistakes = append(mistakes, c.compare(n, some, used)...)
		}
	}
	for _, n := range c.alive() { // after they have asked each other
		mistakes = append(mistakes, c.misled(n)...)
	}
	if len(mistakes) > 3 {
		mistakes = append(mistakes[:3], fmt.Sprint("and ", len(mistakes)-3, " more"))
	}
	return used, strings.Join(mistakes, "; ")
}

// misled returns what a node takes for something that it isn't.
func (c *cluster) misled(n *node) (mistakes []string) {
	states, err := c.peers(n)
	if err != nil || !n.ready.Load() {
		return []string{fmt.Sprint(n.name, " isn't ready: ", err)}
	}
	for _, p := range c.nodes {
		state, listed := states[p.name]
		if listed != p.listed || p.listed && (state == "up") != (p.state.Load() == running) {
			mistakes = append(mistakes, fmt.Sprintf("%s takes %s for %q", n.name, p.name, state))
		}
	}
	if owed := c.metric(n, "weir_debts"); owed > 0 && c.whole() {
		mistakes = append(mistakes, fmt.Sprint(n.name, " owes hits of ", owed, " limits"))
	}
	return mistakes
}

// compare returns what is wrong with what a node says of some limits: of what is used, as the node that counts them
// tells, and, if they are GLOBAL, of what its own copy says. The first node that is asked for one fills used.
func (c *cluster) compare(n *node, some []*ledger, used map[*ledger]int64) (mistakes []string) {
	results, err := c.post(c.admin, n, looks(some))
	if err != nil {
		return []string{err.Error()}
	}
	say := func(l *ledger, r result, format string, args ...any) {
		mistakes = append(mistakes, fmt.Sprintf("%s: %s says that %s: %v; %v", l.Key, n.name, fmt.Sprintf(format, args...),
			r.Metadata, l))
	}
	for i, l := range some {
		r, why := results[i], results[i].Metadata["degraded"]
		u := far - r.Remaining
		if _, seen := used[l]; !seen {
			used[l] = u
		}
		if from, to := l.used(); u < from || u > to || u != used[l] {
			say(l, r, "%d are used, not %d to %d, or %d as another says", u, from, to, used[l])
		}
		if !told[why] || why != "" && c.whole() {
			say(l, r, "the holder is away")
		}
	}
	// In a request of its own, as no copy is looked at in one that asks the owner of the same limit.
	items, copies := []item{}, slices.DeleteFunc(slices.Clone(some),
		func(l *ledger) bool { return l.Behavior&global == 0 })
	for _, l := range copies {
		items = append(items, l.item)
	}
	if len(items) > 0 {
		results, err = c.post(c.admin, n, items)
	}
	if err != nil {
		return append(mistakes, err.Error())
	}
	for i, l := range copies {
		if r, left := results[i], max(0, l.Limit-used[l]); r.Remaining != left {
			say(l, r, "%d are left, not %d", r.Remaining, left)
		}
	}
	return mistakes
}
