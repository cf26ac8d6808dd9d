package peers

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/limits"
	"weir/limits/wire"
	"weir/ring"
)

// A breakerStep is something that a breaker hears of, and how it stands afterwards.
type breakerStep struct {
	at    time.Duration // since the start
	event byte          // 'f' a failure, 'u' one for want of a connection, 'a' an answer, 'p' one to a probe
	want  string        // as breakerView returns it
}

// breakerView returns what the parts of a breaker amount to.
func breakerView(b *breaker) string {
	state, since := b.status()
	word := state.String()
	switch {
	case (state == StateUp) != since.IsZero():
		word += ", but failing since " + since.String()
	case b.state() >= StateDown:
		word += ", not asked"
	}
	if b.away.Load() {
		word += ", away"
	}
	return word
}

const (
	isUp      = "up"
	isFailing = "failing"
	isDown    = "down, not asked"
	isGone    = "down, not asked, away"
	isOut     = "out, not asked, away"
)

// outage is a peer that falls silent at a time, and is out 3 s later.
func outage(at time.Duration) []breakerStep {
	return []breakerStep{
		{at, 'f', isFailing}, {at, 'f', isFailing}, {at, 'f', isDown},
		{at + 3*time.Second, 'f', isOut},
	}
}

// held is a peer that is out and answers, but has to wait before that counts.
func held(out, wait time.Duration) []breakerStep {
	return []breakerStep{{out, 'a', isOut}, {out + wait - 1, 'a', isOut}, {out + wait, 'a', isUp}}
}

func TestBreaker(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name  string
		steps []breakerStep
	}{
		{"answers", []breakerStep{{0, 'a', isUp}, {s, 'a', isUp}}},
		{"the third failure", []breakerStep{{0, 'f', isFailing}, {s, 'u', isFailing}, {2 * s, 'f', isDown}}},
		{"an answer in between", []breakerStep{
			{0, 'f', isFailing}, {0, 'f', isFailing}, {0, 'a', isUp},
			{0, 'f', isFailing}, {0, 'f', isFailing}, {0, 'f', isDown},
		}},
		{"back before it is out", []breakerStep{
			{0, 'f', isFailing}, {0, 'f', isFailing}, {0, 'f', isDown}, {2 * s, 'a', isUp},
		}},
		{"out 3 s after the first failure", []breakerStep{
			{0, 'f', isFailing}, {s, 'f', isFailing}, {2 * s, 'f', isDown},
			{3*s - 1, 'f', isDown}, {3 * s, 'f', isOut}, {9 * s, 'f', isOut},
		}},
		{"3 s count from the last answer on", []breakerStep{
			{0, 'f', isFailing}, {s, 'a', isUp}, {s, 'f', isFailing}, {s, 'f', isFailing}, {s, 'f', isDown},
			{4*s - 1, 'f', isDown}, {4 * s, 'f', isOut},
		}},
		{"failures count however slowly they come, but pauses are no silence", []breakerStep{
			{0, 'f', isFailing}, {60 * s, 'f', isFailing}, {120 * s, 'f', isDown},
			{123*s - 1, 'f', isDown}, {123 * s, 'f', isOut},
		}},
		{"what is no pause", []breakerStep{
			{0, 'f', isFailing}, {3*s - 1, 'f', isFailing}, {3*s - 1, 'f', isDown}, {3 * s, 'f', isOut},
		}},
		{"not connected", []breakerStep{
			{0, 'u', isFailing}, {0, 'u', isFailing}, {0, 'u', isGone},
			{s, 'f', isDown}, {2 * s, 'u', isGone}, {2 * s, 'a', isUp},
		}},
		{"not connected, and out", []breakerStep{
			{0, 'u', isFailing}, {0, 'u', isFailing}, {0, 'u', isGone}, {3 * s, 'u', isOut}, {3 * s, 'f', isOut},
		}},
		{"a probe brings it back", []breakerStep{
			{0, 'f', isFailing}, {0, 'f', isFailing}, {0, 'f', isDown}, {s, 'p', isUp},
			{s, 'f', isFailing}, {s, 'f', isFailing}, {s, 'f', isDown}, {2 * s, 'p', isUp},
		}},
		{"down again before a probe saw it up", []breakerStep{
			{0, 'f', isFailing}, {0, 'f', isFailing}, {0, 'f', isDown}, {s, 'a', isUp},
			{s, 'f', isFailing}, {s, 'f', isFailing}, {s, 'f', isDown}, {2 * s, 'p', isUp}, {3 * s, 'a', isUp},
		}},
		{"a probe while it is held", slices.Concat(
			outage(0), []breakerStep{{3 * s, 'p', isUp}},
			outage(10*s), []breakerStep{{14 * s, 'p', isOut}, {15 * s, 'p', isUp}})},
		{"the first outage ends with an answer", slices.Concat(outage(0), []breakerStep{{3 * s, 'a', isUp}})},
		{"the second within a minute holds", slices.Concat(
			outage(0), []breakerStep{{10 * s, 'a', isUp}},
			outage(20*s), held(23*s, 2*s))},
		{"a minute is counted until it is out again", slices.Concat(
			outage(0), []breakerStep{{10 * s, 'a', isUp}},
			outage(67*s), held(70*s, 2*s))},
		{"longer and longer, to a minute", slices.Concat(
			outage(0), []breakerStep{{3 * s, 'a', isUp}},
			outage(10*s), held(13*s, 2*s),
			outage(20*s), held(23*s, 4*s),
			outage(30*s), held(33*s, 8*s),
			outage(50*s), held(53*s, 16*s),
			outage(100*s), held(103*s, 32*s),
			outage(150*s), held(153*s, 60*s),
			outage(250*s), held(253*s, 60*s))},
		{"two hours later, still a minute", slices.Concat(
			outage(0), []breakerStep{{3 * s, 'a', isUp}}, manyOutages(60),
			outage(122*60*s), held(122*60*s+3*s, 60*s))},
		{"a minute of health, and it begins anew", slices.Concat(
			outage(0), []breakerStep{{3 * s, 'a', isUp}},
			outage(10*s), held(13*s, 2*s),
			outage(72*s+1), []breakerStep{{75*s + 1, 'a', isUp}},
			outage(80*s), held(83*s, 2*s))},
		{"failures while it is held change nothing", slices.Concat(
			outage(0), []breakerStep{{3 * s, 'a', isUp}},
			outage(10*s), []breakerStep{{14 * s, 'a', isOut}, {14 * s, 'f', isOut}, {15 * s, 'a', isUp}})},
	} {
		t.Run(test.name, func(t *testing.T) {
			start := time.Unix(1_700_000_000, 0)
			var b breaker
			probing := false
			for i, step := range test.steps {
				wasDown, now := b.state() >= StateDown, start.Add(step.at)
				switch step.event {
				case 'a':
					b.answered(now)
				case 'p':
					last := b.probed(now)
					if probing = b.state() >= StateDown; last == probing {
						t.Errorf("step %d: the last probe: %v", i, last)
					}
				default:
					begins := b.failed(now, step.event == 'u')
					if want := b.state() >= StateDown && !wasDown && !probing; begins != want {
						t.Errorf("step %d: probes begin: %v", i, begins)
					}
					probing = probing || begins
				}
				if got := breakerView(&b); got != step.want {
					t.Fatalf("step %d, %c at %v: got %q, want %q", i, step.event, step.at, got, step.want)
				}
			}
		})
	}
}

// manyOutages are an outage every two minutes, of which the peer is up for less than one.
func manyOutages(n int) (steps []breakerStep) {
	for i := range n {
		at := time.Duration(i+1) * 2 * time.Minute
		steps = append(steps, outage(at)...)
		steps = append(steps, breakerStep{at + 3*time.Second + 62*time.Second, 'a', isUp})
	}
	return steps
}

func TestBreakerSince(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	var b breaker
	for i := range 10 {
		b.failed(start.Add(time.Duration(i)*time.Second), false)
		if state, since := b.status(); !since.Equal(start) {
			t.Errorf("%s since %v, want since the first failure", state, since)
		}
	}
}

// TestBreakerInParallel has many calls end at once; whatever happened, an answer in the end brings the peer up, and of
// the failures that brought it down only one is to begin probes.
func TestBreakerInParallel(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var b breaker
	for range 200 {
		begun := make(chan bool, 100)
		var all sync.WaitGroup
		for range cap(begun) {
			all.Go(func() {
				if b.failed(now, true) {
					begun <- true
				}
				b.status()
			})
		}
		all.Wait()
		if len(begun) != 1 || breakerView(&b) != isGone {
			t.Fatalf("%d want to probe, %s", len(begun), breakerView(&b))
		}
		if !b.probed(now) || breakerView(&b) != isUp {
			t.Fatal(breakerView(&b))
		}
	}
}

// An air is a network without sockets, for tests in a bubble: it answers each request as its state has it.
type air struct {
	mu    sync.Mutex
	state airState    // guarded by mu
	calls []time.Time // when it was called; guarded by mu
	under int         // calls under way; guarded by mu
}

type airState int

const (
	airFine    airState = iota
	airRefused          // connections are refused
	airSilent           // requests arrive, answers don't
	airBusy             // the answer is 503
	airBroken           // the answer is 500
)

func (a *air) set(state airState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = state
}

// take returns the calls since the last take.
func (a *air) take() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.calls = nil }()
	return a.calls
}

func (a *air) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	state := a.state
	a.calls = append(a.calls, time.Now())
	a.under++
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.under--
	}()
	if state == airRefused {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")}
	}
	httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
	answer := func(status int, body string) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
	switch state {
	case airSilent:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case airBusy:
		return answer(http.StatusServiceUnavailable, "")
	case airBroken:
		return answer(http.StatusInternalServerError, "")
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	requests, err := wire.ReadPeerRequests(nil, body)
	if err != nil {
		return nil, err
	}
	results := make([]limits.Result, len(requests))
	for i := range results {
		results[i].Status = limits.StatusOK
	}
	return answer(http.StatusOK, string(wire.AppendResults(nil, results)))
}

// inTheAir runs test in a bubble with a Set of three nodes, of which this one is a:1 and the air is between all.
func inTheAir(t *testing.T, test func(t *testing.T, s *Set, b *Peer, wind *air)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		winds := map[string]*air{"b:1": {}, "c:1": {}}
		s := New(Options{Transport: func(peer string, _ http.RoundTripper) http.RoundTripper { return winds[peer] }})
		defer s.Close()
		s.Update("a:1", []Member{{Name: "a:1"}, {Name: "b:1"}, {Name: "c:1"}})
		test(t, s, s.View().peer("b:1"), winds["b:1"])
		s.Close()
		if n := len(winds["c:1"].take()); n > 0 {
			t.Errorf("%d calls to a node that was asked for nothing", n)
		}
	})
}

// pass lets time go by in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// one is a group of one item.
var one = []limits.Request{{Name: "n", UniqueKey: "k", Hits: 1, Limit: 10, Duration: 1000}}

// bringDown has calls fail until there are enough of them.
func bringDown(t *testing.T, p *Peer) {
	t.Helper()
	for range failuresToDown {
		if _, err := p.Check(t.Context(), one, true); err == nil {
			t.Fatal("no failure")
		}
	}
	if got := breakerView(&p.health); !strings.HasPrefix(got, isDown) {
		t.Fatal(got)
	}
}

// gaps are the times between probes, the first since start.
func gaps(start time.Time, calls []time.Time) (gaps []time.Duration) {
	for _, at := range calls {
		gaps = append(gaps, at.Sub(start))
		start = at
	}
	return gaps
}

// TestProbesBegin has a peer go down, and looks at the probes of ten seconds: about every 300 ms, never all the same.
func TestProbesBegin(t *testing.T) {
	inTheAir(t, func(t *testing.T, s *Set, b *Peer, wind *air) {
		wind.set(airRefused)
		for range failuresToDown - 1 {
			b.Check(t.Context(), one, true)
		}
		wind.take()
		if pass(time.Minute); len(wind.take()) != 0 {
			t.Error("it was probed before it was down")
		}
		b.Check(t.Context(), one, true)
		wind.take()
		start := time.Now()
		pass(10 * time.Second)
		steps := gaps(start, wind.take())
		if len(steps) < 27 || len(steps) > 44 {
			t.Errorf("%d probes in 10 s", len(steps))
		}
		for _, step := range steps {
			if step < ProbeEvery*3/4 || step >= ProbeEvery*5/4 {
				t.Errorf("a probe after %v", step)
			}
		}
		if slices.Min(steps) == slices.Max(steps) {
			t.Error("probes have no jitter")
		}
	})
}

// TestProbesAreApart has two nodes lose the same peer in the same moment: they must not go on probing it together.
func TestProbesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		winds := [2]*air{{state: airRefused}, {state: airRefused}}
		var calls [2][]time.Time
		for i, self := range []string{"a:1", "c:1"} {
			s := New(Options{Transport: func(string, http.RoundTripper) http.RoundTripper { return winds[i] }})
			defer s.Close()
			s.Update(self, []Member{{Name: "a:1"}, {Name: "b:1"}, {Name: "c:1"}})
			bringDown(t, s.View().peer("b:1"))
		}
		winds[0].take()
		winds[1].take()
		pass(3 * time.Second)
		calls[0], calls[1] = winds[0].take(), winds[1].take()
		together := 0
		for i := range min(len(calls[0]), len(calls[1])) {
			if calls[0][i].Equal(calls[1][i]) {
				together++
			}
		}
		if together > 1 {
			t.Errorf("%d of %d probes came together", together, len(calls[0]))
		}
	})
}

// TestProbesEnd looks at each reason for which probes end. Had a probe's goroutine stayed the bubble would not end.
func TestProbesEnd(t *testing.T) {
	for _, test := range []struct {
		name string
		down airState
		end  func(s *Set, b *Peer, wind *air)
	}{
		{"an answer", airRefused, func(_ *Set, _ *Peer, wind *air) { wind.set(airFine) }},
		{"an answer after silence", airSilent, func(_ *Set, _ *Peer, wind *air) { wind.set(airFine) }},
		{"a refusal is an answer", airBroken, func(_ *Set, _ *Peer, wind *air) { wind.set(airBusy) }},
		{"no longer listed", airRefused, func(s *Set, _ *Peer, _ *air) { s.Update("a:1", list("a:1", "c:1")) }},
		{"no longer listed while a probe waits", airSilent, func(s *Set, _ *Peer, _ *air) {
			s.Update("a:1", list("a:1", "c:1"))
		}},
		{"no longer listed, as this node is neither", airRefused, func(s *Set, _ *Peer, _ *air) {
			s.Update("", list("c:1"))
		}},
		{"closed", airRefused, func(s *Set, _ *Peer, _ *air) { s.Close() }},
		{"closed while a probe waits", airSilent, func(s *Set, _ *Peer, wind *air) {
			for wind.mu.Lock(); wind.under == 0; wind.mu.Lock() {
				wind.mu.Unlock()
				pass(ProbeEvery / 10)
			}
			wind.mu.Unlock()
			start := time.Now()
			if s.Close(); time.Since(start) != 0 {
				panic(fmt.Sprint("Close took ", time.Since(start)))
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inTheAir(t, func(t *testing.T, s *Set, b *Peer, wind *air) {
				wind.set(test.down)
				bringDown(t, b)
				pass(2 * time.Second)
				if len(wind.take()) < 3 {
					t.Fatal("no probes")
				}
				test.end(s, b, wind)
				pass(time.Second) // one may be on its way, or about to be
				wind.take()
				pass(time.Minute)
				if n := len(wind.take()); n > 0 {
					t.Errorf("%d probes in the minute after", n)
				}
			})
		})
	}
}

// TestNoProbesAfterClose has a peer fail only when the Set is closed: calls that are on their way then still end.
func TestNoProbesAfterClose(t *testing.T) {
	inTheAir(t, func(t *testing.T, s *Set, b *Peer, wind *air) {
		wind.set(airRefused)
		s.Close()
		bringDown(t, b)
		wind.take()
		pass(time.Minute)
		if n := len(wind.take()); n > 0 {
			t.Errorf("%d probes", n)
		}
	})
}

// TestListedAgain has a peer that is down leave the list and come back: nothing is held against it, and the probes of
// its former self have ended.
func TestListedAgain(t *testing.T) {
	inTheAir(t, func(t *testing.T, s *Set, b *Peer, wind *air) {
		wind.set(airRefused)
		bringDown(t, b)
		both := s.View().Names()
		s.Update("a:1", []Member{{Name: "a:1"}})
		s.Update("a:1", []Member{{Name: both[0]}, {Name: both[1]}, {Name: both[2]}})
		again := s.View().peer("b:1")
		if again == b || breakerView(&again.health) != isUp {
			t.Errorf("it is %s", breakerView(&again.health))
		}
		pass(time.Second)
		wind.take()
		if pass(time.Minute); len(wind.take()) > 0 {
			t.Error("it is probed")
		}
	})
}

// TestPeerIsDown looks at what callers get while a peer is down, out, held and back. In the bubble three seconds are
// exact.
func TestPeerIsDown(t *testing.T) {
	inTheAir(t, func(t *testing.T, s *Set, b *Peer, wind *air) {
		ask := func(want error, takes time.Duration) {
			t.Helper()
			for _, unbatched := range []bool{true, false} {
				start := time.Now()
				if _, err := b.Check(t.Context(), one, unbatched); err != want || time.Since(start) != takes {
					t.Errorf("got %v after %v, want %v after %v", err, time.Since(start), want, takes)
				}
			}
		}
		ask(nil, 0)
		wind.set(airSilent)
		ask(ErrTimeout, 500*time.Millisecond)
		start := time.Now().Add(-500 * time.Millisecond) // when the first of them had failed
		if _, err := b.Check(t.Context(), one, true); err != ErrTimeout {
			t.Error(err)
		}
		for time.Since(start) < 3*time.Second {
			if b.health.away.Load() {
				t.Errorf("others count for it after %v", time.Since(start))
			}
			ask(ErrDown, 0)
			pass(100 * time.Millisecond)
		}
		pass(time.Second) // until the next probe has failed
		if got := breakerView(&b.health); got != isOut {
			t.Error(got)
		}
		ask(ErrDown, 0)

		wind.set(airFine)
		pass(time.Second)
		ask(nil, 0)

		// A second time it is held for 2 s from when it was out.
		wind.set(airSilent)
		bringDown(t, b)
		for !b.health.away.Load() {
			pass(10 * time.Millisecond)
		}
		out := time.Now()
		wind.set(airFine)
		for b.health.away.Load() {
			pass(10 * time.Millisecond)
		}
		if held := time.Since(out); held < firstWait || held > firstWait+2*ProbeEvery {
			t.Errorf("held for %v", held)
		}
		ask(nil, 0)
	})
}

// TestDownWhileManyWait has a peer fall silent while more batches gather than are on their way. Those that have not
// left when it is known to be down must not be sent, each to wait for a timeout of its own.
func TestDownWhileManyWait(t *testing.T) {
	inTheAir(t, func(t *testing.T, s *Set, b *Peer, wind *air) {
		wind.set(airSilent)
		start := time.Now()
		var callers sync.WaitGroup
		for range maxWaiting / s.options.BatchLimit {
			callers.Go(func() {
				if _, err := b.Check(t.Context(), group(s.options.BatchLimit), false); err != ErrTimeout && err != ErrDown {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		// The first flights fail together; until the third has, others may leave in their place.
		calls := 0
		for _, at := range wind.take() {
			if at.Sub(start) <= s.options.Timeout {
				calls++
			}
		}
		if took := time.Since(start); took > 2*s.options.Timeout || calls >= batchFlights+failuresToDown {
			t.Errorf("%d calls, %v", calls, took)
		}
	})
}

// TestStandIns looks at which node counts while peers are away: for their keys, and only for those, the owner in the
// ring without them. All nodes that remain agree on it, and so does an outsider.
func TestStandIns(t *testing.T) {
	names := []string{"a:1", "b:1", "c:1", "d:1", "e:1"}
	var members []Member
	for _, name := range names {
		members = append(members, Member{Name: name})
	}
	full := ring.New(names)
	for _, gone := range [][]string{nil, {"b:1"}, {"c:1", "b:1"}, {"b:1", "c:1", "d:1"}, {"b:1", "c:1", "d:1", "e:1"}} {
		left := full.Without(gone...)
		for _, self := range append(left.Nodes(), "") {
			s := New(Options{})
			s.Update(self, members)
			for _, name := range gone {
				for range failuresToDown {
					s.View().peer(name).health.failed(time.Now(), true)
				}
			}
			for i := range 2000 {
				id := fmt.Appendf(nil, "key-%d", i)
				partition := ring.Partition(id)
				peer := s.View().Owner(id)
				if away := peer != nil && peer.Away(); away != slices.Contains(gone, full.Owner(partition)) {
					t.Fatalf("%v gone, seen from %q: %s is away: %v", gone, self, full.Owner(partition), away)
				} else if away {
					peer = s.View().StandIn(id, peer)
				}
				got, want := self, full.Owner(partition)
				if peer != nil {
					got = peer.Name()
				}
				if slices.Contains(gone, want) {
					want = left.Owner(partition)
				}
				if got != want {
					t.Fatalf("%v gone, seen from %q: %s counts for %s, want %s", gone, self, got, full.Owner(partition), want)
				}
			}
			s.Close()
		}
	}
}

// TestOutsiderStandsIn has all nodes go that an outsider knows: then it counts itself.
func TestOutsiderStandsIn(t *testing.T) {
	s := New(Options{})
	defer s.Close()
	s.Update("", []Member{{Name: "a:1"}, {Name: "b:1"}})
	for _, name := range []string{"a:1", "b:1"} {
		for range failuresToDown {
			s.View().peer(name).health.failed(time.Now(), true)
		}
	}
	for i := range 100 {
		id := fmt.Appendf(nil, "key-%d", i)
		if standIn := s.View().StandIn(id, s.View().Owner(id)); standIn != nil {
			t.Fatalf("%s stands in", standIn.Name())
		}
	}
}
