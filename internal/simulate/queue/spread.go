package queue

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/matching/routing"
	"github.com/switchyard-dev/switchyard/membership/ring"
)

// Spread is a cluster with many queues, whose partitions lie on its nodes.
type Spread struct {
	Nodes, Queues int
	// Largest is how many partitions the busiest queue has. The load of the others
	// falls with their rank (Zipf), and so does their number of partitions.
	Largest int
	// Load is that of all queues together, in tasks per second.
	Load float64
	// Batch is the size of the batches of spread routing, which is compared with basic
	// routing.
	Batch int
	// Lost is how many nodes are lost at once in the worst of the changes.
	Lost int
}

// DefaultSpread is the usual one.
func DefaultSpread() Spread {
	return Spread{Nodes: 1000, Queues: 100_000, Largest: matching.MaxPartitions, Load: 5_000_000, Batch: 8, Lost: 10}
}

// Check says what is wrong with a spread.
func (s Spread) Check() error {
	switch {
	case s.Nodes < 2 || s.Nodes > 10_000:
		return fmt.Errorf("nodes must be between 2 and 10,000, not %d", s.Nodes)
	case s.Queues < 1 || s.Queues > 1_000_000:
		return fmt.Errorf("queues must be between 1 and 1,000,000, not %d", s.Queues)
	case s.Largest < 1 || s.Largest > matching.MaxPartitions:
		return fmt.Errorf("partitions must be between 1 and %d, not %d", matching.MaxPartitions, s.Largest)
	case s.Batch < 1 || s.Batch > routing.MaxBatchSize:
		return fmt.Errorf("the batch must be between 1 and %d, not %d", routing.MaxBatchSize, s.Batch)
	case s.Lost < 1 || s.Lost >= s.Nodes:
		return fmt.Errorf("between 1 and all but one of the %d nodes can be lost, not %d", s.Nodes, s.Lost)
	case !(s.Load > 0):
		return fmt.Errorf("the load must be above 0, not %v", s.Load)
	}
	return nil
}

// SpreadResult is where the partitions are with one kind of routing.
type SpreadResult struct {
	Routing    string
	Batch      int
	Partitions int
	// By node: partitions, load in tasks per second, and partitions of the largest
	// queue.
	PerNode []int
	Load    []float64
	Largest []int
	// Changes of the cluster, each from the whole one.
	Changes []Change
}

// Change is what a change of the nodes does.
type Change struct {
	Name string
	// Moved partitions, and those of them that had to: they were on nodes that left.
	Moved, Forced int
	// Load is the share of all load that moved.
	Load float64
	// Busiest is the load of the busiest node afterwards, over the mean, and Most the
	// most partitions of the largest queue on one node.
	Busiest float64
	Most    int
}

// Busiest is the load of the busiest node over the mean.
func (r *SpreadResult) Busiest() float64 { return overMean(r.Load) }

func overMean(load []float64) float64 {
	sum, most := 0.0, 0.0
	for _, l := range load {
		sum += l
		most = math.Max(most, l)
	}
	if sum == 0 {
		return 0
	}
	return most / (sum / float64(len(load)))
}

// placed is one partition.
type placed struct {
	partition routing.Partition
	load      float64
	largest   bool
}

func (s Spread) partitions() []placed {
	sum := 0.0
	for i := range s.Queues {
		sum += 1 / float64(i+1)
	}
	// The busiest queue has the most partitions; the others have them for as much load.
	each := s.Load / sum / float64(s.Largest)
	var all []placed
	for i := range s.Queues {
		load := s.Load / sum / float64(i+1)
		n := int32(min(max(math.Round(load/each), 1), float64(s.Largest)))
		for p := range n {
			all = append(all, placed{routing.Partition{Namespace: "default", Queue: "queue-" + strconv.Itoa(i), Number: p}, load / float64(n), i == 0})
		}
	}
	return all
}

func names(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("10.%d.%d.%d:7070", i>>16, i>>8&255, i&255))
	}
	return out
}

// RunSpread places all partitions by basic and by spread routing. told hears of the
// progress, as a share.
func RunSpread(ctx context.Context, s Spread, told func(done float64)) ([]*SpreadResult, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	all := s.partitions()
	nodes := names(0, s.Nodes)
	index := map[string]int{}
	for i, n := range names(0, s.Nodes+1) {
		index[n] = i
	}
	changes := []struct {
		name  string
		nodes []string
		left  map[int]bool
	}{
		{"a node leaves", without(nodes, 1), lost(s.Nodes, 1)},
		{fmt.Sprintf("%d nodes are lost", s.Lost), without(nodes, s.Lost), lost(s.Nodes, s.Lost)},
		{"a node joins", names(0, s.Nodes+1), nil},
	}
	var results []*SpreadResult
	for k, batch := range []int{0, s.Batch} {
		r := &SpreadResult{Routing: "basic", Batch: batch, Partitions: len(all),
			PerNode: make([]int, s.Nodes), Load: make([]float64, s.Nodes), Largest: make([]int, s.Nodes)}
		if batch > 0 {
			r.Routing = "spread"
		}
		before, err := owners(ring.New(nodes), all, batch, index)
		if err != nil {
			return nil, err
		}
		for i, n := range before {
			r.PerNode[n]++
			r.Load[n] += all[i].load
			if all[i].largest {
				r.Largest[n]++
			}
		}
		for c, change := range changes {
			after, err := owners(ring.New(change.nodes), all, batch, index)
			if err != nil {
				return nil, err
			}
			out := Change{Name: change.name}
			load, largest := map[int]float64{}, map[int]int{}
			for i, n := range after {
				load[int(n)] += all[i].load
				if all[i].largest {
					largest[int(n)]++
				}
				if n != before[i] {
					out.Moved++
					out.Load += all[i].load / s.Load
				}
				if change.left[int(before[i])] {
					out.Forced++
				}
			}
			loads := make([]float64, 0, len(change.nodes))
			for _, n := range change.nodes {
				loads = append(loads, load[index[n]])
				out.Most = max(out.Most, largest[index[n]])
			}
			out.Busiest = overMean(loads)
			r.Changes = append(r.Changes, out)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			told((float64(k) + float64(c+1)/float64(len(changes))) / 2)
		}
		results = append(results, r)
	}
	return results, nil
}

// lost are the nodes that leave: evenly over all.
func lost(nodes, n int) map[int]bool {
	out := map[int]bool{}
	for i := range n {
		out[(2*i+1)*nodes/(2*n)] = true
	}
	return out
}

func without(nodes []string, n int) []string {
	gone := lost(len(nodes), n)
	var out []string
	for i, name := range nodes {
		if !gone[i] {
			out = append(out, name)
		}
	}
	return out
}

// owners is the node of each partition.
func owners(r *ring.Ring, all []placed, batch int, index map[string]int) ([]int32, error) {
	out := make([]int32, len(all))
	for i := range all {
		name, err := routing.Owner(r, all[i].partition, batch)
		if err != nil {
			return nil, err
		}
		out[i] = int32(index[name])
	}
	return out, nil
}
