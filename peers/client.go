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
	singleFlights = 64        // groups by themselves: net/http hangs with more calls than HTTP/2 allows, which is 100 at first
	maxWaiting    = 10_000    // items that wait to leave for one peer, in batches and as many by themselves
)

// A Failure is why a peer did not answer. Its text is the fixed word that callers get to see.
type Failure string

func (f Failure) Error() string { return string(f) }

// The failures. After those that say so the items have surely not been counted.
const (
	ErrUnreachable = Failure("owner_unreachable") // no connection: nothing was sent
	ErrBusy        = Failure("owner_busy")        // too many wait for it: nothing was sent
	ErrDown        = Failure("owner_down")        // it failed lately and is not asked for a while: nothing was sent
	ErrTimeout     = Failure("owner_timeout")     // no answer in time
	ErrBroken      = Failure("owner_broken")      // an answer that makes no sense, or none
	ErrRefused     = Failure("owner_refused")     // it won't: another secret, or it is about to stop
)

// NotCounted says that what failed with err has surely not been counted by the peer.
func NotCounted(err error) bool { return err != ErrTimeout && err != ErrBroken }

// A Rejection is a peer's word that a message was wrong. It is no failure of the peer: the items are.
type Rejection struct{ Reason string }

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
	heard   atomic.Pointer[string] // the ring's fingerprint that it last sent
	life    atomic.Int64           // of its process, as it last said
	past    int64                  // the one before, of which a message may come late; guarded by set.mu
	left    atomic.Int64           // the life in which it said that it is about to stop; 0 if it hasn't, or is there again
	handed  atomic.Pointer[string] // the ring for which it has handed over everything
	gone    atomic.Bool            // nobody is to call it any more
	cause   atomic.Pointer[error]  // of the last failure, in full
	loud    zerolog.Logger         // for what must be seen, but not a thousand times a second
	stats   stats
}

func newPeer(s *Set, name string) *Peer {
	p := &Peer{name: name, set: s}
	p.loud = s.options.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Second})
	p.newStats(s.metrics)
	p.rt = s.options.transport(p)
	p.batches = batching.New(batching.Options{
		Window: s.options.BatchWindow, Items: s.options.BatchLimit, Bytes: batchBytes, Flights: batchFlights, Waiting: maxWaiting,
	}, messageBytes, p.send)
	p.singles = batching.New(batching.Options{
		Window: s.options.BatchWindow, Items: 1, Bytes: batchBytes, Flights: singleFlights, Waiting: maxWaiting,
	}, messageBytes, p.send)
	p.takes = batching.New(batching.Options{
		Window: s.options.BatchWindow, Items: s.options.BatchLimit, Bytes: batchBytes, Flights: batchFlights, Waiting: maxWaiting,
	}, nameBytes, p.take)
	return p
}

func nameBytes(n wire.Key) int { return 50 + len(n.Name) + len(n.UniqueKey) }

// messageBytes is about the size of r in a message.
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

// Away says whether stand-ins count for the peer now.
func (p *Peer) Away() bool { return p.health.away.Load() }

// Name gives the peer's name in the ring.
func (p *Peer) Name() string { return p.name }

// Check has the peer count a group of items, which travel together, and gives their results in order. Its error is a
// [Failure], a [*Rejection], or that of ctx, which ends the wait but not the call. Unless alone is set the group may
// travel with others.
func (p *Peer) Check(ctx context.Context, group []limits.Request, alone bool) ([]limits.Result, error) {
	var results []limits.Result
	var err error
	switch {
	case p.health.down.Load():
		err = ErrDown
	case alone:
		results, err = p.singles.Do(ctx, group)
	default:
		results, err = p.batches.Do(ctx, group)
	}
	err = p.settle(err)
	p.stats.count(err, len(group))
	return results, err
}

// settle makes a Failure of what ended the wait, unless that was the caller himself.
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
		p.set.options.Log.Error().Str("peer", p.name).Bytes("stack", panicked.Stack).Msg(panicked.Error())
		return ErrBroken
	}
	return err
}

// send makes one call, in the time that a call may take, and draws the conclusions about the peer's health.
func (p *Peer) send(group []limits.Request) ([]limits.Result, error) {
	if p.health.down.Load() {
		return nil, ErrDown
	}
	results, err := p.call(context.Background(), group)
	p.conclude(err)
	return results, err
}

// conclude notes how a call went. With the failure that makes the peer one not to be asked, probes begin.
func (p *Peer) conclude(err error) {
	var rejection *Rejection
	if err == nil || err == ErrRefused || errors.As(err, &rejection) {
		p.health.answered(time.Now())
		return
	}
	p.set.prepareStandIns(p)
	if p.health.failed(time.Now(), err == ErrUnreachable) {
		p.set.probe(p)
	}
}

// deliver sends a message and gives the answer, in the time that the call may take. It is repeated where it surely was not
// processed, and only there: counting twice is worse than not knowing.
func (p *Peer) deliver(ctx context.Context, path string, message []byte, within time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	defer func() {
		if p.gone.Load() {
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

// call has a group counted.
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
		p.set.options.Log.Warn().Str("peer", p.name).AnErr("error", err).Int("items", len(group)).Int("results", len(results)).
			Msg("a peer's answer makes no sense")
		p.cause.Store(new(error(ErrBroken)))
		return nil, ErrBroken
	}
	return results, nil
}

// Listen hears what the peer says of itself: whether it leaves, or is there in another life.
func (p *Peer) Listen(ctx context.Context) {
	if p.health.down.Load() {
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

// usedText gives memory for a message, or none.
func usedText() []byte {
	if text, ok := texts.Get().(*[]byte); ok {
		return (*text)[:0]
	}
	return nil
}

// A body is a message on its way.
type body struct {
	bytes.Reader
	sent atomic.Bool // to the end: nobody reads it any more
}

func (b *body) Read(p []byte) (n int, err error) {
	if n, err = b.Reader.Read(p); err == io.EOF {
		b.sent.Store(true)
	}
	return n, err
}

func (b *body) Close() error { return nil }

// post makes one HTTP request. The message is not the caller's any more if that succeeds.
func (p *Peer) post(ctx context.Context, path string, message []byte) ([]byte, error) {
	connected := false
	sending := new(body)
	sending.Reset(message)
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	req := http.Request{ // without GetBody, by which net/http would repeat more than is safe
		Method: http.MethodPost, URL: &url.URL{Scheme: p.set.options.scheme(), Host: p.name, Path: path}, Header: p.set.View().header,
		Body: sending, ContentLength: int64(len(message)),
	}
	resp, err := p.rt.RoundTrip(req.WithContext(traced))
	if err != nil {
		if !connected {
			err = fmt.Errorf("%w: %w", errNoConnection, err)
		}
		return nil, err
	}
	defer resp.Body.Close()
	p.hear(resp.Header)
	answer, err := readAnswer(resp)
	if err != nil {
		return nil, err
	}
	if err := p.checkStatus(resp.StatusCode, answer); err != nil {
		return nil, err
	}
	if sending.sent.Load() {
		texts.Put(&message)
	}
	return answer, nil
}

// readAnswer reads the whole answer, which should be as long as it says.
func readAnswer(resp *http.Response) ([]byte, error) {
	const usual = 256 << 10 // of a thousand items, and what a peer can make this node take by a word
	var answer bytes.Buffer
	answer.Grow(int(min(max(resp.ContentLength, 0), usual)) + bytes.MinRead)
	_, err := answer.ReadFrom(io.LimitReader(resp.Body, wire.MaxMessage))
	return answer.Bytes(), err
}

// A statusError is an answer that is none.
type statusError int

func (s statusError) Error() string { return "status " + strconv.Itoa(int(s)) }

func (p *Peer) checkStatus(status int, body []byte) error {
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

// classify makes a Failure of what net/http says, and logs it where somebody should know.
func (p *Peer) classify(err error) error {
	var rejection *Rejection
	var status statusError
	failure := ErrBroken
	level := p.set.options.Log.Debug()
	switch {
	case errors.As(err, &rejection):
		return rejection
	case errors.As(err, &status):
		switch int(status) {
		case http.StatusUnauthorized, http.StatusForbidden:
			level, failure = p.loud.Error().Str("hint", "do all nodes have the same WEIR_PEER_SECRET?"), ErrRefused
		case http.StatusServiceUnavailable:
			failure = ErrRefused
		}
	case errors.Is(err, errNoConnection):
		failure = ErrUnreachable
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		failure = ErrTimeout
	}
	p.cause.Store(&err)
	level.Str("peer", p.name).Str("failure", string(failure)).Err(err).Msg("a call to a peer failed")
	return failure
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// unprocessed says whether the peer surely hasn't looked at the request. net/http says so only in words: it would repeat
// the request itself, but has no second copy of the body. The peer refused the stream, or said goodbye before it; or the
// connection was gone when the request's turn came.
func unprocessed(err error) bool {
	text := err.Error()
	return strings.Contains(text, "cannot rewind body after connection loss") || strings.Contains(text, "cannot retry err") &&
		(strings.Contains(text, "REFUSED_STREAM") || strings.Contains(text, "graceful shutdown GOAWAY"))
}

// hear notes what a peer's answer says of its ring.
func (p *Peer) hear(h http.Header) {
	ring := h.Get(wire.HeaderRing)
	if ring == "" {
		return // it doesn't know its place, or it was no weir that answered
	}
	if old := p.heard.Load(); old == nil || *old != ring {
		p.heard.Store(&ring)
	}
	p.set.Heard(p.name, h)
}

// close ends what the peer holds. Calls on their way end by themselves, and the last of them ends the connection.
func (p *Peer) close() {
	p.stats.drop(p.set.metrics)
	p.gone.Store(true)
	p.closeIdle()
	p.closeSoon()
}

// closeSoon is for a connection that net/http has just dialled, and is yet to put where idle ones are. It may have done so
// for a call that is over, so that no call will come to close it.
func (p *Peer) closeSoon() { time.AfterFunc(time.Second, p.closeIdle) }

func (p *Peer) closeIdle() {
	if c, ok := p.rt.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
