package wire

import (
	"math"
	"slices"

	"weir/limits/bucket"
)

// What the messages are made of. A new member is one line here, besides the field of the type.

// missing is a request without any member. No valid one has such a Limit or Duration.
var missing = bucket.Request{Hits: 1, Limit: math.MinInt64, Duration: math.MinInt64}

var requests = object{[]field{
	member("name", func(r *bucket.Request) *string { return &r.Name }),
	member("unique_key", func(r *bucket.Request) *string { return &r.UniqueKey }),
	member("hits", func(r *bucket.Request) *int64 { return &r.Hits }),
	member("limit", func(r *bucket.Request) *int64 { return &r.Limit }),
	member("duration", func(r *bucket.Request) *int64 { return &r.Duration }),
	member("algorithm", func(r *bucket.Request) *bucket.Algorithm { return &r.Algorithm }).unlessZero(),
	member("behavior", func(r *bucket.Request) *bucket.Behavior { return &r.Behavior }).unlessZero(),
	member("burst", func(r *bucket.Request) *int64 { return &r.Burst }).unlessZero(),
	member("time_zone", func(r *bucket.Request) *string { return &r.TimeZone }).unlessZero(),
}}

var results = object{[]field{
	member("status", func(r *bucket.Result) *bucket.Status { return &r.Status }),
	member("limit", func(r *bucket.Result) *int64 { return &r.Limit }),
	member("remaining", func(r *bucket.Result) *int64 { return &r.Remaining }),
	member("reset_time", func(r *bucket.Result) *int64 { return &r.ResetTime }),
	member("retry_after", func(r *bucket.Result) *int64 { return &r.RetryAfter }).unlessZero(),
	member("error", func(r *bucket.Result) *string { return &r.Error }),
	innerOf("metadata", &metadata, func(r *bucket.Result) *bucket.Metadata { return &r.Metadata }),
	optionalOf("state", &snapshots, func(r *bucket.Result) **bucket.Snapshot { return &r.State }),
}}

// Results are written as one of these.
var (
	verdicts = results.without("error")
	failures = results.without("limit", "remaining", "reset_time", "retry_after")
)

var metadata = object{[]field{
	member("owner", func(m *bucket.Metadata) *string { return &m.Owner }).unlessZero(),
	member("degraded", func(m *bucket.Metadata) *string { return &m.Degraded }).unlessZero(),
	member("reason", func(m *bucket.Metadata) *string { return &m.Reason }).unlessZero(),
	member("source", func(m *bucket.Metadata) *string { return &m.Source }).unlessZero(),
}}

var snapshots = object{[]field{
	member("start", func(n *bucket.Snapshot) *int64 { return &n.Start }),
	member("epoch", func(n *bucket.Snapshot) *int64 { return &n.Epoch }),
	member("version", func(n *bucket.Snapshot) *int64 { return &n.Version }),
	member("acked", func(n *bucket.Snapshot) *int64 { return &n.Acked }),
	member("now", func(n *bucket.Snapshot) *int64 { return &n.Now }),
	member("algorithm", func(n *bucket.Snapshot) *bucket.Algorithm { return &n.Algorithm }),
	member("limit", func(n *bucket.Snapshot) *int64 { return &n.Limit }),
	member("duration", func(n *bucket.Snapshot) *int64 { return &n.Duration }),
	member("age", func(n *bucket.Snapshot) *int64 { return &n.Age }),
	member("used", func(n *bucket.Snapshot) *int64 { return &n.Used }),
	member("rest", func(n *bucket.Snapshot) *int64 { return &n.Rest }),
}}

var debtSnapshots = object{[]field{
	member("algorithm", func(n *bucket.DebtSnapshot) *bucket.Algorithm { return &n.Algorithm }),
	member("limit", func(n *bucket.DebtSnapshot) *int64 { return &n.Limit }),
	member("duration", func(n *bucket.DebtSnapshot) *int64 { return &n.Duration }),
	member("age", func(n *bucket.DebtSnapshot) *int64 { return &n.Age }),
	member("hits", func(n *bucket.DebtSnapshot) *int64 { return &n.Hits }),
	member("previous", func(n *bucket.DebtSnapshot) *int64 { return &n.Previous }).unlessZero(),
}}

var keys = object{[]field{
	member("name", func(k *Key) *string { return &k.Name }),
	member("unique_key", func(k *Key) *string { return &k.UniqueKey }),
}}

var states = object{slices.Concat(
	embedded(&keys, func(s *KeyedState) *Key { return &s.Key }),
	embedded(&snapshots, func(s *KeyedState) *bucket.Snapshot { return &s.Snapshot }),
	[]field{
		member("take", func(s *KeyedState) *int64 { return &s.Take }).unlessZero(),
	},
)}

var debts = object{slices.Concat(
	embedded(&keys, func(d *Debt) *Key { return &d.Key }),
	embedded(&debtSnapshots, func(d *Debt) *bucket.DebtSnapshot { return &d.DebtSnapshot }),
	[]field{
		member("start", func(d *Debt) *int64 { return &d.Start }).unlessZero(),
		member("epoch", func(d *Debt) *int64 { return &d.Epoch }).unlessZero(),
		member("keep_copy", func(d *Debt) *bool { return &d.Copy }).unlessZero(),
	},
)}

var (
	reports = object{[]field{
		member("start", func(r *Report) *int64 { return &r.Start }),
		member("seq", func(r *Report) *int64 { return &r.Seq }),
		listOf("debts", &debts, func(r *Report) *[]Debt { return &r.Debts }),
		listOf("states", &states, func(r *Report) *[]KeyedState { return &r.States }).unlessZero(),
		member("handed", func(r *Report) *string { return &r.Handed }).unlessZero(),
	}}
	updates = object{[]field{
		listOf("states", &states, func(u *StateUpdate) *[]KeyedState { return &u.States }),
	}}
	takeRequests = object{[]field{
		listOf("names", &keys, func(t *TakeRequest) *[]Key { return &t.Names }),
	}}
	nothing = object{}
)
