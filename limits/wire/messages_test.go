package wire

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/go-json-experiment/json"

	"weir/limits/bucket"
)

// TestSnapshotsRoundTrip writes and reads snapshots of all kinds, by hand and by the library.
func TestSnapshotsRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	number := func() int64 { return int64(random.Uint64() >> random.IntN(64)) }
	for range 300 {
		n := bucket.Snapshot{Start: number(), Epoch: number(), Version: number(), Acked: number(), Now: number(),
			Algorithm: bucket.Algorithm(random.IntN(3)), Limit: number(), Duration: number(), Age: number(), Used: number(),
			Rest: number()}
		for what, read := range map[string]func() bucket.Snapshot{
			"written by hand, read by the library": func() (m bucket.Snapshot) {
				if err := json.Unmarshal(snapshots.append(nil, unsafe.Pointer(&n)), &m,
					json.RejectUnknownMembers(true)); err != nil {
					t.Error(err)
				}
				return m
			},
			"written by the library, read by hand": func() bucket.Snapshot {
				message, err := json.Marshal(&n)
				if err != nil {
					t.Error(err)
				}
				return *readState(t, string(message))
			},
			"written and read by hand": func() bucket.Snapshot {
				return *readState(t, string(snapshots.append(nil,
					unsafe.Pointer(&n))))
			},
		} {
			if got := read(); got != n {
				t.Errorf("%s: %+v\nwant %+v", what, got, n)
			}
		}
	}
}

// readState reads a snapshot as it travels in a result.
func readState(t *testing.T, snapshot string) *bucket.Snapshot {
	t.Helper()
	results, err := ReadPeerResults(nil, []byte(`{"rate_limits":[{"status":"OK","state":`+snapshot+`}]}`))
	if err != nil || len(results) != 1 || results[0].State == nil {
		t.Fatalf("%s: %+v, %v", snapshot, results, err)
	}
	return results[0].State
}

// TestGoldenMessages fixes the form of what nodes of different versions tell each other.
func TestGoldenMessages(t *testing.T) {
	for _, test := range []struct {
		what    string
		value   any
		message string
		more    string // the same from a newer version
	}{
		{"nothing to report", &Report{Start: 1700000000000000001, Debts: []Debt{}},
			`{"start":1700000000000000001,"seq":0,"debts":[]}`,
			`{"protocol":2,"start":1700000000000000001,"seq":0,"debts":[]}`},
		{"a report", &Report{Start: 7, Seq: 3, Debts: []Debt{
			{Key: Key{"n", "é\""}, DebtSnapshot: bucket.DebtSnapshot{
				Algorithm: bucket.SlidingWindow, Limit: 100, Duration: 60_000_000_000, Age: 5, Hits: 2, Previous: 1,
			}, Start: 9, Epoch: 4, Copy: true},
			{Key: Key{"n", "k"}, DebtSnapshot: bucket.DebtSnapshot{Limit: 1, Duration: 1, Hits: math.MaxInt64}},
		}}, `{"start":7,"seq":3,"debts":[` +
			`{"name":"n","unique_key":"é\"","algorithm":2,"limit":100,"duration":60000000000,"age":5,"hits":2,"previous":1,` +
			`"start":9,"epoch":4,"keep_copy":true},` +
			`{"name":"n","unique_key":"k","algorithm":0,"limit":1,"duration":1,"age":0,"hits":9223372036854775807}]}`,
			`{"start":7,"seq":3,"debts":[` +
				`{"name":"n","unique_key":"é\"","algorithm":2,"limit":100,"duration":60000000000,"age":5,"hits":2,"previous":1,` +
				`"start":9,"epoch":4,"keep_copy":true,"take":{"all":[1]}},` +
				`{"name":"n","unique_key":"k","algorithm":0,"limit":1,"duration":1,"age":0,"hits":9223372036854775807}],` +
				`"take":"x"}`},
		{"no states", &StateUpdate{States: []KeyedState{}}, `{"states":[]}`, `{"take":[],"states":[]}`},
		{"states", &StateUpdate{States: []KeyedState{{Key: Key{"n", "k"}, Snapshot: bucket.Snapshot{
			Start: 1, Epoch: 2, Version: 3, Acked: 4, Now: 5, Algorithm: bucket.LeakyBucket, Limit: 6, Duration: 7, Age: 8,
			Used: 9, Rest: 10}}}},
			`{"states":[{"name":"n","unique_key":"k","start":1,"epoch":2,"version":3,"acked":4,"now":5,"algorithm":1,` +
				`"limit":6,"duration":7,"age":8,"used":9,"rest":10}]}`,
			`{"states":[{"name":"n","unique_key":"k","start":1,"epoch":2,"version":3,"later":{},"acked":4,"now":5,` +
				`"algorithm":1,"limit":6,"duration":7,"age":8,"used":9,"rest":10}]}`},
	} {
		message, err := AppendMessage(nil, test.value)
		if err != nil || string(message) != test.message {
			t.Errorf("%s: %s, %v\nwant %s", test.what, message, err, test.message)
		}
		for _, message := range []string{test.message, test.more} {
			got := reflect.New(reflect.TypeOf(test.value).Elem())
			if err := Unmarshal([]byte(message), got.Interface()); err != nil || !reflect.DeepEqual(got.Interface(),
				test.value) {
				t.Errorf("%s\n%+v, %v\nwant %+v", message, got, err, test.value)
			}
		}
	}
	result := bucket.Result{Status: bucket.StatusOK, Limit: 10, Remaining: 9, ResetTime: 8, State: &bucket.Snapshot{
		Start: 1, Epoch: 2, Version: 3, Acked: 4, Now: 5, Algorithm: bucket.SlidingWindow, Limit: 6, Duration: 7, Age: 8,
		Used: 9, Rest: 10}}
	const members = `"start":1,"epoch":2,"version":3,"acked":4,"now":5,"algorithm":2,"limit":6,"duration":7,"age":8,` +
		`"used":9,"rest":10`
	message := func(members string) string {
		return `{"rate_limits":[{"status":"OK","limit":10,"remaining":9,"reset_time":8,"metadata":{},"state":{` + members +
			"}}]}\n"
	}
	if got := string(AppendResults(nil, []bucket.Result{result})); got != message(members) {
		t.Errorf("%s\nwant %s", got, message(members))
	}
	for _, members := range []string{members, members + `,"take":7`, `"take":[{"start":2}],` + members,
		strings.Replace(members, `"algorithm":2`, `"algorithm":"SLIDING_WINDOW"`, 1)} {
		if got, err := ReadPeerResults(nil, []byte(message(members))); err != nil || len(got) != 1 ||
			!reflect.DeepEqual(got[0], result) {
			t.Errorf("%s: %+v, %v", members, got, err)
		}
	}
	for _, members := range []string{members + `,"start":1`, members + `,"rest":10`, strings.Replace(members, "1", "1.5",
		1), strings.Replace(members, "1", "null", 1)} {
		if got, err := ReadPeerResults(nil, []byte(message(members))); err == nil {
			t.Errorf("%s: %+v", members, got)
		}
	}
	if got := readState(t, `{"algorithm":3,"used":1}`); got.Algorithm <= bucket.SlidingWindow {
		t.Errorf("an unknown algorithm became %v", got.Algorithm)
	}
}

// TestSnapshotsHaveOneForm compares the two codecs of a snapshot, member by member.
func TestSnapshotsHaveOneForm(t *testing.T) {
	var n bucket.Snapshot
	v := reflect.ValueOf(&n).Elem()
	for i := range v.NumField() {
		number := int64(-1 - i)
		if v.Field(i).CanUint() {
			v.Field(i).SetUint(1)
		} else {
			v.Field(i).SetInt(number)
		}
	}
	want, err := json.Marshal(&n)
	if got := snapshots.append(nil, unsafe.Pointer(&n)); err != nil || string(got) != string(want) {
		t.Errorf("by hand    %s\nby library %s, %v", got, want, err)
	}
	if got := readState(t, string(want)); *got != n {
		t.Errorf("%s became %+v", want, *got)
	}
}

func TestIDsAreTheSameOfAllMessages(t *testing.T) {
	for _, pair := range [][2]string{
		{"n", "k"}, {"name", "key"}, {strings.Repeat("n", 255), "k"}, {"é", "\x01"}, {"a", strings.Repeat("b", 1024)},
	} {
		r := bucket.Request{Name: pair[0], UniqueKey: pair[1]}
		o, n := Debt{Key: Key{pair[0], pair[1]}}, KeyedState{Key: Key{pair[0], pair[1]}}
		id := string(r.AppendID(nil))
		if name, key := bucket.SplitID(id); name != pair[0] || key != pair[1] || string(o.AppendID(nil)) != id ||
			string(n.AppendID(nil)) != id {
			t.Errorf("%q: %q, %q", id, name, key)
		}
	}
}
func TestDebtsThatCannotBe(t *testing.T) {
	const (
		debtStart = int64(1_767_268_800_000_000_000)
		day       = int64(24 * time.Hour)
		longest   = bucket.MaxDurationMs*int64(time.Millisecond) + day // calendar units may be a little longer than the rest
	)
	at := func(ns int64) time.Time { return time.Unix(0, ns) }
	good := Debt{Key: Key{"n", "k"}, DebtSnapshot: bucket.DebtSnapshot{Limit: 10, Duration: int64(time.Minute), Age: 5,
		Hits: 3}}
	for _, test := range []struct {
		what   string
		change func(o *Debt)
		want   string // what the error starts with
	}{
		{"nothing changed", func(o *Debt) {}, ""},
		{"no name", func(o *Debt) { o.Name = "" }, "name: "},
		{"a long name", func(o *Debt) { o.Name = strings.Repeat("n", bucket.MaxNameBytes) }, ""},
		{"too long a name", func(o *Debt) { o.Name = strings.Repeat("n", bucket.MaxNameBytes+1) }, "name: "},
		{"half a rune", func(o *Debt) { o.Name = "\xc3" }, "name: "},
		{"no key", func(o *Debt) { o.UniqueKey = "" }, "unique_key: "},
		{"a long key", func(o *Debt) { o.UniqueKey = strings.Repeat("k", bucket.MaxKeyBytes) }, ""},
		{"too long a key", func(o *Debt) { o.UniqueKey = strings.Repeat("k", bucket.MaxKeyBytes+1) }, "unique_key: "},
		{"a key with NUL", func(o *Debt) { o.UniqueKey = "k\x00" }, "unique_key: "},
		{"no hits", func(o *Debt) { o.Hits = 0 }, "no such"},
		{"negative hits", func(o *Debt) { o.Hits = -1 }, "no such"},
		{"the least hits", func(o *Debt) { o.Hits = math.MinInt64 }, "no such"},
		{"the most hits", func(o *Debt) { o.Hits = math.MaxInt64 }, ""},
		{"token hits of the window before", func(o *Debt) { o.Previous = 1 }, "no such"},
		{"leaky hits of a window before", func(o *Debt) { o.Algorithm, o.Previous = bucket.LeakyBucket, 1 }, "no such"},
		{"sliding hits of the window before", func(o *Debt) { o.Algorithm, o.Hits, o.Previous = bucket.SlidingWindow, 0, 1 },
			""},
		{"negative hits of the window before", func(o *Debt) { o.Algorithm, o.Previous = bucket.SlidingWindow, -1 },
			"no such"},
		{"an unknown algorithm", func(o *Debt) { o.Algorithm = 3 }, "no such"},
		{"the largest algorithm", func(o *Debt) { o.Algorithm = 255 }, "no such"},
		{"a negative limit", func(o *Debt) { o.Limit = -1 }, "no such"},
		{"no duration", func(o *Debt) { o.Duration = 0 }, "no such"},
		{"the longest duration", func(o *Debt) { o.Duration = longest }, ""},
		{"a longer duration", func(o *Debt) { o.Duration = longest + 1 }, "no such"},
		{"from the future", func(o *Debt) { o.Age = -1 }, "no such"},
		{"a great age", func(o *Debt) { o.Age = 2 * longest }, ""},
		{"a greater age", func(o *Debt) { o.Age = 2*longest + 1 }, "no such"},
	} {
		o := good
		test.change(&o)
		d, err := o.Debt(at(debtStart))
		if (err == nil) != (test.want == "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.what, err, test.want)
		}
		if err != nil && d != (bucket.Debt{}) {
			t.Errorf("%s: %+v, though it can't be", test.what, d)
		}
	}
	for _, clock := range []int64{-1, math.MaxInt64} {
		if d, err := good.Debt(at(clock)); err == nil {
			t.Errorf("by a clock that shows %d: %+v", clock, d)
		}
	}
}
