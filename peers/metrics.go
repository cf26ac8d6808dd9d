package peers

import (
	"fmt"
	"io"
	"maps"
	"slices"

	vm "github.com/VictoriaMetrics/metrics"
)

// stats are the metrics of one peer, which go when it does.
type stats struct {
	set      *vm.Set
	latency  *vm.PrometheusHistogram
	batch    *vm.PrometheusHistogram
	repeated *vm.Counter
	failures map[Failure]*vm.Counter
}

var failures = []Failure{ErrUnreachable, ErrBusy, ErrDown, ErrTimeout, ErrBroken, ErrRefused}

func (s *stats) init(peer string) {
	s.set = vm.NewSet()
	s.latency = s.set.NewPrometheusHistogramExt(fmt.Sprintf("weir_peer_request_duration_seconds{peer=%q}", peer),
		[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1})
	s.batch = s.set.NewPrometheusHistogramExt(fmt.Sprintf("weir_peer_request_items{peer=%q}", peer),
		[]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000})
	s.repeated = s.set.NewCounter(fmt.Sprintf("weir_peer_repeated_requests_total{peer=%q}", peer))
	s.failures = map[Failure]*vm.Counter{}
	for _, f := range failures {
		s.failures[f] = s.set.NewCounter(fmt.Sprintf("weir_peer_failed_items_total{peer=%q,reason=%q}", peer, string(f)))
	}
}

// count counts items that a peer did not answer.
func (s *stats) count(err error, items int) {
	if f, ok := err.(Failure); ok {
		s.failures[f].Add(items)
	}
}

// WriteMetrics writes the metrics of all peers that are listed now, in the Prometheus text format.
func (s *Set) WriteMetrics(w io.Writer) {
	vm.WriteCounterUint64(w, "weir_ring_mismatches_total", s.mismatches.Load())
	v := s.View()
	if v == nil {
		return
	}
	vm.WriteGaugeUint64(w, "weir_ring_nodes", uint64(v.Nodes()))
	for _, name := range slices.Sorted(maps.Keys(v.peers)) {
		p := v.peers[name]
		state, _ := p.health.state()
		for _, s := range []string{"up", "failing", "down", "out"} {
			is := uint64(0)
			if s == state {
				is = 1
			}
			vm.WriteGaugeUint64(w, fmt.Sprintf("weir_peer_state{peer=%q,state=%q}", name, s), is)
		}
		p.stats.set.WritePrometheus(w)
	}
}
