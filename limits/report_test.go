package limits

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// anyState draws a state that somebody may remember.
func anyState(random *rand.Rand, now int64) State {
	large := func() uint64 { return random.Uint64() >> 1 >> random.IntN(63) }
	s := State{
		algorithm: Algorithm(random.IntN(algorithms)), limit: large(),
		duration: 1 + random.Int64N(MaxDurationMs*nsPerMs)>>random.IntN(58), drained: random.IntN(2) == 0,
	}
	s.stamp = now - random.Int64N(s.duration)
	switch s.used.lo = 1 + large()/2; s.algorithm {
	case LeakyBucket:
		s.used = mul(s.used.lo, uint64(s.duration)).add(u128{lo: random.Uint64N(uint64(s.duration))})
	case SlidingWindow:
		s.used.hi = large()
	}
	return s
}

func TestSnapshotsRoundTrip(t *testing.T) {
	owing(t, 300, func(t *testing.T, random *rand.Rand) {
		s := anyState(random, debtStart)
		n := Snapshot{Start: random.Int64(), Epoch: random.Int64(), Version: random.Int64(), Acked: random.Int64()}
		before := n
		n.Set(s, at(debtStart))
		if n.Start != before.Start || n.Epoch != before.Epoch || n.Version != before.Version || n.Acked != before.Acked || n.Now != debtStart {
			t.Errorf("%+v became %+v", before, n)
		}
		want := s
		want.drained = false // which is about who goes first when a Limiter is full, and a copy is not in one
		if s.expired(debtStart) {
			want = State{}
		}
		for what, read := range map[string]func() Snapshot{
			"as it is": func() Snapshot { return n },
			"written by hand, read by the library": func() (m Snapshot) {
				if err := json.Unmarshal(appendSnapshot(nil, &n), &m, json.RejectUnknownMembers(true)); err != nil {
					t.Error(err)
				}
				return m
			},
			"written by the library, read by hand": func() Snapshot {
				message, err := json.Marshal(&n)
				if err != nil {
					t.Error(err)
				}
				return *readState(t, string(message))
			},
			"written and read by hand": func() Snapshot { return *readState(t, string(appendSnapshot(nil, &n))) },
		} {
			m := read()
			got, ok := m.State()
			if m != n || !ok || got != want {
				t.Errorf("%s: %+v, %v\n%+v\nwant %+v\n%+v", what, m, ok, got, n, want)
			}
		}
	})
}

// readState reads a snapshot as it travels in a result.
func readState(t *testing.T, snapshot string) *Snapshot {
	t.Helper()
	results, err := ReadPeerResults(nil, []byte(`{"rate_limits":[{"status":"OK","state":`+snapshot+`}]}`))
	if err != nil || len(results) != 1 || results[0].State == nil {
		t.Fatalf("%s: %+v, %v", snapshot, results, err)
	}
	return results[0].State
}

func TestASnapshotOfAClockThatWasSetBack(t *testing.T) {
	s := force(State{}, plain(TokenBucket, 10, minuteNs), 3, debtStart)
	var n Snapshot
	n.Set(s, at(debtStart-5))
	got, ok := n.State()
	if want := s.now(debtStart - 5); !ok || got != want || n.Age != 0 {
		t.Errorf("%+v, %v, want %+v", got, ok, want)
	}
}

func TestSnapshotsThatCannotBe(t *testing.T) {
	good := Snapshot{Start: 1, Version: 1, Now: debtStart, Limit: 10, Duration: minuteNs, Age: 5, Used: 3}
	of := func(a Algorithm, used, rest int64) func(n *Snapshot) {
		return func(n *Snapshot) { n.Algorithm, n.Used, n.Rest = a, used, rest }
	}
	for _, test := range []struct {
		what   string
		change func(n *Snapshot)
		want   bool
	}{
		{"nothing changed", func(n *Snapshot) {}, true},
		{"whole", of(TokenBucket, 0, 0), true},
		{"whole, and nothing else known", func(n *Snapshot) { *n = Snapshot{Start: 1, Now: debtStart} }, true},
		{"whole, at a time before all", func(n *Snapshot) { *n = Snapshot{Now: -1} }, false},
		{"whole, at no time at all", func(n *Snapshot) { *n = Snapshot{Now: math.MinInt64} }, false},
		{"whole, at the end of time", func(n *Snapshot) { *n = Snapshot{Now: math.MaxInt64} }, false},
		{"negative hits", of(TokenBucket, -1, 0), false},
		{"negative sliding hits", of(SlidingWindow, -1, 1), false},
		{"negative hits before", of(SlidingWindow, 1, -1), false},
		{"only hits before", of(SlidingWindow, 0, 1), true},
		{"hits before a token's window", of(TokenBucket, 1, 1), false},
		{"most hits", of(SlidingWindow, math.MaxInt64, math.MaxInt64), true},
		{"most leaky hits", of(LeakyBucket, math.MaxInt64, minuteNs-1), true},
		{"a part of a hit", of(LeakyBucket, 0, 1), true},
		{"a whole hit as parts", of(LeakyBucket, 0, minuteNs), false},
		{"a negative part", of(LeakyBucket, 1, -1), false},
		{"an unknown algorithm", of(3, 1, 0), false},
		{"the largest algorithm", of(255, 1, 0), false},
		{"a limit of 0", func(n *Snapshot) { n.Limit = 0 }, true},
		{"a negative limit", func(n *Snapshot) { n.Limit = -1 }, false},
		{"the largest limit", func(n *Snapshot) { n.Limit = math.MaxInt64 }, true},
		{"no duration", func(n *Snapshot) { n.Duration = 0 }, false},
		{"a negative duration", func(n *Snapshot) { n.Duration = math.MinInt64 }, false},
		{"the longest duration", func(n *Snapshot) { n.Duration = longest }, true},
		{"a longer duration", func(n *Snapshot) { n.Duration = longest + 1 }, false},
		{"from the future", func(n *Snapshot) { n.Age = -1 }, false},
		{"a great age", func(n *Snapshot) { n.Age = 2 * longest }, true},
		{"a greater age", func(n *Snapshot) { n.Age = 2*longest + 1 }, false},
		{"the greatest age", func(n *Snapshot) { n.Age = math.MaxInt64 }, false},
		{"1970", func(n *Snapshot) { n.Now = 0 }, true},
		{"before", func(n *Snapshot) { n.Now = -1 }, false},
		{"the end of time", func(n *Snapshot) { n.Now = math.MaxInt64 }, false},
	} {
		n := good
		test.change(&n)
		s, ok := n.State()
		if ok != test.want {
			t.Errorf("%s: %+v: %v", test.what, s, ok)
		}
		if !ok && s != (State{}) {
			t.Errorf("%s: %+v, though it can't be", test.what, s)
		}
	}
}

func TestDebtsThatCannotBe(t *testing.T) {
	good := Owed{Name: "n", UniqueKey: "k", Limit: 10, Duration: minuteNs, Age: 5, Hits: 3}
	for _, test := range []struct {
		what   string
		change func(o *Owed)
		want   string // what the error starts with
	}{
		{"nothing changed", func(o *Owed) {}, ""},
		{"no name", func(o *Owed) { o.Name = "" }, "name: "},
		{"a long name", func(o *Owed) { o.Name = strings.Repeat("n", MaxNameBytes) }, ""},
		{"too long a name", func(o *Owed) { o.Name = strings.Repeat("n", MaxNameBytes+1) }, "name: "},
		{"half a rune", func(o *Owed) { o.Name = "\xc3" }, "name: "},
		{"no key", func(o *Owed) { o.UniqueKey = "" }, "unique_key: "},
		{"a long key", func(o *Owed) { o.UniqueKey = strings.Repeat("k", MaxKeyBytes) }, ""},
		{"too long a key", func(o *Owed) { o.UniqueKey = strings.Repeat("k", MaxKeyBytes+1) }, "unique_key: "},
		{"a key with NUL", func(o *Owed) { o.UniqueKey = "k\x00" }, "unique_key: "},
		{"no hits", func(o *Owed) { o.Hits = 0 }, "no such"},
		{"negative hits", func(o *Owed) { o.Hits = -1 }, "no such"},
		{"the least hits", func(o *Owed) { o.Hits = math.MinInt64 }, "no such"},
		{"the most hits", func(o *Owed) { o.Hits = math.MaxInt64 }, ""},
		{"token hits of the window before", func(o *Owed) { o.Previous = 1 }, "no such"},
		{"leaky hits of a window before", func(o *Owed) { o.Algorithm, o.Previous = LeakyBucket, 1 }, "no such"},
		{"sliding hits of the window before", func(o *Owed) { o.Algorithm, o.Hits, o.Previous = SlidingWindow, 0, 1 }, ""},
		{"negative hits of the window before", func(o *Owed) { o.Algorithm, o.Previous = SlidingWindow, -1 }, "no such"},
		{"an unknown algorithm", func(o *Owed) { o.Algorithm = 3 }, "no such"},
		{"the largest algorithm", func(o *Owed) { o.Algorithm = 255 }, "no such"},
		{"a negative limit", func(o *Owed) { o.Limit = -1 }, "no such"},
		{"no duration", func(o *Owed) { o.Duration = 0 }, "no such"},
		{"the longest duration", func(o *Owed) { o.Duration = longest }, ""},
		{"a longer duration", func(o *Owed) { o.Duration = longest + 1 }, "no such"},
		{"from the future", func(o *Owed) { o.Age = -1 }, "no such"},
		{"a great age", func(o *Owed) { o.Age = 2 * longest }, ""},
		{"a greater age", func(o *Owed) { o.Age = 2*longest + 1 }, "no such"},
	} {
		o := good
		test.change(&o)
		d, err := o.Debt(at(debtStart))
		if (err == nil) != (test.want == "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.what, err, test.want)
		}
		if err != nil && d != (Debt{}) {
			t.Errorf("%s: %+v, though it can't be", test.what, d)
		}
	}
	for _, clock := range []int64{-1, math.MaxInt64} {
		if d, err := good.Debt(at(clock)); err == nil {
			t.Errorf("by a clock that shows %d: %+v", clock, d)
		}
	}
}

// FuzzTold takes in what another node might say of a limit: if it is believed, nothing worse may follow than wrong counts.
func FuzzTold(f *testing.F) {
	f.Add(uint8(0), int64(10), int64(minuteNs), int64(0), int64(3), int64(0), int64(0), int64(1), int64(debtStart))
	f.Add(uint8(1), int64(math.MaxInt64), int64(1), int64(0), int64(math.MaxInt64), int64(0), int64(math.MaxInt64), int64(7), int64(0))
	f.Add(uint8(2), int64(0), int64(316_310_400_000*nsPerMs), int64(math.MaxInt64), int64(1), int64(math.MaxInt64), int64(1), int64(-7), int64(math.MinInt64))
	f.Add(uint8(2), int64(5), int64(1000), int64(999), int64(1), int64(1<<62), int64(1<<40), int64(math.MinInt64), int64(math.MaxInt64))
	f.Add(uint8(7), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(-1), int64(0), int64(-1))
	f.Fuzz(func(t *testing.T, algorithm uint8, limit, duration, age, used, rest, later, hits, clock int64) {
		now := at(debtStart)
		l := New(10, func() time.Time { return now })
		a := Algorithm(algorithm)
		o := Owed{Name: "n", UniqueKey: "k", Algorithm: a, Limit: limit, Duration: duration, Age: age, Hits: used, Previous: rest}
		n := Snapshot{Now: clock, Algorithm: a, Limit: limit, Duration: duration, Age: age, Used: used, Rest: rest}
		s, ok := n.State()
		if ok != (s != State{}) && (used != 0 || rest != 0) {
			t.Fatalf("%+v: %+v, %v", n, s, ok)
		}
		r := Request{Name: "n", UniqueKey: "k", Hits: hits, Limit: max(0, limit), Duration: 1 + max(0, duration/nsPerMs)%MaxDurationMs, Algorithm: a % algorithms}
		use := func(what string, s State, now time.Time) State {
			next, result, _ := l.Try(&s, &r, now)
			if result.Status == StatusError || result.Remaining < 0 || result.Remaining > r.Limit {
				t.Fatalf("%s: %+v on %+v: %+v, %+v", what, r, s, next, result)
			}
			return next
		}
		ahead := time.Duration(0)
		if ok {
			ahead = at(clock).Sub(now)
			next := use("a copy", s, now.Add(ahead))
			use("a copy later", next, now.Add(ahead).Add(time.Duration(later&math.MaxInt64>>2)))
			use("a copy before", next, now.Add(ahead).Add(-time.Duration(later&math.MaxInt64>>2)))
			var again Snapshot
			again.Set(s, at(clock))
			if _, ok := again.State(); !ok {
				t.Fatalf("%+v became %+v", n, again)
			}
		}
		d, err := o.Debt(now)
		if err != nil {
			if d != (Debt{}) {
				t.Fatalf("%+v: %+v, %v", o, d, err)
			}
			return
		}
		if got := d.Hits(now); got < 0 || got > sumInt(used, rest) {
			t.Fatalf("%+v: %d hits", o, got)
		}
		shifted := d.Shift(ahead)
		if joined, ok := s.Join(&shifted, now.Add(ahead)); ok {
			use("a copy with a debt", joined, now.Add(ahead))
		}
		other := d
		other.Merge(&d, now.Add(time.Duration(later&math.MaxInt64>>2)))
		own := use("a debt", d.state, now)
		other.Add(1+hits&math.MaxInt64>>1, &own, now)
		for _, d := range []Debt{d, other, d} {
			if got, ok := l.Owe(r.AppendID(nil), &d); got < 0 || !ok && got == 0 {
				t.Fatalf("%+v: %d, %v", d, got, ok)
			}
			if got := l.Check(r); got.Status == StatusError || got.Remaining < 0 || got.Remaining > r.Limit {
				t.Fatalf("%+v after %+v: %+v", r, d, got)
			}
		}
		var held Snapshot
		held.Set(l.State(r.AppendID(nil)), now)
		if _, ok := held.State(); !ok {
			t.Fatalf("a Limiter holds what can't be: %+v", held)
		}
		if back, ok := d.Owed("\x01nk", now); ok {
			if _, err := back.Debt(now); err != nil {
				t.Fatalf("%+v: %+v: %v", o, back, err)
			}
		}
		now = now.Add(2 * MaxDurationMs * time.Millisecond)
		l.Sweep()
	})
}

func sumInt(a, b int64) int64 { return int64(sum63(uint64(a), uint64(b))) }

// TestToldMessages fixes the form of what nodes of different versions tell each other.
func TestToldMessages(t *testing.T) {
	for _, test := range []struct {
		what    string
		value   any
		message string
		more    string // the same from a newer version
	}{
		{"nothing to report", &Report{Start: 1700000000000000001, Debts: []Owed{}}, `{"start":1700000000000000001,"seq":0,"debts":[]}`,
			`{"protocol":2,"start":1700000000000000001,"seq":0,"debts":[]}`},
		{"a report", &Report{Start: 7, Seq: 3, Debts: []Owed{
			{Name: "n", UniqueKey: "é\"", Algorithm: SlidingWindow, Limit: 100, Duration: 60_000_000_000, Age: 5, Hits: 2, Previous: 1, Start: 9, Epoch: 4, Copy: true},
			{Name: "n", UniqueKey: "k", Limit: 1, Duration: 1, Hits: math.MaxInt64},
		}}, `{"start":7,"seq":3,"debts":[` +
			`{"name":"n","unique_key":"é\"","algorithm":2,"limit":100,"duration":60000000000,"age":5,"hits":2,"previous":1,"start":9,"epoch":4,"keep_copy":true},` +
			`{"name":"n","unique_key":"k","algorithm":0,"limit":1,"duration":1,"age":0,"hits":9223372036854775807}]}`,
			`{"start":7,"seq":3,"debts":[` +
				`{"name":"n","unique_key":"é\"","algorithm":2,"limit":100,"duration":60000000000,"age":5,"hits":2,"previous":1,"start":9,"epoch":4,"keep_copy":true,"take":{"all":[1]}},` +
				`{"name":"n","unique_key":"k","algorithm":0,"limit":1,"duration":1,"age":0,"hits":9223372036854775807}],"take":"x"}`},
		{"no states", &States{States: []Named{}}, `{"states":[]}`, `{"take":[],"states":[]}`},
		{"states", &States{States: []Named{{Name: "n", UniqueKey: "k", Snapshot: Snapshot{
			Start: 1, Epoch: 2, Version: 3, Acked: 4, Now: 5, Algorithm: LeakyBucket, Limit: 6, Duration: 7, Age: 8, Used: 9, Rest: 10}}}},
			`{"states":[{"name":"n","unique_key":"k","start":1,"epoch":2,"version":3,"acked":4,"now":5,"algorithm":1,"limit":6,"duration":7,"age":8,"used":9,"rest":10}]}`,
			`{"states":[{"name":"n","unique_key":"k","start":1,"epoch":2,"version":3,"later":{},"acked":4,"now":5,"algorithm":1,"limit":6,"duration":7,"age":8,"used":9,"rest":10}]}`},
	} {
		message, err := AppendMessage(nil, test.value)
		if err != nil || string(message) != test.message {
			t.Errorf("%s: %s, %v\nwant %s", test.what, message, err, test.message)
		}
		for _, message := range []string{test.message, test.more} {
			got := reflect.New(reflect.TypeOf(test.value).Elem())
			if err := Unmarshal([]byte(message), got.Interface()); err != nil || !reflect.DeepEqual(got.Interface(), test.value) {
				t.Errorf("%s\n%+v, %v\nwant %+v", message, got, err, test.value)
			}
		}
	}
	result := Result{Status: StatusOK, Limit: 10, Remaining: 9, ResetTime: 8, State: &Snapshot{
		Start: 1, Epoch: 2, Version: 3, Acked: 4, Now: 5, Algorithm: SlidingWindow, Limit: 6, Duration: 7, Age: 8, Used: 9, Rest: 10}}
	const members = `"start":1,"epoch":2,"version":3,"acked":4,"now":5,"algorithm":2,"limit":6,"duration":7,"age":8,"used":9,"rest":10`
	message := func(members string) string {
		return `{"rate_limits":[{"status":"OK","limit":10,"remaining":9,"reset_time":8,"metadata":{},"state":{` + members + "}}]}\n"
	}
	if got := string(AppendResults(nil, []Result{result})); got != message(members) {
		t.Errorf("%s\nwant %s", got, message(members))
	}
	for _, members := range []string{members, members + `,"take":7`, `"take":[{"start":2}],` + members, strings.Replace(members, `"algorithm":2`, `"algorithm":"SLIDING_WINDOW"`, 1)} {
		if got, err := ReadPeerResults(nil, []byte(message(members))); err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], result) {
			t.Errorf("%s: %+v, %v", members, got, err)
		}
	}
	for _, members := range []string{members + `,"start":1`, members + `,"rest":10`, strings.Replace(members, "1", "1.5", 1), strings.Replace(members, "1", "null", 1)} {
		if got, err := ReadPeerResults(nil, []byte(message(members))); err == nil {
			t.Errorf("%s: %+v", members, got)
		}
	}
	if got := readState(t, `{"algorithm":3,"used":1}`); got.Algorithm < algorithms {
		t.Errorf("an unknown algorithm became %v", got.Algorithm)
	}
}

// TestSnapshotsHaveOneForm compares the two codecs of a snapshot, member by member.
func TestSnapshotsHaveOneForm(t *testing.T) {
	var n Snapshot
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
	if got := appendSnapshot(nil, &n); err != nil || string(got) != string(want) {
		t.Errorf("by hand    %s\nby library %s, %v", got, want, err)
	}
	if got := readState(t, string(want)); *got != n {
		t.Errorf("%s became %+v", want, *got)
	}
}

func TestSplitID(t *testing.T) {
	for _, pair := range [][2]string{{"n", "k"}, {"name", "key"}, {strings.Repeat("n", 255), "k"}, {"é", "\x01"}, {"a", strings.Repeat("b", 1024)}} {
		r := Request{Name: pair[0], UniqueKey: pair[1]}
		o, n := Owed{Name: pair[0], UniqueKey: pair[1]}, Named{Name: pair[0], UniqueKey: pair[1]}
		id := string(r.AppendID(nil))
		if name, key := SplitID(id); name != pair[0] || key != pair[1] || string(o.AppendID(nil)) != id || string(n.AppendID(nil)) != id {
			t.Errorf("%q: %q, %q", id, name, key)
		}
	}
}
