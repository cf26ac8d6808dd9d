package node

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"weir/limits"
	"weir/peers"
)

func alone(t *testing.T, o Options) *Node {
	t.Helper()
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRunEnds: Run ends with its context, and with the node.
func TestRunEnds(t *testing.T) {
	n := alone(t, Options{CacheSize: 10})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	run := func(ctx context.Context) {
		n.Run(ctx)
		ended <- struct{}{}
	}
	go run(ctx)
	cancel()
	<-ended
	go run(t.Context())
	n.Close()
	<-ended
	n.Close()
	n.Run(t.Context()) // of a node that is closed
}

// TestCheckAllAllocatesNothing: not for limits that there are already.
func TestCheckAllAllocatesNothing(t *testing.T) {
	n := alone(t, Options{CacheSize: 10})
	requests := []limits.Request{{Name: "n", UniqueKey: "k", Hits: 1, Limit: 1_000_000, Duration: 3_600_000}}
	results := make([]limits.Result, 1)
	if allocs := testing.AllocsPerRun(100, func() { n.CheckAll(t.Context(), requests, results) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// TestOwnName: the name that a node finds for itself must be one at which others could reach it.
func TestOwnName(t *testing.T) {
	for _, test := range []struct{ advertise, listen, want string }{
		{"", "127.0.0.1:80", "127.0.0.1:80"},
		{"", "[::1]:80", "[::1]:80"},
		{"", "0.0.0.0:80", netip.AddrPortFrom(netip.MustParseAddr(outwardIP()), 80).String()},
		{"", "[::]:80", netip.AddrPortFrom(netip.MustParseAddr(outwardIP()), 80).String()},
		{"weir-1.example:8080", "[::]:80", "weir-1.example:8080"},
	} {
		n := alone(t, Options{Advertise: test.advertise, Listen: netip.MustParseAddrPort(test.listen)})
		if got := n.Status(); got.Self != test.want || !got.Ready || got.Size != 1 {
			t.Errorf("%+v: %+v", test, got)
		}
	}
}

// TestStaticList: a node finds itself in a fixed list, or says that it can't.
func TestStaticList(t *testing.T) {
	list := []peers.Member{{Name: "127.0.0.1:80"}, {Name: "192.0.2.1:80"}}
	o := Options{Listen: netip.MustParseAddrPort("127.0.0.1:80"), Cluster: &Cluster{Members: list}, Now: time.Now}
	n := alone(t, o)
	if s := n.Status(); s.Self != list[0].Name || s.Size != 2 || len(s.Nodes) != 2 || !s.Ready ||
		s.Discovery == nil || s.Discovery.Source != "static" {
		t.Errorf("%+v", s)
	}
	n.Close()
	o.Listen = netip.MustParseAddrPort("127.0.0.1:81")
	if _, err := New(o); err == nil {
		t.Error("it found itself where it isn't")
	}
}
