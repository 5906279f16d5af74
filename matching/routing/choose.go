package routing

import "math/bits"

// Floor is what a partition's backlog counts for at least when polls are chosen by
// backlog, so that no partition is left without polls: the smallest backlog that one
// byte can tell from none.
const Floor = 32

// scale maps 64 random bits onto 0 to n - 1, evenly but for a part in 2^64/n.
func scale(random, n uint64) uint64 {
	high, _ := bits.Mul64(random, n)
	return high
}

// Uniform chooses one of n partitions by 64 random bits; n must be at least 1.
func Uniform(n int32, random uint64) int32 { return int32(scale(random, uint64(n))) }

// ByRoom chooses the partition, of n, for a task by the backlogs of all: in proportion to
// the room that is left below cap. It is Uniform when there is no cap, the backlogs of
// some are not known, or none has room. Negative backlogs count as none.
func ByRoom(n int32, backlog func(p int32) int64, known int, limit int64, random uint64) int32 {
	if limit <= 0 || known < int(n) {
		return Uniform(n, random)
	}
	var total uint64
	for p := range n {
		total += room(backlog(p), limit)
	}
	if total == 0 {
		return Uniform(n, random)
	}
	at := scale(random, total)
	for p := range n {
		r := room(backlog(p), limit)
		if at < r {
			return p
		}
		at -= r
	}
	panic("routing: the room changed while it was counted")
}

func room(backlog, limit int64) uint64 { return uint64(limit - min(max(backlog, 0), limit)) }

// ByBacklog chooses the partition, of n, for a poll by the backlogs of all: in proportion
// to the backlog and a Floor. It returns false when there is no cap, the backlogs of some
// are not known, or all are empty: the caller chooses by outstanding polls then.
func ByBacklog(n int32, backlog func(p int32) int64, known int, limit int64, random uint64) (int32, bool) {
	if limit <= 0 || known < int(n) {
		return 0, false
	}
	var total uint64
	some := false
	for p := range n {
		b := max(backlog(p), 0)
		some = some || b > 0
		total += uint64(b) + Floor
	}
	if !some {
		return 0, false
	}
	at := scale(random, total)
	for p := range n {
		w := uint64(max(backlog(p), 0)) + Floor
		if at < w {
			return p, true
		}
		at -= w
	}
	panic("routing: the backlogs changed while they were counted")
}

// Fewest chooses the partition with the fewest outstanding polls: of those with as few, the
// first from start on, which is 0 to len(polls) - 1. A start that goes on from choice to choice
// polls all partitions as often; a random one lets their backlogs drift apart. It looks no
// further than the first that has none. polls must not be empty.
func Fewest(polls []int32, start int32) int32 {
	n, best := int32(len(polls)), start
	for i, p := int32(0), start; i < n && polls[best] > 0; i, p = i+1, (p+1)%n {
		if polls[p] < polls[best] {
			best = p
		}
	}
	return best
}
