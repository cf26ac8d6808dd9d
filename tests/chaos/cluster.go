package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir/tests/dnstest"
)

const (
	patience = 30 * time.Second      // for what must come sooner or later, on a busy machine
	glance   = 50 * time.Millisecond // between two looks at something
	service  = "_weir._tcp.chaos.test"
)

// A cluster is some nodes, the links between them, and what callers know of their limits.
type cluster struct {
	*run
	nodes   []*node
	port    int
	env     []string
	drain   time.Duration // WEIR_DRAIN_DELAY
	links   map[[2]int]*link
	dns     []*dnstest.Server // one for each node, as they may differ; nil with a static list
	admin   *http.Client
	trouble atomic.Int32
	quiet   atomic.Bool  // nothing has happened since all counts were found right
	broken  atomic.Int64 // requests that broke as a node stopped without a delay
	sent    atomic.Int64 // requests

	pause   sync.RWMutex // held for reading by who sends
	mu      sync.Mutex
	ledgers []*ledger // guarded by mu; all limits
	named   int       // guarded by mu; how many limits there were
	fresh   []*ledger // guarded by mu; those that load is put on
}

// A node is a process of weir, or its place.
type node struct {
	name, addr string
	number     int
	listed     bool
	ready      atomic.Bool  // it takes work, as a balancer sees it
	lives      atomic.Int64 // grows with everything that may break a connection to it
	state      atomic.Int32
	cmd        *exec.Cmd
	exited     chan struct{}
	log        *tail
}

// States of a node.
const (
	gone     int32 = iota
	starting       // it doesn't listen yet
	running
	frozen
	leaving
)

// Options of a cluster.
type options struct {
	n       int // nodes
	spare   int // further nodes that may come
	dns     bool
	links   bool // proxies between them; with DNS only, since all nodes must have the same names for each other
	drain   time.Duration
	timeout time.Duration // WEIR_PEER_TIMEOUT
	env     []string
	// A name in the list of which there is no node.
	stranger string
}

// start starts a cluster and waits until it is ready.
func (r *run) start(o options) *cluster {
	if o.timeout == 0 {
		o.timeout = 5 * time.Second // a busy machine is no fault
	}
	c := &cluster{run: r, drain: o.drain, links: map[[2]int]*link{}, admin: newClient(false, 2*time.Second)}
	r.Cleanup(c.stop)
	c.port = freePort(c.addr(0, 0))
	var addrs []string
	for i := range o.n + o.spare {
		at := fmt.Sprint(c.addr(i, i), ":", c.port)
		n := &node{name: at, addr: at, number: i, listed: i < o.n, log: &tail{}}
		if o.dns {
			n.name = fmt.Sprintf("node-%d.chaos.test:%d", i, c.port)
			c.dns = append(c.dns, dnstest.Start(r))
		}
		c.nodes, addrs = append(c.nodes, n), append(addrs, at)
	}
	r.clusters = append(r.clusters, c)
	c.env = []string{"WEIR_DRAIN_DELAY=" + o.drain.String(), "WEIR_PEER_TIMEOUT=" + o.timeout.String(), "WEIR_PEER_SECRET=chaos"}
	if o.dns {
		c.env = append(c.env, "WEIR_PEERS_SRV="+service, "WEIR_PEERS_REFRESH=1s")
	} else {
		c.env = append(c.env, "WEIR_PEERS="+strings.Join(append(addrs[:o.n:o.n], o.stranger), ","))
	}
	c.env = append(c.env, o.env...)
	c.wire(o.links)
	c.list(c.dns...)
	for i, n := range c.nodes {
		go c.watch(n)
		if i < o.n {
			c.launch(n)
		}
	}
	c.waitReady(c.nodes[:o.n]...)
	c.settle(patience)
	return c
}

// addr is where node i connects to for node j, or where it listens.
func (c *cluster) addr(i, j int) string { return fmt.Sprintf("127.0.%d.%d", 100+10*c.slot+i, j+1) }

func freePort(host string) int {
	ln, err := net.Listen("tcp", host+":0")
	if err != nil {
		panic(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// wire tells each node's DNS server where that node connects to for the others.
func (c *cluster) wire(proxies bool) {
	for i, dns := range c.dns {
		for j, n := range c.nodes {
			at := c.addr(j, j)
			if proxies && i != j {
				at = c.addr(i, j)
				c.links[[2]int{i, j}] = newLink(fmt.Sprint(at, ":", c.port), n.addr)
			}
			dns.Host(strings.TrimSuffix(n.name, fmt.Sprint(":", c.port)), at)
		}
	}
}

// list has DNS servers list the nodes that are to be.
func (c *cluster) list(servers ...*dnstest.Server) {
	var names []string
	for _, n := range c.nodes {
		if n.listed {
			names = append(names, n.name)
		}
	}
	for _, dns := range servers {
		dns.Serve(service, names...)
	}
}

// launch starts a node's process.
func (c *cluster) launch(n *node) {
	c.worse(absent)
	n.cmd = exec.Command(c.bin)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "WEIR_") {
			n.cmd.Env = append(n.cmd.Env, v)
		}
	}
	n.cmd.Env = append(append(n.cmd.Env, "GOMAXPROCS=2", "WEIR_LISTEN="+n.addr, "WEIR_ADVERTISE="+n.name), c.env...)
	if c.dns != nil {
		n.cmd.Env = append(n.cmd.Env, "WEIR_DNS_SERVER="+c.dns[n.number].Addr)
	}
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	if err := n.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	exited, cmd := make(chan struct{}), n.cmd
	n.exited = exited
	if c.drain == 0 {
		n.lives.Add(1)
	}
	n.state.Store(starting)
	go func() {
		cmd.Wait() // its error says no more than ProcessState
		if s := n.state.Swap(gone); s == starting || s == running {
			c.Errorf("%s ended by itself: %v", n.name, cmd.ProcessState)
		}
		c.linksTo(n, (*link).refuse)
		close(exited)
	}()
	for n.state.Load() == starting {
		if conn, err := net.Dial("tcp", n.addr); err == nil {
			conn.Close()
			break
		}
		time.Sleep(glance / 10)
	}
	c.linksTo(n, func(l *link) {
		if err := l.open(); err != nil {
			c.Errorf("%v", err)
		}
	})
	n.state.CompareAndSwap(starting, running)
}

// linksTo does something with all links that lead to a node.
func (c *cluster) linksTo(n *node, do func(*link)) {
	for ends, l := range c.links {
		if ends[1] == n.number {
			do(l)
		}
	}
}

// worse notes what may be the matter.
func (c *cluster) worse(t trouble) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble.Store(max(c.trouble.Load(), int32(t)))
	c.quiet.Store(false)
}

// watch asks a node whether it is ready, as balancers do, until the run ends.
func (c *cluster) watch(n *node) {
	for {
		select {
		case <-c.done:
			return
		case <-time.After(glance):
			if s := n.state.Load(); s == running || s == leaving {
				_, err := c.get(n, "/readyz")
				n.ready.Store(err == nil && n.state.Load() != frozen)
			} else {
				n.ready.Store(false)
			}
		}
	}
}

func newClient(http2 bool, timeout time.Duration) *http.Client {
	t := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}
	t.Protocols.SetHTTP1(!http2)
	t.Protocols.SetUnencryptedHTTP2(http2)
	return &http.Client{Transport: t, Timeout: timeout}
}

// get returns what a node answers with status 200.
func (c *cluster) get(n *node, path string) ([]byte, error) {
	resp, err := c.admin.Get("http://" + n.addr + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s: %s %.100s", n.name, path, resp.Status, body)
	}
	return body, err
}

// peers returns the states of all nodes as n sees them, by name.
func (c *cluster) peers(n *node) (map[string]string, error) {
	body, err := c.get(n, "/v1/peers")
	var view struct {
		Nodes []struct{ Name, State string }
	}
	if err == nil {
		err = json.Unmarshal(body, &view)
	}
	states := map[string]string{}
	for _, p := range view.Nodes {
		states[p.Name] = p.State
	}
	return states, err
}

// metric returns the sum of what a node has of a metric. Labels, if any, are part of its name.
func (c *cluster) metric(n *node, name string) (sum float64) {
	body, _ := c.get(n, "/metrics")
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			x, _ := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
			sum += x
		}
	}
	return sum
}

// await waits until what returns "". Otherwise it is what is still wrong.
func (c *cluster) await(within time.Duration, what func() string) {
	for end := time.Now().Add(within); ; time.Sleep(glance) {
		wrong := what()
		if wrong == "" {
			return
		}
		if time.Now().After(end) {
			c.Fatal("after ", within, " still: ", wrong)
		}
	}
}

func (c *cluster) waitReady(nodes ...*node) {
	for _, n := range nodes {
		c.await(patience, func() string {
			if n.ready.Load() {
				return ""
			}
			return n.name + " is not ready"
		})
	}
}

// alive returns the nodes that run and are listed.
func (c *cluster) alive() (nodes []*node) {
	for _, n := range c.nodes {
		if n.state.Load() == running && n.listed {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// whole reports whether all nodes that are listed run.
func (c *cluster) whole() bool {
	for _, n := range c.nodes {
		if n.listed && n.state.Load() != running {
			return false
		}
	}
	return true
}

// kill kills nodes, all at once.
func (c *cluster) kill(nodes ...*node) {
	quiet := c.quiet.Load()
	held := map[*ledger]bool{} // by one of them
	if quiet {
		held = c.heldBy(nodes)
	}
	c.worse(silent)
	all := c.all()
	for _, l := range all {
		l.crash()
	}
	for _, n := range nodes {
		c.linksTo(n, (*link).refuse)
		n.lives.Add(1)
		n.state.Store(gone)
		n.cmd.Process.Kill()
	}
	for _, n := range nodes {
		<-n.exited
	}
	for _, l := range all {
		l.crashed(held[l], quiet)
	}
}

// heldBy asks who counts what.
func (c *cluster) heldBy(nodes []*node) map[*ledger]bool {
	held, all := map[*ledger]bool{}, c.all()
	for some := range slices.Chunk(all, 1000) {
		results, err := c.post(c.admin, c.alive()[0], looks(some))
		if err != nil {
			c.Fatal(err)
		}
		for i, r := range results {
			held[some[i]] = slices.ContainsFunc(nodes, func(n *node) bool { return n.name == r.Metadata["owner"] })
		}
	}
	return held
}

// freeze stops a process until it is thawed. If that takes long enough for others to count for it, both sides may.
func (c *cluster) freeze(n *node) (thaw func()) {
	c.worse(silent)
	n.lives.Add(1)
	n.state.Store(frozen)
	n.ready.Store(false)
	n.cmd.Process.Signal(syscall.SIGSTOP)
	long := time.AfterFunc(2*time.Second, c.side)
	return sync.OnceFunc(func() {
		long.Stop()
		n.lives.Add(1)
		n.state.CompareAndSwap(frozen, running) // or it was killed meanwhile
		n.cmd.Process.Signal(syscall.SIGCONT)
	})
}

// side notes that one more side counts for itself from now on.
func (c *cluster) side() {
	for _, l := range c.all() {
		l.side()
	}
}

// term begins to stop a node properly.
func (c *cluster) term(n *node) {
	c.worse(absent)
	if c.drain == 0 {
		n.lives.Add(1)
	}
	n.state.Store(leaving)
	n.cmd.Process.Signal(syscall.SIGTERM)
}

// leave stops nodes properly, with a gap between, and waits until they have exited.
func (c *cluster) leave(gap time.Duration, nodes ...*node) {
	for i, n := range nodes {
		if i > 0 {
			time.Sleep(gap)
		}
		c.term(n)
	}
	for _, n := range nodes {
		select {
		case <-n.exited:
			if code := n.cmd.ProcessState.ExitCode(); code != 0 {
				c.Errorf("%s exited with %d", n.name, code)
			}
		case <-time.After(c.drain + 8*time.Second + patience/2):
			c.Fatal(n.name, " doesn't exit")
		}
	}
}

// bounce restarts nodes, each at once when it has exited, with a gap between them.
func (c *cluster) bounce(gap time.Duration, nodes ...*node) {
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() {
			time.Sleep(time.Duration(i) * gap)
			c.leave(0, n)
			c.again(n)
		})
	}
	all.Wait()
}

// again starts nodes that have exited, and waits until they are ready.
func (c *cluster) again(nodes ...*node) {
	for _, n := range nodes {
		c.launch(n)
	}
	c.waitReady(nodes...)
}

// stop ends what is left of a cluster.
func (c *cluster) stop() {
	for _, n := range c.nodes {
		if n.cmd == nil || n.cmd.Process == nil {
			continue
		}
		if s := n.state.Swap(gone); s != gone {
			n.cmd.Process.Kill()
		}
		<-n.exited
		if text := n.log.all(); strings.Contains(text, "panic") || strings.Contains(text, "DATA RACE") {
			c.Errorf("%s panicked", n.name)
		}
	}
	for _, l := range c.links {
		l.refuse()
		l.reset()
	}
	c.admin.CloseIdleConnections()
}

// A tail keeps the last lines of what is written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text = append(t.text, b...); len(t.text) > 1<<20 {
		t.text = bytes.Clone(t.text[len(t.text)-1<<19:])
	}
	return len(b), nil
}

func (t *tail) all() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// lines returns the last n lines, without what is long in them.
func (t *tail) lines(n int) string {
	var b strings.Builder
	lines := strings.Split(strings.TrimSpace(t.all()), "\n")
	for _, line := range lines[max(0, len(lines)-n):] {
		fmt.Fprintf(&b, "    %.240s\n", line)
	}
	return b.String()
}
