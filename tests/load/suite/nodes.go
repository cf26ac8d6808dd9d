//go:build linux

package main

import (
	"math"
	"slices"
)

// A model says what a check costs in a cluster, all nodes together, in µs of CPU.
type model struct {
	alone   float64 // a check on a single node
	request float64 // a request from node to node, on both sides
	item    float64 // an item in it, on both sides, with the wait for it
}

// cost is what a check costs with n nodes, of which each asks for shared items at a time.
func (m model) cost(n int, shared float64) float64 {
	if n == 1 {
		return m.alone
	}
	return m.alone + forwarded(n)*(m.request/shared+m.item)
}

// forwarded is the part of the checks that are asked at another node than their owner.
func forwarded(n int) float64 { return float64(n-1) / float64(n) }

// owners is how many of n nodes own something of a request with batch items.
func owners(n, batch int) float64 {
	return float64(n) * (1 - math.Pow(1-1/float64(n), float64(batch)))
}

// shared is how many items a request from node to node has, when each node is asked for rate checks a second, batch at
// a time, and one of its requests to another takes trip seconds. The items that a caller's request has for one owner
// travel together. With them goes what comes while none can leave: until the one under way is back, or the window is
// over; and if four are under way, until one of them is back.
func shared(n, batch int, rate, trip float64) float64 {
	const window, flights = 500e-6, 4
	group := float64(batch) / owners(n, batch)
	groups := rate / group / float64(n) // a second, to one other node
	return group * (1 + groups*min(trip, max(window, trip/flights)))
}

// model finds the constants for one series. Only clusters of middle size count: the largest is left for a prediction.
func (rs results) model(s asked) model {
	m := model{alone: rs.median(s.id(1), cpu)}
	var xs, ys []float64
	for _, n := range clusters[1 : len(clusters)-1] {
		xs = append(xs, 1/rs.median(s.id(n), (*figures).shared))
		ys = append(ys, (rs.median(s.id(n), cpu)-m.alone)/forwarded(n))
	}
	m.request, m.item = fit(xs, ys)
	return m
}

// fit returns the slope and the height of the line that is nearest to the points. Where the xs are nearly the same no
// one can tell them apart, and where the height would be negative it makes no sense: then the line starts at zero.
func fit(xs, ys []float64) (slope, height float64) {
	var x, y, xx, xy float64
	n := float64(len(xs))
	for i := range xs {
		x, y, xx, xy = x+xs[i]/n, y+ys[i]/n, xx+xs[i]*xs[i]/n, xy+xs[i]*ys[i]/n
	}
	if slices.Max(xs) > 1.2*slices.Min(xs) {
		slope = (xy - x*y) / (xx - x*x)
		if height = y - slope*x; slope > 0 && height >= 0 {
			return slope, height
		}
	}
	return xy / xx, 0
}

// nodesTable has what was measured beside what the model says.
func (rs results) nodesTable() table {
	t := table{name: tableNodes}
	var rows [][]string
	for _, s := range series {
		t.runs = append(t.runs, s.ids()...)
		m := rs.model(s)
		for _, n := range clusters {
			id := s.id(n)
			if len(rs[id]) == 0 {
				continue
			}
			each, trip := rs.median(id, rate)/float64(n), rs.median(id, (*figures).roundTrip)
			together := rs.median(id, (*figures).shared)
			rows = append(rows, []string{s.row(n), number(rs.median(id, rate)), number(rs.median(id, (*figures).forwarded)),
				number(together), number(shared(n, s.batch, each, trip)),
				number(rs.median(id, cpu)), number(m.cost(n, together))})
		}
	}
	t.text = markdown([]string{"", "checks/s", "forwarded", "checks per peer request", "by the formula", "CPU µs/check",
		"by the formula"}, rows)
	return t
}

// modelTable has the constants.
func (rs results) modelTable() table {
	t := table{name: "model"}
	var rows [][]string
	for _, s := range series {
		if t.runs = append(t.runs, s.ids()...); rs.complete(s.ids()) {
			m := rs.model(s)
			rows = append(rows, []string{s.name, number(m.alone), number(m.request), number(m.item)})
		}
	}
	t.text = markdown([]string{"µs of CPU", "c, a check on one node", "P, a peer request", "e, an item in it"}, rows)
	return t
}

// paperTable has what the model says of clusters that were not measured: all nodes busy with nothing else, on two
// processors like this machine's, in a network where a busy peer answers within a millisecond.
func (rs results) paperTable() table {
	const processors, trip = 2, 1e-3
	t := table{name: "paper"}
	var rows [][]string
	for _, s := range series {
		if s.rate > 0 {
			continue
		}
		if t.runs = append(t.runs, s.ids()...); !rs.complete(s.ids()) {
			continue
		}
		m := rs.model(s)
		for _, n := range []int{1, 3, 10, 30, 100, 300, 1000} {
			together, cost := m.busy(n, s.batch, processors, trip)
			each := processors * 1e6 / cost
			rows = append(rows, []string{count(s.batch), count(n), number(forwarded(n)), number(together), number(cost),
				rough(each), rough(each * float64(n))})
		}
	}
	t.text = markdown([]string{"checks per request", "nodes", "forwarded", "checks per peer request", "CPU µs/check",
		"checks/s a node", "checks/s in all"}, rows)
	return t
}

// globalTable has what GLOBAL limits cost if all nodes own some and are asked for some of all others: each node makes,
// and gets, one report and one publication per interval and other node.
func (rs results) globalTable() table {
	const interval, slack = 0.1, 0.01
	s := series[2]
	t := table{name: "global", runs: s.ids()}
	if !rs.complete(t.runs) {
		return t
	}
	request := rs.model(s).request / 1e6
	var rows [][]string
	for _, n := range []int{3, 10, 100, 1000} {
		calls := 2 * float64(n-1) / interval
		rows = append(rows, []string{count(n), number(calls), number(calls * request), number(float64(n) / slack)})
	}
	t.text = markdown([]string{"nodes", "calls/s a node", "processors a node",
		"limits below are exact, so each hit is forwarded"}, rows)
	return t
}

// rough writes x with two digits: it was not measured.
func rough(x float64) string {
	unit := math.Pow(10, math.Floor(math.Log10(x))-1)
	return count(int(math.Round(x/unit) * unit))
}

// busy returns the items per request from node to node, and the cost of a check, for a cluster that does as much as it
// can. Each depends on the other; in turn they settle.
func (m model) busy(n, batch, processors int, trip float64) (together, cost float64) {
	cost = m.alone
	for range 100 {
		together = shared(n, batch, float64(processors)*1e6/cost, trip)
		cost = (cost + m.cost(n, together)) / 2
	}
	if n == 1 {
		together = math.NaN()
	}
	return together, cost
}
