// Package peers knows the other nodes of a cluster and calls them. It is outgoing only: what peers ask of this node
// arrives at package server like any other request.
//
// A [Set] makes a [View] of each list of nodes that discovery finds: the ring of those that are present, with a [Peer]
// for each of the others. A check that another node has to count goes this way:
//
//	Set.Hold, View.Owner   the peer that owns the limit by the present list
//	View.StandIn           the peer that counts for it while the owner is Away
//	Peer.Check             fails at once while the peer is down, as its breaker has it
//	batching.Batcher.Do    gathers the groups of several callers into a batch
//	Peer.send, call        writes the batch as one message and reads the results from the answer
//	Peer.deliver, post     makes the HTTP request, and once more where it surely was not processed
//	Peer.conclude          tells the breaker how it went; with the third failure in a row probes begin
//
// In each message both sides also say which ring they have, which process they are and whether that is about to stop.
// [Set.Observe] compares it with what this node knows, which may lead to another View.
package peers

import (
	"cmp"
	"context"
	"crypto/tls"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	vm "github.com/VictoriaMetrics/metrics"
	"github.com/rs/zerolog"

	"weir/peers/discovery"
	"weir/ring"
)

// Options are how a [Set] calls its peers. Zero values of all fields are useful.
type Options struct {
	Secret      string                        // sent along with each call; "" for none
	TLS         func(host string) *tls.Config // for calls to a host; nil for HTTP/2 without TLS
	Timeout     time.Duration                 // of a call; 0 means 500 ms
	BatchWindow time.Duration                 // how long calls gather at most; 0 means 500 µs
	BatchLimit  int                           // items of a batch at most; 0 means 1,000
	Log         zerolog.Logger                // the zero Logger discards

	// Transport makes what calls one peer, for tests that cut the network; nil for the real one.
	Transport func(peer string, real http.RoundTripper) http.RoundTripper
}

func (o *Options) scheme() string {
	if o.TLS != nil {
		return "https"
	}
	return "http"
}

// A Set is the nodes of a cluster, as this node sees it. It is safe for concurrent use.
type Set struct {
	options     Options
	incarnation int64
	view        atomic.Pointer[View]
	holding     sync.RWMutex // held for writing while the view changes
	probes      probes
	discovery   atomic.Pointer[Discovery]

	metrics        *vm.Set
	abruptRestarts *vm.Counter
	mismatches     mismatches

	mu      sync.Mutex            // guards the rest, and the order of updates
	name    string                // what Update was told last
	listed  []Member              // the same
	leaving bool                  // this node is
	held    [ring.Partitions]bool // that this node may have counted for since the last TakeOwnershipLoss
	former  map[string]*Peer      // that are not listed any more, and may still have states to give
}

// New makes a Set without a view: this node doesn't know its place yet.
func New(o Options) *Set {
	o.Timeout = cmp.Or(o.Timeout, 500*time.Millisecond)
	o.BatchWindow = cmp.Or(o.BatchWindow, 500*time.Microsecond)
	o.BatchLimit = cmp.Or(o.BatchLimit, 1000)
	s := &Set{options: o, incarnation: 1 + rand.Int64N(math.MaxInt64), former: map[string]*Peer{}}
	for p := range s.held {
		s.held[p] = true
	}
	s.newMetrics()
	s.mismatches.log = o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second})
	s.probes.ctx, s.probes.cancel = context.WithCancel(context.Background())
	return s
}

// Incarnation returns a number that tells this process from earlier ones of this node. All calls carry it.
func (s *Set) Incarnation() int64 { return s.incarnation }

// View returns the present view; nil while this node doesn't know its place. Callers that decide on several items load
// it once, so that they decide on all by the same list.
func (s *Set) View() *View { return s.view.Load() }

// Hold returns the present view, which stays the one until Release. A caller that counts by it has done so before a
// peer is told that the limit is another node's now, and so can't count what has been handed over. Changes of the list
// wait meanwhile, so callers hold it for no more than counting.
func (s *Set) Hold() *View {
	s.holding.RLock()
	return s.View()
}

// Release ends what Hold began.
func (s *Set) Release() { s.holding.RUnlock() }

// Owner returns the node that owns the limit which id names, "" if it is this one; false while this node doesn't know
// its place.
func (s *Set) Owner(id []byte) (node string, known bool) {
	v := s.View()
	if v == nil {
		return "", false
	}
	if p := v.Owner(id); p != nil {
		node = p.name
	}
	return node, true
}

// Nodes returns the number of nodes in the ring; 1 before there is one.
func (s *Set) Nodes() int {
	if v := s.View(); v != nil {
		return v.Nodes()
	}
	return 1
}

// Knows reports whether a node other than this one is in the list under that name, and is not about to leave.
func (s *Set) Knows(node string) bool {
	p := s.View().peer(node)
	return p != nil && !p.hasLeft()
}

// Ring returns the fingerprint of the present ring, "" before there is one, and the other nodes in it.
func (s *Set) Ring() (fingerprint string, others []string) {
	v := s.View()
	if v == nil {
		return "", nil
	}
	others = slices.DeleteFunc(slices.Clone(v.Names()), func(name string) bool { return name == v.name })
	return v.Fingerprint(), others
}

// Update makes a list of nodes the cluster, in which this node is called self; with "" it is an outsider, which asks
// the owners and counts nothing. Peers that stay keep their connections and their health. It panics if self is not in
// the list.
func (s *Set) Update(self string, members []Member) {
	if self != "" && !discovery.Contains(members, self) {
		panic("peers.Set.Update: " + self + " is not in the list")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.name, s.listed = self, members
	s.rebuildLocked()
}

// rebuildLocked makes the view of the nodes that are listed and haven't left.
func (s *Set) rebuildLocked() {
	old := s.View()
	v := s.newViewLocked(old)
	v.before = v.ringBefore(old)
	v.findFormers(old, s.former)
	for _, p := range v.peers {
		if !p.handoverDone(v.Fingerprint()) {
			p.handoverRing.Store(nil) // or it would hold again should the ring become what it was
		}
	}
	for p, owner := range v.owners {
		s.held[p] = s.held[p] || owner == nil
	}
	s.replaceLocked(old, v)
	s.options.Log.Info().Str("self", v.self).Strs("nodes", v.Names()).Str("ring", v.Fingerprint()).
		Msg("the list of nodes")
}

// newViewLocked returns a View without what the one before it leads to.
func (s *Set) newViewLocked(old *View) *View {
	v := &View{name: s.name, peers: map[string]*Peer{}, since: time.Now()}
	if v.name == "" && old != nil {
		v.name = old.name
	}
	var present, all []string
	for _, m := range s.listed {
		stays := !s.leaving
		if m.Name != s.name {
			p := s.peerLocked(old, m)
			v.peers[m.Name], stays = p, !p.hasLeft()
		}
		if all = append(all, m.Name); stays {
			present = append(present, m.Name)
		}
	}
	if len(present) == 0 {
		present = all // all leave: until they have, they count
	}
	if slices.Contains(present, s.name) {
		v.self = s.name
	}
	v.ring = ring.New(present)
	v.owners = v.owned(v.ring)
	v.header = s.headerLocked(v)
	return v
}

// peerLocked returns the peer that m names, the same as before if there was one.
func (s *Set) peerLocked(old *View, m Member) *Peer {
	p := old.peer(m.Name)
	if p == nil {
		delete(s.former, m.Name) // nothing is held against a node that is listed again
		p = newPeer(s, m.Name)
	}
	p.setAddrs(m)
	return p
}

// replaceLocked makes v the view. Peers that are not in it may have something to give for a while.
func (s *Set) replaceLocked(old, v *View) {
	s.holding.Lock()
	s.view.Store(v)
	s.holding.Unlock()
	if old == nil {
		return
	}
	for name, p := range old.peers {
		if v.peer(name) != nil {
			continue
		}
		s.mismatches.forget(name)
		p.close()
		s.former[name] = p // which dials anew if it has to
		time.AfterFunc(formerFor, func() { s.forget(p) })
	}
}

// formerFor is how long after a change of the list limits that have changed hands may be asked for where they were.
const formerFor = 30 * time.Second

// forget drops a former peer.
func (s *Set) forget(p *Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.former[p.name] == p {
		delete(s.former, p.name)
	}
}

// named returns a peer, also one that is not listed any more but may still have something to give. It may be nil.
func (s *Set) named(name string) *Peer {
	if p := s.View().peer(name); p != nil {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.former[name]
}

// HandoverDone notes that a node has handed over everything that it doesn't own in a ring.
func (s *Set) HandoverDone(node, ring string) {
	if p := s.named(node); p != nil {
		p.handoverRing.Store(&ring)
	}
}

// TakeOwnershipLoss reports whether this node has owned, since the last call, limits that it doesn't own now. The first
// call takes it for the former owner of all of them: it may have been started with some.
func (s *Set) TakeOwnershipLoss() (lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.View()
	if v == nil {
		return false
	}
	for p, owner := range v.owners {
		lost = lost || s.held[p] && owner != nil
		s.held[p] = owner == nil
	}
	return lost
}

// Close ends the probes and drops idle connections. Calls on their way end by themselves.
func (s *Set) Close() {
	s.probes.close()
	if v := s.View(); v != nil {
		for _, p := range v.peers {
			p.close()
		}
	}
}
