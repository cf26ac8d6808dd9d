package peers

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"weir/limits/wire"
)

// Leave takes this node out of the ring: the nodes that take over count from now on. It reports false if there is no
// other node in the ring, and then nothing changes.
func (s *Set) Leave() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.View(); v == nil || v.self != "" && v.Nodes() < 2 {
		return false
	}
	s.leaving = true
	s.rebuildLocked()
	return true
}

// TellLeaving tells all peers that this node leaves, which any call would, and waits until they know or ctx ends.
func (s *Set) TellLeaving(ctx context.Context) {
	var calls sync.WaitGroup
	for _, p := range s.View().peers {
		if !p.down() {
			calls.Go(func() { p.tell(ctx, wire.LeavePath, struct{}{}, new(struct{})) })
		}
	}
	calls.Wait()
}

// observeRestart notes that a listed node is about to leave, or that another incarnation of it is there. When it
// returns the view shows that, also if another caller has noted it.
func (s *Set) observeRestart(from string, h http.Header) {
	incarnation, err := strconv.ParseInt(h.Get(wire.HeaderStart), 10, 64)
	v, leaving := s.View(), h.Get(wire.HeaderLeaving) != ""
	p := v.peer(from)
	if err != nil || p == nil || p.incarnation.Load() == incarnation && (!leaving || v.lacks(p)) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probes.closed() || !p.listed() || incarnation == p.previous {
		return
	}
	was := p.incarnation.Load()
	switch {
	case leaving:
		p.setLeftLocked(incarnation)
	case was != incarnation && p.leftIn.Load() != incarnation:
		p.comeBackLocked()
	}
	if was != incarnation {
		p.previous = was
		p.incarnation.Store(incarnation)
	}
}

// setLeftLocked takes a node that is about to stop out of the ring, until another incarnation of it is there. The Set
// is locked.
func (p *Peer) setLeftLocked(incarnation int64) {
	if p.leftIn.Swap(incarnation) == incarnation {
		return
	}
	p.log.Info().Msg("a peer is about to stop; others take over its limits")
	p.set.rebuildLocked()
	p.probeSuccessor(incarnation)
}

// comeBackLocked takes a node into the ring again that had left. A new incarnation of one that hadn't left has lost
// what the one before knew. The Set is locked.
func (p *Peer) comeBackLocked() {
	switch {
	case p.leftIn.Swap(0) != 0:
		p.log.Info().Msg("a peer is back")
		p.set.rebuildLocked()
	case p.incarnation.Load() != 0:
		p.set.abruptRestarts.Inc()
		p.log.Warn().Msg("a peer has been restarted without handing over: what it counted is lost")
	}
}
