package peers

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/ring"
)

// A View is one list of nodes: the ring of those that are present, and the peers on it. It never changes, but for the
// peers' health.
type View struct {
	self   string // this node, if it is in the ring
	name   string // this node, as it is listed, or was
	ring   *ring.Ring
	peers  map[string]*Peer // all but this node
	owners []*Peer          // by partition; nil is this node
	header http.Header      // of calls
	before *ring.Ring       // which owned before; nil if there was none
	since  time.Time        // when that changed

	formers         []*Peer     // by partition: the owner before of what this node owns now
	pendingHandover []*Peer     // all of them
	settled         atomic.Bool // they have nothing to give any more

	mu       sync.Mutex         // guards standIns
	standIns map[string][]*Peer // owners without some nodes, by their names
}

// Self returns this node's name; "" if it is an outsider, or v is nil.
func (v *View) Self() string {
	if v == nil {
		return ""
	}
	return v.self
}

// Names returns the names of all nodes in the ring, sorted. They must not be changed.
func (v *View) Names() []string { return v.ring.Nodes() }

// Nodes returns the number of nodes in the ring.
func (v *View) Nodes() int { return len(v.ring.Nodes()) }

// Fingerprint returns that of the ring.
func (v *View) Fingerprint() string { return v.ring.Fingerprint() }

// Peer returns a listed node by its name: nil if there is none, or it is this node.
func (v *View) Peer(name string) *Peer { return v.peer(name) }

// peer returns a peer by its name, nil if there is none or v is nil.
func (v *View) peer(name string) *Peer {
	if v == nil {
		return nil
	}
	return v.peers[name]
}

// lacks reports whether p is not in the ring, though it may be listed.
func (v *View) lacks(p *Peer) bool { return !slices.Contains(v.Names(), p.name) }

// Owner returns the owner of a limit (named by [limits.Request.AppendID]); nil is this node. While it is away, the
// stand-in counts.
func (v *View) Owner(id []byte) *Peer { return v.owners[ring.Partition(id)] }

// Former returns the peer that owned a limit of this node until the ring changed. It is nil if that peer has nothing to
// give any more: it has said that it has handed over everything, or the change was long ago.
func (v *View) Former(id []byte) *Peer { return v.pendingFormer(ring.Partition(id)) }

func (v *View) pendingFormer(partition int) *Peer {
	if v.Settled() {
		return nil
	}
	p := v.formers[partition]
	if p == nil || p.handoverDone(v.Fingerprint()) {
		return nil
	}
	return p
}

// Settled reports whether no peer has anything to give to this node any more, for any limit.
func (v *View) Settled() bool {
	if v.settled.Load() {
		return true
	}
	pending := func(p *Peer) bool { return !p.handoverDone(v.Fingerprint()) }
	if time.Since(v.since) < formerFor && slices.ContainsFunc(v.pendingHandover, pending) {
		return false
	}
	v.settled.Store(true)
	return true
}

// handoverDone reports whether p has handed over everything that it isn't to have in a ring.
func (p *Peer) handoverDone(ring string) bool {
	done := p.handoverRing.Load()
	return done != nil && *done == ring
}

// ringBefore returns the ring of the owners before the view changed to v; nil if there were none. For a node that has
// just come that is the ring without it. If v is no change, the last one and its time go on to count.
func (v *View) ringBefore(old *View) *ring.Ring {
	switch {
	case old == nil && v.self != "" && v.Nodes() > 1:
		return v.ring.Without(v.self)
	case old == nil:
		return nil
	case old.Fingerprint() == v.Fingerprint() && old.self == v.self:
		v.since = old.since
		return old.before
	}
	return old.ring
}

// findFormers finds, by partition, the peer that owned before what this node owns now, also among those that are not
// listed any more. It stays the one when the list changes again before it has handed over everything.
func (v *View) findFormers(old *View, delisted map[string]*Peer) {
	v.formers = make([]*Peer, ring.Partitions)
	for p := range v.formers {
		if v.before == nil || v.owners[p] != nil {
			continue
		}
		var former *Peer
		if name := v.before.Owner(p); name != v.name {
			former = cmp.Or(v.peer(name), old.peer(name), delisted[name])
		} else if old != nil {
			former = old.pendingFormer(p)
		}
		if v.formers[p] = former; former != nil && !slices.Contains(v.pendingHandover, former) {
			v.pendingHandover = append(v.pendingHandover, former)
		}
	}
}

// StandIn returns the node that counts for a limit while its owner is away; nil is this node.
func (v *View) StandIn(id []byte, owner *Peer) *Peer { return v.standIn(ring.Partition(id), owner) }

// standIn returns the owner in the ring without all nodes that are away. So only the limits of those move. An outsider
// counts when there is no node left.
func (v *View) standIn(partition int, owner *Peer) *Peer {
	away := v.away(owner)
	if len(away) == v.Nodes() {
		return nil
	}
	return v.without(away)[partition]
}

// away returns the names of all peers that are away, sorted, and of one that is taken to be.
func (v *View) away(one *Peer) []string {
	names := []string{one.name}
	for name, p := range v.peers {
		if p != one && p.Away() && !p.hasLeft() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// without returns the owners by partition in the ring without some nodes, sorted, which this node is not one of.
func (v *View) without(names []string) []*Peer {
	key := strings.Join(names, ",")
	v.mu.Lock()
	defer v.mu.Unlock()
	if owners := v.standIns[key]; owners != nil {
		return owners
	}
	r := v.ring.Without(names...)
	if v.standIns == nil || len(v.standIns) >= maxStandIns {
		v.standIns = map[string][]*Peer{}
	}
	v.standIns[key] = v.owned(r)
	return v.standIns[key]
}

// maxStandIns bounds the rings kept for outages: the one in use, and some that an outage comes from or goes to.
const maxStandIns = 8

// owned returns the owners of a ring by partition.
func (v *View) owned(r *ring.Ring) []*Peer {
	owners := make([]*Peer, ring.Partitions)
	for p := range owners {
		owners[p] = v.peers[r.Owner(p)]
	}
	return owners
}

// A Status is one node as this node sees it.
type Status struct {
	Name     string             `json:"name"`
	Self     bool               `json:"self,omitzero"`
	State    PeerState          `json:"state"`
	Since    int64              `json:"failing_since,omitzero"` // Unix milliseconds
	Share    float64            `json:"share"`                  // of all keys, by the ring
	Ring     string             `json:"ring,omitzero"`          // the fingerprint that it last sent
	StandIns map[string]float64 `json:"stand_ins,omitzero"`     // by stand-in while it is away: the part of its keys
}

// Status returns all listed nodes, sorted by name.
func (v *View) Status() []Status {
	shares := v.ring.Shares()
	list := make([]Status, len(shares))
	for i, name := range v.ring.Nodes() {
		list[i] = Status{Name: name, Share: shares[i], Self: name == v.self}
		if p := v.peers[name]; p != nil {
			v.describe(p, &list[i])
		}
	}
	for name, p := range v.peers {
		if p.hasLeft() {
			list = append(list, Status{Name: name, State: StateLeft})
		}
	}
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// describe fills in what is known of a peer in the ring.
func (v *View) describe(p *Peer, s *Status) {
	var since time.Time
	if s.State, since = p.health.status(); !since.IsZero() {
		s.Since = since.UnixMilli()
	}
	if ring := p.lastRing.Load(); ring != nil {
		s.Ring = *ring
	}
	if p.Away() {
		s.StandIns = v.standInShares(p)
	}
}

// standInShares returns, by their names, the nodes that count for p while it is away, and for which part of its keys.
func (v *View) standInShares(p *Peer) map[string]float64 {
	counts, all := map[string]float64{}, 0.
	for partition, owner := range v.owners {
		if owner != p {
			continue
		}
		all++
		if next := v.standIn(partition, p); next == nil {
			counts[v.self]++
		} else {
			counts[next.name]++
		}
	}
	for name := range counts {
		counts[name] /= all
	}
	return counts
}
