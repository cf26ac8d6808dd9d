package tests

import (
	"fmt"
	"syscall"
	"testing"
)

// TestRollingRestart spends 4 of 10 of many limits, replaces all nodes one by one, and spends the rest: 6 of each are left,
// whoever is asked, and nobody was refused meanwhile.
func TestRollingRestart(t *testing.T) {
	all := startAll(t, 3)
	const keys = 60
	hit := func(key int, n *process) result {
		return n.node.check(t, item(fmt.Sprint("k", key), "duration", 3_600_000))[0]
	}
	for round := range 4 {
		for key := range keys {
			if r := hit(key, all[(key+round)%3]); r.Status != "OK" || *r.Remaining != int64(9-round) {
				t.Fatalf("before: %s", describe(r))
			}
		}
	}
	for i := range all {
		all[i].signal(t, syscall.SIGTERM)
		if code := all[i].wait(t); code != 0 {
			t.Fatalf("node %d ended with %d", i, code)
		}
		for key := range keys { // the other two count
			n := all[(i+1+key%2)%3]
			if r := n.node.check(t, item(fmt.Sprint("k", key), "duration", 3_600_000, "hits", 0))[0]; *r.Remaining != 6 {
				t.Errorf("while node %d is away: %s", i, describe(r))
			}
		}
		all[i] = all[i].again(t)
		for _, n := range all {
			n.ready(t, 3)
		}
		for key := range keys {
			n := all[key%3]
			if r := n.node.check(t, item(fmt.Sprint("k", key), "duration", 3_600_000, "hits", 0))[0]; *r.Remaining != 6 {
				t.Errorf("after node %d is back: %s", i, describe(r))
			}
		}
	}
	for key := range keys {
		passed := 0
		for i := range 10 {
			if hit(key, all[(key+i)%3]).Status == "OK" {
				passed++
			}
		}
		if passed != 6 {
			t.Errorf("key %d: %d more passed, want 6", key, passed)
		}
	}
}
