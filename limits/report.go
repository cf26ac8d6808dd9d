package limits

import (
	"math"
	"time"
)

// A Snapshot is a [State] as it travels between nodes: what the owner of a limit knows of it at one moment. It holds an age
// instead of dates, so that the receiver's clock doesn't matter; Now tells it the owner's.
//
// Receivers skip members that they don't know, so that later versions can say more.
type Snapshot struct {
	Start   int64 `json:"start"`   // names the life of the owner's process
	Epoch   int64 `json:"epoch"`   // grows when the limit begins anew: hits of an earlier epoch don't count in this one
	Version int64 `json:"version"` // grows with each change, also from epoch to epoch
	Acked   int64 `json:"acked"`   // the number of the receiver's last report that is in it; 0 for none
	Now     int64 `json:"now"`     // the owner's clock, Unix nanoseconds

	Algorithm Algorithm `json:"algorithm"`
	Limit     int64     `json:"limit"`    // as last in force
	Duration  int64     `json:"duration"` // nanoseconds
	Age       int64     `json:"age"`      // nanoseconds since the window began; LeakyBucket: since used was true
	Used      int64     `json:"used"`     // hits; 0 with no Rest is a whole limit, of which nothing else is known
	Rest      int64     `json:"rest"`     // SlidingWindow: hits of the window before; LeakyBucket: 1/Duration of a hit
}

// Set makes n the snapshot of s at now.
func (n *Snapshot) Set(s State, now time.Time) {
	n.Now = now.UnixNano()
	if s.expired(n.Now) {
		return
	}
	n.Algorithm, n.Limit, n.Duration = s.algorithm, int64(s.limit), s.duration
	n.Age = max(0, n.Now-s.stamp)
	n.Used, n.Rest = int64(s.used.lo), int64(s.used.hi)
	if s.algorithm == LeakyBucket {
		hits, parts := s.used.div(uint64(s.duration))
		n.Used, n.Rest = hits.int64(), int64(parts)
	}
}

// State gives the state, by the owner's clock. It is false if n is not what Set makes.
func (n *Snapshot) State() (s State, ok bool) {
	switch {
	case !saneClock(n.Now):
		return State{}, false
	case n.Used == 0 && n.Rest == 0:
		return State{}, true
	case n.Used < 0, n.Rest < 0, !saneTerms(n.Algorithm, n.Limit, n.Duration, n.Age):
		return State{}, false
	}
	s = State{algorithm: n.Algorithm, limit: uint64(n.Limit), duration: n.Duration, stamp: n.Now - n.Age}
	s.used = u128{hi: uint64(n.Rest), lo: uint64(n.Used)}
	switch {
	case s.algorithm == LeakyBucket && n.Rest < n.Duration:
		s.used = mul(uint64(n.Used), uint64(n.Duration)).add(u128{lo: uint64(n.Rest)})
	case s.algorithm == LeakyBucket, s.algorithm == TokenBucket && n.Rest != 0:
		return State{}, false
	}
	return s, true
}

// longest is the longest window. Calendar units may be a little longer than the longest duration in milliseconds.
const longest = (MaxDurationMs + day) * nsPerMs

// saneTerms says whether what another node tells of a limit can be.
func saneTerms(a Algorithm, limit, duration, age int64) bool {
	return a < algorithms && limit >= 0 && 0 < duration && duration <= longest && 0 <= age && age <= 2*longest
}

// saneClock says whether a clock can be reckoned with.
func saneClock(now int64) bool { return 0 <= now && now <= math.MaxInt64-2*longest }

// An Owed is the [Debt] of one limit as it travels to the owner.
type Owed struct {
	Name      string    `json:"name"`
	UniqueKey string    `json:"unique_key"`
	Algorithm Algorithm `json:"algorithm"`
	Limit     int64     `json:"limit"`
	Duration  int64     `json:"duration"`           // nanoseconds
	Age       int64     `json:"age"`                // nanoseconds since the window of the hits began
	Hits      int64     `json:"hits"`               // that were taken in it
	Previous  int64     `json:"previous,omitzero"`  // SlidingWindow: and in the one before
	Start     int64     `json:"start,omitzero"`     // of the owner whose state they were taken from; 0 for none
	Epoch     int64     `json:"epoch,omitzero"`     // of that state
	Copy      bool      `json:"keep_copy,omitzero"` // the sender wants to know the state then, and how it changes
}

// Owed gives what d is at now, for the limit that id names; nothing if it is owed no more. (See [Request.AppendID].)
func (d *Debt) Owed(id string, now time.Time) (o Owed, ok bool) {
	s := d.at(now.UnixNano())
	if s.whole() {
		return o, false
	}
	o.Name, o.UniqueKey = SplitID(id)
	o.Algorithm, o.Limit, o.Duration = s.algorithm, int64(s.limit), s.duration
	o.Age = max(0, now.UnixNano()-s.stamp)
	o.Hits, o.Previous = int64(min(s.used.lo, math.MaxInt64)), int64(min(s.used.hi, math.MaxInt64))
	if s.algorithm == LeakyBucket {
		o.Hits, o.Previous = int64(s.hits()), 0
	}
	return o, true
}

// Debt gives what o tells, by a clock that shows now. The error says which field is wrong.
func (o *Owed) Debt(now time.Time) (d Debt, err error) {
	if err := checkName(o.Name); err != nil {
		return d, err
	}
	if err := checkKey(o.UniqueKey); err != nil {
		return d, err
	}
	t := now.UnixNano()
	if o.Hits < 0 || o.Previous < 0 || o.Hits == 0 && o.Previous == 0 || o.Previous > 0 && o.Algorithm != SlidingWindow ||
		!saneTerms(o.Algorithm, o.Limit, o.Duration, o.Age) || !saneClock(t) {
		return d, invalid("no such debt can be")
	}
	d.state = State{algorithm: o.Algorithm, limit: uint64(o.Limit), duration: o.Duration, stamp: t - o.Age}
	d.state.used = u128{hi: uint64(o.Previous), lo: uint64(o.Hits)}
	if o.Algorithm == LeakyBucket {
		d.state.stamp, d.state.used, d.raw = t, mul(uint64(o.Hits), uint64(o.Duration)), uint64(o.Hits)
	}
	return d, nil
}

// AppendID appends the one string that names the limit of o.
func (o *Owed) AppendID(dst []byte) []byte { return appendID(dst, o.Name, o.UniqueKey) }

// SplitID gives the name and the key of an id that [Request.AppendID] made.
func SplitID(id string) (name, key string) {
	n := 1 + int(id[0])
	return id[1:n], id[n:]
}

// A Report tells the owner of some limits what was taken from them without it. Whoever sends one repeats it, as it was,
// until it is acknowledged, and no other meanwhile; so the owner can tell by the number what it has counted already.
type Report struct {
	Start int64  `json:"start"` // names the life of the sender's process
	Seq   int64  `json:"seq"`   // 1, 2, 3, ...; 0 with nothing in it only asks whether the owner answers
	Debts []Owed `json:"debts"`

	States []Named `json:"states,omitzero"` // of limits that the receiver has become the owner of
	Handed string  `json:"handed,omitzero"` // the ring for which there are no more of them
}

// Reset makes r empty, with its memory kept for what comes next.
func (r *Report) Reset() {
	clear(r.Debts) // no name is to live on
	clear(r.States)
	*r = Report{Debts: r.Debts[:0], States: r.States[:0]}
}

// A Named is the [Snapshot] of a limit with the limit's name.
type Named struct {
	Name      string `json:"name"`
	UniqueKey string `json:"unique_key"`
	Snapshot
	Take int64 `json:"take,omitzero"` // numbers a state that moves to its new owner, which may be told twice of it
}

// A Name names a limit.
type Name struct {
	Name      string `json:"name"`
	UniqueKey string `json:"unique_key"`
}

// AppendID appends the one string that names the limit.
func (n *Name) AppendID(dst []byte) []byte { return appendID(dst, n.Name, n.UniqueKey) }

// Valid says whether a limit can have that name.
func (n *Name) Valid() bool { return checkName(n.Name) == nil && checkKey(n.UniqueKey) == nil }

// Names ask for the states of some limits, which the sender has become the owner of.
type Names struct {
	Names []Name `json:"names"`
}

// AppendID appends the one string that names the limit of n.
func (n *Named) AppendID(dst []byte) []byte { return appendID(dst, n.Name, n.UniqueKey) }

// States are what an owner tells those that keep copies: in answer to a [Report], whose sender asked for them, and when
// they have changed.
type States struct {
	States []Named `json:"states"`
}
