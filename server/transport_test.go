package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/server"
	member "weir/server/node"
)

// impatient allows a request little time to arrive: enough for a client that sends it in one go, also on a machine that
// is busy with other tests.
func impatient(_ *member.Options, o *server.Options) { o.ReadTimeout = 2 * time.Second }

// whileOthers has another client checked, again and again, until done is closed.
func (n *node) whileOthers(t *testing.T, done <-chan struct{}, between func()) {
	t.Helper()
	other := newClient(t, 1)
	for {
		n.untouched(t, other)
		select {
		case <-done:
			return
		default:
			between()
		}
	}
}

// TestTrickledRequests sends requests whose end never comes, byte by byte, and all at the same time.
func TestTrickledRequests(t *testing.T) {
	t.Parallel()
	n := start(t, impatient)
	cases := []struct {
		name, begin, unit string
		answer            bool // else the connection may just end
		conn              net.Conn
		*rest
	}{
		{name: "body", begin: post("Content-Length: 1000000"), unit: " ", answer: true},
		{name: "chunks", begin: post("Transfer-Encoding: chunked"), unit: "1\r\n \r\n", answer: true},
		{name: "header", begin: strings.TrimSuffix(post("X-Long: "), "\r\n\r\n"), unit: "x"},
		{name: "request line", begin: "POST /v1/check?", unit: "x"},
		{name: "blank lines", unit: "\r\n"},
	}
	for i := range cases {
		tt := &cases[i]
		tt.conn = n.dial(t)
		tt.rest = listen(tt.conn)
		send(t, tt.conn, tt.begin)
	}
	for _, tt := range cases {
		n.whileOthers(t, tt.ended, func() {
			for _, tt := range cases {
				io.WriteString(tt.conn, tt.unit) // the server may have closed it
			}
		})
		switch {
		case tt.answer:
			receive(t, bytes.NewReader(tt.got)).refusal(t, http.StatusRequestTimeout, "body")
		case tt.open() || bytes.Contains(tt.got, []byte(" 200 ")):
			t.Errorf("%s: answer %q, %v", tt.name, tt.got, tt.err)
		}
	}
}

// TestStalledHeader opens connections, sends less than a request, and no more.
func TestStalledHeader(t *testing.T) {
	t.Parallel()
	n := start(t, impatient)
	rests := map[string]*rest{}
	for _, begin := range []string{
		"",
		"P",
		strings.TrimSuffix(post("Content-Length: 10", "X-A"), "\r\n\r\n"),
		"PRI * HTTP/2.0\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		conn := n.dial(t)
		send(t, conn, begin)
		rests[begin] = listen(conn)
	}
	for begin, r := range rests {
		n.whileOthers(t, r.ended, func() {})
		if r.open() || bytes.Contains(r.got, []byte(" 200 ")) {
			t.Errorf("after %q: answer %q, %v", begin, r.got, r.err)
		}
	}
}

// TestStalledBody begins a body and sends no more of it.
func TestStalledBody(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t, impatient)
		s, done := n.slow(t, c), make(chan struct{})
		var err error
		go func() {
			err = <-s.result
			close(done)
		}()
		n.whileOthers(t, done, func() {})
		if err != nil {
			t.Fatal(err)
		}
		a := read(t, s.answer)
		a.refusal(t, http.StatusRequestTimeout, "body")
		if a.proto == 1 {
			return
		}
		// In HTTP/2 one connection carries the requests of many. One of them being slow must not cost the others theirs.
		reused := false
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		r := n.request(t, "GET", "/healthz", nil)
		if got := do(t, c, r.WithContext(httptrace.WithClientTrace(r.Context(), trace))); got.status != 200 || !reused {
			t.Errorf("then: %d, on the same connection: %v", got.status, reused)
		}
	})
}

// TestNeverReads sends requests and reads no answer, until it can't send any more.
func TestNeverReads(t *testing.T) {
	t.Parallel()
	n := start(t, impatient)
	conn := n.dial(t)
	body := message(slices.Repeat([]string{with("hits", "0")}, 1000)...)
	request := post("Content-Length: "+strconv.Itoa(len(body))) + body
	var err error
	done := make(chan struct{})
	go func() {
		for err == nil {
			_, err = io.WriteString(conn, request)
		}
		close(done)
	}()
	n.whileOthers(t, done, func() {})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays open")
	}
}

// TestMalformedRequests sends what net/http refuses before the server sees it, and what looks like it.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	for _, tt := range []struct {
		name, request string
		status        int
	}{
		{"no HTTP", "hello, is it weir?\r\n\r\n", 400},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on\r\n\r\n", 400},
		{"no host", "GET /healthz HTTP/1.1\r\n\r\n", 400},
		{"another version", "GET /healthz HTTP/3.0\r\nHost: weir\r\n\r\n", 505},
		{"two lengths", post("Content-Length: 5", "Content-Length: 6") + "hello", 400},
		{"negative length", post("Content-Length: -1"), 400},
		{"other expectation", post("Expect: miracles", "Content-Length: 0"), 417},
		{"other transfer", post("Transfer-Encoding: gzip"), 501},
		{"huge header", post("X-Huge: " + strings.Repeat("x", 64<<10)), 431},
		{"many headers", post(strings.Repeat("X-Many: x\r\n", 8<<10) + "X: x"), 431},
		{"huge request line", "GET /" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: weir\r\n\r\n", 431},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := n.dial(t)
			io.WriteString(conn, tt.request) // the server may well hang up before the end
			if got := receive(t, conn); got.status != tt.status {
				t.Errorf("status %d, want %d: %s", got.status, tt.status, got.body)
			}
		})
	}
	n.untouched(t, c)
}

func TestBrokenChunks(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	conn := n.dial(t)
	size := strconv.FormatInt(int64(len(message(item))), 16)
	send(t, conn, post("Transfer-Encoding: chunked")+size+"\r\n"+message(item)+"\r\nnonsense\r\n")
	receive(t, conn).refusal(t, http.StatusBadRequest, "body")
	n.untouched(t, c)
}

// TestHalfClosed promises one byte more than it sends. What has come is a whole message, but not what was promised.
func TestHalfClosed(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	conn := n.dial(t)
	send(t, conn, post("Content-Length: "+strconv.Itoa(len(message(item))+1))+message(item))
	conn.(*net.TCPConn).CloseWrite()
	receive(t, conn).refusal(t, http.StatusBadRequest, "body")
	n.untouched(t, c)
}

// TestHangsUp: a client that goes away in the middle of its body has asked for nothing.
func TestHangsUp(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		s := n.slow(t, c)
		s.hangUp()
		n.log.wait(t, `"request refused"`, `"status":400`)
		n.untouched(t, newClient(t, 1))
	})
}

func TestExpectContinue(t *testing.T) {
	t.Parallel()
	n := start(t)
	conn := n.dial(t)
	r := bufio.NewReader(conn)
	send(t, conn, post("Expect: 100-continue", "Content-Length: "+strconv.Itoa(len(message(item)))))
	if line, err := r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	r.ReadString('\n') // the empty line
	send(t, conn, message(item))
	if got := receive(t, r).results(t); got[0].Status != "OK" || *got[0].Remaining != 9 {
		t.Errorf("%+v", got)
	}
}

// TestExpectRefusal: a body that is too large must not be asked for.
func TestExpectRefusal(t *testing.T) {
	t.Parallel()
	n := start(t)
	conn := n.dial(t)
	send(t, conn, post("Expect: 100-continue", "Content-Length: 10485760"))
	receive(t, conn).refusal(t, http.StatusRequestEntityTooLarge)
}

// TestProtocolsAgree sends the same requests in all protocols and wants the same answers, byte by byte.
func TestProtocolsAgree(t *testing.T) {
	t.Parallel()
	requests := []struct{ method, path, body string }{
		{"POST", "/v1/check", message(item)},
		{"POST", "/v1/check", message(with("hits", "10"), with("name", ""), with("hits", "0"))},
		{"POST", "/v1/check", "nonsense"},
		{"POST", "/v1/check", ""},
		{"GET", "/v1/check", ""},
		{"HEAD", "/v1/check", ""},
		{"GET", "/healthz", ""},
		{"HEAD", "/healthz", ""},
		{"GET", "/readyz", ""},
		{"GET", "/nowhere", ""},
		{"DELETE", "/healthz", ""},
	}
	nodes := []*node{start(t), start(t)}
	clients := []*http.Client{newClient(t, 1), newClient(t, 2)}
	for _, tt := range requests {
		var got [2]answer
		for i, n := range nodes {
			got[i] = do(t, clients[i], n.request(t, tt.method, tt.path, strings.NewReader(tt.body), "X-Request-Id", "same"))
			if got[i].proto != i+1 {
				t.Fatalf("HTTP/%d client got an answer in HTTP/%d", i+1, got[i].proto)
			}
			got[i].header.Del("Date")
		}
		if got[0].status != got[1].status || got[0].body != got[1].body {
			t.Errorf("%s %s: %d %s\nand %d %s", tt.method, tt.path, got[0].status, got[0].body, got[1].status, got[1].body)
		}
		for name := range got[0].header {
			if a, b := got[0].header.Get(name), got[1].header.Get(name); a != b {
				t.Errorf("%s %s: %s %q and %q", tt.method, tt.path, name, a, b)
			}
		}
	}
}

// TestUpgradeIsIgnored: clients that offer to switch to HTTP/2 are answered in HTTP/1.1, which they must know.
func TestUpgradeIsIgnored(t *testing.T) {
	t.Parallel()
	n := start(t)
	conn := n.dial(t)
	send(t, conn, "GET /healthz HTTP/1.1\r\nHost: weir\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"+
		"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
	if got := receive(t, conn); got.status != 200 || got.proto != 1 {
		t.Errorf("%+v", got)
	}
}

func TestShutdownFinishesRequests(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		s := n.slow(t, c)
		down := make(chan error, 1)
		go func() { down <- n.server.Shutdown(context.Background()) }()
		eventually(t, "the listener closes", n.refusesConnections)
		select {
		case err := <-down:
			t.Fatalf("Shutdown gave %v before the request was answered", err)
		default:
		}
		if got := s.finish(t).results(t); got[0].Status != "OK" || *got[0].Remaining != 9 {
			t.Errorf("%+v", got)
		}
		c.CloseIdleConnections()
		if err := <-down; err != nil {
			t.Error("Shutdown:", err)
		}
	})
}

func TestShutdownCutsRequests(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		s := n.slow(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		down := make(chan error, 1)
		go func() { down <- n.server.Shutdown(ctx) }()
		eventually(t, "the listener closes", n.refusesConnections)
		cancel()
		if err := <-down; !errors.Is(err, context.Canceled) {
			t.Errorf("Shutdown gave %v, want %v", err, context.Canceled)
		}
		io.WriteString(s.body, message(item)[20:]) // the client may know already that it is in vain
		s.body.Close()
		if err := s.wait(t); err == nil {
			t.Errorf("answered with %d though it was cut off", s.answer.StatusCode)
		}
		if entries := n.limiter.Stats().Entries; entries != 0 {
			t.Errorf("%d entries of a request that was cut off", entries)
		}
	})
}

// TestShutdownClosesIdle: clients that keep their connections open for later don't hold the server up.
func TestShutdownClosesIdle(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		n.get(t, c, "/healthz")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := n.server.Shutdown(ctx); err != nil {
			t.Error("Shutdown:", err)
		}
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		if got := n.get(t, c, "/readyz"); got.status != 200 || !strings.Contains(got.body, "ready") {
			t.Errorf("before: %d %s", got.status, got.body)
		}
		n.server.Drain()
		got := n.get(t, c, "/readyz")
		if got.status != 503 || got.header.Get("Content-Type") != "application/json" ||
			!strings.Contains(got.body, `"error":"`) {
			t.Errorf("/readyz: %d %s; want 503 and a reason", got.status, got.body)
		}
		if got := n.get(t, c, "/healthz"); got.status != 200 {
			t.Errorf("/healthz: %d %s", got.status, got.body)
		}
		if got := n.check(t, c, message(item)).results(t); got[0].Status != "OK" {
			t.Errorf("/v1/check: %+v", got)
		}
		if got := n.check(t, newClient(t, 1), message(item)).results(t); got[0].Status != "OK" {
			t.Errorf("/v1/check on a new connection: %+v", got)
		}
	})
}

func TestServeFails(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	s := server.New(server.Options{Node: alone(t, member.Options{CacheSize: 10})})
	if err := s.Serve(ln); err == nil {
		t.Error("no error from a closed listener")
	}
}

// TestServeTwice: a server may have several listeners, as http.Server may.
func TestServeTwice(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	n.check(t, c, message(item)).results(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		err := n.server.Serve(ln)
		ln.Close() // else a client would wait in vain
		served <- err
	}()
	n.url = "http://" + ln.Addr().String()
	resp, err := c.Do(n.request(t, "POST", "/v1/check", strings.NewReader(message(item))))
	if err != nil {
		t.Fatal(err, "; Serve gave ", <-served)
	}
	if got := read(t, resp).results(t); *got[0].Remaining != 8 {
		t.Errorf("it must be the same count: %+v", got)
	}
	c.CloseIdleConnections()
	n.server.Shutdown(t.Context())
	if err := <-served; err != nil {
		t.Error("Serve:", err)
	}
}

// TestBusy: MaxConns also bounds the requests, since one connection of HTTP/2 can carry many.
func TestBusy(t *testing.T) {
	t.Parallel()
	n, c := start(t, func(_ *member.Options, o *server.Options) { o.MaxConns = 2 }), newClient(t, 2)
	first, second := n.slow(t, c), n.slow(t, c)
	for range 3 {
		got := n.check(t, c, message(item))
		got.refusal(t, http.StatusServiceUnavailable)
		if wait := got.header.Get("Retry-After"); wait != "1" {
			t.Errorf("Retry-After %q", wait)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := n.get(t, c, path); got.status != 200 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	expect(t, n.metrics(t, c), "weir_rejected_requests_total",
		map[string]float64{`weir_rejected_requests_total{reason="busy"}`: 3})
	for i, s := range []*slowCheck{first, second} {
		if got := s.finish(t).results(t); *got[0].Remaining != int64(9-i) {
			t.Errorf("%+v", got)
		}
	}
	if got := n.check(t, c, message(item)).results(t); *got[0].Remaining != 7 {
		t.Errorf("%+v", got)
	}
}

func TestMaxConns(t *testing.T) {
	t.Parallel()
	n := start(t, func(_ *member.Options, o *server.Options) { o.MaxConns = 2 })
	ask := func(conn net.Conn) answer {
		send(t, conn, "GET /healthz HTTP/1.1\r\nHost: weir\r\n\r\n")
		return receive(t, conn)
	}
	first, second := n.dial(t), n.dial(t)
	for _, conn := range []net.Conn{first, second} {
		if got := ask(conn); got.status != 200 {
			t.Fatal(got)
		}
	}
	third := n.dial(t)
	if got, err := io.ReadAll(third); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the third connection: %q, %v; want it closed without an answer", got, err)
	}

	// One of the two asks for the metrics, since no other can.
	value := func(series string) float64 {
		send(t, first, "GET /metrics HTTP/1.1\r\nHost: weir\r\n\r\n")
		got := receive(t, first)
		return parseMetrics(t, got.body)[series]
	}
	if got := value(`weir_rejected_requests_total{reason="connections"}`); got != 1 {
		t.Errorf("%v rejected connections in the metrics, want 1", got)
	}
	eventually(t, "the third connection is gone", func() bool { return value("weir_connections") == 2 })
	second.Close()
	eventually(t, "the second connection is gone", func() bool { return value("weir_connections") == 1 })
	if got := ask(n.dial(t)); got.status != 200 {
		t.Errorf("in the free place: %d %s", got.status, got.body)
	}
}
