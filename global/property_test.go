package global

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weir/limits"
)

// A game is a random life of some nodes.
type game struct {
	*world
	random *rand.Rand
	links  map[string]*rand.Rand // one for the messages of each kind from one node to another, which come in an order
	keys   []limits.Request      // their terms
	spent  time.Duration
}

// newGame makes a world whose limits are not over before the game is.
func newGame(t *testing.T, random *rand.Rand, keys int, a limits.Algorithm) *game {
	g := &game{world: newWorld(t, 2+random.IntN(4)), random: random, links: map[string]*rand.Rand{}}
	for _, n := range g.nodes {
		n.skew = time.Duration(random.Int64N(int64(20*time.Minute))) - 10*time.Minute
	}
	for i := range keys {
		r := limits.Request{Name: "name", UniqueKey: fmt.Sprint("key", i), Algorithm: a, Limit: 1 + random.Int64N(3000),
			Duration: 3_600_000}
		g.place[r.UniqueKey] = g.nodes[random.IntN(len(g.nodes))].name
		g.keys = append(g.keys, r)
	}
	return g
}

// trouble has messages meet a fate: each time with some chance one of these, which are given for each kind.
func (g *game) trouble(chance float64, fates map[kind][]fate) {
	seed := g.random.Uint64()
	g.fate = func(from, to *node, kind kind) fate {
		link := from.name + to.name + string(kind)
		random := g.links[link]
		if random == nil {
			random = rand.New(rand.NewPCG(seed, uint64(link[0])<<16|uint64(link[1])<<8|uint64(link[2])))
			g.links[link] = random
		}
		if bad := fates[kind]; len(bad) > 0 && random.Float64() < chance {
			return bad[random.IntN(len(bad))]
		}
		return arrives
	}
}

func (g *game) anyNode() *node                 { return g.ring[g.random.IntN(len(g.ring))] }
func (g *game) anyKey() limits.Request         { return g.keys[g.random.IntN(len(g.keys))] }
func (g *game) chance(in int) bool             { return g.random.IntN(in) == 0 }
func (g *game) ownerOf(r limits.Request) *node { return g.owner(r.AppendID(nil)) }

// some lets a little time pass.
func (g *game) some(most time.Duration) {
	d := time.Duration(g.random.Int64N(int64(most)))
	g.spent += d
	g.wait(d)
}

// hits draws hits for a limit, mostly few.
func (g *game) hits(r limits.Request) limits.Request {
	r.Hits = 1 + g.random.Int64N(3)
	if g.chance(10) {
		r.Hits = 1 + g.random.Int64N(1+r.Limit/5)
	}
	return r
}

var anything = map[kind][]fate{
	aCheck:  {refused, lost, unheard, delayed},
	aReport: {refused, lost, unheard, delayed, twice},
	aStates: {refused, lost, unheard, delayed, twice},
}

// consistent checks what nodes keep: whatever is owed stands in a line or in a report, from which it will be taken.
func (w *world) consistent() {
	w.t.Helper()
	for _, n := range w.nodes {
		lines, reports := map[string]int{}, map[string]int64{}
		n.sync.eachOwner(func(o *owner) {
			for _, id := range o.line {
				lines[id]++
			}
			for i := range o.report {
				reports[o.report[i].id] = o.seq
			}
			if o.reported != len(o.report) || o.gone {
				w.t.Errorf("%s: %d reported of %d, gone: %v", n.name, o.reported, len(o.report), o.gone)
			}
		})
		for i := range n.sync.shards {
			sh := &n.sync.shards[i]
			for _, id := range sh.entries.Keys() {
				e, _ := sh.entries.Peek(id)
				if e.lined != (lines[id] > 0) || !e.lined && !e.gathered.IsZero() {
					w.t.Errorf("%s: %q owes %+v, lined %v, and stands in line %d times", n.name, id, e.gathered, e.lined, lines[id])
				}
				if seq, there := reports[id]; there == e.frozen.IsZero() || there && seq != e.seq {
					w.t.Errorf("%s: %q has %+v in report %d, but is in %d", n.name, id, e.frozen, e.seq, seq)
				}
			}
		}
	}
}

// agree checks that all nodes give the same answer. A copy of a LEAKY_BUCKET may hold hits that the owner need not
// know, since they had leaked before they could be told: these let it say less, until it hears from the owner.
func (w *world) agree(r limits.Request, mayLeak bool) {
	w.t.Helper()
	owner := w.owner(r.AppendID(nil))
	want := owner.look(r)
	for _, n := range w.ring {
		got := n.look(r)
		if got.Remaining != want.Remaining && !(mayLeak && r.Algorithm == limits.LeakyBucket &&
			got.Remaining < want.Remaining) {
			w.t.Errorf("%s says %d remain, %s, the owner, says %d: %+v, from %s", n.name, got.Remaining, owner.name,
				want.Remaining, got.Result, got.from)
		}
	}
}

// owesNothing checks that no node has anything to say.
func (w *world) owesNothing() {
	w.t.Helper()
	for _, n := range w.nodes {
		if got := n.metric("weir_debts"); got != "0" {
			w.t.Errorf("%s owes hits of %s limits", n.name, got)
		}
	}
}

// TestNothingIsLost has messages meet any fate, and owners pass for away. The owners know of all hits in the end, and
// never of more than there were.
func TestNothingIsLost(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		seeds(t, 150, func(t *testing.T, random *rand.Rand) {
			g := newGame(t, random, 1+random.IntN(3), a)
			g.trouble(random.Float64()*0.7, anything)
			for range 300 {
				switch n := g.anyNode(); random.IntN(10) {
				case 0:
					n.sync.Sync(t.Context())
				case 1:
					g.some(10 * time.Second)
				case 2:
					if g.chance(3) {
						g.deliver(random)
					}
				case 3:
					n.out = nil
					if other := g.anyNode(); other != n && g.chance(3) {
						n.out = []*node{other}
					}
				default:
					n.check(g.hits(g.anyKey()))
				}
				for _, r := range g.keys {
					if used := g.ownerOf(r).used(r); used > g.count[r.UniqueKey] {
						t.Fatalf("%d hits of %q, but the owner counts %d", g.count[r.UniqueKey], r.UniqueKey, used)
					}
				}
			}
			g.consistent()
			g.heal()
			g.deliver(random)
			g.settle(2)
			g.consistent()
			g.owesNothing()
			for _, r := range g.keys {
				if used, want := g.ownerOf(r).used(r), g.count[r.UniqueKey]; used != want && a != limits.LeakyBucket {
					t.Errorf("%d hits of %q, but the owner counts %d", want, r.UniqueKey, used)
				}
				g.agree(r, true)
				g.ownerOf(r).check(g.hits(r))
				g.settle(1)
				g.agree(r, false)
			}
		})
	})
}

// TestNothingIsLostWhenOwnersChange moves limits from node to node, which doesn't move their states. All nodes together
// know of all hits in the end.
func TestNothingIsLostWhenOwnersChange(t *testing.T) {
	for _, a := range []limits.Algorithm{limits.TokenBucket, limits.SlidingWindow} {
		t.Run(a.String(), func(t *testing.T) {
			seeds(t, 150, func(t *testing.T, random *rand.Rand) {
				g := newGame(t, random, 1+random.IntN(3), a)
				leave := random.IntN(2) == 0
				bad := map[kind][]fate{aReport: anything[aReport], aStates: anything[aStates]}
				g.trouble(random.Float64()*0.7, bad)
				for range 300 {
					switch n := g.anyNode(); random.IntN(10) {
					case 0, 1:
						n.sync.Sync(t.Context())
					case 2:
						g.some(5 * time.Second)
					case 3:
						if g.chance(3) {
							g.deliver(random)
						}
					case 4:
						g.place[g.anyKey().UniqueKey] = n.name
						if leave && g.chance(2) {
							g.leaveOrJoin()
						}
					default:
						n.check(g.hits(g.anyKey()))
					}
				}
				g.consistent()
				g.heal()
				g.ring = slices.Clone(g.nodes)
				g.deliver(random)
				g.settle(2 * len(g.nodes)) // a debt may have to go by way of all nodes
				g.consistent()
				g.owesNothing()
				for _, r := range g.keys {
					used := int64(0)
					for _, n := range g.nodes {
						used += n.used(r)
					}
					if want := g.count[r.UniqueKey]; used < want || !leave && used > want {
						t.Errorf("%d hits of %q, but the nodes count %d", want, r.UniqueKey, used)
					}
				}
			})
		})
	}
}

// leaveOrJoin has one node leave the ring, or all come back.
func (g *game) leaveOrJoin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ring) < len(g.nodes) {
		g.ring = slices.Clone(g.nodes)
		return
	}
	gone := g.random.IntN(len(g.ring))
	g.ring = slices.Delete(slices.Clone(g.nodes), gone, gone+1)
	for key, name := range g.place {
		if name == g.nodes[gone].name {
			g.place[key] = g.ring[g.random.IntN(len(g.ring))].name
		}
	}
}

// TestOvershoot has owners answer whatever they are asked, while all else may be lost. So all nodes together stay
// within the limit and the slack.
func TestOvershoot(t *testing.T) {
	for _, a := range []limits.Algorithm{limits.TokenBucket, limits.SlidingWindow} { // see below for the other
		t.Run(a.String(), func(t *testing.T) {
			seeds(t, 150, func(t *testing.T, random *rand.Rand) {
				g := newGame(t, random, 1, a)
				g.slack = random.Float64()
				for _, n := range g.nodes {
					n.restart()
				}
				bad := map[kind][]fate{aReport: anything[aReport], aStates: anything[aStates]}
				g.trouble(random.Float64(), bad)
				r := g.keys[0]
				r.Limit = 1 + random.Int64N(400)
				most, passed := int64(0), int64(0)
				for _, n := range g.nodes {
					most = r.Limit + int64(len(g.nodes)-1)*n.sync.allowance(queryOf(&r))
				}
				for range 1000 {
					switch n := g.anyNode(); random.IntN(15) {
					case 0:
						n.sync.Sync(t.Context())
					case 1:
						g.some(3 * time.Second)
					case 2:
						g.deliver(random)
					default:
						r := g.hits(r)
						if got := n.check(r); got.Status == ok {
							passed += r.Hits
						}
					}
					if passed > most {
						t.Fatalf("%d of %d hits passed, want at most %d", passed, r.Limit, most)
					}
				}
				if passed < r.Limit {
					t.Errorf("only %d of %d hits passed", passed, r.Limit)
				}
			})
		})
	}
	t.Run("LEAKY_BUCKET", func(t *testing.T) {
		seeds(t, 150, func(t *testing.T, random *rand.Rand) {
			g := newGame(t, random, 1, limits.LeakyBucket)
			g.slack = random.Float64()
			for _, n := range g.nodes {
				n.restart()
			}
			g.trouble(random.Float64(), map[kind][]fate{aReport: {unheard, twice}, aStates: anything[aStates]})
			r := g.keys[0]
			r.Limit, r.Duration, r.Burst = 1+random.Int64N(400), 1000+random.Int64N(10_000), random.Int64N(2)*random.Int64N(800)
			share := g.nodes[0].sync.allowance(queryOf(&r))
			start, passed := g.now, int64(0)
			for range 1000 {
				switch random.IntN(15) {
				case 0:
					g.some(200 * time.Millisecond)
					g.settle(1) // so that no debt is older than its second
				case 1:
					g.deliver(random)
				default:
					r := g.hits(r)
					if got := g.anyNode().check(r); got.Status == ok {
						passed += r.Hits
					}
				}
				leaked := int64(g.now.Sub(start)) / int64(time.Millisecond) * r.Limit / r.Duration
				most := max(r.Burst, r.Limit*(1-min(1, r.Burst))) + leaked + 1 + int64(len(g.nodes)-1)*share
				if passed > most {
					t.Fatalf("%+v: %d hits passed, want at most %d", r, passed, most)
				}
			}
		})
	})
}

// TestAnythingGoes has everything happen, and looks only at what always holds: in the end nobody owes anything, and all
// nodes say the same.
func TestAnythingGoes(t *testing.T) {
	seeds(t, 400, func(t *testing.T, random *rand.Rand) {
		g := newGame(t, random, 1+random.IntN(4), 0)
		g.size = 64 * (1 + random.IntN(2)*random.IntN(3))
		for i := range g.keys {
			g.keys[i].Algorithm = limits.Algorithm(random.IntN(3))
			g.keys[i].Duration = 1000 + random.Int64N(60_000)
		}
		g.trouble(random.Float64()*0.7, anything)
		moves := random.IntN(2) == 0
		for range 300 {
			n := g.anyNode()
			switch random.IntN(16) {
			case 0, 1:
				n.sync.Sync(t.Context())
			case 2:
				g.some(2 * time.Second)
			case 3:
				if g.chance(10) {
					g.some(2 * time.Minute)
				}
			case 4:
				if g.chance(3) {
					g.deliver(random)
				}
			case 5:
				if moves && g.chance(5) {
					g.place[g.anyKey().UniqueKey] = n.name
				}
				if moves && g.chance(10) {
					g.leaveOrJoin()
				}
			case 6:
				n.out = nil
				if other := g.anyNode(); other != n && g.chance(3) {
					n.out = []*node{other}
				}
			case 7:
				if moves && g.chance(20) {
					n.restart()
				}
			case 8:
				n.sync.eachOwner(n.sync.forgetEnded)
			case 9:
				r := g.hits(g.anyKey())
				switch random.IntN(6) {
				case 0:
					r.Behavior = limits.ResetRemaining
				case 1:
					r.Behavior = limits.DrainOverLimit
				case 2:
					r.Hits = -r.Hits
				case 3:
					r.Limit = 1 + random.Int64N(2*r.Limit)
				case 4:
					r.Duration += random.Int64N(1000)
				case 5:
					if g.chance(5) {
						r.Algorithm = limits.Algorithm(random.IntN(3))
					}
				}
				n.check(r)
			default:
				n.check(g.hits(g.anyKey()))
			}
			if g.chance(20) {
				g.consistent()
			}
		}
		g.heal()
		g.ring = slices.Clone(g.nodes)
		g.deliver(random)
		g.settle(2 * len(g.nodes))
		g.consistent()
		g.owesNothing()
		for _, r := range g.keys {
			if moves {
				g.wait(time.Minute + 2*time.Second) // copies of what a former owner said, or one in a former life, are over
			}
			g.agree(r, true)
			g.ownerOf(r).check(g.hits(r))
			g.settle(1)
			g.agree(r, false)
			g.anyNode().check(g.hits(r))
			g.settle(2)
			g.agree(r, false)
		}
	})
}
