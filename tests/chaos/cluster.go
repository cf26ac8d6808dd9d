package main

import (
	"bytes"
	"cmp"
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
	dns     []*dnstest.Server // one for each node, as they may differ; none with a static list
	admin   *http.Client
	trouble atomic.Int32
	quiet   atomic.Bool // nothing has happened since all counts were found right
	sent    atomic.Int64
	broken  atomic.Int64 // of the requests that were sent, for a reason

	pause   sync.RWMutex // held for reading by callers that put load on it
	mu      sync.Mutex
	ledgers []*ledger // guarded by mu; all limits
	named   int       // guarded by mu; how many limits there ever were
	loaded  []*ledger // guarded by mu; those that load is put on
}

// A node is a process of weir, or the place of one.
type node struct {
	name, addr string
	number     int
	listed     bool
	state      atomic.Int32
	ready      atomic.Bool  // it takes work, as balancers see it
	lives      atomic.Int64 // grows with everything that may break a connection to it
	cmd        *exec.Cmd
	exited     chan struct{}
	log        *journal
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
	n, spare int    // nodes, and further ones that may come
	stranger string // a name in the list without a node
	dns      bool
	links    bool          // proxies between them; only with DNS, as all must have the same names for each other
	drain    time.Duration // WEIR_DRAIN_DELAY
	timeout  time.Duration // WEIR_PEER_TIMEOUT; the default is long, since that the machine is busy is no fault of a node
	cache    int           // WEIR_CACHE_SIZE, if not 0
}

// start starts a cluster and waits until it is ready.
func (r *run) start(o options) *cluster {
	c := &cluster{run: r, drain: o.drain, links: map[[2]int]*link{}, admin: newClient(false, 2*time.Second)}
	r.Cleanup(c.stop)
	r.clusters = append(r.clusters, c)
	c.port = freePort(c.addr(0, 0))
	var addrs []string
	for i := range o.n + o.spare {
		at := fmt.Sprint(c.addr(i, i), ":", c.port)
		n := &node{name: at, addr: at, number: i, listed: i < o.n, log: &journal{}}
		if o.dns {
			n.name = fmt.Sprintf("node-%d.chaos.test:%d", i, c.port)
			c.dns = append(c.dns, dnstest.Start(r))
		}
		c.nodes, addrs = append(c.nodes, n), append(addrs, at)
	}
	c.env = []string{"WEIR_PEER_SECRET=chaos", fmt.Sprint("WEIR_DRAIN_DELAY=", o.drain),
		fmt.Sprint("WEIR_PEER_TIMEOUT=", cmp.Or(o.timeout, 5*time.Second))}
	if o.cache > 0 {
		c.env = append(c.env, fmt.Sprint("WEIR_CACHE_SIZE=", o.cache))
	}
	if o.dns {
		c.env = append(c.env, "WEIR_PEERS_SRV="+service, "WEIR_PEERS_REFRESH=1s")
	} else {
		c.env = append(c.env, "WEIR_PEERS="+strings.Join(append(addrs[:o.n:o.n], o.stranger), ","))
	}
	c.wire(o.links)
	c.list(c.dns...)
	for _, n := range c.nodes {
		go c.watch(n)
	}
	c.again(c.nodes[:o.n]...)
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

// wire tells each node's DNS server where that node connects to for the others. So all have the same names for each
// other, and yet each pair has links of its own.
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

// launch starts a node's process, and returns when it listens.
func (c *cluster) launch(n *node) {
	c.worse(absent)
	cmd, exited := exec.Command(c.bin), make(chan struct{})
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") })
	cmd.Env = append(append(cmd.Env, "WEIR_LISTEN="+n.addr, "WEIR_ADVERTISE="+n.name), c.env...)
	if c.dns != nil {
		cmd.Env = append(cmd.Env, "WEIR_DNS_SERVER="+c.dns[n.number].Addr)
	}
	cmd.Stdout, cmd.Stderr = n.log, n.log
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	n.cmd, n.exited = cmd, exited
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
			c.linksTo(n, c.open)
			n.state.CompareAndSwap(starting, running)
		}
		time.Sleep(glance / 10)
	}
}

// linksTo does something with all links that lead to a node.
func (c *cluster) linksTo(n *node, do func(*link)) {
	for ends, l := range c.links {
		if ends[1] == n.number {
			do(l)
		}
	}
}

func (c *cluster) open(l *link) {
	if err := l.open(); err != nil {
		c.Errorf("%v", err)
	}
}

// worse notes what may be the matter from now on.
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
			ready := false
			if s := n.state.Load(); s == running || s == leaving {
				_, err := c.get(n, "/readyz")
				ready = err == nil && n.state.Load() != frozen
			}
			n.ready.Store(ready)
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
	body, _ := c.get(n, "/metrics") // or nothing, if it is gone
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			x, _ := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
			sum += x
		}
	}
	return sum
}

// await waits until wrong returns "". Otherwise it is what is still wrong.
func (c *cluster) await(within time.Duration, wrong func() string) {
	for end := time.Now().Add(within); ; time.Sleep(glance) {
		what := wrong()
		if what == "" {
			return
		}
		if time.Now().After(end) {
			c.Fatal("after ", within, " still: ", what)
		}
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
	return !slices.ContainsFunc(c.nodes, func(n *node) bool { return n.listed && n.state.Load() != running })
}

// again starts nodes, and waits until they are ready.
func (c *cluster) again(nodes ...*node) {
	for _, n := range nodes {
		c.launch(n)
	}
	for _, n := range nodes {
		c.waitReady(n)
	}
}

func (c *cluster) waitReady(n *node) {
	c.await(patience, func() string {
		if n.ready.Load() {
			return ""
		}
		return n.name + " is not ready"
	})
}

// kill kills nodes, all at once.
func (c *cluster) kill(nodes ...*node) {
	quiet := c.quiet.Load()
	held := map[*ledger]bool{} // by one of them
	if quiet {
		held = c.heldBy(nodes...)
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

// heldBy asks for the limits that one of some nodes counts.
func (c *cluster) heldBy(nodes ...*node) map[*ledger]bool {
	held := map[*ledger]bool{}
	for some := range slices.Chunk(c.all(), 1000) {
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

// freeze stops a node's process until it is thawed. If that takes so long that others may count for it, both sides may.
func (c *cluster) freeze(n *node) (thaw func()) {
	c.worse(silent)
	n.lives.Add(1)
	n.state.Store(frozen)
	n.ready.Store(false)
	n.cmd.Process.Signal(syscall.SIGSTOP)
	long := time.AfterFunc(2*time.Second, func() {
		if n.state.Load() == frozen { // it may have been killed
			c.side()
		}
	})
	return func() {
		c.worse(silent)
		long.Stop()
		n.lives.Add(1)
		n.state.Store(running)
		n.cmd.Process.Signal(syscall.SIGCONT)
	}
}

// side notes that one more node may count from now on without knowing of the others.
func (c *cluster) side() {
	for _, l := range c.all() {
		l.side()
	}
}

// term begins to stop a node properly. What it has told another one that was silent, and doesn't know whether that
// has counted it, it may tell a third one, too.
func (c *cluster) term(n *node) {
	c.worse(absent)
	for _, l := range c.all() {
		l.toldTwice()
	}
	if c.drain == 0 {
		n.lives.Add(1)
	}
	n.state.Store(leaving)
	n.cmd.Process.Signal(syscall.SIGTERM)
}

// leave stops a node properly, and waits until it has exited.
func (c *cluster) leave(n *node) {
	c.term(n)
	select {
	case <-n.exited:
		if code := n.cmd.ProcessState.ExitCode(); code != 0 {
			c.Errorf("%s exited with %d", n.name, code)
		}
	case <-time.After(c.drain + 8*time.Second + patience/2): // WEIR_SHUTDOWN_TIMEOUT, and what a busy machine needs
		c.Fatal(n.name, " doesn't exit")
	}
}

// bounce restarts nodes properly, each at once when it has exited, with a gap between them.
func (c *cluster) bounce(gap time.Duration, nodes ...*node) {
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() {
			time.Sleep(time.Duration(i) * gap)
			c.leave(n)
			c.again(n)
		})
	}
	all.Wait()
}

// stop ends what is left of a cluster.
func (c *cluster) stop() {
	for _, n := range c.nodes {
		if n.cmd == nil {
			continue
		}
		if n.state.Swap(gone) != gone {
			n.cmd.Process.Kill()
		}
		<-n.exited
		if text := n.log.String(); strings.Contains(text, "panic") || strings.Contains(text, "DATA RACE") {
			c.Errorf("%s panicked", n.name)
		}
	}
	for _, l := range c.links {
		l.refuse()
		l.reset()
	}
	c.admin.CloseIdleConnections()
}

// A journal keeps what a node says.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// last returns the last n lines, without the end of long ones.
func (j *journal) last(n int) string {
	var b strings.Builder
	lines := strings.Split(strings.TrimSpace(j.String()), "\n")
	for _, line := range lines[max(0, len(lines)-n):] {
		fmt.Fprintf(&b, "    %.240s\n", line)
	}
	return b.String()
}
