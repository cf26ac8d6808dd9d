package peers

import (
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"

	"weir/limits/wire"
	"weir/ring"
)

// still returns a Set whose calls reach no node.
func still(t *testing.T) *Set {
	t.Helper()
	s := New(Options{Transport: func(string, http.RoundTripper) http.RoundTripper { return unreachable{} }})
	t.Cleanup(s.Close)
	return s
}

type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) { return nil, errNoConnection }

func list(names ...string) (members []Member) {
	for _, name := range names {
		members = append(members, Member{Name: name})
	}
	return members
}

// moved returns an id that one node owns in one ring, and another one in another.
func moved(t *testing.T, from *ring.Ring, was string, to *ring.Ring, is string) []byte {
	t.Helper()
	for i := range 100_000 {
		id := []byte(fmt.Sprint("id", i))
		if p := ring.Partition(id); from.Owner(p) == was && to.Owner(p) == is {
			return id
		}
	}
	t.Fatalf("nothing moves from %s to %s", was, is)
	return nil
}

// TestFormer follows a limit through changes of the list: which peer may be asked for its state, and until when.
func TestFormer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := still(t)
		three, two := ring.New([]string{"a:1", "b:1", "c:1"}), ring.New([]string{"a:1", "b:1"})
		mine := moved(t, three, "c:1", two, "a:1")

		s.Update("a:1", list("a:1", "b:1", "c:1"))
		fresh := moved(t, three.Without("a:1"), "b:1", three, "a:1")
		if p := s.View().Former(fresh); p == nil || p.Name() != "b:1" {
			t.Errorf("a node that has just come asks %v", p)
		}
		s.HandoverDone("b:1", three.Fingerprint())
		if p := s.View().Former(fresh); p != nil || s.View().Settled() {
			t.Errorf("it asks %v, which has handed over all; settled: %v", p, s.View().Settled())
		}
		s.HandoverDone("c:1", three.Fingerprint())
		if !s.View().Settled() {
			t.Error("all have handed over, and still something is to come")
		}

		s.Update("a:1", list("a:1", "b:1"))
		if p := s.View().Former(mine); p == nil || p.Name() != "c:1" {
			t.Errorf("asked is %v, not the node that is listed no more", p)
		}
		s.Update("a:1", list("b:1", "a:1")) // the same in another order: it is no change
		if p := s.View().Former(mine); p == nil {
			t.Error("no node is asked after the same list")
		}
		pass(formerFor + 1)
		if p := s.View().Former(mine); p != nil || s.named("c:1") != nil {
			t.Errorf("asked is %v, after half a minute", p)
		}
	})
}

// TestFormerOfTwoChanges has the list change again before what moved with the first change has been handed over: the
// node that still has it is asked for that.
func TestFormerOfTwoChanges(t *testing.T) {
	s := still(t)
	two, three := ring.New([]string{"a:1", "b:1"}), ring.New([]string{"a:1", "b:1", "c:1"})
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	fresh := moved(t, three.Without("a:1"), "b:1", three, "a:1") // and stays
	s.Update("a:1", list("a:1", "b:1"))
	if p := s.View().Former(fresh); p == nil || p.Name() != "b:1" {
		t.Errorf("asked is %v", p)
	}
	s.HandoverDone("b:1", two.Fingerprint())
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	if p := s.View().Former(fresh); p != nil {
		t.Errorf("asked is %s, which had handed over all", p.Name())
	}
}

// TestHandoverForAnEarlierRing has a node hand over everything, and the ring change and become what it was.
func TestHandoverForAnEarlierRing(t *testing.T) {
	s := still(t)
	three, four := ring.New([]string{"a:1", "b:1", "c:1"}), ring.New([]string{"a:1", "b:1", "c:1", "d:1"})
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	s.HandoverDone("b:1", three.Fingerprint())
	s.Update("a:1", list("a:1", "b:1", "c:1", "d:1"))
	s.HandoverDone("b:1", four.Fingerprint())
	s.HandoverDone("c:1", four.Fingerprint())
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	if p := s.View().Former(moved(t, four, "d:1", three, "a:1")); p == nil || p.Name() != "d:1" {
		t.Errorf("asked is %v", p)
	}
	s.Update("a:1", list("a:1", "b:1", "c:1", "d:1"))
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	for name, p := range s.View().peers {
		if p.handoverRing.Load() != nil {
			t.Errorf("%s is said to have handed over everything, which was for an earlier ring", name)
		}
	}
	s.Update("a:1", list("a:1", "b:1", "c:1", "d:1"))
	s.HandoverDone("b:1", three.Fingerprint()) // it has heard of the next change before this node has
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	if !s.View().peer("b:1").handoverDone(three.Fingerprint()) {
		t.Error("what came a little early is forgotten")
	}
}

// TestOutsiderKnowsItsName has a node be listed no more, as happens before it is told to stop: its calls carry its
// name, and other nodes own what it owned.
func TestOutsiderKnowsItsName(t *testing.T) {
	s := still(t)
	three, two := ring.New([]string{"a:1", "b:1", "c:1"}), ring.New([]string{"b:1", "c:1"})
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	s.Update("", list("b:1", "c:1"))
	id := moved(t, three, "a:1", two, "b:1")
	if v := s.View(); v.Self() != "" || v.Owner(id).Name() != "b:1" {
		t.Errorf("self %q, asks %s", v.Self(), v.Owner(id).Name())
	}
	if from := s.View().header.Get(wire.HeaderFrom); from != "a:1" {
		t.Errorf("it calls as %q", from)
	}
}

// TestHold has the list change while a check is counted by the present view: the change waits for it.
func TestHold(t *testing.T) {
	s := still(t)
	s.Update("a:1", list("a:1", "b:1"))
	held := s.Hold()
	changed := make(chan struct{})
	go func() {
		s.Update("a:1", list("a:1"))
		close(changed)
	}()
	for s.holding.TryRLock() { // until the change waits for it
		s.holding.RUnlock()
		select {
		case <-changed:
			t.Fatal("it has changed")
		default:
			runtime.Gosched()
		}
	}
	if s.View() != held {
		t.Error("it is another one")
	}
	s.Release()
	if <-changed; s.View() == held {
		t.Error("it has not changed")
	}
}

// TestTakeOwnershipLoss: a node has lost something when others have come, or it leaves, however short it owned that;
// not when others go.
func TestTakeOwnershipLoss(t *testing.T) {
	s := still(t)
	expect := func(what string, want bool) {
		t.Helper()
		if got := s.TakeOwnershipLoss(); got != want {
			t.Errorf("%s: %v", what, got)
		}
		if s.TakeOwnershipLoss() {
			t.Errorf("%s: twice", what)
		}
	}
	expect("before there is a list", false)
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	expect("at first", true)
	s.Update("a:1", list("a:1", "b:1"))
	expect("one less", false)
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	expect("one more", true)
	s.Update("a:1", list("a:1"))
	s.Update("a:1", list("a:1", "b:1", "c:1"))
	expect("alone for a moment", true)
	s.Leave()
	expect("leaving", true)
}

// TestLateMessageOfAFormerIncarnation: what a process said before it was replaced changes nothing any more.
func TestLateMessageOfAFormerIncarnation(t *testing.T) {
	s := still(t)
	s.Update("a:1", list("a:1", "b:1"))
	observe := func(incarnation string, leaving bool) {
		h := http.Header{}
		h.Set(wire.HeaderStart, incarnation)
		if leaving {
			h.Set(wire.HeaderLeaving, "1")
		}
		s.Observe("b:1", h)
	}
	observe("1", false)
	observe("2", false)
	restarts := s.abruptRestarts.Get()
	observe("1", true)
	observe("1", false)
	observe("2", false)
	if n := s.View().Nodes(); n != 2 || s.abruptRestarts.Get() != restarts {
		t.Errorf("%d nodes; %d restarts are counted, want %d", n, s.abruptRestarts.Get(), restarts)
	}
}
