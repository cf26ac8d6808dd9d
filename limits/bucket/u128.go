package bucket

import (
	"math"
	"math/bits"
)

// A u128 is an unsigned integer of 128 bits: hits (63 bits) times nanoseconds (59 bits) need 122.
type u128 struct{ hi, lo uint64 }

func mul(a, b uint64) u128 {
	hi, lo := bits.Mul64(a, b)
	return u128{hi, lo}
}

// add saturates.
func (a u128) add(b u128) u128 {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	hi, carry := bits.Add64(a.hi, b.hi, carry)
	if carry != 0 {
		return u128{math.MaxUint64, math.MaxUint64}
	}
	return u128{hi, lo}
}

// less0 returns a - b, or 0 where b is larger.
func (a u128) less0(b u128) u128 {
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	hi, borrow := bits.Sub64(a.hi, b.hi, borrow)
	if borrow != 0 {
		return u128{}
	}
	return u128{hi, lo}
}

// div returns a / b, rounded down, and the rest. It panics if b is 0.
func (a u128) div(b uint64) (q u128, rest uint64) {
	q.hi, rest = a.hi/b, a.hi%b
	q.lo, rest = bits.Div64(rest, a.lo, b)
	return q, rest
}

// divUp returns a / b, rounded up. It panics if b is 0.
func (a u128) divUp(b uint64) u128 {
	q, rest := a.div(b)
	if rest != 0 {
		q = q.add(u128{lo: 1})
	}
	return q
}

// uint64 and int64 saturate.
func (a u128) uint64() uint64 {
	if a.hi != 0 {
		return math.MaxUint64
	}
	return a.lo
}

func (a u128) int64() int64 { return int64(min(a.uint64(), math.MaxInt64)) }
