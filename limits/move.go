package limits

import (
	"cmp"
	"slices"
	"unsafe"
)

// A Found is a limit that [Limiter.Find] has found.
type Found struct {
	ID     string
	Expiry int64 // when it is whole again if nobody takes anything, in Unix nanoseconds
}

// Find gives those limits in one of some parts of all for which where is true, by what it says of them, those that are whole
// again latest first. where gets ids that belong to it only as long as it runs, and must not use the Limiter: a lock is held.
func (l *Limiter) Find(part, parts int, where func(id []byte) (place string, ok bool)) map[string][]Found {
	shards := l.shards[len(l.shards)*part/parts : len(l.shards)*(part+1)/parts]
	f := finder{places: map[string]int{}, all: make([]placed, 0, entries(shards))}
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
	places map[string]int // by their numbers
	counts []int          // of what is in each
	all    []placed
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
			f.all = append(f.all, placed{Found{id, held.expiry()}, f.number(place)})
		}
	}
}

// number counts one more in a place, and gives the number of that.
func (f *finder) number(place string) int {
	n, ok := f.places[place]
	if !ok {
		n = len(f.counts)
		f.places[place], f.counts = n, append(f.counts, 0)
	}
	f.counts[n]++
	return n
}

func (f *finder) sorted() map[string][]Found {
	lists := make([][]Found, len(f.counts))
	for i, n := range f.counts {
		lists[i] = make([]Found, 0, n)
	}
	for i := range f.all {
		lists[f.all[i].place] = append(lists[f.all[i].place], f.all[i].Found)
	}
	places := make(map[string][]Found, len(lists))
	for place, i := range f.places {
		slices.SortFunc(lists[i], LatestFirst)
		places[place] = lists[i]
	}
	return places
}

// LatestFirst orders limits by when they are whole again.
func LatestFirst(a, b Found) int { return cmp.Compare(b.Expiry, a.Expiry) }

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
