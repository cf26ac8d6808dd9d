package limits

import (
	"math/bits"
	"unsafe"
)

// A Found is a limit that [Limiter.Find] has found.
type Found struct {
	ID   string
	Rank uint8 // how long it is until the limit is whole again if nobody takes anything: below 2 to that power, in nanoseconds
}

const ranks = 65

// Find gives those limits in one of some parts of all for which where is true, by what it says of them, those of the highest rank
// first. Among equals those come together that lie together, so that who goes through them touches less memory.
// where gets ids that belong to it only as long as it runs, and must not use the Limiter: a lock is held.
func (l *Limiter) Find(part, parts int, where func(id []byte) (place string, ok bool)) map[string][]Found {
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
		n += s.agenda.size
		s.mu.Unlock()
	}
	return n
}

// A finder gathers what is found in one piece of memory, whose size is known beforehand: slices that grow would touch several
// times as much.
type finder struct {
	now     int64
	numbers map[string]int // of the places
	counts  [][ranks]int   // of what is in each
	all     []placed
}

type placed struct {
	Found
	place int
}

func (f *finder) find(s *shard, where func(id []byte) (place string, ok bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.agenda.size {
		held, _ := s.agenda.at(i)
		id := held.id()
		if place, ok := where(unsafe.Slice(unsafe.StringData(id), len(id))); ok {
			f.add(place, Found{id, uint8(bits.Len64(uint64(max(0, held.expiry()-f.now))))})
		}
	}
}

func (f *finder) add(place string, found Found) {
	n, ok := f.numbers[place]
	if !ok {
		n = len(f.counts)
		f.numbers[place], f.counts = n, append(f.counts, [ranks]int{})
	}
	f.counts[n][found.Rank]++
	f.all = append(f.all, placed{found, n})
}

// sorted gives what has been found. It counts beforehand where each rank begins.
func (f *finder) sorted() map[string][]Found {
	byPlace := make(map[string][]Found, len(f.numbers))
	lists := make([][]Found, len(f.numbers))
	for place, n := range f.numbers {
		next, starts := 0, &f.counts[n]
		for rank := ranks - 1; rank >= 0; rank-- {
			starts[rank], next = next, next+starts[rank]
		}
		lists[n] = make([]Found, next)
		byPlace[place] = lists[n]
	}
	for i := range f.all {
		found := &f.all[i]
		next := &f.counts[found.place][found.Rank]
		lists[found.place][*next] = found.Found
		*next++
	}
	return byPlace
}

// Has says whether anything is remembered of a limit.
func (l *Limiter) Has(id []byte) bool {
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states.peek(id) != nil
}

// Take gives the state of a limit and forgets it: somebody else is to keep it. It is the zero State if there is none.
func (l *Limiter) Take(id []byte) (state State) {
	s, now := l.lock(id)
	defer s.mu.Unlock()
	held := s.states.peek(id)
	if held == nil {
		return State{}
	}
	s.remove(held, now, new(uint64))
	return held.now(now)
}

// Put adds a state that was kept elsewhere to what this Limiter has counted of the same limit. It is false where a state of
// another algorithm stands against that.
func (l *Limiter) Put(id []byte, state State) bool {
	s, now := l.lock(id)
	defer s.mu.Unlock()
	if state = state.now(now); state.whole() {
		return true
	}
	held := s.states.peek(id)
	if held == nil {
		s.add(textOf(id), state, now)
		return true
	}
	if held.expired(now) {
		s.replace(held, state, now)
		return true
	}
	return s.join(textOf(id), new(state.debt()), now)
}

// debt gives all that is used as a debt.
func (s *State) debt() Debt { return Debt{*s, s.hits()} }
