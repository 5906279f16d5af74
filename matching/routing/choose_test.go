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

func of(backlogs ...int64) func(int32) int64 { return func(p int32) int64 { return backlogs[p] } }

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

func TestByRoom(t *testing.T) {
	for _, c := range []struct {
		name  string
		b     []int64
		known int
		limit int64
		want  []float64
	}{
		{"in proportion to the room below the cap", []int64{0, 50, 100, 25}, 4, 100, []float64{4. / 9, 2. / 9, 0, 3. / 9}},
		{"uniform when all are full", []int64{100, 200}, 2, 100, []float64{0.5, 0.5}},
		{"uniform when some are not known", []int64{0, 100}, 1, 100, []float64{0.5, 0.5}},
		{"uniform without a cap", []int64{0, 100}, 2, 0, []float64{0.5, 0.5}},
		{"a negative backlog counts as none", []int64{-5, 50}, 2, 100, []float64{2. / 3, 1. / 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := int32(len(c.b))
			requireShares(t, c.want, share(n, func(r uint64) int32 { return ByRoom(n, of(c.b...), c.known, c.limit, r) }))
		})
	}
	require.EqualValues(t, 2, ByRoom(3, of(5, 5, 0), 3, 5, ^uint64(0)), "the last with room takes the largest random number")
}

func TestByBacklog(t *testing.T) {
	choose := func(b ...int64) func(uint64) int32 {
		return func(r uint64) int32 {
			p, ok := ByBacklog(int32(len(b)), of(b...), len(b), 1000, r)
			require.True(t, ok)
			return p
		}
	}
	requireShares(t, []float64{32. / 192, 128. / 192, 32. / 192}, share(3, choose(0, 96, 0)))
	requireShares(t, []float64{0.5, 0.5}, share(2, choose(500, 500)))
	for _, c := range []struct {
		b     []int64
		known int
		limit int64
	}{{[]int64{0, 0}, 2, 100}, {[]int64{5, 5}, 1, 100}, {[]int64{5, 5}, 2, 0}, {[]int64{-5, 0}, 2, 100}} {
		_, ok := ByBacklog(2, of(c.b...), c.known, c.limit, 7)
		require.False(t, ok, "%+v", c)
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

func TestChoices_doNotAllocate(t *testing.T) {
	backlogs, polls := []int64{1, 2, 3, 4}, []int32{1, 1, 1, 1}
	get := func(p int32) int64 { return backlogs[p] }
	require.Zero(t, testing.AllocsPerRun(100, func() {
		ByRoom(4, get, 4, 100, 12345)
		ByBacklog(4, get, 4, 100, 12345)
		Fewest(polls, 3)
	}))
}

func BenchmarkByBacklog(b *testing.B) {
	backlogs := make([]int64, 32)
	backlogs[3], backlogs[20] = 1000, 5000
	b.ReportAllocs()
	var r uint64
	for b.Loop() {
		r += 0x9e3779b97f4a7c15
		ByBacklog(32, func(p int32) int64 { return backlogs[p] }, 32, 1000, r)
	}
}
