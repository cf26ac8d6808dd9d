package global

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"weir/limits/bucket"
	"weir/limits/wire"
)

// moves are the states of limits that change hands, after a change of the ring. The former owner sends them along with
// its reports; the new one asks for what it needs at once. So it may be told twice of a state, and tells by the number.
type moves struct {
	scanning turn         // taken while limits that belong elsewhere are looked for, which takes a second for a million
	leaving  atomic.Bool  // this node is not part of the ring
	began    atomic.Int64 // when the ring changed last, by Clock

	mu    sync.Mutex      // guards all below; may be locked while scanning is taken, not the other way round
	ring  string          // that limits were looked for last
	again []time.Duration // when to look again, by Clock: for what was counted by those who had not heard of the change yet
	given map[string]given
	last  int64                           // the number of the last one that was given
	taken *simplelru.LRU[int64, *numbers] // lately, by the life of the process that gave it
}

// A given is a state on its way to its new owner.
type given struct {
	state bucket.State
	take  int64
	node  string
}

// numbers are those of the states that one process has given to this node, as far as it remembers: of the last
// maxTakes. It has to as long as an answer may be late.
type numbers struct {
	last int64 // the largest
	bits [maxTakes / 64]uint64
}

const (
	maxTakes  = 1 << 17
	maxGivers = 64
)

// add adds a positive number. It is false if that has been added before.
func (seen *numbers) add(n int64) (isNew bool) {
	if n <= seen.last-maxTakes {
		return true // or it was too long ago
	}
	if n-seen.last >= maxTakes {
		clear(seen.bits[:])
		seen.last = n
	}
	for seen.last < n {
		seen.last++
		word, bit := seen.at(seen.last)
		*word &^= bit
	}
	word, bit := seen.at(n)
	isNew = *word&bit == 0
	*word |= bit
	return isNew
}

func (seen *numbers) at(n int64) (word *uint64, bit uint64) {
	return &seen.bits[n/64%int64(len(seen.bits))], 1 << (n % 64)
}

func (m *moves) init() {
	m.scanning, m.given = newTurn(), map[string]given{}
	m.taken, _ = simplelru.NewLRU[int64, *numbers](maxGivers, nil)
}

// When to look again after a change of the ring, and after a state has come here by mistake.
const (
	lookAgainSoon  = time.Second
	lookAgainLater = 5 * time.Second
)

// noticeRing looks for limits that belong elsewhere once the ring has changed, or it is time to look again, or anyway,
// and lets them stand in line for their new owners. The caller has the turn of scanning.
func (s *Syncer) noticeRing(anyway bool) {
	ring, others := s.cluster.Ring()
	if ring == "" {
		return
	}
	changed, look := s.mayLook(ring, anyway)
	if !changed && !look {
		return
	}
	s.moves.leaving.Store(len(others) == s.cluster.Nodes())
	if look {
		s.look()
	}
	for _, node := range others {
		s.owner(node).change(func(o *owner) { o.toHand = ring })
	}
}

// lookParts is in how many parts all limits are looked at, so that those of the first can go while the others are
// looked at.
const lookParts = 8

// look lets the limits that belong elsewhere stand in line for their owners.
func (s *Syncer) look() {
	for part := range lookParts {
		elsewhere := s.limiter.Scan(part, lookParts, func(id []byte) (node string, ok bool) {
			node, known := s.cluster.Owner(id)
			return node, known && node != self
		})
		for node, found := range elsewhere {
			s.owner(node).change(func(o *owner) { o.moving.add(found) })
		}
	}
}

// mayLook reports whether the ring has changed, and whether it is time to look, and takes note of it. A change by which
// this node has lost nothing is no reason to look: for millions of limits that takes seconds of a processor.
func (s *Syncer) mayLook(ring string, anyway bool) (changed, look bool) {
	// Asked without the lock, since it may wait for a change of the ring, and so for those who count, who take the lock.
	// And asked each time, since a ring that is the same again may have been another one meanwhile.
	lost, moving, now := s.cluster.TakeOwnershipLoss(), s.stillMoving(), s.Clock()
	s.moves.mu.Lock()
	defer s.moves.mu.Unlock()
	if ring != s.moves.ring || lost {
		s.moves.ring = ring
		s.moves.began.Store(int64(now))
		if lost {
			s.moves.again = []time.Duration{now + lookAgainSoon, now + lookAgainLater}
		}
		return true, lost || anyway
	}
	due := len(s.moves.again) > 0 && s.moves.again[0] <= now
	if moving || !due && !anyway { // while limits still stand in line it would find the same again
		return false, false
	}
	if due {
		s.moves.again = s.moves.again[1:]
	}
	return false, true
}

// tryNoticeRing does that unless that is under way.
func (s *Syncer) tryNoticeRing() {
	if s.moves.scanning.try() {
		defer s.moves.scanning.leave()
		s.noticeRing(false)
	}
}

// stillMoving reports whether limits stand in line for their new owners.
func (s *Syncer) stillMoving() (is bool) {
	s.eachOwner(func(o *owner) {
		o.mu.Lock()
		defer o.mu.Unlock()
		is = is || o.moving.len() > 0
	})
	return is
}

// LookAgain has the next look for limits that belong elsewhere take place in a while.
func (s *Syncer) LookAgain() {
	s.moves.mu.Lock()
	defer s.moves.mu.Unlock()
	if len(s.moves.again) == 0 {
		s.moves.again = []time.Duration{s.Clock() + lookAgainLater}
	}
}

// give takes a limit's state out of this node's count for another node; fresh reports whether it has just done so, or
// had before. It is false if there is nothing to give.
func (s *Syncer) give(id, node string) (g given, fresh, ok bool) {
	s.moves.mu.Lock()
	defer s.moves.mu.Unlock()
	return s.giveLocked(id, node)
}

func (s *Syncer) giveLocked(id, node string) (g given, fresh, ok bool) {
	if g, ok := s.moves.given[id]; ok {
		return g, false, g.node == node
	}
	state := s.limiter.Take(bytesOf(id))
	if state.Whole(s.limiter.Now()) {
		return g, false, false
	}
	s.moves.last++
	g = given{state, s.moves.last, node}
	s.moves.given[id] = g
	return g, true, true
}

// Give returns the states of some limits to a node that asks for them, because it owns them now: whole ones where there
// is nothing to give. They are part of a report to it all the same, since the answer may get lost.
func (s *Syncer) Give(node string, names []wire.Key) *wire.StateUpdate {
	answer := &wire.StateUpdate{States: make([]wire.KeyedState, len(names))}
	for i := range names {
		n := &names[i]
		answer.States[i].Key = *n
		if n.Valid() {
			s.giveOne(&answer.States[i], n.AppendID(nil), node)
		}
	}
	s.hearSoon(node)
	return answer
}

// hearSoon has the report with what a node was given go at once. Until it is acknowledged nobody knows who counts that,
// and should the node leave both do.
func (s *Syncer) hearSoon(node string) {
	o := s.owner(node)
	o.mu.Lock()
	waits := len(o.given) > 0
	o.mu.Unlock()
	if waits {
		s.reportSoon(o)
	}
}

func (s *Syncer) giveOne(n *wire.KeyedState, id []byte, node string) {
	if !s.owns(node, id) {
		return
	}
	key := string(id)
	g, lined, ok := s.giveInLine(key, node)
	switch {
	case !ok:
	case !lined: // the node has left meanwhile
		s.keep(key)
		s.LookAgain()
	default:
		s.describe(n, key, g)
	}
}

// giveInLine returns a limit's state, and reports whether it stands in line for the node, too. Nobody sees it neither
// here nor there.
func (s *Syncer) giveInLine(id, node string) (g given, lined, ok bool) {
	s.moves.mu.Lock()
	defer s.moves.mu.Unlock()
	g, fresh, ok := s.giveLocked(id, node)
	lined = !fresh || s.owner(node).change(func(o *owner) { o.given = append(o.given, id) })
	return g, lined, ok
}

// describe makes n tell of a state that is given.
func (s *Syncer) describe(n *wire.KeyedState, id string, g given) {
	n.Key = wire.KeyOf(id)
	n.Set(g.state, s.limiter.Now())
	n.Start, n.Take = s.cluster.Incarnation(), g.take
}

// TakeOver adds states that other nodes gave to this one's count, each once. Entries without a number are none.
func (s *Syncer) TakeOver(states []wire.KeyedState) {
	var id []byte
	for i := range states {
		n := &states[i]
		state, sane := n.State()
		switch {
		case n.Take <= 0 || !sane || !n.Valid():
		case state == (bucket.State{}): // it ran out on the way
			s.metrics.expiredStates.Inc()
		default:
			id = n.AppendID(id[:0])
			s.takeOne(id, n, state)
		}
	}
}

// Taken returns how many states this node has taken over from others since it started.
func (s *Syncer) Taken() uint64 { return s.metrics.taken.Get() }

// numbersOf returns those of the states that a process has given. The caller holds mu.
func (m *moves) numbersOf(start int64) *numbers {
	t, ok := m.taken.Get(start)
	if !ok {
		t = new(numbers)
		m.taken.Add(start, t)
	}
	return t
}

func (s *Syncer) takeOne(id []byte, n *wire.KeyedState, state bucket.State) {
	s.moves.mu.Lock()
	if !s.moves.numbersOf(n.Start).add(n.Take) {
		s.moves.mu.Unlock()
		s.metrics.movedAgain.Inc()
		return
	}
	// Under the lock, so that nobody who is told of it a second time goes on before it is there.
	ok := s.limiter.Put(id, state.Shift(s.limiter.Now().Sub(time.Unix(0, n.Now))))
	s.moves.mu.Unlock()
	if !ok {
		s.metrics.otherStates.Inc()
		return
	}
	s.metrics.taken.Inc()
	s.shares.changed(id)
	if !s.owns(self, id) {
		s.LookAgain()
	}
}

// freezeMoves adds states to a report of some size, as many as it takes. It is true if more have to wait. Only it, with
// the turn of sending to o, takes something out of the two lines.
func (s *Syncer) freezeMoves(o *owner, size int) (more bool) {
	o.mu.Lock()
	asked, moving := o.given, o.moving.take(maxReport)
	o.mu.Unlock()
	room := func() bool { return len(o.report) < maxReport && size < maxBytes }
	gone := 0
	for ; gone < len(asked) && room(); gone++ {
		size += messageBytes(asked[gone])
		if g, _, ok := s.give(asked[gone], o.name); ok {
			o.report = append(o.report, frozen{id: asked[gone], moved: g})
		}
	}
	sent, changed := 0, false
	for ; sent < len(moving) && room(); sent++ {
		id := moving[sent].ID
		if !s.owns(o.name, bytesOf(id)) {
			changed = true
			continue
		}
		if g, fresh, ok := s.give(id, o.name); ok && fresh {
			size += messageBytes(id)
			o.report = append(o.report, frozen{id: id, moved: g})
		}
	}
	if changed { // the ring, once more
		s.LookAgain()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given = o.given[gone:]
	o.moving.putBack(moving[sent:])
	return len(o.given)+o.moving.len() > 0
}

// moved forgets a state that its new owner has, but for those that have not heard of that, and ask this node to count:
// they get no more than was left.
func (s *Syncer) moved(id string) {
	if !s.moves.leaving.Load() { // else no node asks any more, in a moment
		s.rememberAway(bytesOf(id))
	}
	s.moves.mu.Lock()
	defer s.moves.mu.Unlock()
	s.metrics.moved.Inc()
	delete(s.moves.given, id)
}

// rememberAway has this node's count for others begin with what it knows of a limit, if it was its own until a moment
// ago.
func (s *Syncer) rememberAway(id []byte) {
	if !s.away.State(id).Empty() {
		return
	}
	s.moves.mu.Lock() // so that of several who come at once one does
	defer s.moves.mu.Unlock()
	g, ok := s.moves.given[string(id)]
	if !ok {
		g.state = s.limiter.State(id)
	}
	if g.state != (bucket.State{}) && s.away.State(id).Empty() {
		s.away.Put(id, g.state)
	}
}

// keep counts a state here again whose new owner is gone.
func (s *Syncer) keep(id string) {
	s.moves.mu.Lock()
	defer s.moves.mu.Unlock()
	if g, ok := s.moves.given[id]; ok {
		s.limiter.Put(bytesOf(id), g.state)
		delete(s.moves.given, id)
	}
}

// KeepAll counts here again all that was given and not acknowledged. It is for a node that stops, and sends nothing any
// more: whoever got something all the same counts it, too.
func (s *Syncer) KeepAll() {
	s.moves.mu.Lock()
	defer s.moves.mu.Unlock()
	for id, g := range s.moves.given {
		s.limiter.Put(bytesOf(id), g.state)
	}
	clear(s.moves.given)
}
