package retry

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"time"
)

// A digest's values are counted in microseconds, in 64 equal steps per power of
// two, so a value is known to 1.6 %.
const (
	digestSteps    = 64
	digestStepBits = 6
	digestTop      = 36 // 2^36 µs, about 19 h
	digestCells    = (digestTop - digestStepBits + 1) * digestSteps
)

// digestCell finds the cell of a latency.
func digestCell(d time.Duration) int {
	us := uint64(max(d, 0) / time.Microsecond)
	if us < digestSteps {
		return int(us)
	}
	us = min(us, 1<<digestTop-1)
	shift := bits.Len64(us) - digestStepBits - 1
	return (shift+1)*digestSteps + int(us>>shift) - digestSteps
}

// digestValue is the middle of a cell.
func digestValue(cell int) time.Duration {
	if cell < digestSteps {
		return time.Duration(cell) * time.Microsecond
	}
	shift := cell/digestSteps - 1
	low := uint64(cell%digestSteps+digestSteps) << shift
	return time.Duration(low+1<<shift/2) * time.Microsecond
}

// Digest knows the quantiles of the latencies of the last two to three windows,
// to 1.6 %, from 0 to 19 h; longer ones count as 19 h. It is safe for concurrent
// use. now is the time since some fixed moment.
type Digest struct {
	window time.Duration

	mu      sync.Mutex
	started time.Duration // of the newest window
	newest  int
	cells   [3][]uint32
	counts  [3]int
}

// NewDigest makes a digest over windows of the given length, 1 ms to 1 h.
func NewDigest(window time.Duration) (*Digest, error) {
	if window < time.Millisecond || window > time.Hour {
		return nil, fmt.Errorf("retry: digest window is %v; it must be between 1ms and 1h", window)
	}
	return &Digest{window: window}, nil
}

func (d *Digest) advance(now time.Duration) {
	passed := now - d.started
	if passed < d.window {
		return
	}
	n := int64(passed / d.window)
	d.started += time.Duration(n) * d.window
	for n = min(n, 3); n > 0; n-- {
		d.newest = (d.newest + 1) % 3
		clear(d.cells[d.newest])
		d.counts[d.newest] = 0
	}
}

// Record adds a latency.
func (d *Digest) Record(now, latency time.Duration) {
	cell := digestCell(latency)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.advance(now)
	cells := d.cells[d.newest]
	if cells == nil {
		cells = make([]uint32, digestCells)
		d.cells[d.newest] = cells
	}
	if cells[cell] < math.MaxUint32 {
		cells[cell]++
		d.counts[d.newest]++
	}
}

// Count returns how many latencies are known. Without current, those of the
// window that has not ended are left out.
func (d *Digest) Count(now time.Duration, current bool) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.advance(now)
	return d.count(current)
}

func (d *Digest) count(current bool) (n int) {
	for i, c := range d.counts {
		if current || i != d.newest {
			n += c
		}
	}
	return n
}

// Quantile returns the latency that a share q of all do not exceed, 0 ≤ q ≤ 1,
// and how many are known; 0 when none is. current is as for Count.
func (d *Digest) Quantile(now time.Duration, q float64, current bool) (latency time.Duration, known int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.advance(now)
	known = d.count(current)
	if known == 0 {
		return 0, 0
	}
	// A hair less, so that a rank which is whole in theory stays so.
	rank := max(int(math.Ceil(q*float64(known)-1e-9*float64(known))), 1)
	seen := 0
	for cell := range digestCells {
		for i, cells := range d.cells {
			if cells != nil && (current || i != d.newest) {
				seen += int(cells[cell])
			}
		}
		if seen >= rank {
			return digestValue(cell), known
		}
	}
	return digestValue(digestCells - 1), known
}
