package routing

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUniform_reachesEveryPartitionAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var got [5]int
	for range 50_000 {
		got[Uniform(5, rng.Uint64())]++
	}
	for p, n := range got {
		require.InDelta(t, 10_000, n, 500, p)
	}
	require.Zero(t, Uniform(5, 0))
	require.EqualValues(t, 4, Uniform(5, ^uint64(0)))
	require.Zero(t, Uniform(1, ^uint64(0)))
}

func share(n int32, choose func(random uint64) int32) []float64 {
	rng := rand.New(rand.NewPCG(3, 4))
	got := make([]float64, n)
	const draws = 40_000
	for range draws {
		got[choose(rng.Uint64())] += 1.0 / draws
	}
	return got
}

func requireShares(t *testing.T, want, got []float64) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.InDelta(t, want[i], got[i], 0.02, "%v", got)
	}
}

func TestFewest(t *testing.T) {
	requireShares(t, []float64{0, 0.5, 0, 0.5}, share(4, func(r uint64) int32 {
		// The second of two ties next to each other is met first more often; these are not.
		return Fewest([]int32{2, 1, 2, 1}, Uniform(4, r))
	}))
	requireShares(t, []float64{1. / 3, 1. / 3, 1. / 3}, share(3, func(r uint64) int32 { return Fewest([]int32{0, 0, 0}, Uniform(3, r)) }))
	require.EqualValues(t, 2, Fewest([]int32{5, 1, 0}, 0))
}
