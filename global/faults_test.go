package global

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
)

// TestACopyDecidesAlone has an owner not answer a question, and then answer again.
func TestACopyDecidesAlone(t *testing.T) {
	for _, test := range []struct {
		what   string
		fate   fate
		owed   bool // the node tells the owner of the hits that it asked for
		there  int64
		remain int64 // in the end
	}{
		{"surely not sent", refused, true, 0, 79},
		{"lost", lost, false, 0, 89},
		{"not answered", unheard, false, 10, 79},
		{"arrived late", delayed, false, 10, 79},
	} {
		t.Run(test.what, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
				w := newWorld(t, 2)
				owner, n := w.nodes[0], w.nodes[1]
				r := w.of(a, 1)
				n.check(r)
				w.all(test.fate)
				r.Hits = 10 // more than it may take
				got := n.check(r)
				got.wants(t, "missed", ok, 89)
				if got.Metadata != (bucket.Metadata{Owner: "a", Source: "replica", Degraded: "owner_silent"}) {
					t.Errorf("%+v", got.Metadata)
				}
				w.hear()
				got = n.check(r) // without asking
				got.wants(t, "copy", ok, 79)
				if got.Metadata.Degraded != "owner_silent" {
					t.Errorf("%+v", got.Metadata)
				}
				n.look(r).wants(t, "copy", ok, 79)
				w.wantHeard()
				r.Hits = 80
				n.check(r).wants(t, "copy", over, 79)
				w.deliver(nil)
				w.heal()
				owner.look(r).wants(t, "owner", ok, 99-test.there)
				w.settle(2)
				owner.look(r).wants(t, "owner", ok, test.remain)
				n.look(r).wants(t, map[bool]string{true: "copy", false: "asked"}[test.owed], ok, test.remain)
				r.Hits = 1
				if got := n.check(r); got.from != "copy" || got.Metadata.Degraded != "" {
					t.Errorf("%+v, from %s", got.Result, got.from)
				}
			})
		})
	}
}

// TestAnAnswerEndsTheSilence goes through all that an owner may say.
func TestAnAnswerEndsTheSilence(t *testing.T) {
	for what, say := range map[string]func(w *world, owner, n *node){
		"an empty report": func(w *world, owner, n *node) {
			n.mustSync()
			w.wantHeard("b>a report")
			owner.wantMetrics(`weir_received_reports_total{kind="new"}`, "0", `weir_received_reports_total{kind="repeated"}`,
				"0")
		},
		"another answer": func(w *world, owner, n *node) {
			r := w.of(limits.TokenBucket, 1)
			r.UniqueKey, w.place["other"] = "other", "a"
			n.check(r).wants(t, "asked", ok, 99)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 2)
			owner, n := w.nodes[0], w.nodes[1]
			r := w.of(limits.TokenBucket, 1)
			n.check(r)
			w.all(refused)
			reset := r
			reset.Behavior = limits.ResetRemaining
			n.check(reset).wants(t, "missed", ok, 100)
			if !n.sync.owner("a").silent.Load() {
				t.Error("the owner is not silent")
			}
			w.heal()
			w.hear()
			say(w, owner, n)
			if n.sync.owner("a").silent.Load() {
				t.Error("the owner is silent")
			}
			w.hear()
			n.mustSync()
			w.wantHeard()
		})
	}
}

// TestAPublicationIsNoAnswer: who can be heard need not hear.
func TestAPublicationIsNoAnswer(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	n.sync.Missed(queryOf(&r), "a", n.sync.Clock(), true)
	owner.check(r)
	owner.mustSync()
	if !n.sync.owner("a").silent.Load() {
		t.Error("the owner is not silent any more")
	}
}

// TestALateMissIsNoSilence has an owner answer something else after it was asked.
func TestALateMissIsNoSilence(t *testing.T) {
	w := newWorld(t, 2)
	n := w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	asked := n.sync.Clock()
	n.check(r) // from the copy, and owed
	n.mustSync()
	if _, ok := n.sync.Missed(queryOf(&r), "a", asked, true); !ok {
		t.Error("the copy doesn't decide")
	}
	if n.sync.owner("a").silent.Load() {
		t.Error("the owner passes for silent")
	}
	n.sync.Missed(queryOf(&r), "a", n.sync.Clock(), true)
	if !n.sync.owner("a").silent.Load() {
		t.Error("the owner doesn't pass for silent")
	}
}

func TestWithoutACopyNobodyDecidesAlone(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	w.all(lost)
	n.check(r).wants(t, "local", ok, 99)
	n.check(r).wants(t, "local", ok, 98) // not even while the owner is silent
	n.out = []*node{owner}
	n.check(r).wants(t, "stand-in", ok, 97)
	n.check(r).wants(t, "stand-in", ok, 96) // what is owed is no copy
	n.sync.Published("a", &wire.StateUpdate{States: []wire.KeyedState{{Key: wire.Key{Name: r.Name,
		UniqueKey: r.UniqueKey}, Snapshot: bucket.Snapshot{Start: owner.start, Version: 7, Now: w.now.UnixNano()}}}})
	n.check(r).wants(t, "stand-in", ok, 95) // nobody asked for that
	w.heal()
	w.settle(2)
	owner.look(r).wants(t, "owner", ok, 97) // the fate of the first two is not known
	n.check(r).wants(t, "asked", ok, 96)
}

// TestACopyOfAnOwnerThatIsAway is good for longer than the window.
func TestACopyOfAnOwnerThatIsAway(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 2)
		owner, n := w.nodes[0], w.nodes[1]
		r := w.of(a, 100)
		n.check(r)
		n.out = []*node{owner}
		w.all(refused)
		n.check(r).wants(t, "copy", over, 0)
		w.wait(3 * time.Hour)
		n.check(r).wants(t, "copy", ok, 0)
		n.check(r).wants(t, "copy", over, 0)
		w.heal()
		n.mustSync()
		owner.look(r).wants(t, "owner", ok, 0)
		n.look(r).wants(t, "asked", ok, 0)
		n.check(r).wants(t, "copy", over, 0)
	})
}

// TestWhatOnlyACopyKnows has a copy decide alone on what nobody can owe. The owner's word counts again as soon as it
// can be had.
func TestWhatOnlyACopyKnows(t *testing.T) {
	for what, change := range map[string]func(r *limits.Request){
		"a reset":         func(r *limits.Request) { r.Behavior = limits.ResetRemaining },
		"hits given back": func(r *limits.Request) { r.Hits = -20 },
		"a drain":         func(r *limits.Request) { r.Hits, r.Behavior = 90, limits.DrainOverLimit },
	} {
		t.Run(what, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
				w := newWorld(t, 2)
				owner, n := w.nodes[0], w.nodes[1]
				r := w.of(a, 50)
				n.check(r)
				w.all(refused)
				change(&r)
				n.check(r)
				if got := n.look(r); got.Remaining == 50 {
					t.Errorf("%+v: nothing has changed", got.Result)
				}
				w.heal()
				w.settle(2)
				owner.look(r).wants(t, "owner", ok, 50)
				n.look(r).wants(t, "asked", ok, 50)
			})
		})
	}
}

// TestAnAnswerThatNobodyHeard has the owner say something to a node that doesn't hear it. It must not believe that it
// did.
func TestAnAnswerThatNobodyHeard(t *testing.T) {
	const remaining = 69
	for _, test := range []struct {
		what string
		ask  func(w *world, owner, n *node, r limits.Request)
		from string // what the node's copy is worth then
	}{
		{"to a question", func(w *world, owner, n *node, r limits.Request) {
			w.all(unheard)
			n.check(r)
		}, "asked"},
		{"to a question whose client has gone", func(w *world, owner, n *node, r limits.Request) {
			owner.countFor(n, r)
		}, "copy"},
		{"to a question that is answered after a later one", func(w *world, owner, n *node, r limits.Request) {
			w.all(delayed)
			n.check(r)
			w.heal()
			n.mustSync()
			n.look(r).wants(t, "asked", ok, 79)
			w.deliver(nil)
		}, "copy"},
		{"to a report", func(w *world, owner, n *node, r limits.Request) {
			r.Hits = 4
			n.check(r)
			w.all(unheard)
			n.sync.Sync(t.Context())
			w.heal()
			r.Hits = 6
			owner.check(r)
		}, "copy"},
		{"to a report that was answered before", func(w *world, owner, n *node, r limits.Request) {
			r.Hits = 4
			n.check(r)
			w.all(delayed)
			n.sync.Sync(t.Context())
			w.heal()
			n.mustSync()
			r.Hits = 6
			owner.check(r)
			w.deliver(nil)
		}, "copy"},
	} {
		t.Run(test.what, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
				w := newWorld(t, 2)
				owner, n := w.nodes[0], w.nodes[1]
				r := w.of(a, 1)
				n.check(r)
				r.Hits = 20
				owner.check(r) // of which the answer would tell
				r.Hits = 10
				test.ask(w, owner, n, r)
				w.heal()
				w.settle(2)
				owner.look(r).wants(t, "owner", ok, remaining)
				n.look(r).wants(t, test.from, ok, remaining)
				n.look(r).wants(t, "copy", ok, remaining)
			})
		})
	}
}

// TestANewLifeOfTheOwner has it forget everything.
func TestANewLifeOfTheOwner(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 2)
		owner, n := w.nodes[0], w.nodes[1]
		r := w.of(a, 1)
		for range 20 { // so that its numbers are large
			owner.check(r)
			n.look(r)
			owner.mustSync()
		}
		n.check(r)
		n.check(r).wants(t, "copy", ok, 78)
		w.all(unheard)
		n.sync.Sync(context.Background()) // is counted, and forgotten
		n.check(r).wants(t, "copy", ok, 77)
		owner.restart()
		w.heal()
		w.settle(2)
		owner.look(r).wants(t, "owner", ok, 97) // all that was not acknowledged
		n.look(r).wants(t, "copy", ok, 97)
		owner.check(r)
		owner.mustSync()
		n.look(r).wants(t, "copy", ok, 96)
		n.check(r)
		n.restart()
		n.check(r).wants(t, "asked", ok, 95) // what it owed is lost
		n.check(r).wants(t, "copy", ok, 94)
		n.mustSync() // its reports begin at 1 again
		owner.look(r).wants(t, "owner", ok, 94)
	})
}

// TestDebtsOfAFormerOwner sends debts by way of a node that is the owner no more.
func TestDebtsOfAFormerOwner(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 3)
		former, n, owner := w.nodes[0], w.nodes[1], w.nodes[2]
		r := w.of(a, 1)
		n.check(r)
		n.check(r)
		w.fate = func(from, to *node, kind kind) fate {
			if from == n {
				return lost
			}
			return arrives
		}
		n.sync.Sync(context.Background()) // the report is to go to the former owner
		n.check(r)                        // stands behind it
		w.place["key"] = "c"
		w.heal()
		former.heard = func(*wire.Report) {
			owner.check(r) // which knows nothing yet
		}
		w.hear()
		n.mustSync()
		former.heard = nil
		w.settle(3)
		if got := owner.used(r); got != 3 {
			t.Errorf("the owner counts %d, want its own and two that were owed", got)
		}
		if got := former.used(r); got != 1 {
			t.Errorf("the former owner counts %d", got)
		}
		for _, n := range w.nodes {
			n.wantMetrics("weir_debts", "0")
			if got := n.look(r); got.Remaining != 97 {
				t.Errorf("%s: %+v, from %s", n.name, got.Result, got.from)
			}
		}
	})
}

// TestDebtsThatAreOwedByTwoWays has hits gather for a new owner while others are in a report to the former one.
func TestDebtsThatAreOwedByTwoWays(t *testing.T) {
	w := newWorld(t, 3)
	n, owner := w.nodes[1], w.nodes[2]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	n.check(r)
	w.all(unheard)
	n.sync.Sync(context.Background())
	w.place["key"] = "c"
	w.heal()
	w.fate = func(from, to *node, kind kind) fate {
		if to.name == "a" {
			return lost
		}
		return arrives
	}
	n.check(r).wants(t, "copy", ok, 97)
	for range 3 { // it waits for the fate of the first: a limit is in one report
		n.sync.Sync(context.Background())
	}
	if got := owner.used(r); got != 0 {
		t.Errorf("the owner counts %d", got)
	}
	n.wantMetrics("weir_debts", "2")
	w.heal()
	w.settle(3)
	if got := owner.used(r); got != 1 { // a counted the others, being the owner then
		t.Errorf("the owner counts %d", got)
	}
	n.wantMetrics("weir_debts", "0")
}

// TestThaw has an owner leave with a report on the way to it.
func TestThaw(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 3)
		n, owner := w.nodes[1], w.nodes[2]
		r := w.of(a, 1)
		n.check(r)
		n.check(r)
		w.all(lost)
		n.sync.Sync(context.Background())
		n.check(r)
		n.wantMetrics("weir_debts", "2") // in a report, and in line
		w.heal()
		w.place["key"] = "c"
		w.setRing("bc")
		w.settle(2)
		if got := owner.used(r); got != 2 {
			t.Errorf("the new owner counts %d", got)
		}
		n.wantMetrics("weir_debts", "0")
		if _, there := n.sync.owners.Load("a"); there {
			t.Error("who has left is remembered")
		}
		if e := n.entry(r); e.owes() || e.lined {
			t.Errorf("%+v", e)
		}
		n.check(r).wants(t, "copy", ok, 97)
		n.mustSync()
		if got := owner.used(r); got != 3 {
			t.Errorf("the new owner counts %d", got)
		}
	})
}

// TestThawKeepsTheLaterAlgorithm has two debts that don't add up.
func TestThawKeepsTheLaterAlgorithm(t *testing.T) {
	w := newWorld(t, 3)
	n, owner := w.nodes[1], w.nodes[2]
	r := w.of(limits.TokenBucket, 3)
	n.check(r)
	n.check(r)
	w.all(lost)
	n.sync.Sync(context.Background())
	r.Algorithm, r.Hits = limits.LeakyBucket, 4
	w.all(refused)
	n.out = []*node{w.nodes[0]}
	n.check(r).wants(t, "copy", ok, 96)
	w.heal()
	w.place["key"] = "c"
	w.setRing("bc")
	w.settle(2)
	if got := owner.used(r); got != 4 {
		t.Errorf("the new owner counts %d", got)
	}
	n.wantMetrics(`weir_dropped_hits_total{reason="algorithm"}`, "3")
}

// TestTheOwnerComesBackUnderItsName has a node leave and return, whose line must not be lost.
func TestTheOwnerComesBackUnderItsName(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	n.check(r)
	w.setRing("b")
	w.place["key"] = "b"
	o := n.sync.owner("a")
	n.sync.thaw(o)
	w.setRing("ab")
	w.place["key"] = "a"
	n.check(r)
	w.settle(2)
	owner.look(r).wants(t, "owner", ok, 97)
	n.wantMetrics("weir_debts", "0")
}

// TestALineIsNotLostWithItsOwner has a node leave while its line is looked through, in the moment when that is nowhere.
func TestALineIsNotLostWithItsOwner(t *testing.T) {
	w := newWorld(t, 3)
	n, owner := w.nodes[1], w.nodes[2]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	n.check(r)
	n.tick = func() {
		n.tick = nil
		w.place["key"] = "c"
		w.setRing("bc")
		n.mustSync()
	}
	n.sync.eachOwner(n.sync.forgetEnded)
	if n.tick != nil {
		t.Error("nobody asked for the time")
	}
	w.settle(2)
	if got := owner.used(r); got != 1 {
		t.Errorf("the new owner counts %d", got)
	}
	n.wantMetrics("weir_debts", "0")
}

// TestWhoBecomesTheOwner counts what it owes.
func TestWhoBecomesTheOwner(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		for _, test := range []struct {
			what string
			take func(w *world, n *node, r limits.Request)
			want int64
		}{
			{"what it took from a copy", func(w *world, n *node, r limits.Request) {
				n.check(r)
				n.check(r)
			}, 1},
			{"what it counted itself, once", func(w *world, n *node, r limits.Request) {
				n.out = w.nodes[:1]
				n.check(r)
				n.check(r)
			}, 2},
			{"what it counted itself, and could not report", func(w *world, n *node, r limits.Request) {
				n.out = w.nodes[:1]
				w.all(refused)
				n.check(r)
				n.sync.Sync(context.Background())
				n.check(r)
				w.heal()
			}, 2},
			{"what a third node told it, as it thought", func(w *world, n *node, r limits.Request) {
				third := w.nodes[2]
				third.check(r)
				third.check(r)
				w.all(lost)
				third.sync.Sync(context.Background())
				n.sync.Receive("c", third.sync.message(third.sync.owner("a")))
				third.restart()
				w.heal()
			}, 1},
			{"both", func(w *world, n *node, r limits.Request) {
				n.out = w.nodes[:1]
				n.check(r)
				n.out = nil
				n.check(r)
				n.check(r)
			}, 2},
			{"both, the other way round", func(w *world, n *node, r limits.Request) {
				n.check(r)
				n.check(r)
				n.countFor(w.nodes[2], r)
			}, 2},
			{"both, one in a report", func(w *world, n *node, r limits.Request) {
				n.countFor(w.nodes[2], r)
				w.all(refused)
				n.sync.Sync(context.Background())
				w.heal()
				n.check(r)
				n.check(r)
			}, 2},
			{"both, one by a third node", func(w *world, n *node, r limits.Request) {
				n.countFor(w.nodes[2], r)
				owed := wire.Debt{Key: wire.Key{Name: r.Name, UniqueKey: r.UniqueKey},
					DebtSnapshot: bucket.DebtSnapshot{Algorithm: a, Limit: 100, Duration: int64(time.Hour), Hits: 1}}
				n.sync.Receive("c", &wire.Report{Start: 99, Seq: 1, Debts: []wire.Debt{owed}})
			}, 2},
		} {
			t.Run(test.what, func(t *testing.T) {
				w := newWorld(t, 3)
				n := w.nodes[1]
				r := w.of(a, 1)
				test.take(w, n, r)
				w.setRing("bc")
				w.place["key"] = "b"
				w.settle(2)
				got := n.used(r)
				if strings.HasPrefix(test.what, "both") && got == 3 { // rather too much
					got = 2
				}
				if got != test.want {
					t.Errorf("the new owner counts %d, want %d", got, test.want)
				}
				n.wantMetrics("weir_debts", "0")
			})
		}
	})
}

// TestWhoDoesNotKnowItsPlace owes to nobody in particular.
func TestWhoDoesNotKnowItsPlace(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	w.setRing("")
	r := w.of(limits.TokenBucket, 1)
	for range 3 {
		if got := n.check(r); got.from != "nobody" {
			t.Errorf("%+v, from %s", got.Result, got.from)
		}
		n.mustSync()
	}
	n.wantMetrics("weir_debts", "1")
	w.wantHeard()
	w.setRing("ab")
	n.mustSync()
	owner.look(r).wants(t, "owner", ok, 97)
	n.wantMetrics("weir_debts", "0")
}

// TestStandIns has a third node count for an owner that is away, which is told in the end.
func TestStandIns(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 3)
		owner, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
		r := w.of(a, 1)
		owner.check(r)
		for range 3 {
			c.countFor(b, r)
		}
		w.settle(1)
		owner.look(r).wants(t, "owner", ok, 96)
		refusal := r
		refusal.Hits = 200
		for _, other := range []limits.Request{refusal, {}} {
			c.countFor(b, other)
		}
		c.wantMetrics("weir_debts", "0")
		r.Hits = 0
		c.countFor(b, r)
		r.Hits = -1
		c.countFor(b, r)
		r.Behavior = limits.ResetRemaining
		c.countFor(b, r)
		c.wantMetrics("weir_debts", "0")
	})
}

// TestAnotherAlgorithm drops debts that the owner has no use for, and says so.
func TestAnotherAlgorithm(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 2)
		owner, n := w.nodes[0], w.nodes[1]
		r := w.of(a, 2)
		n.check(r)
		n.check(r)
		other := r
		other.Algorithm = (a + 1) % 3
		owner.check(other)
		n.mustSync()
		reason := "algorithm"
		if other.Algorithm == limits.TokenBucket { // whose windows begin anew
			reason = "reset"
		}
		owner.wantMetrics(fmt.Sprintf("weir_dropped_hits_total{reason=%q}", reason), "2", "weir_received_hits_total", "0")
		owner.look(other).wants(t, "owner", ok, 98)
		n.look(other).wants(t, "copy", ok, 98)

		n.out = []*node{owner}
		n.check(other).wants(t, "copy", ok, 96)
		n.check(r) // begins in the copy alone
		n.wantMetrics(`weir_dropped_hits_total{reason="algorithm"}`, "2")
	})
}

// TestOtherTermsLastLonger has the owner's state outlive what a report's sender knew.
func TestOtherTermsLastLonger(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	r.Duration = 1000
	n.check(r)
	n.check(r)
	longer := r
	longer.Duration = 60_000
	owner.check(longer)
	n.mustSync()
	w.wait(30 * time.Second)
	n.look(longer).wants(t, "copy", ok, 97)
	owner.check(longer)
	owner.mustSync()
	n.look(longer).wants(t, "copy", ok, 96)
}

// TestOwnersForgetWhoKeepsCopies has more limits shared than can be remembered.
func TestOwnersForgetWhoKeepsCopies(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 3)
		owner, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
		w.size = 4
		owner.restart()
		owner.limiter = limits.New(1000, owner.time)
		owner.sync = New(Options{Limiter: owner.limiter, Cluster: owner, Slack: w.slack, Size: 4})
		r := w.of(a, 2)
		others := func() {
			for i := range 10 {
				other := r
				other.UniqueKey = fmt.Sprint("other", i)
				w.place[other.UniqueKey] = "a"
				c.check(other)
			}
			owner.wantMetrics("weir_global_shares", "4")
		}
		b.check(r)
		b.check(r).wants(t, "copy", ok, 96)
		others()
		c.check(r).wants(t, "asked", ok, 96) // shared again
		b.mustSync()                         // what was taken before is owed all the same
		owner.look(r).wants(t, "owner", ok, 94)
		b.look(r).wants(t, "copy", ok, 94)

		others()
		reset := r
		reset.Behavior = limits.ResetRemaining
		owner.check(reset)
		w.wait(time.Hour + 1) // what b knew is not good any more
		b.look(r).wants(t, "asked", ok, 100)
		b.look(r).wants(t, "copy", ok, 100)
		w.place["key"] = "a"
		r.Hits = 100
		owner.check(r)
		owner.mustSync()
		b.look(r).wants(t, "copy", ok, 0)
	})
}

// TestAForgottenResetIsLearnt has nobody told of a reset, since the limit was shared with nobody then.
func TestAForgottenResetIsLearnt(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.LeakyBucket, 1)
	r.Duration, r.Burst = 1000, 1000
	for range 3 { // so that the owner's numbers are larger than those of a new share
		n.check(r)
		owner.check(r)
	}
	r.Hits = 500
	n.check(r)
	w.wait(2100 * time.Millisecond)
	owner.mustSync()
	owner.wantMetrics("weir_global_shares", "0")
	reset := r
	reset.Behavior = limits.ResetRemaining
	owner.check(reset).wants(t, "owner", ok, 1000)
	n.look(r).wants(t, "asked", ok, 1000)
	n.look(r).wants(t, "copy", ok, 1000)
}

// TestLies has a peer say what can't be. Nothing of it may be believed, and nothing may break.
func TestLies(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	good := wire.Debt{Key: wire.Key{Name: r.Name, UniqueKey: r.UniqueKey}, Copy: true,
		DebtSnapshot: bucket.DebtSnapshot{Limit: 100, Duration: int64(time.Hour), Hits: 1}}
	long := string(make([]byte, 300))
	seq := int64(0)
	for what, change := range map[string]func(o *wire.Debt){
		"negative hits":        func(o *wire.Debt) { o.Hits = -50 },
		"no hits":              func(o *wire.Debt) { o.Hits = 0 },
		"an unknown algorithm": func(o *wire.Debt) { o.Algorithm = 77 },
		"no name":              func(o *wire.Debt) { o.Name, o.UniqueKey = "", "" },
		"a long name":          func(o *wire.Debt) { o.Name = long },
		"no duration":          func(o *wire.Debt) { o.Duration = 0 },
		"an age":               func(o *wire.Debt) { o.Age = math.MaxInt64 },
		"a negative limit":     func(o *wire.Debt) { o.Limit = math.MinInt64 },
	} {
		o := good
		change(&o)
		seq++
		if got := owner.sync.Receive("b", &wire.Report{Start: 99, Seq: seq, Debts: []wire.Debt{o}}); len(got.States) != 0 {
			t.Errorf("%s: %+v", what, got)
		}
	}
	owner.look(r).wants(t, "owner", ok, 99)
	owner.wantMetrics("weir_received_hits_total", "0", "weir_global_shares", "1",
		`weir_dropped_hits_total{reason="invalid"}`, "8")
	o := good
	o.Algorithm, o.Copy, o.Start, o.Epoch = 77, false, owner.start, -1
	got := owner.sync.Receive("b", &wire.Report{Start: 99, Seq: 100, Debts: []wire.Debt{o, good, o}})
	if len(got.States) != 1 || got.States[0].Acked != 100 || got.States[0].Used != 2 { // the good ones count
		t.Errorf("%+v", got)
	}

	state := bucket.Snapshot{Start: owner.start, Version: 1000, Now: w.now.UnixNano(), Limit: 100,
		Duration: int64(time.Hour), Used: 50}
	for what, change := range map[string]func(n *wire.KeyedState){
		"negative hits":        func(n *wire.KeyedState) { n.Used = -1 },
		"an unknown algorithm": func(n *wire.KeyedState) { n.Algorithm = 3 },
		"no duration":          func(n *wire.KeyedState) { n.Duration = 0 },
		"a time before all":    func(n *wire.KeyedState) { n.Now = math.MinInt64 },
		"whole, before all": func(n *wire.KeyedState) {
			n.Snapshot = bucket.Snapshot{Start: n.Start, Version: 1000, Now: math.MinInt64}
		},
		"no name":           func(n *wire.KeyedState) { n.Name, n.UniqueKey = "", "" },
		"a long name":       func(n *wire.KeyedState) { n.Name = long },
		"what nobody asked": func(n *wire.KeyedState) { n.UniqueKey = "other" },
	} {
		named := wire.KeyedState{Key: wire.Key{Name: r.Name, UniqueKey: r.UniqueKey}, Snapshot: state}
		change(&named)
		n.sync.Published("a", &wire.StateUpdate{States: []wire.KeyedState{named}})
		n.sync.acknowledge(n.sync.owner("a"), &wire.StateUpdate{States: []wire.KeyedState{named}})
		n.sync.Learn(queryOf(&r), "a", nil)
		if got := n.look(r); got.from != "copy" || got.Remaining != 99 {
			t.Errorf("%s: %+v, from %s", what, got.Result, got.from)
		}
		n.wantMetrics("weir_global_copies", "1")
	}
	named := wire.KeyedState{Key: wire.Key{Name: r.Name, UniqueKey: r.UniqueKey}, Snapshot: state}
	n.sync.Published("b", &wire.StateUpdate{States: []wire.KeyedState{named}}) // who doesn't own it
	n.look(r).wants(t, "copy", ok, 99)
	n.sync.Published("a", &wire.StateUpdate{States: []wire.KeyedState{named}})
	n.look(r).wants(t, "copy", ok, 50)
}

// TestReportsOfManyLives bounds what is remembered of senders, and forgets those that haven't been heard of for long.
func TestReportsOfManyLives(t *testing.T) {
	var r received
	r.init()
	count := func(start, seq int64) (counted bool) {
		if isNew := r.once(start, seq, func() { counted = true }); isNew != counted {
			t.Errorf("report %d of %d is new: %v, and is counted: %v", seq, start, isNew, counted)
		}
		return counted
	}
	for _, test := range []struct {
		start, seq int64
		want       bool
	}{{1, 0, false}, {1, -5, false}, {1, 3, true}, {1, 3, false}, {1, 2, false}, {1, 4, true}, {2, 3, true}, {2, 3,
		false}, {1, 5, true}} {
		if got := count(test.start, test.seq); got != test.want {
			t.Errorf("report %d of %d is new: %v", test.seq, test.start, got)
		}
	}
	for start := range int64(3 * maxSenders) {
		count(100+start, 1)
		r.last(1) // which goes on asking
	}
	if got := r.seqs.Len(); got != maxSenders {
		t.Errorf("%d senders are remembered", got)
	}
	if got := r.last(1); got != 5 {
		t.Errorf("the last of 1 was %d", got)
	}
	if got := r.last(100); got != 0 {
		t.Errorf("the last of 100 was %d", got)
	}
}

// TestAHitForAnOwnerThatLeaves takes a hit from a copy just when its owner leaves.
func TestAHitForAnOwnerThatLeaves(t *testing.T) {
	w := newWorld(t, 3)
	n, owner := w.nodes[1], w.nodes[2]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	n.tick = func() {
		n.tick = nil
		w.place["key"] = "c"
		w.setRing("bc")
		n.mustSync()
	}
	n.check(r).wants(t, "copy", ok, 98)
	if n.tick != nil {
		t.Error("nobody asked for the time")
	}
	w.consistent()
	w.settle(2)
	if got := owner.used(r); got != 1 {
		t.Errorf("the new owner counts %d", got)
	}
	n.wantMetrics("weir_debts", "0")
}

// TestDebtsOfAFormerLife are no matter of what has begun anew since, by the numbers of another life.
func TestDebtsOfAFormerLife(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		w := newWorld(t, 3)
		owner, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
		r := w.of(a, 1)
		b.check(r)
		b.check(r)
		owner.restart()
		reset := r
		reset.Behavior = limits.ResetRemaining
		for range 3 {
			c.check(reset).wants(t, "asked", ok, 100)
		}
		r.Hits = 20
		b.check(r).wants(t, "asked", ok, 80)
		b.look(r).wants(t, "copy", ok, 79)
		b.mustSync()
		owner.look(r).wants(t, "owner", ok, 79)
		b.look(r).wants(t, "copy", ok, 79)
	})
}

// TestAWindowThatACopyBegins has the owner begin one, too.
func TestAWindowThatACopyBegins(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.TokenBucket, 1)
	n.check(r)
	w.wait(time.Hour)
	n.out = []*node{owner}
	r.Hits = 30
	n.check(r).wants(t, "copy", ok, 70)
	owner.check(r).wants(t, "owner", ok, 70)
	n.check(r).wants(t, "copy", ok, 40)
	w.heal()
	w.settle(2)
	owner.look(r).wants(t, "owner", ok, 10)
}

// TestADebtThatLeaksWhileItIsRepeated is not in the last report any more, so that no answer tells of its limit.
func TestADebtThatLeaksWhileItIsRepeated(t *testing.T) {
	w := newWorld(t, 2)
	owner, n := w.nodes[0], w.nodes[1]
	r := w.of(limits.LeakyBucket, 1)
	r.Duration = 100_000 // one in a second
	n.check(r)
	n.check(r)
	r.Hits = 20
	owner.check(r)
	w.all(unheard)
	n.sync.Sync(t.Context()) // the owner believes that the answer was heard
	w.heal()
	w.wait(3 * time.Second)
	w.settle(2)
	owner.look(r).wants(t, "owner", ok, 81)
	n.look(r).wants(t, "asked", ok, 81)
}

// TestADebtWithoutACopyLeaks and leaves none.
func TestADebtWithoutACopyLeaks(t *testing.T) {
	w := newWorld(t, 3)
	n := w.nodes[1]
	r := w.of(limits.LeakyBucket, 1)
	r.Duration = 100_000
	n.countFor(w.nodes[2], r)
	w.all(refused)
	n.sync.Sync(t.Context())
	w.wait(3 * time.Second)
	n.sync.Sync(t.Context())
	n.out = w.nodes[:1]
	n.check(r).wants(t, "stand-in", ok, 99)
}

// TestAFormerOwnerTellsNoStates checks that who passes debts on doesn't pass for the owner.
func TestAFormerOwnerTellsNoStates(t *testing.T) {
	w := newWorld(t, 3)
	r := w.of(limits.TokenBucket, 1)
	owed := wire.Debt{Key: wire.Key{Name: r.Name, UniqueKey: r.UniqueKey}, Copy: true,
		DebtSnapshot: bucket.DebtSnapshot{Limit: 100, Duration: int64(time.Hour), Hits: 1}}
	former := w.nodes[2]
	if got := former.sync.Receive("b", &wire.Report{Start: 99, Seq: 1, Debts: []wire.Debt{owed}}); len(got.States) != 0 {
		t.Errorf("%+v", got)
	}
	former.wantMetrics("weir_global_shares", "0", "weir_debts", "1")
}
