// Package peers knows the other nodes and calls them. It is outgoing only: what peers ask of this node arrives at package
// server like any other request.
package peers

import (
	"cmp"
	"context"
	"crypto/tls"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	vm "github.com/VictoriaMetrics/metrics"
	"github.com/rs/zerolog"

	"weir/limits/wire"
	"weir/ring"
)

// Options says how a [Set] calls its peers. Zero values of all fields are useful.
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
	options Options
	start   int64
	loud    zerolog.Logger // for what must be seen, but not a thousand times a second
	view    atomic.Pointer[View]
	holding sync.RWMutex    // held for writing while the view changes
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu      sync.Mutex // guards all below, and the order of updates and new probes
	closed  bool
	held    [ring.Partitions]bool // partitions that this node may have counted for since Lost was called last
	probes  sync.WaitGroup
	name    string           // what Update was told last
	listed  []Member         // the same
	leaving bool             // this one is
	former  map[string]*Peer // that are not listed any more, and may still have states to give

	discovery  atomic.Pointer[Discovery]
	metrics    *vm.Set
	mismatches *vm.Counter
	lost       *vm.Counter
	mismatched sync.Map // name of a peer: the odd protocol or ring that was last logged
}

// New makes a Set without a view: this node doesn't know its place yet.
func New(o Options) *Set {
	if o.Timeout == 0 {
		o.Timeout = 500 * time.Millisecond
	}
	if o.BatchWindow == 0 {
		o.BatchWindow = 500 * time.Microsecond
	}
	if o.BatchLimit == 0 {
		o.BatchLimit = 1000
	}
	s := &Set{options: o, start: 1 + rand.Int64N(math.MaxInt64), former: map[string]*Peer{}}
	for p := range s.held {
		s.held[p] = true
	}
	s.newMetrics()
	s.loud = o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// View gives the present view; nil while this node doesn't know its place. Whoever decides on several items takes it once.
func (s *Set) View() *View { return s.view.Load() }

// Hold gives the present view, which stays the one until Release. Who counts by it has counted before anybody hears that the
// limit is another node's by now, and can't count what has been given away. It is for no more than counting: changes wait.
func (s *Set) Hold() *View {
	s.holding.RLock()
	return s.View()
}

// Release ends what Hold began.
func (s *Set) Release() { s.holding.RUnlock() }

// Update makes a list of nodes the cluster, in which this node is called self; with "" it is an outsider, which asks them
// all and counts nothing. Peers that stay keep their connections and their health. It panics if self is not in the list.
func (s *Set) Update(self string, members []Member) {
	if self != "" && !slices.ContainsFunc(members, func(m Member) bool { return m.Name == self }) {
		panic("peers.Set.Update: " + self + " is not in the list")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.name, s.listed = self, members
	s.rebuildLocked()
}

// rebuildLocked makes the view of those that are listed and haven't left.
func (s *Set) rebuildLocked() {
	old := s.view.Load()
	v := &View{self: s.name, name: s.name, peers: map[string]*Peer{}, since: time.Now()}
	if v.name == "" && old != nil {
		v.name = old.name
	}
	var names []string
	for _, m := range s.listed {
		stays := !s.leaving
		if m.Name != s.name {
			p := s.peerLocked(old, m)
			v.peers[m.Name], stays = p, p.left.Load() == 0
		}
		if stays {
			names = append(names, m.Name)
		}
	}
	if len(names) == 0 { // all leave: nobody is left to count but those that still are there
		for _, m := range s.listed {
			names = append(names, m.Name)
		}
	} else if s.leaving {
		v.self = ""
	}
	v.ring = ring.New(names)
	v.owners = v.owned(v.ring)
	v.before = s.beforeLocked(old, v)
	s.findFormersLocked(old, v)
	for _, p := range v.peers {
		if !p.hasHanded(v.Fingerprint()) {
			p.handed.Store(nil) // or it would hold again should the ring become what it was
		}
	}
	for p, owner := range v.owners {
		s.held[p] = s.held[p] || owner == nil
	}
	v.header = s.newHeader(v)
	s.replaceLocked(v)
	s.options.Log.Info().Str("self", v.self).Strs("nodes", v.Names()).Str("ring", v.Fingerprint()).Msg("the list of nodes")
}

// peerLocked gives the peer that m names, the same as before if there was one.
func (s *Set) peerLocked(old *View, m Member) *Peer {
	p := old.peer(m.Name)
	if p == nil {
		delete(s.former, m.Name) // nothing is held against a node that is listed again
		p = newPeer(s, m.Name)
	}
	p.setAddrs(m)
	return p
}

// beforeLocked gives the owners before the view changed to v. For a node that has just come they are those of the ring
// without it.
func (s *Set) beforeLocked(old, v *View) *ring.Ring {
	switch {
	case old == nil && v.self != "" && v.Nodes() > 1:
		return v.ring.Without(v.self)
	case old == nil:
		return nil
	case old.Fingerprint() == v.Fingerprint() && old.self == v.self:
		v.since = old.since
		return old.before
	}
	return old.ring
}

// findFormersLocked finds, by partition, the peer that owned before what this node owns now. That stays the one when the list
// changes again before it has handed over everything.
func (s *Set) findFormersLocked(old, v *View) {
	v.formers = make([]*Peer, ring.Partitions)
	for p := range v.formers {
		if v.before == nil || v.owners[p] != nil {
			continue
		}
		var former *Peer
		if name := v.before.Owner(p); name != v.name {
			former = cmp.Or(v.peer(name), old.peer(name), s.former[name])
		} else if old != nil {
			former = old.owes(p)
		}
		if v.formers[p] = former; former != nil && !slices.Contains(v.owing, former) {
			v.owing = append(v.owing, former)
		}
	}
}

// replaceLocked makes v the view. Peers that are not in it may have something to give for a while.
func (s *Set) replaceLocked(v *View) {
	s.holding.Lock()
	old := s.view.Swap(v)
	s.holding.Unlock()
	if old == nil {
		return
	}
	for name, p := range old.peers {
		if v.peer(name) != nil {
			continue
		}
		s.mismatched.Delete(name)
		p.close()
		s.former[name] = p // which dials anew if it has to
		time.AfterFunc(formerFor, func() { s.forget(p) })
	}
}

// formerFor is how long after a change of the list limits that have changed hands may be asked for where they were.
const formerFor = 30 * time.Second

// Handed notes that a node has handed over everything that it doesn't own in a ring.
func (s *Set) Handed(node, ring string) {
	if p := s.named(node); p != nil {
		p.handed.Store(&ring)
	}
}

// forget drops a former peer.
func (s *Set) forget(p *Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.former[p.name] == p {
		delete(s.former, p.name)
	}
}

// named gives a peer, also one that is not listed any more but may still have something to give; nil if there is none.
func (s *Set) named(name string) *Peer {
	if p := s.View().peer(name); p != nil {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.former[name]
}

// Distant says whether m may be on another machine.
func (m Member) Distant() bool {
	host, _, _ := net.SplitHostPort(m.Name)
	return host != "localhost" && !net.ParseIP(host).IsLoopback()
}

// Close ends the probes and drops idle connections. Calls on their way end by themselves.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.probes.Wait()
	if v := s.View(); v != nil {
		for _, p := range v.peers {
			p.close()
		}
	}
}

// newHeader makes the header of all calls. It is shared by them, which http.RoundTripper allows.
func (s *Set) newHeader(v *View) http.Header {
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "weir")
	h.Set(wire.HeaderProtocol, wire.Protocol)
	h.Set(wire.HeaderRing, v.ring.Fingerprint())
	h.Set(wire.HeaderFrom, v.name)
	if s.leaving {
		h.Set(wire.HeaderLeaving, "true")
	}
	h.Set(wire.HeaderStart, strconv.FormatInt(s.start, 10))
	if s.options.Secret != "" {
		h.Set("Authorization", "Bearer "+s.options.Secret)
	}
	return h
}

// Introduce says in the header of an answer what this node says of itself in calls.
func (s *Set) Introduce(h http.Header) {
	ours := s.View().header
	for _, name := range [...]string{wire.HeaderProtocol, wire.HeaderRing, wire.HeaderStart, wire.HeaderLeaving} {
		if values := ours[name]; values != nil {
			h[name] = values
		}
	}
}

// Heard compares what a node says of itself, in a request or an answer, with this node's own. A difference is normal for
// the seconds in which a list changes, and a mistake if it stays; so it is counted, and logged once for each change.
func (s *Set) Heard(from string, h http.Header) {
	s.heardOfLife(from, h)
	v := s.View()
	if v == nil || h.Get(wire.HeaderProtocol) == wire.Protocol && h.Get(wire.HeaderRing) == v.ring.Fingerprint() {
		s.mismatched.Delete(from)
		return
	}
	s.mismatches.Inc()
	if v.peers[from] == nil {
		from = "" // whoever claims to be somebody else doesn't get memory of ours
	}
	odd := h.Get(wire.HeaderProtocol) + " " + h.Get(wire.HeaderRing)
	if last, _ := s.mismatched.Swap(from, odd); last != odd {
		s.loud.Warn().Str("peer", from).Str("its_protocol", h.Get(wire.HeaderProtocol)).Str("our_protocol", wire.Protocol).
			Str("its_ring", h.Get(wire.HeaderRing)).Str("our_ring", v.ring.Fingerprint()).
			Msg("a peer has another list of nodes, or another version")
	}
}

// heardOfLife notes that a listed node is about to leave, or is there again in another life. Once it is through, the view shows
// that, whoever has noted it.
func (s *Set) heardOfLife(from string, h http.Header) {
	start, err := strconv.ParseInt(h.Get(wire.HeaderStart), 10, 64)
	v, leaving := s.View(), h.Get(wire.HeaderLeaving) != ""
	p := v.peer(from)
	if err != nil || p == nil || p.life.Load() == start && (!leaving || v.lacks(p)) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.View().peer(from) != p || start == p.past {
		return
	}
	was := p.life.Load()
	switch {
	case leaving:
		s.setLeftLocked(p, start)
	case was != start && p.left.Load() != start:
		s.comeBackLocked(p, was)
	}
	if was != start {
		p.past = was
		p.life.Store(start)
	}
}

// setLeftLocked takes a node that is about to stop out of the ring, until it is there again in another life.
func (s *Set) setLeftLocked(p *Peer, start int64) {
	if p.left.Swap(start) == start {
		return
	}
	s.options.Log.Info().Str("peer", p.name).Msg("a peer is about to stop; others take over its limits")
	s.rebuildLocked()
	s.probes.Go(func() {
		for s.pause(ProbeEvery*3/4+rand.N(ProbeEvery/2)) && s.View().peer(p.name) == p && p.left.Load() == start {
			p.call(s.ctx, nil) // which hears whether it is another process that answers
		}
	})
}

// comeBackLocked takes a node into the ring again that had left. One that is there in another life without having left has lost
// what it knew.
func (s *Set) comeBackLocked(p *Peer, was int64) {
	if p.left.Swap(0) == 0 {
		if was != 0 {
			s.lost.Inc()
			s.options.Log.Warn().Str("peer", p.name).Msg("a peer has been restarted without handing over: what it counted is lost")
		}
		return
	}
	s.options.Log.Info().Str("peer", p.name).Msg("a peer is back")
	s.rebuildLocked()
}

// Leave takes this node out of the ring: what it is asked from now on goes to those that take over. It is false where nobody
// is left to do that, and then nothing changes.
func (s *Set) Leave() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.view.Load(); v == nil || v.self != "" && v.Nodes() < 2 {
		return false
	}
	s.leaving = true
	s.rebuildLocked()
	return true
}

// TellLeaving tells all peers that this node leaves, which they hear from any call, and waits until they know or ctx ends.
func (s *Set) TellLeaving(ctx context.Context) {
	var calls sync.WaitGroup
	for _, p := range s.View().peers {
		if !p.health.down.Load() {
			calls.Go(func() { p.tell(ctx, wire.LeavePath, struct{}{}, new(struct{})) })
		}
	}
	calls.Wait()
}

// ProbeEvery is how often, on average, a peer that is down is asked whether it is up again.
const ProbeEvery = 300 * time.Millisecond

// probe asks a peer that is down until it answers, or is no longer listed. It has a little jitter, so that nodes that lost
// a peer together don't ask it together.
func (s *Set) probe(p *Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	line := s.options.Log.Warn().Str("peer", p.name)
	if cause := p.cause.Load(); cause != nil {
		line.Err(*cause)
	}
	line.Msg("peer is down")
	s.probes.Go(func() {
		for s.pause(ProbeEvery*3/4+rand.N(ProbeEvery/2)) && s.View().peer(p.name) == p {
			_, err := p.call(s.ctx, nil)
			if err == nil || err == ErrRefused {
				if p.health.probed(time.Now()) {
					s.options.Log.Info().Str("peer", p.name).Msg("peer is up")
					return
				}
				continue
			}
			p.health.failed(time.Now(), err == ErrUnreachable)
		}
	})
}

// prepareStandIns makes the ring without p while nobody waits for it yet.
func (s *Set) prepareStandIns(p *Peer) {
	if v := s.View(); v.peer(p.name) == p {
		v.standIn(0, p)
	}
}

// pause waits, and gives false if the Set is closed meanwhile.
func (s *Set) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

const (
	pingAfter   = time.Second     // of silence on a connection
	pingTimeout = 3 * time.Second // for the answer, and for any byte to be written: an overloaded peer is not a dead one
)

// transport makes what calls p: HTTP/2 alone, since a client that may also speak HTTP/1 does so without TLS; one
// connection however many calls, which is given up seconds after the peer falls silent, also while a write is blocked.
func (o *Options) transport(p *Peer) http.RoundTripper {
	t := &http.Transport{
		Protocols:           new(http.Protocols),
		DialContext:         p.dial,
		TLSHandshakeTimeout: o.Timeout, // net/http dials on its own, whatever the call's context says
		IdleConnTimeout:     5 * time.Minute,
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true,
			SendPingTimeout:             pingAfter,
			PingTimeout:                 pingTimeout,
			WriteByteTimeout:            pingTimeout,
		},
		DisableCompression: true,
	}
	if o.TLS != nil {
		host, _, _ := net.SplitHostPort(p.name)
		t.TLSClientConfig = o.TLS(host)
	}
	t.Protocols.SetHTTP2(o.TLS != nil)
	t.Protocols.SetUnencryptedHTTP2(o.TLS == nil)
	if o.Transport != nil {
		return o.Transport(p.name, t)
	}
	return t
}

// dial connects to the first of p's addresses that answers.
func (p *Peer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	defer func() {
		if p.gone.Load() {
			p.closeSoon()
		}
	}()
	dialer := net.Dialer{Timeout: p.set.options.Timeout / 2} // which leaves time to ask a stand-in
	addrs := p.addrs.Load()
	if addrs == nil {
		return dialer.DialContext(ctx, network, addr)
	}
	err := error(&net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no address is known", Name: p.name}})
	for _, a := range *addrs {
		var c net.Conn
		if c, err = dialer.DialContext(ctx, network, a.String()); err == nil {
			return c, nil
		}
	}
	return nil, err
}
