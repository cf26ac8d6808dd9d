package peers

import (
	"fmt"
	"io"

	vm "github.com/VictoriaMetrics/metrics"
)

// stats are the metrics of one peer. They are among the Set's until the peer is dropped from the list.
type stats struct {
	names    []string
	latency  *vm.PrometheusHistogram
	batch    *vm.PrometheusHistogram
	repeated *vm.Counter
	failures map[Failure]*vm.Counter
}

// Failures lists all failures. It must not be changed.
var Failures = []Failure{ErrUnreachable, ErrBusy, ErrDown, ErrTimeout, ErrBroken, ErrRefused}

func (p *Peer) newStats(set *vm.Set) {
	s := &p.stats
	name := func(metric, more string) string {
		full := fmt.Sprintf("%s{peer=%q%s}", metric, p.name, more)
		s.names = append(s.names, full)
		return full
	}
	s.latency = set.NewPrometheusHistogramExt(name("weir_peer_request_duration_seconds", ""),
		[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1})
	s.batch = set.NewPrometheusHistogramExt(name("weir_peer_request_items", ""),
		[]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000})
	s.repeated = set.NewCounter(name("weir_peer_repeated_requests_total", ""))
	s.failures = map[Failure]*vm.Counter{}
	for _, f := range Failures {
		s.failures[f] = set.NewCounter(name("weir_peer_failed_items_total", fmt.Sprintf(",reason=%q", string(f))))
	}
	for state := StateUp; state <= StateOut; state++ {
		set.NewGauge(name("weir_peer_state", fmt.Sprintf(",state=%q", state)), func() float64 {
			if p.health.state() == state {
				return 1
			}
			return 0
		})
	}
}

// drop removes the metrics from the Set's, so that nodes that come and go leave nothing behind.
func (s *stats) drop(set *vm.Set) {
	for _, name := range s.names {
		set.UnregisterMetric(name)
	}
}

// count counts items that a peer did not answer.
func (s *stats) count(err error, items int) {
	if f, ok := err.(Failure); ok {
		s.failures[f].Add(items)
	}
}

// newMetrics makes the metrics that belong to no peer.
func (s *Set) newMetrics() {
	s.metrics = vm.NewSet()
	s.mismatches.total = s.metrics.NewCounter("weir_ring_mismatches_total")
	s.abruptRestarts = s.metrics.NewCounter("weir_peer_restarts_without_handover_total")
	s.metrics.NewGauge("weir_ring_nodes", func() float64 {
		if v := s.View(); v != nil {
			return float64(v.Nodes())
		}
		return 0
	})
}

// WriteMetrics writes the metrics of the cluster and of all peers that are listed now, in the Prometheus text format.
func (s *Set) WriteMetrics(w io.Writer) { s.metrics.WritePrometheus(w) }
