package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/limits"
	"weir/limits/wire"
	"weir/peers"
	"weir/peers/discovery"
	"weir/server"
	member "weir/server/node"
)

// timed sends one item, and says how long that took.
func (n *node) timed(t *testing.T, key string, members ...any) (result, time.Duration) {
	t.Helper()
	start := time.Now()
	r := n.one(t, key, members...)
	return r, time.Since(start)
}

// heal makes all wires whole, and waits until everybody knows.
func (c *cluster) heal(t *testing.T) {
	t.Helper()
	for _, n := range c.nodes {
		c.isolate(n, whole)
	}
	<-time.After(3 * time.Second)
	c.sync(t)
	c.sync(t)
}

// TestGlobalOwnerSilent has the owner of a GLOBAL limit fall silent for ten seconds. The first miss costs 50 ms,
// everything else nothing; and in the end the owner knows of all hits once, but for the one of the miss: that it must
// not be told of, since it may have counted it.
func TestGlobalOwnerSilent(t *testing.T) {
	for _, state := range []struct {
		name   string
		state  wireState
		misses int64 // hits of the misses that the owner has counted
	}{{"nothing arrives", slow, 0}, {"no answer comes back", silent, 1}} {
		for _, algorithm := range algorithms {
			inAir(t, fmt.Sprint(state.name, " ", algorithm), 3, func(t *testing.T, c *cluster) {
				c.run(t)
				owner, _ := c.owner("k")
				others := slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return n == owner })
				// Long enough for a leak to make no difference.
				members := terms{"limit", 1000, "duration", 300 * 24 * 3_600_000, "algorithm", algorithm, "behavior", "GLOBAL"}
				counted := int64(0)
				for _, n := range c.nodes {
					n.one(t, "k", members...)
					counted++
				}
				<-time.After(time.Second)
				c.isolate(owner, state.state)
				for _, n := range others {
					if r, took := n.timed(t, "k", members...); took != 0 || r.Metadata["degraded"] != "" {
						t.Errorf("within the allowance: %s after %v", describe(r), took)
					}
					counted++
				}
				waited := map[*node]int{}
				silentSince := time.Now()
				for time.Since(silentSince) < 10*time.Second {
					for _, n := range others {
						r, took := n.timed(t, "k", of(members, "hits", 2)...)
						switch {
						case took > 50*time.Millisecond || r.Status != "OK" || r.Metadata["source"] != "replica" ||
							r.Metadata["owner"] != owner.name:
							t.Fatalf("%s after %v", describe(r), took)
						case took > 0:
							waited[n]++
							counted += 2 * state.misses
						default:
							counted += 2
						}
						if waited[n] > 0 && r.Metadata["degraded"] != "owner_silent" {
							t.Fatal(describe(r))
						}
					}
					<-time.After(100 * time.Millisecond)
				}
				for _, n := range others {
					if waited[n] != 1 {
						t.Errorf("%d callers waited at %s", waited[n], n.name)
					}
				}
				c.heal(t)
				for _, n := range c.nodes {
					if r, took := n.timed(t, "k", of(members, "hits", 0)...); *r.Remaining != 1000-counted ||
						r.Metadata["degraded"] != "" || took != 0 {
						t.Errorf("after it, want %d: %s after %v", 1000-counted, describe(r), took)
					}
				}
				for _, n := range others {
					if m := metrics(t, n); m["weir_debts"] != 0 {
						t.Errorf("%s owes still: %v", n.name, m["weir_debts"])
					}
				}
			})
		}
	}
}

// TestGlobalBeyondTheLimit has two nodes let through 7 of 10 each while the owner is silent. It hears of 14.
func TestGlobalBeyondTheLimit(t *testing.T) {
	for _, algorithm := range algorithms {
		inAir(t, algorithm, 3, func(t *testing.T, c *cluster) {
			owner, _ := c.owner("k")
			members := terms{"algorithm", algorithm, "behavior", "GLOBAL", "duration", 300 * 24 * 3_600_000}
			for _, n := range c.nodes {
				n.one(t, "k", of(members, "hits", 0)...)
			}
			<-time.After(time.Second)
			c.isolate(owner, slow)
			for _, n := range c.nodes {
				if n == owner {
					continue
				}
				n.one(t, "k", of(members, "hits", -1)...) // the miss, which takes nothing
				if r := n.one(t, "k", of(members, "hits", 7)...); r.Status != "OK" || *r.Remaining != 3 ||
					r.Metadata["degraded"] != "owner_silent" {
					t.Error(describe(r))
				}
				if r := n.one(t, "k", of(members, "hits", 4)...); r.Status != "OVER_LIMIT" || *r.Remaining != 3 {
					t.Error(describe(r))
				}
			}
			c.heal(t)
			for _, n := range c.nodes {
				if r := n.one(t, "k", members...); r.Status != "OVER_LIMIT" || *r.Remaining != 0 {
					t.Error(describe(r))
				}
			}
			if used := lookAt(t, owner, "k", "algorithm", algorithm, "duration", 300*24*3_600_000); used != 14 {
				t.Errorf("the owner knows of %d", used)
			}
		})
	}
}

// TestGlobalSlowOwner has an owner that takes longer than a GLOBAL check waits, but does answer: the caller that misses
// it hears of that soon, so that few wait, none for longer, and nothing is counted twice.
func TestGlobalSlowOwner(t *testing.T) {
	inAir(t, "", 2, func(t *testing.T, c *cluster) {
		stop := c.run(t)
		owner, other := c.owner("k")
		members := terms{"limit", 100, "behavior", "GLOBAL"}
		owner.one(t, "k", members...)
		other.one(t, "k", members...) // has no copy, and gets none in time
		passed, waited := int64(2), 0
		begin := time.Now()
		for time.Since(begin) < 3*time.Second {
			r, took := other.timed(t, "k", members...)
			if took > 50*time.Millisecond {
				t.Fatalf("%s after %v", describe(r), took)
			}
			if took > 0 {
				waited++
			}
			if r.Status == "OK" {
				passed++
			}
			<-time.After(50 * time.Millisecond)
		}
		if waited > 30 {
			t.Errorf("%d waited", waited)
		}
		<-time.After(time.Second)
		stop()
		c.sync(t)
		if used := lookAt(t, owner, "k"); used != passed {
			t.Errorf("the owner knows of %d, %d passed", used, passed)
		}
	}, delayed(func() time.Duration { return 200 * time.Millisecond }))
}

// TestDebtsOfAnOutage has the owner of a plain limit be bad in some way for a while. What others counted in its place
// it hears of when it is back, except hits that it may have counted itself.
func TestDebtsOfAnOutage(t *testing.T) {
	for _, test := range []struct {
		name    string
		state   wireState
		arrives bool // hits reach it all the same
	}{
		{"cut", cut, false},
		{"slow", slow, false},
		{"silent", silent, true},
		{"garbled", garbled, false},
		{"failing", failing, false},
		{"refusing", refusing, false},
	} {
		for _, algorithm := range algorithms {
			inAir(t, fmt.Sprint(test.name, " ", algorithm), 4, func(t *testing.T, c *cluster) {
				c.run(t)
				owner, _ := c.owner("k")
				members := terms{"limit", 1_000_000, "duration", 300 * 24 * 3_600_000, "algorithm", algorithm}
				counted := int64(1)
				owner.one(t, "k", members...)
				c.isolate(owner, test.state)
				why := map[string]int64{}
				for range 60 {
					for _, n := range c.nodes {
						if n == owner {
							continue
						}
						r := n.one(t, "k", of(members, "hits", 3)...)
						if r.Status != "OK" || r.Metadata["degraded"] == "" {
							t.Fatal(describe(r))
						}
						why[r.Metadata["degraded"]] += 3
					}
					<-time.After(100 * time.Millisecond)
				}
				for word, hits := range why {
					if test.arrives || word != "owner_timeout" && word != "owner_broken" {
						counted += hits
					}
				}
				c.heal(t)
				if used := lookAt(t, owner, "k", members[2:]...); used != counted {
					t.Errorf("the owner knows of %d, want %d of %v", used, counted, why)
				}
			})
		}
	}
}

// TestStandInReports has a node count for requests of others, in the place of a third. It tells that of them.
func TestStandInReports(t *testing.T) {
	for _, behavior := range []string{"BATCHING", "GLOBAL"} {
		inAir(t, behavior, 3, func(t *testing.T, c *cluster) {
			c.run(t)
			asked, owner, standIn := c.nodes[0], c.nodes[1], c.nodes[2]
			key := c.keyWithStandIn(t, asked, owner, standIn)
			c.isolate(owner, cut)
			for range 9 {
				if r := asked.one(t, key, "behavior", behavior); r.Status != "OK" || r.Metadata["owner"] != standIn.name ||
					r.Metadata["source"] != "" {
					t.Error(describe(r))
				}
			}
			if r := asked.one(t, key, "hits", 2, "behavior", behavior); r.Status != "OVER_LIMIT" { // owes nothing
				t.Error(describe(r))
			}
			c.heal(t)
			if used := lookAt(t, owner, key); used != 9 {
				t.Errorf("the owner knows of %d, want 9", used)
			}
			if a, s := metrics(t, asked), metrics(t, standIn); a["weir_reported_hits_total"] != 0 ||
				s["weir_reported_hits_total"] != 9 {
				t.Errorf("%v and %v hits were reported", a["weir_reported_hits_total"], s["weir_reported_hits_total"])
			}
		})
	}
}

// TestStandInBecomesOwner has the owner leave the list after a node has stood in for it, which owns its limits from
// then on. What it has counted already it must not count again, whether it has tried to report that or not.
func TestStandInBecomesOwner(t *testing.T) {
	for i := range 2 * len(algorithms) {
		algorithm, tried := algorithms[i/2], i%2 == 0
		inAir(t, fmt.Sprint(algorithm, tried), 3, func(t *testing.T, c *cluster) {
			asked, owner, standIn := c.nodes[0], c.nodes[1], c.nodes[2]
			key := c.keyWithStandIn(t, asked, owner, standIn)
			members := terms{"limit", 100, "algorithm", algorithm, "duration", 300 * 24 * 3_600_000}
			c.isolate(owner, cut)
			for _, n := range []*node{asked, standIn} {
				for range 10 {
					n.one(t, key, members...)
				}
			}
			for _, n := range c.nodes {
				if tried {
					n.global.Sync(t.Context()) // no node can
				}
			}
			// The node that is asked has counted some by itself, of which the new owner hears.
			c.wires.set(asked, standIn, cut)
			for range 5 {
				asked.one(t, key, members...)
			}
			c.wires.set(asked, standIn, whole)
			list := []discovery.Member{{Name: asked.name}, {Name: standIn.name}}
			for _, n := range []*node{asked, standIn} {
				n.peers.Update(n.name, list)
			}
			<-time.After(3 * time.Second)
			for range 2 {
				for _, n := range []*node{asked, standIn} {
					if err := n.global.Sync(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
			if used := lookAt(t, standIn, key, members[2:]...); used != 25 {
				t.Errorf("it knows of %d, want 25", used)
			}
		})
	}
}

// TestOwnerRestarts has the owner come back as another process, which has forgotten everything: it gets what is owed,
// once.
func TestOwnerRestarts(t *testing.T) {
	for _, state := range []wireState{cut, slow, silent} {
		inAir(t, fmt.Sprint(state), 3, func(t *testing.T, c *cluster) {
			stop := c.run(t)
			owner, _ := c.owner("k")
			members := terms{"limit", 3000, "behavior", "GLOBAL"}
			for _, n := range c.nodes {
				n.one(t, "k", of(members, "hits", 50)...)
				n.one(t, "k", of(members, "hits", 5)...)
			}
			<-time.After(time.Second)
			c.isolate(owner, state)
			<-time.After(time.Second)
			owed := int64(0)
			for range 20 {
				for _, n := range c.nodes {
					if n == owner {
						continue
					}
					if r, took := n.timed(t, "k", of(members, "hits", 3)...); r.Status == "OK" && took == 0 { // but for the miss
						owed += 3
					}
				}
				<-time.After(50 * time.Millisecond)
			}
			stop()
			owner.member.Close()
			i := c.indexOf(owner)
			c.nodes[i] = c.newInAir(t, i)
			c.nodes[i].peers.Update(owner.name, c.members())
			c.heal(t)
			used := lookAt(t, c.nodes[i], "k")
			if used != owed {
				t.Errorf("it knows of %d, %d were owed", used, owed)
			}
			for _, n := range c.nodes {
				if r := n.one(t, "k", of(members, "hits", 0)...); *r.Remaining != 3000-used || r.Metadata["degraded"] != "" {
					t.Errorf("want %d: %s", 3000-used, describe(r))
				}
			}
		})
	}
}

// TestReportWithoutAnswer repeats a report that the owner has counted, and one of which it hears late, after newer
// ones.
func TestReportWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 2)
		owner, other := c.owner("k")
		members := terms{"limit", 2000, "behavior", "GLOBAL"}
		other.one(t, "k", members...)
		for round := range 3 {
			other.one(t, "k", of(members, "hits", 2)...)
			c.wires.set(other, owner, silent)
			for range 2 {
				if err := other.global.Sync(t.Context()); err != peers.ErrTimeout {
					t.Errorf("round %d: %v", round, err)
				}
				other.one(t, "k", of(members, "hits", 1)...) // behind it
			}
			c.wires.set(other, owner, whole)
			c.sync(t)
		}
		if r := other.one(t, "k", of(members, "hits", 0)...); *r.Remaining != 2000-13 {
			t.Error(describe(r))
		}
		if used := lookAt(t, owner, "k"); used != 13 {
			t.Errorf("the owner knows of %d", used)
		}
	})
}

// TestLastReport has a node stop, which tells what it owes before it is gone.
func TestLastReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		owner, other := c.owner("k")
		for _, hits := range []int{1, 10} { // the second from the copy that the first gives
			other.one(t, "k", "limit", 3000, "hits", hits, "behavior", "GLOBAL")
		}
		if used := lookAt(t, owner, "k"); used != 1 {
			t.Errorf("it knows of %d before", used)
		}
		stop := c.run(t)
		stop()
		if err := other.global.Sync(t.Context()); err != nil {
			t.Error(err)
		}
		if used := lookAt(t, owner, "k"); used != 11 {
			t.Errorf("the owner knows of %d", used)
		}
		// Also what stands in line behind a report that has failed before.
		c.wires.set(other, owner, silent)
		for range 2 {
			other.one(t, "k", "limit", 3000, "hits", 4, "behavior", "GLOBAL")
			if err := other.global.Sync(t.Context()); err == nil {
				t.Error("a report without an answer was acknowledged")
			}
		}
		c.wires.set(other, owner, whole)
		if err := other.global.Sync(t.Context()); err != nil {
			t.Error(err)
		}
		if used := lookAt(t, owner, "k"); used != 19 {
			t.Errorf("the owner knows of %d, want 19", used)
		}
	})
}

// tell posts a message as a peer would, and gives the status and the body of the answer.
func (n *node) tell(t *testing.T, path, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := n.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// TestLiesOfPeers sends what no weir would: it is refused with a reason, or changes nothing.
func TestLiesOfPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		owner, third := c.nodes[1], c.nodes[2]
		key := c.keysOf(owner, 1)[0]
		members := terms{"limit", 3000, "behavior", "GLOBAL"}
		for _, n := range c.nodes {
			n.one(t, key, of(members, "hits", 10)...)
		}
		c.sync(t)
		c.sync(t)
		owed := func(members string) string {
			const sound = `"name":"test","unique_key":%q,"algorithm":0,"limit":3000,"duration":60000000000,"age":0,"hits":5`
			fields := fmt.Sprintf(sound, key)
			for _, field := range strings.Split(members, ",") {
				name, _, _ := strings.Cut(field, ":")
				kept := slices.DeleteFunc(strings.Split(fields, ","), func(f string) bool { return strings.HasPrefix(f, name+":") })
				fields = strings.Join(append(kept, field), ",")
			}
			return `{"start":77,"seq":1,"debts":[{` + fields + `}]}`
		}
		snapshot := func(start int64, members string) string {
			return fmt.Sprintf(`{"states":[{"name":"test","unique_key":%q,"start":%d,"epoch":9000,"version":9000,%s}]}`, key,
				start, members)
		}
		junk := []string{"", "null", "[]", "7", "{", `{"debts":7,"states":7}`, `{"debts":{},"states":{}}`,
			`{"states":[7],"debts":[7]}`,
			`{"start":"1","states":"x"}`, `{"start":99999999999999999999,"states":[{"version":99999999999999999999}]}`,
			"\xff", strings.Repeat("[", 10_000), `{"seq":1,"seq":2,"states":[],"states":[]}`}
		for _, path := range []string{wire.ReportPath, wire.StatesPath} {
			for _, body := range junk {
				if status, answer := owner.tell(t, path, body, wire.HeaderFrom, third.name); body != "null" &&
					(status != http.StatusBadRequest || !strings.HasPrefix(answer, `{"error":"`)) {
					t.Errorf("%s %.30q: %d %s", path, body, status, answer)
				}
			}
			if status, answer := owner.tell(t, path, `{"x":"`+strings.Repeat("x",
				wire.MaxMessage)+`"}`); status != http.StatusRequestEntityTooLarge {
				t.Errorf("%s: %d %.100s", path, status, answer)
			}
		}
		ownerStart, farFuture := owner.peers.Incarnation(), int64(math.MaxInt64)
		state := fmt.Sprintf(`"now":%d,"algorithm":0,"limit":3000,"duration":60000000000,"used":3000`, time.Now().UnixNano())
		for _, lie := range []struct {
			to   *node
			path string
			body string
			from string
		}{
			{owner, wire.ReportPath, owed(`"hits":-5`), third.name},
			{owner, wire.ReportPath, owed(`"hits":0`), third.name},
			{owner, wire.ReportPath, owed(`"previous":5`), third.name},
			{owner, wire.ReportPath, owed(`"algorithm":3`), third.name},
			{owner, wire.ReportPath, owed(`"limit":-1`), third.name},
			{owner, wire.ReportPath, owed(`"duration":0`), third.name},
			{owner, wire.ReportPath, owed(`"duration":-9223372036854775808`), third.name},
			{owner, wire.ReportPath, owed(`"duration":9223372036854775807`), third.name},
			{owner, wire.ReportPath, owed(`"age":-1`), third.name},
			{owner, wire.ReportPath, owed(`"age":9223372036854775807`), third.name},
			{owner, wire.ReportPath, owed(`"age":60000000000`), third.name}, // its window is over
			{owner, wire.ReportPath, owed(`"name":""`), third.name},
			{owner, wire.ReportPath, owed(`"unique_key":""`), third.name},
			{owner, wire.ReportPath, owed(`"name":"` + strings.Repeat("n", 300) + `"`), third.name},
			{owner, wire.ReportPath, owed(`"unique_key":"` + strings.Repeat("k", 1025) + `"`), third.name},
			{owner, wire.ReportPath, strings.Replace(owed(`"hits":5`), `"seq":1`, `"seq":0`, 1), third.name},
			{owner, wire.ReportPath, strings.Replace(owed(`"hits":5`), `"seq":1`, `"seq":-3`, 1), third.name},
			{owner, wire.ReportPath, `{"start":77,"seq":1,"debts":null}`, ""},
			// Of a limit that the sender doesn't own; of another process than the owner's; of one of which there is no copy.
			{c.nodes[0], wire.StatesPath, snapshot(third.peers.Incarnation(), state), third.name},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart, state), third.name},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart, state), ""},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart, state), "stranger:1"},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart+1, state), owner.name},
			{owner, wire.StatesPath, snapshot(ownerStart, state), owner.name},
			{owner, wire.StatesPath, snapshot(ownerStart, state), ""},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart, `"now":0,"limit":3000,"duration":0,"used":1`), owner.name},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart, `"now":0,"limit":-1,"duration":1,"used":1`), owner.name},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart, fmt.Sprintf(`"now":%d,"limit":1,"duration":1,"used":1`,
				farFuture)), owner.name},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart, fmt.Sprintf(`"now":%d`, farFuture)), owner.name},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart, `"now":-1`), owner.name},
			{c.nodes[0], wire.StatesPath, snapshot(ownerStart, `"now":1,"limit":1,"duration":1,"used":-1`), owner.name},
			{c.nodes[0], wire.StatesPath, `{"states":[{"start":1}]}`, owner.name},
		} {
			status, answer := lie.to.tell(t, lie.path, lie.body, wire.HeaderFrom, lie.from, wire.HeaderStart, "77")
			if status != http.StatusOK && status != http.StatusBadRequest {
				t.Errorf("%s: %d %s", lie.body, status, answer)
			}
			for i, n := range c.nodes {
				if r := n.one(t, key, of(members, "hits", 0)...); *r.Remaining != 2970 || r.Metadata["degraded"] != "" ||
					*r.ResetTime != time.Now().Add(time.Minute).UnixMilli() {
					t.Errorf("after %s %.200s at node %d: %s", lie.path, lie.body, i, describe(r))
				}
			}
		}
		// It goes on as ever.
		for _, n := range c.nodes {
			n.one(t, key, of(members, "hits", 10)...)
		}
		c.sync(t)
		c.sync(t)
		if used := lookAt(t, owner, key); used != 60 {
			t.Errorf("the owner knows of %d", used)
		}
	})
}

// liar answers reports with states of its own invention.
type liar struct {
	http.RoundTripper
	answer func() string
}

func (l liar) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Path == wire.ReportPath {
		resp.Body.Close()
		resp.Body = io.NopCloser(strings.NewReader(l.answer()))
	}
	return resp, err
}

// TestLyingAnswer has a node answer a report with states of limits that it doesn't own.
func TestLyingAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lie := ""
		c := startAir(t, 3, func(i int, m *member.Options, _ *server.Options) {
			transport := m.Cluster.Transport
			m.Cluster.Transport = func(to string, real http.RoundTripper) http.RoundTripper {
				if i == 0 && to == "b:1" {
					return liar{transport(to, real), func() string { return lie }}
				}
				return transport(to, real)
			}
		})
		asked := c.nodes[0]
		mine, its := c.keysOf(c.nodes[2], 1)[0], c.keysOf(c.nodes[1], 1)[0]
		for _, key := range []string{mine, its} {
			asked.one(t, key, "limit", 3000, "hits", 20, "behavior", "GLOBAL")
			asked.one(t, key, "limit", 3000, "hits", 10, "behavior", "GLOBAL")
		}
		asked.global.Sync(t.Context())
		asked.one(t, its, "limit", 3000, "hits", 1, "behavior", "GLOBAL")
		for _, lie = range []string{
			fmt.Sprintf(`{"states":[{"name":"test","unique_key":%q,"start":5,"epoch":9,"version":9,"now":%d,`+
				`"limit":3000,"duration":60000000000,"used":3000}]}`, mine, time.Now().UnixNano()),
			fmt.Sprintf(`{"states":[{"name":"test","unique_key":%q,"start":5,"epoch":9,"version":9,"now":%d,"duration":-1}]}`,
				its, int64(math.MaxInt64)),
			`{"states":[{"start":5}]}`,
		} {
			asked.global.Sync(t.Context())
			for i, key := range []string{mine, its} {
				if r := asked.one(t, key, "limit", 3000, "hits", 0, "behavior", "GLOBAL"); *r.Remaining != 2970-int64(i) ||
					r.Metadata["degraded"] != "" {
					t.Errorf("after %s: %s", lie, describe(r))
				}
			}
			asked.one(t, its, "limit", 3000, "hits", -1, "behavior", "GLOBAL")
			asked.one(t, its, "limit", 3000, "hits", 1, "behavior", "GLOBAL") // owed again
		}
	})
}

// TestReportsAreGuarded calls as a peer without the secret.
func TestReportsAreGuarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 2, func(_ int, m *member.Options, s *server.Options) {
			m.Cluster.Secret, s.PeerSecrets = "correct-horse", []string{"correct-horse"}
		})
		owner, other := c.owner("k")
		report := `{"start":77,"seq":1,"debts":[{"name":"test","unique_key":"k","limit":10,"duration":60000000000,"hits":5}]}`
		for _, path := range []string{wire.ReportPath, wire.StatesPath} {
			for _, secret := range []string{"", "Bearer ", "Bearer wrong", "correct-horse"} {
				if status, answer := owner.tell(t, path, report, wire.HeaderFrom, other.name, "Authorization",
					secret); status != http.StatusUnauthorized ||
					strings.Contains(answer, "horse") {
					t.Errorf("%s with %q: %d %s", path, secret, status, answer)
				}
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, owner.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := owner.client.Do(r); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("GET: %v %v", resp, err)
			}
		}
		if used := lookAt(t, owner, "k"); used != 0 {
			t.Errorf("%d hits were counted", used)
		}
		status, answer := owner.tell(t, wire.ReportPath, report, wire.HeaderFrom, other.name, "Authorization",
			"Bearer correct-horse")
		if status != http.StatusOK {
			t.Errorf("with the secret: %d %s", status, answer)
		}
		if used := lookAt(t, owner, "k"); used != 5 {
			t.Errorf("%d hits were counted, want 5", used)
		}
	})
}

// TestLargeReports owes hits of limits whose names take six bytes a character on their way. They must not make a
// message that is too large, which could never be delivered.
func TestLargeReports(t *testing.T) {
	for _, behavior := range []string{"BATCHING", "GLOBAL"} {
		inAir(t, behavior, 2, func(t *testing.T, c *cluster) {
			owner, other := c.nodes[1], c.nodes[0]
			var keys []string
			for i := 0; len(keys) < 720; i++ {
				key := strings.Repeat("\x01", 1010) + fmt.Sprint(i)
				if o, _ := c.owner(key); o == owner {
					keys = append(keys, key)
				}
			}
			each := func(n *node, hits int, remaining int64, degraded bool) {
				t.Helper()
				for some := range slices.Chunk(keys, 100) {
					for _, r := range n.checkKeys(t, some, "hits", hits, "behavior", behavior) {
						if r.Status != "OK" || *r.Remaining != remaining || degraded != (r.Metadata["degraded"] != "") {
							t.Fatal(describe(r))
						}
					}
				}
			}
			if behavior == "GLOBAL" {
				each(other, 0, 10, false)
			}
			c.wires.set(other, owner, cut)
			each(other, 3, 7, true)
			c.heal(t)
			each(owner, 2, 5, false)
			if behavior == "GLOBAL" {
				for range 3 { // a message each
					c.sync(t)
				}
				calls := c.wires.countCalls()
				each(other, 0, 5, false)
				if more := c.wires.countCalls() - calls; more > 0 {
					t.Errorf("%d calls for copies", more)
				}
			}
		})
	}
}

// TestNothingForNodesReachesClients asks a stand-in that believes itself to be the owner, since it has another list:
// what it says for those that keep copies is not for clients.
func TestNothingForNodesReachesClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 3)
		asked, owner, standIn := c.nodes[0], c.nodes[1], c.nodes[2]
		key := c.keyWithStandIn(t, asked, owner, standIn)
		standIn.peers.Update(standIn.name, []discovery.Member{{Name: asked.name}, {Name: standIn.name}})
		c.isolate(owner, cut)
		for range 5 {
			status, answer := asked.post(t, fmt.Appendf(nil, `{"rate_limits":[%s]}`, item(key, "behavior", "GLOBAL")))
			if status != http.StatusOK || bytes.Contains(answer, []byte(`"state"`)) || !bytes.Contains(answer,
				[]byte(standIn.name)) {
				t.Errorf("%d %s", status, answer)
			}
		}
	})
}

// TestGlobalWithoutCopies has nodes that know nothing of a limit be asked for it while its owner is silent: the failure
// policy answers, and no caller waits for longer than for any call.
func TestGlobalWithoutCopies(t *testing.T) {
	for _, policy := range policies {
		inAir(t, string(policy), 2, func(t *testing.T, c *cluster) {
			c.run(t)
			owner, other := c.nodes[1], c.nodes[0]
			c.isolate(owner, slow)
			start := time.Now()
			for i, key := range c.keysOf(owner, 100) {
				r, took := other.timed(t, key, "behavior", "GLOBAL")
				if took > 500*time.Millisecond || time.Since(start) > 2*time.Second && took > 0 {
					t.Errorf("item %d waited for %v", i, took)
				}
				want := "OK"
				if policy == member.PolicyClosed && r.Metadata["degraded"] != "owner_out" {
					want = "OVER_LIMIT"
				}
				if r.Status != want || !slices.Contains(degradedWords, r.Metadata["degraded"]) {
					t.Error(describe(r))
				}
				<-time.After(40 * time.Millisecond)
			}
		}, by(policy))
	}
}

// TestClockOfTheOwnerSteps sets the owner's clock back and forth while hits are owed to it. None is lost while their
// window lasts.
func TestClockOfTheOwnerSteps(t *testing.T) {
	for _, algorithm := range []string{"TOKEN_BUCKET", "SLIDING_WINDOW"} {
		for _, by := range []time.Duration{-time.Hour, -time.Second, time.Second} {
			t.Run(fmt.Sprint(algorithm, by), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					steps := make([]time.Duration, 2)
					c := startAir(t, 2, func(i int, m *member.Options, _ *server.Options) {
						m.CacheSize, m.Now = 1000, func() time.Time { return time.Now().Add(steps[i]) }
					})
					owner, other := c.owner("k")
					members := terms{"limit", 2000, "behavior", "GLOBAL", "algorithm", algorithm}
					other.one(t, "k", of(members, "hits", 20)...)
					other.one(t, "k", of(members, "hits", 7)...)
					steps[c.indexOf(owner)] = by
					owner.one(t, "k", of(members, "hits", 3)...)
					for range 3 {
						c.sync(t)
					}
					if used := lookAt(t, owner, "k", "algorithm", algorithm); used != 30 {
						t.Errorf("the owner knows of %d, want 30", used)
					}
					if r := other.one(t, "k", of(members, "hits", 0)...); *r.Remaining != 1970 {
						t.Error(describe(r))
					}
				})
			})
		}
	}
}

// TestReportsEnd has a node stop while its owner doesn't answer: that takes no longer than it is given.
func TestReportsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startAir(t, 2, patient)
		owner, other := c.owner("k")
		for _, hits := range []int{1, 10} {
			other.one(t, "k", "limit", 2000, "hits", hits, "behavior", "GLOBAL")
		}
		c.isolate(owner, slow)
		stop := c.run(t)
		<-time.After(time.Second)
		start := time.Now()
		stop()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := other.global.Sync(ctx); err == nil {
			t.Error("it says that it has told the owner")
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestReportsGoOn has a node with an old list report to one that owns the limit no more. It tells the one that does.
func TestReportsGoOn(t *testing.T) {
	for _, algorithm := range algorithms {
		inAir(t, algorithm, 3, func(t *testing.T, c *cluster) {
			old, former, owner := c.nodes[0], c.nodes[1], c.nodes[2]
			old.peers.Update(old.name, []discovery.Member{{Name: old.name}, {Name: former.name}})
			var key string
			for _, k := range c.ownedBy(owner, former) {
				if r := (&limits.Request{Name: "test", UniqueKey: k}); old.peers.View().Owner(r.AppendID(nil)) != nil {
					key = k
				}
			}
			members := terms{"algorithm", algorithm, "limit", 1000, "duration", 300 * 24 * 3_600_000, "behavior", "GLOBAL"}
			for range 5 {
				if r := old.one(t, key, members...); r.Status != "OK" || r.Metadata["owner"] != former.name {
					t.Error(describe(r))
				}
			}
			c.wires.set(old, former, cut)
			for range 5 {
				if r := old.one(t, key, members...); r.Status != "OK" || r.Metadata["owner"] != old.name {
					t.Error(describe(r))
				}
			}
			c.heal(t)
			if used := lookAt(t, owner, key, "algorithm", algorithm, "duration", 300*24*3_600_000); used != 10 {
				t.Errorf("the owner knows of %d, want 10", used)
			}
		})
	}
}

// ownedBy returns some keys that a node owns in the list of another one.
func (c *cluster) ownedBy(owner, asked *node) (keys []string) {
	for i := range 100 {
		r := limits.Request{Name: "test", UniqueKey: fmt.Sprint("key-", i)}
		if peer := asked.peers.View().Owner(r.AppendID(nil)); peer != nil && peer.Name() == owner.name {
			keys = append(keys, r.UniqueKey)
		}
	}
	return keys
}

// TestDebtsAreBounded owes hits of more limits than there is room for. What is kept reaches the owner, what isn't is
// counted.
func TestDebtsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room, owed = 4000, 6000
		c := &cluster{room: room}
		c.startAir(t, 2)
		other, owner := c.nodes[0], c.nodes[1]
		keys := c.keysOf(owner, owed)
		c.isolate(owner, cut)
		for some := range slices.Chunk(keys, 1000) {
			for _, r := range other.checkKeys(t, some, "behavior", "GLOBAL", "duration", 24*3_600_000) {
				if r.Status != "OK" || r.Metadata["degraded"] == "" {
					t.Fatal(describe(r))
				}
			}
		}
		m := metrics(t, other)
		dropped := m[`weir_dropped_hits_total{reason="full"}`]
		if m["weir_global_copies"] > room || dropped < owed-room || m["weir_debts"]+dropped != owed {
			t.Errorf("%v entries, %v debts, %v dropped", m["weir_global_copies"], m["weir_debts"], dropped)
		}
		c.heal(t)
		if got := metrics(t, owner); got["weir_received_hits_total"] != owed-dropped ||
			got["weir_state_entries"] != owed-dropped {
			t.Errorf("the owner counted %v in %v states, want %v", got["weir_received_hits_total"], got["weir_state_entries"],
				owed-dropped)
		}
		if m := metrics(t, other); m["weir_debts"] != 0 || m["weir_reports_failed_total"] != 0 {
			t.Errorf("%v debts are left, %v reports failed", m["weir_debts"], m["weir_reports_failed_total"])
		}
	})
}

// TestForgottenCopies has an owner that knows of no more copies than there is room for. It counts what is owed from
// those that it has forgotten, too.
func TestForgottenCopies(t *testing.T) {
	for _, algorithm := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			c := &cluster{room: 2}
			c.startAir(t, 3)
			a, b, owner := c.nodes[0], c.nodes[1], c.nodes[2]
			keys := c.keysOf(owner, 3)
			members := terms{"limit", 3000, "duration", 300 * 24 * 3_600_000, "behavior", "GLOBAL", "algorithm", algorithm}
			for range 2 {
				for _, n := range []*node{a, b} {
					n.one(t, keys[0], of(members, "hits", 5)...)
				}
			}
			for _, key := range keys[1:] {
				a.one(t, key, members...)
			}
			c.sync(t)
			if used := lookAt(t, owner, keys[0], of(members[2:4], "algorithm", algorithm)...); used != 20 {
				t.Errorf("%s: the owner knows of %d, want 20", algorithm, used)
			}
		})
	}
}
