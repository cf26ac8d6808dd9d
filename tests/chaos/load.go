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
	"sync"
	"syscall"
	"time"
)

const (
	// slowest is how long an answer may take, whatever happens to nodes other than the one that is asked.
	slowest = 10 * time.Second

	hour = int64(time.Hour / time.Millisecond)
	// decade is so long that what leaks from a bucket during a run is less than a hit.
	decade = 3650 * 24 * hour

	far = 1 << 40 // a limit that nothing reaches
)

var errRefused = errors.New("connection refused")

// limits adds limits as like is. The names of their keys begin with prefix.
func (c *cluster) limits(count int, prefix string, like limit) (all []*ledger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if like.Duration == 0 {
		like.Duration = hour
		if like.Algorithm == "LEAKY_BUCKET" {
			like.Duration = decade
		}
	}
	for range count {
		l := &ledger{limit: like, nodes: int64(len(c.nodes))}
		l.Name, l.Key = "chaos", fmt.Sprint(prefix, "-", c.seed, "-", c.named)
		c.named++
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
		i.Hits, i.Limit, i.Behavior = 0, far, 0
		if i.Algorithm == "LEAKY_BUCKET" {
			i.Limit, i.Burst = l.Limit, far
		}
		items = append(items, i)
	}
	return items
}

// post asks a node. The error is errRefused if nothing listened.
func (c *cluster) post(client *http.Client, n *node, items []item) ([]result, error) {
	body, err := json.Marshal(map[string][]item{"rate_limits": items})
	if err != nil {
		panic(err) // structs of ours
	}
	c.sent.Add(1)
	resp, err := client.Post("http://"+n.addr+"/v1/check", "application/json", bytes.NewReader(body))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, errRefused
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var answer struct {
		Results []result `json:"rate_limits"`
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err == nil && len(answer.Results) != len(items) {
		err = fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	return answer.Results, err
}

// A caller is a client with connections of its own.
type caller struct {
	*cluster
	client *http.Client
	rng    *rand.Rand
	sticky bool            // it stays with a node, ready or not, while it has a connection to it
	at     *node           // where it stays
	lives  map[*node]int64 // of nodes, as of the last request there
}

// caller returns a client that keeps connections: over HTTP/1, over HTTP/2, or without looking at them.
func (c *cluster) caller(number int, sticky bool) *caller {
	caller := &caller{cluster: c, sticky: sticky, client: newClient(number%3 == 1, slowest), lives: map[*node]int64{},
		rng: rand.New(rand.NewPCG(c.seed, uint64(number)))}
	if number%3 == 2 && sticky && c.drain > 0 { // it must hear of an end in time, while it asks
		caller.client.Transport = &plain{}
	}
	return caller
}

// A plain client keeps one connection, and doesn't look whether it was closed before it writes to it, as those of
// many languages. It is for one request at a time.
type plain struct {
	conn net.Conn
	host string
}

func (p *plain) RoundTrip(req *http.Request) (*http.Response, error) {
	if p.host != req.URL.Host {
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
	var body []byte
	if err == nil {
		body, err = io.ReadAll(resp.Body)
		resp.Body = io.NopCloser(bytes.NewReader(body))
	}
	if err != nil || resp.Close {
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

// do sends some ops to a node, notes in their ledgers what came of them, and returns the answers; nil if there are
// none.
func (c *caller) do(n *node, ops ...op) []result {
	var items []item
	for _, o := range ops {
		o.begin()
		items = append(items, o.item())
	}
	before, state, began := trouble(c.trouble.Load()), n.state.Load(), time.Now()
	lives := c.lives[n] // as of then, since its connection may be as old
	c.lives[n] = n.lives.Load()
	results, err := c.post(c.client, n, items)
	t := max(before, trouble(c.trouble.Load()))
	for i, o := range ops {
		wrong := ""
		switch err {
		case nil:
			wrong = o.answered(results[i], t, time.Since(began))
		case errRefused:
			o.undo()
		default:
			o.unanswered()
		}
		if wrong != "" {
			c.Errorf("at %s: %s", n.name, wrong)
		}
	}
	if err == nil {
		return results
	}
	c.at = nil
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
func (c *caller) one(n *node, o op) (r result) {
	c.await(patience, func() string {
		if results := c.do(n, o); results != nil {
			r = results[0]
			return ""
		}
		return n.name + " doesn't answer"
	})
	return r
}

// pick returns a node that takes work; nil if none does.
func (c *caller) pick() *node {
	if c.sticky && c.at != nil {
		return c.at
	}
	for _, i := range c.rng.Perm(len(c.nodes)) {
		if c.nodes[i].ready.Load() {
			c.at = c.nodes[i]
			return c.at
		}
	}
	return nil
}

// step sends a request with some ops on limits that load is put on.
func (c *caller) step() {
	c.pause.RLock()
	defer c.pause.RUnlock()
	c.mu.Lock()
	loaded := c.loaded
	c.mu.Unlock()
	n := c.pick()
	if n == nil {
		return
	}
	var ops []op
	for _, i := range c.rng.Perm(len(loaded))[:min(len(loaded), 6)] {
		if o, ok := c.choose(loaded[i]); ok {
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

// choose returns what to do with a limit, if others leave it alone. The caller unlocks it.
func (c *caller) choose(l *ledger) (o op, ok bool) {
	dice := c.rng.IntN(60)
	if l.resets && dice == 0 && l.alone.TryLock() {
		return op{ledger: l, whole: true}, true
	}
	hits := 1 + c.rng.Int64N(max(1, l.Limit/25))
	if !l.alone.TryRLock() {
		return op{}, false
	}
	if l.gives && dice%3 == 0 {
		hits = -hits
	}
	return l.op(hits), true
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
	return func() {
		close(stopped)
		all.Wait()
	}
}

// focus has load put on some limits from now on.
func (c *cluster) focus(on ...*ledger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loaded = on
}
