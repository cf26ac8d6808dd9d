package limits

import (
	"cmp"
	"slices"
	"unsafe"
)

// Find gives the ids of the limits for which where is true, by what it says of them, those that are whole again latest first.
// where gets ids that belong to it only as long as it runs, and must not use the Limiter: a lock is held.
func (l *Limiter) Find(where func(id []byte) (place string, ok bool)) map[string][]string {
	type found struct {
		held   *record
		expiry int64
	}
	places := map[string][]found{}
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for _, held := range s.states.all() {
			id := held.id()
			if place, ok := where(unsafe.Slice(unsafe.StringData(id), len(id))); ok {
				places[place] = append(places[place], found{held, held.expiry()})
			}
		}
		s.mu.Unlock()
	}
	ids := make(map[string][]string, len(places))
	for place, all := range places {
		slices.SortFunc(all, func(a, b found) int { return cmp.Compare(b.expiry, a.expiry) })
		list := make([]string, len(all))
		for i := range all {
			list[i] = all[i].held.id()
		}
		ids[place] = list
	}
	return ids
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
		s.due = min(s.due, state.expiry())
		return true
	}
	return s.join(textOf(id), new(state.debt()), now)
}

// debt gives all that is used as a debt.
func (s *State) debt() Debt { return Debt{*s, s.hits()} }
