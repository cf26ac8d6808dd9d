package peers

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

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
