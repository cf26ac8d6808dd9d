package global

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
)

func TestAllowance(t *testing.T) {
	for _, test := range []struct {
		limit, burst int64
		slack        float64
		nodes        int
		a            limits.Algorithm
		want         int64
	}{
		{100, 0, 0.01, 1, limits.TokenBucket, 1},
		{99, 0, 0.01, 1, limits.TokenBucket, 0},
		{300, 0, 0.01, 3, limits.TokenBucket, 1},
		{299, 0, 0.01, 3, limits.TokenBucket, 0},
		{1_000_000, 0, 0.01, 3, limits.TokenBucket, 3333},
		{1_000_000, 0, 0, 3, limits.TokenBucket, 0},
		{1_000_000, 0, -1, 3, limits.TokenBucket, 0},
		{100, 0, 1, 1, limits.TokenBucket, 100},
		{100, 0, 2, 1, limits.TokenBucket, 100},
		{100, 0, 0.07, 1, limits.TokenBucket, 7},        // 7.000000000000001, as floats have it
		{10_000, 0, 0.0157, 1, limits.TokenBucket, 157}, // of 15,699.999 millionths
		{0, 0, 1, 1, limits.SlidingWindow, 0},
		{math.MaxInt64, 0, 1, 1, limits.SlidingWindow, math.MaxInt64},
		{math.MaxInt64, 0, 1, 2, limits.SlidingWindow, math.MaxInt64 / 2},
		{math.MaxInt64, 0, 0.01, 0, limits.SlidingWindow, math.MaxInt64 / 100},
		{1000, 0, 0.1, 1, limits.LeakyBucket, 100},
		{1000, 50, 0.1, 1, limits.LeakyBucket, 5},
		{1000, 5000, 0.1, 1, limits.LeakyBucket, 100},
		{1000, 50, 0.1, 1, limits.TokenBucket, 100},
	} {
		w := newWorld(t, test.nodes)
		n := &node{world: w}
		n.limiter = limits.New(1, n.time)
		n.sync = New(Options{Limiter: n.limiter, Cluster: n, Slack: test.slack})
		r := limits.Request{Name: "n", UniqueKey: "k", Limit: test.limit, Burst: test.burst, Algorithm: test.a, Duration: 1}
		if got := n.sync.allowance(queryOf(&r)); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

// TestTheWayOfAHit follows the hits of one node, which asks once, takes what it may and tells of it.
func TestTheWayOfAHit(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		for _, skew := range []time.Duration{0, 24 * time.Hour, -24 * time.Hour} {
			theWayOfAHit(t, a, skew)
		}
	})
}

func theWayOfAHit(t *testing.T, a limits.Algorithm, skew time.Duration) {
	w := newWorld(t, 2) // so it may take 5 of 100 hits before the owner knows
	owner, n := w.nodes[0], w.nodes[1]
	n.skew = skew
	r := w.of(a, 1)
	n.check(r).wants(t, "asked", ok, 99)
	w.wantHeard("b>a check")
	for i := range int64(5) {
		n.check(r).wants(t, "copy", ok, 98-i)
	}
	n.look(r).wants(t, "copy", ok, 94)
	owner.look(r).wants(t, "owner", ok, 99)
	w.wantHeard()
	n.check(r).wants(t, "asked", ok, 98) // as the owner sees it
	n.look(r).wants(t, "copy", ok, 93)
	w.wantHeard("b>a check")
	n.wantMetrics("weir_debts", "1", "weir_global_copies", "1", `weir_global_checks_total{source="copy"}`, "7",
		`weir_global_checks_total{source="asked"}`, "2")
	owner.wantMetrics("weir_global_shares", "1", `weir_global_checks_total{source="owner"}`, "3")

	n.mustSync()
	w.wantHeard("b>a report")
	owner.look(r).wants(t, "owner", ok, 93)
	n.look(r).wants(t, "copy", ok, 93)
	n.mustSync()
	w.wantHeard()
	n.wantMetrics("weir_debts", "0", "weir_reports_total", "1", "weir_reported_hits_total", "5")
	owner.wantMetrics(`weir_received_reports_total{kind="new"}`, "1", "weir_received_hits_total", "5")
	for i := range int64(5) {
		n.check(r).wants(t, "copy", ok, 92-i)
	}
	owner.mustSync() // the node was told with the answers to what it asked and reported
	w.wantHeard()
}

// TestWhatACopyLeavesToTheOwner says which checks go to the owner though there is a copy.
func TestWhatACopyLeavesToTheOwner(t *testing.T) {
	with := func(change func(r *limits.Request)) func(r *limits.Request) { return change }
	for _, test := range []struct {
		what   string
		change func(r *limits.Request)
		from   string
	}{
		{"a hit", with(func(r *limits.Request) {}), "copy"},
		{"a look", with(func(r *limits.Request) { r.Hits = 0 }), "copy"},
		{"a look on other terms", with(func(r *limits.Request) { r.Hits, r.Limit = 0, 5 }), "copy"},
		{"what fits the allowance", with(func(r *limits.Request) { r.Hits = 5 }), "copy"},
		{"what is more", with(func(r *limits.Request) { r.Hits = 6 }), "asked"},
		{"what doesn't fit the limit", with(func(r *limits.Request) { r.Hits = 100 }), "copy"},
		{"hits given back", with(func(r *limits.Request) { r.Hits = -1 }), "asked"},
		{"a reset", with(func(r *limits.Request) { r.Behavior = limits.ResetRemaining }), "asked"},
		{"a reset that takes nothing", with(func(r *limits.Request) { r.Hits, r.Behavior = 0, limits.ResetRemaining }),
			"asked"},
		{"a drain", with(func(r *limits.Request) { r.Behavior = limits.DrainOverLimit }), "asked"},
		{"another limit", with(func(r *limits.Request) { r.Limit = 101 }), "asked"},
		{"another duration", with(func(r *limits.Request) { r.Duration++ }), "asked"},
		{"another algorithm", with(func(r *limits.Request) { r.Algorithm = (r.Algorithm + 1) % 3 }), "asked"},
	} {
		t.Run(test.what, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
				w := newWorld(t, 2)
				n := w.nodes[1]
				r := w.of(a, 1)
				n.check(r)
				test.change(&r)
				from := test.from
				if a == limits.SlidingWindow && r.Algorithm == limits.TokenBucket {
					from = "asked"
				}
				if got := n.check(r); got.from != from {
					t.Errorf("%+v, from %s", got.Result, got.from)
				}
			})
		})
	}
}

// TestExhaustedLimitsAreRefusedByCopies checks that nobody is asked before the copy's window is over.
func TestExhaustedLimitsAreRefusedByCopies(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 2)
		n := w.nodes[1]
		r := w.of(a, 100)
		n.check(r).wants(t, "asked", ok, 0)
		w.hear()
		r.Hits = 1
		for range 30 {
			w.wait(time.Second)
			if got := n.check(r); got.from != "copy" || got.Status != over || got.Metadata != (bucket.Metadata{Owner: "a",
				Source: "replica"}) {
				t.Errorf("%+v, from %s", got.Result, got.from)
			}
		}
		w.wantHeard()
		w.wait(time.Hour - 30*time.Second)
		if a == limits.TokenBucket {
			n.check(r).wants(t, "asked", ok, 99) // a window begins
			return
		}
		n.look(r).wants(t, "copy", ok, map[limits.Algorithm]int64{limits.LeakyBucket: 100}[a])
		w.wait(1)
		if got := n.look(r); got.from != "asked" {
			t.Errorf("a copy of more than an hour says %+v", got.Result)
		}
	})
}

func TestTheAgeOfDebts(t *testing.T) {
	w := newWorld(t, 2)
	n := w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	if _, oldest := n.sync.owing(); oldest != 0 {
		t.Errorf("no debt is %v old", oldest)
	}
	before := n.sync.Clock()
	n.check(r)
	after := n.sync.Clock()
	n.check(r)
	if _, oldest := n.sync.owing(); oldest > n.sync.Clock()-before || oldest <= 0 {
		t.Errorf("a debt since %v is %v old at %v", before, oldest, n.sync.Clock())
	}
	if since := n.sync.owner("a").since; since > after {
		t.Errorf("a debt of before %v is of %v", after, since)
	}
	n.mustSync()
	n.wantMetrics("weir_debt_oldest_seconds", "0")
}

func TestEarlyReports(t *testing.T) {
	w := newWorld(t, 2)
	n := w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	for i, early := range []bool{false, false, true, true, true} { // of 5
		n.check(r)
		if got := len(n.sync.wake) > 0; got != early || n.sync.owner("a").due.Load() != early {
			t.Errorf("after hit %d, a report is to go: %v", i+1, got)
		}
	}
	n.mustSync()
	if n.sync.owner("a").due.Load() {
		t.Error("a report is to go, though one has just gone")
	}
}

// TestRun has hits reported early, and everything else at intervals.
func TestRun(t *testing.T) {
	run := func(w *world, n *node, interval time.Duration) (stop func()) {
		n.sync = New(Options{Limiter: n.limiter, Cluster: n, Slack: n.slack, Size: n.size, Interval: interval})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { n.sync.Run(ctx) })
		return func() { cancel(); running.Wait() }
	}
	t.Run("early", func(t *testing.T) {
		w := newWorld(t, 2)
		owner, n := w.nodes[0], w.nodes[1]
		heard := make(chan int64, 10)
		owner.heard = func(report *wire.Report) { heard <- report.Debts[0].Hits }
		stop := run(w, n, time.Hour)
		defer stop()
		r := w.of(limits.TokenBucket, 3)
		n.check(r)
		n.check(r)
		if got := <-heard; got != 3 {
			t.Errorf("%d hits were reported", got)
		}
	})
	t.Run("at intervals", func(t *testing.T) {
		w := newWorld(t, 3)
		owner, n, other := w.nodes[0], w.nodes[1], w.nodes[2]
		told := make(chan int64, 100)
		other.told = func(_ *node, s wire.KeyedState) { told <- s.Used }
		r := w.of(limits.TokenBucket, 1)
		stop := run(w, n, time.Millisecond)
		defer stop()
		stop = run(w, owner, time.Millisecond)
		defer stop()
		other.check(r)
		n.check(r)
		n.check(r)
		for used := range told { // whatever comes between
			if used == 3 {
				break
			}
		}
	})
	t.Run("what others are not told of is looked for, and what nobody wants forgotten", func(t *testing.T) {
		w := newWorld(t, 2)
		owner, n := w.nodes[0], w.nodes[1]
		told := make(chan int64, 100)
		n.told = func(_ *node, s wire.KeyedState) { told <- s.Used }
		r := w.of(limits.TokenBucket, 1)
		r.Duration = 1000
		away := r
		away.UniqueKey = "other"
		w.place["other"] = "a"
		stop := run(w, owner, time.Millisecond)
		defer stop()
		n.check(r)
		<-told
		owner.limiter.Check(r) // as by something that doesn't say so
		if got := <-told; got != 2 {
			t.Errorf("%d are used", got)
		}
	})
}

func TestPublications(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 4)
		owner, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
		b.skew, c.skew = -time.Hour, time.Minute
		r := w.of(a, 1)
		b.check(r)
		c.check(r)
		w.hear()
		owner.mustSync()
		w.wantHeard("a>b states") // c knows already, and d never asked
		b.look(r).wants(t, "copy", ok, 98)
		c.look(r).wants(t, "copy", ok, 98)

		owner.check(r)
		owner.look(r)
		owner.mustSync()
		got := strings.Split(w.hear(), ", ")
		slices.Sort(got)
		if !slices.Equal(got, []string{"a>b states", "a>c states"}) {
			t.Errorf("%q", got)
		}
		b.look(r).wants(t, "copy", ok, 97)
		c.look(r).wants(t, "copy", ok, 97)
		owner.look(r)
		owner.mustSync()
		w.wantHeard()
		owner.limiter.Check(r) // by somebody who doesn't say so
		owner.mustSync()
		b.look(r).wants(t, "copy", ok, 96)
		r.Hits = -1
		owner.check(r)
		r.Hits = 1
		owner.mustSync()
		w.hear()

		c.check(r)
		c.mustSync()
		w.wantHeard("c>a report")
		owner.mustSync()
		w.wantHeard("a>b states")
		b.look(r).wants(t, "copy", ok, 96)

		w.all(lost)
		owner.check(r)
		for range 3 {
			owner.mustSync()
		}
		w.heal()
		w.hear()
		owner.wantMetrics(`weir_publications_total{result="failed"}`, "6")
		w.fate = func(from, to *node, kind kind) fate {
			if to == b {
				return unheard
			}
			return arrives
		}
		owner.mustSync()
		w.hear()
		w.heal()
		owner.mustSync() // c has heard of it, but so has b
		w.wantHeard("a>b states")
		owner.mustSync()
		w.wantHeard()
		b.look(r).wants(t, "copy", ok, 95)
		c.look(r).wants(t, "copy", ok, 95)
	})
}

// TestLatePublications have no say.
func TestLatePublications(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 2)
		owner, n := w.nodes[0], w.nodes[1]
		r := w.of(a, 1)
		n.check(r)
		w.all(delayed)
		owner.check(r)
		owner.mustSync() // says that 2 are used
		w.heal()
		owner.check(r)
		owner.mustSync() // says that 3 are used
		n.look(r).wants(t, "copy", ok, 97)
		w.deliver(nil)
		n.look(r).wants(t, "copy", ok, 97)

		w.all(delayed)
		owner.check(r)
		owner.mustSync()
		owner.restart()
		w.heal()
		owner.check(r)
		n.check(r) // a copy of the former life is as good as any
		n.mustSync()
		n.look(r).wants(t, "copy", ok, 98)
		w.deliver(nil)
		n.look(r).wants(t, "copy", ok, 98)
		owner.mustSync()
		n.look(r).wants(t, "copy", ok, 98)
	})
}

// TestALatePublicationKnowsTheTimeWorse has what was told come a second time, late, so that the owner's clock seems to
// be behind.
func TestALatePublicationKnowsTheTimeWorse(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 2)
		owner, n := w.nodes[0], w.nodes[1]
		r := w.of(a, 50)
		n.check(r)
		r.Hits = 1
		w.all(twice)
		owner.check(r)
		owner.mustSync()
		w.heal()
		w.wait(30 * time.Minute)
		w.deliver(nil)
		if got, want := n.look(r), owner.look(r); got.from != "copy" || got.Remaining != want.Remaining ||
			got.ResetTime != want.ResetTime {
			t.Errorf("%+v, from %s, but the owner says %+v", got.Result, got.from, want.Result)
		}
	})
}

func TestHoldersAreForgotten(t *testing.T) {
	w := newWorld(t, 3)
	owner, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	r := w.of(limits.TokenBucket, 1)
	r.Duration = 10_000
	b.check(r)
	c.check(r)
	owner.mustSync()
	w.wait(8 * time.Second)
	c.check(r) // takes, and so wants to know for longer
	c.mustSync()
	w.hear()
	w.wait(3 * time.Second) // a second more than b's copy is good for
	owner.check(r)
	owner.mustSync()
	got := strings.Split(w.hear(), ", ")
	slices.Sort(got)
	if !slices.Equal(got, []string{"a>b states", "a>c states"}) {
		t.Errorf("%q", got)
	}
	w.wait(1)
	owner.check(r)
	owner.mustSync()
	w.wantHeard("a>c states")
	w.setRing("ab")
	owner.check(r)
	owner.mustSync()
	w.wantHeard()
	owner.wantMetrics("weir_global_shares", "0")
	if len(owner.sync.shares.dirty) > 0 {
		t.Errorf("%q are to be looked at", owner.sync.shares.dirty)
	}
	b.check(r) // begins anew
	owner.wantMetrics("weir_global_shares", "1")
}

// TestManyStates publishes more than one message takes, to a node that is told one thing at a time.
func TestManyStates(t *testing.T) {
	w := newWorld(t, 2)
	w.size = 10_000
	owner, n := w.nodes[0], w.nodes[1]
	owner.restart()
	n.restart()
	const keys = 2*wire.MaxItems + 100
	each := func(do func(r limits.Request)) {
		for i := range keys {
			r := w.of(limits.TokenBucket, 1)
			r.UniqueKey = fmt.Sprint("key", i)
			w.place[r.UniqueKey] = "a"
			do(r)
		}
	}
	each(func(r limits.Request) { n.check(r) })
	each(func(r limits.Request) { owner.check(r) })
	w.hear()
	for range 3 {
		owner.mustSync()
		w.wantHeard("a>b states")
	}
	owner.mustSync()
	w.wantHeard()
	each(func(r limits.Request) { n.look(r).wants(t, "copy", ok, 98) })

	each(func(r limits.Request) { n.check(r).wants(t, "copy", ok, 97) })
	n.wantMetrics("weir_debts", fmt.Sprint(keys))
	n.mustSync()
	w.wantHeard("b>a report", "b>a report", "b>a report")
	n.wantMetrics("weir_debts", "0", "weir_reported_hits_total", fmt.Sprint(keys))
	each(func(r limits.Request) { owner.look(r).wants(t, "owner", ok, 97) })
}

func TestAResetDropsWhatWasTakenBefore(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		for _, test := range []struct {
			what    string
			prepare func(w *world, n *node)
		}{
			{"gathered", func(w *world, n *node) {}},
			{"in a report that is lost", func(w *world, n *node) {
				w.all(lost)
				n.sync.Sync(context.Background())
				w.heal()
			}},
			{"in a report that is not answered", func(w *world, n *node) {
				w.all(unheard)
				n.sync.Sync(context.Background())
				w.heal()
			}},
		} {
			t.Run(test.what, func(t *testing.T) {
				w := newWorld(t, 3)
				owner, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
				r := w.of(a, 1)
				b.check(r)
				c.check(r)
				r.Hits = 2
				b.check(r).wants(t, "copy", ok, 97)
				test.prepare(w, b)
				reset := r
				reset.Behavior = limits.ResetRemaining
				c.check(reset).wants(t, "asked", ok, 100)
				c.look(r).wants(t, "copy", ok, 100)
				owner.mustSync()
				b.look(r).wants(t, "copy", ok, 100)
				r.Hits = 1
				if a == limits.LeakyBucket {
					b.check(r).wants(t, "copy", ok, 99)
				} else {
					b.check(r).wants(t, "asked", ok, 99)
				}
				w.settle(2)
				owner.look(r).wants(t, "owner", ok, 99)
				b.look(r).wants(t, "copy", ok, 99)
				c.look(r).wants(t, "copy", ok, 99)
			})
		}
		t.Run("of a limit that is whole", func(t *testing.T) {
			if a != limits.LeakyBucket {
				return // their windows begin with the owner's
			}
			w := newWorld(t, 2)
			owner, n := w.nodes[0], w.nodes[1]
			r := w.of(a, 2)
			n.look(r)
			n.check(r).wants(t, "copy", ok, 98)
			reset := r
			reset.Behavior = limits.ResetRemaining
			owner.check(reset)
			owner.mustSync()
			n.look(r).wants(t, "copy", ok, 100)
			n.mustSync()
			owner.look(r).wants(t, "owner", ok, 100)
		})
		t.Run("that only the owner knows of", func(t *testing.T) {
			w := newWorld(t, 2)
			owner, n := w.nodes[0], w.nodes[1]
			r := w.of(a, 2)
			n.check(r)
			n.check(r).wants(t, "copy", ok, 96)
			reset := r
			reset.Behavior = limits.ResetRemaining
			owner.check(reset)
			n.mustSync()
			owner.look(r).wants(t, "owner", ok, 100)
			n.look(r).wants(t, "copy", ok, 100)
			owner.wantMetrics(`weir_dropped_hits_total{reason="reset"}`, "2")
		})
	})
}

// TestDebtsOfAWindowThatIsOver have no place in the next one.
func TestDebtsOfAWindowThatIsOver(t *testing.T) {
	w := newWorld(t, 3)
	owner, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	b.skew = time.Minute
	r := w.of(limits.TokenBucket, 1)
	r.Duration = 10_000
	b.check(r)
	w.wait(9 * time.Second)
	b.check(r).wants(t, "copy", ok, 98)
	w.all(delayed)
	b.sync.Sync(context.Background())
	w.heal()
	w.wait(time.Second)
	c.check(r).wants(t, "asked", ok, 99) // begins a window
	w.deliver(nil)                       // with a debt that looks as young as a second before
	owner.look(r).wants(t, "owner", ok, 99)
	owner.wantMetrics(`weir_dropped_hits_total{reason="reset"}`, "1")
	w.settle(2)
	owner.look(r).wants(t, "owner", ok, 99)
	owner.wantMetrics("weir_received_hits_total", "0")
	b.wantMetrics("weir_debts", "0")

	b.check(r).wants(t, "asked", ok, 98)
	b.check(r).wants(t, "copy", ok, 97)
	w.wait(10 * time.Second)
	b.wantMetrics("weir_debts", "1")
	b.sync.eachOwner(b.sync.forgetEnded)
	b.wantMetrics("weir_debts", "0")
	w.hear()
	b.mustSync()
	w.wantHeard()
}

// TestForgetEndedKeepsTheRest takes only what is over out of the line.
func TestForgetEndedKeepsTheRest(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	n.out = []*node{owner}
	for i := range 10 {
		r := w.of(limits.TokenBucket, 1)
		r.UniqueKey, r.Duration = fmt.Sprint(i), 1000+int64(i%2)*1000
		w.place[r.UniqueKey] = "a"
		n.check(r)
	}
	n.wantMetrics("weir_debts", "10")
	n.sync.eachOwner(n.sync.forgetEnded)
	n.wantMetrics("weir_debts", "10")
	w.wait(time.Second)
	n.sync.eachOwner(n.sync.forgetEnded)
	n.wantMetrics("weir_debts", "5")
	r := w.of(limits.TokenBucket, 1) // one of those that are over begins anew
	r.UniqueKey = "0"
	n.check(r)
	n.mustSync()
	owner.wantMetrics("weir_received_hits_total", "6")
	n.wantMetrics("weir_debts", "0")
}

// TestMemoryForDebtsIsBounded has a million limits owed to an owner that can't be told.
func TestMemoryForDebtsIsBounded(t *testing.T) {
	w := newWorld(t, 2)
	w.size = 10_000
	owner, n := w.nodes[0], w.nodes[1]
	n.restart()
	n.out = []*node{owner}
	w.all(lost)
	r := w.of(limits.TokenBucket, 1)
	w.place[""] = "a"
	room := 0
	for i := range n.sync.shards {
		room += n.sync.shards[i].size
	}
	if room > w.size || room < w.size*9/10 {
		t.Errorf("room for %d, want %d", room, w.size)
	}
	keys := 1_000_000
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race",
		Value: "true"}) {
		keys /= 10 // the race detector has nothing to see here, and takes ten times as long
	}
	buf := []byte("key-0000000")
	for i := range keys {
		for at, rest := len(buf)-1, i; at > 3; at, rest = at-1, rest/10 {
			buf[at] = byte('0' + rest%10)
		}
		r.UniqueKey = string(buf)
		n.sync.Count(queryOf(&r), true)
		if i == keys/2 {
			n.sync.Sync(context.Background()) // which fails
		}
	}
	n.wantMetrics("weir_global_copies", fmt.Sprint(room), "weir_debts", fmt.Sprint(room),
		`weir_dropped_hits_total{reason="full"}`, fmt.Sprint(keys-room))
	o := n.sync.owner("a")
	if len(o.line)+len(o.report) != room || len(o.report) != maxReport {
		t.Errorf("%d stand in line, %d in a report", len(o.line), len(o.report))
	}
	w.wait(time.Hour)
	n.sync.eachOwner(n.sync.forgetEnded)
	n.wantMetrics("weir_debts", fmt.Sprint(maxReport)) // what is in a report is for its answer to drop
	r.UniqueKey = "last"
	n.sync.Learn(queryOf(&r), "a", &bucket.Snapshot{Start: 1, Version: 1, Now: w.now.UnixNano()})
	if e := n.entry(r); e == nil || !e.hasCopy() {
		t.Error("there is no room for a copy")
	}
}

// TestCopiesMakeRoomForDebts has copies go, the oldest first, but never a debt.
func TestCopiesMakeRoomForDebts(t *testing.T) {
	w := newWorld(t, 2)
	w.size = 20
	n := w.nodes[1]
	n.restart()
	key := func(i int) limits.Request {
		r := w.of(limits.TokenBucket, 1)
		r.UniqueKey = fmt.Sprint("key", i)
		w.place[r.UniqueKey] = "a"
		return r
	}
	for i := range 10 {
		n.check(key(i))
		n.check(key(i)) // owes
	}
	for i := 10; i < 100; i++ {
		n.check(key(i))
	}
	for i := range 100 {
		if e := n.entry(key(i)); (e != nil) != (i < 10 || i >= 90) {
			t.Errorf("key %d is held: %v", i, e != nil)
		}
	}
	n.wantMetrics("weir_debts", "10", "weir_global_copies", "20")
}

// TestReportsAreCountedOnce has the answer to a report lost, or the report, until one gets through.
func TestReportsAreCountedOnce(t *testing.T) {
	for what, fates := range map[string][]fate{
		"lost":                       {lost, lost},
		"refused":                    {refused},
		"unheard":                    {unheard, unheard},
		"delayed":                    {delayed},
		"delayed, then lost":         {delayed, lost, delayed},
		"delayed, unheard":           {delayed, unheard},
		"comes again later":          {twice},
		"unheard, comes again later": {unheard, twice},
	} {
		t.Run(what, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
				w := newWorld(t, 2)
				owner, n := w.nodes[0], w.nodes[1]
				r := w.of(a, 1)
				n.check(r)
				n.check(r)
				n.check(r)
				failed := 0
				for _, next := range fates {
					w.all(next)
					if err := n.sync.Sync(context.Background()); (err == nil) != (next == twice) {
						t.Errorf("%v", err)
					}
					if next != twice {
						failed++
						n.wantMetrics("weir_debts", "1")
					}
				}
				w.heal()
				n.check(r).wants(t, "copy", ok, 96) // stands behind
				n.mustSync()
				owner.look(r).wants(t, "owner", ok, 96)
				n.look(r).wants(t, "copy", ok, 96)
				w.deliver(nil)
				owner.look(r).wants(t, "owner", ok, 96)
				n.check(r).wants(t, "copy", ok, 95)
				n.mustSync()
				w.deliver(nil)
				owner.look(r).wants(t, "owner", ok, 95)
				owner.wantMetrics("weir_received_hits_total", "4")
				n.wantMetrics("weir_debts", "0", "weir_reported_hits_total", "4", "weir_reports_failed_total", fmt.Sprint(failed),
					"weir_reports_repeated_total", fmt.Sprint(failed))
			})
		})
	}
}

// TestAnUnansweredReportCountsInTheAllowance checks that what the owner may not know of bounds what may be taken.
func TestAnUnansweredReportCountsInTheAllowance(t *testing.T) {
	w := newWorld(t, 2)
	n := w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	r.Hits = 3
	n.check(r).wants(t, "copy", ok, 96)
	w.fate = func(from, to *node, kind kind) fate {
		if kind == aReport {
			return unheard
		}
		return arrives
	}
	n.sync.Sync(context.Background())
	r.Hits = 2
	n.check(r).wants(t, "copy", ok, 94)
	n.check(r).wants(t, "asked", ok, 94) // the owner knows of all but the two
	n.look(r).wants(t, "copy", ok, 92)   // and says so
}

// TestHitsWhileAReportIsOnItsWay has so many taken meanwhile that another report is to go at once.
func TestHitsWhileAReportIsOnItsWay(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	n.check(r)
	owner.heard = func(*wire.Report) {
		owner.heard = nil
		for range 3 {
			left := n.look(r).Remaining
			n.check(r).wants(t, "copy", ok, left-1)
		}
	}
	w.hear()
	n.mustSync()
	w.wantHeard("b>a report", "b>a report")
	owner.look(r).wants(t, "owner", ok, 95)
	n.look(r).wants(t, "copy", ok, 95)
}

// TestOneThingAtATime has a limit change while its holder is being told.
func TestOneThingAtATime(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	owner.check(r)
	w.hear()
	n.told = func(*node, wire.KeyedState) {
		n.told = nil
		owner.check(r)
		owner.mustSync()
	}
	owner.mustSync()
	w.wantHeard("a>b states")
	n.look(r).wants(t, "copy", ok, 98)
	owner.mustSync()
	w.wantHeard("a>b states")
	n.look(r).wants(t, "copy", ok, 97)
}

// TestWhatHasChangedIsPublishedSoon goes through the changes that nodes are told of without a look at everything.
func TestWhatHasChangedIsPublishedSoon(t *testing.T) {
	for what, change := range map[string]func(w *world, r limits.Request){
		"a hit":            func(w *world, r limits.Request) { w.node("a").check(r) },
		"a hit of another": func(w *world, r limits.Request) { r.Hits = 6; w.node("c").check(r) },
		"a reset":          func(w *world, r limits.Request) { r.Behavior = limits.ResetRemaining; w.node("a").check(r) },
		"a report":         func(w *world, r limits.Request) { w.node("c").mustSync() },
		"a debt to this node": func(w *world, r limits.Request) {
			w.place["key"] = "c"
			w.node("a").check(r)
			w.node("a").check(r) // takes from a copy
			w.place["key"] = "a"
			w.node("a").sync.report(w.t.Context(), w.node("a").sync.owner("c"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 3)
			owner, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
			r := w.of(limits.TokenBucket, 1)
			b.check(r)
			c.check(r)
			c.check(r)
			owner.mustSync()
			w.hear()
			soon := func() {
				var calls sync.WaitGroup
				owner.sync.publish(t.Context(), &calls, false)
				calls.Wait()
			}
			soon()
			w.wantHeard()
			change(w, r)
			w.hear()
			soon()
			if sent := w.hear(); !strings.Contains(sent, "a>b states") {
				t.Errorf("there was %q", sent)
			}
			if got, want := b.look(r), owner.look(r); got.from != "copy" || got.Remaining != want.Remaining {
				t.Errorf("%+v, from %s, but the owner says %+v", got.Result, got.from, want.Result)
			}
		})
	}
}

// TestTheEndOfAWindowIsNoNews checks that nobody is told that a limit is whole, which everybody sees.
func TestTheEndOfAWindowIsNoNews(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	r.Duration = 1000
	n.check(r)
	w.wait(time.Second)
	w.hear()
	owner.limiter.Sweep()
	owner.mustSync()
	w.wantHeard()
	owner.wantMetrics("weir_global_shares", "1")
}

// TestNothingIsOwedOfAWindowThatIsOver has it end between the decision and the debt.
func TestNothingIsOwedOfAWindowThatIsOver(t *testing.T) {
	w := newWorld(t, 2)
	n := w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	looks := 0
	n.tick = func() {
		if looks++; looks == 2 {
			w.wait(time.Hour)
		}
	}
	if result := n.sync.Count(queryOf(&r), true); result.Status != ok || looks != 2 {
		t.Errorf("%+v, and the time was asked for %d times", result, looks)
	}
	n.wantMetrics("weir_debts", "0", "weir_global_copies", "0")
}
