package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
	"weir/peers"
)

// handlePeerBatch answers POST /v1/peer/batch: it counts here whatever it is asked, and never forwards. So nodes with
// different lists can't send a check in circles.
func (s *Server) handlePeerBatch(w http.ResponseWriter, r *http.Request) {
	s.greet(w, r)
	x := exchanges.Get().(*exchange)
	defer x.release()
	if !s.readBody(x, w, r, wire.MaxMessage, &s.peerRoom) {
		return
	}
	var err error
	if x.requests, err = wire.ReadPeerRequests(x.requests[:0], x.body); err != nil {
		s.fail(w, r, http.StatusBadRequest, "unreadable", err.Error())
		return
	}
	x.results = slices.Grow(x.results[:0], len(x.requests))[:len(x.requests)]
	s.countAllFor(r.Context(), x, caller{r.Header.Get(wire.HeaderFrom), startOf(r), r.Header.Get(wire.HeaderRing)})
	s.metrics.countPeer(x.results)
	x.answer = wire.AppendResults(x.answer[:0], x.results)
	s.writePeer(w, x.answer)
}

// greet notes what a peer says of itself, and says the same of this node.
func (s *Server) greet(w http.ResponseWriter, r *http.Request) {
	s.peers.Observe(r.Header.Get(wire.HeaderFrom), r.Header) // which may change the view
	s.introduce(w)
}

func (s *Server) introduce(w http.ResponseWriter) {
	if s.peers.View() != nil {
		s.peers.SetHeaders(w.Header())
	}
}

// writePeer answers a peer, which is to know why: by the list that this node has by now, or that it has begun to leave meanwhile.
func (s *Server) writePeer(w http.ResponseWriter, body []byte) {
	s.introduce(w)
	writeJSON(w, http.StatusOK, body)
}

// A caller is a node that asks.
type caller struct {
	name  string
	start int64 // of its process; 0 from a version that doesn't say it
	ring  string
}

// countAllFor counts all items, by the view by which it has taken over what there is to take over.
func (s *Server) countAllFor(ctx context.Context, x *exchange, from caller) {
	for tries := 3; ; tries-- {
		view := s.peers.View()
		s.takeOverFor(ctx, x, view, from)
		if s.tryCount(x, view, from, tries == 0 || ctx.Err() != nil) {
			return
		}
	}
}

// tryCount does that, unless another view has come meanwhile, and it isn't to count anyway.
func (s *Server) tryCount(x *exchange, view *peers.View, from caller, anyway bool) bool {
	held := s.peers.Hold()
	defer s.peers.Release()
	if held != view && !anyway {
		return false
	}
	for i := range x.requests {
		s.countFor(x, &x.requests[i], held, from, &x.results[i])
	}
	return true
}

func startOf(r *http.Request) int64 {
	start, _ := strconv.ParseInt(r.Header.Get(wire.HeaderStart), 10, 64)
	return start
}

// countFor counts an item for another node, which gets the state along if it wants to keep a copy. If the item belongs to a third
// one it says so; or it counts it, if it is asked to all the same, and that has to hear of it.
func (s *Server) countFor(x *exchange, r *limits.Request, view *peers.View, from caller, result *limits.Result) {
	standIn := r.Behavior&bucket.StandIn != 0
	r.Behavior &^= bucket.StandIn
	if err := s.limiter.Prepare(r, &x.query); err != nil {
		*result = limits.Result{Error: err.Error()}
		return
	}
	if view != nil && view.Owner(x.query.ID) == nil {
		s.countOwn(&x.query, r, "", result) // who asks knows whom it asked
		if r.Behavior&bucket.Global != 0 && result.Status != limits.StatusError && from.start != 0 {
			result.State = s.global.Share(&x.query, from.name, from.start)
		}
		return
	}
	if view != nil && !standIn {
		*result = limits.Result{Error: "moved", Metadata: bucket.Metadata{Owner: view.Owner(x.query.ID).Name(), Reason: bucket.ReasonMoved}}
		return
	}
	*result = s.global.Count(&x.query, true)
}

// takeOverFor takes over the states of limits that another node asks for, where this one has become their owner. Where only the
// other one, which has another list, thinks so, it listens to who is the owner by this node's: that may be about to leave.
func (s *Server) takeOverFor(ctx context.Context, x *exchange, view *peers.View, from caller) {
	x.groups = x.groups[:0]
	differ := view != nil && view.Fingerprint() != from.ring
	if view == nil || view.Settled() && !differ {
		return
	}
	for i := range x.requests {
		r := x.requests[i]
		standIn := r.Behavior&bucket.StandIn != 0
		r.Behavior &^= bucket.StandIn
		id := r.AppendID(nil)
		if owner := view.Owner(id); owner != nil && differ && !standIn {
			x.groupOf(owner, owned)
		} else if p := s.formerOwner(id, view); p != nil && s.limiter.Prepare(&r, &x.query) == nil {
			x.groupOf(p, former).add(i, &r)
		}
	}
	if len(x.groups) > 0 {
		s.askOthers(ctx, x)
	}
}

// askOthers takes over what the former owners have, and listens to the owners.
func (s *Server) askOthers(ctx context.Context, x *exchange) {
	ctx, cancel := context.WithTimeout(ctx, s.peerTimeout/2) // who asks waits as long
	defer cancel()
	var calls sync.WaitGroup
	for i := range x.groups {
		calls.Go(func() {
			g := &x.groups[i]
			defer s.contain(x, g)
			if g.kind == former {
				s.takeOver(ctx, x.requests, g)
			} else {
				g.peer.Ping(ctx)
			}
		})
	}
	calls.Wait()
}

// handlePeerReport answers POST /v1/peer/report: it counts what another node took from limits of this one.
func (s *Server) handlePeerReport(w http.ResponseWriter, r *http.Request) {
	report := usedReports.Get().(*wire.Report)
	s.told(w, r, report, func(from string) any { return s.global.Receive(from, report) })
	report.Reset()
	usedReports.Put(report)
}

// usedReports keeps the memory of reports for others: many come one after the other where limits move.
var usedReports = sync.Pool{New: func() any { return new(wire.Report) }}

// handlePeerStates answers POST /v1/peer/states: it takes over what another node says of its limits.
func (s *Server) handlePeerStates(w http.ResponseWriter, r *http.Request) {
	states := new(wire.StateUpdate)
	s.told(w, r, states, func(from string) any {
		s.global.Published(from, states)
		return struct{}{}
	})
}

// handlePeerTake answers POST /v1/peer/take: it gives the states of limits that the other node has become the owner of.
func (s *Server) handlePeerTake(w http.ResponseWriter, r *http.Request) {
	names := new(wire.TakeRequest)
	s.told(w, r, names, func(from string) any { return s.global.Give(from, names.Names) })
}

// handlePeerLeave answers POST /v1/peer/leave, from a node that is about to stop. Its header says so, as in all its calls.
func (s *Server) handlePeerLeave(w http.ResponseWriter, r *http.Request) {
	s.told(w, r, new(struct{}), func(string) any { return struct{}{} })
}

// told reads what another node tells into a message, and answers it, or why it can't. What is in the message is answer's only as
// long as that runs.
func (s *Server) told(w http.ResponseWriter, r *http.Request, message any, answer func(from string) any) {
	s.greet(w, r)
	x := exchanges.Get().(*exchange)
	defer x.release()
	if !s.readBody(x, w, r, wire.MaxMessage, &s.peerRoom) {
		return
	}
	if err := wire.Unmarshal(x.body, message); err != nil {
		s.fail(w, r, http.StatusBadRequest, "unreadable", err.Error())
		return
	}
	var err error
	if x.answer, err = wire.AppendMessage(x.answer[:0], answer(r.Header.Get(wire.HeaderFrom))); err != nil {
		panic(err) // a struct of ours
	}
	s.writePeer(w, x.answer)
}

// guardPeers lets only other nodes of the cluster pass.
func (s *Server) guardPeers(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.peers == nil:
			s.fail(w, r, http.StatusForbidden, "peer", "this node has no peers")
		case !s.isPeer(r):
			s.loud.Error().Str("from", r.RemoteAddr).Str("claims_to_be", r.Header.Get(wire.HeaderFrom)).
				Str("hint", "do all nodes have the same WEIR_PEER_SECRET?").Msg("a caller that is no peer called as one")
			s.fail(w, r, http.StatusUnauthorized, "peer", "only nodes of the cluster may call this, with its secret or certificate")
		default:
			next(w, r)
		}
	}
}

// isPeer says whether r comes with the secret, or with a certificate of a listed node. Without either being configured
// everybody is a peer, which main allows among loopback addresses only.
func (s *Server) isPeer(r *http.Request) bool {
	if len(s.secrets) == 0 && !s.clientCerts {
		return true
	}
	given, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(given))
	same := false
	for i := range s.secrets {
		same = hmac.Equal(sum[:], s.secrets[i][:]) || same
	}
	return bearer && same || s.clientCerts && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && s.listed(r.TLS.PeerCertificates[0])
}

// listed says whether a certificate names a node of the cluster.
func (s *Server) listed(cert *x509.Certificate) bool {
	view := s.peers.View()
	if view == nil {
		return false
	}
	for _, name := range view.Names() {
		if host, _, err := net.SplitHostPort(name); err == nil && cert.VerifyHostname(host) == nil {
			return true
		}
	}
	return false
}

// requireCert lets only those pass whose certificate the cluster's authority signed, but for the two paths that tell
// machines how this node is.
func (s *Server) requireCert(next http.Handler) http.Handler {
	if !s.clientCerts {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isHealthPath(r.URL.Path) && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) {
			s.fail(w, r, http.StatusUnauthorized, "certificate", "a client certificate is required")
			return
		}
		next.ServeHTTP(w, r)
	})
}
