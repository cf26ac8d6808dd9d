package node

import (
	"context"
	"net/http"
	"sync"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
	"weir/peers"
)

// A Caller is a peer that asks this node to count.
type Caller struct {
	Name  string
	Start int64  // of its process; 0 from a version that doesn't say it
	Ring  string // the fingerprint of its ring
}

// Count counts here whatever a peer asks, and never forwards. So nodes with different lists can't send an item in
// circles. It overwrites the results, as many as there are requests, and clears the flags of requests that are for
// nodes only. The node must have peers.
func (n *Node) Count(ctx context.Context, from Caller, requests []limits.Request, results []limits.Result) {
	c := n.newCall(requests, results)
	defer c.release()
	c.countAllFor(ctx, from)
	n.metrics.peer.Add(len(results))
}

// countAllFor counts all items, by the view by which it has taken over what there is to take over.
func (c *call) countAllFor(ctx context.Context, from Caller) {
	for tries := 3; ; tries-- {
		view := c.peers.View()
		c.takeOverFor(ctx, view, from)
		if c.tryCount(view, from, tries == 0 || ctx.Err() != nil) {
			return
		}
	}
}

// tryCount counts all items by a view, unless another one has come meanwhile and it isn't to count anyway. It reports
// whether it has counted.
func (c *call) tryCount(view *peers.View, from Caller, anyway bool) bool {
	held := c.peers.Hold()
	defer c.peers.Release()
	if held != view && !anyway {
		return false
	}
	c.own = c.own[:0]
	for i := range c.requests {
		c.routeFor(i, held)
	}
	c.countOwn(c.own, "") // the caller knows the node that it asked
	if from.Start != 0 {
		c.shareWith(from)
	}
	return true
}

// routeFor notes an item of another node that is this one's to count. An item that belongs to a third node is answered
// with that node's name; or it is counted, if that is asked all the same, and the third node hears of it.
func (c *call) routeFor(i int, view *peers.View) {
	r, q, result := &c.requests[i], &c.queries[i], &c.results[i]
	standIn := r.Behavior&bucket.StandIn != 0
	r.Behavior &^= bucket.StandIn
	if err := c.limiter.Prepare(r, q); err != nil {
		*result = limits.Result{Error: err.Error()}
		return
	}
	var owner *peers.Peer
	if view != nil {
		owner = view.Owner(q.ID)
	}
	switch {
	case view != nil && owner == nil:
		c.own = append(c.own, i)
	case view != nil && !standIn:
		*result = limits.Result{Error: "moved", Metadata: bucket.Metadata{Owner: owner.Name(), Reason: bucket.ReasonMoved}}
	default:
		*result = c.global.Count(q, true)
	}
}

// shareWith adds to the results of GLOBAL items that were counted the states of their limits, of which the caller keeps
// copies.
func (c *call) shareWith(from Caller) {
	for _, i := range c.own {
		if q := &c.queries[i]; q.Behavior&bucket.Global != 0 {
			c.results[i].State = c.global.Share(q, from.Name, from.Start)
		}
	}
}

// takeOverFor takes over the states of limits that another node asks for, where this one has become their owner. Where
// only the other one, which has another list, thinks so, it listens to the owner by this node's list: that may be about
// to leave.
func (c *call) takeOverFor(ctx context.Context, view *peers.View, from Caller) {
	c.groups = c.groups[:0]
	differ := view != nil && view.Fingerprint() != from.Ring
	if view == nil || view.Settled() && !differ {
		return
	}
	for i := range c.requests {
		r := c.requests[i]
		standIn := r.Behavior&bucket.StandIn != 0
		r.Behavior &^= bucket.StandIn
		q := &c.queries[i]
		if c.limiter.Prepare(&r, q) != nil {
			continue
		}
		if owner := view.Owner(q.ID); owner != nil && differ && !standIn {
			c.groups.of(owner, askOwner)
		} else if p := c.formerOwner(q.ID, view); p != nil {
			c.groups.of(p, askFormerOwner).add(i, q)
		}
	}
	if len(c.groups) > 0 {
		c.askOthers(ctx)
	}
}

// askOthers takes over what the former owners have, and listens to the owners.
func (c *call) askOthers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout/2) // the caller waits as long
	defer cancel()
	var calls sync.WaitGroup
	for i := range c.groups {
		calls.Go(func() {
			g := &c.groups[i]
			defer c.contain(g)
			if g.kind == askFormerOwner {
				c.takeOver(ctx, c.requests, g)
			} else {
				g.peer.Ping(ctx)
			}
		})
	}
	calls.Wait()
}

// HasPeers reports whether the node is one of a cluster. The functions below are for one that is.
func (n *Node) HasPeers() bool { return n.peers != nil }

// ObservePeer takes note of what a peer says of itself in the header of a call, which may change the list of nodes.
func (n *Node) ObservePeer(h http.Header) { n.peers.Observe(h.Get(wire.HeaderFrom), h) }

// SetHeaders says in the header of an answer what this node says of itself, by the list that it has by now.
func (n *Node) SetHeaders(h http.Header) {
	if n.peers.View() != nil {
		n.peers.SetHeaders(h)
	}
}

// Receive counts what a peer took from limits of this node, once however often it is repeated, and returns the states
// of which the peer keeps copies. The report is the caller's again when Receive returns.
func (n *Node) Receive(from string, report *wire.Report) *wire.StateUpdate {
	return n.global.Receive(from, report)
}

// Publish takes over what a peer tells of limits that it owns, where this node keeps copies of them.
func (n *Node) Publish(from string, states *wire.StateUpdate) { n.global.Published(from, states) }

// Give returns the states of limits that a peer has become the owner of, in order, and counts them no more.
func (n *Node) Give(to string, names []wire.Key) *wire.StateUpdate { return n.global.Give(to, names) }
