package global

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
)

// shares are the limits of this node of which others keep copies.
type shares struct {
	number atomic.Int64 // of them, for whoever wants to know without a lock whether there is any

	mu      sync.Mutex // guards all below
	known   *simplelru.LRU[string, *share]
	version int64               // the last one that was given
	dirty   map[string]struct{} // those that have changed, as far as was told, or that somebody is yet to hear of
	busy    map[string]bool     // nodes that are being told
}

// A share is one of them.
type share struct {
	state          bucket.State // as last looked at
	epoch, version int64        // of that
	holders        []holder
}

// A holder is a node with a copy.
type holder struct {
	node  string
	start int64     // of its process
	until time.Time // it wants to know changes until then
	told  int64     // the version that it was last told
}

func (sh *shares) init(size int) {
	known, err := simplelru.NewLRU[string, *share](size, nil)
	if err != nil {
		panic(err) // size is positive
	}
	sh.known, sh.dirty, sh.busy = known, map[string]struct{}{}, map[string]bool{}
}

// changed notes that a limit of ours may have another state.
func (sh *shares) changed(id []byte) {
	if sh.number.Load() == 0 {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if key := unsafe.String(&id[0], len(id)); sh.known.Contains(key) {
		if _, is := sh.dirty[key]; !is {
			sh.dirty[strings.Clone(key)] = struct{}{}
		}
	}
}

// Changed says that this node has decided on q, whose limit it owns.
func (s *Syncer) Changed(q *bucket.Query) {
	if q.Behavior&bucket.Global != 0 {
		s.metrics.own.Inc()
	}
	if q.Behavior&limits.ResetRemaining == 0 {
		s.shares.changed(q.ID)
		return
	}
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	if share, ok := s.shares.known.Get(unsafe.String(&q.ID[0], len(q.ID))); ok {
		s.shares.version++
		share.version, share.epoch = s.shares.version, s.shares.version
		s.shares.dirty[string(q.ID)] = struct{}{}
	}
}

// Share returns the state of q's limit, one of ours, to a node, in the present life of its process, which is told of
// its changes during q's window from now on.
func (s *Syncer) Share(q *bucket.Query, node string, start int64) *bucket.Snapshot {
	return s.share(q.ID, q.Window(), node, start, false)
}

// share does that. Only a node that is sure to hear the answer, or has no copy yet, need not be told the same again: a
// question may have come so late that nobody waits for the answer.
func (s *Syncer) share(id []byte, window time.Duration, node string, start int64, heard bool) *bucket.Snapshot {
	acked := s.received.last(start) // before the state is looked at: rather is more in that than this says
	sh := &s.shares
	sh.mu.Lock()
	defer sh.mu.Unlock()
	key := unsafe.String(&id[0], len(id))
	one, ok := sh.known.Get(key)
	if !ok {
		// Who has a copy from before all the same has lower numbers, and what he took from that counts.
		sh.version++
		one = &share{state: s.limiter.State(id), version: sh.version}
		sh.known.Add(strings.Clone(key), one)
		sh.number.Store(int64(sh.known.Len()))
	}
	now := s.limiter.Now()
	sh.look(s.limiter, id, one, now)
	i := slices.IndexFunc(one.holders, func(h holder) bool { return h.node == node })
	if i < 0 {
		i = len(one.holders)
		one.holders = append(one.holders, holder{node: node})
	}
	h, n := &one.holders[i], s.snapshot(one, acked, now)
	// The other side reckons with the longer window, and a second less since it starts later.
	window = max(window, time.Duration(n.Duration)) + time.Second
	if heard || h.start != start {
		h.told = one.version
	}
	h.start, h.until = start, later(h.until, now.Add(window))
	return n
}

// look looks whether the state of a limit is another one by now.
func (sh *shares) look(l *limits.Limiter, id []byte, one *share, now time.Time) {
	state := l.State(id)
	if state == one.state {
		return
	}
	if !state.Whole(now) || !one.state.Whole(now) {
		sh.version++
		one.version = sh.version
		if state.Begins(&one.state) {
			one.epoch = one.version
		}
	}
	one.state = state
}

func (s *Syncer) snapshot(one *share, acked int64, now time.Time) *bucket.Snapshot {
	n := &bucket.Snapshot{Start: s.cluster.Incarnation(), Epoch: one.epoch, Version: one.version, Acked: acked}
	n.Set(one.state, now)
	return n
}

// Receive counts what a node reports, once, and gives the states of which it keeps copies. Debts of limits that another
// node owns by now go on to that.
func (s *Syncer) Receive(node string, report *wire.Report) *wire.StateUpdate {
	debts := s.readable(report)
	isNew := s.received.once(report.Start, report.Seq, func() {
		for i := range debts {
			s.receiveOne(&report.Debts[debts[i].place], debts[i].id, &debts[i].Debt)
		}
		s.TakeOver(report.States)
	})
	s.metrics.receive(report, isNew)
	if report.Handed != "" {
		s.cluster.HandoverDone(node, strings.Clone(report.Handed)) // the report is read in memory that others get
	}
	answer := &wire.StateUpdate{States: []wire.KeyedState{}}
	for i := range debts {
		id, o := debts[i].id, &report.Debts[debts[i].place]
		if o.Copy && s.owns(self, id) {
			// A new report is repeated until its sender has heard an answer.
			n := s.share(id, time.Duration(o.Duration), node, report.Start, isNew)
			answer.States = append(answer.States, wire.KeyedState{Key: o.Key, Snapshot: *n})
		}
	}
	return answer
}

// A reported is one debt of a report.
type reported struct {
	bucket.Debt
	id    []byte
	place int // in the report
}

// readable returns those debts of a report that can be.
func (s *Syncer) readable(report *wire.Report) []reported {
	now := s.limiter.Now()
	debts := make([]reported, 0, len(report.Debts))
	for i := range report.Debts {
		o := &report.Debts[i]
		d, err := o.Debt(now)
		if err != nil {
			s.metrics.dropped(droppedInvalid, max(1, o.Hits))
			s.loud.Warn().Err(err).Msg("a peer reports what can't be")
			continue
		}
		debts = append(debts, reported{d, o.AppendID(nil), i})
	}
	return debts
}

func (s *Syncer) receiveOne(o *wire.Debt, id []byte, d *bucket.Debt) {
	now := s.limiter.Now()
	if node, known := s.cluster.Owner(id); known && node != self {
		s.passOn(id, d, node, now)
		return
	}
	if o.Start == s.cluster.Incarnation() && o.Epoch < s.shares.epoch(s.limiter, id, now) {
		s.metrics.dropped(droppedReset, d.Hits(now))
		return
	}
	s.count(id, d)
}

// passOn owes to another node what was owed to this one.
func (s *Syncer) passOn(id []byte, d *bucket.Debt, node string, now time.Time) {
	sh := s.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.add(id)
	if e == nil {
		s.metrics.dropped(droppedFull, d.Hits(now))
		return
	}
	s.metrics.dropped(droppedAlgorithm, e.gathered.Merge(d, now))
	e.gathered.from = source{}
	s.lineUp(e, id, s.owner(node))
}

// epoch returns the present one of a limit; 0 if no node has a copy.
func (sh *shares) epoch(l *limits.Limiter, id []byte, now time.Time) int64 {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	one, ok := sh.known.Get(unsafe.String(&id[0], len(id)))
	if !ok {
		return 0
	}
	sh.look(l, id, one, now)
	return one.epoch
}

// A notice is what one node is to be told.
type notice struct {
	states   wire.StateUpdate
	versions []int64
	bytes    int
}

func (n *notice) full() bool { return len(n.versions) == maxReport || n.bytes >= maxBytes }

// publish tells the nodes that keep copies what has changed: all of it, or as far as was told. Each is told one thing
// at a time; whoever can't be is told again.
func (s *Syncer) publish(ctx context.Context, calls *sync.WaitGroup, all bool) {
	if s.shares.number.Load() == 0 {
		return
	}
	keys := s.shares.toLookAt(all)
	notices := map[string]*notice{}
	for part := range slices.Chunk(keys, 256) { // checks wait for the lock
		s.collect(notices, part)
	}
	for node, n := range notices {
		calls.Go(func() {
			err := s.cluster.Publish(ctx, node, &n.states)
			s.metrics.publish(err)
			s.told(node, n, err)
		})
	}
}

func (sh *shares) toLookAt(all bool) []string {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if all {
		return sh.known.Keys()
	}
	return slices.Collect(maps.Keys(sh.dirty))
}

// collect adds what is to be told of some limits to whom.
func (s *Syncer) collect(notices map[string]*notice, keys []string) {
	sh := &s.shares
	acked := s.received.all() // before any state is looked at, as in Share
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.limiter.Now()
	for _, key := range keys {
		one, ok := sh.known.Peek(key)
		if !ok {
			delete(sh.dirty, key)
			continue
		}
		if !s.owns(self, bytesOf(key)) {
			one.holders = nil // the new owner tells them
		}
		sh.look(s.limiter, bytesOf(key), one, now)
		if s.noteHolders(notices, key, one, acked, now) {
			sh.dirty[key] = struct{}{}
		} else {
			delete(sh.dirty, key)
		}
		if len(one.holders) == 0 {
			sh.known.Remove(key)
			sh.number.Store(int64(sh.known.Len()))
		}
	}
}

// noteHolders adds one limit to what its holders are to be told. It is true while one of them is behind.
func (s *Syncer) noteHolders(notices map[string]*notice, key string, one *share, acked map[int64]int64,
	now time.Time) (behind bool) {
	one.holders = slices.DeleteFunc(one.holders, func(h holder) bool {
		return now.After(h.until) || !s.cluster.Knows(h.node)
	})
	for i := range one.holders {
		h := &one.holders[i]
		if h.told >= one.version {
			continue
		}
		behind = true
		n := notices[h.node]
		if n == nil && s.shares.busy[h.node] || n != nil && n.full() {
			continue
		}
		if n == nil {
			n = new(notice)
			notices[h.node] = n
			s.shares.busy[h.node] = true
		}
		n.bytes += messageBytes(key)
		n.versions = append(n.versions, one.version)
		n.states.States = append(n.states.States, wire.KeyedState{Key: wire.KeyOf(key),
			Snapshot: *s.snapshot(one, acked[h.start], now)})
	}
	return behind
}

// told notes what a node was told, or that it couldn't be.
func (s *Syncer) told(node string, n *notice, err error) {
	sh := &s.shares
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.busy, node)
	if err != nil {
		return
	}
	var id []byte
	for i := range n.states.States {
		id = n.states.States[i].AppendID(id[:0])
		one, ok := sh.known.Peek(unsafe.String(&id[0], len(id)))
		if !ok {
			continue
		}
		for j := range one.holders {
			if h := &one.holders[j]; h.node == node {
				h.told = max(h.told, n.versions[i])
			}
		}
	}
}

// received remembers which reports were counted.
type received struct {
	mu   sync.Mutex // guards seqs
	seqs *simplelru.LRU[int64, int64]
	busy sync.Mutex // held while a report is counted
}

// maxSenders bounds the processes whose reports are remembered: those of all nodes, through many restarts.
const maxSenders = 10_000

func (r *received) init() { r.seqs, _ = simplelru.NewLRU[int64, int64](maxSenders, nil) }

// last returns the number of the last report of a sender that was counted; 0 for none.
func (r *received) last(start int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq, _ := r.seqs.Get(start)
	return seq
}

// all returns that of all senders.
func (r *received) all() map[int64]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[int64]int64, r.seqs.Len())
	for _, start := range r.seqs.Keys() {
		all[start], _ = r.seqs.Peek(start)
	}
	return all
}

// once counts a report if it is new, and nobody else's meanwhile.
func (r *received) once(start, seq int64, count func()) (isNew bool) {
	r.busy.Lock()
	defer r.busy.Unlock()
	if seq <= r.last(start) {
		return false
	}
	count()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seqs.Add(start, seq)
	return true
}
