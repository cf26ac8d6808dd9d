// Chaos drives clusters of the real binary under load and faults, and judges by a model of what may be admitted and
// of what the nodes must say is used.
//
//	go run ./tests/chaos -bin PATH -seconds 120 -seed 1        all scenarios, then random ones until the time is over
//	go run ./tests/chaos -bin PATH -run a,b -count 5           some scenarios, five times each, with five seeds
//	go run ./tests/chaos -bin PATH -run random -seed 7
//
// Faults, their order and what callers ask follow from the seed, as far as real processes can be told when to do
// what. Each run has a line; one that failed also says what was violated, and what its nodes said last.
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
	done chan struct{} // closed when the scenario is over

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

// Fatal notes a violation and ends the goroutine that calls it, as a test's does.
func (r *run) Fatal(args ...any) {
	r.Errorf("%s", fmt.Sprint(args...))
	runtime.Goexit()
}

// play plays the scenario to its end, prints its line, and reports whether all was right.
func (r *run) play() bool {
	began, ended := time.Now(), make(chan struct{})
	go func() {
		defer close(ended)
		scenarios[r.name](r)
	}()
	<-ended
	close(r.done)
	var logs strings.Builder
	for _, c := range r.clusters {
		for _, n := range c.nodes {
			fmt.Fprintf(&logs, "  the last that %s said:\n%s", n.name, n.log.last(6))
		}
	}
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	head := fmt.Sprintf("%s seed %d (%.1f s)%s", r.name, r.seed, time.Since(began).Seconds(), r.note)
	if len(r.problems) == 0 {
		fmt.Printf("ok      %s\n", head)
		return true
	}
	shown := strings.Join(r.problems[:min(5, len(r.problems))], "\n    ")
	fmt.Printf("FAILED  %s: %d violations\n    %s\n%s", head, len(r.problems), shown, &logs)
	return false
}

// A plan is what is to be played.
type plan struct {
	bin      string
	names    []string
	seed     uint64
	rounds   int // of all names, with one seed more each time
	random   bool
	deadline time.Time // of the last to begin; none if zero
	parallel int
}

// at returns the run that is the i-th to begin; nil if there is none.
func (p plan) at(i int) *run {
	name, seed := p.names[i%len(p.names)], p.seed+uint64(i/len(p.names))
	if rest := i - p.rounds*len(p.names); rest >= 0 {
		name, seed = "random", p.seed+uint64(rest)
	}
	late := !p.deadline.IsZero() && time.Now().After(p.deadline)
	if late || i >= p.rounds*len(p.names) && !p.random {
		return nil
	}
	return &run{bin: p.bin, name: name, seed: seed, done: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 0))}
}

// play plays all, prints a summary, and reports whether all was right.
func (p plan) play() bool {
	var mu sync.Mutex
	begun, failed := 0, []string{}
	next := func() *run {
		mu.Lock()
		defer mu.Unlock()
		r := p.at(begun)
		if r != nil {
			begun++
		}
		return r
	}
	var all sync.WaitGroup
	for slot := range p.parallel {
		all.Go(func() {
			for r := next(); r != nil; r = next() {
				if r.slot = slot; !r.play() {
					mu.Lock()
					failed = append(failed, fmt.Sprint(r.name, " ", r.seed))
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	fmt.Printf("%d runs, %d failed: %s\n", begun, len(failed), strings.Join(failed, ", "))
	return len(failed) == 0
}

func main() {
	var p plan
	flag.StringVar(&p.bin, "bin", "", "the program `path`")
	flag.Uint64Var(&p.seed, "seed", 1, "what all follows from")
	flag.IntVar(&p.rounds, "count", 1, "how often each scenario is played, with one seed more each time")
	flag.IntVar(&p.parallel, "parallel", 2, "how many are played at a time")
	names := flag.String("run", "", "scenarios, separated by commas: "+strings.Join(scenarioNames(), " "))
	seconds := flag.Int("seconds", 0, "begin no more after this time, but random ones until then")
	flag.Parse()
	p.names, p.random = strings.Split(*names, ","), *seconds > 0
	if *names == "" {
		p.names = slices.DeleteFunc(scenarioNames(), func(name string) bool { return onDemand[name] })
	}
	for _, name := range p.names {
		if scenarios[name] == nil {
			fmt.Fprintf(os.Stderr, "chaos: there is no scenario %q\n", name)
			os.Exit(2)
		}
	}
	if *seconds > 0 {
		p.deadline = time.Now().Add(time.Duration(*seconds) * time.Second)
	}
	if _, err := os.Stat(p.bin); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: -bin:", err)
		os.Exit(2)
	}
	if !p.play() {
		os.Exit(1)
	}
}
