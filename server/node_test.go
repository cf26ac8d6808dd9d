// Package server_test drives servers over real sockets, as their clients do.
package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"weir/limits"
	"weir/server"
	member "weir/server/node"
)

// patience is where waiting for something that should have happened long ago ends. It is no promise of the server's.
const patience = 20 * time.Second

// A clock stands still until it is moved. It is safe for concurrent use.
type clock struct {
	mu  sync.Mutex
	now time.Time // guarded by mu
}

func newClock() *clock { return &clock{now: time.UnixMilli(1_700_000_000_000)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// lines is a log that a test can wait for. It is safe for concurrent use.
type lines struct {
	mu    sync.Mutex
	all   []string      // guarded by mu
	grown chan struct{} // guarded by mu; closed when all grows
}

func newLines() *lines { return &lines{grown: make(chan struct{})} }

// Write takes one line; zerolog writes each with a call of its own.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	close(l.grown)
	l.grown = make(chan struct{})
	return len(p), nil
}

// with returns the lines that hold all parts, and a channel that tells when there are more lines.
func (l *lines) with(parts ...string) (found []string, grown <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		holds := true
		for _, part := range parts {
			holds = holds && strings.Contains(line, part)
		}
		if holds {
			found = append(found, line)
		}
	}
	return found, l.grown
}

// wait waits for a line that holds all parts, and returns its fields.
func (l *lines) wait(t *testing.T, parts ...string) map[string]any {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		found, grown := l.with(parts...)
		if len(found) > 0 {
			return fields(t, found[0])
		}
		select {
		case <-grown:
		case <-ctx.Done():
			all, _ := l.with()
			t.Fatalf("no line with %q in the log:\n%s", parts, strings.Join(all, ""))
		}
	}
}

// fields reads a line of the log, which must be one JSON object and one line.
func fields(t *testing.T, line string) map[string]any {
	t.Helper()
	var m map[string]any
	err := json.Unmarshal([]byte(line), &m)
	if err != nil || strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
		t.Fatalf("not one line of JSON (%v): %q", err, line)
	}
	return m
}

// A node is a server on a port of its own.
type node struct {
	addr    string
	url     string
	server  *server.Server
	limiter *limits.Limiter
	log     *lines
	served  chan error // what Serve gave
}

// A change is made to the options of a node before it starts.
type change func(*member.Options, *server.Options)

// start starts a node that lives as long as the test.
func start(t *testing.T, changes ...change) *node {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{addr: ln.Addr().String(), log: newLines(), served: make(chan error, 1)}
	n.url = "http://" + n.addr
	m := member.Options{Advertise: "node", CacheSize: 10_000, Now: newClock().Now}
	o := server.Options{Log: zerolog.New(n.log).Level(zerolog.InfoLevel), Version: "1.2.3"}
	for _, change := range changes {
		change(&m, &o)
	}
	o.Node = alone(t, m)
	n.limiter = o.Node.Limiter()
	n.server = server.New(o)
	go func() { n.served <- n.server.Serve(ln) }()
	t.Cleanup(func() {
		n.server.Stop(0, 0, nil) // no answer is needed any more, so don't wait for connections that are left
		if err := <-n.served; err != nil {
			t.Error("Serve:", err)
		}
	})
	return n
}

// alone makes a node without peers.
func alone(t testing.TB, o member.Options) *member.Node {
	t.Helper()
	n, err := member.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// debug lets the node log everything.
func debug(_ *member.Options, o *server.Options) { o.Log = o.Log.Level(zerolog.DebugLevel) }

// newClient makes a client that speaks one version of HTTP and nothing else.
func newClient(t *testing.T, major int) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(major == 1)
	protocols.SetUnencryptedHTTP2(major == 2)
	transport := &http.Transport{Protocols: protocols, ExpectContinueTimeout: patience, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// eachProtocol runs a test with a client for each version of HTTP that the server speaks.
func eachProtocol(t *testing.T, test func(t *testing.T, c *http.Client)) {
	t.Helper()
	for major := 1; major <= 2; major++ {
		t.Run(fmt.Sprint("HTTP", major), func(t *testing.T) {
			t.Parallel()
			test(t, newClient(t, major))
		})
	}
}

// An answer is a response that has been read to its end.
type answer struct {
	status int
	proto  int
	header http.Header
	body   string
}

// A result is an item of an answer, as a caller sees it. Pointers tell what is absent.
type result struct {
	Status     string
	Limit      *int64
	Remaining  *int64
	ResetTime  *int64 `json:"reset_time"`
	RetryAfter *int64 `json:"retry_after"`
	Error      string
	Metadata   map[string]string
}

// results reads what an answer of /v1/check says.
func (a answer) results(t *testing.T) []result {
	t.Helper()
	var message struct {
		RateLimits []result `json:"rate_limits"`
	}
	if err := json.Unmarshal([]byte(a.body), &message); err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", a.status, err, a.body)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Fatalf("Content-Type %q", got)
	}
	return message.RateLimits
}

// refusal checks that an answer refuses a whole request as it should, with an error that holds all of says.
func (a answer) refusal(t *testing.T, status int, says ...string) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %.300s", a.status, status, a.body)
	}
	var message map[string]string
	if err := json.Unmarshal([]byte(a.body), &message); err != nil || len(message) != 1 || message["error"] == "" {
		t.Fatalf("the body must be JSON with an error and nothing else: %.300s", a.body)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	if got := a.header.Get("Content-Length"); got != strconv.Itoa(len(a.body)) {
		t.Errorf("Content-Length %q with a body of %d bytes", got, len(a.body))
	}
	if len(a.header.Values("X-Request-Id")) != 1 || a.header.Get("X-Request-Id") == "" {
		t.Errorf("X-Request-Id %q", a.header.Values("X-Request-Id"))
	}
	if len(a.body) > 1024 {
		t.Errorf("an error of %d bytes", len(a.body))
	}
	for _, part := range says {
		if !strings.Contains(message["error"], part) {
			t.Errorf("the error %q doesn't say %q", message["error"], part)
		}
	}
}

// do sends a request and reads the answer.
func do(t *testing.T, c *http.Client, r *http.Request) answer {
	t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, resp)
}

func read(t *testing.T, resp *http.Response) answer {
	t.Helper()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.ProtoMajor, resp.Header, string(body)}
}

// request makes a request with headers given as name, value, name, value.
func (n *node) request(t *testing.T, method, path string, body io.Reader, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, n.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func (n *node) get(t *testing.T, c *http.Client, path string) answer {
	t.Helper()
	return do(t, c, n.request(t, "GET", path, nil))
}

// check posts a body to /v1/check.
func (n *node) check(t *testing.T, c *http.Client, body string, headers ...string) answer {
	t.Helper()
	return do(t, c, n.request(t, "POST", "/v1/check", strings.NewReader(body), headers...))
}

// item is a check that takes one of ten.
const item = `{"name":"n","unique_key":"k","limit":10,"duration":60000}`

// message makes the body that asks for items.
func message(items ...string) string { return `{"rate_limits":[` + strings.Join(items, ",") + `]}` }

// with is item with another value of a field, or without the field if the value is empty.
func with(field, value string) string {
	var members []string
	for _, m := range [][2]string{{"name", `"n"`}, {"unique_key", `"k"`}, {"limit", "10"}, {"duration", "60000"}} {
		if m[0] != field {
			members = append(members, `"`+m[0]+`":`+m[1])
		}
	}
	if value != "" {
		members = append(members, `"`+field+`":`+value)
	}
	return "{" + strings.Join(members, ",") + "}"
}

// untouched checks that nothing has been counted.
func (n *node) untouched(t *testing.T, c *http.Client) {
	t.Helper()
	got := n.check(t, c, message(with("hits", "0"))).results(t)
	if len(got) != 1 || got[0].Status != "OK" || *got[0].Remaining != 10 {
		t.Fatalf("something has been counted: %+v", got)
	}
	if entries := n.limiter.Stats().Entries; entries != 0 {
		t.Fatalf("something has been counted: %d entries", entries)
	}
}

// A slowCheck is a check in flight: the server waits for the rest of its body.
type slowCheck struct {
	body   *io.PipeWriter
	hangUp func()
	result chan error // nil when answer is there
	answer *http.Response
}

// slow begins a check and returns when the server has begun to read its body.
func (n *node) slow(t *testing.T, c *http.Client) *slowCheck {
	t.Helper()
	body, w := io.Pipe()
	reading := make(chan struct{})
	trace := &httptrace.ClientTrace{Got100Continue: sync.OnceFunc(func() { close(reading) })}
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(t.Context(), trace))
	s := &slowCheck{body: w, result: make(chan error, 1)}
	s.hangUp = func() {
		cancel()
		w.CloseWithError(context.Canceled) // the client waits for its body before it gives up
	}
	t.Cleanup(s.hangUp)
	r := n.request(t, "POST", "/v1/check", body, "Expect", "100-continue").WithContext(ctx)
	go func() {
		var err error
		s.answer, err = c.Do(r)
		s.result <- err
	}()
	select {
	case <-reading:
	case err := <-s.result:
		t.Fatalf("answered before the body was sent: %v, %v", s.answer, err)
	case <-time.After(patience):
		t.Fatal("the server doesn't read the body")
	}
	s.send(t, message(item)[:20])
	return s
}

// send sends a part of the body.
func (s *slowCheck) send(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(s.body, text); err != nil {
		t.Fatal(err)
	}
}

// wait waits for the answer, or why there is none.
func (s *slowCheck) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.result:
		return err
	case <-time.After(patience):
		t.Fatal("no answer and no error")
	}
	return nil
}

// finish sends the rest of the body and returns the answer.
func (s *slowCheck) finish(t *testing.T) answer {
	t.Helper()
	s.send(t, message(item)[20:])
	s.body.Close()
	if err := s.wait(t); err != nil {
		t.Fatal(err)
	}
	return read(t, s.answer)
}

// dial opens a connection of its own, for requests that a proper client would not send.
func (n *node) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", n.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// A rest is what comes on a connection until it ends.
type rest struct {
	ended chan struct{}
	got   []byte // complete when ended
	err   error  // the same
}

// listen reads all that comes.
func listen(conn net.Conn) *rest {
	r := &rest{ended: make(chan struct{})}
	go func() {
		r.got, r.err = io.ReadAll(conn)
		close(r.ended)
	}()
	return r
}

// open reports whether the other side has kept the connection open for as long as the test was willing to wait.
func (r *rest) open() bool { return errors.Is(r.err, os.ErrDeadlineExceeded) }

// send writes text as it is.
func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// receive reads one answer.
func receive(t *testing.T, conn io.Reader) answer {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, resp)
}

// post is the head of a request to /v1/check.
func post(headers ...string) string {
	return "POST /v1/check HTTP/1.1\r\nHost: weir\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
}

// eventually asks until the answer is true.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !ask() {
		if ctx.Err() != nil {
			t.Fatal("never happened: ", what)
		}
	}
}

// refusesConnections reports whether nothing listens at the node's address any more.
func (n *node) refusesConnections() bool {
	conn, err := net.Dial("tcp", n.addr)
	if err == nil {
		conn.Close()
	}
	return err != nil
}
