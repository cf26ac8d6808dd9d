package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
	"weir/peers"
)

// A call is the items of one call on their way to the nodes that count them. Its memory is used again by later ones.
type call struct {
	*Node
	requests []limits.Request // the caller's
	results  []limits.Result  // the caller's, one for each request
	queries  []bucket.Query   // of the requests: each is prepared once, and that is what travels on
	own      []int            // places of the items that this node counts
	groups   groups           // of items for peers
	owners   []ownerSeen      // of items, with what was found of them
}

func (n *Node) newCall(requests []limits.Request, results []limits.Result) *call {
	c := n.calls.Get().(*call)
	c.requests, c.results = requests, results[:len(requests)]
	if more := len(requests) - cap(c.queries); more > 0 { // the old ones stay, with the memory of their ids
		c.queries = append(c.queries[:cap(c.queries)], make([]bucket.Query, more)...)
	}
	c.queries = c.queries[:len(requests)]
	return c
}

// release makes the memory of c free for others. It must not keep alive what belongs to the caller, or peers that have
// gone.
func (c *call) release() {
	clear(c.groups)
	clear(c.owners)
	c.requests, c.results, c.own, c.groups, c.owners = nil, nil, c.own[:0], c.groups[:0], c.owners[:0]
	c.calls.Put(c)
}

// A group is the items of one call that go to one peer, by their places in it.
type group struct {
	peer      *peers.Peer
	kind      kind
	unbatched bool // not to travel with items of other calls
	places    []int
}

// groups are those of one call, each with another peer or of another kind.
type groups []group

// A kind is why a peer is asked.
type kind int

const (
	askOwner        kind = iota // it owns the limits
	askOwnerForCopy             // the same, and this node wants a copy
	askStandIn                  // it counts for owners that are out
	askFormerOwner              // it owned the limits until a moment ago, and is to give their states to this node
	askNewOwner                 // it has taken over the limits, as their former owner says
	askDespiteRing              // it says so of a node that this one doesn't know; so it is to count itself
)

// Check decides on any number of items, each by the node that counts it: this one, or the peer that owns the limit, or,
// while that is away, its stand-in. It returns their results in order; items of the same limit are decided in their
// order. When ctx ends, items that wait for peers become errors, though they may still be counted.
func (n *Node) Check(ctx context.Context, requests []limits.Request) []limits.Result {
	results := make([]limits.Result, len(requests))
	n.CheckAll(ctx, requests, results)
	return results
}

// CheckAll is Check for callers that have memory for the results, as many as there are requests. Whatever is in it is
// overwritten. What was read from the caller's memory is not used any more when CheckAll returns.
func (n *Node) CheckAll(ctx context.Context, requests []limits.Request, results []limits.Result) {
	for len(requests) > wire.MaxItems { // which is what a message to a peer takes
		n.CheckAll(ctx, requests[:wire.MaxItems], results)
		requests, results = requests[wire.MaxItems:], results[wire.MaxItems:]
	}
	if n.peers == nil {
		n.limiter.CheckAll(requests, results)
		for i := range results {
			results[i].Metadata.Owner = n.name
		}
	} else {
		c := n.newCall(requests, results)
		defer c.release()
		c.forward(ctx, c.routeAll())
	}
	n.metrics.count(requests, results)
}

// routeAll routes all items by the same view, and returns that.
func (c *call) routeAll() *peers.View {
	view := c.peers.Hold()
	defer c.peers.Release()
	for i := range c.requests {
		c.route(i, view)
	}
	c.countOwn(c.own, c.nameIn(view))
	return view
}

// route is the switch between the ways of an item: it notes those that are this node's, and puts the others into the
// groups of their peers.
func (c *call) route(i int, view *peers.View) {
	q, self := &c.queries[i], c.nameIn(view)
	if err := c.limiter.Prepare(&c.requests[i], q); err != nil {
		c.results[i] = limits.Result{Error: err.Error(), Metadata: bucket.Metadata{Owner: self}}
		return
	}
	if view == nil {
		c.results[i] = c.degrade(q, self, notReady)
		return
	}
	owner := view.Owner(q.ID)
	if owner == nil {
		if p := c.formerOwner(q.ID, view); p != nil {
			c.groups.of(p, askFormerOwner).add(i, q)
			return
		}
		c.own = append(c.own, i)
		return
	}
	away := c.isAway(owner)
	kind, asked := c.isAsked(owner, q)
	if q.Behavior&bucket.Global != 0 && !asked {
		var ok bool
		if c.results[i], ok = c.global.Check(q, owner.Name(), away); ok {
			return
		}
	}
	if !away {
		c.groups.of(owner, kind).add(i, q)
		return
	}
	if peer := view.StandIn(q.ID, owner); peer != nil {
		c.groups.of(peer, askStandIn).add(i, q)
		return
	}
	c.metrics.standIns.Inc()
	c.results[i] = c.countAway(q, self, ownerOut)
}

// isAsked reports whether the owner is asked for an earlier item of the same limit already: then this one must not be
// decided before it, and has to go the same way, whatever its own would be. Among many items that is not worth finding
// out.
func (c *call) isAsked(owner *peers.Peer, q *bucket.Query) (way kind, asked bool) {
	const many = 32
	if way = askOwner; q.Behavior&bucket.Global != 0 {
		way = askOwnerForCopy
	}
	for i := range c.groups {
		switch g := &c.groups[i]; {
		case g.peer != owner || g.kind == askStandIn:
		case g.kind != way && c.has(g, q):
			return g.kind, true
		case g.kind == way && way == askOwnerForCopy:
			asked = len(g.places) > many || c.has(g, q)
		}
	}
	return way, asked
}

// has reports whether an item of a group is of the same limit as q.
func (c *call) has(g *group, q *bucket.Query) bool {
	return slices.ContainsFunc(g.places, func(place int) bool { return bytes.Equal(c.queries[place].ID, q.ID) })
}

// An ownerSeen is whether an owner was away when the first of a call's items for it was looked at. That holds for all
// of them, or two for one limit could be counted in two places.
type ownerSeen struct {
	owner *peers.Peer
	away  bool
}

func (c *call) isAway(owner *peers.Peer) bool {
	for _, seen := range c.owners {
		if seen.owner == owner {
			return seen.away
		}
	}
	c.owners = append(c.owners, ownerSeen{owner, owner.Away()})
	return c.owners[len(c.owners)-1].away
}

// of returns the group of a peer, a new one if need be. It is good until the next call of of.
func (gs *groups) of(peer *peers.Peer, kind kind) *group {
	for i := range *gs {
		if g := &(*gs)[i]; g.peer == peer && g.kind == kind {
			return g
		}
	}
	*gs = append(*gs, group{peer: peer, kind: kind})
	return &(*gs)[len(*gs)-1]
}

func (g *group) add(place int, q *bucket.Query) {
	g.places = append(g.places, place)
	g.unbatched = g.unbatched || q.Behavior&bucket.NoBatching != 0
}

// forward has all groups counted by their peers, at the same time.
func (c *call) forward(ctx context.Context, view *peers.View) {
	if len(c.groups) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var others sync.WaitGroup
	defer others.Wait()
	for i := range c.groups[1:] {
		g := &c.groups[1+i]
		others.Go(func() {
			defer c.contain(g)
			c.ask(ctx, g, view)
		})
	}
	c.ask(ctx, &c.groups[0], view)
}

// contain makes a panic in the goroutine of one group that group's error, since nothing else would catch it.
func (c *call) contain(g *group) {
	cause := recover()
	if cause == nil {
		return
	}
	c.log.Error().Bytes("stack", debug.Stack()).Msg(fmt.Sprint("panic: ", cause))
	for _, place := range g.places {
		c.results[place] = limits.Result{Error: "internal error"}
	}
}

// ask has one group counted by its peer. Where that is surely not even reached, also because it turned out to be away
// while the group waited, stand-ins are asked instead, once; where no node can count, the failure policy answers.
func (c *call) ask(ctx context.Context, g *group, view *peers.View) {
	var err error
	switch g.kind {
	case askFormerOwner:
		c.takeOver(ctx, c.requests, g)
		c.countTaken(ctx, g, view)
		return
	case askStandIn:
		err = c.askPeer(ctx, g, ownerOut)
	case askOwnerForCopy:
		err = c.askOrUseCopy(ctx, g)
	default:
		err = c.askPeer(ctx, g, "")
	}
	if err == nil {
		c.followMoved(ctx, g, view)
	}
	notReached := err == peers.ErrUnreachable || err == peers.ErrDown && g.peer.Away()
	if notReached && g.kind <= askOwnerForCopy {
		for _, others := range c.regroup(g, view) {
			c.useStandIn(ctx, &others, view)
		}
		return
	}
	c.settle(g.places, view, err)
}

// askOrUseCopy has GLOBAL items counted by their owner. If it takes longer than callers of a GLOBAL limit should wait,
// the copies decide. The first time, when there is none yet, it may take as long as any call; the error is for the
// items that are left in g then.
func (c *call) askOrUseCopy(ctx context.Context, g *group) error {
	asked := c.global.Clock()
	if !slices.ContainsFunc(g.places, func(place int) bool { return !c.global.HasCopy(c.queries[place].ID) }) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, globalWait)
		defer cancel()
	}
	err := c.askPeer(ctx, g, "")
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	g.places = slices.DeleteFunc(g.places, func(place int) (done bool) {
		q := &c.queries[place]
		if q.Behavior&bucket.Global == 0 {
			return false // it came along with one of its limit
		}
		decided, ok := c.global.Missed(q, g.peer.Name(), asked, !peers.NotCounted(err))
		if ok {
			c.results[place] = decided
		}
		return ok
	})
	return err
}

// formerOwner returns the peer that may still have the state of a limit that this node has become the owner of; nil if
// there is none.
func (n *Node) formerOwner(id []byte, view *peers.View) *peers.Peer {
	p := view.Former(id)
	if p == nil || !n.limiter.State(id).Empty() {
		return nil
	}
	return p
}

// takeOver asks the former owner of some limits for their states. If it doesn't give them in time, they begin anew
// here, and what it sends later is added.
func (n *Node) takeOver(ctx context.Context, requests []limits.Request, g *group) {
	names := make([]wire.Key, len(g.places))
	for i, place := range g.places {
		r := requests[place].Clone()
		names[i] = wire.Key{Name: r.Name, UniqueKey: r.UniqueKey}
	}
	if states, err := g.peer.Take(ctx, names); err == nil {
		n.global.TakeOver(states)
	}
}

// countTaken counts items of limits that were taken over by a view. Those that are another node's by now go there.
func (c *call) countTaken(ctx context.Context, g *group, by *peers.View) {
	var lost groups
	view := c.countOwned(g, by, &lost)
	for i := range lost {
		c.ask(ctx, &lost[i], view)
	}
}

// countOwned counts those that are still this node's, puts the others into groups, and returns the view by which that
// is so. By the view by which they were taken over they are its own, or their former owner takes them for that.
func (c *call) countOwned(g *group, by *peers.View, lost *groups) *peers.View {
	view := c.peers.Hold()
	defer c.peers.Release()
	own := make([]int, 0, len(g.places))
	for _, place := range g.places {
		q := &c.queries[place]
		owner := view.Owner(q.ID)
		if owner != nil && view != by {
			lost.of(owner, askNewOwner).add(place, q)
			continue
		}
		if owner != nil {
			c.global.LookAgain() // if the lists agree by then, it goes back
		}
		own = append(own, place)
	}
	c.countOwn(own, c.nameIn(view))
	return view
}

// followMoved asks again, once, where the peer of a group says that others have taken over the limits.
func (c *call) followMoved(ctx context.Context, g *group, view *peers.View) {
	var moved groups
	for _, place := range g.places {
		m := &c.results[place].Metadata
		if m.Reason != bucket.ReasonMoved {
			continue
		}
		q, to := &c.queries[place], m.Owner
		switch peer := view.Peer(to); {
		case to == view.Self(): // which has not heard of it before
			moved.of(g.peer, askFormerOwner).add(place, q)
		case peer == nil || peer.Away() || g.kind == askNewOwner: // the lists of nodes differ
			moved.of(g.peer, askDespiteRing).add(place, q)
		default:
			moved.of(peer, askNewOwner).add(place, q)
		}
	}
	for i := range moved {
		c.ask(ctx, &moved[i], c.peers.View())
	}
}

// globalWait is how long a GLOBAL check that has a copy to fall back on may wait for the owner.
const globalWait = 50 * time.Millisecond

// regroup returns the items of a group whose peer is not reached in the groups of their stand-ins.
func (c *call) regroup(g *group, view *peers.View) (others groups) {
	for _, place := range g.places {
		q := &c.queries[place]
		others.of(view.StandIn(q.ID, g.peer), askStandIn).add(place, q)
	}
	return others
}

// useStandIn has a group counted by its peer for an owner that was not reached, or by this node if there is no peer.
func (c *call) useStandIn(ctx context.Context, g *group, view *peers.View) {
	if g.peer != nil {
		c.settle(g.places, view, c.askPeer(ctx, g, string(peers.ErrUnreachable)))
		return
	}
	c.metrics.standIns.Add(len(g.places))
	for _, place := range g.places {
		c.results[place] = c.countAway(&c.queries[place], c.nameIn(view), string(peers.ErrUnreachable))
	}
}

// askPeer sends a group to its peer and puts the results in their places.
func (c *call) askPeer(ctx context.Context, g *group, degraded string) error {
	// Copies, strings included: the items may still be on their way when the caller has gone and its memory is used again.
	items := make([]limits.Request, len(g.places))
	for i, place := range g.places {
		items[i] = c.requests[place].Clone()
		if g.kind == askStandIn || g.kind == askDespiteRing {
			items[i].Behavior |= bucket.StandIn
		}
	}
	results, err := g.peer.Check(ctx, items, g.unbatched)
	if err != nil {
		return err
	}
	if degraded != "" {
		c.metrics.standIns.Add(len(g.places))
	}
	for i, place := range g.places {
		result := &results[i]
		if result.Metadata.Reason != bucket.ReasonMoved {
			if q := &c.queries[place]; g.kind != askStandIn && q.Behavior&bucket.Global != 0 {
				c.global.Learn(q, g.peer.Name(), result.State) // the copy is what the owner said
			}
			result.State = nil // not the client's
			result.Metadata.Owner, result.Metadata.Degraded = g.peer.Name(), degraded
		}
		c.results[place] = *result
	}
	return nil
}

// settle answers items that no node has counted.
func (c *call) settle(places []int, view *peers.View, err error) {
	if err == nil {
		return
	}
	var rejection *peers.Rejection
	failure := peers.ErrBroken
	errors.As(err, &failure)
	for _, place := range places {
		switch {
		case errors.Is(err, context.Canceled): // which only a caller that is gone does
			c.results[place] = limits.Result{Error: err.Error()}
		case errors.As(err, &rejection):
			c.results[place] = limits.Result{Error: rejection.Error(), Metadata: bucket.Metadata{Owner: c.nameIn(view)}}
		default:
			c.results[place] = c.degrade(&c.queries[place], c.nameIn(view), string(failure))
		}
	}
}

// countOwn counts items of limits that this node owns, in their order. self is what the results name as the owner.
func (c *call) countOwn(places []int, self string) {
	c.limiter.CheckPrepared(c.queries, places, c.results)
	for _, place := range places {
		c.results[place].Metadata.Owner = self
		c.global.Changed(&c.queries[place])
	}
}

// countAway counts an item here that another node should count, and will hear of if it hasn't.
func (n *Node) countAway(q *bucket.Query, self, degraded string) limits.Result {
	result := n.global.Count(q, peers.NotCounted(peers.Failure(degraded)))
	result.Metadata.Owner, result.Metadata.Degraded = self, degraded
	return result
}

// The words in metadata.degraded that are not failures of a peer.
const (
	notReady = "not_ready" // this node doesn't know its place in the cluster
	ownerOut = "owner_out" // the owner hasn't answered for seconds, and another node counts for it
)

// A Policy says what an item is answered while no node can count it.
type Policy string

// The policies.
const (
	PolicyLocal  Policy = "local"  // this node counts, with the same limit
	PolicyOpen   Policy = "open"   // OK
	PolicyClosed Policy = "closed" // OVER_LIMIT
)

// degrade answers an item by the failure policy.
func (n *Node) degrade(q *bucket.Query, self, why string) limits.Result {
	n.metrics.degraded[why].Inc()
	if n.policy == PolicyLocal {
		return n.countAway(q, self, why)
	}
	now := n.limiter.Now().UnixMilli()
	result := limits.Result{Status: limits.StatusOK, Limit: q.Limit, Remaining: q.Limit, ResetTime: now + 1}
	if n.policy == PolicyClosed {
		wait := peers.ProbeEvery.Milliseconds()
		result = limits.Result{Status: limits.StatusOverLimit, Limit: q.Limit, ResetTime: now + wait + 1, RetryAfter: wait}
	}
	result.Metadata.Degraded = why
	return result
}
