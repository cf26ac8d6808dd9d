package wire

import (
	"time"

	"weir/limits/bucket"
)

// MaxItems bounds the requests in one message.
const MaxItems = 1000

// A Key names a limit.
type Key struct {
	Name      string `json:"name"`
	UniqueKey string `json:"unique_key"`
}

// AppendID appends the one string that names the limit.
func (k *Key) AppendID(dst []byte) []byte { return bucket.AppendID(dst, k.Name, k.UniqueKey) }

// Valid reports whether a limit can have that name and key.
func (k *Key) Valid() bool {
	return bucket.CheckName(k.Name) == nil && bucket.CheckKey(k.UniqueKey) == nil
}

// A KeyedState is the state of a limit with the limit's name.
type KeyedState struct {
	Name      string `json:"name"`
	UniqueKey string `json:"unique_key"`
	bucket.Snapshot
	Take int64 `json:"take,omitzero"` // numbers a state that moves to its new owner, which may be told twice of it
}

// AppendID appends the one string that names the limit.
func (s *KeyedState) AppendID(dst []byte) []byte { return bucket.AppendID(dst, s.Name, s.UniqueKey) }

// A Debt is what the sender owes to the owner of one limit.
type Debt struct {
	Name      string `json:"name"`
	UniqueKey string `json:"unique_key"`
	bucket.DebtSnapshot
	Start int64 `json:"start,omitzero"`     // of the owner whose state the hits were taken from; 0 for none
	Epoch int64 `json:"epoch,omitzero"`     // of that state
	Copy  bool  `json:"keep_copy,omitzero"` // the sender wants to know the state then, and how it changes
}

// NewDebt returns what d is at now, for the limit that id names. It is false if nothing is owed any more.
func NewDebt(d *bucket.Debt, id string, now time.Time) (on Debt, ok bool) {
	on.DebtSnapshot, ok = d.Snapshot(now)
	on.Name, on.UniqueKey = bucket.SplitID(id)
	return on, ok
}

// Debt returns the debt by a clock that shows now. The error tells which field is wrong.
func (d *Debt) Debt(now time.Time) (bucket.Debt, error) {
	if err := bucket.CheckName(d.Name); err != nil {
		return bucket.Debt{}, err
	}
	if err := bucket.CheckKey(d.UniqueKey); err != nil {
		return bucket.Debt{}, err
	}
	return d.DebtSnapshot.Debt(now)
}

// AppendID appends the one string that names the limit.
func (d *Debt) AppendID(dst []byte) []byte { return bucket.AppendID(dst, d.Name, d.UniqueKey) }

// A Report tells the owner of some limits what was taken from them without it. Its sender repeats it as it was until it is
// acknowledged, and sends no other meanwhile; so the owner can tell by the number what it has counted already.
type Report struct {
	Start int64  `json:"start"` // names the life of the sender's process
	Seq   int64  `json:"seq"`   // 1, 2, 3, ...; 0 with nothing in it only asks whether the owner answers
	Debts []Debt `json:"debts"`

	States []KeyedState `json:"states,omitzero"` // of limits that the receiver has become the owner of
	Handed string       `json:"handed,omitzero"` // the ring for which there are no more of them
}

// Reset makes r empty, with its memory kept for what comes next.
func (r *Report) Reset() {
	clear(r.Debts) // no name is to live on
	clear(r.States)
	*r = Report{Debts: r.Debts[:0], States: r.States[:0]}
}

// A StateUpdate is what an owner tells the nodes that keep copies: in answer to a [Report], whose sender asked for them, and
// when states have changed.
type StateUpdate struct {
	States []KeyedState `json:"states"`
}

// A TakeRequest asks for the states of some limits, which the sender has become the owner of.
type TakeRequest struct {
	Names []Key `json:"names"`
}
