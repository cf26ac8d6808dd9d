//go:build linux

package main

import "math/bits"

// histogram counts durations in nanoseconds in log-linear buckets: 64 per
// power of two, so a quantile is off by less than 1.6 %.
type histogram struct {
	counts [64 * 40]uint32
	n      uint64
	sum    uint64
	max    uint64
}

func bucketOf(v uint64) int {
	if v < 64 {
		return int(v)
	}
	e := bits.Len64(v) - 7 // v>>e is in [64,128)
	return min((e+1)*64+int(v>>e)-64, 64*40-1)
}

// upper returns the largest value of bucket i.
func upper(i int) uint64 {
	if i < 64 {
		return uint64(i)
	}
	e := i/64 - 1
	return uint64(64+i%64+1)<<e - 1
}

func (h *histogram) add(v uint64) {
	h.counts[bucketOf(v)]++
	h.n++
	h.sum += v
	h.max = max(h.max, v)
}

func (h *histogram) merge(o *histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

func (h *histogram) mean() float64 {
	if h.n == 0 {
		return 0
	}
	return float64(h.sum) / float64(h.n)
}

// quantile returns the q-quantile in microseconds.
func (h *histogram) quantile(q float64) float64 {
	want := uint64(q * float64(h.n))
	var seen uint64
	for i, c := range h.counts {
		seen += uint64(c)
		if seen > want || (seen == h.n && h.n > 0) {
			return round(float64(min(upper(i), h.max))/1e3, 1)
		}
	}
	return 0
}
