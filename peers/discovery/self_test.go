package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// testMachine is a machine with three addresses and a resolver that knows a few names.
func testMachine() finder {
	hosts := map[string][]string{
		"a":           {"10.0.0.1"},
		"a.long.test": {"10.0.0.1"},
		"b":           {"10.0.0.2", "::ffff:10.0.0.22"},
		"six":         {"2001:db8::1", "fe80::1%eth0"},
		"debian":      {"127.0.1.1"},
		"shared":      {"10.0.0.1", "10.0.0.2"},
		"nowhere":     {},
	}
	return finder{
		interfaces: func() ([]net.Addr, error) {
			var addrs []net.Addr
			for _, cidr := range []string{"127.0.0.1/8", "::1/128", "10.0.0.1/24", "2001:db8::1/64"} {
				ip, ipNet, err := net.ParseCIDR(cidr)
				if err != nil {
					return nil, err
				}
				ipNet.IP = ip
				addrs = append(addrs, ipNet)
			}
			return append(addrs, &net.UnixAddr{Name: "not an address", Net: "unix"}), nil
		},
		lookup: func(_ context.Context, network, host string) ([]netip.Addr, error) {
			addrs, ok := hosts[host]
			if !ok || network != "ip" {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			var parsed []netip.Addr
			for _, a := range addrs {
				parsed = append(parsed, netip.MustParseAddr(a))
			}
			return parsed, nil
		},
	}
}

// discovered makes members as discovery does, each "name:port=address address".
func discovered(entries ...string) []Member {
	var members []Member
	for _, entry := range entries {
		name, addrs, _ := strings.Cut(entry, "=")
		m := Member{Name: name, Resolved: true}
		_, port, _ := net.SplitHostPort(name)
		for _, a := range strings.Fields(addrs) {
			m.Addrs = append(m.Addrs, netip.MustParseAddrPort(net.JoinHostPort(a, port)))
		}
		members = append(members, m)
	}
	return members
}

func static(t *testing.T, list string) []Member {
	t.Helper()
	members, err := ParseList(list)
	if err != nil {
		t.Fatal(err)
	}
	return members
}

func TestSelf(t *testing.T) {
	const all = "[::]:8080"
	for _, test := range []struct {
		name      string
		members   []Member
		advertise string
		listen    string
		want      string
	}{
		{"alone", static(t, "10.0.0.1:8080"), "", all, "10.0.0.1:8080"},
		{"by address", static(t, "10.0.0.1:8080,10.0.0.2:8080"), "", all, "10.0.0.1:8080"},
		{"IPv4 alone", static(t, "10.0.0.1:8080,10.0.0.2:8080"), "", "0.0.0.0:8080", "10.0.0.1:8080"},
		{"IPv4 in IPv6", static(t, "10.0.0.1:8080,10.0.0.2:8080"), "", "[::ffff:0.0.0.0]:8080", "10.0.0.1:8080"},
		{"by IPv6 address", static(t, "[2001:db8::1]:8080,[2001:db8::2]:8080"), "", all, "[2001:db8::1]:8080"},
		{"by name", static(t, "a:8080,b:8080"), "", all, "a:8080"},
		{"by a name with many addresses", static(t, "six:8080,b:8080"), "", all, "six:8080"},
		{"others without an address", static(t, "a:8080,unknown:8080,nowhere:8080"), "", all, "a:8080"},
		{"by port", static(t, "localhost:8080,localhost:8081,127.0.0.1:8082"), "", all, "localhost:8080"},
		{"by localhost and port", static(t, "localhost:8080,localhost:8081"), "", "127.0.0.1:8081", "localhost:8081"},
		{"by localhost on IPv6", static(t, "localhost:8080,127.0.0.1:8080"), "", "[::1]:8080", "localhost:8080"},
		{"by the address of listen", static(t, "10.0.0.1:8080,127.0.0.1:8080"), "", "127.0.0.1:8080", "127.0.0.1:8080"},
		{"listen on an address of its own", static(t, "10.0.0.1:8080,127.0.0.2:8080"), "", "127.0.0.2:8080",
			"127.0.0.2:8080"},
		{"IPv4 in IPv6 of its own", static(t, "10.0.0.1:8080,b:8080"), "", "[::ffff:10.0.0.22]:8080", "b:8080"},
		{"its name on loopback", static(t, "debian:8080,b:8080"), "", all, "debian:8080"},
		{"discovered", discovered("x.test:8080=10.0.0.1", "y.test:8080=10.0.0.2"), "", all, "x.test:8080"},
		{"discovered, others without", discovered("x.test:8080=10.0.0.1 10.0.0.9", "y.test:8080"), "", all, "x.test:8080"},
		{"discovered, not by the system", discovered("a:8080=10.0.0.2", "b:8080=10.0.0.1"), "", all, "b:8080"},
		{"discovered, by port", discovered("x.test:1=10.0.0.1", "x.test:8080=10.0.0.1"), "", all, "x.test:8080"},

		{"as advertised", static(t, "a:8080,b:8080"), "b:8080", all, "b:8080"},
		{"as advertised, other spelling", static(t, "a:8080,b:8080"), " B.:8080 ", all, "b:8080"},
		{"as advertised, not resolved", static(t, "a:8080,unknown:8080"), "unknown:8080", all, "unknown:8080"},
		{"as advertised, one of two", static(t, "a:8080,10.0.0.1:8080"), "10.0.0.1:8080", all, "10.0.0.1:8080"},
		{"as advertised, other IPv6 spelling", static(t, "[2001:DB8::1]:1,b:1"), "[2001:db8:0::1]:1", all, "[2001:db8::1]:1"},
		{"advertised localhost", static(t, "127.0.0.1:9001,127.0.0.1:9002"), "localhost:9001", all, "127.0.0.1:9001"},
		{"advertised 127.0.0.1", static(t, "localhost:9001,localhost:9002"), "127.0.0.1:9001", all, "localhost:9001"},
		{"advertised ::1", static(t, "localhost:9001,localhost:9002"), "[::1]:9002", all, "localhost:9002"},
		{"advertised address", static(t, "a:80,b:80"), "10.0.0.22:80", all, "b:80"},
		{"advertised name", static(t, "10.0.0.1:80,10.0.0.22:80"), "b:80", all, "10.0.0.22:80"},
		{"advertised other name", static(t, "a.long.test:80,b:80"), "a:80", all, "a.long.test:80"},
		{"advertised address with zone", static(t, "six:80,b:80"), "[fe80::1%eth1]:80", all, "six:80"},
		{"advertised, discovered", discovered("x.test:80=10.0.0.1", "y.test:80=10.0.0.2"), "b:80", all, "y.test:80"},
	} {
		t.Run(test.name, func(t *testing.T) {
			listen := netip.MustParseAddrPort(test.listen)
			name, err := testMachine().find(context.Background(), test.members, test.advertise, listen)
			if name != test.want || err != nil {
				t.Errorf("got %q, %v, want %q", name, err, test.want)
			}
		})
	}
}

func TestSelfUnknown(t *testing.T) {
	var many []string
	for i := range 15 {
		many = append(many, fmt.Sprintf("10.1.0.%d:8080", 10+i))
	}
	const (
		all  = "[::]:8080"
		mine = "this node listens on port 8080 of 127.0.0.1, ::1, 10.0.0.1, 2001:db8::1"
	)
	for _, test := range []struct {
		name      string
		members   []Member
		advertise string
		listen    string
		want      string
	}{
		{"no list", nil, "a:8080", all, "no nodes are listed, so this one isn't"},
		{"others", static(t, "b:8080,10.0.0.3:8080"), "", all,
			"no listed node is this one: " + mine + "; listed are 10.0.0.3:8080, b:8080 (10.0.0.2, 10.0.0.22); " +
				"set WEIR_ADVERTISE to one of 10.0.0.3:8080, b:8080"},
		{"other port", static(t, "10.0.0.1:80,b:8080"), "", all,
			"no listed node is this one: " + mine + "; listed are 10.0.0.1:80, b:8080 (10.0.0.2, 10.0.0.22); " +
				"set WEIR_ADVERTISE to one of 10.0.0.1:80, b:8080"},
		{"other address", static(t, "a:8080,localhost:8080"), "", "10.0.0.5:8080",
			"no listed node is this one: this node listens on port 8080 of 10.0.0.5; listed are a:8080 (10.0.0.1), " +
				"localhost:8080 (127.0.0.1, ::1); set WEIR_ADVERTISE to one of a:8080, localhost:8080"},
		{"no addresses", static(t, "unknown:8080,nowhere:8080"), "", all,
			"no listed node is this one: " + mine + "; listed are nowhere:8080, unknown:8080 (lookup unknown: no such host); " +
				"set WEIR_ADVERTISE to one of nowhere:8080, unknown:8080"},
		{"two", static(t, "a:8080,b:8080,localhost:8080"), "", all,
			"2 listed nodes could be this one: " + mine + "; listed are a:8080 (10.0.0.1), b:8080 (10.0.0.2, 10.0.0.22), " +
				"localhost:8080 (127.0.0.1, ::1); set WEIR_ADVERTISE to one of a:8080, localhost:8080"},
		{"many", static(t, strings.Join(many, ",")), "", "10.0.0.1:8080",
			"no listed node is this one: this node listens on port 8080 of 10.0.0.1; listed are " +
				strings.Join(many[:10], ", ") + ", 5 more; " +
				"set WEIR_ADVERTISE to one of " + strings.Join(many[:10], ", ") + ", 5 more"},
		{"discovered", discovered("x.test:8080=10.0.0.9", "y.test:8080", "z.test:1=10.0.0.1"), "", all,
			"no listed node is this one: " + mine + "; " +
				"listed are x.test:8080 (10.0.0.9), y.test:8080 (no address known), z.test:1; " +
				"set WEIR_ADVERTISE to one of x.test:8080, y.test:8080, z.test:1"},
		{"discovered, known to the system", discovered("a:8080"), "", all,
			"no listed node is this one: " + mine + "; listed are a:8080 (no address known); " +
				"set WEIR_ADVERTISE to one of a:8080"},

		{"advertised other port", static(t, "a:80,b:8080"), "a:8080", all,
			"no listed node is this one: WEIR_ADVERTISE is a:8080 (10.0.0.1); listed are a:80, b:8080 (10.0.0.2, 10.0.0.22); " +
				"set WEIR_ADVERTISE to one of a:80, b:8080"},
		{"advertised unknown name", static(t, "a:8080"), "unknown:8080", all,
			"no listed node is this one: WEIR_ADVERTISE is unknown:8080 (lookup unknown: no such host); " +
				"listed are a:8080 (10.0.0.1); set WEIR_ADVERTISE to one of a:8080"},
		{"advertised address of this machine", static(t, "a:8080,b:8080"), "127.0.0.1:8080", all, // counts more than listen
			"no listed node is this one: WEIR_ADVERTISE is 127.0.0.1:8080; " +
				"listed are a:8080 (10.0.0.1), b:8080 (10.0.0.2, 10.0.0.22); " +
				"set WEIR_ADVERTISE to one of a:8080, b:8080"},
		{"advertised shared name", static(t, "a:8080,b:8080,10.0.0.3:8080"), "shared:8080", all,
			"2 listed nodes could be this one: WEIR_ADVERTISE is shared:8080 (10.0.0.1, 10.0.0.2); " +
				"listed are 10.0.0.3:8080, a:8080 (10.0.0.1), b:8080 (10.0.0.2, 10.0.0.22); " +
				"set WEIR_ADVERTISE to one of a:8080, b:8080"},
		{"advertised no port", static(t, "a:8080"), "a", all,
			`WEIR_ADVERTISE: "a" is not host:port: missing port in address`},
		{"advertised nowhere", static(t, "a:8080"), "0.0.0.0:8080", all,
			`WEIR_ADVERTISE: "0.0.0.0:8080" names no node: 0.0.0.0 can't be dialled`},
		{"advertised port alone", static(t, "a:8080"), ":8080", all,
			`WEIR_ADVERTISE: ":8080" is not host:port: "" is neither a name nor an address`},
	} {
		t.Run(test.name, func(t *testing.T) {
			listen := netip.MustParseAddrPort(test.listen)
			name, err := testMachine().find(context.Background(), test.members, test.advertise, listen)
			if name != "" || err == nil {
				t.Fatalf("got %q, %v", name, err)
			}
			if err.Error() != test.want {
				t.Errorf("got  %s\nwant %s", err, test.want)
			}
		})
	}
}

func TestSelfWithoutInterfaces(t *testing.T) {
	broken := errors.New("broken")
	f := testMachine()
	f.interfaces = func() ([]net.Addr, error) { return nil, broken }
	find := func(advertise string, listen netip.AddrPort) (string, error) {
		return f.find(context.Background(), static(t, "a:8080,b:8080"), advertise, listen)
	}
	if name, err := find("", netip.MustParseAddrPort("[::]:8080")); name != "" || !errors.Is(err, broken) {
		t.Errorf("got %q, %v", name, err)
	}
	// They aren't asked for where they don't matter.
	if name, err := find("", netip.MustParseAddrPort("10.0.0.1:8080")); name != "a:8080" || err != nil {
		t.Errorf("got %q, %v", name, err)
	}
	if name, err := find("10.0.0.2:8080", netip.AddrPort{}); name != "b:8080" || err != nil {
		t.Errorf("got %q, %v", name, err)
	}
}

func TestSelfCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	f := testMachine()
	f.lookup = func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	name, err := f.find(ctx, static(t, "a:8080,b:8080"), "", netip.MustParseAddrPort("[::]:8080"))
	if name != "" || err != context.Canceled {
		t.Errorf("got %q, %v", name, err)
	}
}

// TestSelfLooksUpTogether: many names are looked up together, though not all of them at once.
func TestSelfLooksUpTogether(t *testing.T) {
	f := testMachine()
	var (
		mu           sync.Mutex
		now, most, n int
		full         = make(chan struct{})
	)
	f.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		mu.Lock()
		now++
		most = max(most, now)
		if n++; n == lookupsAtOnce {
			close(full)
		}
		mu.Unlock()
		<-full
		mu.Lock()
		defer mu.Unlock()
		now--
		return nil, nil
	}
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("node%d:8080", i))
	}
	f.find(context.Background(), static(t, strings.Join(names, ",")), "", netip.MustParseAddrPort("[::]:8080"))
	if n != 100 || most != lookupsAtOnce {
		t.Errorf("%d lookups, %d at once", n, most)
	}
}

func TestSelfOnThisMachine(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	listen := ln.Addr().(*net.TCPAddr).AddrPort()
	want := fmt.Sprintf("localhost:%d", listen.Port())
	members := static(t, fmt.Sprintf("%s,localhost:%d", want, listen.Port()^1))
	for _, listen := range []netip.AddrPort{listen, netip.AddrPortFrom(netip.IPv6Unspecified(), listen.Port())} {
		for _, advertise := range []string{"", want, ln.Addr().String()} {
			if name, err := Self(context.Background(), members, advertise, listen); name != want || err != nil {
				t.Errorf("listen %v, advertise %q: got %q, %v", listen, advertise, name, err)
			}
		}
	}
}
