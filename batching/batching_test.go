package batching

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const window = 500 * time.Microsecond

// roomy are options whose bounds no test meets by accident.
var roomy = Options{Window: window, Items: 100, Bytes: 100_000, Flights: 4, Waiting: 1000}

// A rig is a Batcher in a bubble whose batches land when the test lets them. An item is an int and its result the item
// as a string; an item of n counts n bytes.
type rig struct {
	*Batcher[int, string]
	t    *testing.T
	sent chan *flight
}

type flight struct {
	items []int
	end   chan func() ([]string, error) // what send does in the end
}

// bubble runs test in a bubble. In the end nothing may be on its way or in line; that no goroutine is left is seen by
// synctest itself.
func bubble(t *testing.T, o Options, test func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, sent: make(chan *flight, 1000)}
		r.Batcher = New(o, func(n int) int { return n }, r.fake)
		test(t, r)
		synctest.Wait()
		if n := len(r.sent); n > 0 {
			t.Errorf("%d batches were sent that the test doesn't know of; the first is %v", n, (<-r.sent).items)
		}
		r.check()
		if r.flights != 0 || r.waiting != 0 || len(r.line) != 0 {
			t.Errorf("left over: %d flights, %d items in %d batches", r.flights, r.waiting, len(r.line))
		}
	})
}

func (r *rig) fake(items []int) ([]string, error) {
	f := &flight{items, make(chan func() ([]string, error))}
	r.sent <- f
	return (<-f.end)()
}

// check checks that the parts of a Batcher agree.
func (b *Batcher[Req, Res]) check() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	sum := 0
	for i, c := range b.line {
		if c.leave != (i < b.leaving) {
			return fmt.Errorf("batch %d of %d is leaving: %v; %d do", i, len(b.line), c.leave, b.leaving)
		}
		if !c.leave {
			sum += len(c.items)
		}
		groups := 0
		for i := range c.ends {
			if from, to := c.span(i); to > from {
				groups++
			}
		}
		bytes := 0
		for _, item := range c.items {
			bytes += b.size(item)
		}
		switch {
		case groups == 0:
			return fmt.Errorf("batch %d of %d is empty", i, len(b.line))
		case c.ends[len(c.ends)-1] != len(c.items):
			return fmt.Errorf("groups end at %v of %d items", c.ends, len(c.items))
		case c.bytes != bytes:
			return fmt.Errorf("batch counts %d bytes, has %d", c.bytes, bytes)
		case groups > 1 && (len(c.items) > b.o.Items || bytes > b.o.Bytes):
			return fmt.Errorf("%d groups share a batch of %d items, %d bytes", groups, len(c.items), bytes)
		case !c.due && i < len(b.line)-1:
			return fmt.Errorf("batch %d of %d is not due", i, len(b.line))
		case c.due && i >= b.leaving && b.flights < b.o.Flights:
			return fmt.Errorf("batch %d is due and stays, with %d flights", i, b.flights)
		case sum > b.o.Waiting && (groups > 1 || i > b.leaving):
			return fmt.Errorf("%d items wait", sum)
		}
	}
	switch {
	case b.waiting != sum:
		return fmt.Errorf("%d items wait, counted as %d", sum, b.waiting)
	case b.leaving < 0 || b.leaving > b.flights || b.flights > b.o.Flights:
		return fmt.Errorf("%d flights, of which %d are leaving", b.flights, b.leaving)
	case b.flights == 0 && sum > 0:
		return fmt.Errorf("%d items wait for nothing", sum)
	}
	return nil
}

func (r *rig) check() {
	r.t.Helper()
	if err := r.Batcher.check(); err != nil {
		r.t.Error(err)
	}
}

// A caller is a Do under way.
type caller struct {
	t       *testing.T
	group   []int
	cancel  context.CancelFunc
	done    bool // to read after synctest.Wait
	results []string
	err     error
}

// do calls Do and comes back when it waits, or has ended.
func (r *rig) do(group ...int) *caller {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	c := &caller{t: r.t, group: slices.Clone(group), cancel: cancel}
	go func() {
		defer cancel()
		group := slices.Clone(group)
		c.results, c.err = r.Do(ctx, group)
		if !slices.Equal(group, c.group) {
			c.t.Errorf("Do made %v of %v", group, c.group)
		}
		clear(group) // it may not be looked at any more
		c.done = true
	}()
	synctest.Wait()
	r.check()
	return c
}

// took checks that exactly one batch has left since the last look, with the items want, and returns it.
func (r *rig) took(want ...int) *flight {
	r.t.Helper()
	synctest.Wait()
	r.check()
	select {
	case f := <-r.sent:
		if !slices.Equal(f.items, want) {
			r.t.Fatalf("batch has items %v, want %v", f.items, want)
		}
		return f
	default:
		r.t.Fatalf("nothing was sent, want %v", want)
		return nil
	}
}

// quiet checks that nothing has left since the last look.
func (r *rig) quiet() {
	r.t.Helper()
	synctest.Wait()
	r.check()
	select {
	case f := <-r.sent:
		r.t.Fatalf("batch %v was sent too early", f.items)
	default:
	}
}

// fill takes all flights and returns them. Their items are negative.
func (r *rig) fill() []*flight {
	r.t.Helper()
	var flights []*flight
	for i := range r.o.Flights {
		r.do(-i - 1)
		if i > 0 {
			r.quiet()
			pass(r.o.Window)
		}
		flights = append(flights, r.took(-i-1))
	}
	return flights
}

// land ends flights with the right results.
func land(flights ...*flight) {
	for _, f := range flights {
		f.end <- func() ([]string, error) { return answers(f.items), nil }
		synctest.Wait()
	}
}

func answers(items []int) []string {
	results := make([]string, len(items))
	for i, item := range items {
		results[i] = fmt.Sprint(item)
	}
	return results
}

func (c *caller) waits() {
	c.t.Helper()
	synctest.Wait()
	if c.done {
		c.t.Fatalf("Do(%v) gave %q, %v: want it to wait", c.group, c.results, c.err)
	}
}

func (c *caller) answered() {
	c.t.Helper()
	synctest.Wait()
	if want := answers(c.group); !c.done || c.err != nil || !slices.Equal(c.results, want) {
		c.t.Fatalf("Do(%v): done %v, gave %q, %v: want %q", c.group, c.done, c.results, c.err, want)
	}
}

func (c *caller) failed(want error) {
	c.t.Helper()
	synctest.Wait()
	if !c.done || !errors.Is(c.err, want) || c.results != nil {
		c.t.Fatalf("Do(%v): done %v, gave %q, %v: want the error %v", c.group, c.done, c.results, c.err, want)
	}
}

// withdraw ends the caller's context while its group gathers.
func (c *caller) withdraw() {
	c.t.Helper()
	c.waits()
	c.cancel()
	c.failed(ErrNotSent)
	c.failed(context.Canceled)
}

func TestLoneGroupLeavesAtOnce(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		start := time.Now()
		for range 3 { // also after others
			c := r.do(3, 1, 2)
			f := r.took(3, 1, 2)
			c.waits()
			land(f)
			c.answered()
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("took %v", d)
		}
	})
}

// A caller must not get its answer before its batch counts as landed: what it sends next would gather behind that.
func TestLandsBeforeAnswer(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			r.Do(t.Context(), []int{1})
		}()
		f := r.took(1)
		r.mu.Lock() // it can't land
		f.end <- func() ([]string, error) { return answers(f.items), nil }
		for range 1000 {
			runtime.Gosched()
		}
		select {
		case <-answered:
			t.Error("the batch is answered and still on its way")
		default:
		}
		r.mu.Unlock()
		<-answered
	})
}

func TestGathersBehindFlight(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		start := time.Now()
		a := r.do(1)
		first := r.took(1)
		b, c, d := r.do(2, 3), r.do(4), r.do(5, 6, 7)
		r.quiet()
		land(first)
		a.answered()
		second := r.took(2, 3, 4, 5, 6, 7)
		land(second)
		b.answered()
		c.answered()
		d.answered()
		if d := time.Since(start); d != 0 {
			t.Errorf("took %v: want no time, for the flight landed before the window was over", d)
		}
	})
}

func TestWindow(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		r.do(1)
		first := r.took(1)
		r.do(2)
		pass(window - 1)
		r.do(3) // doesn't prolong it
		r.quiet()
		pass(1)
		second := r.took(2, 3)
		r.do(4) // has a window of its own
		pass(window - 1)
		r.quiet()
		pass(1)
		third := r.took(4)
		land(third, first, second)
	})
}

// The window of a batch that left early must not cut that of the next one.
func TestWindowEndsWithItsBatch(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		r.do(1)
		first := r.took(1)
		r.do(2)
		pass(window / 2)
		land(first)
		second := r.took(2)
		r.do(3)
		pass(window - 1)
		r.quiet()
		pass(1)
		land(r.took(3), second)
	})
}

func TestFull(t *testing.T) {
	tests := []struct {
		name         string
		items, bytes int
		groups       [][]int
		sent         [][]int // at once
		rest         []int   // after the window
	}{
		{"items fit exactly", 3, 1000, [][]int{{1}, {2}, {3}, {4}}, [][]int{{1, 2, 3}}, []int{4}},
		{"items fit exactly, none behind", 3, 1000, [][]int{{1}, {2, 3}}, [][]int{{1, 2, 3}}, nil},
		{"next group too many", 3, 1000, [][]int{{1, 2}, {3, 4}}, [][]int{{1, 2}}, []int{3, 4}},
		{"one item", 1, 1000, [][]int{{1}, {2}}, [][]int{{1}, {2}}, nil},
		{"larger than a batch", 3, 1000, [][]int{{1, 2, 3, 4}, {5}}, [][]int{{1, 2, 3, 4}}, []int{5}},
		{"larger than a batch, behind", 3, 1000, [][]int{{1}, {2, 3, 4, 5}}, [][]int{{1}, {2, 3, 4, 5}}, nil},
		{"bytes fit exactly", 100, 10, [][]int{{4}, {6}, {1}}, [][]int{{4, 6}}, []int{1}},
		{"bytes fit exactly, none behind", 100, 10, [][]int{{4}, {6}}, [][]int{{4, 6}}, nil},
		{"next group too many bytes", 100, 10, [][]int{{4, 5}, {2}}, [][]int{{4, 5}}, []int{2}},
		{"more bytes than a batch", 100, 10, [][]int{{11}, {1}}, [][]int{{11}}, []int{1}},
		{"more bytes than a batch, behind", 100, 10, [][]int{{1}, {6, 5}}, [][]int{{1}, {6, 5}}, nil},
		{"no bytes", 3, 1, [][]int{{0, 0}, {0}}, [][]int{{0, 0, 0}}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := roomy
			o.Items, o.Bytes = test.items, test.bytes
			bubble(t, o, func(t *testing.T, r *rig) {
				r.do(-1)
				flights := []*flight{r.took(-1)}
				var callers []*caller
				for _, group := range test.groups {
					callers = append(callers, r.do(group...))
				}
				for range test.sent {
					if len(r.sent) == 0 {
						t.Fatal("a full batch has not left")
					}
					flights = append(flights, <-r.sent)
				}
				var got [][]int
				for _, f := range flights[1:] {
					got = append(got, f.items)
				}
				slices.SortFunc(got, slices.Compare) // those that leave together start in any order
				if !slices.EqualFunc(got, test.sent, slices.Equal) {
					t.Errorf("sent %v, want %v", got, test.sent)
				}
				r.quiet()
				if test.rest != nil {
					pass(window)
					flights = append(flights, r.took(test.rest...))
				}
				land(flights...)
				for _, c := range callers {
					c.answered()
				}
			})
		})
	}
}

func TestFlightsAreBoundAndOrderKept(t *testing.T) {
	o := roomy
	o.Items, o.Flights = 4, 2
	bubble(t, o, func(t *testing.T, r *rig) {
		flights := r.fill()
		a, b, c, d := r.do(1, 2, 3), r.do(4, 5), r.do(6), r.do(7, 8, 9)
		pass(10 * window)
		r.quiet()
		e := r.do(10) // the window is over, but there is room until it leaves
		r.quiet()

		land(flights[1]) // the other is still on its way: full and late batches leave one by one
		f := r.took(1, 2, 3)
		r.quiet()
		land(f)
		a.answered()
		b.waits()
		f = r.took(4, 5, 6)
		r.quiet()
		land(f)
		b.answered()
		c.answered()
		f = r.took(7, 8, 9, 10)
		land(f, flights[0])
		d.answered()
		e.answered()
	})
}

// A batch that is neither full nor late stays in line when a flight lands, unless it was the last one on its way.
func TestLandings(t *testing.T) {
	o := roomy
	o.Flights = 2
	bubble(t, o, func(t *testing.T, r *rig) {
		flights := r.fill()
		r.do(1)
		land(flights[0])
		r.quiet()
		land(flights[1])
		f := r.took(1)
		r.do(2)
		pass(window)
		land(r.took(2), f)
	})
}

func TestLastLandingSendsOneBatchOnly(t *testing.T) {
	o := roomy
	o.Items, o.Flights = 2, 1
	bubble(t, o, func(t *testing.T, r *rig) {
		flights := r.fill()
		for i := range 5 {
			r.do(i)
		}
		land(flights...)
		f := r.took(0, 1)
		r.quiet()
		land(f)
		f = r.took(2, 3)
		r.quiet()
		land(f)
		land(r.took(4))
	})
}

func TestErrFull(t *testing.T) {
	o := roomy
	o.Items, o.Flights, o.Waiting = 3, 2, 5
	bubble(t, o, func(t *testing.T, r *rig) {
		flights := r.fill()
		a, b := r.do(1, 2), r.do(3, 4)
		r.do(9, 9).failed(ErrFull)
		c := r.do(5) // there is room for one yet
		r.do(9).failed(ErrFull)
		a.waits()
		b.waits()

		a.withdraw()
		r.do(9, 9, 9).failed(ErrFull)
		d := r.do(6, 7)

		land(flights[0])
		f := r.took(3, 4, 5)
		e := r.do(8)
		land(flights[1])
		g := r.took(6, 7, 8)
		land(f, g)
		for _, c := range []*caller{b, c, d, e} {
			c.answered()
		}
		h := r.do(10)
		land(r.took(10))
		h.answered()
	})
}

// A refusal must not make leave early what gathers.
func TestErrFullChangesNothing(t *testing.T) {
	o := roomy
	o.Items, o.Flights, o.Waiting = 4, 2, 5
	bubble(t, o, func(t *testing.T, r *rig) {
		flights := r.fill()
		r.do(1, 2, 3)
		r.do(9, 9, 9).failed(ErrFull)
		land(flights[0])
		r.quiet()
		land(flights[1])
		land(r.took(1, 2, 3))
	})
}

func TestNoErrFullWhileFlightIsFree(t *testing.T) {
	for _, items := range []int{5, 100} { // more than may wait is no batch that can gather
		o := roomy
		o.Items, o.Flights, o.Waiting = items, 3, 5
		bubble(t, o, func(t *testing.T, r *rig) {
			r.do(1)
			first := r.took(1)
			r.do(2, 3, 4)
			r.do(5, 6, 7) // doesn't fit in: the others leave
			second := r.took(2, 3, 4)
			r.quiet()
			r.do(8, 9) // five wait: they leave
			third := r.took(5, 6, 7, 8, 9)
			land(first, second, third)
		})
	}
}

func TestGroupLargerThanWaiting(t *testing.T) {
	o := roomy
	o.Flights, o.Waiting = 2, 3
	bubble(t, o, func(t *testing.T, r *rig) {
		a := r.do(1, 2, 3, 4, 5) // needs not wait
		first := r.took(1, 2, 3, 4, 5)
		b := r.do(1, 2, 3, 4) // is a full batch
		second := r.took(1, 2, 3, 4)
		c := r.do(6, 7, 8, 9) // waits alone
		r.quiet()
		r.do(10).failed(ErrFull)
		land(first)
		third := r.took(6, 7, 8, 9)
		d := r.do(10)
		r.do(1, 2, 3, 4).failed(ErrFull) // not alone
		land(second)
		r.quiet()
		land(third)
		land(r.took(10))
		for _, c := range []*caller{a, b, c, d} {
			c.answered()
		}
	})
}

func TestWithdraw(t *testing.T) {
	groups := [][]int{{1, 2}, {3}, {4, 5, 6}, {7, 8}}
	for gone := range 1 << len(groups) { // every subset, from the first and from the last
		for _, back := range []bool{false, true} {
			bubble(t, roomy, func(t *testing.T, r *rig) {
				r.do(-1)
				first := r.took(-1)
				var callers []*caller
				for _, group := range groups {
					callers = append(callers, r.do(group...))
				}
				var want []int
				for i := range callers {
					if gone>>i&1 == 0 {
						want = append(want, groups[i]...)
					}
				}
				for i := range callers {
					if back {
						i = len(callers) - 1 - i
					}
					if gone>>i&1 == 1 {
						callers[i].withdraw()
						r.check()
					}
				}
				late := r.do(9)
				land(first)
				land(r.took(append(want, 9)...))
				late.answered()
				for i, c := range callers {
					if gone>>i&1 == 0 {
						c.answered()
					}
				}
			})
		}
	}
}

func TestWithdrawGivesRoomBack(t *testing.T) {
	o := roomy
	o.Items, o.Bytes, o.Flights, o.Waiting = 4, 20, 1, 6
	bubble(t, o, func(t *testing.T, r *rig) {
		flights := r.fill()
		a := r.do(9, 9)
		b := r.do(1)
		a.withdraw()
		c := r.do(2, 17) // fits in again, by items and by bytes
		land(flights...)
		land(r.took(1, 2, 17))
		b.answered()
		c.answered()
	})
}

// An emptied batch disappears, wherever it stands in line, with its window.
func TestWithdrawWholeBatch(t *testing.T) {
	for gone := range 3 {
		o := roomy
		o.Items, o.Flights = 2, 2
		bubble(t, o, func(t *testing.T, r *rig) {
			flights := r.fill()
			groups := [][]int{{1, 2}, {3, 4}, {5}}
			var callers []*caller
			for _, group := range groups {
				callers = append(callers, r.do(group...))
			}
			callers[gone].withdraw()
			r.check()
			groups, callers = slices.Delete(groups, gone, gone+1), slices.Delete(callers, gone, gone+1)
			pass(window)
			for i, group := range groups {
				land(flights[0])
				flights[0] = r.took(group...)
				r.quiet()
				callers[i].waits()
			}
			land(flights...)
			for _, c := range callers {
				c.answered()
			}
		})
	}
}

func TestWithdrawStopsWindow(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		r.do(-1)
		first := r.took(-1)
		a := r.do(1)
		r.mu.Lock()
		timer := r.line[0].timer
		r.mu.Unlock()
		pass(window / 2)
		a.withdraw()
		if timer.Stop() {
			t.Error("the window of a batch that is gone still runs")
		}
		r.do(2)
		pass(window - 1)
		r.quiet()
		pass(1)
		second := r.took(2)
		land(first, second)
	})
}

func TestDepartureStopsWindow(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		r.do(-1)
		first := r.took(-1)
		r.do(1)
		r.mu.Lock()
		timer := r.line[0].timer
		r.mu.Unlock()
		land(first)
		second := r.took(1)
		if timer.Stop() {
			t.Error("the window of a batch that has left still runs")
		}
		land(second)
	})
}

// A window that ends at the very moment in which its batch leaves or disappears does nothing.
func TestExpireTooLate(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		r.do(-1)
		first := r.took(-1)
		a := r.do(1)
		r.mu.Lock()
		c := r.line[0]
		r.mu.Unlock()
		a.withdraw()
		r.do(2)
		r.expire(c)
		r.quiet()
		land(first)
		second := r.took(2)
		r.do(3)
		r.expire(c)
		r.quiet()
		land(second)
		land(r.took(3))
	})
}

func TestContextEndsUnderWay(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		r.do(-1)
		first := r.took(-1)
		a, b, c := r.do(1), r.do(2, 3), r.do(4)
		land(first)
		f := r.took(1, 2, 3, 4)
		b.cancel()
		b.failed(context.Canceled)
		if errors.Is(b.err, ErrNotSent) {
			t.Errorf("got %v for a group under way", b.err)
		}
		land(f)
		a.answered()
		c.answered()
	})
}

func TestContextEndedBefore(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		pass(2 * time.Second)
		results, err := r.Do(ctx, []int{1})
		if results != nil || !errors.Is(err, ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %q, %v", results, err)
		}
		if want := "batching: not sent: context deadline exceeded"; err.Error() != want {
			t.Errorf("got the text %q, want %q", err, want)
		}
		r.quiet()
	})
}

// When a batch has landed and the context has ended, the results count.
func TestAnswerBeatsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 {
			b := New(roomy, func(int) int { return 1 }, func(items []int) ([]string, error) { return answers(items), nil })
			results, err := b.Do(late{t.Context()}, []int{1})
			if err != nil || !slices.Equal(results, []string{"1"}) {
				t.Fatalf("got %q, %v", results, err)
			}
		}
	})
}

// late is a context that ends when the batch of its caller has landed.
type late struct{ context.Context }

func (late) Done() <-chan struct{} {
	synctest.Wait()
	done := make(chan struct{})
	close(done)
	return done
}

func TestEmptyGroup(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		for _, group := range [][]int{nil, {}} {
			if results, err := r.Do(t.Context(), group); len(results) != 0 || err != nil {
				t.Errorf("got %q, %v", results, err)
			}
		}
		r.quiet()
	})
}

func TestSendFails(t *testing.T) {
	down := errors.New("down")
	tests := []struct {
		name string
		end  func() ([]string, error)
		is   func(error) bool
		text string
	}{
		{"error", func() ([]string, error) { return nil, down }, func(err error) bool { return err == down }, "down"},
		{"error and results", func() ([]string, error) { return []string{"1", "2", "3"}, down },
			func(err error) bool { return err == down }, "down"},
		{"short", func() ([]string, error) { return []string{"1", "2"}, nil }, nil, "batching: 2 results for 3 items"},
		{"long", func() ([]string, error) { return []string{"1", "2", "3", "4"}, nil }, nil,
			"batching: 4 results for 3 items"},
		{"none", func() ([]string, error) { return nil, nil }, nil, "batching: 0 results for 3 items"},
		{"panic", func() ([]string, error) { panic("boom") }, isPanic, "batching: send panicked: boom"},
		{"nil panic", func() ([]string, error) { panic(nil) }, isPanic,
			"batching: send panicked: " + new(runtime.PanicNilError).Error()},
		{"goexit", func() ([]string, error) { runtime.Goexit(); return nil, nil }, nil, "batching: send ended its goroutine"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, roomy, func(t *testing.T, r *rig) {
				r.do(-1)
				first := r.took(-1)
				callers := []*caller{r.do(1), r.do(2, 3)}
				gone := r.do(4)
				gone.withdraw()
				land(first)
				f := r.took(1, 2, 3)
				next := r.do(5)
				f.end <- test.end
				for _, c := range callers {
					synctest.Wait()
					if !c.done || c.err == nil || c.results != nil {
						t.Fatalf("done %v, gave %q, %v", c.done, c.results, c.err)
					}
					if c.err.Error() != test.text {
						t.Errorf("got the text %q, want %q", c.err, test.text)
					}
					if test.is != nil && !test.is(c.err) {
						t.Errorf("got %#v", c.err)
					}
				}
				land(r.took(5)) // the next batch leaves, and does well
				next.answered()
			})
		})
	}
}

func isPanic(err error) bool {
	p, ok := errors.AsType[*PanicError](err)
	return ok && p.Value != nil && strings.Contains(string(p.Stack), "TestSendFails")
}

func TestSlicesAreTheirOwners(t *testing.T) {
	bubble(t, roomy, func(t *testing.T, r *rig) {
		r.do(-1)
		first := r.took(-1)
		a, b := r.do(1, 2), r.do(3)
		land(first)
		f := r.took(1, 2, 3)
		results := answers(f.items)
		clear(f.items) // send's to change
		f.items = append(f.items[:1], 7, 7, 7, 7)
		f.end <- func() ([]string, error) { return results, nil }
		a.answered()
		_ = append(a.results, "x")
		b.answered()
		if cap(a.results) != 2 || cap(b.results) != 1 {
			t.Errorf("results have room for %d and %d, want 2 and 1", cap(a.results), cap(b.results))
		}
	})
}

func TestNewPanics(t *testing.T) {
	size := func(int) int { return 1 }
	send := func([]int) ([]int, error) { return nil, nil }
	tests := map[string]func(){
		"size": func() { New(roomy, nil, send) },
		"send": func() { New[int, int](roomy, size, nil) },
	}
	for name, o := range map[string]Options{
		"Window":  {0, 1, 1, 1, 1},
		"Items":   {1, 0, 1, 1, 1},
		"Bytes":   {1, 1, -1, 1, 1},
		"Flights": {1, 1, 1, 0, 1},
		"Waiting": {1, 1, 1, 1, -1},
	} {
		tests[name] = func() { New(o, size, send) }
	}
	for name, construct := range tests {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			construct()
		}()
	}
	New(Options{1, 1, 1, 1, 1}, size, send)
}

// A context that ends in the moment in which the batch leaves: either the group is withdrawn and never sent, or it is
// sent.
func TestWithdrawRacesWithDeparture(t *testing.T) {
	tests := []struct {
		name   string
		depart func(r *rig, flying *flight)
	}{
		{"last landing", func(r *rig, flying *flight) {
			flying.end <- func() ([]string, error) { return []string{"-1"}, nil }
		}},
		{"window", func(r *rig, flying *flight) {
			r.mu.Lock()
			c := r.line[0]
			r.mu.Unlock()
			r.expire(c)
		}},
		{"next group", func(r *rig, flying *flight) {
			r.Do(r.t.Context(), make([]int, r.o.Items))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			withdrawn := 0
			for round := range 500 {
				bubble(t, roomy, func(t *testing.T, r *rig) {
					r.do(-1)
					flying := r.took(-1)
					a, b := r.do(1), r.do(2)
					// Both start at the same instant, either one first.
					events := []func(){a.cancel, func() { test.depart(r, flying) }}
					for i := range events {
						time.AfterFunc(1, events[(i+round)%2])
					}
					pass(2)
					synctest.Wait()
					r.check()
					want := []int{1, 2}
					switch {
					case !a.done:
						t.Fatal("Do waits on")
					case errors.Is(a.err, ErrNotSent):
						withdrawn++
						want = want[1:]
					case a.err != context.Canceled:
						t.Fatalf("got %v", a.err)
					}
					var got []int
					for len(r.sent) > 0 {
						f := <-r.sent
						if len(f.items) <= 2 {
							got = append(got, f.items...)
						}
						land(f)
					}
					if !slices.Equal(got, want) {
						t.Errorf("sent %v, want %v; Do gave %v", got, want, a.err)
					}
					b.answered()
					select {
					case flying.end <- func() ([]string, error) { return []string{"-1"}, nil }:
					default:
					}
				})
			}
			t.Logf("withdrawn in %d of 500 rounds", withdrawn)
		})
	}
}

// Whatever the order of events: an item is sent once at most, a group stays together, every caller gets one answer, and
// it is true.
func TestRandomSchedules(t *testing.T) {
	var total [6]int
	for range 12 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for i, n := range schedule(t, seed) {
					total[i] += n
				}
			})
		})
	}
	t.Logf("answered, full, not sent, unknown, failed; batches: %d", total)
	for i, n := range total {
		if n == 0 {
			t.Errorf("the schedules are too tame: count %d of them is 0", i)
		}
	}
}

func schedule(t *testing.T, seed uint64) (counts [6]int) {
	const callers, rounds, tick = 60, 30, window / 4
	rnd := rand.New(rand.NewPCG(seed, 0))
	o := Options{
		Window: window, Items: 1 + rnd.IntN(20), Bytes: 1 + rnd.IntN(200),
		Flights: 1 + rnd.IntN(4), Waiting: 1 + rnd.IntN(600),
	}

	// An item names its caller, round, and place in its group.
	type item struct{ caller, round, place int }
	size := func(i item) int { return (i.caller*7 + i.round*3 + i.place) % 12 }

	var mu sync.Mutex // guards the three
	sent := map[item]int{}
	neighbour := map[item]item{} // which follows which in a batch
	failed := map[item]bool{}
	var flying, batches atomic.Int32

	var b *Batcher[item, item]
	b = New(o, size, func(items []item) ([]item, error) {
		if n := flying.Add(1); int(n) > o.Flights {
			t.Errorf("%d batches on their way, want %d at most", n, o.Flights)
		}
		defer flying.Add(-1)
		seed := uint64(batches.Add(1))
		if err := b.check(); err != nil {
			t.Error(err)
		}
		groups, bytes := map[[2]int]bool{}, 0
		fate := rand.New(rand.NewPCG(seed, uint64(items[0].caller)))
		fails := fate.IntN(8)
		mu.Lock()
		for i, item := range items {
			sent[item]++
			failed[item] = fails < 3
			if i > 0 {
				neighbour[items[i-1]] = item
			}
			groups[[2]int{item.caller, item.round}] = true
			bytes += size(item)
		}
		mu.Unlock()
		if len(groups) > 1 && (len(items) > o.Items || bytes > o.Bytes) {
			t.Errorf("%d groups share a batch of %d items, %d bytes; options %+v", len(groups), len(items), bytes, o)
		}
		pass(time.Duration(fate.IntN(12)) * tick)
		switch fails {
		case 0:
			return nil, errors.New("down")
		case 1:
			return items[1:], nil
		case 2:
			panic("boom")
		}
		return slices.Clone(items), nil
	})

	var answered, full, notSent, unknown, wrong atomic.Int32
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(caller)+1))
			for round := range rounds {
				group := make([]item, 1+rnd.IntN(1+rnd.IntN(30)))
				for i := range group {
					group[i] = item{caller, round, i}
				}
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(3) == 0 {
					// Never at once: timers of a bubble that are over when they are made crash the race detector of Go 1.26.
					time.AfterFunc(time.Duration(1+rnd.IntN(20))*tick, cancel)
				}
				results, err := b.Do(ctx, group)
				mu.Lock()
				left := sent[group[0]] > 0
				bad := failed[group[0]]
				mu.Unlock()
				switch {
				case err == nil:
					answered.Add(1)
					if !slices.Equal(results, group) || bad {
						t.Errorf("got %v for %v", results, group)
					}
				case errors.Is(err, ErrFull):
					full.Add(1)
				case errors.Is(err, ErrNotSent):
					notSent.Add(1)
					if ctx.Err() == nil {
						t.Errorf("got %v before the context ended", err)
					}
				case errors.Is(err, context.Canceled):
					unknown.Add(1)
				default:
					wrong.Add(1)
					if !left || !bad {
						t.Errorf("got %v for a batch that does well", err)
					}
				}
				cancel()

				// That a group was not sent must be true for good: look again in the end.
				withdrawn := errors.Is(err, ErrFull) || errors.Is(err, ErrNotSent)
				time.AfterFunc(time.Hour, func() {
					mu.Lock()
					defer mu.Unlock()
					for i, item := range group {
						if n := sent[item]; withdrawn && n != 0 || !withdrawn && n != 1 {
							t.Errorf("%v was sent %d times; Do gave %v", item, n, err)
						}
						if !withdrawn && i > 0 && neighbour[group[i-1]] != item {
							t.Errorf("%v doesn't follow %v but %v", item, group[i-1], neighbour[group[i-1]])
						}
					}
				})
				pass(time.Duration(rnd.IntN(6)) * tick)
			}
		})
	}
	all.Wait()
	pass(2 * time.Hour)
	synctest.Wait()
	if b.flights != 0 || b.waiting != 0 || len(b.line) != 0 {
		t.Errorf("left over: %d flights, %d items in %d batches", b.flights, b.waiting, len(b.line))
	}
	return [6]int{
		int(answered.Load()), int(full.Load()), int(notSent.Load()),
		int(unknown.Load()), int(wrong.Load()), int(batches.Load()),
	}
}

// pass lets virtual time pass in a bubble.
func pass(d time.Duration) {
	if d > 0 { // as above: no timer may be over when it is made
		<-time.After(d)
	}
}

// TestReadyCallersTravelAlong has callers ask at the same moment, on one processor: the batch of the first takes the
// others.
func TestReadyCallersTravelAlong(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		batches := 0
		b := New(Options{Window: time.Second, Items: 100, Bytes: 100, Flights: 4, Waiting: 1000}, func(int) int { return 1 },
			func(items []int) ([]int, error) { batches++; return items, nil })
		for i := range 50 {
			go func() {
				if got, err := b.Do(t.Context(), []int{i}); err != nil || got[0] != i {
					t.Errorf("%v, %v", got, err)
				}
			}()
		}
		synctest.Wait()
		if batches > 3 {
			t.Errorf("%d batches for 50 callers", batches)
		}
	})
}
