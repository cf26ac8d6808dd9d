package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// A check is answered within this, whatever happens to nodes other than the one that is asked.
	slowest = 10 * time.Second

	hour = int64(time.Hour / time.Millisecond)
	// Within a run, what leaks from buckets that last as long is less than a hit.
	decade = 3650 * 24 * hour
)

var errRefused = errors.New("connection refused")

// limits adds limits as like is. The names of their keys begin with prefix.
func (c *cluster) limits(count int, prefix string, like limit) (all []*ledger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range count {
		l := &ledger{limit: like, nodes: int64(len(c.nodes))}
		l.Name, l.Key = "chaos", fmt.Sprint(prefix, "-", c.seed, "-", c.named)
		c.named++
		if l.Duration == 0 {
			l.Duration = hour
		}
		if l.Algorithm == "LEAKY_BUCKET" && !l.short {
			l.Duration = decade
		}
		c.ledgers, all = append(c.ledgers, l), append(all, l)
	}
	return all
}

func (c *cluster) all() []*ledger {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ledgers
}

// looks returns items that tell who counts, and, since their limit is far away, how much is used.
func looks(all []*ledger) (items []item) {
	for _, l := range all {
		i := l.item
		i.Hits, i.Limit, i.Behavior = 0, far, i.Behavior&^(global|drain)
		if i.Algorithm == "LEAKY_BUCKET" {
			i.Limit, i.Burst = l.Limit, far
		}
		items = append(items, i)
	}
	return items
}

const far = 1 << 40

// post asks a node. The error is errRefused if nobody listened.
func (c *cluster) post(client *http.Client, n *node, items []item) ([]result, error) {
	results, _, err := c.request(client, n, items)
	return results, err
}

func (c *cluster) request(client *http.Client, n *node, items []item) ([]result, *http.Response, error) {
	body, err := json.Marshal(map[string][]item{"rate_limits": items})
	if err != nil {
		panic(err) // a struct of ours
	}
	c.sent.Add(1)
	resp, err := client.Post("http://"+n.addr+"/v1/check", "application/json", bytes.NewReader(body))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil, errRefused
	}
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	var answer struct {
		Results []result `json:"rate_limits"`
	}
	if err := json.Unmarshal(text, &answer); err != nil || resp.StatusCode != http.StatusOK || len(answer.Results) != len(items) {
		return nil, nil, fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	return answer.Results, resp, nil
}

// A caller is a client with connections of its own.
type caller struct {
	*cluster
	client *http.Client
	rng    *rand.Rand
	at     *node // where it stays, if it is sticky, as long as its connection lasts
	sticky bool
	lives  map[*node]int64
}

func (c *cluster) caller(number int, sticky bool) *caller {
	client := newClient(number%3 == 1, slowest)
	if number%3 == 2 && sticky && c.drain > 0 { // a connection that it doesn't use for that long may break
		client.Transport = &plain{}
	}
	rng := rand.New(rand.NewPCG(c.seed, uint64(number)))
	return &caller{cluster: c, client: client, rng: rng, sticky: sticky, lives: map[*node]int64{}}
}

// A plain client keeps one connection, and doesn't look whether it was closed before it writes to it, as those of many languages. It
// is for one request at a time.
type plain struct {
	conn net.Conn
	host string
}

func (p *plain) RoundTrip(req *http.Request) (*http.Response, error) {
	if p.conn != nil && p.host != req.URL.Host {
		p.CloseIdleConnections()
	}
	if p.conn == nil {
		conn, err := net.Dial("tcp", req.URL.Host)
		if err != nil {
			return nil, err
		}
		p.conn, p.host = conn, req.URL.Host
	}
	deadline, _ := req.Context().Deadline()
	p.conn.SetDeadline(deadline)
	err := req.Write(p.conn)
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(bufio.NewReader(p.conn), req)
	}
	if err != nil {
		p.CloseIdleConnections()
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if resp.Close || err != nil {
		p.CloseIdleConnections()
	}
	return resp, err
}

func (p *plain) CloseIdleConnections() {
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
}

// do sends some ops to a node, notes in their ledgers what came of them, and returns the answers; nil if there are none.
func (c *caller) do(n *node, ops ...op) []result {
	var items []item
	for _, o := range ops {
		o.begin()
		items = append(items, o.item())
	}
	before, state, began := trouble(c.trouble.Load()), n.state.Load(), time.Now()
	lives := c.lives[n] // as of the last request there, since its connection may be as old
	c.lives[n] = n.lives.Load()
	results, resp, err := c.request(c.client, n, items)
	t := max(before, trouble(c.trouble.Load()))
	if err == nil {
		for i, r := range results {
			if wrong := ops[i].answered(r, t, time.Since(began)); wrong != "" {
				c.Errorf("at %s: %s", n.name, wrong)
			}
		}
		if resp.Close {
			c.at = nil
		}
		return results
	}
	c.at = nil
	for _, o := range ops {
		if err == errRefused {
			o.undo()
		} else {
			o.unanswered()
		}
	}
	away := state != running || n.state.Load() != running
	switch {
	case err == errRefused && away:
	case err != errRefused && (n.lives.Load() != lives || state == frozen || state == gone || away && c.drain == 0):
		c.broken.Add(1)
	default:
		c.Errorf("%s didn't answer: %v after %v", n.name, err, time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// one sends one op to a node until it is answered.
func (c *caller) one(n *node, o op) result {
	for range 1000 {
		if r := c.do(n, o); r != nil {
			return r[0]
		}
		time.Sleep(glance)
	}
	c.Fatal(n.name, " doesn't answer")
	panic("not reached")
}

// pick returns a node that takes work; nil if none does.
func (c *caller) pick() *node {
	if c.sticky && c.at != nil {
		return c.at
	}
	for _, i := range c.rng.Perm(len(c.nodes)) {
		if n := c.nodes[i]; n.ready.Load() {
			c.at = n
			return n
		}
	}
	return nil
}

// step sends a request with some ops on limits that load is put on.
func (c *caller) step() {
	c.pause.RLock()
	defer c.pause.RUnlock()
	c.mu.Lock()
	fresh := c.fresh
	c.mu.Unlock()
	n := c.pick()
	if n == nil || len(fresh) == 0 {
		return
	}
	var ops []op
	for _, i := range c.rng.Perm(len(fresh))[:min(len(fresh), 6)] {
		if o, ok := c.choose(fresh[i]); ok {
			ops = append(ops, o)
		}
	}
	if len(ops) > 0 {
		c.do(n, ops...)
	}
	for _, o := range ops {
		if o.whole {
			o.alone.Unlock()
		} else {
			o.alone.RUnlock()
		}
	}
}

// choose says what to do with a limit. It holds what must not happen beside it.
func (c *caller) choose(l *ledger) (o op, ok bool) {
	o = op{ledger: l, hits: 1 + c.rng.Int64N(max(1, l.Limit/25))}
	dice := c.rng.IntN(60)
	if l.resets && dice == 0 && l.alone.TryLock() {
		return op{ledger: l, whole: true}, true
	}
	if !l.alone.TryRLock() {
		return o, false
	}
	if l.gives && dice%3 == 0 {
		l.mu.Lock()
		o.hits = -min(o.hits, l.owned) // or, if others give it back at the same time, a look
		l.mu.Unlock()
	}
	return o, true
}

// load has callers ask all the time, until the returned function is called.
func (c *cluster) load(callers int, every time.Duration, sticky bool, on ...*ledger) (stop func()) {
	c.focus(on...)
	stopped := make(chan struct{})
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			caller := c.caller(i, sticky)
			defer caller.client.CloseIdleConnections()
			for {
				select {
				case <-stopped:
					return
				case <-c.done:
					return
				case <-time.After(every/2 + time.Duration(caller.rng.Int64N(int64(every)))):
					caller.step()
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		close(stopped)
		all.Wait()
	})
	return stop
}

// focus has load put on some limits from now on.
func (c *cluster) focus(on ...*ledger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fresh = on
}

// settle waits, while nobody asks, until all nodes that are there say the same of all limits, and what is right; and then begins
// anew with that.
func (c *cluster) settle(within time.Duration) {
	c.pause.Lock()
	defer c.pause.Unlock()
	var used map[*ledger]int64
	seen := 0
	c.await(within, func() (wrong string) {
		if used, wrong = c.unsettled(); wrong != "" {
			seen = 0
			return wrong
		}
		if seen++; seen < 5 { // so it stays
			return "not settled for long"
		}
		return ""
	})
	for l, u := range used {
		l.rest(u)
	}
	c.trouble.Store(int32(calm))
	if !c.whole() {
		c.trouble.Store(int32(absent))
	}
	c.quiet.Store(true)
}

// unsettled returns what is used of each limit, and why the cluster isn't settled yet.
func (c *cluster) unsettled() (used map[*ledger]int64, wrong string) {
	alive := c.alive()
	used = map[*ledger]int64{}
	var mistakes []string
	all := c.all()
	for begin := 0; begin < len(all); begin += 500 {
		some := all[begin:min(begin+500, len(all))]
		for i, n := range alive {
			results, err := c.post(c.admin, n, looks(some))
			if err != nil {
				return nil, err.Error()
			}
			mistakes = append(mistakes, c.compare(n, some, results, used, i == 0)...)
		}
	}
	for _, n := range alive {
		mistakes = append(mistakes, c.copies(n, all, used)...)
	}
	for _, n := range alive { // last, as what they were asked may have told them something
		if wrong := c.unsettledNode(n); wrong != "" {
			mistakes = append(mistakes, wrong)
		}
	}
	if len(mistakes) > 3 {
		mistakes = append(mistakes[:3], fmt.Sprint("and ", len(mistakes)-3, " more"))
	}
	return used, strings.Join(mistakes, "; ")
}

// unsettledNode asks a node whether it sees the cluster as it is.
func (c *cluster) unsettledNode(n *node) string {
	states, err := c.peers(n)
	if err != nil || !n.ready.Load() {
		return fmt.Sprint(n.name, " isn't ready: ", err)
	}
	for _, p := range c.nodes {
		state, listed := states[p.name]
		if listed != p.listed || p.listed && (state == "up") != (p.state.Load() == running) {
			return fmt.Sprintf("%s takes %s for %q", n.name, p.name, state)
		}
	}
	if owed := c.metric(n, "weir_debts"); owed > 0 && c.whole() {
		return fmt.Sprint(n.name, " owes hits of ", owed, " limits")
	}
	return ""
}

// compare returns what is wrong with what a node says is used of some limits, and notes it.
func (c *cluster) compare(n *node, some []*ledger, results []result, used map[*ledger]int64, first bool) (mistakes []string) {
	for i, r := range results {
		l := some[i]
		u := far - r.Remaining
		if l.short {
			continue
		}
		if first {
			used[l] = u
			l.mu.Lock()
			if from, to := l.used(); u < from || u > to {
				mistakes = append(mistakes, fmt.Sprintf("%s: %s says that %d are used, not %d to %d: %s", l.Key, n.name, u, from, to,
					l.describe(l.bound(time.Now()))))
			}
			l.mu.Unlock()
		}
		why := r.Metadata["degraded"]
		if used[l] != u || !told[why] || why != "" && c.whole() {
			mistakes = append(mistakes, fmt.Sprintf("%s: %s says that %d are used, not %d: %v", l.Key, n.name, u, used[l], r.Metadata))
		}
	}
	return mistakes
}

// copies returns what is wrong with what a node's copies of GLOBAL limits say.
func (c *cluster) copies(n *node, all []*ledger, used map[*ledger]int64) (mistakes []string) {
	var some []*ledger
	var items []item
	for _, l := range all {
		if l.Behavior&global != 0 && !l.short && len(some) < 1000 {
			some, items = append(some, l), append(items, op{ledger: l}.item())
		}
	}
	if len(some) == 0 {
		return nil
	}
	results, err := c.post(c.admin, n, items)
	if err != nil {
		return []string{err.Error()}
	}
	for i, r := range results {
		if left := max(0, some[i].Limit-used[some[i]]); r.Remaining != left {
			mistakes = append(mistakes, fmt.Sprintf("%s: %s says that %d are left, not %d: %v", some[i].Key, n.name, r.Remaining, left, r.Metadata))
		}
	}
	return mistakes
}
