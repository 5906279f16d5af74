package rebalancer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/shard"
)

// Set is a replica set as its master tells.
type Set struct {
	// Name of the replica set.
	Name string
	// Weight is the replica set's share of the buckets, in proportion to the others'; at least 0, and 0
	// drains it.
	Weight float64
	// Locked: it neither sends nor receives buckets.
	Locked bool
	// Off: nothing is to be rebalanced, in the whole cluster. One set that says so is enough.
	Off bool
	// Counts of buckets by state.
	Counts [shard.Garbage + 1]int
	// Bytes of all its rows, about; 0 when not known.
	Bytes int64
	// Err is why it did not answer; then nothing else but Name is known.
	Err error
}

// Owned is how many buckets the replica set owns.
func (s *Set) Owned() int {
	return s.Counts[shard.Active] + s.Counts[shard.Pinned] + s.Counts[shard.ReadOnly] + s.Counts[shard.Sending]
}

// moving is how many buckets are seen on their way to or from the replica set.
func (s *Set) moving() int { return s.Counts[shard.Sending] + s.Counts[shard.Receiving] }

// Perfect returns how many buckets each of the sets should own, in the order of sets; of a locked one
// what it owns. The numbers add up to all that are owned. Where a share is not a whole number, it is
// rounded so that as few buckets as possible move. A set with more pinned buckets than its share keeps
// those, and the others share the rest.
//
// INVALID_CFG: a weight is negative or not a number, or all are 0 and there are buckets to place.
func Perfect(sets []Set) ([]int, error) {
	perfect := make([]int, len(sets))
	open := make([]int, 0, len(sets)) // those that share
	total, weights := 0, 0.0
	for i := range sets {
		s := &sets[i]
		if !(s.Weight >= 0) || math.IsInf(s.Weight, 1) {
			return nil, &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.Name,
				Reason: fmt.Sprintf("the weight %v is not a number from 0 up", s.Weight)}
		}
		if s.Locked {
			perfect[i] = s.Owned()
			continue
		}
		open = append(open, i)
		total += s.Owned()
		weights += s.Weight
	}
	if total == 0 {
		return perfect, nil
	}
	if !(weights > 0) || math.IsInf(weights, 1) {
		return nil, &shard.Error{Code: shard.InvalidConfig,
			Reason: fmt.Sprintf("the weights of all replica sets that are not locked add up to %v, so their %d buckets have no place",
				weights, total)}
	}
	for {
		var fixed, fixedWeight = 0, 0.0
		rest := open[:0]
		for _, i := range open {
			if pinned := sets[i].Counts[shard.Pinned]; float64(pinned) > share(total, sets[i].Weight, weights)+dust {
				perfect[i] = pinned
				fixed += pinned
				fixedWeight += sets[i].Weight
			} else {
				rest = append(rest, i)
			}
		}
		open = rest
		if fixed == 0 {
			break
		}
		total -= fixed
		weights = 0 // added up anew: subtracting would leave dirt in the last digits
		for _, i := range open {
			weights += sets[i].Weight
		}
	}
	round(sets, open, perfect, total, weights)
	return perfect, nil
}

// dust is what shares may be off by because they are floating-point numbers.
const dust = 1e-9

func share(total int, weight, weights float64) float64 {
	if weight == 0 {
		return 0
	}
	return float64(total) * (weight / weights)
}

// round gives every open set the whole part of its share, and what is left one by one: first to those
// that have that bucket already, then to those with the largest fraction.
func round(sets []Set, open, perfect []int, total int, weights float64) {
	left := total
	for _, i := range open {
		perfect[i] = int(share(total, sets[i].Weight, weights) + dust)
		left -= perfect[i]
	}
	fraction := func(i int) float64 { return share(total, sets[i].Weight, weights) - float64(perfect[i]) }
	order := slices.Clone(open)
	slices.SortFunc(order, func(a, b int) int {
		hasA, hasB := sets[a].Owned() > perfect[a], sets[b].Owned() > perfect[b]
		if eligibleA, eligibleB := fraction(a) > dust, fraction(b) > dust; eligibleA != eligibleB {
			return first(eligibleA)
		}
		if hasA != hasB {
			return first(hasA)
		}
		if fa, fb := fraction(a), fraction(b); fa != fb {
			return first(fa > fb)
		}
		return strings.Compare(sets[a].Name, sets[b].Name)
	})
	// Once round is enough, but for dust.
	for range 2 {
		for _, i := range order {
			if left > 0 && sets[i].Weight > 0 {
				perfect[i]++
				left--
			}
		}
	}
}

func first(yes bool) int {
	if yes {
		return -1
	}
	return 1
}

// Imbalance returns how far the worst of the sets is from its perfect count, in percent of that;
// infinite when a set has buckets and should have none.
func Imbalance(sets []Set, perfect []int) float64 {
	worst := 0.0
	for i := range sets {
		switch owned := sets[i].Owned(); {
		case owned == perfect[i]:
		case perfect[i] == 0:
			return math.Inf(1)
		default:
			worst = max(worst, math.Abs(float64(owned-perfect[i]))/float64(perfect[i])*100)
		}
	}
	return worst
}
