package limits

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"weir/limits/bucket"
)

// A model decides about one limit as the contract words it: in rational numbers, without a thought for speed, space or
// overflow. It shares nothing with the package but the types of the API.
type model struct{ state *modelState } // nil is a whole limit

// A modelState is what is remembered by the contract.
type modelState struct {
	algorithm Algorithm
	used      *big.Rat // hits of this window; LEAKY_BUCKET: the level at since
	previous  *big.Rat // SLIDING_WINDOW: hits of the window before
	since     int64    // start of the window; LEAKY_BUCKET: when used was true
	duration  int64    // nanoseconds, as last in force
	limit     int64    // as last in force
}

// terms are a request as the model reads it.
type terms struct {
	algorithm          Algorithm
	hits, limit, burst int64
	reset, drain       bool
	duration           int64             // nanoseconds
	unitEnd            func(int64) int64 // where a TOKEN_BUCKET of a calendar unit ends; nil without
}

func (t terms) capacity() int64 {
	if t.algorithm == LeakyBucket && t.burst > 0 && t.limit > 0 {
		return t.burst
	}
	return t.limit
}

func (t terms) windowEnd(start int64) *big.Rat {
	if t.unitEnd != nil {
		return rat(t.unitEnd(start))
	}
	return sum(rat(start), rat(t.duration))
}

func rat(n int64) *big.Rat         { return new(big.Rat).SetInt64(n) }
func sum(a, b *big.Rat) *big.Rat   { return new(big.Rat).Add(a, b) }
func minus(a, b *big.Rat) *big.Rat { return new(big.Rat).Sub(a, b) }
func times(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }
func over(a, b *big.Rat) *big.Rat  { return new(big.Rat).Quo(a, b) }
func less(a, b *big.Rat) bool      { return a.Cmp(b) < 0 }

func lesser(a, b *big.Rat) *big.Rat {
	if less(a, b) {
		return a
	}
	return b
}

// atLeast0 returns a, or 0 if that is larger.
func atLeast0(a *big.Rat) *big.Rat {
	if a.Sign() < 0 {
		return new(big.Rat)
	}
	return a
}

func ceil(a *big.Rat) *big.Rat {
	down, rest := new(big.Int).DivMod(a.Num(), a.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		down.Add(down, big.NewInt(1))
	}
	return new(big.Rat).SetInt(down)
}

// ms returns nanoseconds as milliseconds, rounded up, at most 2^63-1.
func ms(ns *big.Rat) int64 {
	return lesser(ceil(over(ns, rat(1_000_000))), rat(math.MaxInt64)).Num().Int64()
}

// view is the state as a request with terms t sees it at now. It is never nil, and shares nothing with m.
func (m *model) view(t terms, now int64) *modelState {
	whole := &modelState{algorithm: t.algorithm, used: new(big.Rat), previous: new(big.Rat), since: now, limit: t.limit}
	whole.duration = minus(t.windowEnd(now), rat(now)).Num().Int64()
	old := m.state
	if old == nil || old.algorithm != t.algorithm {
		return whole
	}
	v := *whole
	v.since = min(old.since, now)
	switch t.algorithm {
	case TokenBucket:
		end := t.windowEnd(v.since)
		if !less(rat(now), end) || old.duration <= now-v.since {
			return whole
		}
		v.used = old.used
		v.duration = minus(end, rat(v.since)).Num().Int64()
	case LeakyBucket:
		leaked := over(times(rat(old.limit), rat(now-v.since)), rat(old.duration))
		v.used = atLeast0(minus(old.used, leaked))
		if old.duration != t.duration {
			v.used = over(ceil(times(v.used, rat(t.duration))), rat(t.duration))
		}
		v.since = now
	case SlidingWindow:
		v.used, v.previous = old.used, old.previous
		for _, duration := range []int64{old.duration, t.duration} {
			switch passed := (now - v.since) / duration; {
			case passed == 1:
				v.previous, v.used, v.since = v.used, new(big.Rat), v.since+duration
			case passed > 1:
				return whole
			}
		}
	}
	if v.whole() {
		return whole
	}
	return &v
}

func (s *modelState) whole() bool { return s.used.Sign() == 0 && s.previous.Sign() == 0 }

// free returns the whole hits that fit.
func (s *modelState) free(t terms, now int64) int64 {
	estimate := s.used
	if s.algorithm == SlidingWindow {
		overlap := over(minus(rat(s.since+s.duration), rat(now)), rat(s.duration))
		estimate = sum(s.used, times(s.previous, overlap))
	}
	return atLeast0(minus(rat(t.capacity()), ceil(estimate))).Num().Int64()
}

// giveBack takes hits from the count.
func (s *modelState) giveBack(hits *big.Rat) {
	rest := minus(hits, lesser(hits, s.used))
	s.used = atLeast0(minus(s.used, hits))
	s.previous = atLeast0(minus(s.previous, rest))
}

// wholeAt returns the moment when nothing is used any more.
func (s *modelState) wholeAt(t terms, now int64) *big.Rat {
	start, duration := rat(s.since), rat(s.duration)
	switch {
	case t.limit == 0, s.whole() && s.algorithm == TokenBucket:
		return t.windowEnd(now)
	case s.whole():
		return rat(now)
	case s.algorithm == LeakyBucket:
		return sum(rat(now), ceil(over(times(s.used, duration), rat(t.limit))))
	case s.algorithm == SlidingWindow && s.used.Sign() > 0:
		return sum(sum(start, duration), duration)
	default:
		return sum(start, duration)
	}
}

// fitsAt returns the first moment when hits, which don't fit now but can, do.
func (s *modelState) fitsAt(t terms, now int64) *big.Rat {
	start, duration := rat(s.since), rat(s.duration)
	hits, limit := rat(t.hits), rat(t.limit)
	switch s.algorithm {
	case TokenBucket:
		return sum(start, duration)
	case LeakyBucket:
		tooMuch := minus(sum(s.used, hits), rat(t.capacity()))
		return sum(rat(now), ceil(over(times(tooMuch, duration), limit)))
	}
	// The estimate falls in a straight line to the end of this window, and in another one to the end of the next.
	room, end := minus(limit, hits), sum(start, duration)
	stays, falls := s.used, s.previous
	if less(room, stays) {
		stays, falls, end = new(big.Rat), s.used, sum(end, duration)
	}
	return ceil(minus(end, over(times(minus(room, stays), duration), falls)))
}

// check decides on t and changes the state by the contract.
func (m *model) check(t terms, now int64) Result {
	v := m.view(t, now)
	r := Result{Status: StatusOK, Limit: t.limit}
	if t.reset {
		m.state = nil
		v.used, v.previous = new(big.Rat), new(big.Rat)
		r.Remaining, r.ResetTime = t.capacity(), ms(v.wholeAt(t, now))
		return r
	}
	free := v.free(t, now)
	wasWhole := v.whole()
	switch {
	case t.hits < 0:
		v.giveBack(new(big.Rat).Neg(rat(t.hits)))
		free = v.free(t, now)
	case t.hits <= free:
		v.used = sum(v.used, rat(t.hits))
		free -= t.hits
	default:
		r.Status = StatusOverLimit
		if t.drain {
			v.used = sum(v.used, rat(free))
			free = 0
		}
	}
	r.Remaining = free
	switch {
	case r.Status == StatusOK:
		r.ResetTime = ms(v.wholeAt(t, now))
	case t.hits > t.capacity():
		r.ResetTime = ms(t.windowEnd(now))
		r.Metadata.Reason = bucket.ReasonTooManyHits
		if t.limit == 0 {
			r.Metadata.Reason = bucket.ReasonLimitZero
		}
	default:
		at := v.fitsAt(t, now)
		r.ResetTime, r.RetryAfter = ms(at), ms(minus(at, rat(now)))
	}

	counted := !(wasWhole && v.whole())
	switch {
	case t.hits == 0: // a look writes nothing
	case counted && v.whole():
		m.state = nil
	case counted:
		m.state = v
	case m.state != nil && m.state.algorithm == t.algorithm: // it has run out
		m.state = nil
	}
	return r
}

// modelUnitEnd returns where a calendar unit ends, for zones that have every midnight and change clocks on the hour.
func modelUnitEnd(unit int64, zone *time.Location) func(int64) int64 {
	return func(ns int64) int64 {
		t := time.Unix(0, ns).In(zone)
		y, m, d := t.Date()
		switch unit {
		case 0:
			return t.Truncate(time.Minute).Add(time.Minute).UnixNano()
		case 1:
			past := time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second
			return t.Truncate(time.Second).Add(time.Hour - past).UnixNano()
		case 2:
			return time.Date(y, m, d+1, 0, 0, 0, 0, zone).UnixNano()
		case 3:
			monday := d - (int(t.Weekday())+6)%7
			return time.Date(y, m, monday+7, 0, 0, 0, 0, zone).UnixNano()
		case 4:
			return time.Date(y, m+1, 1, 0, 0, 0, 0, zone).UnixNano()
		default:
			return time.Date(y+1, 1, 1, 0, 0, 0, 0, zone).UnixNano()
		}
	}
}

// Units of the requests' durations and of the model's.
const (
	nsPerMs = int64(time.Millisecond)
	day     = 24 * 60 * 60 * 1000 // milliseconds
)

// location finds a time zone.
func location(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// A game is one sequence of checks of one key, decided three times: by the model, by step alone and by a Limiter. What
// it plays is drawn from draw, which returns a number from 0 to n-1.
type game struct {
	t       *testing.T
	draw    func(n int) int
	now     int64
	last    Result
	terms   terms   // of the last check
	request Request // the same, unless rate
	rate    bool    // the check goes through a Rate, whose period need not be whole milliseconds

	model   model
	state   bucket.State
	zones   *bucket.Zones
	limiter *Limiter
	log     strings.Builder
}

const (
	gameStart  = int64(1_767_225_599_999_999_999) // the last nanosecond of 2025
	lastMoment = math.MaxInt64 - 3*int64(bucket.MaxDurationMs)*nsPerMs
)

func newGame(t *testing.T, draw func(n int) int) *game {
	g := &game{t: t, draw: draw, now: gameStart, zones: bucket.NewZones()}
	g.limiter = New(1, func() time.Time { return time.Unix(0, g.now) })
	if g.draw(2) == 0 {
		g.now++
	}
	g.newTerms()
	return g
}

func pick[T any](g *game, from ...T) T { return from[g.draw(len(from))] }

func (g *game) count() int64 {
	return pick[int64](g, 10, 3, 1, 2, 7, 100, 1000, 6000, 2_000_000, 0,
		1<<31, 1<<53+1, math.MaxInt64-1, math.MaxInt64, math.MaxInt64/2, 999_999_999_989)
}

// newTerms draws all of a request but its hits.
func (g *game) newTerms() {
	g.newLimit()
	g.newDuration()
	g.terms.algorithm = Algorithm(g.draw(3))
}

func (g *game) newLimit() {
	g.terms.limit = g.count()
	g.terms.burst = 0
	if g.draw(3) == 0 {
		g.terms.burst = g.count()
	}
}

func (g *game) newDuration() {
	g.rate, g.terms.unitEnd = false, nil
	g.request = Request{Duration: pick[int64](g, 1000, 1, 2, 7, 30_000, 60_000, 3_600_000, day+1, bucket.MaxDurationMs,
		bucket.MaxDurationMs-1)}
	switch g.draw(5) {
	case 0:
		g.rate = true
		g.terms.duration = pick[int64](g, 1, 2, 999, 1_000_001, 333_333_333, 31_536_000_000_000_007,
			bucket.MaxDurationMs*nsPerMs)
	case 1:
		g.request.Behavior = DurationIsGregorian
		g.request.Duration = int64(g.draw(6))
		g.request.TimeZone = pick(g, "", "Europe/Berlin", "Asia/Kolkata", "America/New_York")
		g.terms.duration = []int64{60, 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400}[g.request.Duration] * 1e9
	default:
		g.terms.duration = g.request.Duration * nsPerMs
	}
}

// next draws the next check: when, and what.
func (g *game) next() {
	d := g.terms.duration
	parts := max(g.terms.limit, 1)
	ahead := pick(g, 0, 1, nsPerMs, d/parts, d/parts+1, d/3, d/2, d-1, d, d+1, 2*d-1, 2*d, 2*d+1,
		g.last.ResetTime*nsPerMs-g.now, g.last.RetryAfter*nsPerMs, (g.last.RetryAfter-1)*nsPerMs,
		-1, -nsPerMs, -d/2, -d, -3*d, int64(g.draw(256)))
	g.now = min(max(0, g.now+ahead), lastMoment)
	if ahead > 0 && g.now == lastMoment {
		g.now = gameStart // not to spend the rest of the game at the end of time
	}

	switch g.draw(12) {
	case 0:
		g.newLimit()
	case 1:
		g.newDuration()
	case 2:
		g.terms.algorithm = Algorithm(g.draw(3))
	case 3:
		g.newTerms()
	}
	limit, free := g.terms.limit, g.last.Remaining
	hits := pick(g, 1, 1, 2, free, free+1, limit/2, limit, limit-1, limit+1, g.terms.burst, g.terms.burst+1,
		int64(g.draw(20)),
		0, 0, -1, -2, -limit/2, -limit, math.MaxInt64, math.MinInt64)
	flags := pick(g, 0, 0, 0, 0, bucket.NoBatching|bucket.Global, DrainOverLimit, DrainOverLimit, ResetRemaining)

	// What cannot be said together, is not said.
	if g.rate {
		g.terms.algorithm = LeakyBucket
		flags = 0
	}
	calendar := !g.rate && g.request.Behavior&DurationIsGregorian != 0
	if g.terms.algorithm == SlidingWindow && calendar {
		g.terms.algorithm = TokenBucket
	}
	g.terms.unitEnd = nil
	if g.terms.algorithm == TokenBucket && calendar {
		g.terms.unitEnd = modelUnitEnd(g.request.Duration, location(g.t, g.request.TimeZone))
	}
	g.terms.hits, g.terms.reset, g.terms.drain = hits, flags&ResetRemaining != 0, flags&DrainOverLimit != 0
	g.request.Name, g.request.UniqueKey = "name", "key"
	g.request.Algorithm, g.request.Hits, g.request.Limit, g.request.Burst = g.terms.algorithm, hits, limit, g.terms.burst
	g.request.Behavior = g.request.Behavior&DurationIsGregorian | flags
}

// decide has all three decide. It returns where they differ, "" if nowhere.
func (g *game) decide() string {
	want := g.model.check(g.terms, g.now)
	g.last = want
	fmt.Fprintf(&g.log, "at %d: %+v rate %v\n    %+v\n", g.now, g.request, g.rate, want)

	var q bucket.Query
	var checked Result
	if g.rate {
		r := g.limiter.Rate("name", g.terms.limit, time.Duration(g.terms.duration), g.terms.burst)
		checked = r.check("key", g.terms.hits)
		q = r.query
		q.Hits = g.terms.hits
	} else {
		checked = g.limiter.Check(g.request)
		if err := q.Prepare(&g.request, g.zones); err != nil {
			return err.Error()
		}
	}
	var stepped Result
	next := bucket.Step(g.state, &q, g.now, &stepped)
	if q.Hits == 0 && q.Behavior&ResetRemaining == 0 && next != g.state {
		return fmt.Sprintf("a look changed the state from %+v to %+v", g.state, next)
	}
	g.state = next
	entries := g.limiter.Stats().Entries
	switch {
	case stepped != want:
		return fmt.Sprintf("step:    %+v", stepped)
	case checked != want:
		return fmt.Sprintf("Limiter: %+v", checked)
	case next.Empty() != (g.model.state == nil):
		return fmt.Sprintf("step is whole: %v, the model: %v", next.Empty(), g.model.state == nil)
	case (entries == 0) != (g.model.state == nil):
		return fmt.Sprintf("Limiter holds %d states, the model none: %v", entries, g.model.state == nil)
	}
	return ""
}

// play plays a number of checks.
func (g *game) play(checks int, more func() bool) {
	g.t.Helper()
	for range checks {
		if !more() {
			return
		}
		g.next()
		if wrong := g.decide(); wrong != "" {
			lines := strings.SplitAfter(g.log.String(), "\n")
			g.t.Fatalf("the model and the code differ at the end of\n%s    %s", strings.Join(lines[max(0, len(lines)-21):], ""),
				wrong)
		}
	}
}

func TestAgainstModel(t *testing.T) {
	const games, checks = 1000, 40
	for seed := range uint64(games) {
		random := rand.New(rand.NewPCG(seed, 0))
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			newGame(t, random.IntN).play(checks, func() bool { return true })
		})
	}
}

// FuzzAgainstModel plays the games that the fuzzer's bytes spell.
func FuzzAgainstModel(f *testing.F) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		moves := make([]byte, 200)
		for i := range moves {
			moves[i] = byte(random.Uint32())
		}
		f.Add(moves)
	}
	f.Fuzz(func(t *testing.T, moves []byte) {
		draw := func(n int) int {
			if len(moves) == 0 {
				return 0
			}
			move := moves[0]
			moves = moves[1:]
			return int(move) % n
		}
		newGame(t, draw).play(100, func() bool { return len(moves) > 0 })
	})
}
