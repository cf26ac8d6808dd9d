package server

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"
)

// handleHealth says that the process lives.
func (s *Server) handleHealth(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`+"\n"))
}

// handleReady reports whether this node takes work. It does not ask for other nodes: that they are away is no reason to
// be sent nothing.
func (s *Server) handleReady(w http.ResponseWriter, r *http.Request) {
	switch status := s.node.Status(); {
	case s.draining.Load():
		writeJSON(w, http.StatusServiceUnavailable, []byte(`{"status":"draining","error":"this node is about to stop"}`+"\n"))
	case !status.Ready:
		writeJSON(w, http.StatusServiceUnavailable,
			[]byte(`{"status":"starting","error":"this node does not know its place in the cluster yet"}`+"\n"))
	default:
		writeJSON(w, http.StatusOK, fmt.Appendf(nil, `{"status":"ready","nodes":%d}`+"\n", status.Size))
	}
}

// handlePeers shows the cluster as this node sees it.
func (s *Server) handlePeers(w http.ResponseWriter, r *http.Request) {
	body, err := json.Marshal(s.node.Status())
	if err != nil {
		panic(err) // a struct of ours
	}
	writeJSON(w, http.StatusOK, append(body, '\n'))
}

// handleMetrics answers in the Prometheus text format.
func (s *Server) handleMetrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	s.node.WriteMetrics(w)
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

// requestID returns the id that the caller or a proxy gave r, or a new one, which it notes in r.
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

// isToken reports whether an id from outside may stand in a log and in a header.
func isToken(id string) bool {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.:/+=", r)
	}
	return id != "" && len(id) <= 64 && strings.IndexFunc(id, func(r rune) bool { return !plain(r) }) < 0
}

// AskHealth asks the weir that listens at an address of this machine, host:port, whether it lives; nil if so. The host
// may be empty or unspecified.
func AskHealth(listen string, overTLS bool) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "localhost"
	}
	// Without a proxy, which is for calls that leave this machine. The certificate is for the name that others use; what
	// listens here is asked whether it lives, no more.
	scheme, client := "http://", http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	if overTLS {
		scheme = "https://"
	}
	resp, err := client.Get(scheme + net.JoinHostPort(host, port) + "/healthz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/healthz answers %s", resp.Status)
	}
	return nil
}
