package limits

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"weir/limits/bucket"
	"weir/limits/wire"
)

// TestOnChange keeps a copy by what OnChange tells, and compares it with what is remembered, whatever happens to that.
func TestOnChange(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	now := time.Unix(1_700_000_000, 0)
	l := New(50, func() time.Time { return now })
	kept, told := map[string]bucket.State{}, 0
	l.OnChange(func(n wire.KeyedState) {
		told++
		state, ok := n.State()
		if id := string(n.AppendID(nil)); !ok || n.Name != "mail" {
			t.Errorf("told %+v", n)
		} else if state == (bucket.State{}) {
			delete(kept, id)
		} else {
			kept[id] = state
		}
	})
	for range 5000 {
		now = now.Add(time.Duration(random.Int64N(int64(50 * time.Millisecond))))
		r := Request{Name: "mail", UniqueKey: fmt.Sprint(random.IntN(100)), Hits: random.Int64N(5) - 1, Limit: 10,
			Duration:  1000,
			Algorithm: Algorithm(random.IntN(3))}
		before := told
		switch id := r.AppendID(nil); random.IntN(20) {
		case 0:
			l.Sweep()
		case 1:
			three := bucket.Snapshot{Now: now.UnixNano(), Limit: 10, Duration: 1e9, Used: 3}
			state, _ := three.State()
			l.Put(id, state)
		case 2:
			l.Take(id)
		case 3:
			r.Hits, r.Behavior = 1, ResetRemaining
			l.Check(r)
		default:
			if l.Check(r); r.Hits == 0 && told != before {
				t.Error("told of a look")
			}
		}
		if n := l.Stats().Entries; n != len(kept) {
			t.Fatalf("%d limits are remembered, %d are kept", n, len(kept))
		}
	}
	for id, state := range kept {
		var got, want bucket.Snapshot // which don't tell whether a limit is drained: it can be seen
		got.Set(l.State([]byte(id)), now)
		if want.Set(state, now); got != want {
			t.Errorf("%q is %+v, kept as %+v", id, got, want)
		}
	}
	if told < 1000 || len(kept) == 0 {
		t.Errorf("told %d times, %d are kept", told, len(kept))
	}
}
