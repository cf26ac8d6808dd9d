package tests

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// withoutDoubt tries something on fresh keys until no answer was made in doubt: a machine that is busy for 50 ms makes
// nodes answer alone, which is not what is looked at.
func withoutDoubt(t *testing.T, try func(key string) (passed int64, doubtful bool), least, most int64) {
	t.Helper()
	for attempt := range 10 {
		passed, doubtful := try(fmt.Sprint("attempt-", attempt))
		if doubtful {
			t.Logf("attempt %d: %d passed, some of them in doubt", attempt, passed)
			continue
		}
		if passed < least || passed > most {
			t.Errorf("%d passed, want %d to %d", passed, least, most)
		}
		return
	}
	t.Log("the machine is too busy")
}

// TestProcessesShareAGlobalLimit has three nodes hammered with one limit, as fast as it goes. They let through what it
// allows, and at most one percent more.
func TestProcessesShareAGlobalLimit(t *testing.T) {
	t.Parallel()
	all := startAll(t, 3)
	hammer := func(key string) (passed int64, doubtful bool) {
		var ok atomic.Int64
		var doubt atomic.Bool
		var callers sync.WaitGroup
		for i := range 6 {
			callers.Go(func() {
				for refused := 0; refused < 100; {
					r := all[i%3].check(t, item(key, "limit", 1000, "duration", 10_000, "behavior", "GLOBAL"))[0]
					doubt.CompareAndSwap(false, r.Metadata["degraded"] != "")
					if r.Status == "OK" {
						ok.Add(1)
					} else {
						refused++
					}
				}
			})
		}
		start := time.Now()
		callers.Wait()
		return ok.Load(), doubt.Load() || time.Since(start) > 9*time.Second // another window began
	}
	withoutDoubt(t, hammer, 1000, 1010)
}

// TestProcessesShareASmallLimit: of 30 hits on all nodes at once, one passes.
func TestProcessesShareASmallLimit(t *testing.T) {
	t.Parallel()
	all := startAll(t, 3)
	for _, algorithm := range algorithms {
		withoutDoubt(t, func(key string) (passed int64, doubtful bool) {
			results := make([]result, 30)
			var callers sync.WaitGroup
			for i := range results {
				callers.Go(func() {
					results[i] = all[i%3].check(t, item(key, "limit", 1, "duration", 30_000, "behavior", "GLOBAL", "algorithm",
						algorithm))[0]
				})
			}
			callers.Wait()
			for _, r := range results {
				doubtful = doubtful || r.Metadata["degraded"] != ""
				if r.Status == "OK" {
					passed++
				}
			}
			return passed, doubtful
		}, 1, 1)
	}
}

// TestProcessFrozenWithDebts stops the owner of a GLOBAL limit for a while. The others answer on, and it hears of all
// hits when it goes on.
func TestProcessFrozenWithDebts(t *testing.T) {
	t.Parallel()
	all := startAll(t, 3)
	owner, others := all[2], all[:2]
	key := all[0].keysOf(t, owner.node, 1)[0]
	members := terms{"limit", 100_000, "duration", 3_600_000}
	hit := func(p *process) result {
		t.Helper()
		return p.one(t, key, of(members, "behavior", "GLOBAL")...)
	}
	passed := int64(0)
	for _, p := range others {
		hit(p)
		passed++
	}
	owner.signal(t, syscall.SIGSTOP)
	unknown := int64(0) // hits that the owner may have counted when it goes on, or not
	var took []time.Duration
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < 4*time.Second; <-tick.C {
		for _, p := range others {
			start := time.Now()
			r := hit(p)
			took = append(took, time.Since(start))
			if r.Status != "OK" || r.Metadata["source"] != "replica" || r.Metadata["degraded"] != "" &&
				r.Metadata["degraded"] != "owner_silent" {
				t.Fatal(describe(r))
			}
			if passed++; time.Since(start) > 45*time.Millisecond {
				unknown++
			}
		}
	}
	slices.Sort(took)
	if slow := took[len(took)*99/100]; slow > 40*time.Millisecond || took[len(took)-1] > 400*time.Millisecond {
		t.Errorf("of %d answers, the slowest of a hundred took %v, the slowest of all %v", len(took), slow, took[len(took)-1])
	}
	owner.signal(t, syscall.SIGCONT)
	eventually(t, "all debts are paid", func() bool {
		return metrics(t, others[0].node)["weir_debts"]+metrics(t, others[1].node)["weir_debts"] == 0
	})
	if used := lookAt(t, owner.node, key, members[2:]...); used > passed || used < passed-unknown {
		t.Errorf("it knows of %d of %d, of which %d may be lost", used, passed, unknown)
	}
	eventually(t, "all agree", func() bool {
		var remaining []int64
		for _, p := range all {
			r := p.one(t, key, of(members, "hits", 0, "behavior", "GLOBAL")...)
			if r.Metadata["degraded"] == "" {
				remaining = append(remaining, *r.Remaining)
			}
		}
		return len(remaining) == 3 && len(slices.Compact(remaining)) == 1
	})
}

// TestProcessStopsWithDebts has a node stop that owes hits, and would have told so in an hour.
func TestProcessStopsWithDebts(t *testing.T) {
	t.Parallel()
	all := startAll(t, 2, "WEIR_GLOBAL_INTERVAL=1h")
	owner, other := all[0], all[1]
	key := other.keysOf(t, owner.node, 1)[0]
	members := terms{"limit", 100_000, "duration", 3_600_000}
	for range 101 { // the first asks, the others are far from half of what it may take
		if r := other.one(t, key, of(members, "behavior", "GLOBAL")...); r.Status != "OK" || r.Metadata["degraded"] != "" {
			t.Fatal(describe(r))
		}
	}
	if used := lookAt(t, owner.node, key, members[2:]...); used != 1 {
		t.Errorf("the owner knows of %d before", used)
	}
	other.signal(t, syscall.SIGTERM)
	if code := other.wait(t); code != 0 {
		t.Errorf("it exited with %d", code)
	}
	if used := lookAt(t, owner.node, key, members[2:]...); used != 101 {
		t.Errorf("the owner knows of %d, want 101", used)
	}
}
