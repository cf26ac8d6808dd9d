package peers

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A PeerState is how a peer stands, as this node sees it.
type PeerState int32

// The states of a peer. Calls fail at once while it is StateDown or StateOut.
const (
	StateUp      PeerState = iota // it answers
	StateFailing                  // its last calls failed, and it is still asked
	StateDown                     // too many failed in a row: only probes ask it
	StateOut                      // it has been silent for so long that stand-ins count for it
	StateLeft                     // it said that it is about to stop: others have taken over its limits
)

var stateNames = [...]string{"up", "failing", "down", "out", "left"}

// String returns the state's word in /v1/peers and in the metrics.
func (s PeerState) String() string { return stateNames[s] }

// MarshalText returns the same word for JSON. It never fails.
func (s PeerState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

const (
	failuresToDown = 3                // failures in a row after which a peer is not asked for a while
	silenceToOut   = 3 * time.Second  // without any answer after which stand-ins count
	againWithin    = time.Minute      // an outage so soon after the last one is a further one
	firstWait      = 2 * time.Second  // how long a further outage lasts at least; then double, and so on
	longestWait    = 60 * time.Second // the end of doubling
)

// A breaker keeps an account of one peer's health, from StateUp to StateOut. Because of it only the first calls pay for
// a peer's silence; probes bring the peer back. It is safe for concurrent use.
type breaker struct {
	mu          sync.Mutex // guards all below, and writing the state
	failing     int        // failures since the last answer
	since       time.Time  // of the first of them in a row without a long pause
	last        time.Time  // of the last of them
	probing     bool       // probes are running
	unreachable bool       // the last failure was that there was no connection
	outages     int        // in a row, each soon after the one before
	outAt       time.Time  // when it was put out last
	back        time.Time  // when it came back last

	// Every check asks these two, so they can be read without the lock.
	current atomic.Int32 // a PeerState
	away    atomic.Bool  // stand-ins count for the peer: it is out, or down and not even connected
}

// state returns the peer's health. It takes no lock.
func (b *breaker) state() PeerState { return PeerState(b.current.Load()) }

func (b *breaker) setStateLocked(s PeerState) {
	b.current.Store(int32(s))
	b.away.Store(s == StateOut || s == StateDown && b.unreachable)
}

// failed notes a call without an answer. It reports whether probes have to begin: the peer is down with this failure.
func (b *breaker) failed(now time.Time, unreachable bool) (begins bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.state()
	if b.failing++; b.failing == 1 || state < StateDown && now.Sub(b.last) >= silenceToOut {
		b.since = now // no call was made in between, so that the silence says nothing
	}
	b.last, b.unreachable = now, unreachable
	switch {
	case state < StateDown && b.failing < failuresToDown:
		state = StateFailing
	case state < StateDown:
		state, begins, b.probing = StateDown, !b.probing, true
	case state == StateDown && now.Sub(b.since) >= silenceToOut:
		state = StateOut
		b.countOutageLocked(now)
	}
	b.setStateLocked(state)
	return begins
}

func (b *breaker) countOutageLocked(now time.Time) {
	if b.back.IsZero() || now.Sub(b.back) > againWithin {
		b.outages = 0
	}
	b.outages++
	b.outAt = now
}

// answered notes an answer.
func (b *breaker) answered(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answeredLocked(now)
}

// probed notes an answer to a probe. It reports whether the peer is up, so that this was the last probe.
func (b *breaker) probed(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answeredLocked(now)
	b.probing = b.state() >= StateDown
	return !b.probing
}

func (b *breaker) answeredLocked(now time.Time) {
	if b.state() == StateOut {
		if now.Sub(b.outAt) < b.waitLocked() {
			return
		}
		b.back = now
	}
	b.failing, b.unreachable = 0, false
	b.setStateLocked(StateUp)
}

// waitLocked returns how long the peer stays out at least: no time for its first outage, so that a restart is over when
// it is over; more and more for a peer that comes and goes, since each coming and going costs every limit it owns.
func (b *breaker) waitLocked() time.Duration {
	if b.outages < 2 {
		return 0
	}
	wait := firstWait
	for i := 2; i < b.outages && wait < longestWait; i++ {
		wait *= 2
	}
	return min(wait, longestWait)
}

// status returns the peer's health and since when it fails: the zero time while it is up.
func (b *breaker) status() (PeerState, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state() == StateUp {
		return StateUp, time.Time{}
	}
	return b.state(), b.since
}

// ProbeEvery is how often, on average, a peer that is down is asked whether it is up again.
const ProbeEvery = 300 * time.Millisecond

// probes are the background calls of a Set. They are safe for concurrent use.
type probes struct {
	mu      sync.Mutex      // held while one starts and while all are cancelled, so that none starts afterwards
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// start calls again at intervals in the background until it returns false or the probes are closed. It reports false if
// they are closed already.
func (b *probes) start(again func(ctx context.Context) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed() {
		return false
	}
	b.running.Go(func() {
		for b.pause() && again(b.ctx) {
		}
	})
	return true
}

// pause waits for one interval, and reports false if the probes are closed meanwhile. Intervals have a little jitter,
// so that nodes that lost a peer together don't ask it together.
func (b *probes) pause() bool {
	timer := time.NewTimer(ProbeEvery*3/4 + rand.N(ProbeEvery/2))
	defer timer.Stop()
	select {
	case <-b.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (b *probes) closed() bool { return b.ctx.Err() != nil }

// close cancels all probes and waits until they have ended.
func (b *probes) close() {
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.running.Wait()
}

// probe asks a peer that is down until it is up, or is no longer listed.
func (p *Peer) probe() {
	started := p.set.probes.start(func(ctx context.Context) bool {
		if !p.listed() {
			return false
		}
		if _, err := p.call(ctx, nil); err != nil && err != ErrRefused {
			p.health.failed(time.Now(), err == ErrUnreachable)
			return true
		}
		if !p.health.probed(time.Now()) {
			return true
		}
		p.log.Info().Msg("peer is up")
		return false
	})
	if !started {
		return
	}
	line := p.log.Warn()
	if cause := p.cause.Load(); cause != nil {
		line.Err(*cause)
	}
	line.Msg("peer is down")
}

// probeSuccessor asks a peer that is about to stop until another incarnation of it answers, which any answer shows, or
// it is no longer listed.
func (p *Peer) probeSuccessor(incarnation int64) {
	p.set.probes.start(func(ctx context.Context) bool {
		leaves := p.listed() && p.leftIn.Load() == incarnation
		if leaves {
			p.call(ctx, nil)
		}
		return leaves
	})
}
