package limits

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"weir/limits/bucket"
)

// ErrNever is the error for hits that can never fit, however long one waits.
var ErrNever = errors.New("limits: more hits than the burst, or an invalid key")

// A Rate limits one kind of work, by key: each key may do it a number of times per period, and in a burst after a
// pause. It is a LeakyBucket of its [Limiter] and shares its memory, clock and safety for concurrent use.
//
// A key is anything of 1 to MaxKeyBytes bytes of UTF-8 that is neither blank nor holds a NUL. Other keys are refused.
type Rate struct {
	limiter *Limiter
	name    string
	query   bucket.Query
}

// Rate makes a Rate that lets each key pass limit times per period, and up to burst times at once. The same name in the
// same Limiter is the same count, also for [Limiter.Check]. It panics if name, limit, per or burst is nothing that a
// Request could have: that is a mistake in the program.
func (l *Limiter) Rate(name string, limit int64, per time.Duration, burst int64) *Rate {
	r := &Rate{limiter: l, name: name}
	request := Request{Name: name, UniqueKey: "key", Limit: limit, Duration: 1, Algorithm: LeakyBucket, Burst: burst}
	if err := l.Prepare(&request, &r.query); err != nil {
		panic(fmt.Sprint("limits.Rate: ", err))
	}
	if per < 1 || per > bucket.MaxDurationMs*time.Millisecond {
		panic("limits.Rate: per must be positive and at most 3,660 days")
	}
	r.query.SetWindow(per)
	return r
}

// Allow reports whether key may do the work once, now, and counts it if so.
func (r *Rate) Allow(key string) bool { return r.AllowN(key, 1) }

// AllowN reports whether key may do the work n times, now, and counts all of them or none. A negative n returns what
// was taken.
func (r *Rate) AllowN(key string, n int64) bool { return r.check(key, n).Status == StatusOK }

// Wait waits until key may do the work once, and counts it. It returns ctx's error if that ends before, and ErrNever if
// no waiting helps. Callers that wait for one key are not served in order.
func (r *Rate) Wait(ctx context.Context, key string) error { return r.WaitN(ctx, key, 1) }

// WaitN is Wait for n times at once.
func (r *Rate) WaitN(ctx context.Context, key string, n int64) error {
	for ctx.Err() == nil {
		result := r.check(key, n)
		switch {
		case result.Status == StatusOK:
			return nil
		case result.RetryAfter == 0:
			return ErrNever
		}
		sleep(ctx, time.Duration(min(result.RetryAfter, int64(math.MaxInt64/time.Millisecond)))*time.Millisecond)
	}
	return ctx.Err()
}

// check is Limiter.Check without what Rate has checked already.
func (r *Rate) check(key string, n int64) (result Result) {
	if err := bucket.CheckKey(key); err != nil {
		return Result{Error: err.Error()}
	}
	q := r.query
	q.Hits = n
	r.limiter.decideByName(r.name, key, &q, new(moment), &result)
	return result
}

// sleep waits for d, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
