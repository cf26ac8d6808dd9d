package main

import (
	"fmt"
	"sync"
	"time"
)

// The flags of a check's behavior.
const (
	global = 2
	reset  = 8
	drain  = 32
)

// An item is one check of a request.
type item struct {
	Name      string `json:"name"`
	Key       string `json:"unique_key"`
	Hits      int64  `json:"hits"`
	Limit     int64  `json:"limit"`
	Duration  int64  `json:"duration"` // milliseconds
	Algorithm string `json:"algorithm,omitempty"`
	Behavior  int    `json:"behavior,omitempty"`
	Burst     int64  `json:"burst,omitempty"`
}

// A result is the answer to an item.
type result struct {
	Status    string            `json:"status"`
	Remaining int64             `json:"remaining"`
	ResetTime int64             `json:"reset_time"`
	Error     string            `json:"error"`
	Metadata  map[string]string `json:"metadata"`
}

// Trouble is what an answer's degradation may be explained by.
type trouble int32

const (
	calm   trouble = iota // all nodes are there: no answer may be degraded
	absent                // nodes have left or start: others count for them, and say so
	silent                // nodes died, froze, or can't hear each other: answers may be of unknown fate
)

// told are the words of degraded answers that were counted by the holder all the same, or by its successor. All
// others mean that the asked node has counted by itself, where what it admits is beyond the limit of the holder.
var told = map[string]bool{
	"": true, "owner_out": true, "owner_unreachable": true, "owner_refused": true, "not_ready": true,
}

// silentOwner is the word of copies that count alone. The first that do so have asked the holder, and waited for it;
// that it may be busy is no fault.
const silentOwner = "owner_silent"

// unknown reports whether the holder may have counted besides what an answer after some time says.
func unknown(why string, after time.Duration) bool {
	return why == "owner_timeout" || why == "owner_broken" || why == silentOwner && after > 40*time.Millisecond
}

// A limit is how callers ask for one.
type limit struct {
	item               // but for hits
	gives, resets bool // callers give back; they make it whole
	short         bool // it refills while it is watched, so only its bound is judged
	strict        bool // its GLOBAL copies are not to count alone
}

// A ledger is what the callers know of one limit, and the bounds that follow. Of everything that is counted, used is
// what the nodes know at most together; the callers know what they were told:
//
//	used ≥ base + net - lost - void - under
//	used ≤ base + net + over
//	net  ≤ what base leaves of the limit + sides × limit + lost + void (of the other sides) + local
type ledger struct {
	limit
	nodes    int64        // in the list, for the slack of GLOBAL limits
	alone    sync.RWMutex // held for writing by a RESET, which is not to have others beside it, and else for reading
	mu       sync.Mutex   // guards what follows
	began    time.Time    // when the first hits were sent
	base     int64        // used when the cluster was quiet last, as all nodes said
	net      int64        // since then: hits that were admitted, less those whose giving back was sent
	owned    int64        // what callers may give back
	underway int64        // hits that were sent, and not answered yet
	sides    int64        // how many nodes may have counted at a time without knowing of each other, beyond one
	crashing bool         // a holder is being killed, and the bound not known until it is dead
	lost     int64        // what nodes may have known alone when they died
	void     int64        // admitted where a RESET on another side may void it
	voidable bool         // there was such a RESET
	local    int64        // admitted by nodes that counted by themselves, without being holders
	over     int64        // may be counted without having been admitted
	under    int64        // admitted, and perhaps not counted
	drained  bool         // a refused request has taken the rest
	broken   bool         // more was admitted than may be
	last     []string     // the last answers, for the report of a violation
}

// An op is one item on its way.
type op struct {
	*ledger
	hits  int64 // to take, or, if negative, to give back; 0 looks
	whole bool  // makes the limit whole
}

// op returns an op that takes some hits, or gives some back, unless they weren't taken.
func (l *ledger) op(hits int64) op {
	l.mu.Lock()
	defer l.mu.Unlock()
	if hits < 0 {
		hits = max(hits, -l.owned)
		l.owned += hits
	}
	return op{ledger: l, hits: hits}
}

// item returns what to send.
func (o op) item() item {
	i := o.ledger.item
	i.Hits = o.hits
	if o.whole {
		i.Behavior |= reset
	}
	return i
}

// begin notes that o is about to be sent.
func (o op) begin() {
	l := o.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.began.IsZero() {
		l.began = time.Now()
	}
	l.underway += max(o.hits, 0)
	l.net += min(o.hits, 0) // what is given back may be taken again from now on
}

// undo notes that o was not sent after all, as nothing listened.
func (o op) undo() {
	l := o.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underway -= max(o.hits, 0)
	l.net -= min(o.hits, 0)
	l.owned -= min(o.hits, 0)
}

// unanswered notes that nothing is known of o, though it was sent.
func (o op) unanswered() {
	l := o.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underway -= max(o.hits, 0)
	l.over += max(o.hits, -o.hits)
	if o.whole {
		l.wholeInDoubt()
	}
}

// wholeInDoubt: a RESET that was applied, or wasn't, or will be later.
func (l *ledger) wholeInDoubt() {
	l.over += max(0, l.base+l.net)
	l.sides++
	l.base, l.net, l.owned, l.voidable = 0, 0, 0, true
}

// answered notes the answer to o, which fell into a time of that trouble, and returns what is wrong with it, if
// anything is.
func (o op) answered(r result, t trouble, after time.Duration) string {
	l := o.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	why := r.Metadata["degraded"]
	l.last = append(l.last[max(0, len(l.last)-3):], fmt.Sprintf("%d %s %d %v", o.hits, r.Status, r.Remaining, r.Metadata))
	l.underway -= max(o.hits, 0)
	doubt := unknown(why, after)
	switch {
	case r.Status == "OK" && o.whole:
		l.madeWhole(t, doubt)
	case r.Status == "OK" && o.hits > 0:
		l.admitted(o.hits, t, why, doubt)
	case doubt && o.hits > 0:
		l.over += o.hits
	case doubt && o.hits < 0:
		l.over, l.under, l.lost = l.over-o.hits, l.under-o.hits, l.lost-o.hits
	}
	if r.Status == "OVER_LIMIT" && l.Behavior&drain != 0 {
		l.drained = l.drained || !doubt
		if !told[why] { // each node that counts by itself drains what it knows
			l.over += l.Limit
		}
	}
	switch {
	case r.Status != "OK" && (r.Status != "OVER_LIMIT" || o.hits <= 0):
		return fmt.Sprintf("%s: %d hits: status %q, error %q", l.Key, o.hits, r.Status, r.Error)
	case why != "" && why != silentOwner && t < silent && (t == calm || !told[why]):
		return fmt.Sprintf("%s: answered %s for no reason", l.Key, why)
	case !l.crashing && !l.broken && l.net > l.bound(time.Now()):
		l.broken = true // which is said once
		return fmt.Sprintf("%s: %s", l.Key, l.describe())
	}
	return ""
}

func (l *ledger) admitted(hits int64, t trouble, why string, doubt bool) {
	l.net += hits
	l.owned += hits
	if !told[why] && (t == silent || why == silentOwner && !l.strict) {
		l.local += hits
	}
	if doubt {
		l.over, l.under = l.over+hits, l.under+hits
	}
	if l.voidable {
		l.void += hits
	}
}

// madeWhole begins anew. A RESET that some nodes don't hear of for now voids what they count: that is how it is
// meant, as what they know can't be told apart by then.
func (l *ledger) madeWhole(t trouble, doubt bool) {
	if doubt {
		l.wholeInDoubt()
		return
	}
	l.base, l.net, l.owned, l.void, l.drained = 0, 0, 0, 0, false
	if l.voidable = t == silent || l.sides > 0; !l.voidable {
		l.sides, l.lost, l.local = 0, 0, 0 // what is in doubt may still be on its way
	}
}

// bound is the most that net may be.
func (l *ledger) bound(now time.Time) int64 {
	if l.short {
		// A bucket and what leaked from it; or whole windows, of which each begins after the one before.
		refilled := l.Limit * (now.Sub(l.began).Milliseconds() + 1) / l.Duration
		return (l.Limit+refilled)*(1+l.sides) + l.lost + l.local
	}
	return max(0, l.Limit+l.slack()-l.base) + l.sides*l.Limit + l.lost + min(l.void, l.sides*l.Limit) + l.local
}

// slack is what copies of a GLOBAL limit may admit beyond it, by the documentation, with the default of 1 %.
func (l *ledger) slack() int64 {
	switch {
	case l.Behavior&global == 0:
		return 0
	case l.strict:
		return l.Limit / 100
	}
	return (l.nodes - 1) * (l.Limit / 100 / l.nodes)
}

// used is between what the nodes must say has been used, once they have told each other everything.
func (l *ledger) used() (from, to int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, to = l.base+l.net-l.lost-l.void-l.under, l.base+l.net+l.over
	if l.drained {
		to = max(to, l.Limit*(1+l.sides)+l.lost+l.local)
		if l.lost+l.void+l.under == 0 {
			from = max(from, l.Limit)
		}
	}
	return max(0, from), max(0, to)
}

// spent reports whether all of the limit was admitted.
func (l *ledger) spent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.base+l.net >= l.Limit
}

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.describe()
}

func (l *ledger) describe() string {
	return fmt.Sprintf("limit %d %s %d: %d admitted, at most %d; "+
		"base %d, sides %d, lost %d, void %d, local %d, over %d, under %d; last %q",
		l.Limit, l.Algorithm, l.Behavior, l.net, l.bound(time.Now()),
		l.base, l.sides, l.lost, l.void, l.local, l.over, l.under, l.last)
}

// side notes that one more node may count without knowing of the others.
func (l *ledger) side() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sides++
}

// toldTwice notes that what nodes counted by themselves may be counted twice.
func (l *ledger) toldTwice() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over += l.local
}

// crash notes that a node is about to be killed.
func (l *ledger) crash() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.crashing = true
}

// crashed notes that it is dead. What it knew alone, of a limit that it held, is everything at most. Unless the
// cluster was quiet, it may also have had hits of other nodes that these tell again, or what it had told others is
// told twice.
func (l *ledger) crashed(held, quiet bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.crashing = false
	all := max(0, l.base+l.net) + l.underway
	if held || !quiet {
		l.lost = max(l.lost, all)
	} else if l.Behavior&global != 0 { // what its copy has admitted, or taken back, and hasn't told yet
		l.lost += l.Limit / 100 / l.nodes
		l.over += l.Limit
	}
	if l.short {
		l.sides++
	}
	if !quiet {
		l.over += all
	}
}

// rest begins anew with what all nodes say is used, now that they are quiet.
func (l *ledger) rest(used int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base, l.net, l.owned = used, 0, min(l.owned, used)
	l.sides, l.lost, l.void, l.local, l.over, l.under, l.voidable, l.drained = 0, 0, 0, 0, 0, 0, false, false
}
