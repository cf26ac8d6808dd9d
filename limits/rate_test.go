package limits_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/limits"
	"weir/limits/bucket"
)

func TestRate(t *testing.T) {
	c := newClock()
	rate := limits.New(10, c.now).Rate("mail", 10, time.Second, 3)
	for i, step := range []struct {
		after time.Duration
		key   string
		n     int64
		want  bool
	}{
		{0, "a", 1, true},
		{0, "a", 2, true},
		{0, "a", 1, false},
		{0, "b", 3, true},
		{0, "b", 1, false},
		{100*time.Millisecond - 1, "a", 1, false},
		{1, "a", 1, true},
		{0, "a", 1, false},
		{250 * time.Millisecond, "a", 3, false}, // all or none
		{0, "a", 2, true},
		{50 * time.Millisecond, "a", 1, true},
		{0, "a", -2, true}, // given back
		{0, "a", 3, false},
		{0, "a", 2, true},
		{0, "a", 0, true}, // a look
		{time.Hour, "a", 4, false},
		{0, "a", 3, true},
		{0, "a", -100, true},
		{0, "a", 4, false},
		{0, "a", 3, true},
	} {
		c.add(step.after)
		if got := rate.AllowN(step.key, step.n); got != step.want {
			t.Fatalf("step %d: %+v: got %v", i, step, got)
		}
	}
}

// A period need not be whole milliseconds, nor need a hit be whole nanoseconds.
func TestRateIsExact(t *testing.T) {
	c := newClock()
	rate := limits.New(10, c.now).Rate("tick", 7, 10*time.Nanosecond, 1)
	passed := 0
	for range 1000 {
		if rate.Allow("key") {
			passed++
		}
		c.add(1)
	}
	// A hit leaks in 10/7 ns, so it has at the second reading of the clock.
	if passed != 500 {
		t.Errorf("%d passed in 1000 ns, want 500", passed)
	}
	deep := limits.New(10, c.now).Rate("deep", 7, 10*time.Nanosecond, 100)
	passed = 0
	for range 1000 {
		if deep.Allow("key") {
			passed++
		}
		c.add(1)
	}
	if passed != 100+999*7/10 {
		t.Errorf("%d passed in 1000 ns with a burst of 100, want %d", passed, 100+999*7/10)
	}
}

func TestRateSharesItsCountWithCheck(t *testing.T) {
	c := newClock()
	l := limits.New(10, c.now)
	first, second := l.Rate("mail", 10, time.Second, 20), l.Rate("mail", 10, time.Second, 20)
	other, elsewhere := l.Rate("post", 10, time.Second, 20), limits.New(10, c.now).Rate("mail", 10, time.Second, 20)
	r := limits.Request{Name: "mail", UniqueKey: "key", Hits: 3, Limit: 10, Duration: 1000, Burst: 20,
		Algorithm: limits.LeakyBucket}
	first.AllowN("key", 5)
	second.AllowN("key", 6)
	if got := l.Check(r); got.Remaining != 20-5-6-3 {
		t.Errorf("%+v, want 6 remaining", got)
	}
	if first.AllowN("key", 7) || !first.AllowN("key", 6) {
		t.Error("the Rate doesn't see what Check has taken")
	}
	if !other.AllowN("key", 20) || !elsewhere.AllowN("key", 20) {
		t.Error("another name, or another Limiter, has the same count")
	}
}

// 0 as the burst is the limit, as in a Request.
func TestRateWithoutBurst(t *testing.T) {
	rate := limits.New(10, newClock().now).Rate("mail", 4, time.Second, 0)
	if rate.AllowN("key", 5) || !rate.AllowN("key", 4) || rate.Allow("key") {
		t.Error("the burst is not 4")
	}
}

func TestRateRefusesInvalidKeys(t *testing.T) {
	l := limits.New(10, newClock().now)
	rate := l.Rate("mail", 10, time.Second, 20)
	for _, key := range []string{"", " ", "\x00", "\xff", strings.Repeat("k", bucket.MaxKeyBytes+1)} {
		if rate.Allow(key) || rate.AllowN(key, 0) || rate.AllowN(key, -1) {
			t.Errorf("key %.10q is allowed", key)
		}
		if err := rate.Wait(t.Context(), key); !errors.Is(err, limits.ErrNever) {
			t.Errorf("key %.10q: Wait returned %v", key, err)
		}
	}
	if n := l.Stats().Entries; n != 0 {
		t.Errorf("%d entries", n)
	}
	if !rate.Allow(strings.Repeat("k", bucket.MaxKeyBytes)) {
		t.Error("the longest key is refused")
	}
}

func TestRatePanics(t *testing.T) {
	const most = bucket.MaxDurationMs * time.Millisecond
	for _, test := range []struct {
		name   string
		limit  int64
		per    time.Duration
		burst  int64
		panics string // "" if not
	}{
		{"mail", 0, 1, 0, ""},
		{"mail", math.MaxInt64, most, math.MaxInt64, ""},
		{strings.Repeat("n", bucket.MaxNameBytes), 1, 1, 1, ""},
		{"", 1, 1, 1, "limits.Rate: name: required"},
		{"\xff", 1, 1, 1, "limits.Rate: name: must be"},
		{strings.Repeat("n", bucket.MaxNameBytes+1), 1, 1, 1, "limits.Rate: name: longer"},
		{"mail", -1, 1, 1, "limits.Rate: limit: "},
		{"mail", 1, 0, 1, "limits.Rate: per must be"},
		{"mail", 1, -time.Second, 1, "limits.Rate: per must be"},
		{"mail", 1, most + 1, 1, "limits.Rate: per must be"},
		{"mail", 1, 1, -1, "limits.Rate: burst: "},
	} {
		t.Run(fmt.Sprintf("%.10q %d %v %d", test.name, test.limit, test.per, test.burst), func(t *testing.T) {
			defer func() {
				got := fmt.Sprint(recover())
				if test.panics == "" && got != "<nil>" || !strings.HasPrefix(got, test.panics) {
					t.Errorf("it panics with %s, want %q", got, test.panics)
				}
			}()
			limits.New(1, newClock().now).Rate(test.name, test.limit, test.per, test.burst)
		})
	}
}

// inBubble runs a test where time passes while everybody waits, and only then.
func inBubble(t *testing.T, test func(t *testing.T, l *limits.Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, limits.New(10, time.Now)) })
}

func TestWait(t *testing.T) {
	inBubble(t, func(t *testing.T, l *limits.Limiter) {
		rate := l.Rate("mail", 10, time.Second, 3)
		start := time.Now()
		for i, want := range []time.Duration{0, 0, 0, 100, 200, 300} {
			if err := rate.Wait(t.Context(), "key"); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(start); got != want*time.Millisecond {
				t.Errorf("wait %d was over after %v, want %d ms", i, got, want)
			}
		}
		if err := rate.WaitN(t.Context(), "key", 3); err != nil || time.Since(start) != 600*time.Millisecond {
			t.Errorf("three at once: %v after %v, want 600ms", err, time.Since(start))
		}
		if err := rate.WaitN(t.Context(), "key", 0); err != nil || time.Since(start) != 600*time.Millisecond {
			t.Errorf("a look: %v after %v", err, time.Since(start))
		}
		if err := rate.Wait(t.Context(), "other"); err != nil || time.Since(start) != 600*time.Millisecond {
			t.Errorf("another key: %v after %v", err, time.Since(start))
		}
	})
}

// Callers that wait together get through one by one, at the rate.
func TestWaitTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, l *limits.Limiter) {
		rate := l.Rate("mail", 1, time.Second, 1)
		start := time.Now()
		var mu sync.Mutex
		var over []time.Duration
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := rate.Wait(t.Context(), "key"); err != nil {
					t.Error(err)
				}
				mu.Lock()
				over = append(over, time.Since(start))
				mu.Unlock()
			})
		}
		wg.Wait()
		for i, at := range over {
			if at != time.Duration(i)*time.Second {
				t.Errorf("they got through after %v", over)
				break
			}
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, l *limits.Limiter) {
		rate := l.Rate("mail", 1, time.Hour, 1)
		rate.Allow("key")
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := rate.Wait(ctx, "key"); err != context.DeadlineExceeded || time.Since(start) != time.Minute {
			t.Errorf("%v after %v, want the deadline after a minute", err, time.Since(start))
		}

		ctx, cancel = context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := rate.Wait(ctx, "key"); err != context.Canceled {
				t.Errorf("%v, want that it was canceled", err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()

		if err := rate.Wait(ctx, "other"); err != context.Canceled || !rate.Allow("other") {
			t.Errorf("with a context that has ended before: %v, want an error and nothing taken", err)
		}
		if start := time.Now(); rate.Wait(t.Context(), "key") != nil || time.Since(start) != 59*time.Minute {
			t.Errorf("callers that gave up have taken something: it took %v more", time.Since(start))
		}
	})
}

func TestWaitForWhatNeverComes(t *testing.T) {
	inBubble(t, func(t *testing.T, l *limits.Limiter) {
		start := time.Now()
		if err := l.Rate("mail", 1, time.Hour, 5).WaitN(t.Context(), "key", 6); err != limits.ErrNever {
			t.Errorf("more than the burst: %v", err)
		}
		if err := l.Rate("nothing", 0, time.Hour, 5).Wait(t.Context(), "key"); err != limits.ErrNever {
			t.Errorf("a limit of 0: %v", err)
		}
		if !time.Now().Equal(start) {
			t.Errorf("it took %v to say so", time.Since(start))
		}
	})
}

// What takes longer than a time.Duration can say, ends with the context all the same.
func TestWaitForCenturies(t *testing.T) {
	inBubble(t, func(t *testing.T, l *limits.Limiter) {
		rate := l.Rate("mail", 1, bucket.MaxDurationMs*time.Millisecond, math.MaxInt64)
		rate.AllowN("key", math.MaxInt64)
		ctx, cancel := context.WithTimeout(t.Context(), 100*365*24*time.Hour)
		defer cancel()
		if err := rate.WaitN(ctx, "key", math.MaxInt64); err != context.DeadlineExceeded {
			t.Error(err)
		}
	})
}
