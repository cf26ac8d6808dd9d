package limits_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/limits"
	"weir/limits/bucket"
	"weir/limits/wire"
)

// TestInvalidRequests checks that each wrong value is an error that names its field, and is not counted.
func TestInvalidRequests(t *testing.T) {
	const ok = ""
	for _, test := range []struct {
		what  string
		wrong func(r *limits.Request)
		want  string // what the error starts with
	}{
		{"no name", func(r *limits.Request) { r.Name = "" }, "name: required"},
		{"a long name", func(r *limits.Request) { r.Name = strings.Repeat("é", 127) + "e" }, ok},
		{"a longer name", func(r *limits.Request) { r.Name = strings.Repeat("é", 128) }, "name: longer than 255 bytes"},
		{"a blank name", func(r *limits.Request) { r.Name = " \t\u2003" }, "name: must be"},
		{"a name in Latin-1", func(r *limits.Request) { r.Name = "caf\xe9" }, "name: must be"},
		{"a name with NUL", func(r *limits.Request) { r.Name = "name\x00" }, "name: must be"},
		{"no key", func(r *limits.Request) { r.UniqueKey = "" }, "unique_key: required"},
		{"a long key", func(r *limits.Request) { r.UniqueKey = strings.Repeat("k", 1024) }, ok},
		{"a longer key", func(r *limits.Request) { r.UniqueKey = strings.Repeat("k", 1025) },
			"unique_key: longer than 1024 bytes"},
		{"a blank key", func(r *limits.Request) { r.UniqueKey = "\n" }, "unique_key: must be"},
		{"half a rune", func(r *limits.Request) { r.UniqueKey = "key€"[:5] }, "unique_key: must be"},
		{"a surrogate", func(r *limits.Request) { r.UniqueKey = "key\xed\xa0\x80" }, "unique_key: must be"},
		{"a key with NUL", func(r *limits.Request) { r.UniqueKey = "\x00key" }, "unique_key: must be"},
		{"a key with blanks around", func(r *limits.Request) { r.UniqueKey = " key " }, ok},
		{"any other runes", func(r *limits.Request) { r.Name, r.UniqueKey = "\x01\x7f\u0080", "|=💧\u202e\ufeff" }, ok},
		{"the least hits", func(r *limits.Request) { r.Hits = math.MinInt64 }, ok},
		{"a negative limit", func(r *limits.Request) { r.Limit = -1 }, "limit: required"},
		{"the least limit", func(r *limits.Request) { r.Limit = math.MinInt64 }, "limit: required"},
		{"the largest limit", func(r *limits.Request) { r.Limit = math.MaxInt64 }, ok},
		{"no duration", func(r *limits.Request) { r.Duration = 0 }, "duration: required"},
		{"a negative duration", func(r *limits.Request) { r.Duration = -1 }, "duration: required"},
		{"3,660 days", func(r *limits.Request) { r.Duration = 3660 * 86_400_000 }, ok},
		{"a longer duration", func(r *limits.Request) { r.Duration = 3660*86_400_000 + 1 }, "duration: required"},
		{"the longest duration", func(r *limits.Request) { r.Duration = math.MaxInt64 }, "duration: required"},
		{"no unit", func(r *limits.Request) { r.Behavior, r.Duration = limits.DurationIsGregorian, -1 },
			"duration: with DURATION_IS_GREGORIAN"},
		{"too large a unit", func(r *limits.Request) { r.Behavior, r.Duration = limits.DurationIsGregorian, 6 },
			"duration: with DURATION_IS_GREGORIAN"},
		{"the smallest unit", func(r *limits.Request) { r.Behavior, r.Duration = limits.DurationIsGregorian, 0 }, ok},
		{"the largest unit", func(r *limits.Request) { r.Behavior, r.Duration = limits.DurationIsGregorian, 5 }, ok},
		{"an unknown zone", func(r *limits.Request) {
			r.Behavior, r.Duration, r.TimeZone = limits.DurationIsGregorian, 5, "Europe/Atlantis"
		}, "time_zone: "},
		{"the machine's zone", func(r *limits.Request) {
			r.Behavior, r.Duration, r.TimeZone = limits.DurationIsGregorian, 5, "Local"
		}, "time_zone: "},
		{"an unknown zone for a leaky bucket", func(r *limits.Request) {
			r.Behavior, r.Duration, r.TimeZone, r.Algorithm = limits.DurationIsGregorian, 5, "x", limits.LeakyBucket
		}, "time_zone: "},
		{"a zone that is not used", func(r *limits.Request) { r.TimeZone = "Europe/Atlantis" }, ok},
		{"a sliding unit", func(r *limits.Request) {
			r.Behavior, r.Duration, r.Algorithm = limits.DurationIsGregorian, 1, limits.SlidingWindow
		}, "behavior: DURATION_IS_GREGORIAN"},
		{"an unknown algorithm", func(r *limits.Request) { r.Algorithm = 3 }, "algorithm: must be"},
		{"the largest algorithm", func(r *limits.Request) { r.Algorithm = 255 }, "algorithm: must be"},
		{"an unknown flag", func(r *limits.Request) { r.Behavior = 16 }, "behavior: must be"},
		{"another unknown flag", func(r *limits.Request) { r.Behavior = 64 }, "behavior: must be"},
		{"a flag among others", func(r *limits.Request) { r.Behavior = bucket.Global | 128 }, "behavior: must be"},
		{"all known flags", func(r *limits.Request) {
			r.Duration = 1
			r.Behavior = bucket.NoBatching | bucket.Global |
				limits.DurationIsGregorian | limits.ResetRemaining | limits.DrainOverLimit
		}, ok},
		{"a negative burst", func(r *limits.Request) { r.Burst, r.Algorithm = -1, limits.LeakyBucket }, "burst: must not"},
		{"a negative burst that is not used", func(r *limits.Request) { r.Burst = -1 }, ok},
		{"a burst below the limit", func(r *limits.Request) { r.Burst, r.Algorithm = 1, limits.LeakyBucket }, ok},
	} {
		t.Run(test.what, func(t *testing.T) {
			c := newClock()
			l := limits.New(10, c.now)
			used := minute(limits.TokenBucket, "key")
			used.Hits = 3
			l.Check(used)
			r := minute(limits.TokenBucket, "key")
			test.wrong(&r)
			err := l.Prepare(&r, new(bucket.Query))
			result := l.Check(r)
			if test.want == ok {
				if err != nil || result.Status == limits.StatusError {
					t.Errorf("Prepare returned %v, Check %+v", err, result)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("Prepare returned %v, want %s...", err, test.want)
			}
			if err != nil && result != (limits.Result{Error: err.Error()}) {
				t.Errorf("Prepare returned %v, Check %+v", err, result)
			}
			used.Hits = 0
			if got := l.Check(used); got.Remaining != 7 || l.Stats().Entries != 1 {
				t.Errorf("an error has changed the limit: %+v, %+v", got, l.Stats())
			}
		})
	}
}

// What is text is found out eight bytes at a time; so a wrong byte may stand in each place.
func TestTextInEveryPlace(t *testing.T) {
	l := limits.New(1, newClock().now)
	for size := 1; size <= 33; size++ {
		for at := range size {
			for _, b := range []byte{0, 1, ' ', 126, 127, 128, 0xc3, 0xff} {
				text := []byte(strings.Repeat("k", size))
				text[at] = b
				r := minute(limits.TokenBucket, string(text))
				wrong := b == 0 || b >= 128 || size == 1 && b == ' '
				if err := l.Prepare(&r, new(bucket.Query)); (err != nil) != wrong {
					t.Errorf("key %q: %v", text, err)
				}
			}
		}
	}
}

// Two limits share a count only if both their names and their keys are equal.
func TestKeysNeverShareACount(t *testing.T) {
	pairs := [][2]string{
		{"a_b", "c"}, {"a", "b_c"}, {"a", "_b_c"}, {"a_", "b_c"}, {"a_b_", "c"},
		{"ab", "c"}, {"a", "bc"}, {"abc", "a"}, {"a", "abc"},
		{"a", "\x02bc"}, {"\x01a", "bc"}, {"\x02a", "b"}, {"a:b", "c"}, {"a", "b:c"}, {"A", "bc"}, {"a ", "bc"}, {"a", " bc"},
		{"é", "c"}, {"e\u0301", "c"},
		{strings.Repeat("n", 255), "k"}, {strings.Repeat("n", 254), "nk"}, {"n", strings.Repeat("n", 254) + "k"},
		{strings.Repeat("n", 100), strings.Repeat("n", 100)}, {strings.Repeat("n", 99), strings.Repeat("n", 101)},
		{strings.Repeat("n", 100), strings.Repeat("n", 1000)}, {strings.Repeat("n", 101), strings.Repeat("n", 999)},
	}
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		l := limits.New(1000, newClock().now)
		for i, pair := range pairs {
			r := minute(a, pair[1])
			r.Name, r.Hits, r.Limit = pair[0], int64(i)+1, 1000
			if got := l.Check(r); got.Remaining != 1000-r.Hits {
				t.Errorf("%.40q: %+v, want a limit of its own", pair, got)
			}
		}
		for i, pair := range pairs {
			r := minute(a, pair[1])
			r.Name, r.Hits, r.Limit = pair[0], 0, 1000
			if got := l.Check(r); got.Remaining != 1000-int64(i)-1 {
				t.Errorf("%.40q: %+v, want %d used", pair, got, i+1)
			}
		}
	})
}

func TestIDsAreUnique(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const letters = "a_|\x01\x02\x03"
	word := func() string {
		b := make([]byte, 1+random.IntN(4))
		for i := range b {
			b[i] = letters[random.IntN(len(letters))]
		}
		return string(b)
	}
	seen := map[string]limits.Request{}
	for range 50_000 {
		r := limits.Request{Name: word(), UniqueKey: word()}
		id := string(r.AppendID(nil))
		if other, ok := seen[id]; ok && (other.Name != r.Name || other.UniqueKey != r.UniqueKey) {
			t.Fatalf("%+v and %+v are both %q", r, other, id)
		}
		seen[id] = r
	}
	var long limits.Request
	long.Name, long.UniqueKey = strings.Repeat("n", bucket.MaxNameBytes), strings.Repeat("k", bucket.MaxKeyBytes)
	if n := len(long.AppendID(nil)); n != bucket.MaxIDBytes {
		t.Errorf("the longest ID has %d bytes, want %d", n, bucket.MaxIDBytes)
	}
	if got := string(long.AppendID([]byte("before"))); !strings.HasPrefix(got, "before") {
		t.Errorf("AppendID doesn't append: %.20q", got)
	}
}

func FuzzIDs(f *testing.F) {
	f.Add("a_b", "c", "a", "b_c")
	f.Add("\x01a", "b", "a", "\x01b")
	f.Fuzz(func(t *testing.T, name, key, otherName, otherKey string) {
		if len(name) > bucket.MaxNameBytes || len(otherName) > bucket.MaxNameBytes {
			return
		}
		a, b := limits.Request{Name: name, UniqueKey: key}, limits.Request{Name: otherName, UniqueKey: otherKey}
		if (a == b) != (string(a.AppendID(nil)) == string(b.AppendID(nil))) {
			t.Errorf("%q, %q and %q, %q", name, key, otherName, otherKey)
		}
	})
}

func TestTheCacheIsBounded(t *testing.T) {
	for _, size := range []int{1, 2, 3, 100, 511, 512, 1000, 1023, 1024, 5000} {
		for _, drain := range []bool{false, true} {
			c := newClock()
			l := limits.New(size, c.now)
			for i := range 4 * size {
				r := minute(limits.TokenBucket, fmt.Sprint(i))
				if drain {
					r.Hits = r.Limit
				}
				if got := l.Check(r); !isOK(got) {
					t.Fatalf("size %d: key %d: %+v", size, i, got)
				}
				if i%97 == 0 || size < 10 {
					if n := l.Stats().Entries; n > size || n == 0 {
						t.Fatalf("size %d: %d entries after %d keys", size, n, i+1)
					}
				}
			}
			s := l.Stats()
			if s.Entries != size || s.EvictedUsed+s.EvictedDrained != uint64(3*size) || s.Expired != 0 {
				t.Errorf("size %d, drained %v: %+v", size, drain, s)
			}
			if drain && s.EvictedUsed != 0 || !drain && s.EvictedDrained != 0 {
				t.Errorf("size %d, drained %v: %+v", size, drain, s)
			}
		}
	}
}

func TestNewPanics(t *testing.T) {
	for _, size := range []int{0, -1, math.MinInt} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("size %d: no panic", size)
				}
			}()
			limits.New(size, time.Now)
		}()
	}
}

// TestTheClockIsAskedOnce counts the calls of now: a second one could be later, and a decision would be made at two
// times.
func TestTheClockIsAskedOnce(t *testing.T) {
	asked := 0
	c := newClock()
	l := limits.New(10, func() time.Time { asked++; return c.now() })
	l.Check(minute(limits.TokenBucket, "key"))
	l.Check(minute(limits.TokenBucket, "key"))
	if asked != 2 {
		t.Errorf("asked %d times for 2 requests", asked)
	}
	if l.Check(limits.Request{}); asked != 2 {
		t.Error("asked for an invalid request")
	}
	if !l.Now().Equal(c.now()) {
		t.Errorf("Now is %v, want %v", l.Now(), c.now())
	}
}

func TestWhatLeavesNothing(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		c := newClock()
		l := limits.New(10, c.now)
		request := func(hits, limit int64, b limits.Behavior) limits.Request {
			r := minute(a, "key")
			r.Hits, r.Limit, r.Behavior = hits, limit, b
			return r
		}
		for _, r := range []limits.Request{
			request(0, 10, 0),
			request(11, 10, 0),
			request(1, 0, 0),
			request(1, 0, limits.DrainOverLimit),
			request(-5, 10, 0),
			request(5, 10, limits.ResetRemaining),
		} {
			l.Check(r)
			if s := l.Stats(); s != (limits.Stats{}) {
				t.Errorf("%+v on an unknown key left %+v", r, s)
			}
		}
		for i, r := range []limits.Request{request(-5, 10, 0), request(7, 10, limits.ResetRemaining)} {
			l.Check(request(5, 10, 0))
			if n := l.Stats().Entries; n != 1 {
				t.Fatalf("a hit left %d entries", n)
			}
			if l.Check(r); l.Stats() != (limits.Stats{Expired: uint64(i) + 1}) {
				t.Errorf("%+v made the limit whole, and left %+v", r, l.Stats())
			}
		}
		l.Check(request(5, 10, 0))
		l.Check(request(0, 10, 0))
		c.add(2 * time.Minute)
		for _, r := range []limits.Request{request(0, 10, 0), request(0, 20, 0)} {
			if got := l.Check(r); got.Remaining != r.Limit {
				t.Errorf("a limit that is whole again: %+v", got)
			}
		}
		if l.Check(request(11, 10, 0)); l.Stats().Entries != 0 {
			t.Errorf("a refusal kept a state that had run out: %+v", l.Stats())
		}
	})
}

// TestSweep watches limits run out, one a second. Each sweep must find all that have, and nothing else.
func TestSweep(t *testing.T) {
	const keys = 60
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		lives := 1 // in durations
		if a == limits.SlidingWindow {
			lives = 2
		}
		for _, size := range []int{100, 5000} {
			c := newClock()
			l := limits.New(size, c.now)
			for i := range keys {
				r := minute(a, fmt.Sprint(i))
				r.Limit, r.Duration = 1, int64(i+1)*1000
				l.Check(r)
			}
			for second := range lives * keys {
				if n, want := l.Stats().Entries, keys-second/lives; n != want {
					t.Fatalf("size %d, after %d s: %d entries, want %d", size, second, n, want)
				}
				c.add(time.Second)
				l.Sweep()
			}
			if s := l.Stats(); s != (limits.Stats{Expired: keys}) {
				t.Errorf("size %d, in the end: %+v", size, s)
			}
		}
	})
}

// A limit may run out earlier than was known when it was new.
func TestSweepAfterNewTerms(t *testing.T) {
	c := newClock()
	l := limits.New(10, c.now)
	token, leaky := minute(limits.TokenBucket, "token"), minute(limits.LeakyBucket, "leaky")
	token.Duration, leaky.Duration, leaky.Hits = 3_600_000, 3_600_000, 10
	l.Check(token)
	l.Check(leaky)
	l.Sweep()
	token.Duration = 1000
	l.Check(token)
	c.add(time.Second)
	if l.Sweep(); l.Stats().Entries != 1 {
		t.Errorf("a limit whose duration became shorter is still held: %+v", l.Stats())
	}

	// Where hits were given back, a sweep finds it out within a minute.
	leaky.Limit, leaky.Burst, leaky.Hits = 3_600_000, 10, -9
	l.Check(leaky)
	c.add(time.Minute)
	if l.Sweep(); l.Stats().Entries != 0 {
		t.Errorf("a limit that got hits back is still held after a minute: %+v", l.Stats())
	}
}

// A state that lies ahead, since the clock was set back, is not one that is over.
func TestSweepAfterTheClockStepsBack(t *testing.T) {
	eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
		c := newClock()
		l := limits.New(10, c.now)
		l.Check(minute(a, "key"))
		l.Sweep()
		for _, step := range []time.Duration{time.Second, time.Hour, 30 * 365 * 24 * time.Hour} {
			c.add(-step)
			l.Sweep()
			r := minute(a, "key")
			r.Hits = 0
			if got := l.Check(r); got.Remaining != 9 || l.Stats().Entries != 1 {
				t.Fatalf("set back by %v: %+v, %+v", step, got, l.Stats())
			}
		}
		// From then on it lives as long as if it had begun then.
		l.Check(minute(a, "key"))
		c.add(2 * time.Minute)
		if l.Sweep(); l.Stats().Entries != 0 {
			t.Errorf("two minutes later: %+v", l.Stats())
		}
	})
}

// A clock that was far ahead for a moment must not keep sweeps from ever being due again.
func TestSweepAfterTheClockWasAhead(t *testing.T) {
	c := newClock()
	l := limits.New(10, c.now)
	l.Check(minute(limits.TokenBucket, "before"))
	c.add(1000 * time.Hour)
	l.Sweep()
	c.add(-1000 * time.Hour)
	l.Check(minute(limits.TokenBucket, "after"))
	c.add(time.Minute)
	if l.Sweep(); l.Stats() != (limits.Stats{Expired: 2}) {
		t.Errorf("%+v", l.Stats())
	}
}

func TestRunSweepsUntilItsContextEnds(t *testing.T) {
	for _, size := range []int{1, 100, 5000, 2_000_000} {
		synctest.Test(t, func(t *testing.T) {
			l := limits.New(size, time.Now)
			for i := range 500 {
				r := minute(limits.TokenBucket, fmt.Sprint(i))
				r.Duration = 1
				l.Check(r)
			}
			held := l.Stats().Entries
			start := time.Now()
			const enough = 4*time.Second + time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), enough)
			defer cancel()
			l.Run(ctx) // the bubble's time passes while it waits
			if took := time.Since(start); took != enough {
				t.Errorf("size %d: it ran for %v, want %v", size, took, enough)
			}
			if s := l.Stats(); s.Entries != 0 || s.Expired != uint64(held) {
				t.Errorf("size %d: %+v, want %d expired", size, s, held)
			}
		})
	}
}

// flood checks keys that were not asked for before.
func flood(l *limits.Limiter, prefix string, keys int, hits int64) {
	for i := range keys {
		r := minute(limits.TokenBucket, fmt.Sprint(prefix, i))
		r.Hits = hits
		l.Check(r)
	}
}

func TestAFloodFreesNoLimit(t *testing.T) {
	for _, size := range []int{1000, 4000} {
		eachAlgorithm(t, func(t *testing.T, a limits.Algorithm) {
			l := limits.New(size, newClock().now)
			victim := minute(a, "victim")
			victim.Hits, victim.Limit = 5, 5
			l.Check(victim)
			flood(l, "fresh", 5*size, 1)
			victim.Hits = 1
			if got := l.Check(victim); !isOver(got) {
				t.Errorf("size %d: %+v after %+v", size, got, l.Stats())
			}
			if s := l.Stats(); s.EvictedDrained != 0 || s.EvictedUsed == 0 {
				t.Errorf("size %d: %+v", size, s)
			}
		})
	}
}

// Once drained limits fill half of the cache they are nothing special any more. Otherwise a caller that drains many
// limits of its own would have the cache to itself.
func TestAFloodOfDrainedLimitsLeavesRoom(t *testing.T) {
	l := limits.New(1000, newClock().now)
	flood(l, "drained", 3000, 10)
	const users = 300
	for round := range 10 {
		for i := range users {
			r := minute(limits.TokenBucket, fmt.Sprint("user", i))
			if got := l.Check(r); got.Remaining != int64(9-round) {
				t.Fatalf("round %d: %+v: a limit in use was forgotten", round, got)
			}
		}
		flood(l, fmt.Sprint("more", round, "-"), 600, 10)
	}
	if s := l.Stats(); s.EvictedUsed != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWholeLimitsGoFirst(t *testing.T) {
	c := newClock()
	l := limits.New(800, c.now)
	flood(l, "used", 320, 3)
	for i := range 480 {
		r := minute(limits.TokenBucket, fmt.Sprint("short", i))
		r.Duration = 1000
		l.Check(r)
	}
	c.add(time.Second)
	flood(l, "fresh", 480, 1)
	if s := l.Stats(); s != (limits.Stats{Entries: 800, Expired: 480}) {
		t.Fatalf("%+v", s)
	}
	flood(l, "one more", 1, 1)
	if s := l.Stats(); s != (limits.Stats{Entries: 800, Expired: 480, EvictedUsed: 1}) {
		t.Fatalf("%+v", s)
	}
}

// Right after a sweep a full shard isn't swept again, but an oldest state that is whole isn't called an eviction.
func TestAWholeLimitThatIsOldestIsNotEvicted(t *testing.T) {
	c := newClock()
	l := limits.New(100, c.now)
	short := minute(limits.TokenBucket, "short")
	short.Duration = 100
	l.Check(short)
	flood(l, "used", 99, 1)
	l.Sweep()
	c.add(500 * time.Millisecond)
	flood(l, "fresh", 1, 1)
	if s := l.Stats(); s != (limits.Stats{Entries: 100, Expired: 1}) {
		t.Errorf("%+v", s)
	}
}

func TestTheLeastRecentlyUsedGoesFirst(t *testing.T) {
	l := limits.New(100, newClock().now)
	flood(l, "key", 100, 1)
	flood(l, "key", 50, 0) // a look is a use
	flood(l, "fresh", 50, 1)
	for i := range 100 {
		r := minute(limits.TokenBucket, fmt.Sprint("key", i))
		r.Hits = 0
		if got := l.Check(r); (got.Remaining == 9) != (i < 50) {
			t.Errorf("key %d: %+v", i, got)
		}
	}
}

// An eviction looks at the oldest states, passes over the drained ones for a while, and then takes the next, be that
// what it may. It counts what it was.
func TestEvictionsAreCountedAsWhatTheyAre(t *testing.T) {
	for _, test := range []struct {
		drained int // of 100, the oldest
		want    limits.Stats
	}{
		{0, limits.Stats{EvictedUsed: 1}},
		{1, limits.Stats{EvictedUsed: 1}},
		{31, limits.Stats{EvictedUsed: 1}},
		{32, limits.Stats{EvictedUsed: 1}},
		{33, limits.Stats{EvictedDrained: 1}},
		{50, limits.Stats{EvictedDrained: 1}},
		{51, limits.Stats{EvictedDrained: 1}},
		{100, limits.Stats{EvictedDrained: 1}},
	} {
		l := limits.New(100, newClock().now)
		flood(l, "drained", test.drained, 10)
		flood(l, "used", 100-test.drained, 1)
		flood(l, "fresh", 1, 1)
		test.want.Entries = 100
		if s := l.Stats(); s != test.want {
			t.Errorf("%d drained: %+v, want %+v", test.drained, s, test.want)
		}
	}
}

// TestDrainedLimits checks what counts as one: a limit with nothing left at its last request, however that came.
func TestDrainedLimits(t *testing.T) {
	r := func(hits, limit int64, b limits.Behavior) limits.Request {
		r := minute(limits.TokenBucket, "victim")
		r.Hits, r.Limit, r.Behavior = hits, limit, b
		return r
	}
	for _, test := range []struct {
		what     string
		requests []limits.Request
		drained  bool
	}{
		{"one left", []limits.Request{r(9, 10, 0)}, false},
		{"the last one taken", []limits.Request{r(9, 10, 0), r(1, 10, 0)}, true},
		{"all at once", []limits.Request{r(10, 10, 0)}, true},
		{"refused with some left", []limits.Request{r(9, 10, 0), r(2, 10, 0)}, false},
		{"drained by a refusal", []limits.Request{r(9, 10, 0), r(2, 10, limits.DrainOverLimit)}, true},
		{"drained and refused", []limits.Request{r(10, 10, 0), r(2, 10, 0)}, true},
		{"drained and given back", []limits.Request{r(10, 10, 0), r(-1, 10, 0)}, false},
		{"more used than there is", []limits.Request{r(9, 10, 0), r(1, 5, 0)}, true},
		{"a look doesn't tell", []limits.Request{r(9, 10, 0), r(0, 5, 0)}, false},
		{"too little given back", []limits.Request{r(9, 10, 0), r(1, 5, 0), r(-4, 5, 0)}, true},
		{"a higher limit", []limits.Request{r(10, 10, 0), r(11, 20, 0)}, false},
	} {
		l := limits.New(100, newClock().now)
		for _, r := range test.requests {
			l.Check(r)
		}
		flood(l, "fresh", 100, 1)
		look := l.Check(r(0, 1000, 0))
		if kept := look.Remaining < 1000; kept != test.drained {
			t.Errorf("%s: it was kept: %v", test.what, kept)
		}
	}
}

// A key that exists costs no allocation.
func TestChecksDoNotAllocate(t *testing.T) {
	c := newClock()
	l := limits.New(1000, c.now)
	long := func(r limits.Request) limits.Request {
		r.Name, r.UniqueKey = strings.Repeat("n", bucket.MaxNameBytes), strings.Repeat("ключ", bucket.MaxKeyBytes/8)
		return r
	}
	unit := func(a limits.Algorithm) limits.Request {
		r := minute(a, fmt.Sprint("unit", a))
		r.Behavior, r.Duration, r.TimeZone = limits.DurationIsGregorian, 4, "Europe/Berlin"
		return r
	}
	for what, r := range map[string]limits.Request{
		"token":           minute(limits.TokenBucket, "token"),
		"leaky":           minute(limits.LeakyBucket, "leaky"),
		"sliding":         minute(limits.SlidingWindow, "sliding"),
		"long token":      long(minute(limits.TokenBucket, "")),
		"long leaky":      long(minute(limits.LeakyBucket, "")),
		"long sliding":    long(minute(limits.SlidingWindow, "")),
		"a month's token": unit(limits.TokenBucket),
		"a month's leaky": unit(limits.LeakyBucket),
	} {
		for _, limit := range []int64{1, math.MaxInt64} { // refused, and admitted
			r.Limit = limit
			l.Check(r)
			if n := testing.AllocsPerRun(100, func() { l.Check(r); c.add(1) }); n != 0 {
				t.Errorf("%s, limit %d: %v allocations", what, limit, n)
			}
		}
	}
	rate := l.Rate("rate", math.MaxInt64, time.Hour, 0)
	for _, key := range []string{"key", strings.Repeat("k", bucket.MaxKeyBytes)} {
		rate.Allow(key)
		if n := testing.AllocsPerRun(100, func() { rate.Allow(key); c.add(1) }); n != 0 {
			t.Errorf("Rate.Allow with a key of %d bytes: %v allocations", len(key), n)
		}
	}
}

// TestMoments: a goroutine that looked at the clock long ago looks again before it decides on a limit on which another
// has decided since, so that nothing leaks twice; and otherwise only now and then.
func TestMoments(t *testing.T) {
	c, looks := newClock(), 0
	during := func() {}
	l := limits.New(100, func() time.Time { looks++; now := c.now(); during(); return now })
	r := limits.Request{Name: "n", UniqueKey: "k", Hits: 1, Limit: 1000, Duration: 1000, Algorithm: limits.LeakyBucket,
		Burst: 10}
	other := r
	other.UniqueKey = "other"

	// Between the first decision of a call and its second the clock moves on, and the limit of the second is drained.
	got := make([]limits.Result, 2)
	during = func() {
		during = func() {}
		c.add(5 * time.Millisecond)
		for range 10 {
			l.Check(r)
		}
	}
	if l.CheckAll([]limits.Request{other, r}, got); got[1].Status != limits.StatusOverLimit || got[1].RetryAfter != 1 {
		t.Errorf("by an earlier clock: %+v", got[1])
	}
	c.add(time.Millisecond)
	passed := 0
	for range 3 {
		if l.Check(r).Status == limits.StatusOK {
			passed++
		}
	}
	if passed != 1 {
		t.Errorf("%d passed after the time of one", passed)
	}

	looks = 0
	l.CheckAll(slices.Repeat([]limits.Request{r}, 160), make([]limits.Result, 160))
	if looks != 10 {
		t.Errorf("%d looks at the clock for 160 decisions in a row", looks)
	}
	var q bucket.Query
	if err := l.Prepare(&r, &q); err != nil {
		t.Fatal(err)
	}
	looks = 0
	l.CheckPrepared([]bucket.Query{q}, make([]int, 160), make([]limits.Result, 1))
	if looks != 10 {
		t.Errorf("%d looks at the clock for 160 prepared decisions in a row", looks)
	}

	// The clock is set back by an hour after the first decision; the next look sees it.
	during = func() {
		during = func() {}
		c.add(-time.Hour)
	}
	got = make([]limits.Result, 20)
	l.CheckAll(slices.Repeat([]limits.Request{other}, 20), got)
	if want := c.now().UnixMilli() + 20; got[19].ResetTime > want {
		t.Errorf("an hour back: reset at %d, want %d at most", got[19].ResetTime, want)
	}
}

// TestMomentsOfManyGoroutines has goroutines decide on one limit, each by its own moments: no more pass than by one
// clock.
func TestMomentsOfManyGoroutines(t *testing.T) {
	for _, a := range []limits.Algorithm{limits.TokenBucket, limits.LeakyBucket, limits.SlidingWindow} {
		const checks, batch = 20_000, 40
		var clock, passed atomic.Int64
		clock.Store(1_700_000_000_000_000_000)
		start := clock.Load()
		l := limits.New(100, func() time.Time { return time.Unix(0, clock.Load()) })
		r := limits.Request{Name: "n", UniqueKey: "k", Hits: 1, Limit: 100, Duration: 1000, Algorithm: a, Burst: 5}
		requests := slices.Repeat([]limits.Request{r}, batch)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				got := make([]limits.Result, batch)
				for range checks / batch {
					clock.Add(50_000 * batch) // in all: four seconds
					l.CheckAll(requests, got)
					for i := range got {
						if got[i].Status == limits.StatusOK {
							passed.Add(1)
						}
					}
				}
			})
		}
		all.Wait()
		most := map[limits.Algorithm]int64{limits.TokenBucket: 500, limits.LeakyBucket: 405, limits.SlidingWindow: 500}[a]
		if spent := clock.Load() - start; spent != 4_000_000_000 || passed.Load() > most || passed.Load() < 300 {
			t.Errorf("%v: %d passed in %d ns, want at most %d", a, passed.Load(), spent, most)
		}
	}
}

// What a Limiter remembers must not share memory with the message that it came from, nor must a clone.
func TestLimitsOutliveTheirMessage(t *testing.T) {
	of := func(members string) string {
		return `{"rate_limits":[{"name":"n","unique_key":"k",` + members + `}]}`
	}
	for _, text := range []string{
		of(`"limit":10,"duration":2,"behavior":4,"time_zone":"Europe/Berlin"`),
		of(`"limit":10,"duration":2,"behavior":4,"time_zone":"Europe\u002fBerlin"`),
	} {
		l := limits.New(10, newClock().now)
		for left := int64(9); left >= 5; left-- {
			message := []byte(text)
			got, err := wire.ReadRequests(nil, message)
			if err != nil || string(message) != text {
				t.Fatalf("%v; the message is now %s", err, message)
			}
			if result := l.Check(got[0]); result.Remaining != left {
				t.Errorf("%s: %+v, want %d remaining", text, result, left)
			}
			clone := got[0].Clone()
			if clone != got[0] {
				t.Errorf("the clone of %+v is %+v", got[0], clone)
			}
			before := fmt.Sprintf("%+v", clone)
			for i := range message {
				message[i] = 'x'
			}
			if after := fmt.Sprintf("%+v", clone); after != before {
				t.Errorf("the clone was %s and is %s", before, after)
			}
		}
	}
}

// TestRunForgetsEverywhere: what is whole again has gone within five seconds, in however many parts the states are.
func TestRunForgetsEverywhere(t *testing.T) {
	for _, size := range []int{1, 10_000, 15_000, 40_000, 100_000} {
		synctest.Test(t, func(t *testing.T) {
			l := limits.New(size, time.Now)
			flood(l, "key", size/2+1, 1)
			held := l.Stats().Entries
			var running sync.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			running.Go(func() { l.Run(ctx) })
			<-time.After(65 * time.Second)
			synctest.Wait()
			if s := l.Stats(); s.Entries != 0 || held == 0 || s.Expired != uint64(held) {
				t.Errorf("size %d: of %d entries %d are held: %+v", size, held, s.Entries, s)
			}
			stop()
			running.Wait()
		})
	}
}
