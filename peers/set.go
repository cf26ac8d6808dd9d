// Package peers knows the other nodes and calls them. It is outgoing only: what peers ask of this node arrives at package
// server like any other request.
package peers

import (
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
		return "https://"
	}
	return "http://"
}

// A Set is the nodes of a cluster, as this node sees it. It is safe for concurrent use.
type Set struct {
	options Options
	start   int64
	loud    zerolog.Logger // for what must be seen, but not a thousand times a second
	view    atomic.Pointer[View]
	headers atomic.Pointer[http.Header] // of calls
	ctx     context.Context             // ends with Close
	cancel  context.CancelFunc

	mu     sync.Mutex // guards closed, and the order of updates and new probes
	closed bool
	probes sync.WaitGroup

	discovery  atomic.Pointer[Discovery]
	metrics    *vm.Set
	mismatches *vm.Counter
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
	s := &Set{options: o, start: 1 + rand.Int64N(math.MaxInt64)}
	s.newMetrics()
	s.loud = o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// View gives the present view; nil while this node doesn't know its place. Whoever decides on several items takes it once.
func (s *Set) View() *View { return s.view.Load() }

// Update makes a list of nodes the cluster, in which this node is called self; with "" it is an outsider, which asks them
// all and counts nothing. Peers that stay keep their connections and their health. It panics if self is not in the list.
func (s *Set) Update(self string, members []Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, len(members))
	for i := range members {
		names[i] = members[i].Name
	}
	if self != "" && !slices.Contains(names, self) {
		panic("peers.Set.Update: " + self + " is not in the list")
	}
	old := s.view.Load()
	v := &View{self: self, ring: ring.New(names), peers: map[string]*Peer{}}
	for _, m := range members {
		if m.Name == self {
			continue
		}
		p := old.peer(m.Name)
		if p == nil {
			p = newPeer(s, m.Name)
		}
		p.setAddrs(m)
		v.peers[m.Name] = p
	}
	v.owners = v.owned(v.ring)
	s.headers.Store(s.newHeader(v))
	s.replaceLocked(v)
	s.options.Log.Info().Str("self", self).Strs("nodes", v.Names()).Str("ring", v.Fingerprint()).Msg("the list of nodes")
}

// replaceLocked makes v the view, and drops the peers that are not in it.
func (s *Set) replaceLocked(v *View) {
	old := s.view.Swap(v)
	if old == nil {
		return
	}
	for name, p := range old.peers {
		if v.peer(name) == nil {
			p.close()
			s.mismatched.Delete(name)
		}
	}
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
func (s *Set) newHeader(v *View) *http.Header {
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "weir")
	h.Set(HeaderProtocol, Protocol)
	h.Set(HeaderRing, v.ring.Fingerprint())
	h.Set(HeaderFrom, v.self)
	h.Set(HeaderStart, strconv.FormatInt(s.start, 10))
	if s.options.Secret != "" {
		h.Set("Authorization", "Bearer "+s.options.Secret)
	}
	return &h
}

// Heard compares what a node says of itself, in a request or an answer, with this node's own. A difference is normal for
// the seconds in which a list changes, and a mistake if it stays; so it is counted, and logged once for each change.
func (s *Set) Heard(from string, h http.Header) {
	v := s.View()
	if v == nil || h.Get(HeaderProtocol) == Protocol && h.Get(HeaderRing) == v.ring.Fingerprint() {
		s.mismatched.Delete(from)
		return
	}
	s.mismatches.Inc()
	if v.peers[from] == nil {
		from = "" // whoever claims to be somebody else doesn't get memory of ours
	}
	odd := h.Get(HeaderProtocol) + " " + h.Get(HeaderRing)
	if last, _ := s.mismatched.Swap(from, odd); last != odd {
		s.loud.Warn().Str("peer", from).Str("its_protocol", h.Get(HeaderProtocol)).Str("our_protocol", Protocol).
			Str("its_ring", h.Get(HeaderRing)).Str("our_ring", v.ring.Fingerprint()).
			Msg("a peer has another list of nodes, or another version")
	}
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
