package main

import (
	"testing"
	"time"
)

// told returns the answer to a request.
func answer(status, why string) result {
	return result{Status: status, Metadata: map[string]string{"degraded": why}}
}

// A watch does things with a ledger, and says what is wrong.
type watch struct {
	*testing.T
	*ledger
	trouble trouble
}

func (w watch) ask(o op, r result) string {
	o = op{w.ledger, w.op(o.hits).hits, o.whole}
	o.begin()
	return o.answered(r, w.trouble, time.Millisecond)
}

func (w watch) fine(o op, r result) {
	w.Helper()
	if wrong := w.ask(o, r); wrong != "" {
		w.Error(wrong)
	}
}

func (w watch) wrong(o op, r result) {
	w.Helper()
	if w.ask(o, r) == "" {
		w.Errorf("%d hits: %v: nothing is wrong", o.hits, r)
	}
}

// must checks what must be used, and how much more may be admitted.
func (w watch) must(from, to, more int64) {
	w.Helper()
	if f, t := w.used(); f != from || t != to {
		w.Errorf("used %d to %d, want %d to %d", f, t, from, to)
	}
	if got := w.bound(time.Now()) - w.net; got != more {
		w.Errorf("%d more may be admitted, want %d", got, more)
	}
}

func TestLedger(t *testing.T) {
	take := func(n int64) op { return op{hits: n} }
	whole := op{whole: true}
	ok, over := answer("OK", ""), answer("OVER_LIMIT", "")
	for name, test := range map[string]func(watch){
		"exact": func(w watch) {
			w.fine(take(7), ok)
			w.fine(take(4), over)
			w.fine(take(-2), ok)
			w.must(5, 5, 5)
			w.fine(take(5), ok)
			w.wrong(take(1), ok)
		},
		"whole": func(w watch) {
			w.fine(take(10), ok)
			w.fine(whole, ok)
			w.must(0, 0, 10)
		},
		"rests": func(w watch) {
			w.trouble = silent
			w.side()
			w.fine(take(10), ok)
			w.fine(take(8), ok)
			w.must(18, 18, 2)
			w.rest(18)
			w.must(18, 18, 0)
			w.fine(take(-10), ok) // which leaves less than is used beyond the limit and can't be taken again at once
			w.must(8, 8, 10)
			w.rest(8)
			w.must(8, 8, 2)
		},
		"dies with its holder": func(w watch) {
			w.fine(take(6), ok)
			w.crash()
			w.trouble = silent
			w.crashed(true, true)
			w.must(0, 6, 10)
			w.fine(take(4), ok)
			w.must(4, 10, 6)
			w.crash()
			w.crashed(true, true) // which knew of ten at most, not of six and ten
			w.must(0, 10, 10)
		},
		"outlives another node": func(w watch) {
			w.fine(take(6), ok)
			w.crash()
			w.crashed(false, true)
			w.must(6, 6, 4)
		},
		"dies while accounts move": func(w watch) {
			w.fine(take(6), ok)
			w.crash()
			w.crashed(false, false)
			w.must(0, 12, 10)
		},
		"in doubt": func(w watch) {
			w.trouble = silent
			w.fine(take(3), answer("OK", "owner_timeout"))
			w.must(0, 6, 10) // counted by the holder, by the asked node, both, or, in the end, neither
			w.fine(take(2), answer("OVER_LIMIT", "owner_broken"))
			w.must(0, 8, 10)
			w.fine(take(1), answer("OK", "owner_down"))
			w.must(1, 9, 10)
			w.fine(take(1), answer("OK", "owner_out"))
			w.must(2, 10, 9)
		},
		"not answered": func(w watch) {
			o := op{ledger: w.ledger, hits: 4}
			o.begin()
			o.unanswered()
			w.must(0, 4, 10)
			o.begin()
			o.undo()
			w.must(0, 4, 10)
		},
		"whole on one side": func(w watch) {
			w.trouble = silent
			w.side()
			w.fine(take(10), ok)
			w.fine(whole, ok)
			w.fine(take(10), ok)
			w.must(0, 10, 20) // the other side's may be void
		},
		"drained": func(w watch) {
			w.Behavior = drain
			w.fine(take(8), ok)
			w.fine(take(4), over)
			w.must(10, 10, 2)
		},
		"says why": func(w watch) {
			w.wrong(take(1), answer("OK", "owner_out"))
			w.trouble = absent
			w.fine(take(1), answer("OK", "owner_out"))
			w.wrong(take(1), answer("OK", "owner_timeout"))
			w.wrong(take(1), answer("ERROR", ""))
			w.wrong(take(0), over)
		},
	} {
		t.Run(name, func(t *testing.T) {
			test(watch{t, &ledger{limit: limit{item: item{Limit: 10}}, nodes: 3}, calm})
		})
	}
}

// TestSlack looks at limits whose bound isn't what they are.
func TestSlack(t *testing.T) {
	for _, test := range []struct {
		limit limit
		after time.Duration
		want  int64
	}{
		{limit{item: item{Limit: 299, Behavior: global}}, 0, 299},
		{limit{item: item{Limit: 600, Behavior: global}}, 0, 604},
		{limit{item: item{Limit: 600, Behavior: global}, strict: true}, 0, 606},
		{limit{item: item{Limit: 30, Duration: 3000}, short: true}, 0, 30},
		{limit{item: item{Limit: 30, Duration: 3000}, short: true}, 4 * time.Second, 70},
	} {
		now := time.Now()
		l := &ledger{limit: test.limit, nodes: 3, began: now.Add(-test.after)}
		if got := l.bound(now); got != test.want {
			t.Errorf("%+v: %d, want %d", test.limit, got, test.want)
		}
	}
}
