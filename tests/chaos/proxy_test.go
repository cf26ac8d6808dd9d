package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// echo answers with what it is told, until the test ends.
func echo(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	return ln
}

// through opens a link to an echo, and a connection through it.
func through(t *testing.T, target net.Listener) (*link, net.Conn) {
	t.Helper()
	l := newLink(fmt.Sprint("127.0.0.1:", freePort("127.0.0.1")), target.Addr().String())
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); l.refuse(); l.reset() })
	return l, c
}

// say writes a word, and reads as much within some time.
func say(c net.Conn, word string, within time.Duration) (string, error) {
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	return hear(c, len(word), within)
}

func hear(c net.Conn, n int, within time.Duration) (string, error) {
	c.SetReadDeadline(time.Now().Add(within))
	b := make([]byte, n)
	_, err := io.ReadFull(c, b)
	return string(b), err
}

func TestLinkDelays(t *testing.T) {
	l, c := through(t, echo(t))
	if got, err := say(c, "fast", time.Minute); got != "fast" || err != nil {
		t.Fatal(got, err)
	}
	l.set(weather{delay: 20 * time.Millisecond})
	began := time.Now()
	if got, err := say(c, "slow", time.Minute); got != "slow" || err != nil || time.Since(began) < 40*time.Millisecond {
		t.Error(got, err, time.Since(began))
	}
}

func TestLinkStalls(t *testing.T) {
	l, c := through(t, echo(t))
	for _, stalled := range [][2]bool{{true, false}, {false, true}, {true, true}} {
		l.set(weather{stalled: stalled})
		if got, err := say(c, "late", 20*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(stalled, got, err)
		}
		l.set(weather{})
		if got, err := hear(c, 4, time.Minute); got != "late" || err != nil {
			t.Error(stalled, got, err)
		}
	}
}

func TestLinkBreaks(t *testing.T) {
	l, c := through(t, echo(t))
	if _, err := say(c, "all", time.Minute); err != nil {
		t.Fatal(err)
	}
	l.refuse()
	if got, err := say(c, "old", time.Minute); got != "old" || err != nil {
		t.Error("a connection that was there:", got, err)
	}
	if _, err := net.Dial("tcp", l.listen); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error("a new connection:", err)
	}
	l.reset()
	if got, err := say(c, "gone", time.Minute); err == nil {
		t.Error("a connection that was reset:", got)
	}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.listen)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := say(c, "again", time.Minute); got != "again" || err != nil {
		t.Error(got, err)
	}
}

// TestLinkToNowhere: what can't be refused at once is broken, and what comes next is refused.
func TestLinkToNowhere(t *testing.T) {
	target := echo(t)
	l, c := through(t, target)
	if _, err := say(c, "here", time.Minute); err != nil {
		t.Fatal(err)
	}
	target.Close()
	if c, err := net.Dial("tcp", l.listen); err == nil {
		defer c.Close()
		if got, err := hear(c, 1, time.Minute); err == nil {
			t.Error(got)
		}
	}
	if _, err := net.Dial("tcp", l.listen); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error("a new connection:", err)
	}
}
