package peers

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	failuresToDown = 3                // failures in a row after which a peer is not asked for a while
	silenceToOut   = 3 * time.Second  // without any answer after which others stand in
	againWithin    = time.Minute      // an outage so soon after the last one is a further one
	firstWait      = 2 * time.Second  // how long a further outage lasts at least; then double, and so on
	longestWait    = 60 * time.Second // the end of doubling
)

// A breaker keeps an account of one peer's health: up; down, when it isn't asked and only the first calls have paid for
// its silence; out, when others stand in for it. Probes bring it back. It is safe for concurrent use.
type breaker struct {
	mu          sync.Mutex // guards all below
	failing     int        // failures since the last answer
	since       time.Time  // of the first of them in a row without a long pause
	last        time.Time  // of the last of them
	isDown      bool
	isOut       bool
	probing     bool      // somebody probes
	unreachable bool      // the last failure was that there was no connection
	outages     int       // in a row, each soon after the one before
	outAt       time.Time // when it was put out last
	back        time.Time // when it came back last

	// Every check asks these two, so they are there to be read without the lock.
	down atomic.Bool // leave the peer alone
	away atomic.Bool // others have to count for the peer: it is out, or down and not even connected
}

func (b *breaker) publishLocked() {
	b.down.Store(b.isDown)
	b.away.Store(b.isOut || b.isDown && b.unreachable)
}

// failed notes a call without an answer. It gives true if the peer is down with it, so that somebody has to probe it.
func (b *breaker) failed(now time.Time, unreachable bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.publishLocked()
	if b.failing++; b.failing == 1 || !b.isDown && now.Sub(b.last) >= silenceToOut {
		b.since = now // nobody asked in between, so that silence says nothing
	}
	b.last = now
	b.unreachable = unreachable
	if b.isDown && !b.isOut && now.Sub(b.since) >= silenceToOut {
		b.putOutLocked(now)
	}
	if b.isDown || b.failing < failuresToDown {
		return false
	}
	b.isDown = true
	again := b.probing
	b.probing = true
	return !again
}

func (b *breaker) putOutLocked(now time.Time) {
	if b.back.IsZero() || now.Sub(b.back) > againWithin {
		b.outages = 0
	}
	b.isOut, b.outAt = true, now
	b.outages++
}

// answered notes an answer.
func (b *breaker) answered(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answeredLocked(now)
}

// probed notes an answer to a probe. It gives true if that was the last one, since the peer is up.
func (b *breaker) probed(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answeredLocked(now)
	b.probing = b.isDown
	return !b.probing
}

func (b *breaker) answeredLocked(now time.Time) {
	if b.isOut && now.Sub(b.outAt) < b.waitLocked() {
		return
	}
	if b.isOut {
		b.back = now
	}
	b.failing, b.isDown, b.isOut, b.unreachable = 0, false, false, false
	b.publishLocked()
}

// waitLocked is how long the peer stays out at least: nothing the first time, so that a restart is over when it is over;
// more and more for one that comes and goes, since each coming and going costs every limit it owns.
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

// state gives the peer's health in a word, and since when it fails.
func (b *breaker) state() (string, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.isOut:
		return "out", b.since
	case b.isDown:
		return "down", b.since
	case b.failing > 0:
		return "failing", b.since
	}
	return "up", time.Time{}
}
