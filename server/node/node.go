// Package node is one member of a cluster of weir, or a weir that is alone, as a value that a program can hold. It
// decides on requests or has the owners of their limits decide, it counts for its peers, and it joins and leaves the
// cluster.
//
// It needs no HTTP server: package server puts doors in front of it, through which clients and peers come.
package node

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"weir/global"
	"weir/limits"
	"weir/peers"
	"weir/peers/discovery"
)

// Options says how a [Node] works. Zero values of all fields are useful.
type Options struct {
	Advertise string           // how peers reach this node, host:port, and its name; "" means by Listen
	Listen    netip.AddrPort   // where peers reach it on this machine, by which it finds itself in a list
	Now       func() time.Time // must be quick; nil means time.Now
	Log       zerolog.Logger   // the zero Logger discards
	CacheSize int              // limits to remember at most; 0 means 1,000,000
	Cluster   *Cluster         // nil for a node that is alone
	Policy    Policy           // "" means PolicyLocal
	Snapshot  string           // file to keep counts in while the node doesn't run; "" for none
	TuneGC    bool             // adapt the garbage collector to the node: for a process that does little else
}

// A Cluster says which nodes there are, and how a node works with the others. The zero value is for a node that learns
// from outside which nodes there are, by [peers.Set.Update].
type Cluster struct {
	peers.Options // how to call peers; Log is replaced by the node's

	Members []discovery.Member // a fixed list of all nodes, in which this one must find itself
	SRV     *discovery.SRV     // or the DNS records that list them
	Refresh time.Duration      // how often to ask for those; 0 means 10 s

	GlobalInterval time.Duration // between messages about GLOBAL limits; 0 means 100 ms
	GlobalSlack    float64       // the part of a GLOBAL limit that may pass beyond it, from 0 to 1
	GlobalSize     int           // limits to keep copies and debts of; 0 means a tenth of CacheSize, since they are larger
}

// A Node is one member of a cluster, or alone. It is safe for concurrent use.
type Node struct {
	name     string // while no list names it
	log      zerolog.Logger
	policy   Policy
	snapshot snapshot
	limiter  *limits.Limiter
	metrics  *metrics
	calls    sync.Pool // of *call

	peers   *peers.Set     // nil for a node that is alone
	global  *global.Syncer // the same
	timeout time.Duration  // how long an item may wait for a peer

	loops         []func(context.Context) // what Run runs
	running       sync.Mutex              // held while it does
	leaving       chan struct{}           // closed when the node begins to leave
	closed        context.Context         // ends with Close
	end           context.CancelFunc
	leave, finish sync.Once
}

// New makes a Node that has read its snapshot, and knows its place in a fixed list. It does nothing by itself before
// Run. The error is that of [peers.Set.Static]: the node isn't in the list.
func New(o Options) (*Node, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.CacheSize = cmp.Or(o.CacheSize, 1_000_000)
	n := &Node{
		name: ownName(o.Advertise, o.Listen), log: o.Log, policy: cmp.Or(o.Policy, PolicyLocal),
		snapshot: snapshot{o.Snapshot, o.Log}, limiter: limits.New(o.CacheSize, o.Now), leaving: make(chan struct{}),
	}
	n.calls.New = func() any { return &call{Node: n} }
	n.closed, n.end = context.WithCancel(context.Background())
	n.loops = append(n.loops, n.limiter.Run)
	if o.TuneGC {
		limitMemory(o.CacheSize, o.Log)
		n.loops = append(n.loops, func(ctx context.Context) { tuneGC(ctx, n.leaving, n.taken) })
	}
	if o.Cluster != nil {
		if err := n.join(&o, *o.Cluster); err != nil {
			return nil, err
		}
	}
	n.newMetrics()
	n.snapshot.load(n.limiter)
	return n, nil
}

// join makes the node one of a cluster.
func (n *Node) join(o *Options, c Cluster) error {
	c.Options.Log = o.Log
	n.timeout = cmp.Or(c.Timeout, 500*time.Millisecond)
	n.peers = peers.New(c.Options)
	n.global = global.New(global.Options{
		Limiter: n.limiter, Away: limits.New(o.CacheSize, o.Now), Cluster: n.peers, Log: o.Log,
		Size: cmp.Or(c.GlobalSize, max(1, o.CacheSize/10)), Interval: c.GlobalInterval, Slack: c.GlobalSlack,
	})
	n.loops = append(n.loops, n.global.Run)
	if c.SRV != nil {
		refresh := cmp.Or(c.Refresh, 10*time.Second)
		n.loops = append(n.loops, func(ctx context.Context) { n.peers.Follow(ctx, c.SRV, refresh, o.Advertise, o.Listen) })
	}
	if len(c.Members) == 0 {
		return nil
	}
	err := n.peers.Static(context.Background(), c.Members, o.Advertise, o.Listen)
	if err != nil {
		n.peers.Close()
	}
	return err
}

// ownName returns what a node calls itself that no list names: what it is told, else an address at which others could
// reach it.
func ownName(advertise string, listen netip.AddrPort) string {
	if advertise != "" || !listen.IsValid() {
		return advertise
	}
	host := listen.Addr().String()
	if listen.Addr().IsUnspecified() {
		host = outwardIP()
	}
	return net.JoinHostPort(host, strconv.Itoa(int(listen.Port())))
}

// outwardIP returns this machine's first address that others could reach, IPv4 before IPv6, or the loopback address.
func outwardIP() string {
	addrs, _ := net.InterfaceAddrs() // none is as good as an error
	var found net.IP
	for _, addr := range addrs {
		n, ok := addr.(*net.IPNet)
		if ok && n.IP.IsGlobalUnicast() && (found == nil || found.To4() == nil && n.IP.To4() != nil) {
			found = n.IP
		}
	}
	if found == nil {
		return "127.0.0.1"
	}
	return found.String()
}

// nameIn returns how this node is called in answers: as the list spells it, or as it would call itself.
func (n *Node) nameIn(view *peers.View) string {
	if view == nil || view.Self() == "" {
		return n.name
	}
	return view.Self()
}

// Limiter returns what counts the limits that this node owns, for programs that use it without the cluster.
func (n *Node) Limiter() *limits.Limiter { return n.limiter }

// Peers returns the nodes of the cluster, as this one sees them; nil for a node that is alone.
func (n *Node) Peers() *peers.Set { return n.peers }

// Global returns what keeps counts in step with other nodes; nil for a node that is alone.
func (n *Node) Global() *global.Syncer { return n.global }

// taken returns how many limits this node has taken over from others.
func (n *Node) taken() uint64 {
	if n.global == nil {
		return 0
	}
	return n.global.Taken()
}

// A Status is the cluster as one node sees it. Its JSON is the answer of /v1/peers.
type Status struct {
	Ready     bool             `json:"-"` // the node knows its place
	Size      int              `json:"-"` // nodes in the ring; 1 for a node that is alone
	Self      string           `json:"self"`
	Ring      string           `json:"ring,omitzero"` // the fingerprint of the list
	Nodes     []peers.Status   `json:"nodes"`
	Discovery *peers.Discovery `json:"discovery,omitzero"`
}

// Status returns the present one.
func (n *Node) Status() Status {
	s := Status{Ready: true, Size: 1, Self: n.name, Nodes: []peers.Status{}}
	if n.peers == nil {
		return s
	}
	s.Ready, s.Size, s.Discovery = false, 0, n.peers.Discovery()
	if view := n.peers.View(); view != nil {
		s.Ready, s.Size, s.Self = view.Self() != "", view.Nodes(), n.nameIn(view)
		s.Ring, s.Nodes = view.Fingerprint(), view.Status()
	}
	return s
}
