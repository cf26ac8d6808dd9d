package global

import (
	"fmt"
	"sync"
	"testing"

	"weir/limits"
)

// TestRemembersOnce has several checks come at once for a limit that was this node's: what was used of it counts once.
func TestRemembersOnce(t *testing.T) {
	w := newWorld(t, 2)
	w.size = 10_000
	w.node("a").restart()
	a := w.node("a")
	for i := range 5000 {
		r := limits.Request{Name: "n", UniqueKey: fmt.Sprint(i), Hits: 10, Limit: 100, Duration: 60_000}
		a.limiter.Check(r)
		r.Hits = 0
		q := queryOf(&r)
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() { a.sync.Count(q, false) })
		}
		calls.Wait()
		if result := a.sync.Count(q, false); result.Remaining != 90 {
			t.Fatalf("limit %d: %d left", i, result.Remaining)
		}
	}
}
