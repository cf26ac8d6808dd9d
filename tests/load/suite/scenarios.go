//go:build linux

package main

import (
	"fmt"
	"regexp"
	"slices"
)

// A run is one row of a table: servers started for it, and what they are asked.
type run struct {
	table, row string
	nodes      int      // 0 is the floor
	batch      int      // items per request
	keys       int      // distinct keys, all of which are live beforehand
	conns      int      // 0: as many as are usual for batch
	rate       int      // requests a second, at fixed times (open loop); 0: each connection asks as soon as it is answered
	live       bool     // it is about the live keys: takes longer, and looks at the memory
	known      int      // keys that the floor remembers, if that is what is asked
	flags      []string // more, for the generator
}

// id names a run for people, and for who looks for its figures.
func (r *run) id() string { return r.table + ": " + r.row }

// The tables.
const (
	tableOne   = "one"   // the floor and one node, closed loop
	tableThree = "three" // three nodes, closed loop
	tableOpen  = "open"  // open loop
	tableNodes = "nodes" // up to ten nodes
	tableKeys  = "keys"  // many live keys
)

// What a run asks for unless its row says otherwise.
const (
	manyKeys = 100_000
	fewKeys  = 1000
)

// scenarios lists all runs, in the order in which they are made: what is compared stands side by side.
func scenarios(quick bool) []run {
	return slices.Concat(oneNode(), threeNodes(), openLoop(), moreNodes(), liveKeys(quick))
}

func choose(runs []run, only *regexp.Regexp) []run {
	return slices.DeleteFunc(runs, func(r run) bool { return !only.MatchString(r.id()) })
}

// batches are the numbers of items in a request.
var batches = []int{1, 10, 100, 1000}

func oneNode() (runs []run) {
	add := func(nodes, batch, keys int, row string, flags ...string) {
		runs = append(runs, run{table: tableOne, row: row, nodes: nodes, batch: batch, keys: keys, flags: flags})
	}
	for _, batch := range batches {
		row := "one node, " + perRequest(batch)
		add(0, batch, manyKeys, "floor, "+perRequest(batch))
		if batch == 1 {
			add(0, batch, manyKeys, "floor, "+perRequest(batch)+", finds the key in a bare LRU")
			runs[len(runs)-1].known = manyKeys
		}
		add(1, batch, manyKeys, row)
		if batch == 1 {
			add(1, batch, 1, row+", one hot key")
		}
		add(1, batch, fewKeys, row+", 1,000 keys")
		if batch == 1 || batch == 100 {
			add(1, batch, manyKeys, row+", Zipf", "-zipf", "1.1")
		}
		if batch == 100 {
			// A bucket that leaks a hit before the next one comes is a new limit each time. This one doesn't.
			add(1, batch, manyKeys, row+", leaky bucket", "-algorithm", "leaky", "-limit", "1000")
			add(1, batch, manyKeys, row+", sliding window", "-algorithm", "sliding")
		}
	}
	return runs
}

func perRequest(batch int) string { return count(batch) + " per request" }

func threeNodes() (runs []run) {
	add := func(nodes, batch, keys, conns int, row string, flags ...string) {
		runs = append(runs, run{table: tableThree, row: row, nodes: nodes, batch: batch, keys: keys, conns: conns,
			flags: flags})
	}
	add(1, 1, manyKeys, 0, "one node")
	add(3, 1, manyKeys, 0, "three nodes")
	add(3, 1, manyKeys, 0, "three nodes, NO_BATCHING", "-behavior", "no_batching")
	add(3, 1, manyKeys, 510, "three nodes, 510 connections")
	add(1, 1, 1, 0, "one node, one hot key")
	add(3, 1, 1, 0, "three nodes, one hot key")
	add(3, 1, 1, 0, "three nodes, one hot key, GLOBAL", "-behavior", "global")
	add(1, 100, manyKeys, 0, "one node, 100 per request")
	add(3, 100, manyKeys, 0, "three nodes, 100 per request")
	add(3, 100, manyKeys, 0, "three nodes, 100 per request, NO_BATCHING", "-behavior", "no_batching")
	return runs
}

// loads are what the open loop offers, in requests a second.
var loads = []int{1000, 2000, 5000, 10_000, 20_000}

func openLoop() (runs []run) {
	add := func(nodes, rate int, row string, flags ...string) {
		runs = append(runs, run{table: tableOpen, row: openRow(row, rate), nodes: nodes, batch: 1, keys: manyKeys, rate: rate,
			flags: flags})
	}
	add(0, loads[0], "floor")
	for i, rate := range loads {
		add(1, rate, "one node")
		add(3, rate, "three nodes")
		if i == 0 {
			add(3, rate, "three nodes, NO_BATCHING", "-behavior", "no_batching")
		}
	}
	return runs
}

func openRow(who string, rate int) string { return fmt.Sprintf("%s, %s/s", who, count(rate)) }

// clusters are the sizes that are compared with each other.
var clusters = []int{1, 2, 3, 5, 10}

// asked is what clusters of each size are asked.
type asked struct {
	name  string
	batch int
	rate  int // requests a second for each node; 0: closed loop
}

var series = []asked{
	{"1 per request, 100/s a node", 1, 100},
	{"1 per request, 400/s a node", 1, 400},
	{"1 per request, closed loop", 1, 0},
	{"100 per request, closed loop", 100, 0},
}

func moreNodes() (runs []run) {
	for _, s := range series {
		for _, n := range clusters {
			runs = append(runs, run{table: tableNodes, row: s.row(n), nodes: n, batch: s.batch, keys: manyKeys,
				rate: n * s.rate})
		}
	}
	return runs
}

func (s *asked) row(n int) string {
	if n == 1 {
		return s.name + ", 1 node"
	}
	return fmt.Sprintf("%s, %d nodes", s.name, n)
}

func (s *asked) id(n int) string { return tableNodes + ": " + s.row(n) }

func (s *asked) ids() (ids []string) {
	for _, n := range clusters {
		ids = append(ids, s.id(n))
	}
	return ids
}

// lives are the numbers of live keys.
var lives = []int{10_000, 1_000_000, 5_000_000}

func liveKeys(quick bool) (runs []run) {
	for _, keys := range lives {
		if !quick || keys <= 1_000_000 {
			for nodes, who := range []string{"floor", "weir"} {
				runs = append(runs, run{table: tableKeys, row: who + ", " + count(keys), nodes: nodes, batch: 1, keys: keys,
					rate: 2000, live: true, known: keys})
			}
		}
	}
	return runs
}
