// Chaos drives clusters of the real binary under load and faults, and judges by a model of what may be admitted and what the nodes
// must say is used.
//
//	go run ./tests/chaos -bin PATH -seconds 120 -seed 1        all scenarios, and random ones until the time is over
//	go run ./tests/chaos -bin PATH -run a,b -count 5           some scenarios, five times each, with five seeds
//	go run ./tests/chaos -bin PATH -run random -seed 7 -count 1
//
// Faults, their order and what callers ask follow from the seed, as far as real processes can be told when to do what. There is a
// line for each run, and for those that failed also what was violated, and the last that the nodes said.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// A run is one scenario with one seed. It has what package dnstest needs of a test.
type run struct {
	bin  string
	name string
	seed uint64
	slot int // which part of the loopback network it has
	rng  *rand.Rand
	done chan struct{} // closed when it ends

	mu       sync.Mutex
	problems []string // guarded by mu
	note     string   // for its line
	cleanups []func()
	clusters []*cluster
}

func (r *run) Helper() {}

// Cleanup has f called at the end, the latest first.
func (r *run) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// Errorf notes a violation.
func (r *run) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// Fatal notes a violation and ends the run. It may be called by the scenario itself only, not by what it started.
func (r *run) Fatal(args ...any) {
	r.Errorf("%s", fmt.Sprint(args...))
	runtime.Goexit()
}

// play plays a scenario to its end, prints its line, and reports whether all was right.
func (r *run) play(scenario func(*run)) bool {
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		scenario(r)
	}()
	<-ended
	logs := r.logs()
	close(r.done)
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	head := fmt.Sprintf("%s seed %d (%.1f s)%s", r.name, r.seed, time.Since(began).Seconds(), strings.TrimSuffix(r.note, ","))
	if len(r.problems) == 0 {
		fmt.Printf("ok      %s\n", head)
		return true
	}
	shown := r.problems[:min(5, len(r.problems))]
	fmt.Printf("FAILED  %s: %d violations\n    %s\n%s", head, len(r.problems), strings.Join(shown, "\n    "), logs)
	return false
}

// logs returns the last that the nodes said.
func (r *run) logs() string {
	var b strings.Builder
	for _, c := range r.clusters {
		for _, n := range c.nodes {
			fmt.Fprintf(&b, "  the last that %s said:\n%s", n.name, n.log.lines(6))
		}
	}
	return b.String()
}

// A queue hands out what is to be played.
type queue struct {
	mu       sync.Mutex
	names    []string // of scenarios, in turn
	random   bool     // go on with random ones
	next     int
	last     int // of the names
	seed     uint64
	deadline time.Time
}

// take returns the next one to play; "" if there is none.
func (q *queue) take() (name string, seed uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	round := q.seed + uint64(q.next/len(q.names))
	switch {
	case !q.deadline.IsZero() && time.Now().After(q.deadline):
		return "", 0
	case q.next < q.last:
		name = q.names[q.next%len(q.names)]
	case q.random:
		name, round = "random", q.seed+uint64(q.next-q.last)
	default:
		return "", 0
	}
	q.next++
	return name, round
}

func main() {
	bin := flag.String("bin", "", "the program `path`")
	seconds := flag.Int("seconds", 0, "begin nothing more after this time; 0: when all is played")
	seed := flag.Uint64("seed", 1, "what all follows from")
	names := flag.String("run", "", "scenarios, by a comma: "+strings.Join(scenarioNames(), " ")+"; default all, then random ones")
	count := flag.Int("count", 1, "how often each is played, with one seed more each time; 0: until the time is over")
	parallel := flag.Int("parallel", 2, "how many are played at a time")
	flag.Parse()
	q := queue{names: strings.Split(*names, ","), seed: *seed}
	if *names == "" {
		q.names, q.random = scenarioNames(), *seconds > 0
		q.names = q.names[:len(q.names)-1]
	}
	for _, name := range q.names {
		if scenarios[name] == nil {
			fmt.Fprintf(os.Stderr, "chaos: there is no scenario %q\n", name)
			os.Exit(2)
		}
	}
	if q.last = len(q.names) * *count; *count == 0 {
		q.last = 1 << 60
	}
	if *seconds > 0 {
		q.deadline = time.Now().Add(time.Duration(*seconds) * time.Second)
	}
	if _, err := os.Stat(*bin); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: -bin:", err)
		os.Exit(2)
	}
	if !playAll(&q, *bin, *parallel) {
		os.Exit(1)
	}
}

// playAll plays what the queue has, prints a summary, and reports whether all was right.
func playAll(q *queue, bin string, parallel int) bool {
	var mu sync.Mutex
	played, failed := 0, []string{}
	var all sync.WaitGroup
	for slot := range parallel {
		all.Go(func() {
			for name, seed := q.take(); name != ""; name, seed = q.take() {
				r := &run{bin: bin, name: name, seed: seed, slot: slot, done: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 0))}
				ok := r.play(scenarios[name])
				mu.Lock()
				if played++; !ok {
					failed = append(failed, fmt.Sprint(name, " ", seed))
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.Sort(failed)
	fmt.Printf("%d runs, %d failed: %s\n", played, len(failed), strings.Join(failed, ", "))
	return len(failed) == 0
}
