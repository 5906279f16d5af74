package server

import (
	"context"
	"fmt"
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

// BenchmarkAdd measures adding over the wire from a client in the same process:
// with nothing behind the frontend, which is what the wire and the frontend cost,
// and with a whole node on disk.
func BenchmarkAdd(b *testing.B) {
	for _, behind := range []string{"nothing", "node"} {
		for _, c := range []struct{ callers, tasks int }{{1, 1}, {64, 1}, {1, 1000}} {
			b.Run(fmt.Sprintf("behind=%s/callers=%d/tasks=%d", behind, c.callers, c.tasks), func(b *testing.B) {
				var s *Server
				var stop func() error
				if behind == "node" {
					s, stop = startReal(b, nil)
				} else {
					s, stop = startUntil(b, sinkCore{newTinyCore()}, nil)
				}
				defer func() {
					if err := stop(); err != nil {
						b.Error(err)
					}
				}()
				benchmarkAdd(b, s, c.callers, c.tasks)
			})
		}
	}
}

func benchmarkAdd(b *testing.B, s *Server, callers, tasks int) {
	client := v1.NewTaskServiceClient(connect(b, s))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range callers {
		n := b.N / callers
		if i < b.N%callers {
			n++
		}
		wg.Go(func() {
			req := &v1.AddTasksRequest{Queue: "q"} // without ids: the server makes them
			for range tasks {
				req.Tasks = append(req.Tasks, &v1.TaskSpec{Kind: "k", Payload: make([]byte, 256)})
			}
			for range n {
				if _, err := client.AddTasks(context.Background(), req); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N*tasks)/b.Elapsed().Seconds(), "tasks/s")
	b.StopTimer()
}
