package main

import (
	"net"
	"sync"
	"time"
)

// A weather is what a link does to what passes.
type weather struct {
	delay   time.Duration // each way
	stalled [2]bool       // nothing passes forth (to whom the connection leads), or back, until that ends; nothing is lost
}

const (
	forth = 0
	back  = 1
)

// A link is a TCP proxy between two nodes, one way of connecting. It is safe for concurrent use.
type link struct {
	listen, target string

	mu      sync.Mutex
	changed sync.Cond // weather, or conns
	weather weather
	ln      net.Listener          // nil while connections are refused
	conns   map[*net.TCPConn]bool // both ends of each connection
}

func newLink(listen, target string) *link {
	l := &link{listen: listen, target: target, conns: map[*net.TCPConn]bool{}}
	l.changed.L = &l.mu
	return l
}

// open accepts connections from now on.
func (l *link) open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln != nil {
		return nil
	}
	ln, err := net.Listen("tcp", l.listen)
	if err != nil {
		return err
	}
	l.ln = ln
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go l.serve(c.(*net.TCPConn))
		}
	}()
	return nil
}

// refuse refuses connections, as the target does while it doesn't listen. Those that there are stay.
func (l *link) refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln != nil {
		l.ln.Close()
		l.ln = nil
	}
}

// reset breaks all connections.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.SetLinger(0)
		c.Close()
	}
	clear(l.conns)
	l.changed.Broadcast()
}

// set changes the weather.
func (l *link) set(w weather) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.weather = w
	l.changed.Broadcast()
}

func (l *link) serve(from *net.TCPConn) {
	c, err := net.Dial("tcp", l.target)
	if err != nil {
		// A proxy can't refuse what the kernel has accepted, but the next one it can.
		l.refuse()
		from.SetLinger(0)
		from.Close()
		return
	}
	to := c.(*net.TCPConn)
	l.mu.Lock()
	l.conns[from], l.conns[to] = true, true
	l.mu.Unlock()
	go l.pass(to, from, forth)
	l.pass(from, to, back)
}

// A piece is what was read at once.
type piece struct {
	data []byte
	at   time.Time
}

// pass copies what comes from one end to the other, in the weather of its direction, until one of them is done.
func (l *link) pass(to, from *net.TCPConn, direction int) {
	pieces := make(chan piece, 4096) // with few bytes each under load; a full one holds up the sender, as a window does
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if n > 0 {
				pieces <- piece{b[:n], time.Now()}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		if !l.wait(p.at, to, direction) {
			break
		}
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	l.wait(time.Now(), to, direction) // an end passes no stall either
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range []*net.TCPConn{from, to} {
		c.Close()
		delete(l.conns, c)
	}
	l.changed.Broadcast()
	go func() { // which lets the reader end
		for range pieces {
		}
	}()
}

// wait waits until what was read at a time may be written, and reports whether the connection is still there.
func (l *link) wait(at time.Time, to *net.TCPConn, direction int) bool {
	l.mu.Lock()
	delay := l.weather.delay
	l.mu.Unlock()
	time.Sleep(time.Until(at.Add(delay)))
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.weather.stalled[direction] && l.conns[to] {
		l.changed.Wait()
	}
	return l.conns[to]
}
