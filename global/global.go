// Package global keeps the counts of one limit on many nodes in step. Only the owner of a limit changes its state; what
// other nodes take without asking it is a debt, of which they tell it.
//
// Two kinds of nodes do that. Those that answer for a GLOBAL limit from a copy of the owner's state ([Syncer.Check]),
// within an allowance that bounds how far the cluster can exceed the limit; and those that count because the owner
// can't be reached ([Syncer.Count]). Debts travel in numbered reports, one at a time to each owner, and each is counted
// once, however often its report has to be repeated. The owner tells whoever keeps a copy when the state has changed.
//
// The way of a hit: Check takes it from the copy and adds it to the debt, a round sends the debt in a report, the
// owner's [Syncer.Receive] counts it, and its answer is the new copy, on which what was taken meanwhile is put again.
package global

import (
	"context"
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
)

// A Cluster is what a [Syncer] needs to know of the other nodes. Nodes are called by their names.
type Cluster interface {
	// Owner returns the node that owns the limit which id names, "" if it is this one; false while that is unknown.
	Owner(id []byte) (node string, known bool)

	// Nodes returns the number of nodes.
	Nodes() int

	// Knows reports whether a node is part of the cluster.
	Knows(node string) bool

	// Incarnation returns a number that tells this process from earlier ones of this node. Other nodes see it in all
	// calls.
	Incarnation() int64

	// Ring returns a text that is the same for the same ring, "" before there is one, and the other nodes in it.
	Ring() (fingerprint string, others []string)

	// TakeOwnershipLoss reports whether this node has owned something since the last call that it doesn't own now. For the
	// first call it may have, if there is anything that it doesn't own. It may wait for checks that are being counted, so
	// callers must hold no lock.
	TakeOwnershipLoss() bool

	// HandoverDone takes note that a node has handed over all limits that it doesn't own in a ring.
	HandoverDone(node, ring string)

	// Report sends a report and gives the answer.
	Report(ctx context.Context, node string, report *wire.Report) (*wire.StateUpdate, error)

	// Publish tells a node how limits of ours have changed.
	Publish(ctx context.Context, node string, states *wire.StateUpdate) error
}

// Options says how a [Syncer] works. Zero values of all but Limiter and Cluster are useful.
type Options struct {
	Limiter  *limits.Limiter // counts what this node owns, and knows the time
	Away     *limits.Limiter // counts what others own while they can't; nil for one of Size limits
	Cluster  Cluster
	Interval time.Duration  // between reports, and between publications; 0 means 100 ms
	Slack    float64        // the part of a limit that all nodes together may take before its owner knows; from 0 to 1
	Size     int            // limits to keep copies or debts of, and own limits that others have copies of; 0 means 100,000
	Log      zerolog.Logger // the zero Logger discards
}

// A Syncer is one node's part in keeping counts in step. It is safe for concurrent use.
type Syncer struct {
	limiter  *limits.Limiter
	cluster  Cluster
	interval time.Duration
	slack    uint64 // in millionths
	began    time.Time
	loud     zerolog.Logger // for what must be seen, but not a thousand times a second
	metrics  *metrics

	shards []shard       // of copies and debts, a power of two of them
	seed   maphash.Seed  // for the choice among them
	owners sync.Map      // string: *owner, with all that this node owes
	seq    atomic.Int64  // of the last report, to whomever
	wake   chan struct{} // has one to take when a report is to go early

	away     *limits.Limiter // counts what this node doesn't own
	shares   shares
	received received
	moves    moves
}

// New makes a Syncer that sends nothing before Run or Sync does.
func New(o Options) *Syncer {
	if o.Interval == 0 {
		o.Interval = 100 * time.Millisecond
	}
	if o.Size == 0 {
		o.Size = 100_000
	}
	s := &Syncer{
		limiter: o.Limiter, cluster: o.Cluster, interval: o.Interval, began: time.Now(),
		slack: uint64(math.Round(max(0, min(o.Slack, 1)) * slackUnit)),
		loud:  o.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Second}),
		// Fewer than 64 limits in a shard would fill unevenly, and more than 64 shards serve no machine.
		shards: make([]shard, 1<<(bits.Len(uint(min(o.Size/64, 64))|1)-1)), seed: maphash.MakeSeed(),
		wake: make(chan struct{}, 1),
	}
	for i := range s.shards {
		s.shards[i].init(max(1, o.Size/len(s.shards)))
	}
	if s.away = o.Away; s.away == nil {
		s.away = limits.New(o.Size, o.Limiter.Now)
	}
	s.shares.init(o.Size)
	s.moves.init()
	s.received.init()
	s.newMetrics()
	return s
}

// lookEvery is how many rounds pass from one look at everything to the next. The others see only what was told to have
// changed.
const lookEvery = 10

// Run sends reports and publications at every interval, and reports also when Check wants one to go early, until ctx
// ends. It waits for the calls on their way then, which ctx ends, too; so call Sync once more to leave nothing behind.
func (s *Syncer) Run(ctx context.Context) {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	calls.Go(func() { s.away.Run(ctx) })
	for round := 1; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			s.eachOwner(func(o *owner) {
				if o.due.Load() {
					calls.Go(func() { s.tryReport(ctx, o) })
				}
			})
		case <-tick.C:
			calls.Go(s.tryNoticeRing)
			if round%lookEvery == 0 {
				s.eachOwner(s.forgetEnded)
			}
			s.tryReport(ctx, s.owner(self))
			s.eachOwner(func(o *owner) { calls.Go(func() { s.tryReport(ctx, o) }) })
			s.publish(ctx, &calls, round%lookEvery == 0)
		}
	}
}

// Sync reports all debts and publishes all changes now, and waits until that is done or has failed. What failed is
// tried again by the next. The error is the first that was met.
func (s *Syncer) Sync(ctx context.Context) error {
	if err := s.moves.scanning.take(ctx); err != nil {
		return err
	}
	var calls sync.WaitGroup
	var first sync.Once
	var err error
	s.noticeRing(true)
	s.moves.scanning.leave()
	s.tryReport(ctx, s.owner(self))
	s.eachOwner(func(o *owner) {
		calls.Go(func() {
			failed := o.sending.take(ctx)
			if failed == nil {
				failed = s.report(ctx, o)
				o.sending.leave()
			}
			if failed != nil {
				first.Do(func() { err = failed })
			}
		})
	})
	calls.Wait()
	s.publish(ctx, &calls, true)
	calls.Wait()
	return err
}

const slackUnit = 1_000_000

// allowance returns how many hits of q's limit this node may take before the owner knows of them, so that all nodes
// together exceed the limit by no more than the slack. A bucket that is less deep than the limit is high bounds it
// further.
func (s *Syncer) allowance(q *bucket.Query) int64 {
	hi, lo := bits.Mul64(uint64(q.AtOnce()), s.slack)
	share, _ := bits.Div64(hi, lo, slackUnit*uint64(max(1, s.cluster.Nodes())))
	return int64(share)
}
