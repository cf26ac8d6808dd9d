package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"net"
	"net/http"
	"strings"

	"weir/limits"
	"weir/peers"
)

// handlePeerBatch answers POST /v1/peer/batch: it counts here whatever it is asked, and never forwards. So nodes with
// different lists can't send a check in circles.
func (s *Server) handlePeerBatch(w http.ResponseWriter, r *http.Request) {
	if view := s.peers.View(); view != nil {
		s.peers.Heard(r.Header.Get(peers.HeaderFrom), r.Header)
		w.Header().Set(peers.HeaderRing, view.Fingerprint())
		w.Header().Set(peers.HeaderProtocol, peers.Protocol)
	}
	x := exchanges.Get().(*exchange)
	defer x.release()
	if !s.readBody(x, w, r, peers.MaxMessage, &s.peerRoom) {
		return
	}
	var err error
	if x.requests, err = limits.ReadPeerRequests(x.requests[:0], x.body); err != nil {
		s.fail(w, r, http.StatusBadRequest, "unreadable", err.Error())
		return
	}
	x.results = x.results[:0]
	for i := range x.requests {
		x.results = append(x.results, s.count(&x.requests[i], "", "")) // who asks knows whom it asked
	}
	s.metrics.countPeer(x.results)
	x.answer = limits.AppendResults(x.answer[:0], x.results)
	writeJSON(w, http.StatusOK, x.answer)
}

// guardPeers lets only other nodes of the cluster pass.
func (s *Server) guardPeers(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.peers == nil:
			s.fail(w, r, http.StatusForbidden, "peer", "this node has no peers")
		case !s.isPeer(r):
			s.loud.Error().Str("from", r.RemoteAddr).Str("claims_to_be", r.Header.Get(peers.HeaderFrom)).
				Str("hint", "do all nodes have the same WEIR_PEER_SECRET?").Msg("somebody who is no peer called as one")
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
