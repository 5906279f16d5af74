package loadgen

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHistogram_bucketsFollowEachOtherWithoutGap(t *testing.T) {
	require.Equal(t, 0, bucketOf(0))
	for i := range len((&Histogram{}).buckets) - 1 {
		last := upperBound(i)
		require.Equal(t, i, bucketOf(last), "the largest value of bucket %d", i)
		require.Equal(t, i+1, bucketOf(last+1), "the value after bucket %d", i)
	}
	require.Less(t, bucketOf(math.MaxUint64), len((&Histogram{}).buckets))
}

func TestHistogram_quantilesAreCloseAndNotTooLow(t *testing.T) {
	var h Histogram
	r := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for range 20000 {
		d := time.Duration(math.Exp(r.Float64()*12) * 1000)
		all = append(all, d)
		h.Record(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		exact := all[max(0, int(math.Ceil(q*float64(len(all))))-1)]
		got := h.Quantile(q)
		require.GreaterOrEqual(t, got, exact, "q=%v", q)
		require.LessOrEqual(t, float64(got), float64(exact)*1.04, "q=%v", q)
	}
	require.Equal(t, all[len(all)-1], h.Quantiles().Max)
	require.Equal(t, int64(20000), h.Quantiles().Count)
}

func TestHistogram_isZeroWhenEmpty(t *testing.T) {
	require.Equal(t, Quantiles{}, (&Histogram{}).Quantiles())
}
