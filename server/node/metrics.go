package node

import (
	"fmt"
	"io"
	"strings"

	vm "github.com/VictoriaMetrics/metrics"

	"weir/limits"
	"weir/limits/bucket"
	"weir/peers"
)

// metrics holds the numbers of a node's decisions. No label ever carries text of a request.
type metrics struct {
	set      *vm.Set
	checks   [maxAlgorithm + 1][3]*vm.Counter // by algorithm and status
	peer     *vm.Counter                      // items counted for peers
	standIns *vm.Counter                      // items counted by stand-ins
	degraded map[string]*vm.Counter           // items answered by the failure policy, by reason

	// The limiter counts these itself.
	expired, evictedUsed, evictedDrained *vm.Counter
}

// maxAlgorithm stands for all that are not known.
const maxAlgorithm = 3

func (n *Node) newMetrics() {
	vm.ExposeMetadata(true)
	set := vm.NewSet()
	m := &metrics{set: set, degraded: map[string]*vm.Counter{}}
	for a := range m.checks {
		for status := range m.checks[a] {
			m.checks[a][status] = set.NewCounter(fmt.Sprintf(`weir_checks_total{algorithm=%q,status=%q}`,
				strings.ToLower(limits.Algorithm(a).String()), strings.ToLower(bucket.Status(status).String())))
		}
	}
	if n.peers != nil {
		m.peer = set.NewCounter("weir_peer_checks_total")
		m.standIns = set.NewCounter("weir_stand_in_checks_total")
		for _, reason := range append([]peers.Failure{notReady}, peers.Failures...) {
			name := fmt.Sprintf(`weir_degraded_checks_total{policy=%q,reason=%q}`, string(n.policy), string(reason))
			m.degraded[string(reason)] = set.NewCounter(name)
		}
	}
	set.NewGauge("weir_state_entries", func() float64 { return float64(n.limiter.Stats().Entries) })
	m.expired = set.NewCounter("weir_state_expired_total")
	m.evictedUsed = set.NewCounter(`weir_state_evictions_total{kind="used"}`)
	m.evictedDrained = set.NewCounter(`weir_state_evictions_total{kind="drained"}`)
	n.metrics = m
}

// WriteMetrics writes all numbers of the node, its calls to peers included, in the Prometheus text format.
func (n *Node) WriteMetrics(w io.Writer) {
	stats := n.limiter.Stats()
	n.metrics.expired.Set(stats.Expired)
	n.metrics.evictedUsed.Set(stats.EvictedUsed)
	n.metrics.evictedDrained.Set(stats.EvictedDrained)
	n.metrics.set.WritePrometheus(w)
	if n.peers != nil {
		n.peers.WriteMetrics(w)
		n.global.WriteMetrics(w)
	}
}

// count counts the results of one call. It adds up first, since counters are shared by all processors.
func (m *metrics) count(requests []limits.Request, results []limits.Result) {
	var sums [maxAlgorithm + 1][3]int
	for i := range requests {
		sums[min(requests[i].Algorithm, maxAlgorithm)][results[i].Status]++
	}
	for a := range sums {
		for status, n := range sums[a] {
			if n > 0 {
				m.checks[a][status].Add(n)
			}
		}
	}
}
