package frontend_test

import (
	"context"
	"sync"
	"testing"

	"go.uber.org/goleak"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/frontend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a backend that keeps the requests it got and answers every item
// with success, or as its functions say.
type recorder struct {
	frontend.Backend // nil: calls that a test does not expect panic

	mu       sync.Mutex
	adds     []*v1.AddTasksRequest
	polls    []*v1.PollTasksRequest
	ends     []*v1.CompleteTasksRequest
	fails    []*v1.FailTasksRequest
	extends  []*v1.ExtendLeasesRequest
	releases []*v1.ReleaseTasksRequest
	lists    []*v1.ListQueuesRequest
	gets     []*v1.GetTaskRequest

	add  func(context.Context, *v1.AddTasksRequest) (*v1.AddTasksResponse, error)
	poll func(context.Context, *v1.PollTasksRequest) (*v1.PollTasksResponse, error)
}

func (r *recorder) AddTasks(ctx context.Context, req *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
	r.mu.Lock()
	r.adds = append(r.adds, req)
	r.mu.Unlock()
	if r.add != nil {
		return r.add(ctx, req)
	}
	resp := &v1.AddTasksResponse{}
	for _, t := range req.Tasks {
		resp.Results = append(resp.Results, &v1.AddTasksResponse_Result{Id: t.Id})
	}
	return resp, nil
}

func (r *recorder) PollTasks(ctx context.Context, req *v1.PollTasksRequest) (*v1.PollTasksResponse, error) {
	r.mu.Lock()
	r.polls = append(r.polls, req)
	r.mu.Unlock()
	if r.poll != nil {
		return r.poll(ctx, req)
	}
	return &v1.PollTasksResponse{}, nil
}

func (r *recorder) CompleteTasks(_ context.Context, req *v1.CompleteTasksRequest) (*v1.CompleteTasksResponse, error) {
	r.ends = append(r.ends, req)
	return &v1.CompleteTasksResponse{Results: itemResults(len(req.LeaseTokens))}, nil
}

func (r *recorder) ReleaseTasks(_ context.Context, req *v1.ReleaseTasksRequest) (*v1.ReleaseTasksResponse, error) {
	r.releases = append(r.releases, req)
	return &v1.ReleaseTasksResponse{Results: itemResults(len(req.LeaseTokens))}, nil
}

func itemResults(n int) []*v1.ItemResult {
	results := make([]*v1.ItemResult, n)
	for i := range results {
		results[i] = &v1.ItemResult{}
	}
	return results
}

func (r *recorder) FailTasks(_ context.Context, req *v1.FailTasksRequest) (*v1.FailTasksResponse, error) {
	r.fails = append(r.fails, req)
	resp := &v1.FailTasksResponse{}
	for range req.Failures {
		resp.Results = append(resp.Results, &v1.FailTasksResponse_Result{State: v1.TaskState_TASK_STATE_RETRYING})
	}
	return resp, nil
}

func (r *recorder) ExtendLeases(_ context.Context, req *v1.ExtendLeasesRequest) (*v1.ExtendLeasesResponse, error) {
	r.extends = append(r.extends, req)
	resp := &v1.ExtendLeasesResponse{}
	for range req.Extensions {
		resp.Results = append(resp.Results, &v1.ExtendLeasesResponse_Result{})
	}
	return resp, nil
}

func (r *recorder) GetTask(_ context.Context, req *v1.GetTaskRequest) (*v1.GetTaskResponse, error) {
	r.gets = append(r.gets, req)
	return &v1.GetTaskResponse{}, nil
}

func (r *recorder) ListQueues(_ context.Context, req *v1.ListQueuesRequest) (*v1.ListQueuesResponse, error) {
	r.lists = append(r.lists, req)
	return &v1.ListQueuesResponse{}, nil
}

func newFrontend(t testing.TB, b frontend.Backend, change func(*frontend.Limits)) *frontend.Frontend {
	t.Helper()
	l := frontend.DefaultLimits()
	if change != nil {
		change(&l)
	}
	f, err := frontend.New(frontend.Options{Backend: b, Limits: l})
	if err != nil {
		t.Fatal(err)
	}
	return f
}
