package server

import (
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

// A group is the items of one request that go to one peer, by their places in it.
type group struct {
	peer   *peers.Peer
	kind   kind
	alone  bool // not to travel with items of other requests
	places []int
}

// A kind is why a peer is asked.
type kind int

const (
	owned   kind = iota // it owns the limits
	shared              // the same, and this node wants a copy
	standIn             // it counts for owners that are out
	former              // it owned the limits until a moment ago, and is to give their states to this node
	again               // it has taken over the limits, as their former owner says
	anyway              // it says so of a node that this one doesn't know; so it is to count itself
)

// decide has each item of x decided by whoever counts it: this node, or the peer that owns the limit, or, while that is
// away, its stand-in. Items for one peer go to it together and in their order.
func (s *Server) decide(ctx context.Context, x *exchange) {
	x.results = slices.Grow(x.results[:0], len(x.requests))[:len(x.requests)]
	x.groups, x.owners = x.groups[:0], x.owners[:0]
	if s.peers == nil {
		s.limiter.CheckAll(x.requests, x.results)
		for i := range x.results {
			x.results[i].Metadata.Owner = s.owner
		}
		return
	}
	s.forward(ctx, x, s.routeAll(x))
}

// routeAll routes all items by the same view, and gives that.
func (s *Server) routeAll(x *exchange) *peers.View {
	view := s.peers.Hold()
	defer s.peers.Release()
	for i := range x.requests {
		s.route(x, i, view)
	}
	return view
}

// route is the switch between the ways of an item. It decides those that are this node's, and puts the others into the
// groups of their peers.
func (s *Server) route(x *exchange, i int, view *peers.View) {
	r := &x.requests[i]
	self := s.name(view)
	if err := s.limiter.Prepare(r, &x.query); err != nil {
		x.results[i] = limits.Result{Error: err.Error(), Metadata: bucket.Metadata{Owner: self}}
		return
	}
	if view == nil {
		x.results[i] = s.degrade(r, self, notReady)
		return
	}
	owner := view.Owner(x.query.ID)
	if owner == nil {
		if p := s.formerOwner(x.query.ID, view); p != nil {
			x.groupOf(p, former).add(i, r)
			return
		}
		s.countOwn(&x.query, r, self, &x.results[i])
		return
	}
	away := x.isAway(owner)
	kind, asked := x.isAsked(owner, r)
	if r.Behavior&bucket.Global != 0 && !asked {
		var ok bool
		if x.results[i], ok = s.global.Check(&x.query, owner.Name(), away); ok {
			return
		}
	}
	if !away {
		x.groupOf(owner, kind).add(i, r)
		return
	}
	if peer := view.StandIn(x.query.ID, owner); peer != nil {
		x.groupOf(peer, standIn).add(i, r)
		return
	}
	s.metrics.standIns.Inc()
	x.results[i] = s.countAway(r, self, ownerOut)
}

func kindOf(r *limits.Request) kind {
	if r.Behavior&bucket.Global != 0 {
		return shared
	}
	return owned
}

// isAsked says whether the owner is asked for an earlier item of the same limit already, so that this one must not be
// decided before it, and has to go the same way, whatever its own would be. Of many it is not worth to find out.
func (x *exchange) isAsked(owner *peers.Peer, r *limits.Request) (way kind, asked bool) {
	const many = 32
	way = kindOf(r)
	for i := range x.groups {
		switch g := &x.groups[i]; {
		case g.peer != owner || g.kind == standIn:
		case g.kind != way && x.has(g, r):
			return g.kind, true
		case g.kind == way && way == shared:
			asked = len(g.places) > many || x.has(g, r)
		}
	}
	return way, asked
}

// has says whether an item of a group is of the same limit as r.
func (x *exchange) has(g *group, r *limits.Request) bool {
	return slices.ContainsFunc(g.places, func(place int) bool {
		return x.requests[place].UniqueKey == r.UniqueKey && x.requests[place].Name == r.Name
	})
}

// An ownerSeen is whether an owner was away when the first of a request's items for it was looked at. That holds for all
// of them, or two for one limit could be counted in two places.
type ownerSeen struct {
	owner *peers.Peer
	away  bool
}

func (x *exchange) isAway(owner *peers.Peer) bool {
	for _, seen := range x.owners {
		if seen.owner == owner {
			return seen.away
		}
	}
	x.owners = append(x.owners, ownerSeen{owner, owner.Away()})
	return x.owners[len(x.owners)-1].away
}

// groupOf gives the group of a peer.
func (x *exchange) groupOf(peer *peers.Peer, kind kind) *group {
	for i := range x.groups {
		if g := &x.groups[i]; g.peer == peer && g.kind == kind {
			return g
		}
	}
	x.groups = append(x.groups, group{peer: peer, kind: kind})
	return &x.groups[len(x.groups)-1]
}

func (g *group) add(place int, r *limits.Request) {
	g.places = append(g.places, place)
	g.alone = g.alone || r.Behavior&bucket.NoBatching != 0
}

// forward has all groups counted by their peers, at the same time.
func (s *Server) forward(ctx context.Context, x *exchange, view *peers.View) {
	if len(x.groups) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.peerTimeout)
	defer cancel()
	var others sync.WaitGroup
	defer others.Wait()
	for i := range x.groups[1:] {
		g := &x.groups[1+i]
		others.Go(func() {
			defer s.contain(x, g)
			s.ask(ctx, x, g, view)
		})
	}
	s.ask(ctx, x, &x.groups[0], view)
}

// contain makes a panic in a goroutine of one group that group's error, since nobody else would catch it.
func (s *Server) contain(x *exchange, g *group) {
	cause := recover()
	if cause == nil {
		return
	}
	s.log.Error().Bytes("stack", debug.Stack()).Msg(fmt.Sprint("panic: ", cause))
	for _, place := range g.places {
		x.results[place] = limits.Result{Error: "internal error"}
	}
}

// ask has one group counted by its peer. Where that is surely not even reached, also because it turned out to be away while
// the group waited, stand-ins are asked instead, once; where nobody can count, the failure policy answers.
func (s *Server) ask(ctx context.Context, x *exchange, g *group, view *peers.View) {
	var err error
	switch g.kind {
	case former:
		s.takeOver(ctx, x.requests, g)
		s.countTaken(ctx, x, g, view)
		return
	case standIn:
		err = s.askPeer(ctx, x, g, ownerOut)
	case shared:
		err = s.askForCopy(ctx, x, g)
	default:
		err = s.askPeer(ctx, x, g, "")
	}
	if err == nil {
		s.followMoved(ctx, x, g, view)
	}
	notReached := err == peers.ErrUnreachable || err == peers.ErrDown && g.peer.Away()
	if notReached && g.kind <= shared {
		for _, others := range s.regroup(x, g, view) {
			s.askStandIn(ctx, x, &others, view)
		}
		return
	}
	s.settle(x, g.places, view, err)
}

// askForCopy has GLOBAL items counted by their owner. If it takes longer than callers of a GLOBAL limit should wait, the
// copies decide. The first time, when there is none yet, it may take as long as any call; the error is for the items that
// are left in g then.
func (s *Server) askForCopy(ctx context.Context, x *exchange, g *group) error {
	var id [bucket.MaxIDBytes]byte
	asked := s.global.Clock()
	if !slices.ContainsFunc(g.places, func(place int) bool { return !s.global.HasCopy(x.requests[place].AppendID(id[:0])) }) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, globalWait)
		defer cancel()
	}
	err := s.askPeer(ctx, x, g, "")
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	g.places = slices.DeleteFunc(g.places, func(place int) (done bool) {
		r := &x.requests[place]
		if r.Behavior&bucket.Global == 0 {
			return false // it came along with one of its limit
		}
		decided, ok := s.global.Missed(s.query(r), g.peer.Name(), asked, !peers.NotCounted(err))
		if ok {
			x.results[place] = decided
		}
		return ok
	})
	return err
}

// learn keeps a copy of what the owner said of a limit.
func (s *Server) learn(r *limits.Request, result *limits.Result, owner string) {
	if r.Behavior&bucket.Global != 0 {
		s.global.Learn(s.query(r), owner, result.State)
	}
}

// formerOwner gives the peer that may still have the state of a limit that this node has become the owner of; nil if there
// is none.
func (s *Server) formerOwner(id []byte, view *peers.View) *peers.Peer {
	p := view.Former(id)
	if p == nil || !s.limiter.State(id).Empty() {
		return nil
	}
	return p
}

// takeOver asks the former owner of some limits for their states. If it doesn't give them in time, they begin anew here, and
// what it sends later is added.
func (s *Server) takeOver(ctx context.Context, requests []limits.Request, g *group) {
	names := make([]wire.Key, len(g.places))
	for i, place := range g.places {
		r := requests[place].Clone()
		names[i] = wire.Key{Name: r.Name, UniqueKey: r.UniqueKey}
	}
	if states, err := g.peer.Take(ctx, names); err == nil {
		s.global.TakeOver(states)
	}
}

// countTaken counts items of limits that were taken over by a view. Those that are another node's by now go there.
func (s *Server) countTaken(ctx context.Context, x *exchange, g *group, by *peers.View) {
	var lost exchange
	view := s.countOwned(x, g, by, &lost)
	for i := range lost.groups {
		s.ask(ctx, x, &lost.groups[i], view)
	}
}

// countOwned counts those that are still this node's, puts the others into groups, and gives the view by which that is so. By
// the view by which they were taken over they are its own, or their former owner takes them for that.
func (s *Server) countOwned(x *exchange, g *group, by *peers.View, lost *exchange) *peers.View {
	view := s.peers.Hold()
	defer s.peers.Release()
	for _, place := range g.places {
		r := &x.requests[place]
		q := s.query(r)
		owner := view.Owner(q.ID)
		if owner != nil && view != by {
			lost.groupOf(owner, again).add(place, r)
			continue
		}
		if owner != nil {
			s.global.LookAgain() // if the lists agree by then, it goes back
		}
		s.countOwn(q, r, s.name(view), &x.results[place])
	}
	return view
}

// followMoved asks again, once, where the peer of a group says that others have taken over the limits.
func (s *Server) followMoved(ctx context.Context, x *exchange, g *group, view *peers.View) {
	var moved exchange
	for _, place := range g.places {
		m := &x.results[place].Metadata
		if m.Reason != bucket.ReasonMoved {
			continue
		}
		r, to := &x.requests[place], m.Owner
		switch peer := view.Peer(to); {
		case to == view.Self(): // which has not heard of it before
			moved.groupOf(g.peer, former).add(place, r)
		case peer == nil || peer.Away() || g.kind == again: // the lists of nodes differ
			moved.groupOf(g.peer, anyway).add(place, r)
		default:
			moved.groupOf(peer, again).add(place, r)
		}
	}
	for i := range moved.groups {
		s.ask(ctx, x, &moved.groups[i], s.peers.View())
	}
}

// globalWait is how long a GLOBAL check that has a copy to fall back on may wait for the owner.
const globalWait = 50 * time.Millisecond

// regroup puts the items of a group whose peer is not reached into the groups of their stand-ins.
func (s *Server) regroup(x *exchange, g *group, view *peers.View) []group {
	var others exchange
	for _, place := range g.places {
		r := &x.requests[place]
		id := r.AppendID(nil)
		others.groupOf(view.StandIn(id, g.peer), standIn).add(place, r)
	}
	return others.groups
}

func (s *Server) askStandIn(ctx context.Context, x *exchange, g *group, view *peers.View) {
	if g.peer != nil {
		s.settle(x, g.places, view, s.askPeer(ctx, x, g, string(peers.ErrUnreachable)))
		return
	}
	s.metrics.standIns.Add(len(g.places))
	for _, place := range g.places {
		x.results[place] = s.countAway(&x.requests[place], s.name(view), string(peers.ErrUnreachable))
	}
}

// askPeer sends a group to its peer and puts the results in their places.
func (s *Server) askPeer(ctx context.Context, x *exchange, g *group, degraded string) error {
	// Copies, strings included: the items may still be on their way when the caller has gone and x is used again.
	items := make([]limits.Request, len(g.places))
	for i, place := range g.places {
		items[i] = x.requests[place].Clone()
		if g.kind == standIn || g.kind == anyway {
			items[i].Behavior |= bucket.StandIn
		}
	}
	results, err := g.peer.Check(ctx, items, g.alone)
	if err != nil {
		return err
	}
	if degraded != "" {
		s.metrics.standIns.Add(len(g.places))
	}
	for i, place := range g.places {
		result := &results[i]
		if result.Metadata.Reason != bucket.ReasonMoved {
			if g.kind != standIn {
				s.learn(&x.requests[place], result, g.peer.Name())
			}
			result.State = nil // not the client's
			result.Metadata.Owner, result.Metadata.Degraded = g.peer.Name(), degraded
		}
		x.results[place] = *result
	}
	return nil
}

// settle answers items that nobody counted.
func (s *Server) settle(x *exchange, places []int, view *peers.View, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return // decided; or the client has gone, and nobody reads this
	}
	var rejection *peers.Rejection
	failure := peers.ErrBroken
	errors.As(err, &failure)
	for _, place := range places {
		if errors.As(err, &rejection) {
			x.results[place] = limits.Result{Error: rejection.Error(), Metadata: bucket.Metadata{Owner: s.name(view)}}
		} else {
			x.results[place] = s.degrade(&x.requests[place], s.name(view), string(failure))
		}
	}
}

// name is how this node is called in answers: as the list spells it, or as it would call itself.
func (s *Server) name(view *peers.View) string {
	if view == nil || view.Self() == "" {
		return s.owner
	}
	return view.Self()
}

// query gives the query of an item that is known to be valid.
func (s *Server) query(r *limits.Request) *bucket.Query {
	q := new(bucket.Query)
	s.limiter.Prepare(r, q)
	return q
}

// countOwn counts an item of a limit that this node owns.
func (s *Server) countOwn(q *bucket.Query, r *limits.Request, self string, result *limits.Result) {
	*result = s.limiter.Check(*r)
	result.Metadata.Owner = self
	if result.Status != limits.StatusError {
		s.global.Changed(q)
	}
}

// countAway counts an item here that another node should count, and will hear of if it hasn't.
func (s *Server) countAway(r *limits.Request, owner, degraded string) limits.Result {
	result := s.global.Count(s.query(r), peers.NotCounted(peers.Failure(degraded)))
	result.Metadata.Owner, result.Metadata.Degraded = owner, degraded
	return result
}

// The words in metadata.degraded that are not failures of a peer.
const (
	notReady = "not_ready" // this node doesn't know its place in the cluster
	ownerOut = "owner_out" // the owner hasn't answered for seconds, and another node counts for it
)

// A Policy says what an item is answered while nobody can count it.
type Policy string

// The policies.
const (
	PolicyLocal  Policy = "local"  // this node counts, with the same limit
	PolicyOpen   Policy = "open"   // OK
	PolicyClosed Policy = "closed" // OVER_LIMIT
)

// degrade answers an item by the failure policy.
func (s *Server) degrade(r *limits.Request, self, why string) limits.Result {
	s.metrics.degrade(why)
	if s.policy == PolicyLocal {
		return s.countAway(r, self, why)
	}
	now := s.limiter.Now().UnixMilli()
	result := limits.Result{Status: limits.StatusOK, Limit: r.Limit, Remaining: r.Limit, ResetTime: now + 1}
	if s.policy == PolicyClosed {
		wait := peers.ProbeEvery.Milliseconds()
		result = limits.Result{Status: limits.StatusOverLimit, Limit: r.Limit, ResetTime: now + wait + 1, RetryAfter: wait}
	}
	result.Metadata.Degraded = why
	return result
}
