package peers

import (
	"sync"
	"sync/atomic"
	"time"
)

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
