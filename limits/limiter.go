package limits

import (
	"context"
	"hash/maphash"
	"math"
	"math/bits"
	"runtime"
	"strings"
	"sync"
	"time"

	"weir/limits/bucket"
	"weir/limits/wire"
)

// A Limiter keeps the states of many limits and decides on them. It is safe for concurrent use: requests for one limit
// are decided one after the other, each exactly; requests for different limits hardly ever wait for each other.
//
// It holds a bounded number of states. When it is full it forgets limits that are whole, which loses nothing; then
// those that have not been used for long, which start anew when they are asked for again; and last those with nothing
// left, so that a flood of new keys doesn't free callers that are blocked. [Limiter.Stats] counts all of it.
type Limiter struct {
	now    func() time.Time
	zones  *bucket.Zones
	seed   maphash.Seed
	shards []shard
}

// shardSize is the most states in one shard: few enough that a sweep of one holds its lock for a fraction of a
// millisecond, many enough that the shards fill evenly, and a little less than fit into one of a map's tables of 1,024
// slots.
const (
	shardSize = 850
	maxShards = 1 << 16 // with more states than for so many, shards are larger, up to maxEntries
)

// New returns a Limiter for at most size states, which asks now for the time. now must be quick, since a lock may be
// held, and safe for concurrent use. New panics unless size is positive.
func New(size int, now func() time.Time) *Limiter {
	if size < 1 {
		panic("limits.New: size must be positive")
	}
	count := min((size-1)/shardSize+1, maxShards)
	l := &Limiter{now: now, zones: bucket.NewZones(), seed: maphash.MakeSeed(), shards: make([]shard, count)}
	for i := range l.shards {
		l.shards[i].init(min(size*(i+1)/count-size*i/count, maxEntries))
	}
	return l
}

// Check decides on r now. An invalid r results in StatusError and changes nothing.
func (l *Limiter) Check(r Request) (result Result) {
	l.check(&r, new(moment), &result)
	return result
}

// CheckAll is Check for many requests: it sets results, which must be as many, to what Check would return. It looks at
// the clock less often. Still a decision on a limit is never dated before an earlier one on the same limit, whichever
// goroutines make them, unless the clock itself has been set back.
func (l *Limiter) CheckAll(requests []Request, results []Result) {
	var m moment
	for i := range requests {
		l.check(&requests[i], &m, &results[i])
	}
}

func (l *Limiter) check(r *Request, m *moment, result *Result) {
	var q bucket.Query
	if err := q.PrepareWithoutID(r, l.zones); err != nil {
		*result = Result{Error: err.Error()}
		return
	}
	l.decideByName(r.Name, r.UniqueKey, &q, m, result)
}

// decideByName decides on q for the limit that name and key name. Short ones, which are usual, take a small buffer,
// since a buffer is cleared each time.
func (l *Limiter) decideByName(name, key string, q *bucket.Query, m *moment, result *Result) {
	if len(name)+len(key) < 128 {
		var id [128]byte
		l.decide(bucket.AppendID(id[:0], name, key), q, m, result)
		return
	}
	var id [bucket.MaxIDBytes]byte
	l.decide(bucket.AppendID(id[:0], name, key), q, m, result)
}

// Prepare makes q the query of r, for CheckPrepared and what else takes one, and uses the memory that q has. The error
// names the field of r that is wrong; q must not be used then.
func (l *Limiter) Prepare(r *Request, q *bucket.Query) error { return q.Prepare(r, l.zones) }

// CheckPrepared is CheckAll for requests that were prepared: it decides on those queries whose indexes are in which, in
// that order, and sets the results of the same indexes.
func (l *Limiter) CheckPrepared(queries []bucket.Query, which []int, results []Result) {
	var m moment
	for _, i := range which {
		l.decide(queries[i].ID, &queries[i], &m, &results[i])
	}
}

// A moment is the time of some decisions in a row. The zero moment begins with the next.
type moment struct {
	now  int64
	left int // decisions for which now will do
}

// momentLasts bounds the decisions for which one look at the clock will do. A look takes a third of a decision's time.
const momentLasts = 16

// decide decides on q. The id is not taken from q, by which it would escape to the heap.
func (l *Limiter) decide(id []byte, q *bucket.Query, m *moment, result *Result) {
	if m.left == 0 {
		*m = moment{l.now().UnixNano(), momentLasts}
	}
	m.left--
	s := l.shardOf(id)
	s.mu.Lock()
	if m.now < s.latest { // another goroutine was quicker; or the clock has been set back, which only a new look can tell
		m.now = l.now().UnixNano()
	}
	s.latest = m.now
	s.decide(textOf(id), q, m.now, result)
	s.mu.Unlock()
}

// OnChange has f called with each state that has changed, as it is then: for programs that keep a copy elsewhere. A
// limit that has become whole, or has been forgotten to make room, has neither Used nor Rest. OnChange must be called
// before the Limiter is used. f runs under a lock, so it must be quick and must not use the Limiter.
func (l *Limiter) OnChange(f func(KeyedState)) {
	for i := range l.shards {
		l.shards[i].changed = f
	}
}

// Now returns the Limiter's time.
func (l *Limiter) Now() time.Time { return l.now() }

func (l *Limiter) shardOf(id []byte) *shard {
	i, _ := bits.Mul64(maphash.Bytes(l.seed, id), uint64(len(l.shards)))
	return &l.shards[i]
}

// sweepEvery is the time in which Run looks at every shard once: in portions of sweepAtOnce, or, where that makes too
// many, in sweepAtTimes portions. A shard takes microseconds where little is due, and a tenth of a millisecond where
// all is.
const (
	sweepEvery   = 4 * time.Second
	sweepAtOnce  = 4
	sweepAtTimes = 500
)

// Run sweeps at intervals until ctx ends.
func (l *Limiter) Run(ctx context.Context) {
	parts := min((len(l.shards)-1)/sweepAtOnce+1, sweepAtTimes)
	tick := time.NewTicker(sweepEvery / time.Duration(parts))
	defer tick.Stop()
	for part := 0; ; part = (part + 1) % parts {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.sweep(l.shards[len(l.shards)*part/parts : len(l.shards)*(part+1)/parts])
		}
	}
}

// Sweep forgets all limits that are whole again. It holds no lock for longer than one shard takes. Without it (or Run)
// they go when they are asked for again, or when their place is needed.
func (l *Limiter) Sweep() { l.sweep(l.shards) }

func (l *Limiter) sweep(shards []shard) {
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		due := s.sweepDue(s.read(l.now))
		if due {
			s.sweep(s.latest)
		}
		s.mu.Unlock()
		if due {
			runtime.Gosched() // requests first
		}
	}
}

// Stats are the counts of a [Limiter] since it was made, except Entries, which is the present number.
type Stats struct {
	Entries        int    // states held
	Expired        uint64 // states that went because their limit was whole again
	EvictedUsed    uint64 // states of used limits that went because their place was needed
	EvictedDrained uint64 // the same, of limits with nothing left: these callers got a new budget
}

// Stats returns the counts now.
func (l *Limiter) Stats() Stats {
	var sum Stats
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		sum.Entries += s.expiries.size
		sum.Expired += s.stats.Expired
		sum.EvictedUsed += s.stats.EvictedUsed
		sum.EvictedDrained += s.stats.EvictedDrained
		s.mu.Unlock()
	}
	return sum
}

// A shard is one part of the states under one lock. What all decisions use comes first, and fills one cache line.
type shard struct {
	mu      sync.Mutex // guards all below
	latest  int64      // when the last decision was (Unix nanoseconds), and so the least that the clock can show now
	states  store
	changed func(wire.KeyedState) // is told of changes; may be nil

	expiries expiryIndex
	size     int
	drained  int   // states marked drained
	due      int64 // no state runs out before (Unix nanoseconds)
	swept    int64 // when the last sweep was
	stats    Stats

	_ [32]byte // up to the end of a cache line
}

func (s *shard) init(size int) {
	s.states, s.size, s.due = newStore(size), size, math.MaxInt64
}

// read reads the clock.
func (s *shard) read(clock func() time.Time) (now int64) {
	s.latest = clock().UnixNano()
	return s.latest
}

// decide makes the step for the state of id, which it copies if it has to keep it.
func (s *shard) decide(id string, q *bucket.Query, now int64, result *Result) {
	held := s.states.get(id)
	if held == nil {
		if next := bucket.Step(bucket.State{}, q, now, result); !next.Empty() {
			s.add(id, next, now)
		}
		return
	}
	if next := bucket.Step(held.State, q, now, result); next.Empty() {
		s.remove(held, now, &s.stats.Expired)
	} else {
		s.replace(held, next, now)
		if q.Hits < 0 {
			s.schedule(held, now)
		}
	}
}

func (s *shard) replace(held *record, next bucket.State, now int64) {
	if s.changed != nil && held.State != next {
		s.tell(held.id(), next, now)
	}
	s.countDrained(&held.State, -1)
	s.countDrained(&next, +1)
	was := held.State
	held.State = next
	if next.MayEndBefore(&was) {
		s.schedule(held, now)
	}
}

// schedule has a sweep look at held when it runs out.
func (s *shard) schedule(held *record, now int64) { s.expiries.update(held, s.dueOf(&held.State, now)) }

// dueOf returns when a sweep is to look at st.
func (s *shard) dueOf(st *bucket.State, now int64) tick {
	due := min(st.Expiry(), now+horizon)
	s.due = min(s.due, due)
	return tickOf(due)
}

// tell tells of what has become of id.
func (s *shard) tell(id string, st bucket.State, now int64) {
	if s.changed == nil {
		return
	}
	var n wire.KeyedState
	n.Set(st, time.Unix(0, now))
	n.Key = wire.KeyOf(strings.Clone(id))
	s.changed(n)
}

func (s *shard) add(id string, next bucket.State, now int64) {
	if s.expiries.size >= s.size {
		s.makeRoom(now)
	}
	s.expiries.add(s.states.add(id, next), s.dueOf(&next, now))
	s.countDrained(&next, +1)
	s.tell(id, next, now)
}

func (s *shard) countDrained(st *bucket.State, by int) {
	if st.Drained() {
		s.drained += by
	}
}

const (
	sweepAtMost = int64(time.Second) // a full shard with short limits must not be swept for every new key
	spareAtMost = 32                 // how many drained limits an eviction passes over
)

func (s *shard) sweepDue(now int64) bool {
	return s.expiries.size > 0 && s.due <= now
}

// sweep removes what is whole. It looks at what may be, and where it comes so late that ticks have lost their meaning,
// at all.
func (s *shard) sweep(now int64) {
	all := now-s.due > horizon
	today, next := tickOf(now), horizon>>tickBits
	s.swept, s.due = now, math.MaxInt64
	for i := s.expiries.size - 1; i >= 0; i-- { // backwards, since the last takes the place of one that goes
		held, due := s.expiries.at(i)
		switch ahead := due.ahead(today); {
		case ahead > 0 && !all:
			next = min(next, ahead)
		case held.Expiry() <= now:
			s.remove(held, now, &s.stats.Expired)
		default:
			s.schedule(held, now)
		}
	}
	s.due = min(s.due, (now>>tickBits+next)<<tickBits)
}

func (s *shard) remove(held *record, now int64, count *uint64) {
	s.expiries.remove(held)
	s.states.remove(held)
	s.countDrained(&held.State, -1)
	s.tell(held.id(), bucket.State{}, now)
	*count++
}

// makeRoom removes at least one state: the whole ones if it can, else the oldest that isn't drained, else the oldest.
// Drained ones that it passes over become the newest, which costs nothing and lets the next call begin behind them.
// Where they fill half of the shard they have no such privilege, or one caller could fill the cache with limits of its
// own.
func (s *shard) makeRoom(now int64) {
	if s.due <= now && (now-s.swept >= sweepAtMost || now < s.swept) {
		if s.sweep(now); s.expiries.size < s.size {
			return
		}
	}
	for passed := 0; ; passed++ {
		held := s.states.oldest()
		switch {
		case held.Expiry() <= now:
			s.remove(held, now, &s.stats.Expired)
			return
		case !held.Drained():
			s.remove(held, now, &s.stats.EvictedUsed)
			return
		case passed == spareAtMost, 2*s.drained > s.size:
			s.remove(held, now, &s.stats.EvictedDrained)
			return
		}
		s.states.renew(held)
	}
}
