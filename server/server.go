// Package server is the doors of a node: its HTTP API for clients and for peers. It reads requests, keeps them within
// bounds, has the node decide on them, and writes the answers.
//
// The way of a check: [Server.Handler] routes it to handleCheck, which reads the body, has package limits decode it,
// has [node.Node.CheckAll] decide, and writes one answer.
package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"weir/limits/wire"
	"weir/server/node"
)

// Options says what a [Server] works with. Zero values of all but Node are useful.
type Options struct {
	Node    *node.Node     // decides
	Log     zerolog.Logger // the zero Logger discards
	Version string         // for weir_build_info

	PeerSecrets []string // any of which peers must send; none: they need not, unless TLS has an authority
	TLS         *TLS     // nil serves without

	MaxConns    int           // connections, and requests; 64 more are for health checks and peers; 0 means 10,000
	ReadTimeout time.Duration // for a request to arrive, or an answer to leave; 0 means 10 s
}

// A Server is the doors of one node: its HTTP API for clients and peers. It is safe for concurrent use.
type Server struct {
	node         *node.Node
	log          zerolog.Logger
	failures     zerolog.Logger // log, thinned out: rubbish that is sent must not fill a disk
	throttledLog zerolog.Logger // log, for what must be seen, but not a thousand times a second
	metrics      *metrics
	http         *http.Server
	draining     atomic.Bool

	checks     atomic.Int64 // clients' requests now
	maxConns   int64        // at most, and connections
	budget     memoryBudget // for clients' large bodies
	peerBudget memoryBudget // for peers', which clients must not take away

	secrets     [][sha256.Size]byte // hashed, so that comparing them tells nothing of their lengths
	tls         bool
	clientCerts bool // all but health checks need a certificate
}

// New makes a Server that listens nowhere yet.
func New(o Options) *Server {
	s := &Server{
		node: o.Node, log: o.Log, metrics: newMetrics(o.Version),
		failures:     o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second}),
		throttledLog: o.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Second}),
		tls:          o.TLS != nil, clientCerts: o.TLS != nil && o.TLS.HasCA(),
	}
	for _, secret := range o.PeerSecrets {
		s.secrets = append(s.secrets, sha256.Sum256([]byte(secret)))
	}
	timeout := cmp.Or(o.ReadTimeout, 10*time.Second)
	s.maxConns = int64(cmp.Or(o.MaxConns, 10_000))
	s.http = &http.Server{
		Handler:           s.routes(),
		Protocols:         new(http.Protocols),
		ReadHeaderTimeout: timeout,
		ReadTimeout:       timeout,
		WriteTimeout:      2 * timeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          stdlog.New(debugWriter{o.Log}, "", 0),
		ConnContext:       s.connected,
		ConnState:         s.disconnected,
	}
	s.http.Protocols.SetHTTP1(true)
	if o.TLS == nil {
		s.http.Protocols.SetUnencryptedHTTP2(true)
	} else {
		s.http.Protocols.SetHTTP2(true)
		s.http.TLSConfig = o.TLS.Server()
	}
	return s
}

// Handler returns the API for programs that have a listener of their own. It has no timeouts and does not count
// connections.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve answers on ln until Shutdown or Stop, and then returns nil.
func (s *Server) Serve(ln net.Listener) error {
	serve := s.http.Serve
	if s.tls { // not http.TLSConfig: net/http sets that itself
		serve = func(ln net.Listener) error { return s.http.ServeTLS(ln, "", "") }
	}
	if err := serve(ln); !errors.Is(err, http.ErrServerClosed) {
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

// Stop ends s and its node so that as little as possible is lost. For delay, or until something comes from hurry, all
// goes on: /readyz says that this node takes no more work, and peers take over its limits. Then, within timeout, it
// hands over the rest, finishes the requests that are being answered, and hands over what those have counted; what is
// left goes to the node's snapshot. The error is that requests had to be cut off.
func (s *Server) Stop(delay, timeout time.Duration, hurry <-chan os.Signal) error {
	s.Drain()
	s.node.StartLeaving()
	select {
	case <-time.After(delay):
	case <-hurry:
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s.node.Leave(ctx)
	err := s.Shutdown(ctx)
	if err != nil {
		s.log.Warn().Err(err).Msg("requests were cut off")
	}
	s.node.Leave(ctx)
	s.node.Close()
	return err
}

func (s *Server) routes() http.Handler {
	r := chi.NewRouter()
	r.Post("/v1/check", s.handleCheck)
	get := func(path string, h http.HandlerFunc) {
		r.Get(path, h)
		r.Head(path, h)
	}
	r.Post(wire.BatchPath, s.guardPeers(s.handlePeerBatch))
	r.Post(wire.ReportPath, s.guardPeers(s.handlePeerReport))
	r.Post(wire.StatesPath, s.guardPeers(s.handlePeerStates))
	r.Post(wire.TakePath, s.guardPeers(s.handlePeerTake))
	r.Post(wire.LeavePath, s.guardPeers(s.handlePeerLeave))
	get("/v1/peers", s.handlePeers)
	get("/healthz", s.handleHealth)
	get("/readyz", s.handleReady)
	get("/metrics", s.handleMetrics)
	notFound := func(w http.ResponseWriter, req *http.Request) {
		s.fail(w, req, http.StatusNotFound, "not_found", "there is nothing at this path; checks go to POST /v1/check")
	}
	r.NotFound(notFound)
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		allowed := allowedMethods(r, req.URL.Path)
		if allowed == "" { // chi asks here for methods that it doesn't know, whatever the path
			notFound(w, req)
			return
		}
		w.Header().Set("Allow", allowed)
		s.fail(w, req, http.StatusMethodNotAllowed, "method", "this path takes "+allowed)
	})
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.fail(w, req, http.StatusForbidden, "cross_origin", "web pages of other origins may not send checks")
	}))
	return s.observe(s.reserve(s.requireCert(origins.Handler(r))))
}

func allowedMethods(r chi.Routes, path string) string {
	methods := []string{http.MethodGet, http.MethodHead, http.MethodPost}
	return strings.Join(slices.DeleteFunc(methods, func(method string) bool {
		return !r.Match(chi.NewRouteContext(), method, path)
	}), ", ")
}

// spareConns are for what must get through when clients have taken all other connections: health checks and peers.
// Others hear there that the node is full.
const spareConns = 64

// connected counts a new connection, marks it if it is a spare one, and closes it at once if those are taken, too: a
// quick refusal is better than a queue.
func (s *Server) connected(ctx context.Context, c net.Conn) context.Context {
	n := s.metrics.conns.Add(1)
	if n > s.maxConns {
		s.metrics.reject("connections")
		ctx = context.WithValue(ctx, spareConn{}, true)
	}
	if n > s.maxConns+spareConns {
		c.Close()
	}
	return ctx
}

func (s *Server) disconnected(_ net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		s.metrics.conns.Add(-1)
	}
}

// A spareConn marks the context of what comes over one.
type spareConn struct{}

// reserve keeps the spare connections for what they are for.
func (s *Server) reserve(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(spareConn{}) != nil && !isHealthPath(r.URL.Path) && !strings.HasPrefix(r.URL.Path, "/v1/peer/") {
			closeAfter(w, r)
			s.failBusy(w, r, "too many connections; close some, or send more items on each")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isHealthPath(path string) bool { return path == "/healthz" || path == "/readyz" }

// debugWriter takes what net/http has to say, which is about single connections of clients.
type debugWriter struct{ log zerolog.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug().Str("from", "net/http").Msg(strings.TrimSpace(string(p)))
	return len(p), nil
}
