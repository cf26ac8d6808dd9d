// Package server is weir's HTTP API. It reads requests, has them decided, and writes the answers; what it decides with
// belongs to package limits.
//
// The way of a check: [Server.Handler] routes it to handleCheck, which reads the body, has package limits decode it, and
// writes one answer. In between, decide has each item counted here or by the peer that owns it; the switch is in route.
package server

import (
	"cmp"
	"context"
	"crypto/sha256"
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

	"weir/global"
	"weir/limits"
	"weir/limits/wire"
	"weir/peers"
)

// Options says what a [Server] works with. Zero values of all but Limiter and Owner are useful.
type Options struct {
	Limiter *limits.Limiter // decides
	Owner   string          // how this node is called in the answers' metadata
	Log     zerolog.Logger  // the zero Logger discards
	Version string          // for weir_build_info

	Peers       *peers.Set     // the cluster; nil for a single node
	Global      *global.Syncer // keeps counts that are taken elsewhere; needed with Peers
	PeerTimeout time.Duration  // how long an item may wait for another node; 0 means 500 ms
	PeerSecrets []string       // any of which peers must send; none: they need not, unless TLS has an authority
	Policy      Policy         // what is answered while nobody can count; "" means PolicyLocal
	TLS         *TLS           // nil serves without

	MaxConns    int           // connections at a time, and requests; 64 more are for health checks and peers; 0 means 10,000
	ReadTimeout time.Duration // for a request to arrive, or an answer to leave; 0 means 10 s
}

// A Server is one node's HTTP API. It is safe for concurrent use.
type Server struct {
	limiter  *limits.Limiter
	owner    string
	log      zerolog.Logger
	failures zerolog.Logger // log, thinned out: whoever sends rubbish must not fill a disk
	loud     zerolog.Logger // log, for what must be seen, but not a thousand times a second
	metrics  *metrics
	http     *http.Server
	draining atomic.Bool
	tls      bool

	checks   atomic.Int64 // clients' requests now
	maxConns int64        // at most, and connections
	room     room         // for clients' large bodies
	peerRoom room         // for peers', which clients must not take away

	peers       *peers.Set
	global      *global.Syncer
	peerTimeout time.Duration
	secrets     [][sha256.Size]byte // hashed, so that comparing them tells nothing of their lengths
	policy      Policy
	clientCerts bool // all but health checks need a certificate
}

// New makes a Server that listens nowhere yet.
func New(o Options) *Server {
	s := &Server{
		limiter: o.Limiter, owner: o.Owner, log: o.Log,
		peers: o.Peers, global: o.Global, peerTimeout: cmp.Or(o.PeerTimeout, 500*time.Millisecond), policy: cmp.Or(o.Policy, PolicyLocal),
		tls: o.TLS != nil, clientCerts: o.TLS != nil && o.TLS.HasCA(),
	}
	s.metrics = newMetrics(o.Limiter, o.Peers, o.Global, s.policy, o.Version)
	s.failures = o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second})
	s.loud = o.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Second})
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

// Handler gives the API for whoever has a listener of his own. It has no timeouts and does not count connections.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve answers on ln until Shutdown, and then gives nil.
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

// spareConns are for those who must get through when clients have taken all other connections: who asks how this node is,
// and peers. Others hear there that it is full.
const spareConns = 64

// connected counts a new connection, marks it if it is a spare one, and closes it at once if those are taken, too: a quick
// refusal is better than a queue.
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

// reserve keeps the spare connections for those whom they are for.
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
