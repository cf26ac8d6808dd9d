package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/limits"
	"weir/limits/wire"
	"weir/server"
	member "weir/server/node"
)

// sync has all nodes report and publish, one after the other.
func (c *cluster) sync(t *testing.T) {
	t.Helper()
	for _, n := range c.nodes {
		if err := n.global.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// one sends one item and gives its result.
func (n *node) one(t *testing.T, key string, members ...any) result {
	t.Helper()
	return n.check(t, item(key, members...))[0]
}

// TestGlobalOneOfMany: a small limit is exact, whichever node is asked, and once it is exhausted no node asks any more.
func TestGlobalOneOfMany(t *testing.T) {
	for _, algorithm := range []string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"} {
		t.Run(algorithm, func(t *testing.T) {
			c := startCluster(t, 3)
			var ok int
			for i := range 30 {
				if c.nodes[i%3].one(t, "k", "limit", 1, "behavior", "GLOBAL", "algorithm", algorithm).Status == "OK" {
					ok++
				}
			}
			if ok != 1 {
				t.Errorf("%d passed, want 1", ok)
			}
			c.sync(t)
			calls := c.wires.countCalls()
			for i := range 30 {
				r := c.nodes[i%3].one(t, "k", "limit", 1, "behavior", "GLOBAL", "algorithm", algorithm)
				if r.Status != "OVER_LIMIT" {
					t.Errorf("got %+v", r)
				}
			}
			if more := c.wires.countCalls() - calls; more != 0 {
				t.Errorf("%d calls between nodes for an exhausted limit, want 0", more)
			}
		})
	}
}

// TestGlobalCopies: hits within the allowance are taken at once, and everybody knows of them two rounds later.
func TestGlobalCopies(t *testing.T) {
	for _, algorithm := range []string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"} {
		t.Run(algorithm, func(t *testing.T) {
			c := startCluster(t, 3)
			hit := func(n *node, hits int) result {
				return n.one(t, "k", "limit", 3000, "hits", hits, "behavior", "GLOBAL", "algorithm", algorithm)
			}
			for _, n := range c.nodes {
				hit(n, 100)
			}
			calls := c.wires.countCalls()
			owner, _ := c.owner("k")
			taken := int64(300)
			for _, n := range c.nodes {
				r := hit(n, 10) // all that each may take alone
				taken += 10
				if n == owner {
					continue
				}
				if r.Status != "OK" || r.Metadata["source"] != "replica" || r.Metadata["owner"] != owner.name {
					t.Errorf("got %+v", r)
				}
			}
			if more := c.wires.countCalls() - calls; more != 0 {
				t.Errorf("%d calls between nodes, want 0", more)
			}
			for _, n := range c.nodes {
				if r := hit(n, 1); n != owner && r.Metadata["source"] != "" {
					t.Errorf("more than the allowance was taken from a copy: %+v", r)
				}
				taken++
			}
			c.sync(t)
			c.sync(t)
			for _, n := range c.nodes {
				if r := hit(n, 0); *r.Remaining != 3000-taken {
					t.Errorf("%d remain, want %d: %+v", *r.Remaining, 3000-taken, r)
				}
			}
		})
	}
}

// skews are how far the nodes' clocks are off, by seconds and minutes.
var skews = []time.Duration{0, 7 * time.Second, -3 * time.Minute, 11 * time.Minute, -1500 * time.Millisecond}

func skewedNow(i int) time.Time { return time.Now().Add(skews[i]) }

// skewed sets for each node of a bubble a clock of its own.
func skewed(i int, m *member.Options, _ *server.Options) {
	m.Now = func() time.Time { return skewedNow(i) }
}

// indexOf returns the place of a node among all.
func (c *cluster) indexOf(n *node) int { return slices.Index(c.nodes, n) }

// terms are members of items.
type terms = []any

// of adds members to terms.
func of(all terms, more ...any) terms { return append(slices.Clip(all), more...) }

// requestOf is the request that an item makes.
func requestOf(t *testing.T, key string, members ...any) limits.Request {
	t.Helper()
	body := fmt.Sprintf(`{"rate_limits":[%s]}`, item(key, members...))
	requests, err := wire.ReadRequests(nil, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return requests[0]
}

// verdict is of an answer what must not depend on who gives it.
func verdict(r result) string {
	return fmt.Sprintln(r.Status, show(r.Limit), show(r.Remaining), show(r.ResetTime), show(r.RetryAfter), r.Error,
		r.Metadata["reason"])
}

func verdictOf(r limits.Result) string {
	var wait *int64
	if r.RetryAfter != 0 {
		wait = &r.RetryAfter
	}
	return verdict(result{r.Status.String(), &r.Limit, &r.Remaining, &r.ResetTime, wait, r.Error,
		map[string]string{"reason": r.Metadata.Reason}})
}

// A step is one check of a script, and what it must give.
type step struct {
	after     time.Duration // since the step before
	members   terms
	status    string
	remaining int64
}

var globalScripts = []struct {
	name  string
	terms terms
	steps []step
}{
	{"token bucket", terms{}, []step{
		{0, terms{"hits", 7}, "OK", 3}, {0, terms{"hits", 4}, "OVER_LIMIT", 3}, {0, terms{"hits", 3}, "OK", 0},
		{time.Second, terms{}, "OVER_LIMIT", 0}, {0, terms{"hits", 0}, "OK", 0},
		{59 * time.Second, terms{"hits", 0}, "OK", 10}, {0, terms{"hits", 4}, "OK", 6}, {0, terms{"hits", 11}, "OVER_LIMIT",
			6},
	}},
	{"leaky bucket with burst", terms{"algorithm", "LEAKY_BUCKET", "burst", 3}, []step{
		{0, terms{"hits", 3}, "OK", 0}, {0, terms{}, "OVER_LIMIT", 0}, {6 * time.Second, terms{}, "OK", 0},
		{0, terms{}, "OVER_LIMIT", 0}, {time.Minute, terms{"hits", 0}, "OK", 3}, {0, terms{"hits", 2}, "OK", 1},
		{0, terms{"hits", 2, "burst", 5}, "OK", 1}, {0, terms{"hits", 1}, "OVER_LIMIT", 0}, {0, terms{"hits", 4},
			"OVER_LIMIT", 0},
	}},
	{"sliding window", terms{"algorithm", "SLIDING_WINDOW"}, []step{
		{0, terms{"hits", 10}, "OK", 0}, {0, terms{}, "OVER_LIMIT", 0}, {time.Minute, terms{}, "OVER_LIMIT", 0},
		{30 * time.Second, terms{"hits", 5}, "OK", 0}, {0, terms{}, "OVER_LIMIT", 0}, {30 * time.Second, terms{"hits", 0},
			"OK", 5},
		{2 * time.Minute, terms{"hits", 0}, "OK", 10}, {0, terms{"hits", 2}, "OK", 8},
	}},
	{"calendar hours", terms{"duration", 1, "behavior", []string{"GLOBAL", "DURATION_IS_GREGORIAN"}, "time_zone",
		"Asia/Kathmandu"}, []step{
		{0, terms{"hits", 8}, "OK", 2}, {0, terms{"hits", 2}, "OK", 0}, {0, terms{}, "OVER_LIMIT", 0},
		{61 * time.Minute, terms{}, "OK", 9}, {24 * time.Hour, terms{"hits", 0}, "OK", 10}, {0, terms{"hits", 10}, "OK", 0},
		{0, terms{"hits", 11}, "OVER_LIMIT", 0},
	}},
	{"calendar months", terms{"duration", 4, "behavior", []string{"GLOBAL", "DURATION_IS_GREGORIAN"}, "time_zone",
		"America/New_York"}, []step{
		{48 * time.Hour, terms{"hits", 8}, "OK", 2}, {0, terms{"hits", 3}, "OVER_LIMIT", 2}, {27 * 24 * time.Hour, terms{},
			"OK", 1},
		{3 * 24 * time.Hour, terms{}, "OK", 9},
	}},
	{"leaky calendar minutes", terms{"duration", 0, "algorithm", "LEAKY_BUCKET", "behavior", []string{"GLOBAL",
		"DURATION_IS_GREGORIAN"}}, []step{
		{0, terms{"hits", 10}, "OK", 0}, {6 * time.Second, terms{}, "OK", 0}, {12 * time.Second, terms{"hits", 3},
			"OVER_LIMIT", 2},
	}},
	{"reset", terms{}, []step{
		{0, terms{"hits", 10}, "OK", 0}, {0, terms{}, "OVER_LIMIT", 0}, {0, terms{"behavior", []string{"GLOBAL",
			"RESET_REMAINING"}}, "OK", 10},
		{0, terms{"hits", 9}, "OK", 1}, {0, terms{"behavior", "RESET_REMAINING", "hits", 5}, "OK", 10}, {0, terms{"hits",
			2}, "OK", 8},
	}},
	{"giving back", terms{}, []step{
		{0, terms{"hits", -3}, "OK", 10}, {0, terms{"hits", 10}, "OK", 0}, {0, terms{}, "OVER_LIMIT", 0}, {0, terms{"hits",
			-4}, "OK", 4},
		{0, terms{"hits", 3}, "OK", 1}, {0, terms{"hits", -100}, "OK", 10}, {0, terms{}, "OK", 9},
	}},
	{"draining", terms{}, []step{
		{0, terms{"hits", 6}, "OK", 4}, {0, terms{"hits", 5}, "OVER_LIMIT", 4},
		{0, terms{"hits", 5, "behavior", []string{"GLOBAL", "DRAIN_OVER_LIMIT"}}, "OVER_LIMIT", 0}, {0, terms{},
			"OVER_LIMIT", 0},
	}},
	{"another limit", terms{}, []step{
		{0, terms{"hits", 50, "limit", 100}, "OK", 50}, {0, terms{}, "OVER_LIMIT", 0}, {0, terms{"limit", 100}, "OK", 49},
		{0, terms{"limit", 0}, "OVER_LIMIT", 0}, {0, terms{"limit", 60, "hits", 9}, "OK", 0}, {0, terms{"limit", 1 << 60,
			"hits", 1}, "OK", 1<<60 - 61},
	}},
	{"another duration", terms{}, []step{
		{0, terms{"hits", 6}, "OK", 4}, {time.Second, terms{"duration", 120_000}, "OK", 3}, {time.Minute, terms{"duration",
			120_000, "hits", 0}, "OK", 3},
		{0, terms{"duration", 10_000, "hits", 2}, "OK", 8}, {9 * time.Second, terms{"duration", 10_000}, "OK", 7},
		{time.Second, terms{"duration", 10_000}, "OK", 9},
	}},
	{"another leak", terms{"algorithm", "LEAKY_BUCKET"}, []step{
		{0, terms{"hits", 10}, "OK", 0}, {6 * time.Second, terms{"limit", 20, "hits", 0}, "OK", 11},
		{0, terms{"limit", 20, "hits", 11}, "OK", 0}, {3 * time.Second, terms{"limit", 20}, "OK", 0},
		{0, terms{"limit", 20, "duration", 20_000}, "OVER_LIMIT", 0}, {time.Second, terms{"limit", 20, "duration", 20_000},
			"OK", 0},
	}},
	{"another algorithm", terms{}, []step{
		{0, terms{"hits", 9}, "OK", 1}, {0, terms{"algorithm", "LEAKY_BUCKET", "hits", 4}, "OK", 6}, {0, terms{"hits", 2},
			"OK", 8},
		{0, terms{"algorithm", "SLIDING_WINDOW", "hits", 11}, "OVER_LIMIT", 10}, {0, terms{"hits", 8}, "OK", 0},
	}},
	{"from BATCHING and back", terms{}, []step{
		{0, terms{"hits", 3, "behavior", "BATCHING"}, "OK", 7}, {0, terms{"hits", 3}, "OK", 4}, {0, terms{"hits", 3,
			"behavior", "NO_BATCHING"}, "OK", 1},
		{0, terms{"hits", 2}, "OVER_LIMIT", 1}, {0, terms{"behavior", "BATCHING"}, "OK", 0}, {0, terms{}, "OVER_LIMIT", 0},
	}},
	{"invalid", terms{}, []step{
		{0, terms{"hits", 3}, "OK", 7}, {0, terms{"limit", -1}, "ERROR", 0}, {0, terms{"duration", 0}, "ERROR", 0}, {0,
			terms{"hits", 0}, "OK", 7},
	}},
}

// TestGlobalScripts plays each script on clusters of 2, 3 and 5 nodes whose clocks differ, one step here and the next
// there. With two rounds between, the nodes must answer like one limiter with the owner's clock, to the millisecond.
func TestGlobalScripts(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for _, script := range globalScripts {
			t.Run(fmt.Sprint(n, " nodes ", script.name), func(t *testing.T) {
				for first := range min(n, 3) {
					synctest.Test(t, func(t *testing.T) {
						c := startAir(t, n, skewed)
						p := c.newPlay(t, fmt.Sprint("from-", first))
						for i, s := range script.steps {
							pause(s.after)
							r := p.check(t, c.nodes[(first+i)%n], of(of(terms{"behavior", "GLOBAL"}, script.terms...), s.members...)...)
							if r.Status != s.status || r.Status != "ERROR" && *r.Remaining != s.remaining {
								t.Errorf("from %d, step %d: want %s, %d: %s", first, i, s.status, s.remaining, describe(r))
							}
							if first%2 == 1 || i == len(script.steps)-1 { // looks make copies, so look less in the other half
								p.agree(t, of(terms{"behavior", "GLOBAL"}, script.terms...)...)
							}
						}
					})
				}
			})
		}
	}
}

// pause lets time pass in a bubble.
func pause(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// A play is one limit of a cluster, beside a limiter that gets the same.
type play struct {
	*cluster
	key   string
	owner *node
	like  *limits.Limiter // with the owner's clock
}

func (c *cluster) newPlay(t *testing.T, key string) *play {
	t.Helper()
	owner, _ := c.owner(key)
	i := c.indexOf(owner)
	return &play{c, key, owner, limits.New(100, func() time.Time { return skewedNow(i) })}
}

// check sends an item to a node, compares, and lets all hear of it.
func (p *play) check(t *testing.T, n *node, members ...any) result {
	t.Helper()
	r := n.one(t, p.key, members...)
	if want := verdictOf(p.like.Check(requestOf(t, p.key, members...))); verdict(r) != want && r.Status != "ERROR" {
		t.Errorf("%v at node %d\ngot  %swant %s(%v)", members, p.indexOf(n), verdict(r), want, r.Metadata)
	}
	for name, value := range r.Metadata {
		if name == "degraded" || name == "owner" && value != p.owner.name && r.Status != "ERROR" {
			t.Errorf("%v at node %d: %s", members, p.indexOf(n), describe(r))
		}
	}
	p.sync(t)
	p.sync(t)
	return r
}

// agree looks from all nodes, twice.
func (p *play) agree(t *testing.T, members ...any) {
	t.Helper()
	members = of(members, "hits", 0)
	want := verdictOf(p.like.Check(requestOf(t, p.key, members...)))
	for i, n := range slices.Concat(p.nodes, p.nodes) {
		if r := n.one(t, p.key, members...); verdict(r) != want {
			t.Errorf("look %d\ngot  %swant %s(%v)", i, verdict(r), want, r.Metadata)
		}
	}
}

// TestGlobalIsOneLimit sends at random what can be sent, over nodes whose clocks differ. With two rounds between, the
// cluster must answer like one limiter, whether from copies or not.
func TestGlobalIsOneLimit(t *testing.T) {
	copies := 0
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 0))
				pick := func(all ...int) int { return all[rnd.IntN(len(all))] }
				c := startAir(t, 2+int(seed%4), skewed)
				p := c.newPlay(t, fmt.Sprint("k", seed))
				limit, algorithm := pick(10, 3000, 100_000), pick(0, 1, 2)
				for range 150 {
					behavior := pick(2, 2, 2, 2, 2, 2, 2, 2, 0, 1, 2+32, 2+8)
					members := terms{"limit", limit, "algorithm", algorithm, "behavior", behavior, "hits", pick(0, 1, 1, 2, 5,
						limit/10, limit/3, -limit/5)}
					switch pick(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4) {
					case 1:
						members = of(members, "limit", limit/2)
					case 2:
						members = of(members, "duration", 20_000)
					case 3:
						members = of(members, "burst", limit/2)
					case 4:
						if algorithm != 2 {
							members = of(members, "duration", 1, "behavior", behavior|4)
						}
					}
					r := p.check(t, c.nodes[rnd.IntN(len(c.nodes))], members...)
					if r.Metadata["source"] == "replica" {
						copies++
					}
					if t.Failed() {
						return
					}
					pause(time.Duration(pick(0, 0, 0, 1, 1, 5, 13, 70)) * 997 * time.Millisecond)
				}
				p.agree(t, "limit", limit, "algorithm", algorithm, "behavior", 2)
			})
		})
	}
	if copies < 200 {
		t.Errorf("only %d of 3,750 answers came from copies", copies)
	}
}

var algorithms = []string{"TOKEN_BUCKET", "LEAKY_BUCKET", "SLIDING_WINDOW"}

// inAir runs a test on a cluster in a bubble.
func inAir(t *testing.T, name string, nodes int, test func(t *testing.T, c *cluster), settings ...setting) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, startAir(t, nodes, settings...)) })
	})
}

// run has all nodes do by themselves what they have to, until the end of the test or until stop is called.
func (c *cluster) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	for _, n := range c.nodes {
		loops.Go(func() { n.member.Run(ctx) })
	}
	stop = func() {
		cancel()
		loops.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// delayed has each call between nodes take some time, half of it on the way there.
func delayed(takes func() time.Duration) setting {
	return func(_ int, m *member.Options, _ *server.Options) {
		transport := m.Cluster.Transport
		m.Cluster.Transport = func(to string, real http.RoundTripper) http.RoundTripper {
			return &delay{transport(to, real), takes}
		}
	}
}

type delay struct {
	http.RoundTripper
	takes func() time.Duration
}

func (d *delay) RoundTrip(r *http.Request) (*http.Response, error) {
	half := d.takes() / 2
	pause(half)
	resp, err := d.RoundTripper.RoundTrip(r)
	pause(half)
	return resp, err
}

// upTo takes a few milliseconds.
func upTo(d time.Duration) func() time.Duration {
	return func() time.Duration { return rand.N(d) + time.Microsecond }
}

// lookAt returns the usage of a limit that its owner knows of.
func lookAt(t *testing.T, owner *node, key string, members ...any) int64 {
	t.Helper()
	r := owner.one(t, key, of(members, "limit", 1<<40, "hits", 0, "behavior", "BATCHING")...)
	return 1<<40 - *r.Remaining
}

// TestGlobalExhausted: an exhausted limit is refused by all nodes without asking any other, until the very moment at
// which they said that there would be something again.
func TestGlobalExhausted(t *testing.T) {
	for _, algorithm := range algorithms {
		inAir(t, algorithm, 3, func(t *testing.T, c *cluster) {
			members := terms{"algorithm", algorithm, "behavior", "GLOBAL"}
			for _, n := range c.nodes {
				n.one(t, "k", of(members, "hits", 3)...)
			}
			c.nodes[0].one(t, "k", members...)
			c.sync(t)
			c.sync(t)
			calls, begin := c.wires.countCalls(), time.Now()
			var reset time.Time
			for range 6 {
				for i, n := range c.nodes {
					r := n.one(t, "k", members...)
					if r.Status != "OVER_LIMIT" || *r.Remaining != 0 || *r.RetryAfter != *r.ResetTime-time.Now().UnixMilli() {
						t.Errorf("at node %d: %s", i, describe(r))
					}
					if i > 0 && !reset.Equal(time.UnixMilli(*r.ResetTime)) {
						t.Errorf("node %d says %s, another one %v", i, describe(r), reset)
					}
					reset = time.UnixMilli(*r.ResetTime)
				}
				pause(min(10*time.Second, time.Until(reset)/2))
			}
			if more := c.wires.countCalls() - calls; more != 0 {
				t.Errorf("%d calls in %v", more, time.Since(begin))
			}
			pause(time.Until(reset) - time.Millisecond)
			for i, n := range c.nodes {
				if r := n.one(t, "k", members...); r.Status != "OVER_LIMIT" {
					t.Errorf("early at node %d: %s", i, describe(r))
				}
			}
			pause(time.Until(reset))
			if r := c.nodes[1].one(t, "k", members...); r.Status != "OK" || r.Metadata["degraded"] != "" {
				t.Errorf("at the reset: %s", describe(r))
			}
		})
	}
}

// TestGlobalLooks: looks ask once, whatever they find, and leave nothing behind.
func TestGlobalLooks(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, used := range []int{0, 4, 10} {
			inAir(t, fmt.Sprint(algorithm, used), 3, func(t *testing.T, c *cluster) {
				owner, other := c.owner("k")
				members := terms{"algorithm", algorithm, "behavior", "GLOBAL"}
				look := func() {
					t.Helper()
					if r := other.one(t, "k", of(members, "hits", 0)...); r.Status != "OK" || *r.Remaining != int64(10-used) {
						t.Fatal(describe(r))
					}
				}
				owner.one(t, "k", of(members, "hits", used)...)
				look()
				calls := c.wires.countCalls()
				for range 100 {
					look()
				}
				c.sync(t)
				if more := c.wires.countCalls() - calls; more != 0 {
					t.Errorf("%d calls", more)
				}
				if entries := metrics(t, owner)["weir_state_entries"]; used == 0 && entries != 0 {
					t.Errorf("looks made %v states", entries)
				}
				if entries := metrics(t, other)["weir_state_entries"]; entries != 0 {
					t.Errorf("who doesn't own it has %v states", entries)
				}
			})
		}
	}
}

// TestGlobalOvershoot has all nodes hammered with one limit, while their calls take time. They let through all of it,
// and beyond it no more than each may take without asking.
func TestGlobalOvershoot(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, n := range []int{2, 5} {
			inAir(t, fmt.Sprint(algorithm, n), n, func(t *testing.T, c *cluster) {
				const limit = 1000
				stop := c.run(t)
				var passed atomic.Int64
				var callers sync.WaitGroup
				for _, n := range slices.Concat(c.nodes, c.nodes) {
					callers.Go(func() {
						for range 600 {
							r := n.one(t, "k", "limit", limit, "duration", 24*3_600_000, "algorithm", algorithm, "behavior", "GLOBAL")
							if r.Metadata["degraded"] != "" {
								t.Error(describe(r))
							}
							if r.Status == "OK" {
								passed.Add(1)
							}
							pause(rand.N(2*time.Millisecond) + time.Microsecond)
						}
					})
				}
				callers.Wait()
				most := int64(limit + (n-1)*(limit/100/n))
				if got := passed.Load(); got < limit || got > most {
					t.Errorf("%d passed a limit of %d, at most %d may", got, limit, most)
				}
				stop()
				c.sync(t)
				owner, _ := c.owner("k")
				if used := lookAt(t, owner, "k", "duration", 24*3_600_000, "algorithm", algorithm); used != passed.Load() {
					t.Errorf("the owner knows of %d, %d passed", used, passed.Load())
				}
			}, delayed(upTo(8*time.Millisecond)))
		}
	}
}

// TestGlobalLosesNothing sends hits of all sizes to all nodes, GLOBAL and not: in the end the owner has counted exactly
// what was let through, although calls take longer than a GLOBAL check waits for them.
func TestGlobalLosesNothing(t *testing.T) {
	for _, takes := range []time.Duration{time.Millisecond, 40 * time.Millisecond, 300 * time.Millisecond} {
		for _, algorithm := range algorithms {
			inAir(t, fmt.Sprint(algorithm, takes), 3, func(t *testing.T, c *cluster) {
				stop := c.run(t)
				members := terms{"limit", 1_000_000, "duration", 300 * 24 * 3_600_000, "algorithm", algorithm}
				keys := []string{"a", "b", "c", "d"}
				passed := make([]atomic.Int64, len(keys))
				var callers sync.WaitGroup
				for _, n := range slices.Concat(c.nodes, c.nodes) {
					callers.Go(func() {
						for range 300 {
							k, hits := rand.IntN(len(keys)), rand.Int64N(900)
							behavior := []string{"GLOBAL", "GLOBAL", "GLOBAL", "BATCHING", "NO_BATCHING"}[rand.IntN(5)]
							r := n.one(t, keys[k], of(members, "hits", hits, "behavior", behavior)...)
							if r.Status == "OK" {
								passed[k].Add(hits)
							}
							pause(rand.N(4*time.Millisecond) + time.Microsecond)
						}
					})
				}
				callers.Wait()
				pause(2 * time.Second) // for calls that were not waited for
				stop()
				c.sync(t)
				for k, key := range keys {
					owner, _ := c.owner(key)
					if used := lookAt(t, owner, key, members[2:]...); used != passed[k].Load() {
						t.Errorf("of %s the owner knows of %d, %d passed", key, used, passed[k].Load())
					}
				}
				c.sync(t)
				c.sync(t)
				for i, n := range c.nodes {
					for k, key := range keys {
						r := n.one(t, key, of(members, "hits", 0, "behavior", "GLOBAL")...)
						// Who asks again, since its copy decided alone for a while, may have to wait too long.
						degraded := r.Metadata["degraded"] != "" && takes < 50*time.Millisecond
						if degraded || *r.Remaining != max(0, 1_000_000-passed[k].Load()) {
							t.Errorf("node %d: %s", i, describe(r))
						}
					}
				}
			}, delayed(upTo(takes)))
		}
	}
}

// TestGlobalOverSockets is the same over real ones, as fast as it goes.
func TestGlobalOverSockets(t *testing.T) {
	c := startCluster(t, 3)
	stop := c.run(t)
	const limit = 1000
	var passed, doubtful atomic.Int64
	var callers sync.WaitGroup
	for _, n := range slices.Concat(c.nodes, c.nodes) {
		callers.Go(func() {
			for range 500 {
				r := n.one(t, "k", "limit", limit, "behavior", "GLOBAL")
				if r.Metadata["degraded"] != "" {
					doubtful.Add(1) // this machine was busy for 50 ms
				}
				if r.Status == "OK" {
					passed.Add(1)
				}
			}
		})
	}
	callers.Wait()
	stop()
	c.sync(t)
	if got := passed.Load(); doubtful.Load() == 0 && (got < limit || got > limit+2*3) {
		t.Errorf("%d passed a limit of %d", got, limit)
	}
	owner, _ := c.owner("k")
	if used := lookAt(t, owner, "k"); used != passed.Load() {
		t.Errorf("the owner knows of %d, %d passed", used, passed.Load())
	}
}

// TestGlobalMetadata says who answered, and nothing that is meant for nodes.
func TestGlobalMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		key := c.keysOf(c.nodes[1], 1)[0]
		ask := func(n *node, want string, items ...json.RawMessage) {
			t.Helper()
			body, err := json.Marshal(map[string]any{"rate_limits": items})
			if err != nil {
				t.Fatal(err)
			}
			if _, answer := n.post(t, body); string(answer) != want+"\n" && string(answer) != want {
				t.Errorf("got  %s\nwant %s", answer, want)
			}
		}
		answer := func(remaining int, metadata string) string {
			return fmt.Sprintf(`{"status":"OK","limit":3000,"remaining":%d,"reset_time":946684860000,"metadata":{%s}}`,
				remaining, metadata)
		}
		global, batching := item(key, "limit", 3000, "behavior", "GLOBAL"), item(key, "limit", 3000)
		const byOwner, byCopy = `"owner":"b:1"`, `"owner":"b:1","source":"replica"`
		ask(c.nodes[1], `{"rate_limits":[`+answer(2999, byOwner)+`]}`, global)
		ask(c.nodes[0], `{"rate_limits":[`+answer(2998, byOwner)+`]}`, global)
		ask(c.nodes[0], `{"rate_limits":[`+answer(2997, byCopy)+`]}`, global)
		// Where one of a limit is asked for, those behind it are, too.
		ask(c.nodes[2], `{"rate_limits":[`+answer(2997, byOwner)+`,`+answer(2996, byOwner)+`]}`, batching, global)
		ask(c.nodes[2], `{"rate_limits":[`+answer(2995, byCopy)+`]}`, global)
	})
}

// TestGlobalMetrics counts what happens, and never says to which limit.
func TestGlobalMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		owner, other := c.nodes[0], c.nodes[1]
		var key string
		for i := 0; key == ""; i++ {
			if k := fmt.Sprint("hidden-", i); c.nodes[1].peers.View().Owner((&limits.Request{Name: "hush",
				UniqueKey: k}).AppendID(nil)).Name() == owner.name {
				key = k
			}
		}
		hit := func(n *node, hits int) {
			t.Helper()
			if r := n.one(t, key, "name", "hush", "limit", 3000, "hits", hits, "behavior", "GLOBAL"); r.Status != "OK" {
				t.Fatal(describe(r))
			}
		}
		want := func(n *node, wants map[string]float64) {
			t.Helper()
			for name, got := range metrics(t, n) {
				if want, ok := wants[name]; ok && got != want {
					t.Errorf("%s: %s is %v, want %v", n.name, name, got, want)
				}
				delete(wants, name)
				if strings.Contains(name, "hush") || strings.Contains(name, "hidden") {
					t.Errorf("%s tells of a request", name)
				}
			}
			for name := range wants {
				t.Errorf("%s: there is no %s", n.name, name)
			}
		}
		hit(owner, 1)
		for range 3 {
			hit(other, 1) // the first asks
		}
		pause(3 * time.Second)
		want(other, map[string]float64{
			`weir_global_checks_total{source="owner"}`: 0, `weir_global_checks_total{source="asked"}`: 1,
			`weir_global_checks_total{source="copy"}`: 2, `weir_global_checks_total{source="degraded"}`: 0,
			"weir_debts": 1, "weir_debt_oldest_seconds": 3, "weir_reports_total": 0, "weir_global_copies": 1,
			"weir_global_shares": 0,
		})
		want(owner, map[string]float64{`weir_global_checks_total{source="owner"}`: 2, "weir_global_shares": 1,
			"weir_debts": 0})
		c.sync(t)
		want(other, map[string]float64{
			"weir_debts": 0, "weir_debt_oldest_seconds": 0, "weir_reports_total": 1, "weir_reports_repeated_total": 0,
			"weir_reports_failed_total": 0, "weir_reported_hits_total": 2,
		})
		want(owner, map[string]float64{
			`weir_received_reports_total{kind="new"}`: 1, `weir_received_reports_total{kind="repeated"}`: 0,
			"weir_received_hits_total": 2, `weir_publications_total{result="ok"}`: 0,
		})
		hit(owner, 1)
		c.sync(t)
		want(owner, map[string]float64{`weir_publications_total{result="ok"}`: 1,
			`weir_publications_total{result="failed"}`: 0})
		c.wires.set(owner, other, cut)
		c.wires.set(other, owner, silent)
		hit(owner, 1)
		hit(other, 2)
		for _, n := range []*node{owner, other} {
			n.global.Sync(t.Context()) // can't, in part
		}
		want(owner, map[string]float64{`weir_publications_total{result="failed"}`: 1})
		want(other, map[string]float64{"weir_reports_failed_total": 1, "weir_debts": 1})
		c.isolate(owner, whole)
		c.sync(t)
		want(other, map[string]float64{
			"weir_reports_total": 3, "weir_reports_repeated_total": 1, "weir_reported_hits_total": 4, "weir_debts": 0,
			`weir_dropped_hits_total{reason="full"}`: 0, `weir_dropped_hits_total{reason="reset"}`: 0,
		})
		want(owner, map[string]float64{
			`weir_received_reports_total{kind="new"}`: 2, `weir_received_reports_total{kind="repeated"}`: 1,
			"weir_received_hits_total": 4,
		})
		// What is owed from before a reset is forgiven.
		hit(other, 2)
		owner.one(t, key, "name", "hush", "limit", 3000, "behavior", "RESET_REMAINING")
		if err := other.global.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(owner, map[string]float64{`weir_dropped_hits_total{reason="reset"}`: 2, "weir_received_hits_total": 4})
		pause(3 * time.Minute)
		c.sync(t)
		want(owner, map[string]float64{"weir_global_shares": 0})
	})
}

// TestGlobalItemsInOrder sends requests with several items for each of some limits, in all behaviors, mixed. Limits are
// too small to be taken from copies, so every answer must be the one that a single limiter gives to the items in their
// order.
func TestGlobalItemsInOrder(t *testing.T) {
	for _, test := range []struct {
		name      string
		behaviors []string
		items     int
	}{
		{"GLOBAL", []string{"GLOBAL"}, 12},
		{"GLOBAL and others", []string{"GLOBAL", "BATCHING", "NO_BATCHING"}, 12},
		{"many", []string{"GLOBAL", "BATCHING"}, 300},
	} {
		t.Run(test.name, func(t *testing.T) {
			for seed := range uint64(5) {
				synctest.Test(t, func(t *testing.T) {
					rnd := rand.New(rand.NewPCG(seed, 1))
					c := startAir(t, 3)
					like := limits.New(1000, time.Now)
					for round := range 8 {
						n := c.nodes[rnd.IntN(3)]
						var items []json.RawMessage
						var wants []string
						for range test.items {
							key := fmt.Sprint("k", rnd.IntN(4))
							members := terms{"hits", rnd.IntN(9) - 2, "behavior", test.behaviors[rnd.IntN(len(test.behaviors))]}
							items = append(items, item(key, members...))
							wants = append(wants, verdictOf(like.Check(requestOf(t, key, members...))))
						}
						for i, r := range n.check(t, items...) {
							if verdict(r) != wants[i] {
								t.Fatalf("seed %d, round %d, item %d: %s\ngot  %swant %s(%v)", seed, round, i, items[i], verdict(r), wants[i],
									r.Metadata)
							}
						}
						c.sync(t)
						c.sync(t)
					}
				})
			}
		})
	}
}

// TestGlobalTraffic counts calls between nodes for a busy limit. They grow with the rounds, not with the hits.
func TestGlobalTraffic(t *testing.T) {
	for _, algorithm := range algorithms {
		inAir(t, algorithm, 3, func(t *testing.T, c *cluster) {
			c.run(t)
			const seconds = 10
			members := terms{"limit", 1_000_000, "algorithm", algorithm, "behavior", "GLOBAL"}
			begin := time.Now()
			for i := 0; time.Since(begin) < seconds*time.Second; i++ {
				if r := c.nodes[i%3].one(t, "k", members...); r.Status != "OK" || r.Metadata["degraded"] != "" {
					t.Fatal(describe(r))
				}
				pause(time.Millisecond)
			}
			const rounds = seconds * 10
			if calls := c.wires.countCalls(); calls > 3*2*rounds {
				t.Errorf("%d calls in %d rounds of 3 nodes", calls, rounds)
			}
			pause(300 * time.Millisecond)
			calls := c.wires.countCalls()
			pause(time.Minute)
			if more := c.wires.countCalls() - calls; more > 0 {
				t.Errorf("%d calls while no client asked", more)
			}
		})
	}
}
