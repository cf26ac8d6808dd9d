package server

import (
	"fmt"
	"io"
	"runtime"
	"sync/atomic"

	vm "github.com/VictoriaMetrics/metrics"
)

// metrics holds the numbers of a server's doors. No label ever carries text of a request.
type metrics struct {
	set      *vm.Set
	rejected map[string]*vm.Counter // requests, by reason
	items    *vm.PrometheusHistogram
	duration *vm.PrometheusHistogram
	conns    atomic.Int64
}

// reasons lists why requests are refused as a whole.
var reasons = []string{"busy", "certificate", "connections", "cross_origin", "encoding", "method", "not_found", "panic",
	"peer", "timeout", "too_large", "unreadable"}

func newMetrics(version string) *metrics {
	set := vm.NewSet()
	m := &metrics{set: set, rejected: map[string]*vm.Counter{}}
	for _, reason := range reasons {
		m.rejected[reason] = set.NewCounter(fmt.Sprintf(`weir_rejected_requests_total{reason=%q}`, reason))
	}
	m.items = set.NewPrometheusHistogramExt("weir_request_items", []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000})
	m.duration = set.NewPrometheusHistogramExt("weir_request_duration_seconds",
		[]float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10})
	set.NewGauge("weir_connections", func() float64 { return float64(m.conns.Load()) })
	info := fmt.Sprintf(`weir_build_info{version=%q,goversion=%q}`, version, runtime.Version())
	set.NewGauge(info, func() float64 { return 1 })
	return m
}

// write writes all of it in the Prometheus text format.
func (m *metrics) write(w io.Writer) {
	m.set.WritePrometheus(w)
	vm.WriteProcessMetrics(w)
}

func (m *metrics) reject(reason string) { m.rejected[reason].Inc() }
