package global

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
)

// self names this node as an owner, as Cluster.Owner does. Its queue also keeps the debts whose owner isn't known.
const self = ""

// An owner is a node that owns what this one owes, and the way of the debts to it.
type owner struct {
	name     string
	silent   atomic.Bool  // it left a question without an answer, and has said nothing since
	answered atomic.Int64 // when it last said something, by Clock
	due      atomic.Bool  // a report is to go early

	sending turn              // taken while a report is on its way: there is one at a time
	seq     int64             // of the last report; guarded by sending
	report  []frozen          // the one that is not acknowledged; guarded by sending
	states  []wire.KeyedState // memory for those in it as they are told; guarded by sending
	failed  bool              // it has been sent before; guarded by sending
	handed  string            // the ring for which it has heard that it has everything; guarded by sending

	mu       sync.Mutex    // guards all below; may be locked while a shard or moves is, not the other way round
	line     []string      // limits with something gathered
	reported int           // the length of report
	moving   queue         // limits that belong to the node by now; it may have got some already
	given    []string      // those of them that it has asked for
	toHand   string        // the ring for which it is to hear that it has everything
	since    time.Duration // no debt is older, by Clock; of no meaning while there is none
	gone     bool          // the node has left, and nothing must stand in line here
}

// A turn is a lock for which one need not wait longer than one likes.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// try takes the turn unless it is taken.
func (t turn) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// take waits for the turn, or gives ctx's error.
func (t turn) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err // also if the turn is free
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) leave() { <-t }

// A frozen is one debt in a report, or one state that moves.
type frozen struct {
	id    string
	debt  debt
	copy  bool
	moved given
}

// What bounds a message: how many debts or states are in it, and their bytes, for all of which there is room in 4 MiB.
const (
	maxReport = wire.MaxItems
	maxBytes  = 3 << 20
)

// messageBytes is the most that a debt or a state takes in a message: JSON writes six bytes for some characters.
func messageBytes(id string) int { return 512 + 6*len(id) }

// Clock returns the time since this Syncer was made, which no setting of the machine's clock changes.
func (s *Syncer) Clock() time.Duration { return time.Since(s.began) }

func (s *Syncer) owner(name string) *owner {
	if o, ok := s.owners.Load(name); ok {
		return o.(*owner)
	}
	o, _ := s.owners.LoadOrStore(name, &owner{name: name, sending: newTurn()})
	return o.(*owner)
}

func (s *Syncer) eachOwner(do func(*owner)) {
	s.owners.Range(func(_, o any) bool {
		do(o.(*owner))
		return true
	})
}

// heard notes that a node has answered.
func (s *Syncer) heard(o *owner) {
	o.answered.Store(int64(s.Clock()))
	if o.silent.Load() {
		o.silent.Store(false)
	}
}

func (s *Syncer) reportSoon(o *owner) {
	o.due.Store(true)
	select {
	case s.wake <- struct{}{}:
	default: // somebody else has asked for it
	}
}

// Count decides on q, though another node owns its limit: that can't be asked. What it takes is owed, unless
// the owner may have counted it all the same. It is not the count of this node's own limits, should this become one.
func (s *Syncer) Count(q *bucket.Query, owe bool) limits.Result {
	s.rememberAway(q.ID)
	results := []limits.Result{{}}
	s.away.CheckPrepared([]bucket.Query{*q}, []int{0}, results)
	result := results[0]
	if !owe || !takes(q, &result) {
		return result
	}
	state := s.away.State(q.ID)
	now := s.limiter.Now()
	if state.Whole(now) {
		return result // it is over already
	}
	node, _ := s.cluster.Owner(q.ID)
	sh := s.shardOf(q.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.add(q.ID); e != nil {
		s.gatherFrom(e, q, &state, source{}, s.owner(node), now)
	} else {
		s.metrics.dropped(droppedFull, q.Hits)
	}
	return result
}

// gather adds hits that were taken from a copy, which is next after it.
func (s *Syncer) gather(e *entry, q *bucket.Query, next *bucket.State, o *owner, now time.Time) {
	ours := next.Shift(-e.ahead)
	s.gatherFrom(e, q, &ours, e.source, o, now)
}

func (s *Syncer) gatherFrom(e *entry, q *bucket.Query, state *bucket.State, from source, o *owner, now time.Time) {
	if e.gathered.forgiven(from) {
		s.metrics.dropped(droppedReset, e.gathered.Hits(now))
		e.gathered = debt{}
	}
	s.metrics.dropped(droppedAlgorithm, e.gathered.Add(q.Hits, state, now))
	e.gathered.from = from
	s.lineUp(e, q.ID, o)
}

// lineUp puts a limit with something gathered in its owner's line.
func (s *Syncer) lineUp(e *entry, id []byte, o *owner) {
	if e.lined {
		return
	}
	e.lined = true
	s.change(o, func(o *owner) {
		if len(o.line)+o.reported == 0 {
			o.since = s.Clock()
		}
		o.line = append(o.line, string(id))
	})
}

// change changes what stands in o's lines, or in nobody's if o is gone.
func (s *Syncer) change(o *owner, change func(*owner)) {
	if !o.change(change) {
		s.owner(self).change(change)
	}
}

// change does that. It is false, and nothing changes, if o is gone.
func (o *owner) change(change func(*owner)) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.gone {
		change(o)
	}
	return !o.gone
}

// takeLine empties the line.
func (o *owner) takeLine() (line []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	line, o.line = o.line, nil
	return line
}

// putFirst puts limits that were taken out of an owner's line back to its head.
func (s *Syncer) putFirst(o *owner, line []string) {
	s.change(o, func(o *owner) { o.line = append(line, o.line...) })
}

// tryReport reports unless a report is on its way.
func (s *Syncer) tryReport(ctx context.Context, o *owner) {
	if o.sending.try() {
		defer o.sending.leave()
		s.report(ctx, o)
	}
}

// report sends what is owed to o, as often as there is more than one report takes. The caller holds sending.
func (s *Syncer) report(ctx context.Context, o *owner) error {
	for {
		o.due.Store(false)
		more := s.freeze(o)
		if o.name != self && !s.cluster.Knows(o.name) {
			s.thaw(o)
			return nil
		}
		if len(o.report) == 0 && more && o.name != self {
			continue // all of it was over, or somebody else's
		}
		handed := s.toHand(o, more)
		if o.name == self || len(o.report) == 0 && !o.silent.Load() && handed == o.handed {
			return nil
		}
		message := s.message(o)
		message.Handed = handed
		answer, err := s.cluster.Report(ctx, o.name, message)
		if err != nil {
			o.failed = true
			s.metrics.failed.Inc()
			return err
		}
		s.acknowledge(o, answer)
		if handed != o.handed {
			o.handed = handed
			s.metrics.handover.Set((s.Clock() - time.Duration(s.moves.began.Load())).Seconds())
		}
		if !more && !o.due.Load() {
			return nil
		}
	}
}

// toHand returns the ring for which o has everything with the present report.
func (s *Syncer) toHand(o *owner, full bool) string {
	s.moves.mu.Lock() // what is being given stands in line then
	defer s.moves.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if full || o.moving.len()+len(o.given) > 0 {
		return o.handed
	}
	return o.toHand
}

// freeze makes a report of what stands in line, unless one is to be repeated. It is true if more has to wait. What
// belongs to somebody else by now goes there.
func (s *Syncer) freeze(o *owner) (more bool) {
	if len(o.report) > 0 {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.line)+o.moving.len()+len(o.given) > 0
	}
	line, now := o.takeLine(), s.limiter.Now()
	o.seq = s.seq.Add(1)
	size := 0
	for len(line) > 0 && len(o.report) < maxReport && size < maxBytes {
		size += messageBytes(line[0])
		s.freezeOne(o, line[0], now)
		line = line[1:]
	}
	s.putFirst(o, line)
	more = o.name != self && s.freezeMoves(o, size)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reported, o.failed = len(o.report), false
	return len(line) > 0 || more
}

func (s *Syncer) freezeOne(o *owner, id string, now time.Time) {
	name := bytesOf(id)
	node, known := s.cluster.Owner(name)
	sh := s.shardOf(name)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.get(name)
	if e == nil {
		return
	}
	e.lined = false
	switch {
	case e.gathered.Hits(now) == 0:
		e.gathered = debt{}
	case known && node == self: // this node has become the owner
		s.count(name, &e.gathered.Debt)
		e.gathered = debt{}
	case node != o.name || !known || !e.frozen.IsZero(): // the last is in a report to a former owner
		s.lineUp(e, name, s.owner(node))
	default:
		o.report = append(o.report, frozen{id: id, debt: e.gathered, copy: e.hasCopy() && now.Before(e.until)})
		e.frozen, e.seq = e.gathered, o.seq
		e.gathered = debt{}
	}
}

// count counts a debt here.
func (s *Syncer) count(id []byte, d *bucket.Debt) {
	hits, ok := s.limiter.ApplyDebt(id, d)
	if !ok {
		s.metrics.dropped(droppedAlgorithm, hits)
		return
	}
	s.metrics.counted.AddInt64(hits)
	s.shares.changed(id)
}

// message is the report as it is sent now: the same hits, at their age.
func (s *Syncer) message(o *owner) *wire.Report {
	now := s.limiter.Now()
	moves := o.moves()
	r := &wire.Report{Start: s.cluster.Incarnation(), Debts: make([]wire.Debt, 0, len(o.report)-moves)}
	if moves > 0 {
		o.states = slices.Grow(o.states[:0], moves)
		r.States = o.states
	}
	for i := range o.report {
		f := &o.report[i]
		if f.moved.take != 0 {
			var n wire.KeyedState
			s.describe(&n, f.id, f.moved)
			r.States = append(r.States, n)
			continue
		}
		owed, ok := wire.NewDebt(&f.debt.Debt, f.id, now)
		if !ok { // it is over, so there will be no answer to it, while an earlier one may have been lost
			s.withEntry(bytesOf(f.id), func(e *entry) { e.doubt(now) })
			continue
		}
		owed.Start, owed.Epoch, owed.Copy = f.debt.from.start, f.debt.from.epoch, f.copy
		r.Debts = append(r.Debts, owed)
	}
	if len(o.report) > 0 {
		r.Seq = o.seq
		s.metrics.sent(o.failed)
	}
	return r
}

// moves returns how many states that move are in the report.
func (o *owner) moves() (n int) {
	for i := range o.report {
		if o.report[i].moved.take != 0 {
			n++
		}
	}
	return n
}

// acknowledge drops the report that was answered, and takes over the states in the answer.
func (s *Syncer) acknowledge(o *owner, answer *wire.StateUpdate) {
	s.heard(o)
	now := s.limiter.Now()
	for i := range o.report {
		f := &o.report[i]
		if f.moved.take != 0 {
			s.moved(f.id)
			continue
		}
		s.metrics.reported.AddInt64(f.debt.Hits(now))
		s.withEntry(bytesOf(f.id), func(e *entry) { e.frozen = debt{} })
	}
	clear(o.report)
	o.report = o.report[:0]
	o.mu.Lock()
	o.reported, o.since = 0, s.Clock() // about: what stands in line has come since it was sent
	if o.moving.len() == 0 {
		o.states = nil
	}
	o.mu.Unlock()
	for i := range answer.States {
		n := &answer.States[i]
		id := n.AppendID(nil)
		if !s.owns(o.name, id) {
			continue
		}
		s.withEntry(id, func(e *entry) {
			if e.hasCopy() && s.update(e, &n.Snapshot, true, now) {
				e.until = later(e.until, now.Add(time.Duration(n.Duration)))
			}
		})
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// bytesOf returns the bytes of an id, which must not be changed.
func bytesOf(id string) []byte { return unsafe.Slice(unsafe.StringData(id), len(id)) }

func (s *Syncer) withEntry(id []byte, do func(*entry)) {
	sh := s.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.get(id); e != nil {
		do(e)
	}
}

// thaw gathers again what is in a report to a node that is gone. If that has counted it, somebody counts it again:
// nobody can tell, and too much is better than too little.
func (s *Syncer) thaw(o *owner) {
	now := s.limiter.Now()
	for i := range o.report {
		f := &o.report[i]
		if f.moved.take != 0 {
			s.keep(f.id)
			continue
		}
		s.withEntry(bytesOf(f.id), func(e *entry) {
			all := e.frozen
			if !e.gathered.IsZero() {
				all.from = e.gathered.from
				s.metrics.dropped(droppedAlgorithm, all.Merge(&e.gathered.Debt, now))
			}
			e.gathered, e.frozen = all, debt{}
			s.lineUp(e, bytesOf(f.id), s.owner(self))
		})
	}
	moves := o.moves()
	o.report = nil
	o.mu.Lock()
	o.gone, o.reported = true, 0
	asked := o.given
	moves += o.moving.len() + len(asked)
	o.given, o.moving = nil, queue{} // nobody freezes meanwhile: sending is held
	o.mu.Unlock()
	for _, id := range asked {
		s.keep(id)
	}
	if moves > 0 { // which are for somebody else, or this node, now
		s.LookAgain()
	}
	s.owners.CompareAndDelete(o.name, o)
	s.putFirst(s.owner(self), o.takeLine())
}

// forgetEnded takes out of the line what nobody wants to know any more, so that an owner that is away for long costs no
// more memory than there are hits that count.
func (s *Syncer) forgetEnded(o *owner) {
	line, now := o.takeLine(), s.limiter.Now()
	kept := line[:0]
	for _, id := range line {
		s.withEntry(bytesOf(id), func(e *entry) {
			if e.gathered.Hits(now) == 0 {
				e.gathered, e.lined = debt{}, false
				return
			}
			kept = append(kept, id)
		})
	}
	s.putFirst(o, kept)
}

// Pending returns how many limits this node still has to report, or to give to their new owners.
func (s *Syncer) Pending() (limits int) {
	s.eachOwner(func(o *owner) {
		o.mu.Lock()
		defer o.mu.Unlock()
		limits += len(o.line) + o.reported + o.moving.len() + len(o.given)
	})
	return limits
}

// owing returns how many limits this node owes hits of, and for how long at most.
func (s *Syncer) owing() (limits int, oldest time.Duration) {
	s.eachOwner(func(o *owner) {
		o.mu.Lock()
		defer o.mu.Unlock()
		n := len(o.line) + o.reported
		if limits += n; n > 0 {
			oldest = max(oldest, s.Clock()-o.since)
		}
	})
	return limits, oldest
}
