package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"weir/batching"
	"weir/limits"
	"weir/limits/wire"
)

const (
	batchBytes    = 512 << 10 // a batch takes no more items beyond this
	batchFlights  = 4         // batches on their way to one peer
	singleFlights = 64        // groups by themselves: with more calls than HTTP/2 allows, 100 at first, net/http hangs
	maxWaiting    = 10_000    // items that wait to leave for one peer, in batches and as many by themselves
)

// A Failure is why a peer did not answer. Its text is the fixed word that callers get to see.
type Failure string

// Error returns the word.
func (f Failure) Error() string { return string(f) }

// The failures. [NotCounted] tells after which of them the items have surely not been counted.
const (
	ErrUnreachable = Failure("owner_unreachable") // no connection: nothing was sent
	ErrBusy        = Failure("owner_busy")        // too many wait for it: nothing was sent
	ErrDown        = Failure("owner_down")        // it failed lately and is not asked for a while: nothing was sent
	ErrTimeout     = Failure("owner_timeout")     // no answer in time
	ErrBroken      = Failure("owner_broken")      // an answer that makes no sense, or none
	ErrRefused     = Failure("owner_refused")     // it won't: another secret, or it is about to stop
)

// NotCounted reports whether a peer has surely not counted the items of a call that failed with err.
func NotCounted(err error) bool { return err != ErrTimeout && err != ErrBroken }

// A Rejection is a peer's answer that a message was wrong. The fault is the message's, so the peer counts as healthy.
type Rejection struct{ Reason string }

// Error returns the reason in a sentence.
func (r *Rejection) Error() string { return "the owner refused this check: " + r.Reason }

// A Peer is another node. It is safe for concurrent use.
type Peer struct {
	name    string
	set     *Set
	addrs   atomic.Pointer[[]netip.AddrPort] // where to dial, as DNS said; nil: as the name says
	rt      http.RoundTripper
	batches *batching.Batcher[limits.Request, limits.Result]
	singles *batching.Batcher[limits.Request, limits.Result] // for groups that are to travel by themselves
	takes   *batching.Batcher[wire.Key, wire.KeyedState]
	health  breaker
	stats   stats

	lastRing     atomic.Pointer[string] // the ring's fingerprint that it last sent
	incarnation  atomic.Int64           // as it last said
	previous     int64                  // the one before, of which a message may come late; guarded by set.mu
	leftIn       atomic.Int64           // the incarnation that is about to stop; 0 if none is, or another has followed
	handoverRing atomic.Pointer[string] // the ring for which it has handed over everything
	closed       atomic.Bool            // it is not listed any more

	cause        atomic.Pointer[error] // of the last failure, in full
	log          zerolog.Logger
	throttledLog zerolog.Logger // for what must be seen, but not a thousand times a second
}

func newPeer(s *Set, name string) *Peer {
	p := &Peer{name: name, set: s, log: s.options.Log.With().Str("peer", name).Logger()}
	p.throttledLog = p.log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Second})
	p.newStats(s.metrics)
	p.rt = s.options.transport(p)
	bounds := func(items, flights int) batching.Options {
		return batching.Options{
			Window: s.options.BatchWindow, Items: items, Bytes: batchBytes, Flights: flights, Waiting: maxWaiting,
		}
	}
	p.batches = batching.New(bounds(s.options.BatchLimit, batchFlights), messageBytes, p.send)
	p.singles = batching.New(bounds(1, singleFlights), messageBytes, p.send)
	p.takes = batching.New(bounds(s.options.BatchLimit, batchFlights), nameBytes, p.take)
	return p
}

func nameBytes(n wire.Key) int { return 50 + len(n.Name) + len(n.UniqueKey) }

// messageBytes returns about the size of r in a message.
func messageBytes(r limits.Request) int {
	return 100 + len(r.Name) + len(r.UniqueKey) + len(r.TimeZone)
}

// setAddrs takes over where to dial.
func (p *Peer) setAddrs(m Member) {
	if m.Resolved {
		p.addrs.Store(&m.Addrs)
	} else {
		p.addrs.Store(nil)
	}
}

// Name returns the peer's name in the ring.
func (p *Peer) Name() string { return p.name }

// Away reports whether stand-ins count for the peer now: it has been silent for long, or nothing can connect to it.
func (p *Peer) Away() bool { return p.health.away.Load() }

// down reports whether calls are to fail at once.
func (p *Peer) down() bool { return p.health.state() >= StateDown }

// hasLeft reports whether the peer is out of the ring, though it may be listed: it said that it is about to stop.
func (p *Peer) hasLeft() bool { return p.leftIn.Load() != 0 }

// listed reports whether the peer is in the present list. A node that was listed anew is another Peer.
func (p *Peer) listed() bool { return p.set.View().peer(p.name) == p }

// Check has the peer count a group of items, which travel together, and returns their results in order. Unless
// unbatched is set the group may travel with those of other callers. The error is a [Failure], a [*Rejection], or that
// of ctx, which ends the wait but not the call.
func (p *Peer) Check(ctx context.Context, group []limits.Request, unbatched bool) ([]limits.Result, error) {
	var results []limits.Result
	var err error
	switch {
	case p.down():
		err = ErrDown
	case unbatched:
		results, err = p.singles.Do(ctx, group)
	default:
		results, err = p.batches.Do(ctx, group)
	}
	err = p.settle(err)
	p.stats.count(err, len(group))
	return results, err
}

// settle makes a Failure of what ended the wait, unless the caller gave up.
func (p *Peer) settle(err error) error {
	var panicked *batching.PanicError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, batching.ErrFull), errors.Is(err, batching.ErrNotSent):
		return ErrBusy
	case errors.Is(err, context.DeadlineExceeded):
		return ErrTimeout
	case errors.As(err, &panicked):
		p.log.Error().Bytes("stack", panicked.Stack).Msg(panicked.Error())
		return ErrBroken
	}
	return err
}

// send makes one call, in the time that a call may take, and draws the conclusions about the peer's health.
func (p *Peer) send(group []limits.Request) ([]limits.Result, error) {
	if p.down() {
		return nil, ErrDown
	}
	results, err := p.call(context.Background(), group)
	p.conclude(err)
	return results, err
}

// conclude notes how a call went. With the failure that brings the peer down, probes begin.
func (p *Peer) conclude(err error) {
	if _, rejected := errors.AsType[*Rejection](err); err == nil || err == ErrRefused || rejected {
		p.health.answered(time.Now())
		return
	}
	if v := p.set.View(); v.peer(p.name) == p {
		v.standIn(0, p) // makes the ring without it before a check waits for that
	}
	if p.health.failed(time.Now(), err == ErrUnreachable) {
		p.probe()
	}
}

// deliver sends a message and returns the answer, in the time that the call may take. It repeats a call that surely was
// not processed, and no other: counting twice is worse than not knowing.
func (p *Peer) deliver(ctx context.Context, path string, message []byte, within time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	defer func() {
		if p.closed.Load() {
			p.closeIdle()
		}
	}()
	answer, err := p.post(ctx, path, message)
	if err != nil && unprocessed(err) {
		p.stats.repeated.Inc()
		answer, err = p.post(ctx, path, message)
	}
	return answer, err
}

// call makes one call that has a group counted. An empty group only asks the peer for a sign of life.
func (p *Peer) call(ctx context.Context, group []limits.Request) ([]limits.Result, error) {
	start := time.Now()
	text := wire.AppendRequests(slices.Grow(usedText(), 64+160*len(group)), group)
	answer, err := p.deliver(ctx, wire.BatchPath, text, p.set.options.Timeout)
	if len(group) > 0 { // not a probe
		p.stats.latency.Update(time.Since(start).Seconds())
		p.stats.batch.Update(float64(len(group)))
	}
	if err != nil {
		return nil, p.classify(err)
	}
	results, err := wire.ReadPeerResults(make([]limits.Result, 0, len(group)), answer)
	if err != nil || len(results) != len(group) {
		return nil, p.senseless(p.log.Warn().AnErr("error", err).Int("items", len(group)).Int("results", len(results)))
	}
	return results, nil
}

// senseless logs an answer that can't be read, with what is in line, and returns the failure.
func (p *Peer) senseless(line *zerolog.Event) error {
	line.Msg("a peer's answer makes no sense")
	p.cause.Store(new(error(ErrBroken)))
	return ErrBroken
}

// Ping asks the peer for a sign of life, unless it is down. Before Ping returns, the Set has learnt from the answer
// whether the peer is about to leave or is another incarnation.
func (p *Peer) Ping(ctx context.Context) {
	if p.down() {
		return
	}
	if _, err := p.call(ctx, nil); !errors.Is(ctx.Err(), context.Canceled) {
		p.conclude(err)
	}
}

// errNoConnection marks that a request had no connection to go out on.
var errNoConnection = errors.New("no connection")

// texts keeps the memory of messages (as *[]byte) for others.
var texts sync.Pool

// usedText returns empty memory for a message; nil if there is none to use again.
func usedText() []byte {
	if text, ok := texts.Get().(*[]byte); ok {
		return (*text)[:0]
	}
	return nil
}

// A body is a message on its way.
type body struct {
	bytes.Reader
	sent atomic.Bool // to the end: it is not read any more
}

func (b *body) Read(p []byte) (n int, err error) {
	if n, err = b.Reader.Read(p); err == io.EOF {
		b.sent.Store(true)
	}
	return n, err
}

func (b *body) Close() error { return nil }

// post makes one HTTP request and returns the body of its answer. If it succeeds the caller must not use the message
// any more, since another one may get its memory.
func (p *Peer) post(ctx context.Context, path string, message []byte) ([]byte, error) {
	connected := false
	sending := new(body)
	sending.Reset(message)
	trace := httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
	req := http.Request{ // without GetBody, by which net/http would repeat more than is safe
		Method: http.MethodPost, URL: &url.URL{Scheme: p.set.options.scheme(), Host: p.name, Path: path},
		Header: p.set.View().header, Body: sending, ContentLength: int64(len(message)),
	}
	resp, err := p.rt.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, &trace)))
	if err != nil {
		if !connected {
			err = fmt.Errorf("%w: %w", errNoConnection, err)
		}
		return nil, err
	}
	defer resp.Body.Close()
	p.observe(resp.Header)
	answer, err := readAnswer(resp)
	if err != nil {
		return nil, err
	}
	if err := checkStatus(resp.StatusCode, answer); err != nil {
		return nil, err
	}
	if sending.sent.Load() {
		texts.Put(&message)
	}
	return answer, nil
}

// readAnswer reads the whole answer, which should be as long as its header has it.
func readAnswer(resp *http.Response) ([]byte, error) {
	const usual = 256 << 10 // of a thousand items, and all that a peer can make this node reserve by a header
	var answer bytes.Buffer
	answer.Grow(int(min(max(resp.ContentLength, 0), usual)) + bytes.MinRead)
	_, err := answer.ReadFrom(io.LimitReader(resp.Body, wire.MaxMessage))
	return answer.Bytes(), err
}

// A statusError is an answer of which only the status counts.
type statusError int

func (s statusError) Error() string { return "status " + strconv.Itoa(int(s)) }

// checkStatus returns the error that an answer stands for, if any.
func checkStatus(status int, body []byte) error {
	switch status {
	case http.StatusOK:
		return nil
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		var refusal struct {
			Error string `json:"error"`
		}
		if err := json.Unmarshal(body, &refusal); err != nil || refusal.Error == "" {
			refusal.Error = http.StatusText(status)
		}
		return &Rejection{refusal.Error}
	}
	return statusError(status)
}

// classify makes a Failure of an error of net/http, and logs it: as an error if an operator has to act.
func (p *Peer) classify(err error) error {
	if rejection, ok := errors.AsType[*Rejection](err); ok {
		return rejection
	}
	line, failure := p.log.Debug(), ErrBroken
	switch status, _ := errors.AsType[statusError](err); {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		line, failure = p.throttledLog.Error().Str("hint", "do all nodes have the same WEIR_PEER_SECRET?"), ErrRefused
	case status == http.StatusServiceUnavailable:
		failure = ErrRefused
	case errors.Is(err, errNoConnection):
		failure = ErrUnreachable
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		failure = ErrTimeout
	}
	p.cause.Store(&err)
	line.Str("failure", string(failure)).Err(err).Msg("a call to a peer failed")
	return failure
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// unprocessed reports whether the peer surely hasn't looked at the request: it refused the stream, or said goodbye
// before it, or the connection was gone when the request's turn came. net/http tells that only in the error's text: it
// would repeat the request itself, but has no second copy of the body.
func unprocessed(err error) bool {
	text := err.Error()
	return strings.Contains(text, "cannot rewind body after connection loss") ||
		strings.Contains(text, "cannot retry err") &&
			(strings.Contains(text, "REFUSED_STREAM") || strings.Contains(text, "graceful shutdown GOAWAY"))
}

// observe notes what the peer says of itself in an answer.
func (p *Peer) observe(h http.Header) {
	ring := h.Get(wire.HeaderRing)
	if ring == "" {
		return // the peer doesn't know its place, or is no weir
	}
	if old := p.lastRing.Load(); old == nil || *old != ring {
		p.lastRing.Store(&ring)
	}
	p.set.Observe(p.name, h)
}

// close frees what the peer holds. Calls on their way end by themselves, and the last of them ends the connection.
func (p *Peer) close() {
	p.stats.drop(p.set.metrics)
	p.closed.Store(true)
	p.closeIdle()
	p.closeSoon()
}

// closeSoon closes a connection that net/http has just dialled and is yet to put among the idle ones. The call that it
// was dialled for may be over, so that no call will come to close it.
func (p *Peer) closeSoon() { time.AfterFunc(time.Second, p.closeIdle) }

func (p *Peer) closeIdle() {
	if c, ok := p.rt.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

const (
	pingAfter   = time.Second     // of silence on a connection
	pingTimeout = 3 * time.Second // for the answer, and for any byte to be written: an overloaded peer is not a dead one
)

// transport returns what makes the HTTP requests to p: HTTP/2 alone, since a client that may also speak HTTP/1 does so
// without TLS; one connection however many calls, which is given up seconds after the peer falls silent, also while a
// write is blocked.
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

// dial connects to the first of the peer's addresses that answers.
func (p *Peer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	defer func() {
		if p.closed.Load() {
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
