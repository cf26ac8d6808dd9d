package peers

import (
	"net/http"
	"strconv"
	"sync"
	"weir/limits/wire"

	vm "github.com/VictoriaMetrics/metrics"
	"github.com/rs/zerolog"
)

// headerLocked returns the header of all calls by v. They share it, which http.RoundTripper allows.
func (s *Set) headerLocked(v *View) http.Header {
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "weir")
	h.Set(wire.HeaderProtocol, wire.Protocol)
	h.Set(wire.HeaderRing, v.ring.Fingerprint())
	h.Set(wire.HeaderFrom, v.name)
	if s.leaving {
		h.Set(wire.HeaderLeaving, "true")
	}
	h.Set(wire.HeaderStart, strconv.FormatInt(s.incarnation, 10))
	if s.options.Secret != "" {
		h.Set("Authorization", "Bearer "+s.options.Secret)
	}
	return h
}

// SetHeaders sets in the header of an answer what this node says of itself in calls. There must be a view.
func (s *Set) SetHeaders(h http.Header) {
	ours := s.View().header
	for _, name := range [...]string{wire.HeaderProtocol, wire.HeaderRing, wire.HeaderStart, wire.HeaderLeaving} {
		if values := ours[name]; values != nil {
			h[name] = values
		}
	}
}

// Observe compares what a node says of itself, in the header of a request or of an answer, with what this node knows of
// it and of the cluster. If that changes the view, the new one is in force when Observe returns.
func (s *Set) Observe(from string, h http.Header) {
	s.observeRestart(from, h)
	s.mismatches.observe(from, h, s.View())
}

// mismatches notes peers of another protocol or ring than this node's. It is safe for concurrent use.
type mismatches struct {
	total *vm.Counter
	log   zerolog.Logger // throttled
	last  sync.Map       // name of a peer: the odd protocol and ring that were last logged
}

// observe compares a peer's protocol and ring with this node's. A difference is normal for the seconds in which a list
// changes, and a mistake if it stays; so it is counted, and logged once for each change.
func (m *mismatches) observe(from string, h http.Header, v *View) {
	protocol, ring := h.Get(wire.HeaderProtocol), h.Get(wire.HeaderRing)
	if v == nil || protocol == wire.Protocol && ring == v.Fingerprint() {
		m.forget(from)
		return
	}
	m.total.Inc()
	if v.peers[from] == nil {
		from = "" // a caller with a name that isn't listed doesn't get memory of ours
	}
	odd := protocol + " " + ring
	if last, _ := m.last.Swap(from, odd); last != odd {
		m.log.Warn().Str("peer", from).Str("its_protocol", protocol).Str("our_protocol", wire.Protocol).
			Str("its_ring", ring).Str("our_ring", v.Fingerprint()).
			Msg("a peer has another list of nodes, or another version")
	}
}

func (m *mismatches) forget(name string) { m.last.Delete(name) }
