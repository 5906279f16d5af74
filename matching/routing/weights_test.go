package routing

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoomWeights(t *testing.T) {
	for _, c := range []struct {
		name  string
		b     []int64
		n     int32
		limit int64
		want  []float64 // nil: none, all are alike
	}{
		{"in proportion to the room below the cap", []int64{0, 50, 100, 25}, 4, 100, []float64{4. / 9, 2. / 9, 0, 3. / 9}},
		{"of the first only", []int64{0, 50, 100, 25}, 2, 100, []float64{2. / 3, 1. / 3}},
		{"none when all are full", []int64{100, 200}, 2, 100, nil},
		{"none when some are not known", []int64{0}, 2, 100, nil},
		{"none without a cap", []int64{0, 100}, 2, 0, nil},
		{"none with a negative cap", []int64{0, 100}, 2, -1, nil},
		{"none without partitions", nil, 0, 100, nil},
		{"a negative backlog counts as none", []int64{-5, 50}, 2, 100, []float64{2. / 3, 1. / 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, ok := RoomWeights(c.n, c.b, c.limit)
			require.Equal(t, c.want != nil, ok)
			if ok {
				requireShares(t, c.want, share(c.n, w.Choose))
			}
		})
	}
	w, ok := RoomWeights(3, []int64{5, 5, 0}, 5)
	require.True(t, ok)
	require.EqualValues(t, 2, w.Choose(0), "one without room takes nothing")
	require.EqualValues(t, 2, w.Choose(math.MaxUint64))
}

func TestPollWeights(t *testing.T) {
	for _, c := range []struct {
		name  string
		b     []int64
		n     int32
		limit int64
		want  []float64
	}{
		{"backlog and floor", []int64{0, 96, 0}, 3, 1000, []float64{32. / 192, 128. / 192, 32. / 192}},
		{"alike", []int64{500, 500}, 2, 1000, []float64{0.5, 0.5}},
		{"a negative backlog counts as none", []int64{-5, 32}, 2, 1000, []float64{1. / 3, 2. / 3}},
		{"none when all are empty", []int64{0, 0}, 2, 100, nil},
		{"none when some are not known", []int64{5}, 2, 100, nil},
		{"none without a cap", []int64{5, 5}, 2, 0, nil},
		{"none when all are below zero", []int64{-5, 0}, 2, 100, nil},
		{"none without partitions", nil, 0, 100, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, _, ok := PollWeights(c.n, c.b, c.limit)
			require.Equal(t, c.want != nil, ok)
			if ok {
				requireShares(t, c.want, share(c.n, w.Choose))
			}
		})
	}
	w, bare, ok := PollWeights(3, []int64{0, 0, 5}, 5)
	require.True(t, ok)
	require.Zero(t, w.Choose(0))
	require.EqualValues(t, 2, w.Choose(math.MaxUint64))
	require.EqualValues(t, 2, bare.Choose(0), "one without backlog is not chosen by backlog alone")
}

func TestChoices_doNotAllocate(t *testing.T) {
	w, _, _ := PollWeights(4, []int64{1, 2, 3, 4}, 100)
	polls := []int32{1, 1, 1, 1}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		w.Choose(12345)
		Fewest(polls, 3)
	}))
}

func BenchmarkWeights_choose(b *testing.B) {
	backlogs := make([]int64, 4096)
	backlogs[3], backlogs[20] = 1000, 5000
	w, _, _ := PollWeights(4096, backlogs, 1000)
	b.ReportAllocs()
	var r uint64
	for b.Loop() {
		r += 0x9e3779b97f4a7c15
		w.Choose(r)
	}
}
