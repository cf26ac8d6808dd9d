package global

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
)

// An entry is what this node holds of a limit that another one owns.
type entry struct {
	// The copy: what the owner last said, with all on top that was taken since. It is in the owner's time.
	state  bucket.State
	until  time.Time     // the owner tells of changes until then; zero if there is no copy
	ahead  time.Duration // the owner's clock, compared with ours
	source               // what the owner last said

	gathered debt // what no report holds yet
	frozen   debt // what the present report to the owner holds
	seq      int64
	lined    bool // gathered stands in an owner's line
}

// A source is one state of a limit: the life of the owner's process, what it counts as one, and its place among others.
type source struct{ start, epoch, version int64 }

// A debt is hits, by our clock, and of what state they were taken.
type debt struct {
	bucket.Debt
	from source
}

// forgiven reports whether the hits were taken before the limit began anew, as now says it has.
func (d *debt) forgiven(now source) bool {
	return d.from.start == now.start && d.from.epoch < now.epoch
}

func (e *entry) hasCopy() bool { return !e.until.IsZero() }

// doubt has the copy decide no more while the owner can be asked.
func (e *entry) doubt(now time.Time) {
	if e.hasCopy() && !now.After(e.until) {
		e.until = now.Add(-1)
	}
}

func (e *entry) owes() bool { return !e.gathered.IsZero() || !e.frozen.IsZero() }

// A shard is one part of the entries under one lock.
type shard struct {
	mu      sync.Mutex // guards all below
	entries *simplelru.LRU[string, *entry]
	size    int
	_       [40]byte // so that two shards don't share a cache line
}

func (sh *shard) init(size int) {
	entries, err := simplelru.NewLRU[string, *entry](size, nil)
	if err != nil {
		panic(err) // size is positive
	}
	sh.entries, sh.size = entries, size
}

func (s *Syncer) shardOf(id []byte) *shard {
	return &s.shards[maphash.Bytes(s.seed, id)&uint64(len(s.shards)-1)]
}

// get returns the entry of a limit; nil if there is none.
func (sh *shard) get(id []byte) *entry {
	e, _ := sh.entries.Get(unsafe.String(&id[0], len(id)))
	return e
}

// passAtMost is how many entries that owe a search for room passes over.
const passAtMost = 32

// add returns the entry of a limit, a new one if need be. It is nil where no room is: debts are never dropped for
// something new.
func (sh *shard) add(id []byte) *entry {
	if e := sh.get(id); e != nil {
		return e
	}
	for passed := 0; sh.entries.Len() >= sh.size; passed++ {
		oldest, e, _ := sh.entries.GetOldest()
		switch {
		case !e.owes():
			sh.entries.Remove(oldest)
		case passed == passAtMost:
			return nil
		default:
			sh.entries.Get(oldest) // makes it the newest
		}
	}
	e := new(entry)
	sh.entries.Add(strings.Clone(unsafe.String(&id[0], len(id))), e)
	return e
}

// Check decides on q, whose limit another node owns, from this node's copy. It is false where the owner must be asked,
// which is then to be told to Learn or Missed. While the owner is away, or hasn't answered the last question, the copy
// decides alone, whatever is asked; then it is false only if there is none.
func (s *Syncer) Check(q *bucket.Query, node string, away bool) (result limits.Result, ok bool) {
	o := s.owner(node)
	alone := away || o.silent.Load()
	now := s.limiter.Now()
	sh := s.shardOf(q.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.get(q.ID)
	if e == nil || !e.hasCopy() || !alone && now.After(e.until) {
		return result, false
	}
	if alone {
		result = s.decideAlone(e, q, o, now, true)
	} else if result, ok = s.decide(e, q, o, now); !ok {
		return result, false
	}
	s.label(&result, node, alone)
	return result, true
}

// HasCopy reports whether this node has a copy of a limit, if an old one.
func (s *Syncer) HasCopy(id []byte) bool {
	sh := s.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.get(id)
	return e != nil && e.hasCopy()
}

// label says where an answer comes from.
func (s *Syncer) label(result *limits.Result, node string, alone bool) {
	result.Metadata.Owner, result.Metadata.Source = node, bucket.SourceReplica
	if !alone {
		s.metrics.fromCopy.Inc()
		return
	}
	s.metrics.alone.Inc()
	result.Metadata.Degraded = ownerSilent
}

// ownerSilent is the word in metadata.degraded for answers of a copy whose owner does not answer.
const ownerSilent = "owner_silent"

// decide takes hits from a copy within the allowance. What changes more than the usage of a window is the owner's to
// decide.
func (s *Syncer) decide(e *entry, q *bucket.Query, o *owner, now time.Time) (result limits.Result, ok bool) {
	if q.Hits < 0 || q.Behavior&(limits.ResetRemaining|limits.DrainOverLimit) != 0 {
		return result, false
	}
	next, result, ok := e.state.CheckCopy(q, now.Add(e.ahead))
	if !ok || result.Status != limits.StatusOK || q.Hits == 0 {
		return result, ok
	}
	may, owed := s.allowance(q), e.gathered.Hits(now)+e.frozen.Hits(now)
	if q.Hits > may-owed {
		return result, false
	}
	s.gather(e, q, &next, o, now)
	e.state = next
	if owed+q.Hits > may/2 {
		s.reportSoon(o)
	}
	return result, true
}

// decideAlone takes hits from a copy, whatever they are, and owes them if it may: hits whose fate is unknown must not
// be counted twice. Where the copy has changed in a way that the owner will not hear of, it is the owner's word that
// counts as soon as there is one.
func (s *Syncer) decideAlone(e *entry, q *bucket.Query, o *owner, now time.Time, owe bool) limits.Result {
	at := now.Add(e.ahead)
	next, result, same := e.state.CheckCopy(q, at)
	if q.Hits == 0 && q.Behavior&limits.ResetRemaining == 0 {
		return result
	}
	if !same {
		e.source = source{} // the owner knows nothing of the window that this may begin
	}
	e.state = next
	if owe && takes(q, &result) {
		s.gather(e, q, &next, o, now)
	} else if result.Status == limits.StatusOK || q.Behavior&limits.DrainOverLimit != 0 {
		e.doubt(now)
	}
	return result
}

// takes reports whether a decision has taken hits.
func takes(q *bucket.Query, result *limits.Result) bool {
	return result.Status == limits.StatusOK && q.Hits > 0 && q.Behavior&limits.ResetRemaining == 0
}

// Learn takes over what the owner told of a limit when it was asked, as q did; nil if it told nothing. The copy is good
// as long as the limit takes to be whole again.
func (s *Syncer) Learn(q *bucket.Query, node string, n *bucket.Snapshot) {
	s.heard(s.owner(node))
	s.metrics.asked.Inc()
	if n == nil {
		return
	}
	now := s.limiter.Now()
	sh := s.shardOf(q.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.add(q.ID); e != nil && s.update(e, n, true, now) {
		e.until = now.Add(q.Window())
	}
}

// Missed decides on q from the copy alone, after the owner was asked at a time (of Clock) and did not answer; false if
// there is no copy. Unless the owner has answered something since, copies decide alone from now on until it does.
// counted says that the owner may have counted the hits all the same.
func (s *Syncer) Missed(q *bucket.Query, node string, asked time.Duration, counted bool) (result limits.Result,
	ok bool) {
	o := s.owner(node)
	if time.Duration(o.answered.Load()) < asked {
		o.silent.Store(true)
	}
	now := s.limiter.Now()
	sh := s.shardOf(q.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.get(q.ID)
	if e == nil || !e.hasCopy() {
		return result, false
	}
	result = s.decideAlone(e, q, o, now, !counted)
	s.label(&result, node, true)
	return result, true
}

// Published takes over what a node tells of limits that it owns. That is no answer: who can be heard need not hear.
func (s *Syncer) Published(node string, states *wire.StateUpdate) {
	now := s.limiter.Now()
	var id []byte
	for i := range states.States {
		n := &states.States[i]
		if id = n.AppendID(id[:0]); !s.owns(node, id) {
			continue
		}
		sh := s.shardOf(id)
		sh.mu.Lock()
		if e := sh.get(id); e != nil && e.hasCopy() {
			s.update(e, &n.Snapshot, false, now)
		}
		sh.mu.Unlock()
	}
}

func (s *Syncer) owns(node string, id []byte) bool {
	owner, known := s.cluster.Owner(id)
	return known && owner == node
}

// update makes the copy what the owner says, unless it said something newer before. What is in direct answer to this
// node is from the owner's present life; anything else from another life may be late.
func (s *Syncer) update(e *entry, n *bucket.Snapshot, direct bool, now time.Time) (took bool) {
	from := source{n.Start, n.Epoch, n.Version}
	state, sane := n.State()
	switch {
	case !sane:
		return false
	case from.start == e.start && from.version < e.version:
		return true // a copy all the same
	case from.start != e.start && e.start != 0 && !direct:
		return false
	}
	ahead := time.Unix(0, n.Now).Sub(now)
	if from == e.source {
		ahead = max(ahead, e.ahead) // who says the same later was longer under way
	}
	e.source, e.ahead = from, ahead
	if !e.frozen.IsZero() && n.Acked < e.seq && !e.frozen.forgiven(from) {
		state = s.put(state, &e.frozen, e.ahead, now)
	}
	if e.gathered.forgiven(from) {
		s.metrics.dropped(droppedReset, e.gathered.Hits(now))
		e.gathered = debt{}
	}
	e.state = s.put(state, &e.gathered, e.ahead, now)
	return true
}

// put puts a debt on what the owner said.
func (s *Syncer) put(state bucket.State, d *debt, ahead time.Duration, now time.Time) bucket.State {
	shifted := d.Shift(ahead)
	next, _ := state.Join(&shifted, now.Add(ahead))
	return next
}
