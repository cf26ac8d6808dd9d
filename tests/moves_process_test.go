package tests

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestRollingRestart spends 4 of 10 of many limits, replaces all nodes one by one, and spends the rest: 6 of each are
// left, whichever node is asked, and no caller was refused meanwhile.
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

// A balancer spreads checks over those processes that it hasn't taken out, as what stands before a cluster does.
type balancer []*place

// A place is where it sends some of them.
type place struct {
	mu sync.RWMutex // held for reading by those who wait for an answer
	*process
	out      bool
	answered atomic.Int64
}

func (b balancer) check(t *testing.T, turn int64, items ...json.RawMessage) []result {
	t.Helper()
	for ; ; turn++ {
		if results := b[turn%int64(len(b))].try(t, items); results != nil {
			return results
		}
	}
}

// try returns nil if the place is out.
func (p *place) try(t *testing.T, items []json.RawMessage) []result {
	t.Helper()
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.out {
		return nil
	}
	defer p.answered.Add(1)
	return p.check(t, items...)
}

// serveOn waits for some more answers.
func (p *place) serveOn(t *testing.T) {
	t.Helper()
	goal := p.answered.Load() + 50
	eventually(t, p.name+" goes on", func() bool { return p.answered.Load() >= goal })
}

// takeOut has nothing more sent there, and waits for what has been.
func (p *place) takeOut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out = true
}

// replace stops the process properly, as those do who roll out a new version, and starts the next one: first it says
// that it isn't ready, but serves on until nothing is sent there any more.
func (p *place) replace(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	eventually(t, p.name+" is not ready", func() bool { return p.status("/readyz") == http.StatusServiceUnavailable })
	p.serveOn(t)
	p.takeOut()
	p.signal(t, syscall.SIGTERM) // which ends the delay
	if code := p.wait(t); code != 0 {
		t.Errorf("%s ended with %d", p.name, code)
	}
	next := p.again(t)
	next.ready(t, 3)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process, p.out = next, false
}

// TestRollingRestartUnderLoad replaces all nodes one by one while all are asked. No check fails, none is answered in
// doubt, and of each limit is given out what it is, no hit twice.
func TestRollingRestartUnderLoad(t *testing.T) {
	var b balancer
	for _, p := range startAll(t, 3, "WEIR_DRAIN_DELAY=1h", "WEIR_PEER_TIMEOUT=10s", "WEIR_LOG_LEVEL=info") {
		b = append(b, &place{process: p})
	}
	const keys, tries, together = 60, 12, 3 // limits in use at a time, hits of each, and items of a request
	var next, last atomic.Int64
	last.Store(math.MaxInt64)
	var mu sync.Mutex
	left := map[string][]int64{} // by key, after each hit that passed
	var callers sync.WaitGroup
	for range 6 {
		callers.Go(func() {
			for {
				n := next.Add(together) - together
				if n >= last.Load() {
					return
				}
				var items []json.RawMessage
				var names []string
				for i := n; i < n+together; i++ {
					names = append(names, fmt.Sprint("wave-", i/(keys*tries), "-", i%keys))
					items = append(items, item(names[i-n], "duration", 3_600_000))
				}
				results := b.check(t, n/together, items...)
				mu.Lock()
				for i, r := range results {
					if r.Status == "OK" {
						left[names[i]] = append(left[names[i]], *r.Remaining)
					}
					if r.Status == "ERROR" || r.Metadata["degraded"] != "" {
						t.Errorf("%s: %s", names[i], describe(r))
					}
				}
				mu.Unlock()
			}
		})
	}
	for range 2 {
		for _, p := range b {
			p.serveOn(t)
			p.replace(t)
		}
	}
	last.Store((next.Load()/(keys*tries) + 1) * keys * tries)
	callers.Wait()
	for key, got := range left {
		slices.Sort(got)
		if !slices.Equal(got, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("of %s remained %v", key, got)
		}
	}
	if got, want := len(left), int(last.Load()/tries); got != want {
		t.Errorf("%d limits were used, of %d", got, want)
	}
}

// TestLeavingIsToldAtOnce: the others hear that a node leaves though no node asks another for anything.
func TestLeavingIsToldAtOnce(t *testing.T) {
	t.Parallel()
	all := startAll(t, 2, "WEIR_DRAIN_DELAY=1h", "WEIR_GLOBAL_INTERVAL=1h")
	all[0].signal(t, syscall.SIGTERM)
	eventually(t, "the other one hears", func() bool { return all[1].stateOf(t, all[0].node) == "left" })
}
