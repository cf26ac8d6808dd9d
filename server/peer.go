package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"weir/limits/wire"
	"weir/server/node"
)

// handlePeerBatch answers POST /v1/peer/batch: it has the node count what another one asks.
func (s *Server) handlePeerBatch(w http.ResponseWriter, r *http.Request) {
	s.observePeer(w, r)
	x := exchanges.Get().(*exchange)
	defer x.release()
	if !s.readBody(x, w, r, wire.MaxMessage, &s.peerBudget) {
		return
	}
	var err error
	if x.requests, err = wire.ReadPeerRequests(x.requests[:0], x.body); err != nil {
		s.fail(w, r, http.StatusBadRequest, "unreadable", err.Error())
		return
	}
	s.node.Count(r.Context(), callerOf(r), x.requests, x.makeResults())
	x.answer = wire.AppendResults(x.answer[:0], x.results)
	s.writePeer(w, x.answer)
}

// observePeer takes note of what a peer says of itself, and says the same of this node.
func (s *Server) observePeer(w http.ResponseWriter, r *http.Request) {
	s.node.ObservePeer(r.Header) // which may change the view
	s.node.SetHeaders(w.Header())
}

// writePeer answers a peer, which is to know why: by the list that this node has by now, or that it has begun to leave
// meanwhile.
func (s *Server) writePeer(w http.ResponseWriter, body []byte) {
	s.node.SetHeaders(w.Header())
	writeJSON(w, http.StatusOK, body)
}

func callerOf(r *http.Request) node.Caller {
	start, _ := strconv.ParseInt(r.Header.Get(wire.HeaderStart), 10, 64)
	return node.Caller{Name: r.Header.Get(wire.HeaderFrom), Start: start, Ring: r.Header.Get(wire.HeaderRing)}
}

// handlePeerReport answers POST /v1/peer/report: it counts what another node took from limits of this one.
func (s *Server) handlePeerReport(w http.ResponseWriter, r *http.Request) {
	report := usedReports.Get().(*wire.Report)
	s.handleMessage(w, r, report, func(from string) any { return s.node.Receive(from, report) })
	report.Reset()
	usedReports.Put(report)
}

// usedReports keeps the memory of reports for others: many come one after the other where limits move.
var usedReports = sync.Pool{New: func() any { return new(wire.Report) }}

// handlePeerStates answers POST /v1/peer/states: it takes over what another node says of its limits.
func (s *Server) handlePeerStates(w http.ResponseWriter, r *http.Request) {
	states := new(wire.StateUpdate)
	s.handleMessage(w, r, states, func(from string) any {
		s.node.Publish(from, states)
		return struct{}{}
	})
}

// handlePeerTake answers POST /v1/peer/take: with the states of limits that the other node has become the owner of.
func (s *Server) handlePeerTake(w http.ResponseWriter, r *http.Request) {
	names := new(wire.TakeRequest)
	s.handleMessage(w, r, names, func(from string) any { return s.node.Give(from, names.Names) })
}

// handlePeerLeave answers POST /v1/peer/leave, from a node that is about to stop. Its header says so, as in all its
// calls.
func (s *Server) handlePeerLeave(w http.ResponseWriter, r *http.Request) {
	s.handleMessage(w, r, new(struct{}), func(string) any { return struct{}{} })
}

// handleMessage reads what another node tells into a message, and answers it, or why it can't. What is in the message
// is answer's only as long as that runs.
func (s *Server) handleMessage(w http.ResponseWriter, r *http.Request, message any, answer func(from string) any) {
	s.observePeer(w, r)
	x := exchanges.Get().(*exchange)
	defer x.release()
	if !s.readBody(x, w, r, wire.MaxMessage, &s.peerBudget) {
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
		case !s.node.HasPeers():
			s.fail(w, r, http.StatusForbidden, "peer", "this node has no peers")
		case !s.isPeer(r):
			s.throttledLog.Error().Str("from", r.RemoteAddr).Str("claims_to_be", r.Header.Get(wire.HeaderFrom)).
				Str("hint", "do all nodes have the same WEIR_PEER_SECRET?").Msg("a caller that is no peer called as one")
			s.fail(w, r, http.StatusUnauthorized, "peer",
				"only nodes of the cluster may call this, with its secret or certificate")
		default:
			next(w, r)
		}
	}
}

// isPeer reports whether r comes with the secret, or with a certificate of a listed node. Without either being
// configured every caller is a peer, which package config allows among loopback addresses only.
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
	verified := s.clientCerts && r.TLS != nil && len(r.TLS.VerifiedChains) > 0
	return bearer && same || verified && s.listed(r.TLS.PeerCertificates[0])
}

// listed reports whether a certificate names a node of the cluster.
func (s *Server) listed(cert *x509.Certificate) bool {
	view := s.node.Peers().View()
	return view != nil && slices.ContainsFunc(view.Names(), func(name string) bool {
		host, _, err := net.SplitHostPort(name)
		return err == nil && cert.VerifyHostname(host) == nil
	})
}

// requireCert lets only callers pass whose certificate the cluster's authority signed, but for the two paths that tell
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
