// Package server is weir's HTTP API. It reads requests, has them decided, and writes the answers; what it decides with
// belongs to package limits.
//
// The way of a check: [Server.Handler] routes it to handleCheck, which reads the body, has package limits decode it,
// decides item by item, and writes one answer.
package server

import (
	"context"
	"errors"
	stdlog "log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"weir/limits"
)

// Options says what a [Server] works with. Zero values of all but Limiter and Owner are useful.
type Options struct {
	Limiter *limits.Limiter // decides
	Owner   string          // how this node is called in the answers' metadata
	Log     zerolog.Logger  // the zero Logger discards
	Version string          // for weir_build_info

	MaxConns    int           // connections at a time, more are closed at once; 0 means 10,000
	ReadTimeout time.Duration // for a request to arrive, or an answer to leave; 0 means 10 s
}

// A Server is one node's HTTP API. It is safe for concurrent use.
type Server struct {
	limiter  *limits.Limiter
	owner    string
	log      zerolog.Logger
	failures zerolog.Logger // log, thinned out: whoever sends rubbish must not fill a disk
	metrics  *metrics
	http     *http.Server
	draining atomic.Bool
}

// New makes a Server that listens nowhere yet.
func New(o Options) *Server {
	s := &Server{limiter: o.Limiter, owner: o.Owner, log: o.Log, metrics: newMetrics(o.Limiter, o.Version)}
	s.failures = o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second})
	timeout := o.ReadTimeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	maxConns := int64(o.MaxConns)
	if maxConns == 0 {
		maxConns = 10_000
	}
	s.http = &http.Server{
		Handler:           s.routes(),
		Protocols:         new(http.Protocols),
		ReadHeaderTimeout: timeout,
		ReadTimeout:       timeout,
		WriteTimeout:      2 * timeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          stdlog.New(debugWriter{o.Log}, "", 0),
		ConnState:         s.limitConns(maxConns),
	}
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// Handler gives the API for whoever has a listener of his own. It has no timeouts and does not count connections.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve answers on ln until Shutdown, and then gives nil.
func (s *Server) Serve(ln net.Listener) error {
	if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Drain makes /readyz say that this node takes no more work, so that what sends it requests stops doing so. Requests
// that come all the same are answered.
func (s *Server) Drain() { s.draining.Store(true) }

// Shutdown stops listening, waits for the requests that are being answered, and at the latest when ctx ends cuts those
// that are left, which is its only error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.http.Close()
	}
	return err
}

func (s *Server) routes() http.Handler {
	r := chi.NewRouter()
	r.Post("/v1/check", s.handleCheck)
	get := func(path string, h http.HandlerFunc) {
		r.Get(path, h)
		r.Head(path, h)
	}
	get("/healthz", s.handleHealth)
	get("/readyz", s.handleReady)
	get("/metrics", s.handleMetrics)
	r.NotFound(func(w http.ResponseWriter, req *http.Request) {
		s.fail(w, req, http.StatusNotFound, "not_found", "there is nothing at this path; checks go to POST /v1/check")
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		allowed := allowedMethods(r, req.URL.Path)
		w.Header().Set("Allow", allowed)
		s.fail(w, req, http.StatusMethodNotAllowed, "method", "this path takes "+allowed)
	})
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.fail(w, req, http.StatusForbidden, "cross_origin", "web pages of other origins may not send checks")
	}))
	return s.observe(origins.Handler(r))
}

func allowedMethods(r chi.Routes, path string) string {
	methods := []string{http.MethodGet, http.MethodHead, http.MethodPost}
	return strings.Join(slices.DeleteFunc(methods, func(method string) bool {
		return !r.Match(chi.NewRouteContext(), method, path)
	}), ", ")
}

// limitConns closes connections as they come while there are most of them: a quick refusal is better than a queue.
func (s *Server) limitConns(most int64) func(net.Conn, http.ConnState) {
	return func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if s.metrics.conns.Add(1) > most {
				s.metrics.reject("connections")
				c.Close()
			}
		case http.StateClosed, http.StateHijacked:
			s.metrics.conns.Add(-1)
		}
	}
}

// debugWriter takes what net/http has to say, which is about single connections of clients.
type debugWriter struct{ log zerolog.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug().Str("from", "net/http").Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}
