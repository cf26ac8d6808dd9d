// Package limits decides whether hits fit a limit, and keeps the count.
//
// It needs no network, so a Go program can limit its own work with it:
//
//	limiter := limits.New(100_000, time.Now)            // room for 100,000 keys
//	mail := limiter.Rate("mail", 10, time.Second, 20)   // 10 per second, up to 20 at once
//	if mail.Allow("account=123") {
//		send()
//	}
//
// [Limiter.Check] is the same for programs that need another algorithm, calendar windows, or the numbers behind the
// decision: it takes a [Request], which is also what travels over HTTP, and returns a [Result]. [Limiter.CheckAll]
// takes many.
//
// The way of a check: the request is validated and prepared by package bucket, which also has all arithmetic. The id of
// the limit selects a shard of the [Limiter]. Under its lock the store looks the state up, bucket.Step decides, and
// what follows is stored, with the time when it will have run out in an index for sweeps.
//
// Other nodes of a cluster are not this package's business, but it has what a member needs: [Limiter.CheckPrepared] for
// requests that were prepared before, [Limiter.ApplyDebt] for hits that other nodes took, and [Limiter.Scan],
// [Limiter.Take] and [Limiter.Put] for limits that move between nodes.
package limits

import (
	"weir/limits/bucket"
	"weir/limits/wire"
)

// A Request asks to take hits from a limit, and a Result answers it.
type (
	Request = bucket.Request
	Result  = bucket.Result
)

// A KeyedState is what [Limiter.OnChange] tells: the state of a limit and its name.
type KeyedState = wire.KeyedState

// An Algorithm selects how hits are counted.
type Algorithm = bucket.Algorithm

// The algorithms. README.md shows what each of them lets pass.
const (
	TokenBucket   = bucket.TokenBucket   // whole at the first hit, whole again one duration later
	LeakyBucket   = bucket.LeakyBucket   // leaks continuously, limit hits per duration
	SlidingWindow = bucket.SlidingWindow // this window plus the part of the previous one that it overlaps
)

// A Behavior is a set of flags.
type Behavior = bucket.Behavior

// The flags that matter within one process.
const (
	DurationIsGregorian = bucket.DurationIsGregorian // Duration is a calendar unit, 0 minute to 5 year
	ResetRemaining      = bucket.ResetRemaining      // make the limit whole, apply no hits
	DrainOverLimit      = bucket.DrainOverLimit      // a refused request takes what is left
)

// The verdicts of a [Result]. Test for StatusOK, never for "not StatusOverLimit".
const (
	StatusError     = bucket.StatusError     // nothing was decided; Result.Error tells why
	StatusOK        = bucket.StatusOK        // the hits were taken
	StatusOverLimit = bucket.StatusOverLimit // refused; the hits were not taken
)
