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

// Check returns what is wrong with the name or the key, nil if nothing is.
func (k *Key) Check() error {
	if err := bucket.CheckName(k.Name); err != nil {
		return err
	}
	return bucket.CheckKey(k.UniqueKey)
}

// Valid reports whether a limit can have that name and key.
func (k *Key) Valid() bool { return k.Check() == nil }

// KeyOf returns the key of an id that [bucket.AppendID] made. It shares the id's memory.
func KeyOf(id string) (k Key) {
	k.Name, k.UniqueKey = bucket.SplitID(id)
	return k
}

// A KeyedState is the state of a limit with the limit's name.
type KeyedState struct {
	Key
	bucket.Snapshot
	Take int64 `json:"take,omitzero"` // numbers a state that moves to its new owner, which may be told twice of it
}

// A Debt is what the sender owes to the owner of one limit.
type Debt struct {
	Key
	bucket.DebtSnapshot
	Start int64 `json:"start,omitzero"`     // of the owner from whose state the hits were taken; 0 for none
	Epoch int64 `json:"epoch,omitzero"`     // of that state
	Copy  bool  `json:"keep_copy,omitzero"` // the sender wants to know the state then, and how it changes
}

// NewDebt returns what d is at now, for the limit that id names. It is false if nothing is owed any more.
func NewDebt(d *bucket.Debt, id string, now time.Time) (on Debt, ok bool) {
	on.Key = KeyOf(id)
	on.DebtSnapshot, ok = d.Snapshot(now)
	return on, ok
}

// Debt returns the debt by a clock that shows now. The error tells which field is wrong.
func (d *Debt) Debt(now time.Time) (bucket.Debt, error) {
	if err := d.Check(); err != nil {
		return bucket.Debt{}, err
	}
	return d.DebtSnapshot.Debt(now)
}

// A Report tells the owner of some limits what was taken from them without it. Its sender repeats it as it was until it
// is acknowledged, and sends no other meanwhile; so the owner can tell by the number what it has counted already.
type Report struct {
	Start int64  `json:"start"` // the sender's incarnation
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

// A StateUpdate is what an owner tells the nodes that keep copies: in answer to a [Report], whose sender asked for
// them, and when states have changed.
type StateUpdate struct {
	States []KeyedState `json:"states"`
}

// A TakeRequest asks for the states of some limits, which the sender has become the owner of.
type TakeRequest struct {
	Names []Key `json:"names"`
}
