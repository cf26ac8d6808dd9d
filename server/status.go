package server

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"weir/peers"
)

// handleHealth says that the process lives.
func (s *Server) handleHealth(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`+"\n"))
}

// handleReady says whether this node takes work. It does not ask for other nodes: they being away is no reason to be sent
// nothing.
func (s *Server) handleReady(w http.ResponseWriter, r *http.Request) {
	switch nodes, known := s.place(); {
	case s.draining.Load():
		writeJSON(w, http.StatusServiceUnavailable, []byte(`{"status":"draining","error":"this node is about to stop"}`+"\n"))
	case !known:
		writeJSON(w, http.StatusServiceUnavailable,
			[]byte(`{"status":"starting","error":"this node does not know its place in the cluster yet"}`+"\n"))
	default:
		writeJSON(w, http.StatusOK, fmt.Appendf(nil, `{"status":"ready","nodes":%d}`+"\n", nodes))
	}
}

// place gives the size of the cluster, and whether this node knows it.
func (s *Server) place() (nodes int, known bool) {
	if s.peers == nil {
		return 1, true
	}
	view := s.peers.View()
	if view == nil {
		return 0, false
	}
	return view.Nodes(), view.Self() != ""
}

// handlePeers shows the cluster as this node sees it.
func (s *Server) handlePeers(w http.ResponseWriter, r *http.Request) {
	answer := struct {
		Self      string           `json:"self"`
		Ring      string           `json:"ring,omitzero"` // the fingerprint of the list
		Nodes     []peers.Status   `json:"nodes"`
		Discovery *peers.Discovery `json:"discovery,omitzero"`
	}{Self: s.owner, Nodes: []peers.Status{}}
	if s.peers != nil {
		if view := s.peers.View(); view != nil {
			answer.Self, answer.Ring, answer.Nodes = s.name(view), view.Fingerprint(), view.Status()
		}
		answer.Discovery = s.peers.Discovery()
	}
	body, err := json.Marshal(answer)
	if err != nil {
		panic(err) // a struct of ours
	}
	writeJSON(w, http.StatusOK, append(body, '\n'))
}

// handleMetrics answers in the Prometheus text format.
func (s *Server) handleMetrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	s.metrics.write(w)
}

// fail is the one way out for a request that is refused as a whole. The reason is for the metrics, the message for the
// caller, and the request's id, in the answer's headers and in the log, brings the two together.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, status int, reason, message string) {
	s.metrics.reject(reason)
	id := requestID(r)
	s.failures.Warn().Str("request_id", id).Str("from", r.RemoteAddr).Str("method", r.Method).Str("path", r.URL.Path).
		Int("status", status).Str("error", message).Msg("request refused")
	w.Header().Set("X-Request-Id", id)
	body, _ := jsontext.AppendQuote([]byte(`{"error":`), message) // invalid UTF-8 is replaced
	writeJSON(w, status, append(body, "}\n"...))
}

// observe surrounds everything: a panic becomes an answer, and each request a line if the log wants them.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.log.GetLevel() > zerolog.DebugLevel {
			defer s.recover(w, r)
			next.ServeHTTP(w, r)
			return
		}
		start, seen := time.Now(), &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			s.log.Debug().Str("from", r.RemoteAddr).Str("method", r.Method).Str("path", r.URL.Path).Str("proto", r.Proto).
				Int("status", seen.status).Dur("ms", time.Since(start)).Msg("request")
		}()
		defer s.recover(seen, r)
		next.ServeHTTP(seen, r)
	})
}

func (s *Server) recover(w http.ResponseWriter, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if cause == http.ErrAbortHandler {
		panic(cause)
	}
	s.log.Error().Str("request_id", requestID(r)).Bytes("stack", debug.Stack()).Msg(fmt.Sprint("panic: ", cause))
	s.fail(w, r, http.StatusInternalServerError, "panic", "internal error")
}

// requestID gives the id that the caller or a proxy gave r, or a new one, which it notes in r.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if !isToken(id) {
		id = rand.Text()
		r.Header.Set("X-Request-Id", id)
	}
	return id
}

// A statusWriter notes the status for the log.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// isToken says whether an id from outside may stand in a log and in a header.
func isToken(id string) bool {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.:/+=", r)
	}
	return id != "" && len(id) <= 64 && strings.IndexFunc(id, func(r rune) bool { return !plain(r) }) < 0
}
