package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/tests/dnstest"
)

// The tests of this file run the program itself, as processes that are started, frozen and killed.

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := program(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// program builds weir, once, into a directory that TestMain removes.
var program = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "weir-test-"); err != nil {
		return "", err
	}
	args := []string{"build", "-buildvcs=false", "-o", filepath.Join(dir, "weir")}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race",
		Value: "true"}) {
		args = append(args, "-race") // as the test itself
	}
	build := exec.Command("go", append(args, "weir")...)
	if out, err := build.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, nil
})

// hush is the secret of all processes. None may ever print it.
const hush = "hush-this-is-the-secret"

// command prepares a run of weir with some of its variables set, and no others. It is killed when ctx ends.
func command(ctx context.Context, t *testing.T, variables []string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := program()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(ctx, filepath.Join(dir, "weir"), args...)
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") })
	c.Env = append(c.Env, variables...)
	return c
}

// A process is a weir that runs. It asks and answers as the nodes of other tests do.
type process struct {
	*node
	variables []string
	cmd       *exec.Cmd
	output    *journal
	exited    chan struct{} // closed when it has
}

// start starts a process that listens on addr, and has it killed at the end of the test.
func start(t *testing.T, addr string, variables ...string) *process {
	t.Helper()
	p := &process{
		node:      &node{name: addr, url: "http://" + addr, client: &http.Client{Transport: &http.Transport{}}},
		variables: variables, output: &journal{}, exited: make(chan struct{}),
	}
	p.cmd = command(t.Context(), t, append([]string{"WEIR_LISTEN=" + addr, "WEIR_LOG_LEVEL=debug"}, variables...))
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.cmd.Wait() // its error says no more than ProcessState
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill() // it may have exited
		<-p.exited
		p.client.CloseIdleConnections()
		text := p.output.String()
		if strings.Contains(text, hush) {
			t.Errorf("%s printed the secret", addr)
		}
		if strings.Contains(text, "panic") || strings.Contains(text, "DATA RACE") {
			t.Errorf("%s panicked", addr)
		}
		if t.Failed() {
			lines := slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(line string) bool {
				return strings.Contains(line, `"message":"request"`)
			})
			t.Logf("the last that %s said:\n%s", addr, strings.Join(lines[max(0, len(lines)-20):], ""))
		}
	})
	return p
}

// again starts a process that has exited once more.
func (p *process) again(t *testing.T) *process {
	t.Helper()
	return start(t, p.name, p.variables...)
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	// A connection that was never used makes net/http wait for 5 s when it stops.
	p.client.CloseIdleConnections()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// wait waits for the exit and gives its code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	eventually(t, p.name+" exits", func() bool {
		select {
		case <-p.exited:
			return true
		default:
			return false
		}
	})
	return p.cmd.ProcessState.ExitCode()
}

// status returns the status of an answer, 0 if there is none.
func (p *process) status(path string) int {
	resp, err := p.client.Get(p.url + path)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// ready waits until a process is, and sees that many nodes.
func (p *process) ready(t *testing.T, nodes int) {
	t.Helper()
	eventually(t, fmt.Sprint(p.name, " is ready and sees ", nodes), func() bool {
		if p.status("/readyz") != http.StatusOK {
			return false
		}
		var ready struct{ Nodes int }
		return json.Unmarshal(p.get(t, "/readyz", http.StatusOK), &ready) == nil && ready.Nodes == nodes
	})
}

// agree waits until all processes answer for each other without doubt.
func agree(t *testing.T, all ...*process) {
	t.Helper()
	for _, p := range all {
		eventually(t, p.name+" hears of the others", func() bool {
			for _, owner := range all {
				if len(p.keysOf(t, owner.node, 1)) == 0 {
					return false
				}
			}
			return true
		})
	}
}

// keysOf looks for keys that a node owns, and that p asks it for without doubt. It may find fewer.
func (p *process) keysOf(t *testing.T, owner *node, count int) (keys []string) {
	t.Helper()
	var all []string
	for i := range 100 * count {
		all = append(all, fmt.Sprint("key-", i))
	}
	for i, r := range p.checkKeys(t, all, "hits", 0) {
		if r.Metadata["owner"] == owner.name && r.Metadata["degraded"] == "" && len(keys) < count {
			keys = append(keys, all[i])
		}
	}
	return keys
}

// freeAddrs finds addresses that no process listens on.
func freeAddrs(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		ln := listen(t)
		defer ln.Close()
		addrs = append(addrs, ln.Addr().String())
	}
	return addrs
}

// startAll starts processes that list each other, and waits until they know each other.
func startAll(t *testing.T, n int, variables ...string) []*process {
	t.Helper()
	addrs := freeAddrs(t, n)
	var all []*process
	for _, addr := range addrs {
		all = append(all, start(t, addr, append(variables, "WEIR_PEERS="+strings.Join(addrs, ","),
			"WEIR_PEER_SECRET="+hush)...))
	}
	for _, p := range all {
		p.ready(t, n)
	}
	agree(t, all...)
	return all
}

// countTogether sends 30 hits over all processes at once, to a limit of 10.
func countTogether(t *testing.T, key string, all ...*process) {
	t.Helper()
	results := make([]result, 30)
	var callers sync.WaitGroup
	for i := range results {
		callers.Go(func() { results[i] = all[i%len(all)].check(t, item(key))[0] })
	}
	callers.Wait()
	ok := 0
	for _, r := range results {
		if r.Status == "OK" {
			ok++
		}
		if r.Metadata["degraded"] != "" {
			t.Error(describe(r))
		}
	}
	if ok != 10 {
		t.Errorf("%d of 30 hits passed a limit of 10", ok)
	}
}

// TestProcessesStartInAnyOrder starts three nodes one after the other. The first answers for all, and says that it does
// so in place of others; all together count as one.
func TestProcessesStartInAnyOrder(t *testing.T) {
	t.Parallel()
	addrs := freeAddrs(t, 3)
	var all []*process
	for i, addr := range []string{addrs[2], addrs[0], addrs[1]} {
		p := start(t, addr, "WEIR_PEERS="+strings.Join(addrs, ", ")+",", "WEIR_PEER_SECRET="+hush)
		all = append(all, p)
		p.ready(t, 3)
		owned := 0
		for j := range 50 {
			switch r := p.check(t, item(fmt.Sprint("early-", i, "-", j)))[0]; {
			case r.Status != "OK" || *r.Remaining != 9:
				t.Error(describe(r))
			case r.Metadata["degraded"] == "":
				owned++
			case !slices.Contains([]string{"owner_unreachable", "owner_out"}, r.Metadata["degraded"]):
				t.Error(describe(r))
			}
		}
		if owned == 0 || i == 0 && owned == 50 {
			t.Errorf("node %d counted %d of 50 without doubt", i, owned)
		}
	}
	agree(t, all...)
	countTogether(t, "together", all...)
}

// TestProcessKilled kills the owner of a limit without a word. The node that is asked next answers, says what is wrong,
// and soon the others agree on who counts; until it is back.
func TestProcessKilled(t *testing.T) {
	t.Parallel()
	all := startAll(t, 3, "WEIR_PEER_TIMEOUT=2s")
	a, b, victim := all[0], all[1], all[2]
	keys := a.keysOf(t, victim.node, 3)
	if r := a.check(t, item(keys[0]))[0]; *r.Remaining != 9 {
		t.Error(describe(r))
	}
	victim.signal(t, syscall.SIGKILL)
	victim.wait(t)
	for i, p := range []*process{a, b} {
		for hit := range 5 {
			r := p.check(t, item(keys[i]))[0]
			if r.Status != "OK" || r.Metadata["owner"] == victim.name || r.Metadata["owner"] == "" ||
				!slices.Contains([]string{"owner_unreachable", "owner_out", "owner_broken"}, r.Metadata["degraded"]) {
				t.Errorf("hit %d at %s: %s", hit, p.name, describe(r))
			}
		}
	}
	standIn := func(p *process) (r result) {
		t.Helper()
		eventually(t, "others stand in at "+p.name, func() bool {
			r = p.check(t, item(keys[2], "limit", 1_000_000))[0]
			return r.Metadata["degraded"] == "owner_out"
		})
		return r
	}
	first, second := standIn(a), standIn(b)
	if first.Metadata["owner"] != second.Metadata["owner"] || first.Metadata["owner"] == victim.name ||
		*second.Remaining >= *first.Remaining {
		t.Errorf("they don't agree: %s%s", describe(first), describe(second))
	}
	victim = victim.again(t)
	agree(t, a, b, victim)
	if r := b.check(t, item(keys[0]))[0]; r.Metadata["owner"] != victim.name || r.Metadata["degraded"] != "" {
		t.Error(describe(r))
	}
}

// TestProcessFrozen stops the owner of a limit for a while. Hits sent meanwhile are counted at most once, only the
// first callers pay for its silence, and it is noticed when it is back.
func TestProcessFrozen(t *testing.T) {
	t.Parallel()
	all := startAll(t, 2, "WEIR_PEER_TIMEOUT=300ms")
	a, owner := all[0], all[1]
	keys := a.keysOf(t, owner.node, 2)
	hit := func(key string) result {
		t.Helper()
		r := a.check(t, item(key, "limit", 1000))[0]
		if r.Status != "OK" || r.Metadata["degraded"] != "" && !slices.Contains(degradedWords, r.Metadata["degraded"]) {
			t.Fatal(describe(r))
		}
		return r
	}
	owner.signal(t, syscall.SIGSTOP)
	frozen := false // the signal may take a moment
	for range 20 {
		r := hit(keys[0])
		if frozen = frozen || r.Metadata["degraded"] != ""; frozen && (r.Metadata["degraded"] == "" ||
			r.Metadata["owner"] != a.name) {
			t.Errorf("while it is frozen: %s", describe(r))
		}
	}
	owner.signal(t, syscall.SIGCONT)
	back := func() {
		t.Helper()
		eventually(t, "it is noticed that it is back", func() bool {
			return a.check(t, item(keys[0], "limit", 1000, "hits", 0))[0].Metadata["degraded"] == ""
		})
	}
	back()
	if r := owner.check(t, item(keys[0], "limit", 1000, "hits", 0))[0]; *r.Remaining < 980 || *r.Remaining > 1000 {
		t.Errorf("20 hits were sent, it counted %d", 1000-*r.Remaining)
	}

	owner.signal(t, syscall.SIGSTOP)
	waited := 0
	for range 200 {
		switch r := hit(keys[1]); r.Metadata["degraded"] {
		case "owner_timeout":
			waited++
		case "":
			if waited > 0 {
				t.Errorf("while it is frozen: %s", describe(r))
			}
		}
	}
	if waited < 1 || waited > 4 { // three, and one more that began before the third was over
		t.Errorf("%d of 200 callers waited for it", waited)
	}
	owner.signal(t, syscall.SIGCONT)
	back()
}

// TestProcessStops stops the owner of a limit properly, while hits come through another node. Each is answered, none is
// counted twice, and the owner exits well.
func TestProcessStops(t *testing.T) {
	t.Parallel()
	all := startAll(t, 2, "WEIR_PEER_TIMEOUT=5s", "WEIR_DRAIN_DELAY=300ms")
	a, owner := all[0], all[1]
	key := a.keysOf(t, owner.node, 1)[0]
	const hits, limit = 200, 1_000_000
	results := make(chan result, hits)
	half := make(chan struct{})
	var callers sync.WaitGroup
	for c := range 8 {
		callers.Go(func() {
			for i := range hits / 8 {
				if c == 0 && i == 5 {
					close(half)
				}
				if i == 12 { // half of the hits come when it is on its way out, or gone
					eventually(t, "it is on its way out", func() bool { return owner.status("/readyz") != http.StatusOK })
				}
				if i == 18 {
					<-owner.exited
				}
				results <- a.check(t, item(key, "limit", limit))[0]
			}
		})
	}
	<-half
	owner.signal(t, syscall.SIGTERM)
	callers.Wait()
	close(results)
	counted := map[string][]int64{} // what each counter had left, after each hit
	unknown := 0                    // hits of which the owner may have counted some
	for r := range results {
		if r.Status != "OK" {
			t.Fatal(describe(r))
		}
		if why := r.Metadata["degraded"]; why == "owner_timeout" || why == "owner_broken" {
			unknown++
		}
		counted[r.Metadata["owner"]] = append(counted[r.Metadata["owner"]], *r.Remaining)
	}
	if code := owner.wait(t); code != 0 {
		t.Errorf("it exited with %d", code)
	}
	// What one has counted the other goes on from: together they count as one.
	remaining := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(counted))...)))
	if distinct := len(slices.Compact(slices.Clone(remaining))); distinct+unknown < len(remaining) {
		t.Errorf("the same answer was given twice: %v", counted)
	}
	if used := int(limit - remaining[0]); used < hits-unknown || used > hits+unknown {
		t.Errorf("%d hits were counted, of %d", used, hits)
	}
	if len(remaining) != hits || len(counted[owner.name]) == 0 || len(counted[a.name]) == 0 {
		t.Errorf("%d answers, of which the owner counted %d", len(remaining), len(counted[owner.name]))
	}
	if unknown > 5 {
		t.Errorf("of %d hits it is unknown whether they were counted", unknown)
	}
}

// TestWrongClusters starts weir with lists that can't work. It must say in one line which entry is wrong, or what it
// looked for in vain, and exit.
func TestWrongClusters(t *testing.T) {
	t.Parallel()
	addr := freeAddrs(t, 1)[0]
	_, port, _ := net.SplitHostPort(addr)
	for _, test := range []struct {
		name      string
		variables []string
		wants     []string
	}{
		{"an entry without port", []string{"WEIR_PEERS=" + addr + ",b"}, []string{"WEIR_PEERS=", `"b"`}},
		{"an entry that is a URL", []string{"WEIR_PEERS=http://a:1," + addr}, []string{"WEIR_PEERS=", `"http://a:1"`}},
		{"an entry with a bad port", []string{"WEIR_PEERS=a:0," + addr}, []string{"WEIR_PEERS=", `"a:0"`}},
		{"an entry that can't be dialled", []string{"WEIR_PEERS=0.0.0.0:1," + addr}, []string{"WEIR_PEERS=", `"0.0.0.0:1"`}},
		{"not in the list", []string{"WEIR_PEERS=127.0.0.1:1,127.0.0.1:2"}, []string{"WEIR_PEERS=", "127.0.0.1:1",
			"127.0.0.1:2", "WEIR_ADVERTISE", port}},
		{"twice in the list", []string{"WEIR_PEERS=" + addr + ",localhost:" + port}, []string{"WEIR_PEERS=",
			"WEIR_ADVERTISE"}},
		{"another name in the list", []string{"WEIR_PEERS=" + addr, "WEIR_ADVERTISE=192.0.2.1:" + port},
			[]string{"WEIR_PEERS=", "WEIR_ADVERTISE", "192.0.2.1"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		output, err := command(ctx, t, append(test.variables, "WEIR_LISTEN="+addr, "WEIR_LOG_LEVEL=error")).CombinedOutput()
		cancel()
		text := string(output)
		if failed, ok := errors.AsType[*exec.ExitError](err); !ok || failed.ExitCode() <= 0 {
			t.Errorf("%s: %v: %s", test.name, err, text)
		}
		if strings.Count(text, "\n") != 1 || strings.Contains(text, hush) {
			t.Errorf("%s: it says\n%s", test.name, text)
		}
		for _, want := range test.wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: it says %snot %s", test.name, text, want)
			}
		}
	}
}

// TestInsecurePeers insists on a cluster that any node could take part in.
func TestInsecurePeers(t *testing.T) {
	t.Parallel()
	for _, variables := range [][]string{
		{"WEIR_INSECURE_PEERS=true"},
		{"WEIR_PEER_SECRET=" + hush},
		{"WEIR_PEER_SECRET=" + hush + ", " + hush + "-2"},
	} {
		addr := freeAddrs(t, 1)[0]
		start(t, addr, append(variables, "WEIR_PEERS=192.0.2.1:8080,"+addr)...).ready(t, 2)
	}
}

// TestProcessesWithTLS runs two nodes with certificates, and asks one for its health as a container engine does. Their
// authority is their own, and clients need certificates too; or it is one that the system knows.
func TestProcessesWithTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	appCert, appKey := a.issue(t, "app", "app.test")
	for _, test := range []struct {
		variables []string
		client    *http.Client
	}{
		{[]string{"WEIR_TLS_CA=" + a.file}, a.client(t, appCert, appKey)},
		{[]string{"SSL_CERT_FILE=" + a.file, "WEIR_PEER_SECRET=" + hush}, a.client(t, "", "")},
	} {
		addrs := freeAddrs(t, 2)
		var all []*process
		for i, addr := range addrs {
			certFile, keyFile := a.issue(t, fmt.Sprint("node-", i), "127.0.0.1")
			p := start(t, addr, append(test.variables,
				"WEIR_PEERS="+strings.Join(addrs, ","), "WEIR_TLS_CERT="+certFile, "WEIR_TLS_KEY="+keyFile)...)
			p.client, p.url = test.client, "https://"+addr
			all = append(all, p)
		}
		for _, p := range all {
			p.ready(t, 2)
		}
		agree(t, all...)
		countTogether(t, "together", all...)

		health := func(p *process) (int, string) {
			c := command(t.Context(), t, append(p.variables, "WEIR_LISTEN="+p.name), "-health")
			out, _ := c.CombinedOutput() // its error says no more than the code
			return c.ProcessState.ExitCode(), string(out)
		}
		if code, text := health(all[0]); code != 0 || text != "" {
			t.Errorf("-health: %d %s", code, text)
		}
		all[0].signal(t, syscall.SIGTERM)
		if code := all[0].wait(t); code != 0 {
			t.Errorf("it exited with %d", code)
		}
		if code, text := health(all[0]); code != 1 || !strings.HasPrefix(text, "weir: ") {
			t.Errorf("-health of one that is gone: %d %s", code, text)
		}
	}
}

// TestProcessesFromDNS has DNS tell three processes of each other: nothing at first, then all of them, then one less.
func TestProcessesFromDNS(t *testing.T) {
	t.Parallel()
	const service = "_weir._tcp.service.test"
	dns := dnstest.Start(t)
	addrs := freeAddrs(t, 3)
	var targets []string
	var all []*process
	for i, addr := range addrs {
		_, port, _ := net.SplitHostPort(addr)
		host := fmt.Sprintf("node-%d.test", i)
		dns.Host(host, "127.0.0.1")
		targets = append(targets, host+":"+port)
		p := start(t, addr, "WEIR_PEERS_SRV="+service, "WEIR_DNS_SERVER="+dns.Addr, "WEIR_PEERS_REFRESH=100ms",
			"WEIR_PEER_SECRET="+hush, "WEIR_FAILURE_POLICY=closed")
		p.name = targets[i] // as the ring has it
		all = append(all, p)
	}
	for _, p := range all {
		eventually(t, "it lives", func() bool { return p.status("/healthz") == http.StatusOK })
		p.get(t, "/readyz", http.StatusServiceUnavailable)
		if r := p.check(t, item("early"))[0]; r.Status != "OVER_LIMIT" || r.Metadata["degraded"] != "not_ready" {
			t.Error(describe(r))
		}
	}
	dns.Serve(service, targets...)
	for _, p := range all {
		p.ready(t, 3)
	}
	agree(t, all...)
	countTogether(t, "three", all...)

	dns.Serve(service, targets[:2]...)
	for _, p := range all[:2] {
		p.ready(t, 2)
	}
	eventually(t, "who isn't listed isn't ready",
		func() bool { return all[2].status("/readyz") == http.StatusServiceUnavailable })
	agree(t, all[:2]...)
	countTogether(t, "two", all[:2]...)
	for _, p := range all[:2] {
		if keys := p.keysOf(t, all[2].node, 1); len(keys) > 0 {
			t.Errorf("%s still asks the one that has gone for %s", p.name, keys[0])
		}
	}
	all[2].signal(t, syscall.SIGTERM)
	if code := all[2].wait(t); code != 0 {
		t.Errorf("it exited with %d", code)
	}
	before := all[0].output.find("peer is down")
	for i := range 100 {
		if r := all[0].check(t, item(fmt.Sprint("after-", i)))[0]; r.Status != "OK" || r.Metadata["degraded"] != "" {
			t.Error(describe(r))
		}
	}
	if after := all[0].output.find("peer is down"); len(after) != len(before) {
		t.Errorf("a node is missed: %v", after)
	}
	// DNS that has nothing to say changes nothing.
	dns.Serve(service)
	eventually(t, "it is noticed", func() bool { return all[0].cluster(t).Discovery.Failed > 0 })
	all[0].ready(t, 2)
}
