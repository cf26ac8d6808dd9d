package global

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weir/limits"
	"weir/limits/wire"
)

const aTake kind = "take"

// A mover is a game in which states follow their limits.
type mover struct {
	*game
	before map[string]string // owners of keys until they changed
}

func newMover(t *testing.T, random *rand.Rand, keys int, a limits.Algorithm) *mover {
	m := &mover{newGame(t, random, keys, a), map[string]string{}}
	m.moving = true
	return m
}

// move makes another node the owner of a limit.
func (m *mover) move(r limits.Request, to *node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was := m.place[r.UniqueKey]; was != to.name {
		m.before[r.UniqueKey], m.place[r.UniqueKey] = was, to.name
	}
}

// take asks the former owner of a limit for its state, as a server does before it counts what it has no state of.
func (m *mover) take(n *node, r limits.Request) {
	was, ok := m.before[r.UniqueKey]
	if !ok || was == n.name || !n.limiter.State(r.AppendID(nil)).Empty() {
		return
	}
	former, answer := m.node(was), new(wire.StateUpdate)
	if n.send(former, aTake, func() {
		answer = copied(m.world, former.sync.Give(n.name, []wire.Key{{Name: r.Name, UniqueKey: r.UniqueKey}}))
	}) == nil {
		n.sync.TakeOver(answer.States)
	}
}

// hit takes hits at a node, which asks the owner.
func (m *mover) hit(n *node, r limits.Request) {
	owner := m.ownerOf(r)
	count := func() {
		now := m.ownerOf(r)
		if now != owner { // the message was late
			return
		}
		m.take(owner, r)
		owner.counted(&r, owner.limiter.Check(r))
	}
	if owner == n {
		count()
		return
	}
	n.send(owner, aCheck, count)
}

// wantOne wants the owner of each limit to know of all its hits, and nobody else of any.
func (m *mover) wantOne() {
	m.t.Helper()
	for _, r := range m.keys {
		for _, n := range m.nodes {
			want := int64(0)
			if m.ownerOf(r) == n {
				want = m.count[r.UniqueKey]
			}
			if used := n.used(r); used != want {
				m.t.Errorf("%s counts %d hits of %q, want %d", n.name, used, r.UniqueKey, want)
			}
		}
	}
}

// TestStatesMove moves limits from node to node while they are used, nodes count for each other, and messages meet any
// fate. In the end the owner of each knows of all hits that were taken, exactly, and nobody else keeps any.
func TestStatesMove(t *testing.T) {
	for _, a := range []limits.Algorithm{limits.TokenBucket, limits.SlidingWindow} {
		t.Run(a.String(), func(t *testing.T) {
			seeds(t, 200, func(t *testing.T, random *rand.Rand) {
				m := newMover(t, random, 1+random.IntN(4), a)
				for i := range m.keys {
					m.keys[i].Limit = 1_000_000
				}
				bad := map[kind][]fate{aTake: anything[aReport]}
				for kind, fates := range anything {
					bad[kind] = fates
				}
				m.trouble(random.Float64()*0.7, bad)
				for range 300 {
					switch n := m.anyNode(); random.IntN(12) {
					case 0, 1:
						n.sync.Sync(t.Context())
					case 2:
						m.some(5 * time.Second)
					case 3:
						if m.chance(3) {
							m.deliver(random)
						}
					case 4:
						m.move(m.anyKey(), n)
					case 5:
						if r := m.hits(m.anyKey()); m.ownerOf(r) != n {
							n.countAway(&r, "stand-in")
						}
					default:
						m.hit(n, m.hits(m.anyKey()))
					}
				}
				m.heal()
				m.deliver(random)
				m.settle(5)
				m.owesNothing()
				m.wantOne()
			})
		})
	}
}

// TestMovesOfALeakyBucket keep its level to the part of a hit, where the new owner has not counted yet.
func TestMovesOfALeakyBucket(t *testing.T) {
	m := newMover(t, rand.New(rand.NewPCG(1, 2)), 1, limits.LeakyBucket)
	r := m.keys[0]
	r.Hits, r.Limit, r.Duration = 7, 10, 3_600_000
	for _, n := range m.nodes {
		n.skew = 0
	}
	m.move(r, m.nodes[0])
	m.nodes[0].limiter.Check(r)
	m.wait(100 * time.Second)
	m.move(r, m.nodes[1])
	m.settle(2)
	r.Hits = 0
	want := limits.New(10, m.nodes[0].time)
	first := r
	first.Hits = 7
	m.wait(-100 * time.Second)
	want.Check(first)
	m.wait(100 * time.Second)
	if got, want := m.nodes[1].limiter.Check(r), want.Check(r); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestGiveTwice has the new owner ask twice, since the answer got lost, and hear of it by a report, too.
func TestGiveTwice(t *testing.T) {
	m := newMover(t, rand.New(rand.NewPCG(3, 4)), 1, limits.TokenBucket)
	former, owner, third := m.nodes[0], m.nodes[1], m.nodes[len(m.nodes)-1]
	r := m.keys[0]
	r.Limit = 100
	m.move(r, former)
	r.Hits = 7
	m.hit(former, r)
	ask := []wire.Key{{Name: r.Name, UniqueKey: r.UniqueKey}, {Name: "", UniqueKey: "x"}, {Name: "name",
		UniqueKey: "nobody's"}}
	if got := former.sync.Give(owner.name, ask); got.States[0].Take != 0 {
		t.Errorf("it gave away what is its own: %+v", got)
	}
	m.move(r, owner)
	if third != owner {
		if got := former.sync.Give(third.name, ask); got.States[0].Take != 0 {
			t.Errorf("it gave to a stranger: %+v", got)
		}
	}
	first, second := former.sync.Give(owner.name, ask), former.sync.Give(owner.name, ask)
	if first.States[0].Take == 0 || first.States[0].Take != second.States[0].Take || first.States[1].Take != 0 ||
		first.States[2].Take != 0 {
		t.Errorf("got %+v and then %+v", first, second)
	}
	owner.sync.TakeOver(first.States)
	owner.sync.TakeOver(second.States)
	m.settle(2)
	m.wantOne()
	owner.wantMetrics("weir_taken_states_total", "1")
	former.wantMetrics("weir_moved_states_total", "1")
}

// TestHandedIsSaidLast has a node hand over more than fits in a report: it says that it is done with the last.
func TestHandedIsSaidLast(t *testing.T) {
	m := newMover(t, rand.New(rand.NewPCG(5, 6)), 1, limits.TokenBucket)
	a, b := m.nodes[0], m.nodes[1]
	a.size = 5000
	a.restart()
	m.place[""] = a.name
	r := m.keys[0]
	r.Limit, r.Hits = 10, 3
	for i := range 2500 {
		r.UniqueKey = fmt.Sprint("many", i)
		a.limiter.Check(r)
	}
	m.place[""] = b.name
	b.size = 5000
	b.restart()
	m.handed = nil
	reports := 0
	b.heard = func(report *wire.Report) {
		reports++
		if done := slices.Contains(m.handed, a.name+">"+b.name); done || (report.Handed != "") != (reports == 3) {
			t.Errorf("report %d has %d states, and says %q", reports, len(report.States), report.Handed)
		}
	}
	a.mustSync()
	if n := b.limiter.Stats().Entries; reports != 3 || n != 2500 || a.limiter.Stats().Entries != 0 {
		t.Errorf("%d reports, %d limits", reports, n)
	}
}

// TestMovesBetweenClocks moves a limit to a node whose clock is hours off: its window ends when it would have.
func TestMovesBetweenClocks(t *testing.T) {
	for _, skew := range []time.Duration{-5 * time.Hour, 5 * time.Hour} {
		for _, asked := range []bool{false, true} {
			m := newMover(t, rand.New(rand.NewPCG(7, 8)), 1, limits.TokenBucket)
			r := m.keys[0]
			r.Limit, r.Hits = 100, 7
			a, b := m.nodes[0], m.nodes[1]
			a.skew, b.skew = 0, skew
			m.move(r, a)
			m.hit(a, r)
			m.wait(20 * time.Minute)
			m.move(r, b)
			if asked {
				m.take(b, r)
			} else {
				a.mustSync()
			}
			r.Hits = 0
			got := b.limiter.Check(r)
			if want := b.time().Add(40 * time.Minute).UnixMilli(); got.Remaining != 93 || got.ResetTime != want {
				t.Errorf("by a clock that is %v off: %+v, want 93 until %d", skew, got, want)
			}
		}
	}
}

// TestNewOwnerLeaves has the new owner leave before it acknowledges what it was given: the states come back, and go to
// the next.
func TestNewOwnerLeaves(t *testing.T) {
	for _, asked := range []bool{false, true} {
		m := newMover(t, rand.New(rand.NewPCG(9, 11)), 1, limits.TokenBucket)
		r := m.keys[0]
		r.Limit, r.Hits = 100, 7
		a, b, c := m.nodes[0], m.nodes[1], m.nodes[2]
		m.move(r, a)
		m.hit(a, r)
		m.move(r, b)
		m.all(lost)
		if asked {
			a.sync.Give(b.name, []wire.Key{{Name: r.Name, UniqueKey: r.UniqueKey}})
		}
		a.sync.Sync(t.Context())
		m.heal()
		m.setRing(a.name + c.name)
		m.move(r, c)
		for range 3 {
			a.sync.Sync(t.Context())
			c.sync.Sync(t.Context())
		}
		if got := c.used(r); got != 7 || a.used(r) != 0 {
			t.Errorf("asked before: %v: the last owner counts %d, the first %d", asked, got, a.used(r))
		}
	}
}

// TestKeepAll has a node stop before the new owner has acknowledged what it was given: that is counted here again, so
// that it can be written to a file, and is given no more.
func TestKeepAll(t *testing.T) {
	m := newMover(t, rand.New(rand.NewPCG(11, 12)), 1, limits.TokenBucket)
	r := m.keys[0]
	r.Limit, r.Hits = 100, 7
	a, b := m.nodes[0], m.nodes[1]
	m.move(r, a)
	m.hit(a, r)
	m.move(r, b)
	m.all(lost)
	a.sync.Sync(t.Context())
	if got := a.used(r); got != 0 {
		t.Fatalf("it counts %d of what it has given away", got)
	}
	a.sync.KeepAll()
	if got := a.used(r); got != 7 {
		t.Errorf("it counts %d, want 7", got)
	}
	a.sync.KeepAll()
	if got := a.used(r); got != 7 {
		t.Errorf("it counts %d after doing it again, want 7", got)
	}
}

// TestAskedByWhoLeft has the new owner leave while it is being given what it has asked for: the state stays here.
func TestAskedByWhoLeft(t *testing.T) {
	m := newMover(t, rand.New(rand.NewPCG(11, 12)), 1, limits.TokenBucket)
	r := m.keys[0]
	r.Limit, r.Hits = 100, 7
	a, b := m.nodes[0], m.nodes[1]
	m.move(r, a)
	m.hit(a, r)
	m.move(r, b)
	a.sync.owner(b.name).gone = true // and this is not forgotten yet
	if got := a.sync.Give(b.name, []wire.Key{{Name: r.Name, UniqueKey: r.UniqueKey}}); got.States[0].Take != 0 {
		t.Errorf("it gave %+v", got.States[0])
	}
	if got := a.used(r); got != 7 {
		t.Errorf("%d are counted, want 7", got)
	}
}

// TestGivenIsReportedSoon: the report that says what a node was given, because it asked, is due at once.
func TestGivenIsReportedSoon(t *testing.T) {
	m := newMover(t, rand.New(rand.NewPCG(13, 14)), 1, limits.TokenBucket)
	r := m.keys[0]
	r.Limit, r.Hits = 100, 7
	a, b := m.nodes[0], m.nodes[1]
	m.move(r, a)
	ask := []wire.Key{{Name: r.Name, UniqueKey: r.UniqueKey}}
	m.move(r, b)
	if a.sync.Give(b.name, ask); a.sync.owner(b.name).due.Load() {
		t.Error("a report is due, of nothing")
	}
	m.move(r, a)
	m.hit(a, r)
	m.move(r, b)
	if a.sync.Give(b.name, ask); !a.sync.owner(b.name).due.Load() {
		t.Error("no report is due")
	}
}

// TestQueue adds runs and takes limits out, in turns: those of the highest rank first, those of an earlier run before
// those of a later one, and each once. What is put back comes first again.
func TestQueue(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	highestFirst := func(a, b limits.Found) int { return cmp.Compare(b.TTLClass, a.TTLClass) }
	for range 300 {
		var q queue
		var in []limits.Found // all that is in it, in order
		for n := range 30 {
			var run []limits.Found
			for i := range random.IntN(6) {
				run = append(run, limits.Found{ID: fmt.Sprint(n, ".", i), TTLClass: uint8(random.IntN(4))})
			}
			slices.SortStableFunc(run, highestFirst)
			in = append(in, run...)
			slices.SortStableFunc(in, highestFirst)
			runs := len(q.runs)
			q.add(run)
			if q.len() != len(in) {
				t.Fatalf("%d limits, want %d", q.len(), len(in))
			}
			n := random.IntN(12)
			got := q.take(n)
			if !slices.Equal(got, in[:min(n, len(in))]) {
				t.Fatalf("took %v, want %d of %v", got, n, in)
			}
			kept := random.IntN(len(got) + 1)
			q.putBack(got[kept:])
			if in = in[kept:]; len(q.runs) > runs+2 {
				t.Fatalf("%d runs after %d", len(q.runs), runs)
			}
		}
	}
}

// TestNumbers adds numbers in any order, some of them twice: each is new once, as long as it is remembered.
func TestNumbers(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	for _, spread := range []int64{1, 100, maxTakes / 2, maxTakes - 1} {
		var some numbers
		seen := map[int64]bool{}
		for i := int64(1); i < 300_000; i += 1 + random.Int64N(3) {
			n := max(1, i-random.Int64N(spread))
			if got := some.add(n); got == seen[n] {
				t.Fatalf("spread %d: %d is new: %v, the last is %d", spread, n, got, some.last)
			}
			seen[n] = true
		}
	}
	var some numbers
	for _, n := range []int64{1, math.MaxInt64 - 1, math.MaxInt64, math.MaxInt64 - maxTakes + 1} {
		if !some.add(n) || some.add(n) {
			t.Errorf("%d is not new once", n)
		}
	}
	if !some.add(1) {
		t.Error("it remembers all numbers")
	}
}
