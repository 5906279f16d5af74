package loadgen

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// subBits sets the resolution: every power of two of nanoseconds is split into
// 1<<subBits equal parts, so a quantile is at most 1/32 = 3 % too high.
const subBits = 5

// Histogram counts durations. It may be written and read by many goroutines; a
// reader may see a record's count before its sum.
type Histogram struct {
	buckets [(64 - subBits + 1) << subBits]atomic.Int64
	count   atomic.Int64
	sum     atomic.Int64
	max     atomic.Int64
}

// Record counts one duration; a negative one counts as 0.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	h.buckets[bucketOf(uint64(d))].Add(1)
	h.count.Add(1)
	h.sum.Add(int64(d))
	for {
		m := h.max.Load()
		if int64(d) <= m || h.max.CompareAndSwap(m, int64(d)) {
			return
		}
	}
}

// bucketOf is the bucket of v: below 1<<subBits one each, above that 1<<subBits
// per power of two.
func bucketOf(v uint64) int {
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return shift<<subBits + int(v>>shift)
}

// upperBound is the largest value of a bucket.
func upperBound(i int) uint64 {
	if i < 1<<(subBits+1) {
		return uint64(i)
	}
	shift := i>>subBits - 1
	top := uint64(i-shift<<subBits) + 1
	return top<<shift - 1
}

// Count returns how many durations were recorded.
func (h *Histogram) Count() int64 { return h.count.Load() }

// Quantile returns the duration that the share q of the records, 0 to 1, does
// not exceed; 0 when there is none.
func (h *Histogram) Quantile(q float64) time.Duration {
	total := h.count.Load()
	if total == 0 {
		return 0
	}
	rank := max(1, int64(math.Ceil(q*float64(total))))
	seen := int64(0)
	for i := range h.buckets {
		if seen += h.buckets[i].Load(); seen >= rank {
			return min(time.Duration(upperBound(i)), time.Duration(h.max.Load()))
		}
	}
	return time.Duration(h.max.Load())
}

// Quantiles sums up a histogram.
type Quantiles struct {
	Count                          int64
	Mean, P50, P90, P99, P999, Max time.Duration
}

// Quantiles returns the usual quantiles.
func (h *Histogram) Quantiles() Quantiles {
	q := Quantiles{
		Count: h.Count(), P50: h.Quantile(0.5), P90: h.Quantile(0.9), P99: h.Quantile(0.99), P999: h.Quantile(0.999),
		Max: time.Duration(h.max.Load()),
	}
	if q.Count > 0 {
		q.Mean = time.Duration(h.sum.Load() / q.Count)
	}
	return q
}
