package global

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"weir/limits"
)

// TestTogether has all nodes do everything at once, for the race detector, and so that hits which come at the wrong
// moment are lost if they can be.
func TestTogether(t *testing.T) {
	seeds(t, 4, func(t *testing.T, random *rand.Rand) {
		w := newWorld(t, 3)
		var keys []limits.Request
		for i := range 5 {
			r := w.of(limits.TokenBucket, 1)
			r.UniqueKey, r.Limit = string(rune('k'+i)), 1000*(1+random.Int64N(10))
			w.place[r.UniqueKey] = w.nodes[i%3].name
			keys = append(keys, r)
		}
		w.fate = func(from, to *node, kind kind) fate { // under the world's lock
			return []fate{arrives, arrives, arrives, refused, lost, unheard, delayed}[random.IntN(7)]
		}
		ctx, cancel := context.WithCancel(t.Context())
		var helpers, checks sync.WaitGroup
		for _, n := range w.nodes {
			helpers.Go(func() { n.sync.Run(ctx) })
			helpers.Go(func() {
				for ctx.Err() == nil {
					n.sync.Sync(ctx)
					n.sync.eachOwner(n.sync.forgetEnded)
					n.metric("weir_debts")
				}
			})
			for range 3 {
				w.mu.Lock()
				seed := random.Uint64()
				w.mu.Unlock()
				checks.Go(func() {
					random := rand.New(rand.NewPCG(seed, 0))
					for range 500 {
						r := keys[random.IntN(len(keys))]
						r.Hits = 1 + random.Int64N(3)
						if random.IntN(20) == 0 {
							r.Hits = 0
						}
						n.check(r)
					}
				})
			}
		}
		checks.Wait()
		cancel()
		helpers.Wait()
		w.heal()
		w.deliver(random)
		w.settle(2)
		w.consistent()
		w.owesNothing()
		for _, r := range keys {
			if used, want := w.owner(r.AppendID(nil)).used(r), w.count[r.UniqueKey]; used != want {
				t.Errorf("%d hits of %q, but the owner counts %d", want, r.UniqueKey, used)
			}
			w.agree(r, false)
		}
	})
}

// TestOwnersChangeTogether moves limits while hits are taken and reported.
func TestOwnersChangeTogether(t *testing.T) {
	w := newWorld(t, 3)
	r := w.of(limits.TokenBucket, 1)
	r.Limit = 1_000_000
	ctx, cancel := context.WithCancel(t.Context())
	var helpers, checks sync.WaitGroup
	for _, n := range w.nodes {
		helpers.Go(func() {
			for ctx.Err() == nil {
				n.sync.Sync(ctx)
				n.sync.eachOwner(n.sync.forgetEnded)
			}
		})
		checks.Go(func() {
			for range 3000 {
				n.check(r)
			}
		})
	}
	helpers.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			w.mu.Lock()
			w.place["key"] = w.nodes[i%3].name
			w.mu.Unlock()
		}
	})
	checks.Wait()
	cancel()
	helpers.Wait()
	w.settle(6)
	w.consistent()
	w.owesNothing()
	used := int64(0)
	for _, n := range w.nodes {
		used += n.used(r)
	}
	if want := w.count["key"]; used < want || want != 9000 {
		t.Errorf("%d hits, but the nodes count %d", want, used)
	}
}
