//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/url"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// The HTTP/1.1 client is a hand-made epoll loop per thread, so that the
// generator costs little next to the server it measures: one epoll_wait for
// all ready connections, one read and one write per request, no allocation.

type conn1 struct {
	fd       int
	out      []byte // whole request
	at       []int  // offsets of key digits in out
	pending  []byte // unsent rest of out
	in       []byte
	got      int
	planned  time.Duration
	need     int // total bytes of the answer once known
	bodyFrom int
	status   int
	chunked  bool
	writing  bool // EPOLLOUT registered
}

func runHTTP1(cfg *config, clk *clock) (*stats, error) {
	loops := make([]*loop, cfg.threads)
	for i := range loops {
		l, err := newLoop(cfg, clk, i)
		if err != nil {
			return nil, err
		}
		loops[i] = l
	}
	clk.begin()
	var wg sync.WaitGroup
	errs := make([]error, len(loops))
	for i, l := range loops {
		wg.Go(func() {
			runtime.LockOSThread()
			errs[i] = l.run()
		})
	}
	wg.Wait()
	total := &stats{}
	for i, l := range loops {
		if errs[i] != nil {
			return nil, errs[i]
		}
		total.merge(&l.st)
	}
	return total, nil
}

type loop struct {
	cfg   *config
	clk   *clock
	ep    int
	timer int
	conns []*conn1
	keys  *keyChooser
	st    stats
	idle  []int // FIFO of idle connections, open loop only
	head  int
	next  time.Duration
	step  time.Duration
	seen  int
}

func newLoop(cfg *config, clk *clock, id int) (*loop, error) {
	l := &loop{cfg: cfg, clk: clk, keys: newKeyChooser(cfg, id)}
	var err error
	if l.ep, err = syscall.EpollCreate1(0); err != nil {
		return nil, err
	}
	for i := id; i < cfg.conns; i += cfg.threads {
		c, err := dial1(cfg, cfg.urls[i%len(cfg.urls)])
		if err != nil {
			return nil, err
		}
		ev := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(len(l.conns))}
		if err := syscall.EpollCtl(l.ep, syscall.EPOLL_CTL_ADD, c.fd, &ev); err != nil {
			return nil, err
		}
		l.conns = append(l.conns, c)
	}
	l.timer = -1
	if cfg.rate > 0 {
		const clockMonotonic, tfdNonblock = 1, syscall.O_NONBLOCK
		fd, _, e := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, tfdNonblock, 0)
		if e != 0 {
			return nil, fmt.Errorf("timerfd_create: %v", e)
		}
		l.timer = int(fd)
		ev := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: -1}
		if err := syscall.EpollCtl(l.ep, syscall.EPOLL_CTL_ADD, l.timer, &ev); err != nil {
			return nil, err
		}
		l.step = time.Duration(float64(time.Second) * float64(cfg.threads) / cfg.rate)
		l.next = l.step * time.Duration(id) / time.Duration(cfg.threads)
		for i := range l.conns {
			l.idle = append(l.idle, i)
		}
	}
	return l, nil
}

func dial1(cfg *config, rawURL string) (*conn1, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	addr, err := net.ResolveTCPAddr("tcp4", u.Host)
	if err != nil {
		return nil, err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	sa := &syscall.SockaddrInet4{Port: addr.Port}
	copy(sa.Addr[:], addr.IP.To4())
	if err := syscall.Connect(fd, sa); err != nil {
		return nil, fmt.Errorf("connect %s: %w", u.Host, err)
	}
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1); err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	body, at := cfg.shape.body(cfg.batch)
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		u.RequestURI(), u.Host, len(body))
	c := &conn1{fd: fd, out: append([]byte(head), body...), in: make([]byte, 8192+cfg.batch*256)}
	for _, a := range at {
		c.at = append(c.at, a+len(head))
	}
	return c, nil
}

func (l *loop) run() error {
	events := make([]syscall.EpollEvent, len(l.conns)+1)
	open := l.cfg.rate > 0
	if !open {
		now := l.clk.now()
		for i := range l.conns {
			if err := l.send(i, now); err != nil {
				return err
			}
		}
	}
	for {
		now := l.clk.now()
		if l.clk.finished(now) {
			return nil
		}
		if open {
			for l.next <= now && l.head < len(l.idle) {
				i := l.idle[l.head]
				l.head++
				if err := l.send(i, l.next); err != nil {
					return err
				}
				l.next += l.step
			}
			if l.head > 4096 {
				l.idle = append(l.idle[:0], l.idle[l.head:]...)
				l.head = 0
			}
			if l.head < len(l.idle) {
				l.arm(l.next - l.clk.now())
			}
		}
		n, err := epollWait(l.ep, events, 100)
		if err != nil {
			return err
		}
		for _, ev := range events[:n] {
			if ev.Fd < 0 {
				var b [8]byte
				rawRead(l.timer, b[:])
				continue
			}
			c := l.conns[ev.Fd]
			if ev.Events&syscall.EPOLLOUT != 0 {
				if err := l.flush(int(ev.Fd)); err != nil {
					return err
				}
			}
			if ev.Events&(syscall.EPOLLIN|syscall.EPOLLHUP|syscall.EPOLLERR) == 0 {
				continue
			}
			whole, err := c.read()
			if err != nil {
				return err
			}
			if !whole {
				continue
			}
			now := l.clk.now()
			l.account(c, now)
			if open {
				l.idle = append(l.idle, int(ev.Fd))
			} else if err := l.send(int(ev.Fd), now); err != nil {
				return err
			}
		}
	}
}

func (l *loop) send(i int, planned time.Duration) error {
	c := l.conns[i]
	for _, a := range c.at {
		putDigits(c.out[a:a+keyDigits], l.keys.pick())
	}
	c.planned, c.got, c.need, c.chunked = planned, 0, 0, false
	c.pending = c.out
	return l.flush(i)
}

func (l *loop) flush(i int) error {
	c := l.conns[i]
	for len(c.pending) > 0 {
		n, e := rawWrite(c.fd, c.pending)
		if e == syscall.EAGAIN {
			break
		}
		if e != 0 {
			return fmt.Errorf("write: %v", e)
		}
		c.pending = c.pending[n:]
	}
	if want := len(c.pending) > 0; want != c.writing {
		c.writing = want
		ev := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)}
		if want {
			ev.Events |= syscall.EPOLLOUT
		}
		return syscall.EpollCtl(l.ep, syscall.EPOLL_CTL_MOD, c.fd, &ev)
	}
	return nil
}

// read takes what has arrived; it reports whether the answer is complete.
func (c *conn1) read() (bool, error) {
	for {
		if c.got == len(c.in) {
			c.in = append(c.in, make([]byte, len(c.in))...)
		}
		n, e := rawRead(c.fd, c.in[c.got:])
		if e == syscall.EAGAIN {
			return false, nil
		}
		if e != 0 {
			return false, fmt.Errorf("read: %v", e)
		}
		if n == 0 {
			return false, fmt.Errorf("server closed the connection after %d bytes of an answer: %.200s", c.got, c.in[:c.got])
		}
		full := c.got+n == len(c.in)
		c.got += n
		whole, err := c.complete()
		if whole || err != nil {
			return whole, err
		}
		if !full {
			return false, nil // the rest is not here yet; epoll will tell
		}
	}
}

var (
	crlf2     = []byte("\r\n\r\n")
	lenHeader = []byte("\r\ncontent-length:")
	chunkMark = []byte("\r\ntransfer-encoding: chunked")
)

func (c *conn1) complete() (bool, error) {
	if c.need == 0 && !c.chunked {
		b := c.in[:c.got]
		i := bytes.Index(b, crlf2)
		if i < 0 {
			return false, nil
		}
		if len(b) < 12 || string(b[:7]) != "HTTP/1." {
			return false, fmt.Errorf("not an HTTP answer: %.100s", b)
		}
		c.status, _ = strconv.Atoi(string(b[9:12]))
		c.bodyFrom = i + 4
		head := b[:i+2]
		if j := indexFold(head, lenHeader); j >= 0 {
			v := 0
			for _, d := range head[j+len(lenHeader):] {
				if d >= '0' && d <= '9' {
					v = v*10 + int(d-'0')
				} else if d != ' ' {
					break
				}
			}
			c.need = c.bodyFrom + v
		} else if indexFold(head, chunkMark) >= 0 {
			c.chunked = true
		} else {
			return false, fmt.Errorf("answer without a length: %.200s", head)
		}
	}
	if c.chunked {
		return c.dechunk()
	}
	return c.got >= c.need, nil
}

// dechunk joins the chunks in place once the last one is here.
func (c *conn1) dechunk() (bool, error) {
	if !bytes.HasSuffix(c.in[:c.got], []byte("\r\n0\r\n\r\n")) {
		return false, nil
	}
	r, w := c.bodyFrom, c.bodyFrom
	for {
		i := bytes.Index(c.in[r:c.got], []byte("\r\n"))
		if i < 0 {
			return false, nil
		}
		n, err := strconv.ParseInt(string(c.in[r:r+i]), 16, 32)
		if err != nil {
			return false, fmt.Errorf("bad chunk: %v", err)
		}
		r += i + 2
		if n == 0 {
			c.need = w
			return true, nil
		}
		if r+int(n)+2 > c.got {
			return false, nil
		}
		copy(c.in[w:], c.in[r:r+int(n)])
		w += int(n)
		r += int(n) + 2
	}
}

// indexFold finds lower-case pat in b whatever b's case.
func indexFold(b, pat []byte) int {
	for i := 0; i+len(pat) <= len(b); i++ {
		if b[i] != '\r' {
			continue
		}
		j := 0
		for ; j < len(pat); j++ {
			ch := b[i+j]
			if 'A' <= ch && ch <= 'Z' {
				ch += 'a' - 'A'
			}
			if ch != pat[j] {
				break
			}
		}
		if j == len(pat) {
			return i
		}
	}
	return -1
}

func (l *loop) account(c *conn1, now time.Duration) {
	if !l.clk.inside(now) {
		return
	}
	st := &l.st
	st.requests++
	st.checks += uint64(l.cfg.batch)
	st.bytesOut += uint64(len(c.out))
	st.bytesIn += uint64(c.got)
	st.hist.add(uint64(now - c.planned))
	if c.status != 200 {
		st.fail("status %d: %.200s", c.status, c.in[c.bodyFrom:c.need])
		return
	}
	body := c.in[c.bodyFrom:c.need]
	over, err := l.cfg.shape.verify(body, l.cfg.batch)
	st.overLimit += uint64(over)
	if err == nil {
		l.seen++
		if s := l.cfg.sample; s > 0 && l.seen%s == 1%s {
			st.sampled++
			err = l.cfg.shape.decode(body, l.cfg.batch)
		}
	}
	if err != nil {
		st.fail("%v", err)
	}
}

// arm sets the timer to fire after d.
func (l *loop) arm(d time.Duration) {
	if d < 1 {
		d = 1
	}
	var spec [32]byte // struct itimerspec: interval, value
	binary.LittleEndian.PutUint64(spec[16:], uint64(d/time.Second))
	binary.LittleEndian.PutUint64(spec[24:], uint64(d%time.Second))
	syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, uintptr(l.timer), 0, uintptr(unsafe.Pointer(&spec[0])), 0, 0, 0)
}

func epollWait(ep int, ev []syscall.EpollEvent, ms int) (int, error) {
	n, err := syscall.EpollWait(ep, ev, ms)
	if err == syscall.EINTR {
		return 0, nil
	}
	return n, err
}

// Non-blocking calls need not tell the scheduler.
func rawRead(fd int, b []byte) (int, syscall.Errno) {
	n, _, e := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), e
}

func rawWrite(fd int, b []byte) (int, syscall.Errno) {
	n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), e
}
