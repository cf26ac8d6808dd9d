package bucket

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func (a u128) big() *big.Int {
	n := new(big.Int).SetUint64(a.hi)
	return n.Or(n.Lsh(n, 64), new(big.Int).SetUint64(a.lo))
}

// between returns n, or the bound that it is beyond.
func between(low, n, high *big.Int) *big.Int {
	switch {
	case n.Cmp(low) < 0:
		return low
	case n.Cmp(high) > 0:
		return high
	}
	return n
}

// The numbers that rates are made of don't reach the ends of 128 bits, so the games of the other tests don't either.
func TestU128(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func() uint64 {
		edges := []uint64{0, 1, 2, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64 - 1, math.MaxUint64}
		if n := random.IntN(2 * len(edges)); n < len(edges) {
			return edges[n]
		}
		return random.Uint64() >> random.IntN(64)
	}
	zero, max128 := new(big.Int), u128{math.MaxUint64, math.MaxUint64}.big()
	one, max64, maxInt64 := big.NewInt(1), u128{lo: math.MaxUint64}.big(), big.NewInt(math.MaxInt64)
	for range 20_000 {
		a, b, n := u128{word(), word()}, u128{word(), word()}, max(1, word())
		divisor := u128{lo: n}.big()
		quotient, rest := new(big.Int).DivMod(a.big(), divisor, new(big.Int))
		up := quotient
		if rest.Sign() > 0 {
			up = new(big.Int).Add(quotient, one)
		}
		q, r := a.div(n)
		for _, c := range []struct {
			what      string
			got, want *big.Int
		}{
			{"mul", mul(a.lo, b.lo).big(), new(big.Int).Mul(u128{lo: a.lo}.big(), u128{lo: b.lo}.big())},
			{"add", a.add(b).big(), between(zero, new(big.Int).Add(a.big(), b.big()), max128)},
			{"less0", a.less0(b).big(), between(zero, new(big.Int).Sub(a.big(), b.big()), max128)},
			{"div", q.big(), quotient},
			{"div's rest", u128{lo: r}.big(), rest},
			{"divUp", a.divUp(n).big(), up},
			{"uint64", u128{lo: a.uint64()}.big(), between(zero, a.big(), max64)},
			{"int64", big.NewInt(a.int64()), between(zero, a.big(), maxInt64)},
		} {
			if c.got.Cmp(c.want) != 0 {
				t.Fatalf("%s of %v, %v and %d is %v, want %v", c.what, a, b, n, c.got, c.want)
			}
		}
	}
}
