package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/tests/dnstest"
)

const testService = "_weir._tcp.cluster.test"

// spell writes members as one line: "a:1=10.0.0.1:1,[::1]:1 b:2=".
func spell(t *testing.T, members []Member) string {
	t.Helper()
	var parts []string
	for _, m := range members {
		if !m.Resolved {
			t.Errorf("%s is left to the system's resolver", m.Name)
		}
		var addrs []string
		for _, a := range m.Addrs {
			addrs = append(addrs, a.String())
		}
		parts = append(parts, m.Name+"="+strings.Join(addrs, ","))
	}
	return strings.Join(parts, " ")
}

// expect does a lookup. Without want there must be no list; without wantErr no error, else one that contains it.
func expect(t *testing.T, s *SRV, want, wantErr string) []Member {
	t.Helper()
	members, err := s.Lookup(context.Background())
	if got := spell(t, members); got != want || want == "" && members != nil {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	switch {
	case wantErr == "" && err != nil:
		t.Errorf("got error %v, want none", err)
	case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
		t.Errorf("got error %v, want one with %q", err, wantErr)
	}
	return members
}

func TestParseList(t *testing.T) {
	for _, test := range []struct{ list, want string }{
		{"", ""},
		{" , ,", ""},
		{"b:2,a:1", "a:1 b:2"},
		{" a:1 ,\tb:2\n,", "a:1 b:2"},
		{"a:1,A:1,a.:1,a:01", "a:1"},
		{"a:1,a:2", "a:1 a:2"},
		{"Weir-0.Weir.SVC.:8080", "weir-0.weir.svc:8080"},
		{"10.0.0.2:1,10.0.0.10:1", "10.0.0.10:1 10.0.0.2:1"},
		{"[2001:DB8:0:0::1]:1,[2001:db8::1]:1", "[2001:db8::1]:1"},
		{"[::ffff:10.0.0.1]:1", "10.0.0.1:1"},
		{"under_score:65535", "under_score:65535"},
		{"1.2.3.4a:1", "1.2.3.4a:1"},
	} {
		members, err := ParseList(test.list)
		if err != nil {
			t.Errorf("%q: %v", test.list, err)
		}
		var names []string
		for _, m := range members {
			names = append(names, m.Name)
			if m.Resolved || m.Addrs != nil {
				t.Errorf("%q: %s is not left to the system's resolver", test.list, m.Name)
			}
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%q: got %q, want %q", test.list, got, test.want)
		}
		again, err := ParseList(strings.Join(names, ","))
		if err != nil || !slices.EqualFunc(again, members, Member.Equal) {
			t.Errorf("%q: its names read as %v, %v", test.list, again, err)
		}
	}
}

func TestParseListRefuses(t *testing.T) {
	const port = "the port must be a number from 1 to 65535"
	for _, test := range []struct{ entry, want string }{
		{"a", "missing port in address"},
		{"a:", port},
		{"a:0", port},
		{"a:65536", port},
		{"a:-1", port},
		{"a:http", port},
		{":8080", `"" is neither a name nor an address`},
		{".:8080", `"" is neither a name nor an address`},
		{"a..b:1", `"a..b" is neither a name nor an address`},
		{"a b:1", `"a b" is neither a name nor an address`},
		{"ä:1", `"ä" is neither a name nor an address`},
		{strings.Repeat("a", 64) + ":1", "is neither a name nor an address"},
		{strings.Repeat("a.", 127) + "a:1", "is neither a name nor an address"},
		{"10.0.0.300:1", `"10.0.0.300" is neither a name nor an address`},
		{"::1:8080", "too many colons in address"},
		{"http://a:8080", "too many colons in address"},
		{"a:1 b:2", "too many colons in address"},
		{"0.0.0.0:8080", "names no node: 0.0.0.0 can't be dialled"},
		{"[::]:8080", "names no node: :: can't be dialled"},
	} {
		members, err := ParseList("ok:1," + test.entry + ",fine:2")
		if members != nil || err == nil {
			t.Errorf("%q: got %v, %v", test.entry, members, err)
			continue
		}
		if !strings.HasPrefix(err.Error(), fmt.Sprintf("%q ", test.entry)) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %q, want the entry and %q", test.entry, err, test.want)
		}
	}
}

func TestMemberEqual(t *testing.T) {
	a := netip.MustParseAddrPort("10.0.0.1:1")
	all := []Member{
		{Name: "a:1"},
		{Name: "b:1"},
		{Name: "a:1", Resolved: true},
		{Name: "a:1", Resolved: true, Addrs: []netip.AddrPort{a}},
		{Name: "a:1", Resolved: true, Addrs: []netip.AddrPort{a, a}},
	}
	for i, m := range all {
		for j, o := range all {
			if got := m.Equal(o); got != (i == j) {
				t.Errorf("%v and %v: got %v", m, o, got)
			}
		}
	}
}

// TestLookup asks for names that exist only at that server: nothing else is asked, neither for the list nor for the
// addresses.
func TestLookup(t *testing.T) {
	d := dnstest.Start(t)
	d.Host("a.node.test", "10.0.0.2", "10.0.0.1", "10.0.0.2")
	d.Host("b.node.test", "2001:db8::1", "10.0.0.3")
	d.Host("six.node.test", "2001:db8::6")
	d.Host("0a000001.addr.dc1.consul", "10.0.0.1")
	for _, test := range []struct {
		name    string
		targets []string
		want    string
	}{
		{"one", []string{"a.node.test.:8080"}, "a.node.test:8080=10.0.0.1:8080,10.0.0.2:8080"},
		{"both kinds of address", []string{"b.node.test:1"}, "b.node.test:1=10.0.0.3:1,[2001:db8::1]:1"},
		{"IPv6 alone", []string{"six.node.test:1"}, "six.node.test:1=[2001:db8::6]:1"},
		{"upper case", []string{"B.NODE.Test:1", "b.node.test:1"}, "b.node.test:1=10.0.0.3:1,[2001:db8::1]:1"},
		{"a port for each, several for one", []string{"b.node.test:9", "a.node.test:2", "b.node.test:10"},
			"a.node.test:2=10.0.0.1:2,10.0.0.2:2 b.node.test:10=10.0.0.3:10,[2001:db8::1]:10 " +
				"b.node.test:9=10.0.0.3:9,[2001:db8::1]:9"},
		{"a name that is an address to Consul", []string{"0A000001.addr.dc1.consul:20000"},
			"0a000001.addr.dc1.consul:20000=10.0.0.1:20000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d.Serve(testService, test.targets...)
			for _, name := range []string{testService, testService + "."} {
				first := expect(t, NewSRV(name, d.Addr), test.want, "")
				slices.Reverse(test.targets)
				d.Serve(testService, test.targets...)
				second := expect(t, NewSRV(name, d.Addr), test.want, "")
				if !slices.EqualFunc(first, second, Member.Equal) {
					t.Error("the order of the answer shows in the list")
				}
			}
		})
	}
}

func TestLookupSkipsAnswersOverUDP(t *testing.T) {
	d := dnstest.Start(t)
	var targets, want []string
	for i := range 5 {
		host := fmt.Sprintf("n%d.node.test", i)
		d.Host(host, fmt.Sprintf("10.0.0.%d", i))
		targets = append(targets, host+":80")
		want = append(want, fmt.Sprintf("%s:80=10.0.0.%d:80", host, i))
	}
	d.Serve(testService, targets...)
	s := NewSRV(testService, d.Addr)
	for range 20 {
		expect(t, s, strings.Join(want, " "), "")
	}

	// This is what it is spared.
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, d.Addr)
	}}
	_, records, err := r.LookupSRV(context.Background(), "", "", testService+".")
	if len(records) != 3 || err != nil {
		t.Errorf("over UDP: got %d records, %v", len(records), err)
	}
	d.TakeUDP()
}

// TestLookupWithoutList: an answer of which nothing is sure leaves the list alone, and the next good one counts.
func TestLookupWithoutList(t *testing.T) {
	for _, test := range []struct {
		name  string
		reply dnstest.Reply
		want  string
	}{
		{"server failure", dnstest.Reply{Code: dnstest.ServFail}, "server misbehaving"},
		{"format error", dnstest.Reply{Code: dnstest.FormErr}, "server misbehaving"},
		{"no such name", dnstest.Reply{Code: dnstest.NXDomain}, "no service records"},
		{"empty", dnstest.Reply{}, "no service records"},
		{"empty and cut short", dnstest.Reply{Truncated: true}, "no service records"},
		{"garbage", dnstest.Reply{Garbage: []byte("\x17\x03\x03 this is not DNS at all")}, "cannot unmarshal DNS message"},
		{"nothing", dnstest.Reply{Garbage: []byte{}}, "cannot unmarshal DNS message"},
		{"not an answer", dnstest.Reply{Garbage: make([]byte, 600)}, "cannot unmarshal DNS message"},
		{"half a record", dnstest.Reply{Records: [][]byte{{0, 1, 0}}}, "cannot unmarshal DNS message"},
		{"only malformed targets", dnstest.Targets("a b.node.test:1", "-.node.test:2"),
			"some targets in the answer are no host names"},
		{"only addresses for targets", dnstest.Targets("10.0.0.1:1", "2001:db8::1:2"),
			"some targets in the answer are no host names"},
		{"no such service", dnstest.Targets(".:1"), "1 of 1 records have no target or no port"},
		{"only ports 0", dnstest.Targets("a.node.test:0", "b.node.test:0"), "2 of 2 records have no target or no port"},
		{"silence", dnstest.Reply{Silent: true}, "no answer in time"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := dnstest.Start(t)
			d.Host("a.node.test", "10.0.0.1")
			d.Host("b.node.test", "10.0.0.2")
			s := NewSRV(testService, d.Addr)
			if test.reply.Silent {
				s.timeout = 50 * time.Millisecond // for an answer that never comes
			}
			wantErr := "lookup " + testService + " on " + d.Addr + ": " + test.want

			d.Set(dnstest.SRV, testService, test.reply)
			expect(t, s, "", wantErr) // at first
			s.timeout = lookupTimeout
			d.Serve(testService, "a.node.test:1", "b.node.test:1")
			both := "a.node.test:1=10.0.0.1:1 b.node.test:1=10.0.0.2:1"
			expect(t, s, both, "")

			if test.reply.Silent {
				s.timeout = 50 * time.Millisecond
			}
			d.Set(dnstest.SRV, testService, test.reply)
			expect(t, s, "", wantErr) // later
			s.timeout = lookupTimeout
			d.Serve(testService, "b.node.test:1")
			expect(t, s, "b.node.test:1=10.0.0.2:1", "")
		})
	}
}

func TestLookupUnreachableServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	expect(t, NewSRV(testService, addr), "", "lookup "+testService+" on "+addr+": dial tcp "+addr+": ")
}

// TestLookupPartOfAList: an answer that is not whole shows which nodes are there, not which have gone.
func TestLookupPartOfAList(t *testing.T) {
	cut := func(targets ...string) dnstest.Reply {
		r := dnstest.Targets(targets...)
		r.Truncated = true
		return r
	}
	for _, test := range []struct {
		name  string
		reply dnstest.Reply
		want  string
		err   string
	}{
		{"a malformed target", dnstest.Targets("b.node.test:1", "no name.node.test:1", "c.node.test:1"),
			"a.node.test:1=10.0.0.1:1 b.node.test:1=10.0.0.2:1 c.node.test:1=10.0.0.3:1", "are no host names"},
		{"an address for a target", dnstest.Targets("b.node.test:1", "10.0.0.3:1"),
			"a.node.test:1=10.0.0.1:1 b.node.test:1=10.0.0.2:1", "are no host names"},
		{"cut short", cut("c.node.test:1"),
			"a.node.test:1=10.0.0.1:1 b.node.test:1=10.0.0.2:1 c.node.test:1=10.0.0.3:1", "cut short, even over TCP"},
		{"another port", cut("a.node.test:2"),
			"a.node.test:1=10.0.0.1:1 a.node.test:2=10.0.0.1:2 b.node.test:1=10.0.0.2:1", "cut short, even over TCP"},
		{"a record without port", dnstest.Targets("b.node.test:1", "c.node.test:0"), // this one is whole
			"b.node.test:1=10.0.0.2:1", "1 of 2 records have no target or no port"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := dnstest.Start(t)
			d.Host("a.node.test", "10.0.0.1")
			d.Host("b.node.test", "10.0.0.2")
			d.Host("c.node.test", "10.0.0.3")
			s := NewSRV(testService, d.Addr)
			d.Serve(testService, "a.node.test:1", "b.node.test:1")
			expect(t, s, "a.node.test:1=10.0.0.1:1 b.node.test:1=10.0.0.2:1", "")
			d.Set(dnstest.SRV, testService, test.reply)
			expect(t, s, test.want, test.err)
			expect(t, s, test.want, test.err)
			d.Serve(testService, "c.node.test:1")
			expect(t, s, "c.node.test:1=10.0.0.3:1", "")
		})
	}

	t.Run("at first", func(t *testing.T) {
		d := dnstest.Start(t)
		d.Host("a.node.test", "10.0.0.1")
		s := NewSRV(testService, d.Addr)
		d.Set(dnstest.SRV, testService, dnstest.Targets("a.node.test:1", "no name.node.test:1"))
		expect(t, s, "a.node.test:1=10.0.0.1:1", "are no host names")
	})
}

func TestLookupChanges(t *testing.T) {
	d := dnstest.Start(t)
	d.Host("a.node.test", "10.0.0.1")
	d.Host("b.node.test", "10.0.0.2")
	s := NewSRV(testService, d.Addr)
	d.Serve(testService, "a.node.test:1", "b.node.test:1")
	expect(t, s, "a.node.test:1=10.0.0.1:1 b.node.test:1=10.0.0.2:1", "")
	d.Serve(testService, "a.node.test:1", "b.node.test:2")
	expect(t, s, "a.node.test:1=10.0.0.1:1 b.node.test:2=10.0.0.2:2", "")
	d.Host("a.node.test", "10.0.0.9")
	expect(t, s, "a.node.test:1=10.0.0.9:1 b.node.test:2=10.0.0.2:2", "")
	d.Serve(testService, "a.node.test:1")
	expect(t, s, "a.node.test:1=10.0.0.9:1", "")
}

func TestLookupFailingTarget(t *testing.T) {
	d := dnstest.Start(t)
	d.Host("a.node.test", "10.0.0.1")
	d.Host("b.node.test", "10.0.0.2")
	d.Host("c.node.test", "10.0.0.3")
	s := NewSRV(testService, d.Addr)
	d.Serve(testService, "a.node.test:1", "b.node.test:1", "c.node.test:1")
	all := "a.node.test:1=10.0.0.1:1 b.node.test:1=10.0.0.2:1 c.node.test:1=10.0.0.3:1"
	expect(t, s, all, "")

	// It keeps its addresses, whatever the failure is, and also with another port.
	missing := "no address for 1 of 3 targets: lookup b.node.test on " + d.Addr + ": "
	d.Fail("b.node.test")
	expect(t, s, all, missing+"server misbehaving")
	expect(t, s, all, missing+"server misbehaving")
	d.Host("b.node.test")
	expect(t, s, all, missing+"no such host")
	d.Set(dnstest.A, "b.node.test", dnstest.Reply{Code: dnstest.NXDomain})
	expect(t, s, all, missing+"no such host")
	d.Set(dnstest.AAAA, "b.node.test", dnstest.Reply{Garbage: []byte("?")})
	expect(t, s, all, missing+"cannot unmarshal DNS message")
	d.Serve(testService, "a.node.test:1", "b.node.test:7", "c.node.test:1")
	expect(t, s, strings.Replace(all, "b.node.test:1=10.0.0.2:1", "b.node.test:7=10.0.0.2:7", 1), missing)
	d.Serve(testService, "a.node.test:1", "b.node.test:1", "c.node.test:1")
	d.Host("b.node.test", "10.0.0.22")
	expect(t, s, "a.node.test:1=10.0.0.1:1 b.node.test:1=10.0.0.22:1 c.node.test:1=10.0.0.3:1", "")

	// Gone while it failed: it stays away, and its addresses are forgotten.
	d.Fail("b.node.test")
	expect(t, s, "a.node.test:1=10.0.0.1:1 b.node.test:1=10.0.0.22:1 c.node.test:1=10.0.0.3:1", "no address for 1")
	d.Serve(testService, "a.node.test:1", "c.node.test:1")
	expect(t, s, "a.node.test:1=10.0.0.1:1 c.node.test:1=10.0.0.3:1", "")
	d.Host("b.node.test", "10.0.0.2")
	expect(t, s, "a.node.test:1=10.0.0.1:1 c.node.test:1=10.0.0.3:1", "")
	d.Fail("b.node.test")
	d.Serve(testService, "a.node.test:1", "b.node.test:1", "c.node.test:1")
	expect(t, s, "a.node.test:1=10.0.0.1:1 b.node.test:1= c.node.test:1=10.0.0.3:1", "no address for 1")
}

// TestLookupFailingFamily: a failure with one kind of address neither loses those of that kind nor hides the others.
func TestLookupFailingFamily(t *testing.T) {
	d := dnstest.Start(t)
	d.Host("a.node.test", "10.0.0.1", "2001:db8::1")
	d.Serve(testService, "a.node.test:1")
	s := NewSRV(testService, d.Addr)
	expect(t, s, "a.node.test:1=10.0.0.1:1,[2001:db8::1]:1", "")
	d.Set(dnstest.A, "a.node.test", dnstest.Reply{Code: dnstest.ServFail})
	expect(t, s, "a.node.test:1=10.0.0.1:1,[2001:db8::1]:1", "")
	d.Set(dnstest.A, "a.node.test", dnstest.Reply{}) // it has none any longer
	expect(t, s, "a.node.test:1=[2001:db8::1]:1", "")
	d.Host("a.node.test", "10.0.0.1")
	d.Set(dnstest.AAAA, "a.node.test", dnstest.Reply{Code: dnstest.ServFail})
	expect(t, s, "a.node.test:1=10.0.0.1:1,[2001:db8::1]:1", "")
	expect(t, NewSRV(testService, d.Addr), "a.node.test:1=10.0.0.1:1", "")
}

func TestLookupNewTargetWithoutAddress(t *testing.T) {
	d := dnstest.Start(t)
	d.Host("a.node.test", "10.0.0.1")
	d.Serve(testService, "b.node.test:1", "a.node.test:1")
	s := NewSRV(testService, d.Addr)
	expect(t, s, "a.node.test:1=10.0.0.1:1 b.node.test:1=", "no address for 1 of 2 targets: lookup b.node.test on "+d.Addr)
	d.Set(dnstest.SRV, testService, dnstest.Targets("c.node.test:1", "no name:1"))
	members := expect(t, s, "a.node.test:1=10.0.0.1:1 b.node.test:1= c.node.test:1=",
		"are no host names; no address for 2 of 3 targets: ")
	if again, _ := s.Lookup(context.Background()); !slices.EqualFunc(members, again, Member.Equal) {
		t.Errorf("got %v, then %v", members, again)
	}
}

func TestLookupManyTargets(t *testing.T) {
	d := dnstest.Start(t)
	var targets, want []string
	for i := range 300 { // 57 kB
		host := fmt.Sprintf("%03d-%s.%[2]s.%[2]s.node.test", i, strings.Repeat("x", 48))
		if i%8 == 0 {
			d.Host(host, fmt.Sprintf("10.0.%d.%d", i/256, i%256))
		} else {
			host = strings.Replace(targets[i-1], fmt.Sprint(":", i-1), "", 1) // the last one, with another port
		}
		targets = append(targets, fmt.Sprint(host, ":", i))
		if i > 0 {
			want = append(want, fmt.Sprintf("%s:%d=10.0.%d.%d:%d", host, i, i&^7/256, i&^7%256, i))
		}
	}
	d.Serve(testService, targets...) // the first has port 0
	slices.Sort(want)
	members, err := NewSRV(testService, d.Addr).Lookup(context.Background())
	if err == nil || !strings.Contains(err.Error(), "1 of 300 records have no target or no port") {
		t.Errorf("got error %v", err)
	}
	if spell(t, members) != strings.Join(want, " ") {
		t.Error("another list")
	}
	if len(members) != 299 {
		t.Errorf("got %d members", len(members))
	}
}

// A cancelled lookup ends at once, in both of its parts, and changes nothing.
func TestLookupCancelled(t *testing.T) {
	for _, hangs := range []int{dnstest.SRV, dnstest.A, dnstest.AAAA} {
		t.Run(fmt.Sprint("type ", hangs), func(t *testing.T) {
			d := dnstest.Start(t)
			d.Host("a.node.test", "10.0.0.1", "2001:db8::1")
			d.Serve(testService, "a.node.test:1")
			s := NewSRV(testService, d.Addr)
			s.timeout = time.Hour
			expect(t, s, "a.node.test:1=10.0.0.1:1,[2001:db8::1]:1", "")
			list, known := s.list, s.known

			name := "a.node.test"
			if hangs == dnstest.SRV {
				name = testService
			}
			d.Set(hangs, name, dnstest.Reply{Silent: true})
			asked := make(chan string, 100)
			d.Tell(asked)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if members, err := s.Lookup(ctx); members != nil || err == nil {
					t.Errorf("got %v, %v", members, err)
				}
			}()
			for <-asked != fmt.Sprint(hangs, " ", name, ".") {
			}
			cancel()
			<-done
			d.Wait() // its connections are closed
			if !reflect.DeepEqual(s.list, list) || !reflect.DeepEqual(s.known, known) {
				t.Error("the list changed")
			}
		})
	}
}

// A host that is in the hosts file with an IPv4 address alone has no IPv6 address, which is not a failure to find out.
func TestExplainHostsFile(t *testing.T) {
	err := &net.AddrError{Err: "no suitable address found", Addr: "a.node.test."}
	got := NewSRV(testService, "127.0.0.1:8600").explain(context.Background(), err)
	if !got.IsNotFound || got.Error() != "lookup a.node.test: no suitable address found" {
		t.Errorf("got %v, %v", got, got.IsNotFound)
	}
}

// The connections end with the lookup they were made for, however long the resolver would wait.
func TestResolverConnectionEnds(t *testing.T) {
	d := dnstest.Start(t)
	ctx, cancel := context.WithCancel(context.Background())
	r := NewSRV(testService, d.Addr).resolver(ctx, new(atomic.Bool))
	c, err := r.Dial(context.Background(), "udp", "192.0.2.1:53") // neither of which applies
	if err != nil {
		t.Fatal(err)
	}
	if got := c.RemoteAddr(); got.Network() != "tcp" || got.String() != d.Addr {
		t.Errorf("connected to %v by %v", got, got.Network())
	}
	cancel()
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %d bytes, %v", n, err)
	}
}

func TestLookupLeavesNothingBehind(t *testing.T) {
	d := dnstest.Start(t)
	d.Host("a.node.test", "10.0.0.1")
	d.Serve(testService, "a.node.test:1", "a.node.test:2")
	s := NewSRV(testService, d.Addr)
	const want = "a.node.test:1=10.0.0.1:1 a.node.test:2=10.0.0.1:2"
	first := expect(t, s, want, "")
	d.Wait()
	before := runtime.NumGoroutine()
	for range 1000 {
		again := expect(t, s, want, "")
		if !slices.EqualFunc(first, again, Member.Equal) {
			t.Fatalf("got %v, then %v", first, again)
		}
	}
	d.Wait() // so every connection was closed
	const ending = 10
	if after := runtime.NumGoroutine(); after > before+ending {
		t.Errorf("%d goroutines became %d", before, after)
	}
}

func TestNewSRV(t *testing.T) {
	for _, test := range []struct{ server, want string }{
		{"", ""},
		{"10.0.0.1", "10.0.0.1:53"},
		{"10.0.0.1:", "10.0.0.1:53"},
		{"127.0.0.1:8600", "127.0.0.1:8600"},
		{"consul.local", "consul.local:53"},
		{"consul.local:8600", "consul.local:8600"},
		{"::1", "[::1]:53"},
		{"[::1]", "[::1]:53"},
		{"[::1]:8600", "[::1]:8600"},
	} {
		if got := NewSRV("a", test.server).server; got != test.want {
			t.Errorf("%q: got %q, want %q", test.server, got, test.want)
		}
	}
}

// A watched records a Watch with its times, which start at 0.
type watched struct {
	start  time.Time
	asked  []time.Duration
	lists  []time.Duration
	failed []time.Duration
	last   []Member
}

// watch runs a Watch for some time. It must be called in a bubble, which doesn't end before Watch's goroutines do.
func watch(every, long time.Duration, lookup func(since time.Duration) ([]Member, error)) *watched {
	w := &watched{start: time.Now()}
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	Watch(ctx, every, func(context.Context) ([]Member, error) {
		w.asked = append(w.asked, time.Since(w.start))
		return lookup(time.Since(w.start))
	}, func(members []Member) bool {
		w.lists = append(w.lists, time.Since(w.start))
		w.last = members
		return len(members) > 1 || members[0].Name != "stranger:1"
	}, func(error) {
		w.failed = append(w.failed, time.Since(w.start))
	})
	return w
}

// steps checks that what follows the first of times comes after between low and high each.
func steps(t *testing.T, times []time.Duration, low, high time.Duration) {
	t.Helper()
	for i := range max(0, len(times)-1) {
		if step := times[i+1] - times[i]; step < low || step > high {
			t.Errorf("%v after %v: want between %v and %v", step, times[i], low, high)
		}
	}
}

var errNoList = errors.New("no list")

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := []Member{{Name: "a:1"}}
		w := watch(10*time.Second, time.Minute, func(time.Duration) ([]Member, error) { return list, nil })
		if len(w.lists) < 6 || len(w.lists) > 8 || w.lists[0] != 0 || len(w.failed) != 0 {
			t.Errorf("lists at %v, failures at %v", w.lists, w.failed)
		}
		steps(t, w.asked, 8750*time.Millisecond, 10*time.Second)
		if &w.last[0] != &list[0] {
			t.Error("another list")
		}
		if ended := time.Since(w.start); ended != time.Minute {
			t.Errorf("it ended after %v", ended)
		}
	})
}

func TestWatchUntilFirstList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(10*time.Second, time.Minute, func(since time.Duration) ([]Member, error) {
			if since < 3*time.Second {
				return nil, errNoList
			}
			return []Member{{Name: "a:1"}}, nil
		})
		if len(w.lists) == 0 || w.lists[0] > 5*time.Second {
			t.Fatalf("lists at %v", w.lists)
		}
		steps(t, w.lists, 8750*time.Millisecond, 10*time.Second)
		failures := len(w.failed)
		if failures < 3 || failures > 6 || !slices.Equal(w.failed, w.asked[:failures]) {
			t.Errorf("asked at %v, failed at %v", w.asked, w.failed)
		}
		if first := w.asked[1]; first < 200*time.Millisecond || first > 250*time.Millisecond {
			t.Errorf("again after %v", first)
		}
	})
}

// A list without this node is no reason to wait long for the next one: it has just started, and will soon be listed.
func TestWatchUntilListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(10*time.Second, time.Minute, func(since time.Duration) ([]Member, error) {
			if since < 3*time.Second {
				return []Member{{Name: "stranger:1"}}, nil
			}
			return []Member{{Name: "a:1"}}, nil
		})
		early := 0
		for early < len(w.lists) && w.lists[early] < 3*time.Second {
			early++
		}
		if early < 3 || early > 6 || w.lists[early] > 5*time.Second {
			t.Errorf("lists at %v", w.lists)
		}
		steps(t, w.lists[early:], 8750*time.Millisecond, 10*time.Second)
	})
}

func TestWatchWithoutList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(10*time.Second, 10*time.Minute, func(time.Duration) ([]Member, error) { return nil, errNoList })
		if len(w.lists) != 0 || !slices.Equal(w.failed, w.asked) || len(w.asked) < 300 || len(w.asked) > 350 {
			t.Errorf("%d lists, %d failures, %d lookups", len(w.lists), len(w.failed), len(w.asked))
		}
		steps(t, w.asked[4:], 1750*time.Millisecond, 2*time.Second)
	})
	synctest.Test(t, func(t *testing.T) { // it isn't slower than it is with a list
		w := watch(time.Second, time.Minute, func(time.Duration) ([]Member, error) { return nil, errNoList })
		steps(t, w.asked, 0, time.Second)
	})
}

// Once there is a list, failures don't quicken it, and a list can come with an error.
func TestWatchFailuresLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		w := watch(10*time.Second, time.Hour, func(time.Duration) ([]Member, error) {
			n++
			switch n % 3 {
			case 1:
				return []Member{{Name: "a:1"}}, errNoList
			case 2:
				return nil, errNoList
			default:
				return []Member{{Name: "a:1"}}, nil
			}
		})
		steps(t, w.asked, 8750*time.Millisecond, 10*time.Second)
		var lists, failed []time.Duration
		for i, at := range w.asked {
			if i%3 != 1 {
				lists = append(lists, at)
			}
			if i%3 != 2 {
				failed = append(failed, at)
			}
		}
		if !slices.Equal(w.lists, lists) || !slices.Equal(w.failed, failed) {
			t.Errorf("%d lookups, %d lists, %d failures", len(w.asked), len(w.lists), len(w.failed))
		}
	})
}

// The end of ctx during a lookup is no failure, and what comes of it is no list.
func TestWatchEndsDuringLookup(t *testing.T) {
	for _, err := range []error{nil, context.Canceled} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			var looking, ended atomic.Bool
			go func() {
				Watch(ctx, time.Second, func(ctx context.Context) ([]Member, error) {
					looking.Store(true)
					<-ctx.Done()
					return []Member{{Name: "a:1"}}, err
				}, func([]Member) bool { t.Error("a list"); return true }, func(error) { t.Error("a failure") })
				ended.Store(true)
			}()
			synctest.Wait()
			if !looking.Load() || ended.Load() {
				t.Error("it doesn't look up")
			}
			cancel()
			synctest.Wait()
			if !ended.Load() {
				t.Error("it goes on")
			}
		})
	}
}
