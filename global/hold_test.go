package global

import (
	"fmt"
	"testing"
	"time"

	"weir/limits"
	"weir/peers"
)

// TestAsksWithoutALock: the list may be about to change, and wait for those who count, who may wait for the lock.
func TestAsksWithoutALock(t *testing.T) {
	w := newWorld(t, 2)
	w.moving = true
	a, asked := w.node("a"), 0
	a.asking = func() {
		asked++
		if !a.sync.moves.mu.TryLock() {
			t.Fatal("it asks with the lock held")
		}
		a.sync.moves.mu.Unlock()
	}
	a.sync.noticeRing(false)
	a.sync.noticeRing(true)
	if asked == 0 {
		t.Error("it is not asked")
	}
}

// TestLooksAfterAShortChange has the ring change and become what it was before anybody looks: what was counted
// meanwhile moves.
func TestLooksAfterAShortChange(t *testing.T) {
	set := peers.New(peers.Options{})
	defer set.Close()
	l := limits.New(1000, time.Now)
	s := New(Options{Limiter: l, Cluster: set, Size: 1000})
	both := []peers.Member{{Name: "a:1"}, {Name: "b:1"}}
	set.Update("a:1", both)
	s.noticeRing(false)
	set.Update("a:1", both[:1])
	for i := range 100 {
		l.Check(limits.Request{Name: "n", UniqueKey: fmt.Sprint(i), Hits: 1, Limit: 10, Duration: 60_000})
	}
	set.Update("a:1", both)
	s.noticeRing(false)
	if s.Pending() == 0 {
		t.Error("nothing stands in line for the other node")
	}
}
