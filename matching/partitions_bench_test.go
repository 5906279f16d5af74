package matching

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// BenchmarkPartitions measures how long a task is on its way from its add to a worker
// with few polls, without the SDK and without a disk, by the number of partitions: side
// by side, so that what disturbs one disturbs all. With three nodes the partitions lie
// on all of them, and calls between them cost nothing but their rules.
func BenchmarkPartitions(b *testing.B) {
	for _, nodes := range []int{1, 3} {
		for _, rate := range []int{100, 1000} {
			for _, polls := range []int{1, 4} {
				b.Run(fmt.Sprintf("nodes=%d/rate=%d/polls=%d", nodes, rate, polls), func(b *testing.B) { benchPartitions(b, nodes, rate, polls) })
			}
		}
	}
}

func benchPartitions(b *testing.B, nodes, rate, polls int) {
	_, fs := newCluster(b, nodes, func(id PartitionID) int { return int(id.Number) % nodes }, nil)
	f := fs[0]
	partitions := []int{1, 4, 16}
	took := make([][]time.Duration, len(partitions))
	ctx, stop := context.WithCancel(f.ctx)
	var workers, arrive sync.WaitGroup
	var mu sync.Mutex
	for i, n := range partitions {
		f.makeQueue(fmt.Sprint(n), n)
		for range polls {
			workers.Go(func() {
				f.work(ctx, fmt.Sprint(n), 10, 20*time.Second, func(t *v1.LeasedTask) {
					mu.Lock()
					took[i] = append(took[i], time.Since(t.GetAddedAt().AsTime()))
					mu.Unlock()
					arrive.Done()
				})
			})
		}
	}
	round := func() {
		var adds sync.WaitGroup
		arrive.Add(len(partitions))
		for _, i := range rand.Perm(len(partitions)) {
			adds.Go(func() {
				time.Sleep(time.Duration(rand.Int64N(2 * int64(time.Second) / int64(rate))))
				f.add(fmt.Sprint(partitions[i]), spec(""))
			})
		}
		time.Sleep(time.Second / time.Duration(rate))
		adds.Wait()
	}
	for range 200 { // everything is loaded
		round()
	}
	arrive.Wait()
	clear(took)
	b.ResetTimer()
	for range b.N {
		round()
	}
	arrive.Wait()
	b.StopTimer()
	stop()
	workers.Wait()
	at := func(i int, part float64) float64 {
		slices.Sort(took[i])
		return float64(took[i][int(part*float64(len(took[i])-1))].Nanoseconds()) / 1e3
	}
	for i, n := range partitions {
		b.ReportMetric(at(i, 0.5), fmt.Sprintf("p50-us/%d", n))
		b.ReportMetric(at(i, 0.99), fmt.Sprintf("p99-us/%d", n))
		if i > 0 {
			b.ReportMetric(at(i, 0.99)/at(0, 0.99), fmt.Sprintf("p99-ratio/%d", n))
		}
	}
}
