package tests

import (
	"testing"
	"time"
)

// sync has all nodes report and publish, one after the other.
func (c *cluster) sync(t *testing.T) {
	t.Helper()
	for _, n := range c.nodes {
		if err := n.global.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *cluster) advance(d time.Duration) { c.clock.Set(c.clock.Now().Add(d)) }

// one sends one item and gives its result.
func (n *node) one(t *testing.T, key string, members ...any) result {
	t.Helper()
	return n.check(t, item(key, members...))[0]
}

// TestGlobalOneOfMany: a small limit is exact, whichever node is asked, and once it is exhausted nobody asks any more.
func TestGlobalOneOfMany(t *testing.T) {
	for _, algorithm := range []string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"} {
		t.Run(algorithm, func(t *testing.T) {
			c := startCluster(t, 3)
			var ok int
			for i := range 30 {
				if c.nodes[i%3].one(t, "k", "limit", 1, "behavior", "GLOBAL", "algorithm", algorithm).Status == "OK" {
					ok++
				}
			}
			if ok != 1 {
				t.Errorf("%d passed, want 1", ok)
			}
			c.sync(t)
			calls := c.wires.countCalls()
			for i := range 30 {
				r := c.nodes[i%3].one(t, "k", "limit", 1, "behavior", "GLOBAL", "algorithm", algorithm)
				if r.Status != "OVER_LIMIT" {
					t.Errorf("got %+v", r)
				}
			}
			if more := c.wires.countCalls() - calls; more != 0 {
				t.Errorf("%d calls between nodes for an exhausted limit, want 0", more)
			}
		})
	}
}

// TestGlobalCopies: hits within the allowance are taken at once, and everybody knows of them two rounds later.
func TestGlobalCopies(t *testing.T) {
	for _, algorithm := range []string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"} {
		t.Run(algorithm, func(t *testing.T) {
			c := startCluster(t, 3)
			hit := func(n *node, hits int) result {
				return n.one(t, "k", "limit", 3000, "hits", hits, "behavior", "GLOBAL", "algorithm", algorithm)
			}
			for _, n := range c.nodes {
				hit(n, 100)
			}
			calls := c.wires.countCalls()
			owner, _ := c.owner("k")
			taken := int64(300)
			for _, n := range c.nodes {
				r := hit(n, 10) // all that each may take alone
				taken += 10
				if n == owner {
					continue
				}
				if r.Status != "OK" || r.Metadata["source"] != "replica" || r.Metadata["owner"] != owner.name {
					t.Errorf("got %+v", r)
				}
			}
			if more := c.wires.countCalls() - calls; more != 0 {
				t.Errorf("%d calls between nodes, want 0", more)
			}
			for _, n := range c.nodes {
				if r := hit(n, 1); n != owner && r.Metadata["source"] != "" {
					t.Errorf("more than the allowance was taken from a copy: %+v", r)
				}
				taken++
			}
			c.sync(t)
			c.sync(t)
			for _, n := range c.nodes {
				if r := hit(n, 0); *r.Remaining != 3000-taken {
					t.Errorf("%d remain, want %d: %+v", *r.Remaining, 3000-taken, r)
				}
			}
		})
	}
}
