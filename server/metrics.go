package server

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"

	vm "github.com/VictoriaMetrics/metrics"

	"weir/limits"
	"weir/peers"
)

// metrics holds the numbers of one node. No label ever carries text of a request.
type metrics struct {
	set      *vm.Set
	checks   [maxAlgorithm + 1][3]*vm.Counter // by algorithm and status
	peer     *vm.Counter                      // items counted for peers
	rejected map[string]*vm.Counter           // by reason
	items    *vm.PrometheusHistogram
	duration *vm.PrometheusHistogram
	conns    atomic.Int64
	peers    *peers.Set // nil on a single node
}

// maxAlgorithm stands for all that are not known.
const maxAlgorithm = 3

// reasons lists why requests are refused as a whole.
var reasons = []string{"certificate", "connections", "cross_origin", "encoding", "method", "not_found", "panic", "peer", "timeout", "too_large", "unreadable"}

func newMetrics(l *limits.Limiter, p *peers.Set, version string) *metrics {
	m := &metrics{set: vm.NewSet(), rejected: map[string]*vm.Counter{}, peers: p}
	m.peer = m.set.NewCounter("weir_peer_checks_total")
	for a := range m.checks {
		for status := range m.checks[a] {
			m.checks[a][status] = m.set.NewCounter(fmt.Sprintf(`weir_checks_total{algorithm=%q,status=%q}`,
				strings.ToLower(limits.Algorithm(a).String()), strings.ToLower(limits.Status(status).String())))
		}
	}
	for _, reason := range reasons {
		m.rejected[reason] = m.set.NewCounter(fmt.Sprintf(`weir_rejected_requests_total{reason=%q}`, reason))
	}
	m.items = m.set.NewPrometheusHistogramExt("weir_request_items", []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000})
	m.duration = m.set.NewPrometheusHistogramExt("weir_request_duration_seconds",
		[]float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10})
	m.set.NewGauge("weir_connections", func() float64 { return float64(m.conns.Load()) })
	m.set.NewGauge(fmt.Sprintf(`weir_build_info{version=%q,goversion=%q}`, version, runtime.Version()), func() float64 { return 1 })
	m.set.RegisterMetricsWriter(func(w io.Writer) {
		stats := l.Stats()
		vm.WriteGaugeUint64(w, "weir_state_entries", uint64(stats.Entries))
		vm.WriteCounterUint64(w, "weir_state_expired_total", stats.Expired)
		vm.WriteCounterUint64(w, `weir_state_evictions_total{kind="used"}`, stats.EvictedUsed)
		vm.WriteCounterUint64(w, `weir_state_evictions_total{kind="drained"}`, stats.EvictedDrained)
	})
	return m
}

func (m *metrics) write(w io.Writer) {
	m.set.WritePrometheus(w)
	if m.peers != nil {
		m.peers.WriteMetrics(w)
	}
	vm.WriteProcessMetrics(w)
}

func (m *metrics) reject(reason string) { m.rejected[reason].Inc() }

// count counts the results of one request. It adds up first, since counters are shared by all processors.
func (m *metrics) count(requests []limits.Request, results []limits.Result) {
	var sums [maxAlgorithm + 1][3]int
	for i := range results {
		sums[min(requests[i].Algorithm, maxAlgorithm)][results[i].Status]++
	}
	for a := range sums {
		for status, n := range sums[a] {
			if n > 0 {
				m.checks[a][status].Add(n)
			}
		}
	}
	m.items.Update(float64(len(results)))
}

// countPeer counts what was counted for a peer. The checks themselves are those of the node that was asked.
func (m *metrics) countPeer(results []limits.Result) { m.peer.Add(len(results)) }

// degrade counts an item that the failure policy answered. There are few policies and reasons, all words of our own.
func (m *metrics) degrade(policy Policy, why string) {
	m.set.GetOrCreateCounter(fmt.Sprintf(`weir_degraded_checks_total{policy=%q,reason=%q}`, policy, why)).Inc()
}
