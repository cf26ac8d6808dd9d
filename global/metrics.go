package global

import (
	"fmt"
	"io"

	vm "github.com/VictoriaMetrics/metrics"

	"weir/limits/wire"
)

// metrics holds the numbers of a Syncer. No label ever carries text of a request.
type metrics struct {
	set *vm.Set

	own, fromCopy, asked, alone *vm.Counter // GLOBAL checks, by who decided

	reports, repeated, failed *vm.Counter // messages
	reported                  *vm.Counter // hits that were acknowledged
	drops                     map[string]*vm.Counter

	received, receivedAgain *vm.Counter // messages
	counted                 *vm.Counter // hits

	published, unpublished *vm.Counter

	moved, taken, movedAgain *vm.Counter // states; the last had been taken already
	expiredStates            *vm.Counter // that were whole again before they were taken
	otherStates              *vm.Counter // that another algorithm's state stood against
	handover                 *vm.Gauge   // seconds from the last change of the ring until all had what they were to have
}

// Why hits that are owed are not reported, or not counted.
const (
	droppedFull      = "full"      // no more debts can be kept
	droppedAlgorithm = "algorithm" // the limit is used with another algorithm by now
	droppedReset     = "reset"     // the limit has begun anew since
	droppedInvalid   = "invalid"   // a report that can't be
)

func (s *Syncer) newMetrics() {
	set := vm.NewSet()
	m := &metrics{set: set, drops: map[string]*vm.Counter{}}
	answers := func(source string) *vm.Counter {
		return set.NewCounter(fmt.Sprintf(`weir_global_checks_total{source=%q}`, source))
	}
	m.own, m.fromCopy, m.asked, m.alone = answers("owner"), answers("copy"), answers("asked"), answers("degraded")
	m.reports = set.NewCounter("weir_reports_total")
	m.repeated = set.NewCounter("weir_reports_repeated_total")
	m.failed = set.NewCounter("weir_reports_failed_total")
	m.reported = set.NewCounter("weir_reported_hits_total")
	for _, why := range []string{droppedFull, droppedAlgorithm, droppedReset, droppedInvalid} {
		m.drops[why] = set.NewCounter(fmt.Sprintf(`weir_dropped_hits_total{reason=%q}`, why))
	}
	m.received = set.NewCounter(`weir_received_reports_total{kind="new"}`)
	m.receivedAgain = set.NewCounter(`weir_received_reports_total{kind="repeated"}`)
	m.counted = set.NewCounter("weir_received_hits_total")
	m.published = set.NewCounter(`weir_publications_total{result="ok"}`)
	m.unpublished = set.NewCounter(`weir_publications_total{result="failed"}`)
	m.moved = set.NewCounter("weir_moved_states_total")
	m.taken = set.NewCounter("weir_taken_states_total")
	m.movedAgain = set.NewCounter("weir_repeated_states_total")
	m.expiredStates = set.NewCounter(`weir_dropped_states_total{reason="expired"}`)
	m.otherStates = set.NewCounter(`weir_dropped_states_total{reason="algorithm"}`)
	m.handover = set.NewGauge("weir_handover_seconds", nil)
	set.NewGauge("weir_debts", func() float64 {
		owed, _ := s.owing()
		return float64(owed)
	})
	set.NewGauge("weir_debt_oldest_seconds", func() float64 {
		_, oldest := s.owing()
		return oldest.Seconds()
	})
	set.NewGauge("weir_global_copies", func() float64 { return float64(s.copies()) })
	set.NewGauge("weir_global_shares", func() float64 { return float64(s.shares.number.Load()) })
	s.metrics = m
}

// WriteMetrics writes all numbers in the Prometheus text format.
func (s *Syncer) WriteMetrics(w io.Writer) { s.metrics.set.WritePrometheus(w) }

// dropped counts hits that are lost.
func (m *metrics) dropped(why string, hits int64) {
	if hits > 0 {
		m.drops[why].AddInt64(hits)
	}
}

func (m *metrics) sent(again bool) {
	m.reports.Inc()
	if again {
		m.repeated.Inc()
	}
}

func (m *metrics) receive(r *wire.Report, isNew bool) {
	switch {
	case isNew:
		m.received.Inc()
	case r.Seq > 0:
		m.receivedAgain.Inc()
	}
}

func (m *metrics) publish(err error) {
	if err == nil {
		m.published.Inc()
	} else {
		m.unpublished.Inc()
	}
}

// copies returns the number of entries, with copies or debts.
func (s *Syncer) copies() (n int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += sh.entries.Len()
		sh.mu.Unlock()
	}
	return n
}
