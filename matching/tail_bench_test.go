package matching

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// BenchmarkTail measures how long 1,600 tasks over 16 partitions on three nodes take to
// reach one poll that always comes to the same partition, by the tasks it takes at a
// time: none but those of that partition are found without forwarding.
func BenchmarkTail(b *testing.B) {
	for _, most := range []int{1, 10} {
		b.Run(fmt.Sprintf("most=%d", most), func(b *testing.B) {
			_, fs := newCluster(b, 3, func(id PartitionID) int { return int(id.Number) % 3 }, nil)
			f := fs[0]
			f.makeQueue("q", 16)
			var last, all time.Duration
			for range b.N {
				var adds sync.WaitGroup
				for range 16 {
					adds.Go(func() {
						for range 100 {
							f.add("q", spec(""))
						}
					})
				}
				adds.Wait()
				begin := time.Now()
				for n := 0; n < 1600; {
					resp, err := fs[5%3].PartitionPollTasks(context.Background(), &v1.PartitionPollTasksRequest{
						Header: &v1.PartitionHeader{Partition: 5}, Request: pollRequest("q", most, 20*time.Second)})
					require.NoError(b, err)
					tasks := resp.GetResponse().GetTasks()
					f.complete("q", tasks...)
					n += len(tasks)
				}
				last = time.Since(begin)
				all += last
			}
			b.ReportMetric(all.Seconds()/float64(b.N), "s")
		})
	}
}
