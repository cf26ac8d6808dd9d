package peers

import (
	"slices"
	"strings"
	"sync"
	"time"

	"weir/ring"
)

// A View is one list of nodes: the ring it makes, and the peers on it. But for the peers' health it never changes.
type View struct {
	self   string
	ring   *ring.Ring
	peers  map[string]*Peer // all but this node
	owners []*Peer          // by partition; nil is this node

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

// Owner gives the owner of a limit (named by [limits.Request.AppendID]); nil is this node. While it is away, the stand-in
// counts.
func (v *View) Owner(id []byte) *Peer { return v.owners[ring.Partition(id)] }

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
		if p != one && p.health.away.Load() {
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
	State    string             `json:"state"`                  // up, failing, down (not asked for the moment) or out (others stand in)
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
	return list
}

func (p *Peer) status(s *Status) {
	var since time.Time
	if s.State, since = p.health.state(); !since.IsZero() {
		s.Since = since.UnixMilli()
	}
	if heard := p.heard.Load(); heard != nil {
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
