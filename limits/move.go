package limits

import (
	"cmp"
	"slices"
	"unsafe"
)

// Find gives the ids of the limits for which match is true, those that are whole again latest first. match gets ids that
// belong to it only as long as it runs, and must not use the Limiter: a lock is held.
func (l *Limiter) Find(match func(id []byte) bool) (ids []string) {
	type found struct {
		id     string
		expiry int64
	}
	var all []found
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for _, id := range s.states.Keys() {
			if match(unsafe.Slice(unsafe.StringData(id), len(id))) {
				st, _ := s.states.Peek(id)
				all = append(all, found{id, st.expiry()})
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(b.expiry, a.expiry) })
	ids = make([]string, len(all))
	for i := range all {
		ids[i] = all[i].id
	}
	return ids
}

// Has says whether anything is remembered of a limit.
func (l *Limiter) Has(id []byte) bool {
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states.Contains(unsafe.String(&id[0], len(id)))
}

// Take gives the state of a limit and forgets it: somebody else is to keep it. It is the zero State if there is none.
func (l *Limiter) Take(id []byte) (state State) {
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	key := unsafe.String(&id[0], len(id))
	held, ok := s.states.Peek(key)
	if !ok {
		return State{}
	}
	now := l.now().UnixNano()
	state = held.now(now)
	s.countDrained(*held, -1)
	s.states.Remove(key)
	s.tell(key, State{}, now)
	return state
}

// Put adds a state that was kept elsewhere to what this Limiter has counted of the same limit. It is false where a state of
// another algorithm stands against that.
func (l *Limiter) Put(id []byte, state State) bool {
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.now().UnixNano()
	key := unsafe.String(&id[0], len(id))
	if state = state.now(now); state.whole() {
		return true
	}
	held, found := s.states.Peek(key)
	if !found {
		s.add(key, state, now)
		return true
	}
	if held.expired(now) {
		s.replace(key, held, state, now)
		s.due = min(s.due, state.expiry())
		return true
	}
	return s.join(key, new(state.debt()), now)
}

// debt gives all that is used as a debt.
func (s *State) debt() Debt { return Debt{*s, s.hits()} }
