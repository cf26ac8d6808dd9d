//go:build linux

package main

import (
	"math"
	"math/rand/v2"
	"sort"
)

// keyDigits is the fixed width of the number at the end of every key: bodies
// are built once and only these digits change.
const keyDigits = 9

// keyChooser yields key numbers: uniform, or Zipf of any exponent > 0.
type keyChooser struct {
	rng   *rand.PCG
	n     uint64
	table []uint32 // Zipf: pre-drawn key numbers
}

func newKeyChooser(cfg *config, worker int) *keyChooser {
	k := &keyChooser{rng: rand.NewPCG(cfg.seed, uint64(worker)+1), n: uint64(cfg.keys)}
	if cfg.zipf > 0 {
		k.table = zipfTable(cfg.keys, cfg.zipf, cfg.seed)
	}
	return k
}

func (k *keyChooser) pick() uint64 {
	r := k.rng.Uint64()
	if k.table != nil {
		return uint64(k.table[r&uint64(len(k.table)-1)])
	}
	return (r >> 32) * k.n >> 32
}

var zipfCache []uint32

func zipfTable(keys int, s float64, seed uint64) []uint32 {
	if zipfCache != nil {
		return zipfCache
	}
	cdf := make([]float64, keys)
	sum := 0.0
	for i := range cdf {
		sum += math.Pow(float64(i+1), -s)
		cdf[i] = sum
	}
	rng := rand.New(rand.NewPCG(seed, 99))
	t := make([]uint32, 1<<20)
	for i := range t {
		t[i] = uint32(sort.SearchFloat64s(cdf, rng.Float64()*sum))
	}
	zipfCache = t
	return t
}

// putDigits writes v as keyDigits decimal digits.
func putDigits(dst []byte, v uint64) {
	for i := keyDigits - 1; i >= 0; i-- {
		dst[i] = byte('0' + v%10)
		v /= 10
	}
}
