package peers

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/ring"
)

// A View is one list of nodes: the ring it makes, and the peers on it. But for the peers' health it never changes.
type View struct {
	self   string // this node, if it is in the ring
	name   string // this node, as it is listed, or was
	ring   *ring.Ring
	peers  map[string]*Peer // all but this node
	owners []*Peer          // by partition; nil is this node
	header http.Header      // of calls
	before *ring.Ring       // who owned what before; nil if nobody did
	since  time.Time        // when that changed

	formers         []*Peer     // by partition: who owned before what this node owns now
	pendingHandover []*Peer     // all of them
	settled         atomic.Bool // they have nothing to give any more

	mu       sync.Mutex         // guards standIns
	standIns map[string][]*Peer // owners without some nodes, by their names
}

// Self gives this node's name; "" if it is an outsider.
func (v *View) Self() string { return v.self }

// Names gives the names of all nodes, sorted. They must not be changed.
func (v *View) Names() []string { return v.ring.Nodes() }

// Nodes gives the number of nodes in the list.
func (v *View) Nodes() int { return len(v.ring.Nodes()) }

// Fingerprint is that of the ring.
func (v *View) Fingerprint() string { return v.ring.Fingerprint() }

// peer gives a peer by its name, nil if there is none. It works for no view, too.
func (v *View) peer(name string) *Peer {
	if v == nil {
		return nil
	}
	return v.peers[name]
}

// lacks says whether p is not in the ring, though it may be listed.
func (v *View) lacks(p *Peer) bool { return !slices.Contains(v.Names(), p.name) }

// Owner gives the owner of a limit (named by [limits.Request.AppendID]); nil is this node. While it is away, the stand-in
// counts.
func (v *View) Owner(id []byte) *Peer { return v.owners[ring.Partition(id)] }

// Former gives the peer that owned a limit of this node until the ring changed, if it may still have something to give: that
// was a short time ago, and the peer hasn't said yet that it has handed over everything. nil if there is none.
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

// Settled says whether nobody has anything to give to this node any more, for any limit.
func (v *View) Settled() bool {
	if v.settled.Load() {
		return true
	}
	owes := func(p *Peer) bool { return !p.handoverDone(v.Fingerprint()) }
	if time.Since(v.since) < formerFor && slices.ContainsFunc(v.pendingHandover, owes) {
		return false
	}
	v.settled.Store(true)
	return true
}

// handoverDone says whether p has handed over everything that it isn't to have in a ring.
func (p *Peer) handoverDone(ring string) bool {
	handed := p.handoverRing.Load()
	return handed != nil && *handed == ring
}

// Peer gives a node by its name: nil if there is none, or it is this node.
func (v *View) Peer(name string) *Peer { return v.peer(name) }

// StandIn gives who counts for a limit while its owner is away; nil is this node.
func (v *View) StandIn(id []byte, owner *Peer) *Peer { return v.standIn(ring.Partition(id), owner) }

// standIn gives the owner in the ring without all that are away. So only the limits of those that are away move. An
// outsider counts when nobody else is left.
func (v *View) standIn(partition int, owner *Peer) *Peer {
	away := v.away(owner)
	if len(away) == v.Nodes() {
		return nil
	}
	return v.without(away)[partition]
}

// away gives the names of all peers that are away, sorted, and of one that is taken to be.
func (v *View) away(one *Peer) []string {
	names := []string{one.name}
	for name, p := range v.peers {
		if p != one && p.health.away.Load() && p.left.Load() == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// without gives the owners by partition in the ring without some nodes, sorted, which this node is not one of.
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

// maxStandIns bounds the rings kept for outages: one at a time is in use, and those that it comes from and goes to.
const maxStandIns = 8

// owned gives the owners of a ring by partition.
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
	State    string             `json:"state"`                  // up, failing, down (not asked for the moment), out (others stand in) or left (others have taken over)
	Since    int64              `json:"failing_since,omitzero"` // Unix milliseconds
	Share    float64            `json:"share"`                  // of all keys, by the ring
	Ring     string             `json:"ring,omitzero"`          // the fingerprint that it last sent
	StandIns map[string]float64 `json:"stand_ins,omitzero"`     // who counts for it while it is out, and for what part of its keys
}

// Status gives all nodes, sorted by name.
func (v *View) Status() []Status {
	shares := v.ring.Shares()
	list := make([]Status, len(shares))
	for i, name := range v.ring.Nodes() {
		list[i] = Status{Name: name, Share: shares[i], Self: name == v.self, State: "up"}
		if p := v.peers[name]; p != nil {
			p.status(&list[i])
			if p.health.away.Load() {
				list[i].StandIns = v.standInShares(p)
			}
		}
	}
	for name, p := range v.peers {
		if p.left.Load() != 0 {
			list = append(list, Status{Name: name, State: "left"})
		}
	}
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (p *Peer) status(s *Status) {
	var since time.Time
	if s.State, since = p.health.state(); !since.IsZero() {
		s.Since = since.UnixMilli()
	}
	if heard := p.lastRing.Load(); heard != nil {
		s.Ring = *heard
	}
}

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
