package limits

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"weir/limits/bucket"
)

// TestStoreForgetsWhatIsNotUsed uses records at random. What is the oldest in a full store has not been used for half
// of it, whatever the order within.
func TestStoreForgetsWhatIsNotUsed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, size := range []int{1, 2, 3, 10, 64} {
		s, used, evictions := newStore(size), map[string]uint32{}, 0
		for range 20_000 {
			id := fmt.Sprint("id", random.IntN(2*size))
			switch r := s.get(id); {
			case r != nil && random.IntN(10) == 0:
				s.remove(r)
				delete(used, id)
				continue
			case r == nil && s.len() == size:
				old := s.oldest()
				if unused := int(s.moves - used[old.id()]); unused < size-1-size/2 {
					t.Fatalf("size %d: the oldest was used %d moves ago", size, unused)
				}
				s.remove(old)
				delete(used, old.id())
				evictions++
				s.add(id, bucket.State{})
			case r == nil:
				s.add(id, bucket.State{})
			}
			used[id] = s.moves
		}
		if s.len() != len(used) || len(s.inOrder()) != len(used) || evictions < 100 {
			t.Errorf("size %d: %d records of %d, %d evictions", size, s.len(), len(used), evictions)
		}
	}
}

// TestRecord: a record is its own memory, whatever becomes of that from which its id was copied.
func TestRecord(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9, 49, 255, bucket.MaxIDBytes} {
		id := make([]byte, n)
		for i := range id {
			id[i] = byte(i)
		}
		want, st := string(id), anyState(2)
		r := newRecord(textOf(id), st)
		clear(id)
		if r.id() != want || r.State != st {
			t.Errorf("%d bytes: %q, %+v", n, r.id(), r.State)
		}
		r.State, r.moved = anyState(math.MaxInt64), 1<<31
		if r.id() != want {
			t.Errorf("%d bytes: a state reaches into its id", n)
		}
	}
}

// anyState returns a state with a number in many places.
func anyState(n int64) bucket.State {
	snapshot := bucket.Snapshot{Now: n &^ (1 << 62), Algorithm: SlidingWindow, Limit: n, Duration: 4, Used: n, Rest: n}
	state, _ := snapshot.State()
	return state
}
