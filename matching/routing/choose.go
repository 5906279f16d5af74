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
