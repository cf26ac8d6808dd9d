package peers

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
)

// A counter is a listener that counts connections.
type counter struct {
	net.Listener
	accepted atomic.Int64
	open     atomic.Int64
}

func (c *counter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.accepted.Add(1)
	c.open.Add(1)
	return &counted{Conn: conn, close: sync.OnceFunc(func() { c.open.Add(-1) })}, nil
}

type counted struct {
	net.Conn
	close func()
}

func (c *counted) Close() error {
	c.close()
	return c.Conn.Close()
}

func listenLocal(t testing.TB) *counter {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &counter{Listener: ln}
}

// h2c makes a server that speaks what nodes speak to each other, and HTTP/1.
func h2c(h http.HandlerFunc) *http.Server {
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// startPeer starts a peer that answers as h does. It ends with the test.
func startPeer(t testing.TB, h http.HandlerFunc) *counter {
	t.Helper()
	ln, s := listenLocal(t), h2c(h)
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(ln) })
	t.Cleanup(func() {
		s.Close()
		serving.Wait()
	})
	return ln
}

// know makes a Set of this node and one peer behind ln. It is closed with the test.
func know(t testing.TB, ln net.Listener, o Options) *Peer {
	t.Helper()
	s := New(o)
	t.Cleanup(s.Close)
	name := ln.Addr().String()
	s.Update("self:1", []Member{{Name: "self:1"}, {Name: name}})
	return s.View().peer(name)
}

// group makes some items of different keys.
func group(n int) []limits.Request {
	items := make([]limits.Request, n)
	for i := range items {
		items[i] = limits.Request{Name: "n", UniqueKey: fmt.Sprint("k", i), Hits: 1, Limit: 10, Duration: 60_000}
	}
	return items
}

// readItems reads a message as a peer does.
func readItems(t *testing.T, r *http.Request) []limits.Request {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil // the caller has gone
	}
	items, err := wire.ReadPeerRequests(nil, body)
	if err != nil {
		t.Errorf("%v in %s", err, body)
	}
	return items
}

// answerAll answers as a peer that lets everything pass. The limits tell results apart.
func answerAll(t *testing.T, w http.ResponseWriter, r *http.Request) {
	var results []limits.Result
	for _, item := range readItems(t, r) {
		results = append(results, limits.Result{Status: limits.StatusOK, Limit: item.Limit, Remaining: 1, ResetTime: 1})
	}
	w.Write(wire.AppendResults(nil, results))
}

// long is a timeout that no test waits for.
const long = time.Minute

// eventually waits for something of which there is no notice.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within half a minute", what)
		}
	}
}

// noneLeft waits until there are no more goroutines than before.
func noneLeft(t *testing.T, before int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d goroutines as before", before), func() bool { return runtime.NumGoroutine() <= before })
}

const okResult = `{"status":"OK","limit":10,"remaining":9,"reset_time":1}`

// TestAnswers has a peer answer two items in many ways. Three of the same have the breaker act, or not.
func TestAnswers(t *testing.T) {
	two := `{"rate_limits":[` + okResult + "," + okResult + `]}`
	reply := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		want   error
		health string
	}{
		{"good", reply(200, two), nil, isUp},
		{"members of a newer version", reply(200, `{"version":{"a":[1]},"rate_limits":[{"x":null,`+okResult[1:]+","+
			strings.TrimSuffix(okResult, "}")+`,"metadata":{"owner":"o","shard":[7]}}],"more":[[]]}`), nil, isUp},
		{"too few results", reply(200, `{"rate_limits":[`+okResult+`]}`), ErrBroken, isDown},
		{"too many results", reply(200, strings.Replace(two, "[", "["+okResult+",", 1)), ErrBroken, isDown},
		{"an empty list", reply(200, `{"rate_limits":[]}`), ErrBroken, isDown},
		{"an empty object", reply(200, `{}`), ErrBroken, isDown},
		{"nothing", reply(200, ""), ErrBroken, isDown},
		{"no content", reply(204, ""), ErrBroken, isDown},
		{"null", reply(200, "null"), ErrBroken, isDown},
		{"null for a result", reply(200, strings.Replace(two, okResult, "null", 1)), ErrBroken, isDown},
		{"an unknown status", reply(200, strings.Replace(two, "OK", "MAYBE", 1)), ErrBroken, isDown},
		{"a number too large", reply(200, strings.Replace(two, "10", "9223372036854775808", 1)), ErrBroken, isDown},
		{"two answers", reply(200, two+two), ErrBroken, isDown},
		{"half an answer", reply(200, two[:len(two)/2]), ErrBroken, isDown},
		{"HTML", reply(200, "<html><body>It works!</body></html>"), ErrBroken, isDown},
		{"broken off", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, two[:20])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, ErrBroken, isDown},
		{"no answer at all", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ErrBroken, isDown},
		{"301", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, wire.BatchPath, http.StatusMovedPermanently)
		}, ErrBroken, isDown},
		{"307", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, ErrBroken, isDown},
		{"404", reply(404, two), ErrBroken, isDown},
		{"500", reply(500, two), ErrBroken, isDown},
		{"502", reply(502, two), ErrBroken, isDown},
		{"504", reply(504, ""), ErrBroken, isDown},
		{"503", reply(503, two), ErrRefused, isUp},
		{"401", reply(401, "{}"), ErrRefused, isUp},
		{"403", reply(403, "{}"), ErrRefused, isUp},
		{"400", reply(400, `{"error":"name: unreadable"}`+"\n"), &Rejection{"name: unreadable"}, isUp},
		{"413", reply(413, strings.Repeat("x", 1000)), &Rejection{"Request Entity Too Large"}, isUp},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := know(t, startPeer(t, func(w http.ResponseWriter, r *http.Request) {
				if len(readItems(t, r)) == 0 {
					w.WriteHeader(500) // a probe: the peer shall not come back while the test looks at it
					return
				}
				if r.URL.Path != wire.BatchPath {
					t.Errorf("a call to %s", r.URL.Path)
				}
				test.answer(w, r)
			}), Options{Timeout: long})
			for i := range failuresToDown {
				results, err := p.Check(t.Context(), group(2), i%2 == 0)
				if fmt.Sprintf("%T %v", err, err) != fmt.Sprintf("%T %v", test.want, test.want) {
					t.Fatalf("got %T %v, want %T %v", err, err, test.want, test.want)
				}
				if err == nil && (len(results) != 2 || results[0].Remaining != 9 || results[1].Status != limits.StatusOK) {
					t.Fatalf("got %+v", results)
				}
			}
			if got := breakerView(&p.health); got != test.health {
				t.Errorf("then it is %s, want %s", got, test.health)
			}
		})
	}
}

// TestRefusalIsLogged looks at the log after a peer refused this node's secret: an operator that has set it wrong has
// to find that there, and not the secret. An answer that refuses has no header with a ring; that is not another ring.
func TestRefusalIsLogged(t *testing.T) {
	for _, status := range []int{401, 403} {
		var log bytes.Buffer
		p := know(t, startPeer(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }),
			Options{Timeout: long, Secret: "hush-hush", Log: zerolog.New(&log).Level(zerolog.WarnLevel)})
		for range 20 {
			if _, err := p.Check(t.Context(), one, true); err != ErrRefused {
				t.Fatal(err)
			}
		}
		p.set.Close()
		lines := 0
		for line := range strings.Lines(log.String()) {
			lines++
			var entry struct{ Level, Message, Peer, Failure, Hint string }
			if err := json.Unmarshal([]byte(line), &entry); err != nil {
				t.Fatal(err)
			}
			if entry.Level != "error" || entry.Peer != p.name || entry.Failure != string(ErrRefused) ||
				!strings.Contains(entry.Hint, "WEIR_PEER_SECRET") {
				t.Errorf("%d: the log has %s", status, line)
			}
		}
		if lines == 0 || lines == 20 || strings.Contains(log.String(), "hush") {
			t.Errorf("%d: %d of 20 refusals are in the log:\n%s", status, lines, &log)
		}
	}
}

// TestThrottledLogs has two peers refuse this node's secret and then, in the same moment, others show another list of
// nodes: the lines of one kind must not hide those of the other.
func TestThrottledLogs(t *testing.T) {
	var log bytes.Buffer
	s := New(Options{Timeout: long, Log: zerolog.New(&log).Level(zerolog.WarnLevel)})
	defer s.Close()
	list := []Member{{Name: "self:1"}}
	for i := range 4 {
		list = append(list, Member{Name: startPeer(t, func(w http.ResponseWriter, r *http.Request) {
			if i < 2 {
				w.WriteHeader(401)
				return
			}
			w.Header().Set(wire.HeaderProtocol, wire.Protocol)
			w.Header().Set(wire.HeaderRing, "another")
			answerAll(t, w, r)
		}).Addr().String()})
	}
	s.Update("self:1", list)
	for range 3 {
		for _, m := range list[1:] {
			s.View().peer(m.Name).Check(t.Context(), one, true)
		}
	}
	for i, m := range list[1:] {
		want := "a call to a peer failed"
		if i >= 2 {
			want = "a peer has another list of nodes, or another version"
		}
		found := 0
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, m.Name) && strings.Contains(line, want) {
				found++
			}
		}
		if found == 0 || i >= 2 && found > 1 {
			t.Errorf("%d times %q of peer %d in\n%s", found, want, i, &log)
		}
	}
}

// TestHugeAnswers has a peer send without end: this node must stop to read, and tell the peer so.
func TestHugeAnswers(t *testing.T) {
	for _, test := range []struct{ name, start, more string }{
		{"results", `{"rate_limits":[` + okResult, "," + okResult},
		{"blanks", "", strings.Repeat(" ", 1000)},
		{"an unknown member", `{"x":"`, strings.Repeat("x", 1000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			sent := make(chan int, 1)
			p := know(t, startPeer(t, func(w http.ResponseWriter, r *http.Request) {
				if len(readItems(t, r)) == 0 {
					return // a probe
				}
				total, _ := io.WriteString(w, test.start)
				more := strings.Repeat(test.more, 1<<16/len(test.more))
				for {
					n, err := io.WriteString(w, more)
					if total += n; err != nil || total > 1<<30 {
						sent <- total
						return
					}
				}
			}), Options{Timeout: long})
			if _, err := p.Check(t.Context(), one, true); err != ErrBroken {
				t.Errorf("got %v", err)
			}
			const underWay = 8 << 20 // in the buffers between the two
			if total := <-sent; total > wire.MaxMessage+underWay {
				t.Errorf("%d bytes were taken", total)
			}
		})
	}
}

// TestLargestAnswerFits is for the bound in TestHugeAnswers: 1,000 results, each as long as one can be.
func TestLargestAnswerFits(t *testing.T) {
	const worst = 1<<63 - 1
	p := know(t, startPeer(t, func(w http.ResponseWriter, r *http.Request) {
		results := make([]limits.Result, len(readItems(t, r)))
		for i := range results {
			results[i] = limits.Result{
				Status: limits.StatusOverLimit, Limit: worst, Remaining: worst, ResetTime: worst, RetryAfter: worst,
				Metadata: bucket.Metadata{
					Owner: strings.Repeat("o", 300), Degraded: "owner_unreachable", Reason: bucket.ReasonTooManyHits,
				},
			}
		}
		w.Write(wire.AppendResults(nil, results))
	}), Options{Timeout: long})
	items := group(wire.MaxItems)
	for i := range items {
		items[i].Name = strings.Repeat("\x01", bucket.MaxNameBytes)
		items[i].UniqueKey = strings.Repeat("ü", bucket.MaxKeyBytes/2)
	}
	if results, err := p.Check(t.Context(), items, false); err != nil || len(results) != len(items) {
		t.Errorf("%d results, %v", len(results), err)
	}
}

// TestNotAPeer puts things into the list that are no nodes. Each caller gets an answer by the timeout, also when many
// wait, and nothing is left when it is over.
func TestNotAPeer(t *testing.T) {
	for _, test := range []struct {
		name    string
		talk    func(c net.Conn)
		timeout time.Duration // where a wait is what is expected, and so not for long
		wants   []error
	}{
		{"silent", func(c net.Conn) { io.Copy(io.Discard, c) }, 100 * time.Millisecond, []error{ErrTimeout, ErrUnreachable}},
		{"closes at once", func(net.Conn) {}, long, []error{ErrBroken, ErrUnreachable}},
		{"resets", func(c net.Conn) {
			c.(*counted).Conn.(*net.TCPConn).SetLinger(0)
		}, long, []error{ErrBroken, ErrUnreachable}},
		{"garbage", func(c net.Conn) {
			c.Write(bytes.Repeat([]byte("\xff\xfe garbage \r\n"), 1000))
			io.Copy(io.Discard, c)
		}, long, []error{ErrBroken}},
		{"a giant frame", func(c net.Conn) {
			c.Write([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1})
			io.Copy(io.Discard, c)
		}, long, []error{ErrBroken}},
		{"HTTP/1", func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
			io.Copy(io.Discard, c)
		}, long, []error{ErrBroken}},
		{"a mail server", func(c net.Conn) {
			io.WriteString(c, "220 mail.test ESMTP\r\n")
			io.Copy(io.Discard, c)
		}, long, []error{ErrBroken}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			ln := listenLocal(t)
			var talking sync.WaitGroup
			talking.Go(func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					talking.Go(func() {
						defer c.Close()
						test.talk(c)
					})
				}
			})
			s := New(Options{Timeout: test.timeout})
			s.Update("self:1", []Member{{Name: "self:1"}, {Name: ln.Addr().String()}})
			p := s.View().peer(ln.Addr().String())
			var callers sync.WaitGroup
			for i := range 300 {
				callers.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), test.timeout)
					defer cancel()
					_, err := p.Check(ctx, group(1+i%3), i%2 == 0)
					if err != ErrDown && err != ErrBusy && !slices.Contains(test.wants, err) {
						t.Errorf("got %v, want one of %v", err, test.wants)
					}
				})
			}
			callers.Wait()
			eventually(t, "the peer is down", p.down)
			s.Close()
			ln.Close()
			eventually(t, "no connection", func() bool { return ln.open.Load() == 0 })
			talking.Wait()
			noneLeft(t, before)
		})
	}
}

// TestOneConnection has many call one peer at a time, many more than HTTP/2 allows. All are answered, over one
// connection; the first ones, which find none, may dial several, but no more than are let go at a time.
func TestOneConnection(t *testing.T) {
	for _, test := range []struct {
		name      string
		unbatched func(i int) bool
		dials     int64
	}{
		{"batches", func(int) bool { return false }, 4},
		{"calls by themselves", func(int) bool { return true }, 64},
		{"both", func(i int) bool { return i%2 == 0 }, 68},
	} {
		t.Run(test.name, func(t *testing.T) {
			ln := startPeer(t, func(w http.ResponseWriter, r *http.Request) { answerAll(t, w, r) })
			p := know(t, ln, Options{Timeout: long})
			most := test.dials
			for range 2 {
				var callers sync.WaitGroup
				for i := range 2000 {
					callers.Go(func() {
						items := group(3)
						items[2].Limit = int64(1000 + i)
						results, err := p.Check(t.Context(), items, test.unbatched(i))
						if err != nil || len(results) != 3 || results[2].Limit != int64(1000+i) {
							t.Errorf("%d: got %v, %v", i, results, err)
						}
					})
				}
				callers.Wait()
				if n := ln.accepted.Load(); n > most {
					t.Errorf("%d connections, want %d at most", n, most)
				}
				eventually(t, "one connection is left", func() bool { return ln.open.Load() == 1 })
				const late = 3 // dials that were still on their way
				most = ln.accepted.Load() + late
			}
		})
	}
}

// TestKilledConnections has a peer count what arrives while its connections are killed, before, during and after the
// answer. A hit may get lost, or its answer may; but none may be counted twice.
func TestKilledConnections(t *testing.T) {
	type connKey struct{}
	var mu sync.Mutex
	seen := map[string]int{} // by key; guarded by mu
	var calls atomic.Int64
	s := h2c(func(w http.ResponseWriter, r *http.Request) {
		items := readItems(t, r)
		mu.Lock()
		for _, item := range items {
			seen[item.UniqueKey]++
		}
		mu.Unlock()
		kill := r.Context().Value(connKey{}).(net.Conn).Close
		answer := wire.AppendResults(nil, make([]limits.Result, len(items)))
		switch calls.Add(1) % 40 {
		case 10: // before
			kill()
		case 20: // during
			w.Write(answer[:5])
			w.(http.Flusher).Flush()
			kill()
		case 30: // after, and others are on their way
			w.Write(answer)
			w.(http.Flusher).Flush()
			kill()
		default:
			w.Write(answer)
		}
	})
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	ln := listenLocal(t)
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(ln) })
	defer serving.Wait()
	defer s.Close()
	p := know(t, ln, Options{Timeout: long})
	answered := make([][]bool, 8)
	var callers sync.WaitGroup
	for c := range answered {
		answered[c] = make([]bool, 100)
		callers.Go(func() {
			for i := range answered[c] {
				// Past the breaker, which would spare the peer most of it.
				hit := limits.Request{Name: "n", UniqueKey: fmt.Sprint(c, "/", i), Hits: 1, Limit: 1, Duration: 1}
				_, err := p.call(t.Context(), []limits.Request{hit})
				answered[c][i] = err == nil
				if err != nil && err != ErrBroken && err != ErrUnreachable {
					t.Errorf("got %v", err)
				}
			}
		})
	}
	callers.Wait()
	mu.Lock()
	defer mu.Unlock()
	good := 0
	for c := range answered {
		for i, ok := range answered[c] {
			n := seen[fmt.Sprint(c, "/", i)]
			if n > 1 || ok && n != 1 {
				t.Errorf("a hit was counted %d times, answered: %v", n, ok)
			}
			if ok {
				good++
			}
		}
	}
	if ln.accepted.Load() < 10 || good == 0 {
		t.Errorf("%d connections, %d answers: this test tests little", ln.accepted.Load(), good)
	}
}

// A frame of HTTP/2.
type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

// Of HTTP/2, what the tests need.
const (
	frameData, frameHeaders, frameReset, frameSettings, framePing, frameGoAway = 0, 1, 3, 4, 6, 7

	flagEnd, flagAck, flagEndHeaders = 1, 1, 4

	codeNone, codeProtocol, codeInternal, codeRefused, codeCancel, codeCalm = 0, 1, 2, 7, 8, 11
)

func readFrame(r io.Reader) (f frame, err error) {
	var head [9]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	size := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	f = frame{head[3], head[4], binary.BigEndian.Uint32(head[5:]), make([]byte, size)}
	_, err = io.ReadFull(r, f.payload)
	return f, err
}

func (f frame) write(w io.Writer) {
	n := len(f.payload)
	head := binary.BigEndian.AppendUint32([]byte{byte(n >> 16), byte(n >> 8), byte(n), f.kind, f.flags}, f.stream)
	w.Write(append(head, f.payload...))
}

func numbers(n ...uint32) (b []byte) {
	for _, n := range n {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

// respond answers a stream with status 200.
func respond(c net.Conn, stream uint32, body string) {
	frame{frameHeaders, flagEndHeaders, stream, []byte{0x88}}.write(c) // the short form of ":status: 200"
	frame{frameData, flagEnd, stream, []byte(body)}.write(c)
}

// serveFrames speaks HTTP/2 on a connection, and calls request when one has arrived whole. It ends when that returns
// false.
func serveFrames(c net.Conn, request func(stream uint32) (goOn bool)) {
	defer c.Close()
	preface := make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	frame{kind: frameSettings}.write(c)
	for {
		f, err := readFrame(c)
		if err != nil {
			return
		}
		switch {
		case f.kind == frameSettings && f.flags&flagAck == 0:
			frame{kind: frameSettings, flags: flagAck}.write(c)
		case f.kind == framePing && f.flags&flagAck == 0:
			frame{kind: framePing, flags: flagAck, payload: f.payload}.write(c)
		case f.kind == frameData && f.flags&flagEnd != 0:
			if !request(f.stream) {
				return
			}
		}
	}
}

// TestRepeated has a peer treat a call in each way that HTTP/2 knows. The call may be repeated only where the peer
// tells that it has not looked at it, and only once.
func TestRepeated(t *testing.T) {
	const good = `{"rate_limits":[` + okResult + `]}`
	reset := func(code uint32) func(net.Conn, uint32) bool {
		return func(c net.Conn, stream uint32) bool {
			frame{frameReset, 0, stream, numbers(code)}.write(c)
			return true
		}
	}
	goAway := func(last func(stream uint32) uint32, code uint32) func(net.Conn, uint32) bool {
		return func(c net.Conn, stream uint32) bool {
			frame{kind: frameGoAway, payload: numbers(last(stream), code)}.write(c)
			return true
		}
	}
	before := func(stream uint32) uint32 { return stream - 2 }
	behind := func(stream uint32) uint32 { return stream }
	for _, test := range []struct {
		name  string
		does  func(c net.Conn, stream uint32) bool // with the first call, and with more if always
		calls int                                  // of which it hears
		want  error
	}{
		{"answers", func(c net.Conn, stream uint32) bool { respond(c, stream, good); return true }, 1, nil},
		{"refuses the stream", reset(codeRefused), 2, nil},
		{"says goodbye before it", goAway(before, codeNone), 2, nil},
		{"says goodbye before it, for a reason", goAway(before, codeCalm), 2, nil},
		{"says goodbye behind it and answers", func(c net.Conn, stream uint32) bool {
			goAway(behind, codeNone)(c, stream)
			respond(c, stream, good)
			return true
		}, 1, nil},
		{"says goodbye behind it and closes", func(c net.Conn, stream uint32) bool {
			goAway(behind, codeNone)(c, stream)
			return false
		}, 1, ErrBroken},
		{"closes", func(net.Conn, uint32) bool { return false }, 1, ErrBroken},
		{"cancels", reset(codeCancel), 1, ErrBroken},
		{"fails", reset(codeInternal), 1, ErrBroken},
		{"complains", reset(codeProtocol), 1, ErrBroken},
		{"is overloaded", reset(codeCalm), 1, ErrBroken},
		{"ends well before it began", reset(codeNone), 1, ErrBroken},
		{"begins to answer, then refuses", func(c net.Conn, stream uint32) bool {
			frame{frameHeaders, flagEndHeaders, stream, []byte{0x88}}.write(c)
			frame{frameData, 0, stream, []byte(good[:10])}.write(c)
			return reset(codeRefused)(c, stream)
		}, 1, ErrBroken},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ln := listenLocal(t)
			var mu sync.Mutex
			calls := 0 // guarded by mu
			var serving sync.WaitGroup
			serving.Go(func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					serving.Go(func() {
						serveFrames(c, func(stream uint32) bool {
							mu.Lock()
							defer mu.Unlock()
							switch calls++; calls {
							case 1: // a first one, since some rules are other ones for the first on a connection
								respond(c, stream, good)
							case 2:
								return test.does(c, stream)
							default:
								respond(c, stream, good)
							}
							return true
						})
					})
				}
			})
			p := know(t, ln, Options{Timeout: long})
			if _, err := p.call(t.Context(), one); err != nil {
				t.Fatal(err)
			}
			results, err := p.call(t.Context(), one)
			if err != test.want || err == nil && len(results) != 1 {
				t.Errorf("got %v, %v, want %v", results, err, test.want)
			}
			p.set.Close()
			ln.Close()
			mu.Lock()
			defer mu.Unlock()
			if calls-1 != test.calls {
				t.Errorf("it heard of %d calls, want %d", calls-1, test.calls)
			}
		})
	}
}

// TestRepeatedOnce has a peer refuse every stream.
func TestRepeatedOnce(t *testing.T) {
	ln := listenLocal(t)
	var calls atomic.Int64
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				serveFrames(c, func(stream uint32) bool {
					calls.Add(1)
					frame{frameReset, 0, stream, numbers(codeRefused)}.write(c)
					return true
				})
			})
		}
	})
	p := know(t, ln, Options{Timeout: long})
	if _, err := p.call(t.Context(), one); err != ErrBroken {
		t.Errorf("got %v", err)
	}
	p.set.Close()
	ln.Close()
	serving.Wait()
	if n := calls.Load(); n != 2 {
		t.Errorf("it heard of %d calls, want 2", n)
	}
	if n := p.stats.repeated.Get(); n != 1 {
		t.Errorf("%d repetitions are in the metrics", n)
	}
}

// A relay is a listener that outlives the servers on it.
type relay struct {
	net.Listener
	conns chan net.Conn
}

// A turn is one server's use of a relay.
type turn struct {
	*relay
	over chan struct{}
	end  func()
}

func (r *relay) turn() *turn {
	over := make(chan struct{})
	return &turn{r, over, sync.OnceFunc(func() { close(over) })}
}

func (u *turn) Accept() (net.Conn, error) {
	select {
	case <-u.over: // first, so that nothing is taken after the end
		return nil, net.ErrClosed
	default:
	}
	select {
	case <-u.over:
		return nil, net.ErrClosed
	case c := <-u.conns:
		return c, nil
	}
}

func (u *turn) Close() error {
	u.end()
	return nil
}

// TestPeerRestarts replaces a peer several times under traffic, each time with a goodbye, as of a node that is stopped.
// All hits must be counted exactly once, and all callers get an answer of the peer.
func TestPeerRestarts(t *testing.T) {
	ln := listenLocal(t)
	r := &relay{ln, make(chan net.Conn)}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				close(r.conns)
				return
			}
			r.conns <- c
		}
	})
	var counted atomic.Int64
	serve := func() (stop func()) {
		s, u := h2c(func(w http.ResponseWriter, r *http.Request) {
			items := readItems(t, r)
			counted.Add(int64(len(items)))
			w.Write(wire.AppendResults(nil, make([]limits.Result, len(items))))
		}), r.turn()
		var serving sync.WaitGroup
		serving.Go(func() { s.Serve(u) })
		return func() {
			if err := s.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			serving.Wait()
		}
	}
	stop := serve()
	p := know(t, ln, Options{Timeout: long, Log: zerolog.New(zerolog.NewTestWriter(t))})
	var sent atomic.Int64
	done := make(chan struct{})
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				sent.Add(1)
				if _, err := p.Check(t.Context(), one, i%2 == 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		goal := sent.Load() + 200
		eventually(t, "200 more hits", func() bool { return sent.Load() > goal })
		ending := make(chan struct{})
		go func() {
			defer close(ending)
			stop()
		}()
		next := serve()
		<-ending
		stop = next
	}
	close(done)
	callers.Wait()
	if sent.Load() != counted.Load() {
		t.Errorf("%d hits were sent, %d counted", sent.Load(), counted.Load())
	}
	t.Logf("%d hits, of which %d were sent again", sent.Load(), p.stats.repeated.Get())
	p.set.Close()
	stop()
	ln.Close()
	accepting.Wait()
}

// named makes a Set of node-a:8080, which this node is, and node-b:8080, which is behind ln. DNS doesn't know them.
func named(t *testing.T, o Options, lns ...net.Listener) *Peer {
	t.Helper()
	s := New(o)
	t.Cleanup(s.Close)
	b := Member{Name: "node-b:8080", Resolved: true}
	for _, ln := range lns {
		b.Addrs = append(b.Addrs, ln.Addr().(*net.TCPAddr).AddrPort())
	}
	s.Update("node-a:8080", []Member{{Name: "node-a:8080"}, b})
	return s.View().peer("node-b:8080")
}

// TestWire is what one node sends to another, to the byte. A change of it is one that older nodes must understand.
func TestWire(t *testing.T) {
	got := make(chan string, 1)
	ln := startPeer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var text strings.Builder
		fmt.Fprintf(&text, "%s %s %s\nHost: %s\n", r.Proto, r.Method, r.RequestURI, r.Host)
		if r.Header.Get(wire.HeaderStart) == "" {
			t.Error("the call doesn't name the process that makes it")
		}
		r.Header.Set(wire.HeaderStart, "7") // another one each time
		r.Header.Write(&text)               // sorted
		got <- strings.ReplaceAll(text.String(), "\r\n", "\n") + "\n" + string(body)
		io.WriteString(w, `{"rate_limits":[`+okResult+","+okResult+`]}`)
	})
	p := named(t, Options{Timeout: long, Secret: "s3cret"}, ln)
	_, err := p.Check(t.Context(), []limits.Request{
		{Name: "mail", UniqueKey: "account=1", Hits: 1, Limit: 10, Duration: 60_000},
		{Name: `quote " and ü`, UniqueKey: "tab\tand <&>", Hits: -5, Limit: 1<<63 - 1, Duration: 3,
			Algorithm: limits.LeakyBucket, Burst: 7, TimeZone: "Europe/Berlin",
			Behavior: bucket.NoBatching | limits.DurationIsGregorian | limits.DrainOverLimit},
	}, false)
	if err != nil {
		t.Error(err)
	}
	const want = `HTTP/2.0 POST /v1/peer/batch
Host: node-b:8080
Authorization: Bearer s3cret
Content-Length: 268
Content-Type: application/json
User-Agent: weir
Weir-From: node-a:8080
Weir-Protocol: 1
Weir-Ring: c8f0fa4328e991b0
Weir-Start: 7

{"rate_limits":[{"name":"mail","unique_key":"account=1","hits":1,"limit":10,"duration":60000},` +
		`{"name":"quote \" and ü","unique_key":"tab\tand <&>","hits":-5,"limit":9223372036854775807,"duration":3,` +
		`"algorithm":1,"behavior":37,"burst":7,"time_zone":"Europe/Berlin"}]}
`
	if text := <-got; text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

// TestWireOfProbes is what a node asks another that it only wants to hear of.
func TestWireOfProbes(t *testing.T) {
	got := make(chan string, 1)
	ln := startPeer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Header.Get("Authorization") + string(body)
		io.WriteString(w, `{"rate_limits":[]}`)
	})
	p := named(t, Options{Timeout: long}, ln)
	if _, err := p.call(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if text := <-got; text != "{\"rate_limits\":[]}\n" {
		t.Errorf("got %q", text)
	}
}

// TestDial looks at which addresses are dialled: those that discovery found, one after the other, and none where it
// found none. A list that changes them counts for the next connection.
func TestDial(t *testing.T) {
	good := startPeer(t, func(w http.ResponseWriter, r *http.Request) { answerAll(t, w, r) })
	dead := listenLocal(t)
	dead.Close()
	for _, test := range []struct {
		name string
		lns  []net.Listener
		want error
	}{
		{"one", []net.Listener{good}, nil},
		{"the second of two", []net.Listener{dead, good}, nil},
		{"none answers", []net.Listener{dead, dead}, ErrUnreachable},
		{"none is known", nil, ErrUnreachable},
	} {
		p := named(t, Options{Timeout: long}, test.lns...)
		if _, err := p.Check(t.Context(), one, true); err != test.want {
			t.Errorf("%s: got %v, want %v", test.name, err, test.want)
		}
		p.set.Update("node-a:8080", []Member{{Name: "node-a:8080"}, {Name: "node-b:8080", Resolved: true,
			Addrs: []netip.AddrPort{good.Addr().(*net.TCPAddr).AddrPort()}}})
		if _, err := p.Check(t.Context(), one, true); err != nil {
			t.Errorf("%s: after that got %v", test.name, err)
		}
	}
}

// A tap is a way to a peer that can be frozen: what is connected then stays so, but nothing gets through any more. New
// connections are not frozen.
type tap struct {
	*counter
	to string

	mu     sync.Mutex
	frozen chan struct{} // closed when the present connections freeze; guarded by mu
}

func (p *tap) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.frozen)
	p.frozen = make(chan struct{})
}

// startTap starts a tap. Its connections end when their callers close them.
func startTap(t *testing.T, to net.Listener) *tap {
	p := &tap{counter: listenLocal(t), to: to.Addr().String(), frozen: make(chan struct{})}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := p.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			frozen := p.frozen
			p.mu.Unlock()
			running.Go(func() { p.run(c, frozen) })
		}
	})
	t.Cleanup(func() {
		p.Close()
		running.Wait()
	})
	return p
}

func (p *tap) run(c net.Conn, frozen chan struct{}) {
	defer c.Close()
	d, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer d.Close()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, d}, {d, c}} {
		both.Go(func() {
			defer way[1].Close()
			b := make([]byte, 1<<14)
			for {
				n, err := way[0].Read(b)
				select {
				case <-frozen:
					n = 0 // lost
				default:
				}
				if _, werr := way[1].Write(b[:n]); err != nil || werr != nil {
					return
				}
			}
		})
	}
	both.Wait()
}

// TestFrozenConnection has a connection die without a word while many calls are on it. Each caller is released by its
// own timeout, and a new connection takes over by itself, long before TCP would notice.
func TestFrozenConnection(t *testing.T) {
	var hold atomic.Bool
	var held atomic.Int64
	release := make(chan struct{})
	peer := startPeer(t, func(w http.ResponseWriter, r *http.Request) {
		if hold.Load() {
			held.Add(1)
			<-release
		}
		answerAll(t, w, r)
	})
	way := startTap(t, peer)
	p := know(t, way, Options{Timeout: 2 * time.Second})
	if _, err := p.Check(t.Context(), one, true); err != nil {
		t.Fatal(err)
	}
	hold.Store(true)
	var callers sync.WaitGroup
	for i := range 500 {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if _, err := p.Check(ctx, one, i%2 == 0); err == nil {
				t.Error("an answer came through")
			}
		})
	}
	eventually(t, "calls are on their way", func() bool { return held.Load() > 30 })
	way.freeze()
	callers.Wait()
	hold.Store(false)
	close(release)
	eventually(t, "a call succeeds", func() bool {
		_, err := p.Check(t.Context(), one, true)
		return err == nil
	})
	eventually(t, "the old connection is given up", func() bool { return way.open.Load() == 1 })
}

// TestSilentTLS has a peer take connections and never begin to speak TLS. There is no wait for it beyond the timeout:
// neither of callers nor, behind their backs, of what dials for them.
func TestSilentTLS(t *testing.T) {
	ln := listenLocal(t)
	var talking sync.WaitGroup
	talking.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			talking.Go(func() {
				defer c.Close()
				io.Copy(io.Discard, c)
			})
		}
	})
	p := know(t, ln, Options{Timeout: 50 * time.Millisecond, TLS: func(string) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true}
	}})
	for range 10 {
		if _, err := p.call(t.Context(), one); err != ErrUnreachable {
			t.Errorf("got %v", err)
		}
	}
	if n := ln.accepted.Load(); n == 0 {
		t.Error("nothing was dialled")
	}
	eventually(t, "nothing waits any more", func() bool { return ln.open.Load() == 0 })
	ln.Close()
	talking.Wait()
}

// TestLateCallsToAPeerThatHasGone has a call on its way, and one that starts, when a peer leaves the list. They are
// answered; and then nothing is left that would keep the connection alive.
func TestLateCallsToAPeerThatHasGone(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	ln := startPeer(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		answerAll(t, w, r)
	})
	p := know(t, ln, Options{Timeout: long})
	go func() {
		<-arrived
		release <- struct{}{}
	}()
	if _, err := p.Check(t.Context(), one, true); err != nil { // so that there is a connection
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	call := func() {
		if _, err := p.Check(t.Context(), one, true); err != nil {
			t.Error(err)
		}
	}
	callers.Go(call)
	<-arrived
	p.set.Update("self:1", []Member{{Name: "self:1"}})
	callers.Go(call)
	<-arrived
	close(release)
	callers.Wait()
	eventually(t, "the connection is closed", func() bool { return ln.open.Load() == 0 })
}

// TestGoneWhileDialling has a peer leave the list again and again while calls still dial it, more often than they need
// to: all are answered, and no connection is left.
func TestGoneWhileDialling(t *testing.T) {
	ln := startPeer(t, func(w http.ResponseWriter, r *http.Request) { answerAll(t, w, r) })
	s := New(Options{Timeout: long})
	defer s.Close()
	name := ln.Addr().String()
	for range 100 {
		s.Update("self:1", []Member{{Name: "self:1"}, {Name: name}})
		p := s.View().peer(name)
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				if _, err := p.Check(t.Context(), one, true); err != nil {
					t.Error(err)
				}
			})
		}
		s.Update("self:1", []Member{{Name: "self:1"}})
		callers.Wait()
	}
	eventually(t, "no connection is left", func() bool { return ln.open.Load() == 0 })
}

// TestBusy has more items wait for a peer than may.
func TestBusy(t *testing.T) {
	release := make(chan struct{})
	p := know(t, startPeer(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		answerAll(t, w, r)
	}), Options{Timeout: long})
	for _, unbatched := range []bool{true, false} {
		const size = 100
		var busy, answered atomic.Int64
		var callers sync.WaitGroup
		for range 3 * maxWaiting / size {
			callers.Go(func() {
				switch results, err := p.Check(t.Context(), group(size), unbatched); {
				case err == ErrBusy:
					busy.Add(1)
				case err == nil && len(results) == size:
					answered.Add(1)
				default:
					t.Errorf("got %d results, %v", len(results), err)
				}
			})
		}
		// No call is answered before this: those that are too many don't wait for it.
		const most = maxWaiting/size + 100 // that wait, and that are on their way
		eventually(t, "those that are too many are told", func() bool { return busy.Load() >= 3*maxWaiting/size-most })
		if n := answered.Load(); n > 0 {
			t.Errorf("%d answers came before they could", n)
		}
		close(release)
		callers.Wait()
		if n := answered.Load(); n < maxWaiting/size || n > most {
			t.Errorf("unbatched: %v: %d calls were answered, want %d to %d", unbatched, n, maxWaiting/size, most)
		}
		release = make(chan struct{})
	}
}
