//go:build linux

package main

import (
	"maps"
	"strings"
	"testing"
)

func TestCounters(t *testing.T) {
	const before = "# HELP a_total\n# TYPE a_total counter\na_total{x=\"a b\"} 1\na_total{x=\"c\"} 2\ngauge 7\nd_seconds_sum 0.5\n"
	const after = "a_total{x=\"a b\"} 4\na_total{x=\"c\"} 2\nb_count 1e3\ngauge 9\nd_seconds_sum 0.5\n"
	first, second := map[string]float64{}, map[string]float64{}
	addCounters(first, strings.NewReader(before))
	addCounters(second, strings.NewReader(after))
	addCounters(second, strings.NewReader("a_total 10\n")) // of another server
	if got, want := growth(first, second), map[string]float64{"a_total": 13, "b_count": 1000}; !maps.Equal(got, want) {
		t.Errorf("grew by %v, want %v", got, want)
	}
}
