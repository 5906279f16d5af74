package balance

import "math"

// alias draws indexes in proportion to weights, in constant time (Vose).
type alias struct {
	// threshold is the probability, in 1/2^32, that index i stays itself and does
	// not become other[i]; certain means always.
	threshold []uint64
	other     []int32
}

const certain = 1 << 32

// newAlias takes weights of at least 0; if all are 0, they count as equal.
func newAlias(weights []float64) alias {
	n := len(weights)
	a := alias{threshold: make([]uint64, n), other: make([]int32, n)}
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	scaled := make([]float64, n)
	var small, large []int32
	for i, w := range weights {
		scaled[i] = 1
		if sum > 0 {
			scaled[i] = w / sum * float64(n)
		}
		if scaled[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		a.threshold[s] = uint64(math.Round(scaled[s] * certain))
		a.other[s] = l
		if scaled[l] -= 1 - scaled[s]; scaled[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, rest := range [][]int32{small, large} {
		for _, i := range rest {
			a.threshold[i] = certain
		}
	}
	return a
}

// draw uses 32 random bits.
func (a *alias) draw(bits uint32) int {
	x := uint64(bits) * uint64(len(a.threshold))
	i := x >> 32
	if x&(1<<32-1) < a.threshold[i] {
		return int(i)
	}
	return int(a.other[i])
}
