package global

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
)

// A world is some nodes with one network between them, and one time, of which each node has its own clock.
type world struct {
	t     *testing.T
	slack float64
	size  int

	mu     sync.Mutex // guards all below
	now    time.Time
	nodes  []*node
	starts int64
	ring   []*node                              // those that are part of the cluster
	place  map[string]string                    // owners of keys, "" for all that are not here; else they are spread over the ring
	fate   func(from, to *node, kind kind) fate // of a message; nil: all arrive
	late   []func()                             // messages that arrive in the end
	sent   []string                             // "a>b report", "a>b states" and "a>b check", those that arrived
	moving bool                                 // states follow their keys
	handed []string                             // "a>b" where a told b that it has everything
	count  map[string]int64                     // by key: hits that its owner has counted, or will have to
}

// A kind is what a message is.
type kind string

const (
	aCheck  kind = "check"
	aReport kind = "report"
	aStates kind = "states"
)

// A fate is what becomes of a message.
type fate int

const (
	arrives fate = iota
	refused      // surely not processed, and its sender knows
	lost         // not processed, and its sender can't know
	unheard      // processed, but the answer is lost
	delayed      // processed later, and nobody waits for the answer
	twice        // processed again, later
)

// A node is one process. It implements Cluster.
type node struct {
	*world
	name    string
	skew    time.Duration // of its clock
	start   int64         // of its process
	limiter *limits.Limiter
	sync    *Syncer
	out     []*node                             // those that it takes to be away
	tick    func()                              // called when it reads its clock, if not nil
	heard   func(report *wire.Report)           // called with what is reported to it, if not nil
	told    func(from *node, s wire.KeyedState) // called with each state that it is told, if not nil
	asked   string                              // the ring when it was asked what is lost
	asking  func()                              // called when it is asked that, if not nil
}

var beginning = time.Unix(1_767_268_800, 0) // Thursday, 2026-01-01 12:00 UTC

// newWorld makes a world of nodes named a, b, c...
func newWorld(t *testing.T, nodes int) *world {
	w := &world{t: t, slack: 0.1, size: 1000, now: beginning, place: map[string]string{}, count: map[string]int64{}}
	for i := range nodes {
		w.nodes = append(w.nodes, &node{world: w, name: string(rune('a' + i))})
	}
	w.ring = slices.Clone(w.nodes)
	for _, n := range w.nodes {
		n.restart()
	}
	return w
}

// restart makes a new process of a node, which knows nothing.
func (n *node) restart() {
	n.starts++
	n.start, n.asked = n.starts, ""
	n.limiter = limits.New(n.size, n.time)
	n.sync = New(Options{Limiter: n.limiter, Cluster: n, Slack: n.slack, Size: n.size})
}

func (n *node) time() time.Time {
	if n.tick != nil {
		n.tick()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now.Add(n.skew)
}

func (w *world) wait(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) node(name string) *node {
	i := slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == name })
	return w.nodes[i]
}

// setRing makes these nodes the cluster.
func (w *world) setRing(names string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ring = nil
	for _, name := range names {
		w.ring = append(w.ring, w.node(string(name)))
	}
}

// owner returns the owner of a limit; nil while that is unknown.
func (w *world) owner(id []byte) *node {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ring) == 0 {
		return nil
	}
	_, key := bucket.SplitID(string(id))
	for _, key := range []string{key, ""} {
		if name, ok := w.place[key]; ok {
			return w.node(name)
		}
	}
	h := fnv.New32()
	h.Write(id)
	return w.ring[int(h.Sum32())%len(w.ring)]
}

func (n *node) Owner(id []byte) (string, bool) {
	switch owner := n.owner(id); owner {
	case nil:
		return "", false
	case n:
		return "", true
	default:
		return owner.name, true
	}
}

func (n *node) Nodes() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.ring)
}

func (n *node) Knows(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return name != n.name && slices.ContainsFunc(n.ring, func(other *node) bool { return other.name == name })
}

func (n *node) Incarnation() int64 { return n.start }

// Lost takes any other ring for one in which something is lost, since places of single limits change here.
func (n *node) TakeOwnershipLoss() bool {
	ring, _ := n.Ring()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asking != nil {
		n.asking()
	}
	lost := n.asked != ring
	n.asked = ring
	return lost
}

// Ring returns one only where states are to move.
func (n *node) Ring() (string, []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.moving {
		return "", nil
	}
	var names []string
	for _, other := range n.ring {
		names = append(names, other.name)
	}
	return fmt.Sprint(names, n.place), slices.DeleteFunc(names, func(name string) bool { return name == n.name })
}

func (n *node) HandoverDone(name, ring string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handed = append(n.handed, name+">"+n.name)
}

var errLost = errors.New("no answer")

// send has a message processed as its fate will have it.
func (n *node) send(to *node, kind kind, process func()) error {
	n.mu.Lock()
	fate := arrives
	if n.fate != nil {
		fate = n.fate(n, to, kind)
	}
	process = n.noted(n.name+">"+to.name+" "+string(kind), process)
	if fate == delayed || fate == twice {
		n.late = append(n.late, process)
	}
	n.mu.Unlock()
	switch fate {
	case arrives, twice:
		process()
		return nil
	case unheard:
		process()
	case refused:
		return errRefused
	}
	return errLost
}

var errRefused = errors.New("not sent")

func (w *world) noted(what string, process func()) func() {
	return func() {
		w.mu.Lock()
		w.sent = append(w.sent, what)
		w.mu.Unlock()
		process()
	}
}

// deliver has all late messages arrive, in any order.
func (w *world) deliver(random *rand.Rand) {
	w.mu.Lock()
	late := w.late
	w.late = nil
	w.mu.Unlock()
	if random != nil {
		random.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
	}
	for _, process := range late {
		process()
	}
}

// copied returns what arrives of a message.
func copied[Message any](w *world, m *Message) *Message {
	text, err := wire.AppendMessage(nil, m)
	if err != nil {
		w.t.Errorf("%+v: %v", m, err)
	}
	arrived := new(Message)
	if err := wire.Unmarshal(text, arrived); err != nil {
		w.t.Errorf("%s: %v", text, err)
	}
	return arrived
}

func (n *node) Report(_ context.Context, name string, report *wire.Report) (answer *wire.StateUpdate, err error) {
	to := n.node(name)
	arrived := copied(n.world, report)
	err = n.send(to, aReport, func() {
		if to.heard != nil {
			to.heard(arrived)
		}
		states := to.sync.Receive(n.name, arrived)
		for _, state := range states.States {
			if n.told != nil {
				n.told(to, state)
			}
		}
		if answer == nil {
			answer = copied(n.world, states)
		}
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (n *node) Publish(_ context.Context, name string, states *wire.StateUpdate) error {
	to := n.node(name)
	arrived := copied(n.world, states)
	return n.send(to, aStates, func() {
		for _, state := range arrived.States {
			if to.told != nil {
				to.told(n, state)
			}
		}
		to.sync.Published(n.name, arrived)
	})
}

// An outcome is what the caller is answered, and by whom.
type outcome struct {
	limits.Result
	from string
}

// check decides on a GLOBAL item as a server does that its client asks.
func (n *node) check(r limits.Request) outcome {
	r.Behavior |= bucket.Global
	id := r.AppendID(nil)
	owner := n.owner(id)
	switch owner {
	case nil:
		return n.countAway(&r, "nobody")
	case n:
		result := n.limiter.Check(r)
		n.sync.Changed(queryOf(&r))
		return outcome{n.counted(&r, result), "owner"}
	}
	away := slices.Contains(n.out, owner)
	if result, ok := n.sync.Check(queryOf(&r), owner.name, away); ok {
		return outcome{n.counted(&r, result), "copy"}
	}
	if away {
		return n.countAway(&r, "stand-in")
	}
	asked := n.sync.Clock()
	var answer limits.Result
	err := n.send(owner, aCheck, func() { answer = owner.countFor(n, r) })
	if err == nil {
		n.sync.Learn(queryOf(&r), owner.name, answer.State)
		answer.State = nil
		return outcome{answer, "asked"}
	}
	result, ok := n.sync.Missed(queryOf(&r), owner.name, asked, err != errRefused)
	switch {
	case err == errRefused && ok:
		return outcome{n.counted(&r, result), "missed"}
	case err == errRefused:
		return n.countAway(&r, "stand-in")
	case ok: // if it isn't counted, the owner must not be told of it
		return outcome{result, "missed"}
	}
	return outcome{n.sync.Count(queryOf(&r), false), "local"}
}

// queryOf prepares a request, which must be valid.
func queryOf(r *limits.Request) *bucket.Query {
	q := new(bucket.Query)
	if err := q.Prepare(r, zones); err != nil {
		panic(err)
	}
	return q
}

var zones = bucket.NewZones()

// counted notes that the owner counts the hits that were taken, or will have to.
func (w *world) counted(r *limits.Request, result limits.Result) limits.Result {
	if result.Status != limits.StatusError && takes(queryOf(r), &result) {
		w.mu.Lock()
		w.count[r.UniqueKey] += r.Hits
		w.mu.Unlock()
	}
	return result
}

// countAway counts for an owner that can't.
func (n *node) countAway(r *limits.Request, from string) outcome {
	return outcome{n.counted(r, n.sync.Count(queryOf(r), true)), from}
}

// countFor counts for another node, which wants a copy.
func (n *node) countFor(from *node, r limits.Request) limits.Result {
	q := new(bucket.Query)
	if err := n.limiter.Prepare(&r, q); err != nil {
		return limits.Result{Error: err.Error()}
	}
	if n.owner(q.ID) != n {
		return n.counted(&r, n.sync.Count(q, true))
	}
	result := n.counted(&r, n.limiter.Check(r))
	n.sync.Changed(q)
	result.State = n.sync.Share(q, from.name, from.start)
	if from.told != nil {
		from.told(n, wire.KeyedState{Key: wire.Key{Name: r.Name, UniqueKey: r.UniqueKey}, Snapshot: *result.State})
	}
	return result
}

func (n *node) mustSync() {
	n.t.Helper()
	if err := n.sync.Sync(context.Background()); err != nil {
		n.t.Errorf("%s: %v", n.name, err)
	}
}

// settle has all nodes in the ring say what they have to, some rounds long.
func (w *world) settle(rounds int) {
	for range rounds {
		for _, n := range w.ring {
			n.sync.Sync(context.Background())
		}
	}
}

// all sets one fate for all messages from now on.
func (w *world) all(f fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fate = func(from, to *node, kind kind) fate { return f }
}

// heal has all messages arrive from now on.
func (w *world) heal() {
	w.mu.Lock()
	w.fate = nil
	w.mu.Unlock()
	for _, n := range w.nodes {
		n.out = nil
	}
}

// used returns what a node's own limiter has counted.
func (n *node) used(r limits.Request) int64 {
	var told bucket.Snapshot
	told.Set(n.limiter.State(r.AppendID(nil)), n.time())
	if told.Algorithm == limits.LeakyBucket && told.Rest > 0 {
		told.Used, told.Rest = told.Used+1, 0
	}
	return told.Used + told.Rest
}

func (n *node) look(r limits.Request) outcome {
	r.Hits, r.Behavior = 0, 0
	return n.check(r)
}

// entry returns what a node holds of a limit that another one owns.
func (n *node) entry(r limits.Request) *entry {
	id := r.AppendID(nil)
	sh := n.sync.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e, _ := sh.entries.Peek(string(id))
	return e
}

// metric reads a number as the operator does.
func (n *node) metric(name string) string {
	n.t.Helper()
	var b bytes.Buffer
	n.sync.WriteMetrics(&b)
	for line := range strings.Lines(b.String()) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	n.t.Errorf("there is no %s in\n%s", name, b.String())
	return ""
}

// wantMetrics takes pairs of names and values.
func (n *node) wantMetrics(pairs ...string) {
	n.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := n.metric(pairs[i]); got != pairs[i+1] {
			n.t.Errorf("%s: %s is %s, want %s", n.name, pairs[i], got, pairs[i+1])
		}
	}
}

// hear returns the messages that have arrived since it was asked last.
func (w *world) hear() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := strings.Join(w.sent, ", ")
	w.sent = nil
	return sent
}

// wantHeard checks which messages have arrived since it was asked last.
func (w *world) wantHeard(want ...string) {
	w.t.Helper()
	if got := w.hear(); got != strings.Join(want, ", ") {
		w.t.Errorf("there was %q, want %q", got, want)
	}
}

// wants checks an answer: where it comes from, and what remains.
func (o outcome) wants(t *testing.T, from string, status bucket.Status, remaining int64) {
	t.Helper()
	if o.from != from || o.Status != status || o.Remaining != remaining {
		t.Errorf("%v, %d remain, from %s: want %v, %d, from %s", o.Status, o.Remaining, o.from, status, remaining, from)
	}
}

const (
	ok   = limits.StatusOK
	over = limits.StatusOverLimit
)

// of makes a request for hits of 100 an hour, of the key that the world places at node a.
func (w *world) of(a limits.Algorithm, hits int64) limits.Request {
	w.place["key"] = "a"
	return limits.Request{Name: "name", UniqueKey: "key", Hits: hits, Limit: 100, Duration: 3_600_000, Algorithm: a}
}

func eachAlgorithm(t *testing.T, test func(t *testing.T, a limits.Algorithm)) {
	t.Helper()
	for a := limits.TokenBucket; a <= limits.SlidingWindow; a++ {
		t.Run(a.String(), func(t *testing.T) { test(t, a) })
	}
}

// seeds runs a test with many random sequences. The name of a failure tells how to repeat it.
func seeds(t *testing.T, n uint64, test func(t *testing.T, random *rand.Rand)) {
	t.Helper()
	for seed := range n {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}
