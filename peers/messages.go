package peers

import (
	"context"
	"errors"
	"net/http"
	"time"
	"weir/limits/wire"
)

// Report tells a node what was taken from its limits, and returns the states that it answers with. The error is a
// [Failure] or a [*Rejection].
func (s *Set) Report(ctx context.Context, node string, report *wire.Report) (*wire.StateUpdate, error) {
	answer := new(wire.StateUpdate)
	return answer, s.tell(ctx, node, wire.ReportPath, report, answer, report.Seq == 0)
}

// Publish tells a node the states of limits that this one owns. The error is a [Failure] or a [*Rejection].
func (s *Set) Publish(ctx context.Context, node string, states *wire.StateUpdate) error {
	return s.tell(ctx, node, wire.StatesPath, states, new(struct{}), false)
}

// Take asks the peer for the states of some limits that it owned before, and returns them in order: whole ones where it
// has none. Concurrent calls may travel together. The error is as that of [Peer.Check].
func (p *Peer) Take(ctx context.Context, names []wire.Key) ([]wire.KeyedState, error) {
	if p.down() {
		return nil, ErrDown
	}
	states, err := p.takes.Do(ctx, names)
	return states, p.settle(err)
}

func (p *Peer) take(names []wire.Key) ([]wire.KeyedState, error) {
	var answer wire.StateUpdate
	err := p.tell(context.Background(), wire.TakePath, &wire.TakeRequest{Names: names}, &answer)
	if err != ErrUnreachable { // a node that isn't there yet has nothing to give, and that is no outage
		p.conclude(err)
	}
	if err == nil && len(answer.States) != len(names) {
		return nil, ErrBroken
	}
	return answer.States, err
}

// tell sends a message to a node. A failure counts for the node's health, unless the message is a mere question whether
// it is there.
func (s *Set) tell(ctx context.Context, node, path string, message, answer any, question bool) error {
	p := s.named(node)
	if p == nil {
		return ErrUnreachable
	}
	if p.down() {
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
	if status, _ := errors.AsType[statusError](err); status == http.StatusNotFound {
		return ErrRefused // a node of an older version
	}
	if err != nil {
		return p.classify(err)
	}
	if err := wire.Unmarshal(text, answer); err != nil {
		return p.senseless(p.log.Warn().Str("path", path).Err(err))
	}
	return nil
}

// patience returns the time that a call with a message may take. For states that move it is more: no check waits for
// them, they keep the peer busy while it has much else to do, and sending them again would only add to that.
func (p *Peer) patience(message any) time.Duration {
	if r, ok := message.(*wire.Report); ok && len(r.States) > 0 {
		return 4 * p.set.options.Timeout
	}
	return p.set.options.Timeout
}
