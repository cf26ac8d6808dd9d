package peers

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// A Discovery is where the list of nodes comes from, and how the last lookup went.
type Discovery struct {
	Source string `json:"source"`          // "static", or the name that DNS is asked for
	At     int64  `json:"at"`              // of the last list that counted, Unix milliseconds
	Error  string `json:"error,omitzero"`  // of the last lookup
	Failed int64  `json:"failed,omitzero"` // when that was
}

// Discovery gives the state of the discovery.
func (s *Set) Discovery() *Discovery { return s.discovery.Load() }

// Static makes a fixed list the cluster. The error says why this node can't be told from the others.
func (s *Set) Static(ctx context.Context, members []Member, advertise string, listen netip.AddrPort) error {
	self, err := Self(ctx, members, advertise, listen)
	if err != nil {
		return err
	}
	s.discovery.Store(&Discovery{Source: "static", At: time.Now().UnixMilli()})
	s.Update(self, members)
	return nil
}

// Follow keeps the cluster as DNS says until ctx ends. While this node can't find itself in the list it is an outsider:
// not ready, but what it is asked all the same is counted by those who own it.
func (s *Set) Follow(ctx context.Context, srv *SRV, every time.Duration, advertise string, listen netip.AddrPort) {
	state := Discovery{Source: srv.name}
	s.discovery.Store(new(state))
	failedNow := false // with the present lookup, which may still have given a list
	failed := func(err error) {
		s.options.Log.Warn().Err(err).Str("name", srv.name).Msg("the lookup of the list of nodes failed")
		state.Error, state.Failed = err.Error(), time.Now().UnixMilli()
		s.discovery.Store(new(state))
		failedNow = true
	}
	var last []Member
	set := func(members []Member) bool {
		if !slices.EqualFunc(members, last, Member.Equal) || s.self() == "" {
			self, err := Self(ctx, members, advertise, listen)
			if err != nil {
				failed(err)
				// A name of this node's own that isn't found just now is no reason to leave, while the list has it.
				if self = s.self(); !slices.ContainsFunc(members, func(m Member) bool { return m.Name == self }) {
					self = ""
				}
			}
			if self != "" || !slices.EqualFunc(members, last, Member.Equal) {
				s.Update(self, members)
			}
			last = members
		}
		state.At = time.Now().UnixMilli()
		if !failedNow {
			state.Error, state.Failed = "", 0
		}
		s.discovery.Store(new(state))
		return s.self() != ""
	}
	lookup := func(ctx context.Context) ([]Member, error) {
		failedNow = false
		return srv.Lookup(ctx)
	}
	Watch(ctx, every, lookup, set, failed)
}

// self gives this node's name; "" while it has no place.
func (s *Set) self() string {
	if v := s.View(); v != nil {
		return v.self
	}
	return ""
}
