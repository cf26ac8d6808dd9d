package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"

	"weir/limits/bucket"
)

// readBoth reads a message as Unmarshal does and as the library does, which must be the same.
func readBoth[Message any](t *testing.T, text []byte) (message Message, ok bool) {
	t.Helper()
	var want Message
	err := Unmarshal(text, &message)
	wantErr := library(text, &want)
	if (err == nil) != (wantErr == nil) || err == nil && !reflect.DeepEqual(message, want) || err == errUnexplained {
		t.Fatalf("%q\nread    %+v, %v\nlibrary %+v, %v", text, message, err, want, wantErr)
	}
	if err != nil {
		return message, false
	}
	written, err := AppendMessage(nil, &message)
	library, wantErr := json.Marshal(&message)
	if err != nil || wantErr != nil || !bytes.Equal(written, library) {
		t.Fatalf("written %s, %v\nlibrary %s, %v", written, err, library, wantErr)
	}
	return message, true
}

// anyReport draws a report.
func anyReport(random *rand.Rand, name string) *Report {
	number := func() int64 { return random.Int64() >> random.IntN(64) }
	some := func() int64 { return number() * random.Int64N(2) }
	r := &Report{Start: number(), Seq: number(), Debts: []Debt{}}
	for range random.IntN(4) {
		r.Debts = append(r.Debts, Debt{Key: Key{"n", fmt.Sprint("k", number())},
			DebtSnapshot: bucket.DebtSnapshot{Algorithm: bucket.Algorithm(random.IntN(256)), Limit: number(),
				Duration: number(), Age: number(), Hits: number(), Previous: some()},
			Start: some(), Epoch: some(), Copy: random.IntN(2) == 0})
	}
	for range random.IntN(4) {
		r.States = append(r.States, KeyedState{Key: Key{name, fmt.Sprint("k", number())}, Take: some(),
			Snapshot: bucket.Snapshot{
				Start: number(), Epoch: number(), Version: number(), Acked: number(), Now: number(),
				Algorithm: bucket.Algorithm(random.IntN(256)),
				Limit:     number(), Duration: number(), Age: number(), Used: number(), Rest: -number()}})
	}
	if random.IntN(3) == 0 {
		r.Handed = "ring"
	}
	return r
}

// TestPeerMessagesRoundTrip writes and reads reports, and the states in them by themselves.
func TestPeerMessagesRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		want := anyReport(random, []string{"n", "né\"", "né"}[random.IntN(3)])
		text, err := AppendMessage(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := readBoth[Report](t, text)
		if !ok || !reflect.DeepEqual(&got, want) {
			t.Fatalf("%s\nread %+v\nwant %+v", text, got, want)
		}
		if len(want.States) > 0 {
			text, _ = AppendMessage(nil, &StateUpdate{want.States})
			if got, ok := readBoth[StateUpdate](t, text); !ok || !reflect.DeepEqual(got.States, want.States) {
				t.Fatalf("%s\nread %+v", text, got)
			}
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 3))
	for range 10 {
		text, err := AppendMessage(nil, anyReport(random, "né\""))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{"", "{}", `{"start":1,"seq":2,"debts":[],"x":[1]}`, `{"debts":[{"algorithm":256}]}`,
		`{"debts":[{"keep_copy":false}]}`,
		`{"states":[{"name":"n","unique_key":"k","algorithm":3,"take":1}]}`, `{"states":null}`, `{"states":[],"states":[]}`,
		`{"seq":1.0}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		readBoth[Report](t, text)
		readBoth[StateUpdate](t, text)
		readBoth[TakeRequest](t, text)
		readBoth[KeyedState](t, text)
		readBoth[struct{}](t, text)
	})
}

func FuzzResults(f *testing.F) {
	for _, members := range []string{`"status":"OK","limit":1,"remaining":1,"reset_time":1,"metadata":{"owner":"o"}`,
		`"error":"e\u00e9"`,
		`"status":"OVER_LIMIT","retry_after":-1,"x":[{}]`, `"state":{"start":1,"algorithm":"LEAKY_BUCKET","used":3},` +
			`"metadata":{"source":"s"}`,
		`"state":{"algorithm":300}`, `"state":null`, `"status":"no"`} {
		f.Add([]byte(`{"rate_limits":[{` + members + `}]}`))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := ReadPeerResults(nil, text)
		want, ok := libraryResults(text)
		if ok != (err == nil) || len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) ||
			err == errUnexplained {
			t.Fatalf("%q\nread    %+v, %v\nlibrary %+v, %v", text, got, err, want, ok)
		}
	})
}
