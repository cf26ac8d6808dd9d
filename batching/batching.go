// Package batching lets concurrent callers share calls: what comes while a call is on its way gathers and travels
// together in the next one. A caller that finds nothing on its way doesn't wait. There is no worker and nothing to
// close: a Batcher that isn't used any more is simply forgotten.
//
// A group of items goes this way:
//
//	Do            joins the last batch in line, or a new one behind it, and waits for the answer
//	departLocked  lets the first batches in line leave, if they may
//	depart        takes a batch out of the line: it gathers no more
//	fly           sends it
//	land          frees the flight, lets the next batch leave, and wakes the callers of Do
//
// A caller that gives up while its group stands in line takes it out again (withdraw).
package batching

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// ErrFull is returned when too many items gather already. The group was not sent.
var ErrFull = errors.New("batching: too many items wait")

// ErrNotSent is returned when the caller's context ended before its group left. The group was not sent and never will
// be. The error that [Batcher.Do] returns wraps the context's error too.
var ErrNotSent = errors.New("batching: not sent")

var errNoReturn = errors.New("batching: send ended its goroutine")

// A PanicError is what [Batcher.Do] returns to all callers of a batch when send panics.
type PanicError struct {
	Value any    // what send panicked with
	Stack []byte // of the goroutine that ran send
}

// Error returns a text with the value, but without the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("batching: send panicked: %v", e.Value)
}

// Options bound a Batcher. All must be positive.
type Options struct {
	Window  time.Duration // how long a batch gathers at most, unless Flights are on their way
	Items   int           // items in a batch at most; a larger group travels alone and whole
	Bytes   int           // bytes in a batch at most, as size counts them; a larger group travels alone and whole
	Flights int           // batches on their way at once
	Waiting int           // items that gather at most, in all batches not yet sent; a larger group may gather alone
}

// A Batcher gathers groups of items into batches and sends them. It is safe for concurrent use. Its lock is not held
// while a batch is on its way, and no goroutine or timer is left when nothing is.
//
// A batch leaves when its window is over, or when it is full or the next group doesn't fit in, but not before one of
// Flights is free. When nothing is on its way the oldest batch leaves in any case. On its way out it lets callers pass
// that are ready to run, and takes in what they have; so the busier the processors are, the more travels together.
// Batches leave in the order in which their groups came, but may overtake each other on the way if there are several
// Flights.
type Batcher[Req, Res any] struct {
	o    Options
	size func(Req) int
	send func([]Req) ([]Res, error)

	mu      sync.Mutex        // guards the rest, and each call until it leaves
	flights int               // calls on their way, and those that are leaving
	leaving int               // calls on their way out, which are the first in line
	waiting int               // items in line, but for those that are leaving
	line    []*call[Req, Res] // what gathers, oldest first; all but the last are due; empty when nothing is on its way
}

// A call is one batch: the groups that gather in it and, when done is closed, what became of them. It gathers as long
// as it stands in line.
type call[Req, Res any] struct {
	items []Req
	ends  []int // where each group ends in items; a withdrawn one ends where it begins
	bytes int
	due   bool        // it leaves as soon as a flight is free, but takes in what fits until it has left
	leave bool        // it is on its way out
	timer *time.Timer // makes it due; nil if it leaves at once

	done    chan struct{}
	results []Res
	err     error
}

// New makes a Batcher. It panics unless all of o is positive.
//
// size returns the bytes that an item adds to a batch; callers of Do run it concurrently, without the lock.
//
// send sends a batch and returns one result for each item, in the same order. Each call has a goroutine of its own, and
// at most Flights of them run at once; the slice is its own to keep or change. It gets no context, since no caller's
// may decide on the items of the others: send must bound its time itself.
func New[Req, Res any](o Options, size func(Req) int, send func([]Req) ([]Res, error)) *Batcher[Req, Res] {
	if o.Window <= 0 || o.Items <= 0 || o.Bytes <= 0 || o.Flights <= 0 || o.Waiting <= 0 {
		panic(fmt.Sprintf("batching.New: all options must be positive: %+v", o))
	}
	if size == nil || send == nil {
		panic("batching.New: size and send must not be nil")
	}
	// No more can gather in one batch than in all of them: with as much it is full, and leaves if it can.
	o.Items = min(o.Items, o.Waiting)
	return &Batcher[Req, Res]{o: o, size: size, send: send}
}

// Do sends a group of items and returns their results, one for each and in the same order. The items of a group travel
// in one batch, next to each other and in their order. Do keeps nothing of group when it returns; the results belong to
// the caller. An empty group has no results and is not sent.
//
// The group was surely not sent if the error is [ErrFull], at once when too many items gather already, or
// [ErrNotSent], when ctx ends before the group has left: it is taken out of its batch. When ctx ends later Do returns
// ctx's error alone, and what became of the group is unknown: its batch goes on, for its neighbours too.
//
// Any other error is that of the whole batch, and all its callers get the same: what send returned, a [PanicError], or
// an error that send returned a wrong number of results.
func (b *Batcher[Req, Res]) Do(ctx context.Context, group []Req) ([]Res, error) {
	if len(group) == 0 {
		return nil, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	bytes := 0
	for _, item := range group {
		bytes += b.size(item)
	}
	c, i, err := b.join(group, bytes)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.done:
		return c.answer(i)
	case <-ctx.Done():
	}
	if b.withdraw(c, i, bytes) {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, ctx.Err())
	}
	select {
	case <-c.done: // both came at once: the answer is worth more
		return c.answer(i)
	default:
		return nil, ctx.Err()
	}
}

// join puts group into the last call in line, or into a new one behind it, and returns that call and the group's index.
func (b *Batcher[Req, Res]) join(group []Req, bytes int) (*call[Req, Res], int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// While a flight is free there is room: one call gathers at most, and it leaves if group doesn't fit in.
	if b.flights == b.o.Flights && b.waiting > 0 && b.waiting+len(group) > b.o.Waiting {
		return nil, 0, ErrFull
	}
	var c *call[Req, Res]
	if len(b.line) > 0 {
		c = b.line[len(b.line)-1]
		if len(c.items)+len(group) > b.o.Items || c.bytes+bytes > b.o.Bytes {
			c.due = true
			c = nil
		}
	}
	if c == nil {
		c = &call[Req, Res]{done: make(chan struct{})}
		b.line = append(b.line, c)
		if b.flights > 0 {
			c.timer = time.AfterFunc(b.o.Window, func() { b.expire(c) })
		}
	}
	i := len(c.ends)
	c.items = append(c.items, group...)
	c.ends = append(c.ends, len(c.items))
	c.bytes += bytes
	if !c.leave {
		b.waiting += len(group)
	}
	if len(c.items) >= b.o.Items || c.bytes >= b.o.Bytes {
		c.due = true
	}
	b.departLocked()
	return c, i, nil
}

// expire ends the window of c, which may have left before.
func (b *Batcher[Req, Res]) expire(c *call[Req, Res]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.due = true
	b.departLocked()
}

// departLocked lets leave what may. It must be called after a group is put in line, a call made due or a flight freed.
func (b *Batcher[Req, Res]) departLocked() {
	for len(b.line) > b.leaving && (b.flights == 0 || b.flights < b.o.Flights && b.line[b.leaving].due) {
		c := b.line[b.leaving]
		c.leave = true
		b.leaving++
		b.flights++
		b.waiting -= len(c.items)
		go b.depart(c)
	}
}

// depart takes c out of the line and sends it, unless all that was in it has been withdrawn.
func (b *Batcher[Req, Res]) depart(c *call[Req, Res]) {
	runtime.Gosched()
	b.mu.Lock()
	at := slices.Index(b.line, c)
	if at < 0 {
		b.flights--
		b.departLocked()
		b.mu.Unlock()
		return
	}
	b.removeLocked(at)
	b.mu.Unlock()
	b.fly(c)
}

// removeLocked takes a call out of the line.
func (b *Batcher[Req, Res]) removeLocked(at int) {
	c := b.line[at]
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.leave {
		b.leaving--
	}
	b.line = slices.Delete(b.line, at, at+1)
}

// fly sends c.
func (b *Batcher[Req, Res]) fly(c *call[Req, Res]) {
	defer b.land(c) // deferred, so that no end of send strands the callers
	c.err = errNoReturn
	results, err := b.send(c.items)
	if n := c.ends[len(c.ends)-1]; err == nil && len(results) != n {
		err = fmt.Errorf("batching: %d results for %d items", len(results), n)
	}
	c.results, c.err = results, err
}

// land frees the flight of c and answers its callers, in this order: a caller that asks again at once must not find its
// own call still on its way.
func (b *Batcher[Req, Res]) land(c *call[Req, Res]) {
	if v := recover(); v != nil {
		c.err = &PanicError{Value: v, Stack: debug.Stack()}
	}
	b.mu.Lock()
	b.flights--
	b.departLocked()
	b.mu.Unlock()
	close(c.done)
}

// withdraw takes group i of c out of it, if c hasn't left.
func (b *Batcher[Req, Res]) withdraw(c *call[Req, Res], i, bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.line, c)
	if at < 0 {
		return false
	}
	from, to := c.span(i)
	c.items = slices.Delete(c.items, from, to)
	for j := i; j < len(c.ends); j++ {
		c.ends[j] -= to - from
	}
	c.bytes -= bytes
	if !c.leave {
		b.waiting -= to - from
	}
	if len(c.items) == 0 {
		b.removeLocked(at)
	}
	return true // nothing can leave now that couldn't before
}

// span returns the place of group i in items and results.
func (c *call[Req, Res]) span(i int) (from, to int) {
	if i > 0 {
		from = c.ends[i-1]
	}
	return from, c.ends[i]
}

// answer returns what became of group i. Call it once done is closed.
func (c *call[Req, Res]) answer(i int) ([]Res, error) {
	if c.err != nil {
		return nil, c.err
	}
	from, to := c.span(i)
	return c.results[from:to:to], nil // no append may reach a neighbour's
}
