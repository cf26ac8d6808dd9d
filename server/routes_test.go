package server_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestRoutes(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		for _, path := range []string{
			"/v1", "/v1/", "/v1/check/", "/v1/check/x", "//v1/check", "/V1/CHECK", "/v1%2Fcheck", "/v1/check%00",
			"/healthz/", "/../etc/passwd", "/debug/pprof/", "/favicon.ico",
		} {
			for _, method := range []string{"GET", "POST", "DELETE"} {
				do(t, c, n.request(t, method, path, nil)).refusal(t, http.StatusNotFound, "path")
			}
		}
		for _, tt := range []struct{ method, path, allow string }{
			{"GET", "/v1/check", "POST"},
			{"PUT", "/v1/check", "POST"},
			{"DELETE", "/v1/check", "POST"},
			{"PATCH", "/v1/check", "POST"},
			{"OPTIONS", "/v1/check", "POST"},
			{"TRACE", "/v1/check", "POST"},
			{"BREW", "/v1/check", "POST"},
			{"POST", "/healthz", "GET, HEAD"},
			{"DELETE", "/readyz", "GET, HEAD"},
			{"PUT", "/metrics", "GET, HEAD"},
			{"BREW", "/metrics", "GET, HEAD"},
			{"POST", "/v1/peers", "GET, HEAD"},
			{"GET", "/v1/peer/batch", "POST"},
		} {
			got := do(t, c, n.request(t, tt.method, tt.path, nil))
			got.refusal(t, http.StatusMethodNotAllowed, tt.allow)
			if allow := got.header.Get("Allow"); allow != tt.allow {
				t.Errorf("%s %s: Allow %q, want %q", tt.method, tt.path, allow, tt.allow)
			}
		}
	})
}

// TestUnknownMethodNowhere: where there is nothing, there is no method that would be allowed either.
func TestUnknownMethodNowhere(t *testing.T) {
	t.Parallel()
	n := start(t)
	do(t, newClient(t, 1), n.request(t, "BREW", "/nowhere", nil)).refusal(t, http.StatusNotFound, "path")
}

func TestHead(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		for path, status := range map[string]int{
			"/healthz": 200, "/readyz": 200, "/metrics": 200, "/nowhere": 404, "/v1/check": 405,
		} {
			head, get := do(t, c, n.request(t, "HEAD", path, nil)), n.get(t, c, path)
			if head.status != status || get.status != status || head.body != "" {
				t.Errorf("%s: HEAD gives %d %q, GET gives %d; want %d", path, head.status, head.body, get.status, status)
			}
			if a, b := head.header.Get("Content-Type"), get.header.Get("Content-Type"); a != b || a == "" {
				t.Errorf("%s: HEAD gives Content-Type %q, GET gives %q", path, a, b)
			}
		}
	})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	for path, want := range map[string]string{"/healthz": `{"status":"ok"}`, "/readyz": `{"status":"ready","nodes":1}`} {
		got := n.get(t, c, path)
		if strings.TrimSpace(got.body) != want || got.status != 200 || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// TestNoPeers: a node without a cluster counts for no other.
func TestNoPeers(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 2)
	r := n.request(t, "POST", "/v1/peer/batch", strings.NewReader(message(item)))
	do(t, c, r).refusal(t, http.StatusForbidden, "peers")
	n.untouched(t, c)
	got := n.get(t, c, "/v1/peers")
	if want := `{"self":"node","nodes":[]}`; got.status != 200 || strings.TrimSpace(got.body) != want ||
		got.header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// TestCrossOrigin: a page must not use up the limits of its visitors. Everything that isn't a browser may.
func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		for _, headers := range [][]string{
			{"Sec-Fetch-Site", "cross-site"},
			{"Sec-Fetch-Site", "same-site"},
			{"Sec-Fetch-Site", "nonsense"},
			{"Sec-Fetch-Site", "cross-site", "Origin", n.url},
			{"Origin", "https://example.com"},
			{"Origin", "null"},
			{"Origin", "http://127.0.0.1"},
			{"Origin", "http://127.0.0.1:1"},
			{"Origin", "https://example.com", "Content-Type", "text/plain"},
		} {
			n.check(t, c, message(item), headers...).refusal(t, http.StatusForbidden, "origin")
			n.untouched(t, c)
		}
		for _, headers := range [][]string{
			{},
			{"Sec-Fetch-Site", "same-origin"},
			{"Sec-Fetch-Site", "none"},
			{"Sec-Fetch-Site", "same-origin", "Origin", "https://behind.a.proxy"},
			{"Origin", n.url},
			{"User-Agent", "curl/8.0", "Content-Type", "application/x-www-form-urlencoded"},
		} {
			if got := n.check(t, c, message(with("hits", "0")), headers...); got.status != 200 {
				t.Errorf("%q: %d %s", headers, got.status, got.body)
			}
		}
	})
}

// A breaking is a body that panics when it is read.
type breaking struct{ cause any }

func (b breaking) Read([]byte) (int, error) { panic(b.cause) }
func (breaking) Close() error               { return nil }

// breakable serves the handler of n from a listener of its own. The requests' bodies panic.
func (n *node) breakable(t *testing.T, cause any) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			r.Body = breaking{cause}
		}
		n.server.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestPanic(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]any{"text": "the cause", "error": errors.New("the cause"), "nothing": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, c := start(t), newClient(t, 1)
			s := n.breakable(t, cause)
			for range 20 { // more than the log of refused requests takes in a second
				resp, err := c.Post(s.URL+"/v1/check", "", strings.NewReader(message(item)))
				if err != nil {
					t.Fatal(err)
				}
				got := read(t, resp)
				got.refusal(t, http.StatusInternalServerError, "internal")
				if strings.Contains(got.body, "cause") {
					t.Errorf("it is no business of callers: %s", got.body)
				}
				line := n.log.wait(t, `"level":"error"`, `"request_id":"`+got.header.Get("X-Request-Id")+`"`)
				if stack, _ := line["stack"].(string); !strings.Contains(stack, "breaking.Read") {
					t.Errorf("no stack of the panic: %v", line)
				}
				if message, _ := line["message"].(string); !strings.Contains(message, "panic") ||
					cause != nil && !strings.Contains(message, "the cause") {
					t.Errorf("no cause: %v", line)
				}
			}
			n.untouched(t, c)
			expect(t, n.metrics(t, c), "weir_rejected_requests_total",
				map[string]float64{`weir_rejected_requests_total{reason="panic"}`: 20})
		})
	}
}

// TestAbort: a handler that breaks its answer off on purpose has not failed.
func TestAbort(t *testing.T) {
	t.Parallel()
	n := start(t)
	s := n.breakable(t, http.ErrAbortHandler)
	resp, err := newClient(t, 1).Post(s.URL+"/v1/check", "", strings.NewReader(message(item)))
	if err == nil {
		t.Errorf("answered with %d", resp.StatusCode)
		resp.Body.Close()
	}
	if found, _ := n.log.with(); len(found) > 0 {
		t.Errorf("logged: %q", found)
	}
}

// TestRequestID: the id that a caller sends is repeated in the answer and in the log, unless it could be an attack on
// those that read the log.
func TestRequestID(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		id   string
		sane bool
	}{
		{"a", true},
		{"7f3a9c04-1b2c-4d5e-8f90-0a1b2c3d4e5f", true},
		{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", true},
		{"01ARZ3NDEKTSV4RRFFQ69G5FAV", true},
		{"req_1.2:3/4+5=", true},
		{strings.Repeat("x", 64), true},
		{"", false},
		{strings.Repeat("x", 65), false},
		{strings.Repeat("x", 8000), false},
		{"two words", false},
		{"tab\tbed", false},
		{`quo"te`, false},
		{`back\slash`, false},
		{"<script>alert(1)</script>", false},
		{"{json}", false},
		{"a,b", false},
		{"a;b", false},
		{"caf\u00e9", false},
		{"\u202eright", false},
		{"\x80\xff", false},
	} {
		n, c := start(t, debug), newClient(t, 1)
		a := n.check(t, c, "nonsense", "X-Request-Id", tt.id)
		a.refusal(t, http.StatusBadRequest)
		got := a.header.Get("X-Request-Id")
		if tt.sane && got != tt.id {
			t.Errorf("%q was replaced by %q", tt.id, got)
		}
		if !tt.sane && (got == tt.id || len(got) > 64 || strings.ContainsAny(got, " \t\"\\<>{},;\u0080\u00ff")) {
			t.Errorf("%q was answered with %q", tt.id, got)
		}
		n.log.wait(t, `"request refused"`, `"request_id":"`+got+`"`)
		if found, _ := n.log.with(); tt.id != "" && !tt.sane && strings.Contains(strings.Join(found, ""), tt.id) {
			t.Errorf("%q is in the log: %q", tt.id, found)
		}
	}
}

// TestRequestIDsDiffer: new ones are new.
func TestRequestIDsDiffer(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	seen := map[string]bool{}
	for range 100 {
		seen[n.check(t, c, "").header.Get("X-Request-Id")] = true
	}
	if len(seen) != 100 {
		t.Errorf("%d different ids in 100 requests", len(seen))
	}
}

// TestLogInjection: whatever is asked for, a line of the log is one line, and its fields are the server's.
func TestLogInjection(t *testing.T) {
	t.Parallel()
	n, c := start(t, debug), newClient(t, 1)
	for _, path := range []string{
		`/%0a{"level":"error","message":"forged"}`,
		`/%0d%0aforged`,
		`/%22,%22forged%22:%22`,
		`/%00%1b[31mforged%ff`,
		`/%e2%80%a8forged`,
	} {
		n.get(t, c, path).refusal(t, http.StatusNotFound)
	}
	n.check(t, c, message("{\"forged\\n\\u001b[31m\\u0000\":1}")).refusal(t, http.StatusBadRequest, "forged")
	n.log.wait(t, `"message":"request"`, `"path":"/v1/check"`)
	found, _ := n.log.with()
	for _, line := range found {
		for name := range fields(t, line) {
			if !strings.Contains(" level request_id from method path proto status error time ms message ", " "+name+" ") {
				t.Errorf("field %q in %s", name, line)
			}
		}
	}
}

// TestAccessLog: each request has a line if the log wants them, and only then.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		quiet, loud := start(t), start(t, debug)
		for _, n := range []*node{quiet, loud} {
			n.check(t, c, message(item)).results(t)
			n.get(t, c, "/nowhere")
		}
		for _, want := range []struct {
			path   string
			status float64
		}{{"/v1/check", 200}, {"/nowhere", 404}} {
			line := loud.log.wait(t, `"level":"debug"`, `"message":"request"`, `"path":"`+want.path+`"`)
			if line["status"] != want.status || line["method"] == nil || line["from"] == nil || line["ms"] == nil {
				t.Errorf("%v", line)
			}
		}
		quiet.get(t, c, "/healthz")
		if found, _ := quiet.log.with(`"debug"`); len(found) > 0 {
			t.Errorf("without debug: %q", found)
		}
		if found, _ := quiet.log.with(); len(found) != 1 {
			t.Errorf("want a line for the refused request and none for the other: %q", found)
		}
	})
}

// TestAccessLogOfPanic: a request that failed most of all.
func TestAccessLogOfPanic(t *testing.T) {
	t.Parallel()
	n := start(t, debug)
	s := n.breakable(t, "the cause")
	resp, err := newClient(t, 1).Post(s.URL+"/v1/check", "", strings.NewReader(message(item)))
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp).refusal(t, http.StatusInternalServerError)
	n.log.wait(t, `"message":"request"`, `"path":"/v1/check"`, `"status":500`)
}

// TestRefusalsAreThinnedOut: rubbish that is sent must not fill the disk, and must be found in part when it is
// debugged.
func TestRefusalsAreThinnedOut(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	ids := map[string]bool{}
	for range 100 {
		a := n.check(t, c, "nonsense")
		a.refusal(t, http.StatusBadRequest)
		ids[a.header.Get("X-Request-Id")] = true
	}
	found, _ := n.log.with(`"request refused"`)
	if len(found) < 1 || len(found) > 30 {
		t.Errorf("%d lines for 100 refused requests", len(found))
	}
	for _, line := range found {
		got := fields(t, line)
		if id, _ := got["request_id"].(string); !ids[id] {
			t.Errorf("no request has the id of %s", line)
		}
		if got["level"] != "warn" || got["status"] != 400.0 || got["error"] == nil || got["path"] != "/v1/check" ||
			got["method"] != "POST" || got["from"] == nil {
			t.Errorf("%s", line)
		}
	}
	if found, _ := n.log.with(); len(found) > 30 {
		t.Errorf("%d lines in all", len(found))
	}
}

// TestHandler serves the API from another listener.
func TestHandler(t *testing.T) {
	t.Parallel()
	n := start(t)
	s := httptest.NewServer(n.server.Handler())
	defer s.Close()
	resp, err := s.Client().Post(s.URL+"/v1/check", "", strings.NewReader(message(item)))
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, resp).results(t); got[0].Status != "OK" || *got[0].Remaining != 9 {
		t.Errorf("%+v", got)
	}
	if got := n.check(t, newClient(t, 1), message(item)).results(t); *got[0].Remaining != 8 {
		t.Errorf("it must be the same count: %+v", got)
	}
}
