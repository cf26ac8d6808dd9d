package peers

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"weir/limits/wire"
)

// Start names the life of this process, in all calls.
func (s *Set) Start() int64 { return s.start }

// Owner gives the node that owns the limit which id names, "" if it is this one; false while this node doesn't know its
// place.
func (s *Set) Owner(id []byte) (node string, known bool) {
	v := s.View()
	if v == nil {
		return "", false
	}
	if p := v.Owner(id); p != nil {
		return p.name, true
	}
	return "", true
}

// Nodes gives the number of nodes in the list.
func (s *Set) Nodes() int {
	if v := s.View(); v != nil {
		return v.Nodes()
	}
	return 1
}

// Knows says whether there is a node of that name in the list, other than this one.
func (s *Set) Knows(node string) bool {
	p := s.View().peer(node)
	return p != nil && p.left.Load() == 0
}

// Report tells a node what was taken from its limits, and gives the states that it answers with. The error is a [Failure]
// or a [*Rejection].
func (s *Set) Report(ctx context.Context, node string, report *wire.Report) (*wire.StateUpdate, error) {
	answer := new(wire.StateUpdate)
	return answer, s.tell(ctx, node, wire.ReportPath, report, answer, report.Seq == 0)
}

// Publish tells a node the states of limits that this one owns. The error is a [Failure] or a [*Rejection].
func (s *Set) Publish(ctx context.Context, node string, states *wire.StateUpdate) error {
	return s.tell(ctx, node, wire.StatesPath, states, new(struct{}), false)
}

// Ring gives the fingerprint of the present ring, "" before there is one, and the other nodes in it.
func (s *Set) Ring() (fingerprint string, others []string) {
	v := s.View()
	if v == nil {
		return "", nil
	}
	others = slices.DeleteFunc(slices.Clone(v.Names()), func(name string) bool { return name == v.name })
	return v.Fingerprint(), others
}

// Lost says whether this node has owned, since it was last asked, limits that it doesn't own now. The first time it takes it for
// the former owner of all of them: it may have been started with some.
func (s *Set) Lost() (lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.View()
	if v == nil {
		return false
	}
	for p, owner := range v.owners {
		lost = lost || s.held[p] && owner != nil
		s.held[p] = owner == nil
	}
	return lost
}

// Take asks the peer for the states of some limits that it owned before, and gives them in order: whole ones where it has
// none. Calls that come together travel together.
func (p *Peer) Take(ctx context.Context, names []wire.Key) ([]wire.KeyedState, error) {
	if p.health.down.Load() {
		return nil, ErrDown
	}
	states, err := p.takes.Do(ctx, names)
	return states, p.settle(err)
}

func (p *Peer) take(names []wire.Key) ([]wire.KeyedState, error) {
	var answer wire.StateUpdate
	err := p.tell(context.Background(), wire.TakePath, &wire.TakeRequest{Names: names}, &answer)
	if err != ErrUnreachable { // who isn't there yet has nothing to give, and that is no outage
		p.conclude(err)
	}
	if err == nil && len(answer.States) != len(names) {
		return nil, ErrBroken
	}
	return answer.States, err
}

// tell has a node told something, which counts for its health unless it is a mere question whether it is there.
func (s *Set) tell(ctx context.Context, node, path string, message, answer any, question bool) error {
	p := s.named(node)
	if p == nil {
		return ErrUnreachable
	}
	if p.health.down.Load() {
		return ErrDown
	}
	err := p.tell(ctx, path, message, answer)
	if !errors.Is(ctx.Err(), context.Canceled) && (err == nil || !question) {
		p.conclude(err)
	}
	return err
}

// tell sends a message that isn't a group of checks. Unlike those it may be repeated, since it says when it was.
func (p *Peer) tell(ctx context.Context, path string, message, answer any) error {
	body, err := wire.AppendMessage(usedText(), message)
	if err != nil {
		return err
	}
	text, err := p.deliver(ctx, path, body, p.patience(message))
	var status statusError
	if errors.As(err, &status) && status == http.StatusNotFound {
		return ErrRefused // a node of an older version
	}
	if err != nil {
		return p.classify(err)
	}
	if err := wire.Unmarshal(text, answer); err != nil {
		p.set.options.Log.Warn().Str("peer", p.name).Str("path", path).Err(err).Msg("a peer's answer makes no sense")
		p.cause.Store(new(error(ErrBroken)))
		return ErrBroken
	}
	return nil
}

// patience is the time that a call with a message may take. For states that move it is more: nobody waits for them, they keep
// the peer busy while it has much else to do, and whoever has to send them again comes to no end.
func (p *Peer) patience(message any) time.Duration {
	if r, ok := message.(*wire.Report); ok && len(r.States) > 0 {
		return 4 * p.set.options.Timeout
	}
	return p.set.options.Timeout
}
