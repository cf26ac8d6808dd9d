package limits_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"weir/limits"
	"weir/limits/bucket"
)

// A life is what happened to one limit. It can be told again up to now, and then go on differently.
type life struct {
	clock   *clock
	limiter *limits.Limiter
	past    []event
}

type event struct {
	at      int64 // Unix nanoseconds
	request limits.Request
}

func newLife() *life {
	c := newClock()
	return &life{clock: c, limiter: limits.New(1, c.now)}
}

func (l *life) check(r limits.Request) limits.Result {
	l.past = append(l.past, event{l.clock.ns.Load(), r})
	return l.limiter.Check(r)
}

// instead returns the answer to r at another time, as if nothing had happened after the past.
func (l *life) instead(at int64, r limits.Request) limits.Result {
	again := newLife()
	for _, e := range l.past {
		again.clock.ns.Store(e.at)
		again.limiter.Check(e.request)
	}
	again.clock.ns.Store(at)
	return again.limiter.Check(r)
}

func (l *life) look(r limits.Request) limits.Result {
	r.Hits, r.Behavior = 0, 0
	return l.limiter.Check(r)
}

// anyRequest draws the terms of a limit, small enough for a life to get to its edges.
func anyRequest(random *rand.Rand, a limits.Algorithm) limits.Request {
	r := limits.Request{
		Name: "name", UniqueKey: "key", Hits: 1, Algorithm: a,
		Limit: 1 + random.Int64N(20), Duration: 1 + random.Int64N(3000),
	}
	if a == limits.LeakyBucket && random.IntN(2) == 0 {
		r.Burst = 1 + random.Int64N(30)
	}
	if random.IntN(5) == 0 {
		r.Duration = 1 + random.Int64N(5)
	}
	return r
}

func capacity(r limits.Request) int64 {
	if r.Algorithm == limits.LeakyBucket && r.Burst > 0 {
		return r.Burst
	}
	return r.Limit
}

// anyStep draws how long it takes to the next request: mostly a part of the duration, at times more than a
// window. Every other life runs on whole milliseconds.
func anyStep(random *rand.Rand, r limits.Request, whole bool) time.Duration {
	d := time.Duration(r.Duration) * time.Millisecond
	var step time.Duration
	switch random.IntN(10) {
	case 0:
		step = 0
	case 1:
		step = time.Duration(random.Int64N(int64(3 * d)))
	case 2:
		step = d
	default:
		step = time.Duration(random.Int64N(int64(2*d)/r.Limit + 1))
	}
	if whole {
		step = step.Truncate(time.Millisecond)
	}
	return step
}

func anyHits(random *rand.Rand, r limits.Request) int64 {
	switch random.IntN(4) {
	case 0:
		return 1 + random.Int64N(capacity(r)+2)
	case 1:
		return 1 + random.Int64N(3)
	default:
		return 1
	}
}

// An admission is a number of hits that passed.
type admission struct{ at, hits int64 }

// admissions lets positive hits come for a while and returns those that passed.
func admissions(random *rand.Rand, r limits.Request) []admission {
	l := newLife()
	whole := random.IntN(2) == 0
	if !whole {
		l.clock.add(time.Duration(random.Int64N(1e9)))
	}
	var passed []admission
	for range 150 {
		l.clock.add(anyStep(random, r, whole))
		r.Hits = anyHits(random, r)
		if random.IntN(8) == 0 {
			r.Behavior = limits.DrainOverLimit
		}
		left := l.look(r).Remaining
		result := l.check(r)
		switch {
		case isOK(result):
			passed = append(passed, admission{l.clock.ns.Load(), r.Hits})
		case r.Behavior == limits.DrainOverLimit && left > 0: // what was drained counts like what was used
			passed = append(passed, admission{l.clock.ns.Load(), left})
		}
		r.Behavior = 0
	}
	return passed
}

func TestTokenBucketAdmitsTheLimitPerWindow(t *testing.T) {
	seeds(t, 100, func(t *testing.T, random *rand.Rand) {
		r := anyRequest(random, limits.TokenBucket)
		duration := r.Duration * 1e6
		start, used := int64(math.MinInt64), int64(0)
		for _, a := range admissions(random, r) {
			if a.at >= start+duration {
				start, used = a.at, 0
			}
			if used += a.hits; used > r.Limit {
				t.Fatalf("%+v: %d hits in the window that began at %d", r, used, start)
			}
		}
	})
}

func TestLeakyBucketAdmitsBurstAndRate(t *testing.T) {
	seeds(t, 100, func(t *testing.T, random *rand.Rand) {
		r := anyRequest(random, limits.LeakyBucket)
		duration := r.Duration * 1e6
		passed := admissions(random, r)
		for i, first := range passed {
			hits := int64(0)
			for _, last := range passed[i:] {
				hits += last.hits
				if (hits-capacity(r))*duration > r.Limit*(last.at-first.at) {
					t.Fatalf("%+v: %d hits in %d ns", r, hits, last.at-first.at)
				}
			}
		}
	})
}

func TestSlidingWindowAdmitsTheLimitPerWindowAndLessThanTwicePerSpan(t *testing.T) {
	seeds(t, 100, func(t *testing.T, random *rand.Rand) {
		r := anyRequest(random, limits.SlidingWindow)
		duration := r.Duration * 1e6
		passed := admissions(random, r)
		start, used := int64(math.MinInt64/2), int64(0)
		for i, first := range passed {
			switch {
			case first.at >= start+2*duration: // nothing weighs any more, so windows are aligned anew
				start, used = first.at, 0
			case first.at >= start+duration:
				start, used = start+duration, 0
			}
			if used += first.hits; used > r.Limit {
				t.Fatalf("%+v: %d hits in the window that began at %d", r, used, start)
			}
			span := int64(0)
			for _, last := range passed[i:] {
				if last.at >= first.at+duration {
					break
				}
				if span += last.hits; span >= 2*r.Limit {
					t.Fatalf("%+v: %d hits from %d to %d", r, span, first.at, last.at)
				}
			}
		}
	})
}

// TestWaits asks a second time when the answer tells to, and a millisecond before.
func TestWaits(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		seeds(t, 60, func(t *testing.T, random *rand.Rand) {
			r := anyRequest(random, a)
			l := newLife()
			whole := random.IntN(2) == 0
			if !whole {
				l.clock.add(time.Duration(random.Int64N(1e9)))
			}
			for range 40 {
				l.clock.add(anyStep(random, r, whole))
				r.Hits = anyHits(random, r)
				r.Behavior = 0
				if random.IntN(8) == 0 {
					r.Behavior = limits.DrainOverLimit
				}
				now := l.clock.ns.Load()
				result := l.check(r)
				r.Behavior = 0
				switch {
				case isOver(result) && r.Hits > capacity(r):
					wantNever(t, r, result, now)
				case isOver(result):
					wait := result.RetryAfter * 1e6
					if wait < 1e6 {
						t.Fatalf("%+v: retry_after is %d", result, result.RetryAfter)
					}
					if got := l.instead(now+wait-1e6, r); !isOver(got) {
						t.Fatalf("%+v at %d: %+v, but a millisecond earlier the answer is %+v", r, now, result, got)
					}
					if got := l.instead(now+wait, r); !isOK(got) {
						t.Fatalf("%+v at %d: %+v, but then the answer is %+v", r, now, result, got)
					}
					if got := l.instead(max(now, result.ResetTime*1e6-1e6), r); !isOver(got) {
						t.Fatalf("%+v at %d: %+v, but a millisecond before reset_time is %+v", r, now, result, got)
					}
					if got := l.instead(result.ResetTime*1e6, r); !isOK(got) {
						t.Fatalf("%+v at %d: %+v, but at reset_time is %+v", r, now, result, got)
					}
				}
			}
		})
	})
}

func wantNever(t *testing.T, r limits.Request, result limits.Result, now int64) {
	t.Helper()
	reset := (now + r.Duration*1e6 + 1e6 - 1) / 1e6
	if result.RetryAfter != 0 || result.Metadata.Reason != bucket.ReasonTooManyHits || result.ResetTime != reset {
		t.Fatalf("%+v: %+v, want a reason instead of a wait, and reset_time %d", r, result, reset)
	}
}

// TestWholeAtResetTime looks when by the answer to an admitted hit the limit will be whole, and a millisecond before.
func TestWholeAtResetTime(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		seeds(t, 60, func(t *testing.T, random *rand.Rand) {
			r := anyRequest(random, a)
			l := newLife()
			whole := random.IntN(2) == 0
			if !whole {
				l.clock.add(time.Duration(random.Int64N(1e9)))
			}
			for range 40 {
				l.clock.add(anyStep(random, r, whole))
				if r.Hits = anyHits(random, r); random.IntN(4) == 0 {
					r.Hits = -r.Hits
				}
				result := l.check(r)
				if !isOK(result) || result.Remaining == capacity(r) {
					continue
				}
				look := r
				look.Hits = 0
				if got := l.instead(result.ResetTime*1e6, look); got.Remaining != capacity(r) {
					t.Fatalf("%+v: %+v, but at reset_time is %+v", r, result, got)
				}
				before := max(result.ResetTime*1e6-1e6, l.clock.ns.Load())
				if got := l.instead(before, look); got.Remaining == capacity(r) {
					t.Fatalf("%+v: %+v, but a millisecond before reset_time is %+v", r, result, got)
				}
			}
		})
	})
}

// TestWhatChangesNothing leads two lives that differ only in looks and refusals. No caller may be able to tell.
func TestWhatChangesNothing(t *testing.T) {
	for _, test := range []struct {
		what   string
		idle   func(random *rand.Rand, r limits.Request) limits.Request
		status bucket.Status
	}{
		{"a look", func(random *rand.Rand, r limits.Request) limits.Request {
			// With whatever terms, since a look doesn't bring them into force.
			look := anyRequest(random, limits.Algorithm(random.IntN(3)))
			look.Hits = 0
			return look
		}, limits.StatusOK},
		{"a refusal", func(random *rand.Rand, r limits.Request) limits.Request {
			r.Hits = capacity(r) + 1 + random.Int64N(math.MaxInt64/2)
			return r
		}, limits.StatusOverLimit},
		{"a refusal of one hit too many", func(random *rand.Rand, r limits.Request) limits.Request {
			r.Hits = 0 // one more than the look before it finds
			return r
		}, limits.StatusOverLimit},
	} {
		t.Run(test.what, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
				seeds(t, 40, func(t *testing.T, random *rand.Rand) {
					r := anyRequest(random, a)
					busy, quiet := newLife(), newLife()
					for range 60 {
						step := anyStep(random, r, false)
						part := time.Duration(random.Int64N(int64(step) + 1))
						busy.clock.add(part)
						idle := test.idle(random, r)
						if test.status == limits.StatusOverLimit && idle.Hits == 0 {
							idle.Hits = busy.look(r).Remaining + 1
						}
						if got := busy.check(idle); got.Status != test.status {
							t.Fatalf("%+v: %+v", idle, got)
						}
						busy.clock.add(step - part)
						quiet.clock.add(step)

						if r.Hits = anyHits(random, r); random.IntN(5) == 0 {
							r.Hits = -r.Hits
						}
						got, want := busy.check(r), quiet.check(r)
						if got != want {
							t.Fatalf("after %s, %+v: %+v, otherwise %+v", test.what, r, got, want)
						}
					}
				})
			})
		})
	}
}

// TestAnswersMakeSense sends what it can think of and looks only at what holds for every answer.
func TestAnswersMakeSense(t *testing.T) {
	seeds(t, 200, func(t *testing.T, random *rand.Rand) {
		l := newLife()
		r := anyRequest(random, limits.Algorithm(random.IntN(3)))
		for range 100 {
			l.clock.add(anyStep(random, r, false))
			switch random.IntN(20) {
			case 0:
				l.clock.add(-anyStep(random, r, false))
			case 1:
				r = anyRequest(random, limits.Algorithm(random.IntN(3)))
			case 2:
				r.Limit = []int64{1, 10, math.MaxInt64, math.MaxInt64 - 1}[random.IntN(4)]
			}
			r.Hits = []int64{0, 1, -1, r.Limit, -r.Limit, math.MinInt64, math.MaxInt64, random.Int64N(20) - 10}[random.IntN(8)]
			r.Behavior = []limits.Behavior{0, 0, 0, limits.ResetRemaining, limits.DrainOverLimit}[random.IntN(5)]
			before := l.look(r).Remaining
			result := l.check(r)
			mayRefuse := r.Hits > before && r.Behavior != limits.ResetRemaining
			switch {
			case result.Status == limits.StatusError || isOver(result) != mayRefuse:
				t.Fatalf("%+v with %d left: %+v", r, before, result)
			case result.Limit != r.Limit:
				t.Fatalf("%+v: %+v: another limit", r, result)
			case result.Remaining < 0 || result.Remaining > capacity(r):
				t.Fatalf("%+v: %+v: remaining is out of range", r, result)
			case l.clock.now().After(time.UnixMilli(result.ResetTime)):
				t.Fatalf("%+v: %+v: reset_time is in the past", r, result)
			case isOK(result) && (result.RetryAfter != 0 || result.Metadata.Reason != ""):
				t.Fatalf("%+v: %+v: neither a wait nor a reason belong here", r, result)
			case isOver(result) && (result.RetryAfter > 0) == (result.Metadata.Reason != ""):
				t.Fatalf("%+v: %+v: either a wait or a reason, why there is none", r, result)
			case l.look(r).Remaining != result.Remaining:
				t.Fatalf("%+v: %+v, but a look finds %d", r, result, l.look(r).Remaining)
			}
			// Two windows of the largest limit are more than can be given back at once.
			emptied := r.Behavior == limits.ResetRemaining || r.Hits == math.MinInt64 && r.Algorithm != limits.SlidingWindow
			if emptied && result.Remaining != capacity(r) {
				t.Fatalf("%+v: %+v: not whole", r, result)
			}
		}
	})
}

func TestUsageIsKeptWhenTheLimitChanges(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		l := newLife()
		r := minute(a, "key")
		for _, step := range []struct{ hits, limit, remaining int64 }{
			{50, 100, 50}, {1, 10, 0}, {0, 10, 0}, {0, 100, 50}, {-1, 10, 0}, {10, 100, 41}, {0, 60, 1}, {0, 59, 0}, {1, 0, 0},
			{0, 1000, 941},
		} {
			r.Hits, r.Limit = step.hits, step.limit
			if got := l.check(r); got.Remaining != step.remaining || got.Limit != step.limit {
				t.Errorf("hits %d, limit %d: %+v, want remaining %d", step.hits, step.limit, got, step.remaining)
			}
		}
	})
}
