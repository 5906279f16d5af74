package balance

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts durations in steps of under 1 %.
type histogram struct {
	cells []uint32
	count int
	sum   time.Duration
	max   time.Duration
}

const stepBits = 7

func cellOf(v uint64) int {
	if v < 1<<stepBits {
		return int(v)
	}
	shift := bits.Len64(v) - stepBits - 1
	return shift<<stepBits + int(v>>shift)
}

// middle is the value that stands for a cell.
func middle(cell int) uint64 {
	if cell < 1<<(stepBits+1) {
		return uint64(cell)
	}
	shift := cell>>stepBits - 1
	low := uint64(cell-shift<<stepBits) << shift
	return low + 1<<shift/2
}

func (h *histogram) add(d time.Duration) {
	// Microseconds are fine enough for requests.
	c := cellOf(uint64(max(d, 0) / time.Microsecond))
	for len(h.cells) <= c {
		h.cells = append(h.cells, make([]uint32, 256)...)
	}
	h.cells[c]++
	h.count++
	h.sum += d
	h.max = max(h.max, d)
}

// quantile returns the duration that the share q does not exceed; 0 when empty.
func (h *histogram) quantile(q float64) time.Duration {
	rank := max(1, int(math.Ceil(q*float64(h.count))))
	seen := 0
	for c, n := range h.cells {
		if seen += int(n); seen >= rank {
			return min(time.Duration(middle(c))*time.Microsecond, h.max)
		}
	}
	return h.max
}

func (h *histogram) mean() time.Duration {
	if h.count == 0 {
		return 0
	}
	return h.sum / time.Duration(h.count)
}
