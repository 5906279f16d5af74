package routing

import (
	"slices"
	"sort"
)

// Weights choose one of several partitions in proportion to a weight of each. They are
// made once for the backlogs that are known and chosen from many times. They do not
// change; all methods may be called from any goroutine.
type Weights struct {
	sums []uint64 // of the weights up to and with each partition
}

// PollWeights are those of polls, given the backlog of each partition: the backlog and a
// Floor, so that no partition is left without polls. A poll that has just found a partition
// empty goes on by bare, the backlog alone. They return false when there is no cap (limit),
// the backlogs of some of the n partitions are not known, or all are empty: polls are chosen
// by outstanding polls then. Negative backlogs count as none.
func PollWeights(n int32, backlogs []int64, limit int64) (floored, bare Weights, ok bool) {
	if limit <= 0 || n < 1 || len(backlogs) < int(n) || slices.Max(backlogs[:n]) <= 0 {
		return Weights{}, Weights{}, false
	}
	backlogs = backlogs[:n]
	floored = weights(backlogs, func(b int64) uint64 { return uint64(max(b, 0)) + Floor })
	bare = weights(backlogs, func(b int64) uint64 { return uint64(max(b, 0)) })
	return floored, bare, true
}

// RoomWeights are those of new tasks: the room that is left below the cap (limit). It returns
// false when there is no cap, the backlogs of some of the n partitions are not known, or none
// has room: all partitions are alike then.
func RoomWeights(n int32, backlogs []int64, limit int64) (Weights, bool) {
	if limit <= 0 || n < 1 || len(backlogs) < int(n) || slices.Min(backlogs[:n]) >= limit {
		return Weights{}, false
	}
	return weights(backlogs[:n], func(b int64) uint64 { return uint64(limit - min(max(b, 0), limit)) }), true
}

func weights(backlogs []int64, weight func(int64) uint64) Weights {
	w := Weights{sums: make([]uint64, len(backlogs))}
	var sum uint64
	for p, b := range backlogs {
		sum += weight(b)
		w.sums[p] = sum
	}
	return w
}

// Choose returns the partition that 64 random bits fall on. It takes logarithmic time and
// does not allocate.
func (w Weights) Choose(random uint64) int32 {
	at := scale(random, w.sums[len(w.sums)-1])
	return int32(sort.Search(len(w.sums), func(p int) bool { return at < w.sums[p] }))
}
