package peers

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"weir/peers/discovery"
)

// A Member is one entry of the list of nodes that discovery finds.
type Member = discovery.Member

// A Discovery is where the list of nodes comes from, and how the last lookup went.
type Discovery struct {
	Source string `json:"source"`          // "static", or the name that DNS is asked for
	At     int64  `json:"at"`              // of the last list that counted, Unix milliseconds
	Error  string `json:"error,omitzero"`  // of the last lookup
	Failed int64  `json:"failed,omitzero"` // when that was
}

// Discovery returns the state of the discovery; nil before there is one. It must not be changed.
func (s *Set) Discovery() *Discovery { return s.discovery.Load() }

// Static makes a fixed list the cluster. The error tells why this node can't be told from the others.
func (s *Set) Static(ctx context.Context, members []Member, advertise string, listen netip.AddrPort) error {
	self, err := discovery.Self(ctx, members, advertise, listen)
	if err != nil {
		return err
	}
	s.discovery.Store(&Discovery{Source: "static", At: time.Now().UnixMilli()})
	s.Update(self, members)
	return nil
}

// Follow keeps the cluster as DNS has it until ctx ends. While this node can't find itself in the list it is an
// outsider: not ready, but the owners count what it is asked all the same.
func (s *Set) Follow(
	ctx context.Context, srv *discovery.SRV, every time.Duration, advertise string, listen netip.AddrPort,
) {
	f := follower{set: s, srv: srv, state: Discovery{Source: srv.Name()}}
	f.findSelf = func(members []Member) (string, error) { return discovery.Self(ctx, members, advertise, listen) }
	f.publish()
	discovery.Watch(ctx, every, f.lookup, f.take, f.fail)
}

// A follower keeps a Set as DNS has it.
type follower struct {
	set      *Set
	srv      *discovery.SRV
	findSelf func([]Member) (string, error)
	state    Discovery // as published last
	failed   bool      // the present lookup, which may still have returned a list
	last     []Member
}

func (f *follower) publish() { f.set.discovery.Store(new(f.state)) }

func (f *follower) lookup(ctx context.Context) ([]Member, error) {
	f.failed = false
	return f.srv.Lookup(ctx)
}

// fail notes what went wrong with the present lookup.
func (f *follower) fail(err error) {
	f.set.options.Log.Warn().Err(err).Str("name", f.srv.Name()).Msg("the lookup of the list of nodes failed")
	f.state.Error, f.state.Failed = err.Error(), time.Now().UnixMilli()
	f.failed = true
	f.publish()
}

// take makes a list the cluster if it is a new one, or if this node wasn't found in it before. It reports whether this
// node is in the ring.
func (f *follower) take(members []Member) bool {
	changed := !slices.EqualFunc(members, f.last, Member.Equal)
	if changed || f.set.View().Self() == "" {
		self := f.self(members)
		if changed || self != "" {
			f.set.Update(self, members)
		}
		f.last = members
	}
	f.state.At = time.Now().UnixMilli()
	if !f.failed {
		f.state.Error, f.state.Failed = "", 0
	}
	f.publish()
	return f.set.View().Self() != ""
}

// self returns this node's name in a list. That its own name isn't found just now is no reason to leave, while the list
// has it.
func (f *follower) self(members []Member) string {
	self, err := f.findSelf(members)
	if err == nil {
		return self
	}
	f.fail(err)
	if self = f.set.View().Self(); discovery.Contains(members, self) {
		return self
	}
	return ""
}
