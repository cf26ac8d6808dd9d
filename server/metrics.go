package server

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"

	vm "github.com/VictoriaMetrics/metrics"

	"weir/global"
	"weir/limits"
	"weir/limits/bucket"
	"weir/peers"
)

// metrics holds the numbers of one node. No label ever carries text of a request.
type metrics struct {
	set      *vm.Set
	limiter  *limits.Limiter
	cluster  *peers.Set                       // nil on a single node
	global   *global.Syncer                   // the same
	checks   [maxAlgorithm + 1][3]*vm.Counter // by algorithm and status
	peer     *vm.Counter                      // items counted for peers
	standIns *vm.Counter                      // items counted by stand-ins
	rejected map[string]*vm.Counter           // requests, by reason
	degraded map[string]*vm.Counter           // items answered by the failure policy, by reason
	items    *vm.PrometheusHistogram
	duration *vm.PrometheusHistogram
	conns    atomic.Int64

	// The limiter counts these itself.
	expired, evictedUsed, evictedDrained *vm.Counter
}

// maxAlgorithm stands for all that are not known.
const maxAlgorithm = 3

// reasons lists why requests are refused as a whole.
var reasons = []string{"busy", "certificate", "connections", "cross_origin", "encoding", "method", "not_found", "panic", "peer",
	"timeout", "too_large", "unreadable"}

func newMetrics(l *limits.Limiter, cluster *peers.Set, syncer *global.Syncer, policy Policy, version string) *metrics {
	vm.ExposeMetadata(true)
	set := vm.NewSet()
	m := &metrics{set: set, limiter: l, cluster: cluster, global: syncer, rejected: map[string]*vm.Counter{}, degraded: map[string]*vm.Counter{}}
	for a := range m.checks {
		for status := range m.checks[a] {
			m.checks[a][status] = set.NewCounter(fmt.Sprintf(`weir_checks_total{algorithm=%q,status=%q}`,
				strings.ToLower(limits.Algorithm(a).String()), strings.ToLower(bucket.Status(status).String())))
		}
	}
	for _, reason := range reasons {
		m.rejected[reason] = set.NewCounter(fmt.Sprintf(`weir_rejected_requests_total{reason=%q}`, reason))
	}
	if cluster != nil {
		m.peer = set.NewCounter("weir_peer_checks_total")
		m.standIns = set.NewCounter("weir_stand_in_checks_total")
		for _, reason := range append([]string{notReady}, words(peers.Failures)...) {
			m.degraded[reason] = set.NewCounter(fmt.Sprintf(`weir_degraded_checks_total{policy=%q,reason=%q}`, string(policy), reason))
		}
	}
	m.items = set.NewPrometheusHistogramExt("weir_request_items", []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000})
	m.duration = set.NewPrometheusHistogramExt("weir_request_duration_seconds",
		[]float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10})
	set.NewGauge("weir_connections", func() float64 { return float64(m.conns.Load()) })
	set.NewGauge("weir_state_entries", func() float64 { return float64(l.Stats().Entries) })
	m.expired = set.NewCounter("weir_state_expired_total")
	m.evictedUsed = set.NewCounter(`weir_state_evictions_total{kind="used"}`)
	m.evictedDrained = set.NewCounter(`weir_state_evictions_total{kind="drained"}`)
	set.NewGauge(fmt.Sprintf(`weir_build_info{version=%q,goversion=%q}`, version, runtime.Version()), func() float64 { return 1 })
	return m
}

func words(failures []peers.Failure) (words []string) {
	for _, f := range failures {
		words = append(words, string(f))
	}
	return words
}

// write writes all of it in the Prometheus text format.
func (m *metrics) write(w io.Writer) {
	stats := m.limiter.Stats()
	m.expired.Set(stats.Expired)
	m.evictedUsed.Set(stats.EvictedUsed)
	m.evictedDrained.Set(stats.EvictedDrained)
	m.set.WritePrometheus(w)
	if m.cluster != nil {
		m.cluster.WriteMetrics(w)
		m.global.WriteMetrics(w)
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

// degrade counts an item that the failure policy answered.
func (m *metrics) degrade(why string) { m.degraded[why].Inc() }
