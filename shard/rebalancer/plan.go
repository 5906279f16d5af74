package rebalancer

import (
	"cmp"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/shard"
)

// Bucket is one that can be moved.
type Bucket struct {
	ID shard.BucketID
	// Bytes of its rows, about; negative when not known.
	Bytes int64
}

// Flow says that Count buckets go from one replica set to another.
type Flow struct {
	Source, Destination string
	Count               int
}

// Flows returns which replica sets have to send how many buckets to which, so that all have their
// perfect counts. No bucket goes further than one step, and no set both sends and receives, so fewer
// moves are not possible.
func Flows(sets []Set, perfect []int) []Flow {
	type excess struct {
		name string
		n    int
	}
	var over, under []excess
	for i := range sets {
		switch d := sets[i].Owned() - perfect[i]; {
		case d > 0:
			over = append(over, excess{sets[i].Name, d})
		case d < 0:
			under = append(under, excess{sets[i].Name, -d})
		}
	}
	// The largest to the largest: few routes, and the longest queues begin at once.
	largest := func(a, b excess) int { return cmp.Or(cmp.Compare(b.n, a.n), strings.Compare(a.name, b.name)) }
	slices.SortFunc(over, largest)
	slices.SortFunc(under, largest)
	var flows []Flow
	for len(over) > 0 && len(under) > 0 {
		n := min(over[0].n, under[0].n)
		flows = append(flows, Flow{over[0].name, under[0].name, n})
		if over[0].n -= n; over[0].n == 0 {
			over = over[1:]
		}
		if under[0].n -= n; under[0].n == 0 {
			under = under[1:]
		}
	}
	return flows
}

// Route is a Flow with its buckets, the smallest first.
type Route struct {
	Source, Destination string
	Buckets             []Bucket
}

// MakePlan chooses the buckets of flows that have one source: from movable, what that source can move.
// It takes a sample that is fair by size, so that the destinations get their share of small and of
// large buckets. When movable has too few, the last flows get less.
func MakePlan(flows []Flow, movable []Bucket) []Route {
	want := 0
	for _, f := range flows {
		want += f.Count
	}
	bySize := slices.Clone(movable)
	slices.SortFunc(bySize, func(a, b Bucket) int { return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.ID, b.ID)) })
	n := min(want, len(bySize))
	chosen := make([]Bucket, n)
	for i := range chosen {
		// The middle of the i-th of n equal parts.
		chosen[i] = bySize[(2*i+1)*len(bySize)/(2*n)]
	}
	routes := make([]Route, len(flows))
	for i, f := range flows {
		routes[i] = Route{Source: f.Source, Destination: f.Destination, Buckets: make([]Bucket, 0, min(f.Count, n))}
	}
	// Dealt out in turn, so that the flows too get fair shares.
	for i, turn := 0, 0; i < n; turn = (turn + 1) % len(flows) {
		if r := &routes[turn]; len(r.Buckets) < flows[turn].Count {
			r.Buckets = append(r.Buckets, chosen[i])
			i++
		}
	}
	return slices.DeleteFunc(routes, func(r Route) bool { return len(r.Buckets) == 0 })
}
