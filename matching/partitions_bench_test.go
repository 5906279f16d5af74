package matching

import (
	"context"
	"fmt"
	"sort"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// BenchmarkPartitions measures how long a task is on its way from its add to a
// worker with few polls, by the number of partitions.
func BenchmarkPartitions(b *testing.B) {
	for _, rate := range []int{100, 2000} {
		for _, polls := range []int{1, 4} {
			for _, n := range []int{1, 4, 16} {
				b.Run(fmt.Sprintf("rate=%d/polls=%d/partitions=%d", rate, polls, n), func(b *testing.B) {
					f := newFixture(b, newStore(b, ""), nil)
					f.makeQueue("q", n)
					ctx, stop := context.WithCancel(f.ctx)
					took := make(chan time.Duration, 1<<20)
					done := make(chan struct{}, polls)
					for range polls {
						go func() {
							defer func() { done <- struct{}{} }()
							f.work(ctx, "q", 10, 20*time.Second, func(t *v1.LeasedTask) {
								took <- time.Since(t.GetAddedAt().AsTime())
							})
						}()
					}
					tick := time.NewTicker(time.Second / time.Duration(rate))
					b.ResetTimer()
					for i := range b.N {
						<-tick.C
						go f.add("q", spec(fmt.Sprint(i)))
					}
					all := make([]time.Duration, 0, b.N)
					for range b.N {
						all = append(all, <-took)
					}
					b.StopTimer()
					tick.Stop()
					stop()
					for range polls {
						<-done
					}
					sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
					b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
					b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
				})
			}
		}
	}
}
