package limits

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// fill takes i+1 hits of 10 of some limits, in all algorithms.
func fill(l *Limiter, limits int) {
	for i := range limits {
		l.Check(Request{Name: "mail", UniqueKey: fmt.Sprint(i), Hits: int64(i%10 + 1), Limit: 10,
			Duration:  int64(i%3+1) * 1000,
			Algorithm: Algorithm(i % 3)})
	}
}

// TestSaveAndLoad writes limits to a file and reads it into another Limiter a while later: each has what it would have
// if nothing had happened.
func TestSaveAndLoad(t *testing.T) {
	for _, down := range []time.Duration{0, time.Second / 2, time.Second, 2500 * time.Millisecond, time.Hour, -time.Hour} {
		t.Run(down.String(), func(t *testing.T) {
			now := time.Unix(1_700_000_000, 0)
			clock := func() time.Time { return now }
			old := New(100_000, clock)
			fill(old, 3000)
			var file bytes.Buffer
			if n, err := old.Save(&file); n != 3000 || err != nil {
				t.Fatal(n, err)
			}
			now = now.Add(down)
			fresh := New(100_000, clock)
			n, err := fresh.Load(bytes.NewReader(file.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			old.Sweep()
			if entries := old.Stats().Entries; n != entries || fresh.Stats().Entries != entries {
				t.Errorf("%d were read, and %d are held, want %d", n, fresh.Stats().Entries, entries)
			}
			for i := range 3000 {
				r := Request{Name: "mail", UniqueKey: fmt.Sprint(i), Hits: 1, Limit: 10, Duration: int64(i%3+1) * 1000,
					Algorithm: Algorithm(i % 3)}
				if got, want := fresh.Check(r), old.Check(r); got != want {
					t.Fatalf("%+v: got %+v, want %+v", r, got, want)
				}
			}
		})
	}
}

// TestLoadDamaged changes each byte of a file in turn, and leaves out the end from each byte on: nothing is read then.
func TestLoadDamaged(t *testing.T) {
	clock := func() time.Time { return time.Unix(1_700_000_000, 0) }
	old := New(100, clock)
	fill(old, 3)
	var file bytes.Buffer
	if _, err := old.Save(&file); err != nil {
		t.Fatal(err)
	}
	whole := file.Bytes()
	try := func(what string, text []byte) {
		t.Helper()
		l := New(100, clock)
		if n, err := l.Load(bytes.NewReader(text)); err == nil || n != 0 || l.Stats().Entries != 0 {
			t.Errorf("%s: %d states, error %v", what, n, err)
		}
	}
	for i := range whole {
		changed := bytes.Clone(whole)
		changed[i] ^= 1
		try(fmt.Sprint("byte ", i), changed)
		try(fmt.Sprint("up to ", i), whole[:i])
	}
	try("twice", append(bytes.Clone(whole), whole...))
	try("more", append(bytes.Clone(whole), 'x'))
	try("newer", []byte(strings.Replace(string(whole), `{"weir_limits":1}`, `{"weir_limits":2}`, 1)))
}

// A fullDisk takes some bytes, and then no more.
type fullDisk struct{ room int }

var errFull = errors.New("no space left")

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.room)
	if d.room -= n; n < len(p) {
		return n, errFull
	}
	return n, nil
}

func TestSaveToAFullDisk(t *testing.T) {
	l := New(10_000, time.Now)
	fill(l, 1000)
	for _, room := range []int{0, 10, 70_000} {
		if _, err := l.Save(&fullDisk{room}); !errors.Is(err, errFull) {
			t.Errorf("room for %d: got %v", room, err)
		}
	}
	if _, err := l.Load(struct {
		io.Reader
		io.Seeker
	}{io.MultiReader(strings.NewReader("{"), iotestErr{}), nil}); !errors.Is(err, errFull) {
		t.Errorf("reading: got %v", err)
	}
}

type iotestErr struct{}

func (iotestErr) Read([]byte) (int, error) { return 0, errFull }
