package server

import (
	"context"
	"encoding/binary"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/frontend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tinyCore is a backend for tests of what stands before the real one: a list of
// tasks per queue, in memory.
type tinyCore struct {
	frontend.Backend // calls that no test makes

	mu      sync.Mutex
	changed chan struct{}
	ready   map[string][]*v1.TaskSpec
	leased  map[string]*v1.TaskSpec
	next    uint64
	status  error
	stopped int
	polling chan struct{} // gets a value when a poll starts to wait

	onAdd func(context.Context) error
}

func newTinyCore() *tinyCore {
	return &tinyCore{
		changed: make(chan struct{}), ready: map[string][]*v1.TaskSpec{}, leased: map[string]*v1.TaskSpec{},
		polling: make(chan struct{}, 100),
	}
}

func (c *tinyCore) Cluster() v1.ClusterServiceServer { return nil }

func (c *tinyCore) Status() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *tinyCore) setStatus(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = err
}

func (c *tinyCore) Stop(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped++
	return nil
}

func (c *tinyCore) AddTasks(ctx context.Context, req *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
	if c.onAdd != nil {
		if err := c.onAdd(ctx); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &v1.AddTasksResponse{Results: make([]*v1.AddTasksResponse_Result, len(req.Tasks))}
	for i, t := range req.Tasks {
		resp.Results[i] = &v1.AddTasksResponse_Result{Id: t.Id}
	}
	c.ready[req.Queue] = append(c.ready[req.Queue], req.Tasks...)
	close(c.changed)
	c.changed = make(chan struct{})
	return resp, nil
}

func (c *tinyCore) PollTasks(ctx context.Context, req *v1.PollTasksRequest) (*v1.PollTasksResponse, error) {
	end := time.NewTimer(req.Wait.AsDuration())
	defer end.Stop()
	for {
		c.mu.Lock()
		if ready := c.ready[req.Queue]; len(ready) > 0 {
			n := min(len(ready), int(req.MaxTasks))
			resp := &v1.PollTasksResponse{}
			for _, t := range ready[:n] {
				c.next++
				token := binary.BigEndian.AppendUint64(nil, c.next)
				c.leased[string(token)] = t
				resp.Tasks = append(resp.Tasks, &v1.LeasedTask{Id: t.Id, Kind: t.Kind, Payload: t.Payload, LeaseToken: token})
			}
			c.ready[req.Queue] = ready[n:]
			c.mu.Unlock()
			return resp, nil
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case c.polling <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-end.C:
			return &v1.PollTasksResponse{}, nil
		}
	}
}

func (c *tinyCore) CompleteTasks(_ context.Context, req *v1.CompleteTasksRequest) (*v1.CompleteTasksResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &v1.CompleteTasksResponse{}
	for _, token := range req.LeaseTokens {
		r := &v1.ItemResult{}
		if c.leased[string(token)] == nil {
			r.Error = reason.Item(reason.New(codes.FailedPrecondition, reason.LeaseLost, nil, "the lease is lost"))
		}
		delete(c.leased, string(token))
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

func (c *tinyCore) DescribeQueue(_ context.Context, req *v1.DescribeQueueRequest) (*v1.DescribeQueueResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.ready[req.Queue]; !ok {
		return nil, reason.New(codes.NotFound, reason.QueueNotFound, map[string]string{"queue": req.Queue},
			"queue %q does not exist", req.Queue)
	}
	return &v1.DescribeQueueResponse{Queue: &v1.Queue{Name: req.Queue}, Counts: &v1.QueueCounts{Ready: int64(len(c.ready[req.Queue]))}}, nil
}

// start runs a node on a free port with a core, and stops it at the test's end.
func start(t testing.TB, core core, change func(*Config)) *Server {
	t.Helper()
	s, stop := startUntil(t, core, change)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("the node did not stop cleanly: %v", err)
		}
	})
	return s
}

// startUntil runs a node until the function that it returns is called.
func startUntil(t testing.TB, node core, change func(*Config)) (*Server, func() error) {
	t.Helper()
	c := DefaultConfig()
	c.Listen = "127.0.0.1:0"
	c.Memory = true
	if change != nil {
		change(&c)
	}
	s, err := newServer(c, nil, func(Config, *slog.Logger, prometheus.Registerer) (core, error) { return node, nil })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, func() error { cancel(); return <-done }
}
