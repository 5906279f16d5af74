package server

import (
	"context"
	"strconv"
	"sync"
	"testing"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// sinkCore takes tasks and forgets them.
type sinkCore struct{ *tinyCore }

func (sinkCore) AddTasks(_ context.Context, req *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
	resp := &v1.AddTasksResponse{Results: make([]*v1.AddTasksResponse_Result, len(req.Tasks))}
	for i, t := range req.Tasks {
		resp.Results[i] = &v1.AddTasksResponse_Result{Id: t.Id}
	}
	return resp, nil
}

// BenchmarkAdd measures what the wire and the frontend cost, from a client in
// the same process and with nothing behind the frontend.
func BenchmarkAdd(b *testing.B) {
	for _, c := range []struct{ callers, tasks int }{{1, 1}, {64, 1}, {1, 1000}} {
		b.Run("callers="+strconv.Itoa(c.callers)+"/tasks="+strconv.Itoa(c.tasks), func(b *testing.B) {
			s := start(b, sinkCore{newTinyCore()}, nil)
			client := v1.NewTaskServiceClient(connect(b, s))
			req := &v1.AddTasksRequest{Queue: "q"}
			for range c.tasks {
				req.Tasks = append(req.Tasks, &v1.TaskSpec{Id: "01968d5c-1f2a-7b3c-8d4e-5f6a7b8c9d0e", Kind: "k", Payload: make([]byte, 256)})
			}
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range c.callers {
				n := b.N / c.callers
				if i < b.N%c.callers {
					n++
				}
				wg.Go(func() {
					for range n {
						if _, err := client.AddTasks(context.Background(), req); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N*c.tasks)/b.Elapsed().Seconds(), "tasks/s")
		})
	}
}
