// Package dnstest is a DNS server for tests, which answers as a test sets it.
package dnstest

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Of DNS, what the tests need: types of records, and codes of failures.
const (
	A    = 1
	AAAA = 28
	SRV  = 33

	FormErr  = 1
	ServFail = 2
	NXDomain = 3
)

// A Reply is how a [Server] answers one question.
type Reply struct {
	Records   [][]byte // the data of each
	Code      byte
	Truncated bool
	Garbage   []byte // the whole message, if not nil
	Silent    bool   // nothing comes, and the connection stays open
}

// A Server is a DNS server on loopback. Over UDP it hands out three random records and doesn't flag that there are
// more. It ends with its test, and fails it after a question over UDP. It is safe for concurrent use.
type Server struct {
	Addr string // host:port

	mu      sync.Mutex
	replies map[string]Reply // by question, as in "33 _weir._tcp.test."; guarded by mu
	asked   chan<- string    // gets each question over TCP, if not nil; guarded by mu
	udp     int              // questions over UDP; guarded by mu
	open    int              // connections that the client hasn't closed; guarded by mu
	idle    sync.Cond        // open is 0
}

// T is what a [Server] needs of a test: *testing.T, or what drives whole processes without one.
type T interface {
	Helper()
	Cleanup(f func())
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// Start starts a Server that knows no name.
func Start(t T) *Server {
	t.Helper()
	s := &Server{replies: make(map[string]Reply)}
	s.idle.L = &s.mu
	tcp, udp := listen(t)
	s.Addr = tcp.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() { s.serveTCP(tcp) })
	wg.Go(func() { s.serveUDP(udp) })
	t.Cleanup(func() {
		tcp.Close()
		udp.Close()
		wg.Wait()
		s.Wait()
		if n := s.TakeUDP(); n > 0 {
			t.Errorf("%d questions came over UDP", n)
		}
	})
	return s
}

// listen finds a port that is free for both.
func listen(t T) (net.Listener, net.PacketConn) {
	t.Helper()
	var last error
	for range 20 {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenPacket("udp", tcp.Addr().String())
		if err == nil {
			return tcp, udp
		}
		last = err
		tcp.Close()
	}
	t.Fatal(last)
	return nil, nil
}

// Wait returns when no connection is open, and so not at all if a client forgot to close one.
func (s *Server) Wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.open > 0 {
		s.idle.Wait()
	}
}

// TakeUDP returns the number of questions over UDP since the last TakeUDP. Those no longer fail the test.
func (s *Server) TakeUDP() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.udp = 0 }()
	return s.udp
}

// Tell has each question over TCP sent to asked.
func (s *Server) Tell(asked chan<- string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = asked
}

// Set has the server answer questions of a type for name, without the final dot.
func (s *Server) Set(kind int, name string, r Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies[fmt.Sprint(kind, " ", strings.ToLower(name), ".")] = r
}

// Serve has the server list targets, each host:port, as those of a service.
func (s *Server) Serve(service string, targets ...string) { s.Set(SRV, service, Targets(targets...)) }

// Host sets the addresses of a name; without any, it exists and has none.
func (s *Server) Host(name string, addrs ...string) {
	var v4, v6 Reply
	for _, text := range addrs {
		a := netip.MustParseAddr(text)
		if a.Is4() {
			v4.Records = append(v4.Records, a.AsSlice())
		} else {
			v6.Records = append(v6.Records, a.AsSlice())
		}
	}
	s.Set(A, name, v4)
	s.Set(AAAA, name, v6)
}

// Fail has the server not know the addresses of a name for now.
func (s *Server) Fail(name string) {
	s.Set(A, name, Reply{Code: ServFail})
	s.Set(AAAA, name, Reply{Code: ServFail})
}

// Targets is the reply that lists targets, each host:port. They need not be valid names.
func Targets(targets ...string) Reply {
	var r Reply
	for _, t := range targets {
		i := strings.LastIndexByte(t, ':')
		var port uint16
		fmt.Sscan(t[i+1:], &port)
		data := []byte{0, 1, 0, byte(len(r.Records) % 5)} // priority, weight
		data = binary.BigEndian.AppendUint16(data, port)
		for label := range strings.SplitSeq(strings.Trim(t[:i], "."), ".") {
			if label != "" {
				data = append(append(data, byte(len(label))), label...)
			}
		}
		r.Records = append(r.Records, append(data, 0))
	}
	return r
}

func (s *Server) serveTCP(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.open++
		s.mu.Unlock()
		go func() {
			s.serveConn(c)
			c.(*net.TCPConn).SetLinger(0) // the client has closed: leave no port waiting behind
			c.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.open--; s.open == 0 {
				s.idle.Broadcast()
			}
		}()
	}
}

// serveConn answers one question and stays until the client goes.
func (s *Server) serveConn(c net.Conn) {
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return
	}
	query := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(c, query); err != nil {
		return
	}
	s.mu.Lock()
	reply, ok := s.replies[question(query)]
	asked := s.asked
	s.mu.Unlock()
	if asked != nil {
		asked <- question(query)
	}
	if !reply.Silent {
		message := reply.encode(query, ok)
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
	}
	io.Copy(io.Discard, c)
}

func (s *Server) serveUDP(c net.PacketConn) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.udp++
		reply, ok := s.replies[question(b[:n])]
		s.mu.Unlock()
		records := slices.Clone(reply.Records)
		rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		reply.Records = records[:min(3, len(records))]
		c.WriteTo(reply.encode(b[:n], ok), from)
	}
}

// questionEnd is where the one question of a query ends.
func questionEnd(query []byte) int {
	i := 12
	for query[i] != 0 {
		i += 1 + int(query[i])
	}
	return i + 5
}

// question returns type and name, in lower case, of what is asked.
func question(query []byte) string {
	var name strings.Builder
	for i := 12; query[i] != 0; i += 1 + int(query[i]) {
		name.Write(query[i+1 : i+1+int(query[i])])
		name.WriteByte('.')
	}
	end := questionEnd(query)
	return fmt.Sprint(binary.BigEndian.Uint16(query[end-4:]), " ", strings.ToLower(name.String()))
}

func (r Reply) encode(query []byte, known bool) []byte {
	if r.Garbage != nil {
		return r.Garbage
	}
	if !known {
		r.Code = NXDomain
	}
	end := questionEnd(query)
	message := append([]byte(nil), query[:2]...)
	flags := 0x8580 | uint16(r.Code) // an answer, authoritative, with recursion
	if r.Truncated {
		flags |= 0x0200
	}
	for _, n := range []uint16{flags, 1, uint16(len(r.Records)), 0, 0} {
		message = binary.BigEndian.AppendUint16(message, n)
	}
	message = append(message, query[12:end]...)
	for _, data := range r.Records {
		message = append(message, 0xc0, 12) // the name in the question
		message = append(message, query[end-4:end]...)
		message = append(message, 0, 0, 0, 0) // its time to live
		message = binary.BigEndian.AppendUint16(message, uint16(len(data)))
		message = append(message, data...)
	}
	return message
}
