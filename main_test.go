package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is where waiting for something that should have happened long ago ends. It is no promise of the program's.
const patience = 30 * time.Second

// binary is the program under test. TestMain builds it.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weir-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "weir")
	args := []string{"build", "-buildvcs=false", "-ldflags", "-X main.version=1.2.3-test", "-o", binary}
	race := debug.BuildSetting{Key: "-race", Value: "true"}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, race) {
		args = append(args, "-race") // as the test itself
	}
	if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// A process is the program while it runs.
type process struct {
	cmd    *exec.Cmd
	stdout strings.Builder // complete when it has exited
	stderr *lines
	exited chan struct{}
	addr   string // where it listens
}

// lines is text that a test can wait for, line by line. It is safe for concurrent use.
type lines struct {
	mu    sync.Mutex
	text  string        // guarded by mu
	grown chan struct{} // guarded by mu; closed when text grows
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(p)
	close(l.grown)
	l.grown = make(chan struct{})
	return len(p), nil
}

// String returns all there is.
func (l *lines) String() string {
	text, _ := l.now()
	return text
}

func (l *lines) now() (text string, grown <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text, l.grown
}

// launch starts the program in an environment of its own.
func launch(t *testing.T, environment []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary, args...), exited: make(chan struct{})}
	p.stderr = &lines{grown: make(chan struct{})}
	// Else each end takes a second under the race detector.
	p.cmd.Env = append([]string{"GORACE=atexit_sleep_ms=0"}, environment...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.exited
	})
	return p
}

// serving starts the program and returns when it serves.
func serving(t *testing.T, environment ...string) *process {
	t.Helper()
	p := launch(t, append([]string{"WEIR_LISTEN=127.0.0.1:0"}, environment...))
	line := p.line(t, `"message":"serving"`)
	var ok bool
	if p.addr, ok = line["listen"].(string); !ok {
		t.Fatalf("no address in %v", line)
	}
	return p
}

// line waits for a line on stderr that holds all parts, and returns its fields.
func (p *process) line(t *testing.T, parts ...string) map[string]any {
	t.Helper()
	var fields map[string]any
	text := p.text(t, parts...)
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return fields
}

// text is line for what is no JSON.
func (p *process) text(t *testing.T, parts ...string) string {
	t.Helper()
	timeout := time.After(patience)
	for {
		text, grown := p.stderr.now()
		if line, ok := lineWith(text, parts...); ok {
			return line
		}
		select {
		case <-grown:
			continue
		case <-timeout:
		case <-p.exited:
			if line, ok := lineWith(p.stderr.String(), parts...); ok {
				return line
			}
		}
		t.Fatalf("no line with %q on stderr:\n%s", parts, p.stderr)
	}
}

// lineWith finds a whole line that holds all parts.
func lineWith(text string, parts ...string) (string, bool) {
	for line := range strings.Lines(text) {
		holds := strings.HasSuffix(line, "\n")
		for _, part := range parts {
			holds = holds && strings.Contains(line, part)
		}
		if holds {
			return line, true
		}
	}
	return "", false
}

// exit waits for the end and returns the exit code.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatalf("it doesn't end:\n%s", p.stderr)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// client makes no connection that outlives its request.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}

// get returns the status and the body at a path.
func (p *process) get(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := client.Get("http://" + p.addr + path)
	return readAll(t, resp, err)
}

const check = `{"rate_limits":[{"name":"n","unique_key":"k","limit":10,"duration":3600000}]}`

// check takes one of ten and returns what remains, and the owner.
func (p *process) check(t *testing.T) (remaining int, owner string) {
	t.Helper()
	resp, err := client.Post("http://"+p.addr+"/v1/check", "application/json", strings.NewReader(check))
	return readCheck(t, resp, err)
}

func readCheck(t *testing.T, resp *http.Response, err error) (remaining int, owner string) {
	t.Helper()
	status, body := readAll(t, resp, err)
	var message struct {
		RateLimits []struct {
			Status    string
			Remaining int
			Metadata  struct{ Owner string }
		} `json:"rate_limits"`
	}
	if err := json.Unmarshal([]byte(body), &message); err != nil || status != 200 || len(message.RateLimits) != 1 ||
		message.RateLimits[0].Status != "OK" {
		t.Fatalf("%d %s", status, body)
	}
	return message.RateLimits[0].Remaining, message.RateLimits[0].Metadata.Owner
}

func readAll(t *testing.T, resp *http.Response, err error) (int, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// A slowCheck is a check in flight: the program waits for its body.
type slowCheck struct {
	conn net.Conn
	r    *bufio.Reader
}

// slow begins a check and returns when its body is waited for.
func (p *process) slow(t *testing.T) slowCheck {
	t.Helper()
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	s := slowCheck{conn, bufio.NewReader(conn)}
	const head = "POST /v1/check HTTP/1.1\r\nHost: weir\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"
	fmt.Fprintf(conn, head, len(check))
	if line, err := s.r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	s.r.ReadString('\n') // the empty line
	return s
}

// finish sends the body and returns what remains.
func (s slowCheck) finish(t *testing.T) int {
	t.Helper()
	io.WriteString(s.conn, check)
	resp, err := http.ReadResponse(s.r, nil)
	remaining, _ := readCheck(t, resp, err)
	return remaining
}

// eventually asks until the answer is true.
func (p *process) eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !ask() {
		if ctx.Err() != nil {
			t.Fatalf("never happened: %s\n%s", what, p.stderr)
		}
	}
}

func TestServes(t *testing.T) {
	t.Parallel()
	p := serving(t)
	for want := 9; want >= 7; want-- {
		if remaining, owner := p.check(t); remaining != want || owner != p.addr {
			t.Errorf("remaining %d, owner %s; want %d, %s", remaining, owner, want, p.addr)
		}
	}
	status, body := p.get(t, "/metrics")
	if status != 200 || !strings.Contains(body, `weir_build_info{version="1.2.3-test"`) {
		t.Errorf("%d %s", status, body)
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if p.stdout.Len() > 0 {
		t.Errorf("on stdout: %q", p.stdout.String())
	}
}

// TestServingLine: the line that says where it serves says what with.
func TestServingLine(t *testing.T) {
	t.Parallel()
	p := serving(t, "WEIR_CACHE_SIZE=1234", "WEIR_MAX_CONNS=77", "WEIR_DRAIN_DELAY=90s", "WEIR_SHUTDOWN_TIMEOUT=1500ms",
		"WEIR_ADVERTISE=weir-1.example:8080")
	line := p.line(t, `"message":"serving"`)
	for field, want := range map[string]any{
		"owner": "weir-1.example:8080", "version": "1.2.3-test", "cache_size": 1234.0, "max_conns": 77.0,
		"drain_delay": "1m30s", "shutdown_timeout": "1.5s", "level": "info", "failure_policy": "local", "tls": false,
	} {
		if line[field] != want {
			t.Errorf("%s is %v, want %v", field, line[field], want)
		}
	}
	if _, owner := p.check(t); owner != "weir-1.example:8080" {
		t.Errorf("owner %q", owner)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	p := launch(t, nil, "-version")
	line := regexp.MustCompile(`^weir 1\.2\.3-test go1\.\S+ \w+/\w+\n$`)
	if code := p.exit(t); code != 0 || !line.MatchString(p.stdout.String()) {
		t.Errorf("exit code %d, %q", code, p.stdout.String())
	}
	if text := p.stderr.String(); text != "" {
		t.Errorf("on stderr: %q", text)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"-h", "-help", "--help"} {
		p := launch(t, nil, flag)
		if code := p.exit(t); code != 0 {
			t.Errorf("%s: exit code %d", flag, code)
		}
		text := p.stdout.String() + p.stderr.String()
		if len(variablesIn(text)) < 20 {
			t.Errorf("%s: hardly any variables:\n%s", flag, text)
		}
		for _, flag := range []string{"-health", "-version", "-h"} {
			if !strings.Contains(text, "weir "+flag+" ") {
				t.Errorf("nothing about %s:\n%s", flag, text)
			}
		}
	}
}

// variablesIn finds the variables that a text of -h lists.
func variablesIn(help string) (names []string) {
	for _, found := range regexp.MustCompile(`(?m)^  (WEIR_[A-Z_]+) +\S`).FindAllStringSubmatch(help, -1) {
		names = append(names, found[1])
	}
	return names
}

func TestWrongArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"serve"}, {"-version", "now"}, {"-health", "127.0.0.1:8080"}, {""}} {
		p := launch(t, nil, args...)
		if code := p.exit(t); code == 0 {
			t.Errorf("%q: exit code 0", args)
		}
		text := p.stderr.String()
		if strings.Count(text, "\n") != 1 || !strings.Contains(text, strconv.Quote(args[len(args)-1])) ||
			!strings.Contains(text, "-h") {
			t.Errorf("%q: want one line with the argument and where to get help: %q", args, text)
		}
	}
	p := launch(t, nil, "-listen=:8080")
	if code := p.exit(t); code == 0 || !strings.Contains(p.stderr.String(), "-listen") {
		t.Errorf("exit code %d, %q", code, p.stderr)
	}
}

// TestWrongValues: a value that can't be meant stops the start, with one line that says which and why. Package config
// has more.
func TestWrongValues(t *testing.T) {
	t.Parallel()
	for name, values := range map[string][]string{
		"WEIR_LISTEN":         {"8080", "localhost:", "http://127.0.0.1:8080"},
		"WEIR_CACHE_SIZE":     {"abc", "0", "140737488355327"}, // which no machine has memory for
		"WEIR_DRAIN_DELAY":    {"500", "99999999h"},
		"WEIR_PEERS":          {"10.0.0.3", ","},
		"WEIR_FAILURE_POLICY": {"maybe"},
		"WEIR_SNAPSHOT":       {"/there/is/nothing", "/dev/null"},
		"WEIR_ADVERTISE":      {":8080", "0.0.0.0:8080"}, // where no other node could reach it
		"WEIR_LOG_LEVEL":      {"loud", "in\nfo"},
	} {
		for _, value := range values {
			t.Run(name+"="+value, func(t *testing.T) {
				t.Parallel()
				refusesValue(t, name, value)
			})
		}
	}
}

// TestSettingsThatDontGoTogether: what is missing or too much is told by its name.
func TestSettingsThatDontGoTogether(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		environment []string
		says        string
	}{
		{[]string{"WEIR_TLS_KEY=key.pem"}, "WEIR_TLS_CERT"},
		{[]string{"WEIR_TLS_CERT=/nowhere/cert.pem", "WEIR_TLS_KEY=/nowhere/key.pem"}, "/nowhere/cert.pem"},
		{[]string{"WEIR_PEERS=192.0.2.1:8080,192.0.2.3:8080"}, "WEIR_PEER_SECRET"},
		{[]string{"WEIR_PEERS=127.0.0.1:8080", "WEIR_PEERS_SRV=_weir._tcp.example"}, "WEIR_PEERS_SRV"},
	} {
		p := launch(t, append(tt.environment, "WEIR_LISTEN=127.0.0.1:0"))
		code, text := p.exit(t), p.stderr.String()
		if code <= 0 || strings.Count(text, "\n") != 1 || !strings.Contains(text, tt.says) {
			t.Errorf("%q: exit code %d; want one line with %s: %q", tt.environment, code, tt.says, text)
		}
	}
}

// TestSecret: it is nowhere to be read, whether it is good or not.
func TestSecret(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"hush1,hush2,hush3", "hush hush", "hush,"} {
		p := launch(t, []string{"WEIR_LISTEN=127.0.0.1:0", "WEIR_PEER_SECRET=" + wrong})
		code, text := p.exit(t), p.stderr.String()
		if code <= 0 || strings.Count(text, "\n") != 1 || !strings.Contains(text, "WEIR_PEER_SECRET") ||
			strings.Contains(text, "hush") {
			t.Errorf("%q: exit code %d; want one line with the variable and without its value: %q", wrong, code, text)
		}
	}
	p := serving(t, "WEIR_PEER_SECRET=hush", "WEIR_LOG_LEVEL=debug")
	p.check(t)
	text := ""
	for _, path := range []string{"/metrics", "/v1/peers", "/readyz", "/nowhere"} {
		_, body := p.get(t, path)
		text += body
	}
	p.signal(t, syscall.SIGTERM)
	p.exit(t)
	if text += p.stderr.String(); strings.Contains(text, "hush") {
		t.Errorf("the secret is in\n%s", text)
	}
}

// refusesValue checks that the program doesn't start.
func refusesValue(t *testing.T, name, value string) {
	t.Helper()
	// What listens nowhere else can't disturb, should it start all the same.
	p := launch(t, []string{"WEIR_LISTEN=127.0.0.1:0", name + "=" + value})
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			text, grown := p.stderr.now()
			if strings.Contains(text, "serving") {
				p.cmd.Process.Signal(syscall.SIGKILL)
				return
			}
			select {
			case <-grown:
			case <-done:
				return
			}
		}
	}()
	code := p.exit(t)
	text := p.stderr.String()
	if code <= 0 || strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") ||
		!strings.Contains(text, name+"=") || !strings.Contains(text, strconv.Quote(value)) {
		t.Errorf("exit code %d; want one line with the variable and its value: %.500q", code, text)
	}
	if p.stdout.Len() > 0 {
		t.Errorf("on stdout: %q", p.stdout.String())
	}
}

func TestSeveralWrongValues(t *testing.T) {
	t.Parallel()
	p := launch(t, []string{"WEIR_CACHE_SIZE=abc", "WEIR_LOG_LEVEL=loud", "WEIR_DRAIN_DELAY=1"})
	if code := p.exit(t); code == 0 || strings.Count(p.stderr.String(), "\n") != 1 {
		t.Errorf("exit code %d; want one line: %q", code, p.stderr)
	}
}

// TestEmptyValues: container tools set what was left out to nothing.
func TestEmptyValues(t *testing.T) {
	t.Parallel()
	help := launch(t, nil, "-h")
	help.exit(t)
	environment := []string{}
	for _, name := range variablesIn(help.stdout.String()) {
		if name != "WEIR_LISTEN" {
			environment = append(environment, name+"=")
		}
	}
	p := serving(t, environment...)
	if line := p.line(t, `"message":"serving"`); line["cache_size"] != 1e6 || line["shutdown_timeout"] != "8s" {
		t.Errorf("%v", line)
	}
	p.check(t)
}

func TestUnknownVariable(t *testing.T) {
	t.Parallel()
	p := serving(t, "WEIR_CACHESIZE=10", "WEIR_PEER_SEKRET=hush", "WEIRD=1")
	for _, name := range []string{"WEIR_CACHESIZE", "WEIR_PEER_SEKRET"} {
		p.line(t, `"level":"warn"`, `"`+name+`"`)
	}
	p.check(t)
	if text := p.stderr.String(); strings.Contains(text, "hush") || strings.Contains(text, "WEIRD") {
		t.Errorf("a value that may be a secret, or a variable that isn't ours: %s", text)
	}
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	addr := ln.Addr().String()
	p := launch(t, []string{"WEIR_LISTEN=" + addr})
	code, text := p.exit(t), p.stderr.String()
	if code <= 0 || strings.Count(text, "\n") != 1 || !strings.Contains(text, "WEIR_LISTEN") ||
		!strings.Contains(text, addr) || !strings.Contains(text, "in use") {
		t.Errorf("exit code %d; want one line with the variable, the address and the reason: %q", code, text)
	}
}

// TestOwner: the name that a node finds for itself must be one at which others could reach it.
func TestOwner(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{":0", "0.0.0.0:0", "127.0.0.1:0", "localhost:0"} {
		t.Run(listen, func(t *testing.T) {
			t.Parallel()
			p := serving(t, "WEIR_LISTEN="+listen)
			_, port, err := net.SplitHostPort(p.addr)
			if err != nil {
				t.Fatal(err)
			}
			p.addr = net.JoinHostPort("localhost", port)
			_, owner := p.check(t)
			host, ownerPort, err := net.SplitHostPort(owner)
			if ip := net.ParseIP(host); err != nil || ip == nil || ip.IsUnspecified() || ownerPort != port {
				t.Errorf("owner %q, with port %s", owner, port)
			}
			p.addr = owner
			if remaining, _ := p.check(t); remaining != 8 {
				t.Errorf("another process answers at %s: remaining %d", owner, remaining)
			}
		})
	}
}

// health asks as a container's health check does.
func askHealth(t *testing.T, environment ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := launch(t, environment, "-health")
	code = p.exit(t)
	return code, p.stdout.String(), p.stderr.String()
}

func TestHealth(t *testing.T) {
	t.Parallel()
	p := serving(t, "WEIR_LISTEN=:0", "WEIR_DRAIN_DELAY=1h")
	owner, _ := p.line(t, `"message":"serving"`)["owner"].(string) // with an address that others could reach
	_, port, _ := net.SplitHostPort(p.addr)
	p.addr = "127.0.0.1:" + port
	// A proxy is for calls that leave the machine. HTTP clients know that of loopback addresses only.
	for _, listen := range []string{
		"127.0.0.1:" + port, "localhost:" + port, ":" + port, "0.0.0.0:" + port, "[::]:" + port, owner,
	} {
		code, stdout, stderr := askHealth(t, "WEIR_LISTEN="+listen, "HTTP_PROXY=http://127.0.0.1:1")
		if code != 0 || stdout != "" || stderr != "" {
			t.Errorf("WEIR_LISTEN=%s: exit code %d, %q, %q", listen, code, stdout, stderr)
		}
	}

	p.signal(t, syscall.SIGTERM)
	p.eventually(t, "/readyz answers 503", func() bool { status, _ := p.get(t, "/readyz"); return status == 503 })
	if code, _, stderr := askHealth(t, "WEIR_LISTEN="+p.addr); code != 0 {
		t.Errorf("while draining: exit code %d, %q", code, stderr)
	}

	p.signal(t, syscall.SIGSTOP)
	code, _, stderr := askHealth(t, "WEIR_LISTEN="+p.addr)
	if code != 1 || strings.Count(stderr, "\n") != 1 {
		t.Errorf("while it hangs: exit code %d, %q", code, stderr)
	}

	p.signal(t, syscall.SIGKILL)
	p.exit(t)
	code, _, stderr = askHealth(t, "WEIR_LISTEN="+p.addr)
	if code != 1 || strings.Count(stderr, "\n") != 1 {
		t.Errorf("after its end: exit code %d, %q", code, stderr)
	}
}

func TestHealthOfSomethingElse(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	code, _, stderr := askHealth(t, "WEIR_LISTEN="+strings.TrimPrefix(s.URL, "http://"))
	if code != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "404") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

// listens reports whether anything listens at the process's address.
func (p *process) listens() bool {
	conn, err := net.Dial("tcp", p.addr)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// TestStopFinishesRequests: what has been let in is answered.
func TestStopFinishesRequests(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			p := serving(t)
			inFlight := p.slow(t)
			p.signal(t, s)
			p.eventually(t, "the listener closes", func() bool { return !p.listens() })
			if remaining := inFlight.finish(t); remaining != 9 {
				t.Errorf("remaining %d, want 9", remaining)
			}
			if code := p.exit(t); code != 0 {
				t.Errorf("exit code %d\n%s", code, p.stderr)
			}
			p.line(t, `"stopping"`)
			p.line(t, `"stopped"`)
			if text := p.stderr.String(); strings.Contains(text, `"level":"warn"`) || strings.Contains(text, `"level":"error"`) {
				t.Errorf("nothing went wrong, but:\n%s", text)
			}
		})
	}
}

// TestDrainDelay: while those that send requests learn of it, they are answered.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	for _, second := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(second.String(), func(t *testing.T) {
			t.Parallel()
			p := serving(t, "WEIR_DRAIN_DELAY=1h")
			if status, body := p.get(t, "/readyz"); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			p.signal(t, syscall.SIGTERM)
			p.eventually(t, "/readyz answers 503", func() bool { status, _ := p.get(t, "/readyz"); return status == 503 })
			if status, body := p.get(t, "/readyz"); status != 503 || !strings.Contains(body, `"error":"`) {
				t.Errorf("/readyz: %d %s", status, body)
			}
			if status, body := p.get(t, "/healthz"); status != 200 {
				t.Errorf("/healthz: %d %s", status, body)
			}
			inFlight := p.slow(t)
			if remaining, _ := p.check(t); remaining != 9 {
				t.Errorf("remaining %d, want 9", remaining)
			}
			p.signal(t, second)
			p.eventually(t, "the listener closes", func() bool { return !p.listens() })
			if remaining := inFlight.finish(t); remaining != 8 {
				t.Errorf("remaining %d, want 8", remaining)
			}
			if code := p.exit(t); code != 0 {
				t.Errorf("exit code %d\n%s", code, p.stderr)
			}
		})
	}
}

// TestInterruptSkipsDelay: people that press Ctrl-C want it to end.
func TestInterruptSkipsDelay(t *testing.T) {
	t.Parallel()
	p := serving(t, "WEIR_DRAIN_DELAY=1h")
	p.signal(t, syscall.SIGINT)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.stderr)
	}
}

// TestShutdownTimeout: a client that never ends its request doesn't keep the program from ending well.
func TestShutdownTimeout(t *testing.T) {
	t.Parallel()
	p := serving(t, "WEIR_SHUTDOWN_TIMEOUT=50ms")
	stuck := p.slow(t)
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.stderr)
	}
	p.line(t, `"level":"warn"`, "cut off")
	if rest, _ := io.ReadAll(stuck.r); len(rest) > 0 {
		t.Errorf("answered with %q", rest)
	}
}

func TestLogLevel(t *testing.T) {
	t.Parallel()
	p := serving(t, "WEIR_LOG_LEVEL=debug")
	p.check(t)
	p.line(t, `"level":"debug"`, `"path":"/v1/check"`)

	quiet := serving(t)
	quiet.check(t)
	quiet.get(t, "/nowhere")
	quiet.line(t, `"path":"/nowhere"`)
	if text := quiet.stderr.String(); strings.Contains(text, `"debug"`) {
		t.Errorf("at level info:\n%s", text)
	}
}

// TestConsole: the format for people is none for machines, and what is no terminal gets no colours.
func TestConsole(t *testing.T) {
	t.Parallel()
	p := launch(t, []string{"WEIR_LISTEN=127.0.0.1:0", "WEIR_LOG_FORMAT=console"})
	line := p.text(t, "serving")
	plain := regexp.MustCompile(`\x1b\[[0-9;]*m`).ReplaceAllString(line, "")
	if plain != line {
		t.Errorf("escape sequences for a terminal: %q", line)
	}
	found := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\S+ INF serving .*\blisten=(\S+)`).FindStringSubmatch(plain)
	if found == nil {
		t.Fatalf("%q", plain)
	}
	p.addr = found[1]
	p.check(t)
	p.get(t, "/%1b[95m%0aforged")
	p.text(t, "request refused")
	if text := p.stderr.String(); strings.Contains(text, "\x1b[95m") || strings.Contains(text, "\nforged") {
		t.Errorf("text of a request as it came: %q", text)
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
