package limits

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

func TestShardsShareTheSize(t *testing.T) {
	for _, size := range []int{1, 2, 511, 512, 513, 1023, 1024, 1025, 4095, 100_000, 123_457} {
		l := New(size, time.Now)
		sum := 0
		for i := range l.shards {
			if n := l.shards[i].size; n < shardSize/2 && len(l.shards) > 1 || n > shardSize {
				t.Errorf("size %d: a shard of %d", size, n)
			}
			sum += l.shards[i].size
		}
		if sum != size {
			t.Errorf("size %d: %d states in all", size, sum)
		}
	}
}

// How many states are drained is counted in five places. It must always be the number of those that are.
func TestDrainedStatesAreCounted(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	now := tableStart
	l := New(40, func() time.Time { return time.Unix(0, now) })
	s := &l.shards[0]
	for range 30_000 {
		now += random.Int64N(10 * int64(time.Millisecond))
		l.Check(Request{
			Name: "name", UniqueKey: fmt.Sprint(random.IntN(150)), Hits: random.Int64N(8) - 1, Limit: random.Int64N(6),
			Duration:  5000,
			Algorithm: Algorithm(random.IntN(3)),
			Behavior:  []Behavior{0, 0, 0, 0, DrainOverLimit, ResetRemaining}[random.IntN(6)],
		})
		if random.IntN(500) == 0 {
			l.Sweep()
		}
		drained := 0
		for _, st := range s.states.inOrder() {
			if st.Drained() {
				drained++
			}
			if st.Empty() {
				t.Fatalf("a whole state is held: %+v", *st)
			}
		}
		if s.drained != drained {
			t.Fatalf("%d states are drained, but %d are counted", drained, s.drained)
		}
	}
	if stats := l.Stats(); stats.Expired == 0 || stats.EvictedUsed == 0 || stats.EvictedDrained == 0 {
		t.Errorf("not all of it came up: %+v", stats)
	}
}

// TestShardsDontShareCacheLines keeps two processors out of each other's way, and what decisions use together.
func TestShardsDontShareCacheLines(t *testing.T) {
	const line = 64
	if size, hot := unsafe.Sizeof(shard{}), unsafe.Offsetof(shard{}.expiries); size%line != 0 || hot > line {
		t.Errorf("a shard has %d bytes, of which decisions use the first %d", size, hot)
	}
}
