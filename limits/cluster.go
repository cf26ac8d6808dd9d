package limits

import (
	"math/bits"
	"time"
	"unsafe"

	"weir/limits/bucket"
)

// A Found is a limit that [Limiter.Scan] has found. The ID is the Limiter's memory and may be kept.
type Found struct {
	ID       string
	TTLClass uint8 // below 2 to that power nanoseconds the limit is whole again, if no hits are taken
}

const ttlClasses = 65

// Scan returns those limits in one of some parts of all for which where is true, by the places that it returns for
// them. Those of the highest TTLClass come first. Among equals those come together that lie together, since going
// through them touches less memory then. where may use an id only until it returns, and must not use the Limiter: a
// lock is held.
func (l *Limiter) Scan(part, parts int, where func(id []byte) (place string, ok bool)) map[string][]Found {
	shards := l.shards[len(l.shards)*part/parts : len(l.shards)*(part+1)/parts]
	f := finder{numbers: map[string]int{}, all: make([]placed, 0, entries(shards)), now: l.now().UnixNano()}
	for i := range shards {
		f.find(&shards[i], where)
	}
	return f.sorted()
}

func entries(shards []shard) (n int) {
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		n += s.expiries.size
		s.mu.Unlock()
	}
	return n
}

// A finder gathers what is found in one piece of memory, whose size is known beforehand: slices that grow would touch
// several times as much.
type finder struct {
	now     int64
	numbers map[string]int    // of the places
	counts  [][ttlClasses]int // of what is in each
	all     []placed
}

type placed struct {
	Found
	place int
}

func (f *finder) find(s *shard, where func(id []byte) (place string, ok bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.expiries.size {
		held, _ := s.expiries.at(i)
		id := held.id()
		if place, ok := where(unsafe.Slice(unsafe.StringData(id), len(id))); ok {
			f.add(place, Found{id, uint8(bits.Len64(uint64(max(0, held.Expiry()-f.now))))})
		}
	}
}

func (f *finder) add(place string, found Found) {
	n, ok := f.numbers[place]
	if !ok {
		n = len(f.counts)
		f.numbers[place], f.counts = n, append(f.counts, [ttlClasses]int{})
	}
	f.counts[n][found.TTLClass]++
	f.all = append(f.all, placed{found, n})
}

// sorted returns what has been found. It counts beforehand where each class begins.
func (f *finder) sorted() map[string][]Found {
	byPlace := make(map[string][]Found, len(f.numbers))
	lists := make([][]Found, len(f.numbers))
	for place, n := range f.numbers {
		next, starts := 0, &f.counts[n]
		for class := ttlClasses - 1; class >= 0; class-- {
			starts[class], next = next, next+starts[class]
		}
		lists[n] = make([]Found, next)
		byPlace[place] = lists[n]
	}
	for i := range f.all {
		found := &f.all[i]
		next := &f.counts[found.place][found.TTLClass]
		lists[found.place][*next] = found.Found
		*next++
	}
	return byPlace
}

// State returns what is remembered of the limit that id names (see [bucket.Request.AppendID]): an empty State if
// nothing is.
func (l *Limiter) State(id []byte) bucket.State {
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if held := s.states.peek(id); held != nil {
		return held.State
	}
	return bucket.State{}
}

// ApplyDebt counts the hits of a debt for the limit that id names, and returns how many these are. It is false, and
// nothing is counted, where the limit has a state of another algorithm.
func (l *Limiter) ApplyDebt(id []byte, d *bucket.Debt) (hits int64, ok bool) {
	s, now := l.lock(id)
	defer s.mu.Unlock()
	return d.Hits(now), s.apply(id, now, func(st bucket.State) (bucket.State, bool) { return st.Join(d, now) })
}

// Take returns the state of the limit that id names, by then, and forgets it, for another node that is to keep it. The
// State is empty if there is none.
func (l *Limiter) Take(id []byte) bucket.State {
	s, now := l.lock(id)
	defer s.mu.Unlock()
	held := s.states.peek(id)
	if held == nil {
		return bucket.State{}
	}
	s.remove(held, now.UnixNano(), new(uint64))
	return held.At(now)
}

// Put adds a state that was kept elsewhere to what this Limiter has counted of the same limit. It is false where that
// is of another algorithm.
func (l *Limiter) Put(id []byte, state bucket.State) bool {
	s, now := l.lock(id)
	defer s.mu.Unlock()
	if state = state.At(now); state.Empty() {
		return true
	}
	return s.apply(id, now, func(st bucket.State) (bucket.State, bool) {
		if st.Whole(now) {
			return state, true
		}
		return st.Add(state, now)
	})
}

// lock returns the shard of id, locked, and the time.
func (l *Limiter) lock(id []byte) (s *shard, now time.Time) {
	s = l.shardOf(id)
	s.mu.Lock()
	now = l.now()
	s.latest = now.UnixNano()
	return s, now
}

// apply changes the state of id, an empty one if there is none, if change can.
func (s *shard) apply(id []byte, now time.Time, change func(bucket.State) (next bucket.State, ok bool)) bool {
	held := s.states.get(textOf(id))
	if held == nil {
		if next, _ := change(bucket.State{}); !next.Empty() {
			s.add(textOf(id), next, now.UnixNano())
		}
		return true
	}
	next, ok := change(held.State)
	if ok {
		s.replace(held, next, now.UnixNano())
	}
	return ok
}
