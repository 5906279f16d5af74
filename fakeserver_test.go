package switchyard

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// fakeServer is a small server of the wire with its tasks in memory. It is
// honest: it leases, expires, retries and refuses as the real one. On top it
// counts requests, can be slow as a disk is, and can fail on order.
type fakeServer struct {
	v1.UnimplementedTaskServiceServer
	v1.UnimplementedQueueServiceServer

	address string
	server  *grpc.Server
	// syncTime is how long a write to disk takes; all requests that wait when it
	// starts share it.
	syncTime time.Duration
	// before and after are asked around each request; an error is returned to
	// the caller, by after when the request has taken effect. May be nil.
	before, after func(method string, request any) error
	// item may return an error for one item of AddTasks or CompleteTasks.
	item func(method string) *v1.ItemError

	mu       sync.Mutex
	changed  chan struct{} // closed when tasks became ready
	queues   map[string]*fakeQueue
	requests map[string]int
	batches  map[string][]int // sizes

	syncMu   sync.Mutex
	syncing  bool
	toSync   int
	nextSync chan struct{}
}

type fakeQueue struct {
	config  *v1.QueueConfig
	paused  bool
	tasks   map[string]*fakeTask
	order   []*fakeTask // not completed
	pollers map[string]*v1.Poller
}

type fakeTask struct {
	spec     *v1.TaskSpec
	state    v1.TaskState
	attempt  int32
	token    string
	readyAt  time.Time
	deadline time.Time
	lease    time.Duration
	added    time.Time
	lastErr  string
	worker   string
}

func startFake(t testing.TB, change ...func(*fakeServer)) *fakeServer {
	t.Helper()
	f := &fakeServer{
		changed:  make(chan struct{}),
		queues:   map[string]*fakeQueue{},
		requests: map[string]int{},
		batches:  map[string][]int{},
		nextSync: make(chan struct{}),
	}
	for _, c := range change {
		c(f)
	}
	f.listen(t, "127.0.0.1:0")
	t.Cleanup(func() { f.server.Stop() })
	return f
}

func (f *fakeServer) listen(t testing.TB, address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	f.address = listener.Addr().String()
	f.server = grpc.NewServer(grpc.UnaryInterceptor(f.intercept), grpc.MaxRecvMsgSize(64<<20),
		grpc.InitialWindowSize(8<<20), grpc.InitialConnWindowSize(16<<20))
	v1.RegisterTaskServiceServer(f.server, f)
	v1.RegisterQueueServiceServer(f.server, f)
	go f.server.Serve(listener)
}

func dialFake(t testing.TB, f *fakeServer, opts ...DialOption) *Client {
	t.Helper()
	client, err := Dial(f.address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func (f *fakeServer) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
	f.mu.Lock()
	f.requests[method]++
	f.mu.Unlock()
	if f.before != nil {
		if err := f.before(method, request); err != nil {
			return nil, err
		}
	}
	response, err := handler(ctx, request)
	if err == nil && f.after != nil {
		err = f.after(method, request)
	}
	return response, err
}

func (f *fakeServer) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[method]
}

// commit returns when what was written before is on the pretended disk.
func (f *fakeServer) commit() {
	if f.syncTime == 0 {
		return
	}
	f.syncMu.Lock()
	f.toSync++
	done := f.nextSync
	if !f.syncing {
		f.syncing = true
		go f.syncLoop()
	}
	f.syncMu.Unlock()
	<-done
}

// syncLoop syncs as long as there is something to sync. Who comes during a sync
// waits for the next one.
func (f *fakeServer) syncLoop() {
	for {
		f.syncMu.Lock()
		if f.toSync == 0 {
			f.syncing = false
			f.syncMu.Unlock()
			return
		}
		f.toSync = 0
		group := f.nextSync
		f.nextSync = make(chan struct{})
		f.syncMu.Unlock()
		time.Sleep(f.syncTime)
		close(group)
	}
}

func (f *fakeServer) queue(name string, make bool) (*fakeQueue, error) {
	q := f.queues[name]
	if q == nil && !make {
		return nil, reason.New(codes.NotFound, reason.QueueNotFound, nil, "queue %q does not exist", name)
	}
	if q == nil {
		q = &fakeQueue{config: &v1.QueueConfig{}, tasks: map[string]*fakeTask{}, pollers: map[string]*v1.Poller{}}
		f.queues[name] = q
	}
	return q, nil
}

func (f *fakeServer) itemError(method string) *v1.ItemError {
	if f.item == nil {
		return nil
	}
	return f.item(method)
}

func (f *fakeServer) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeServer) AddTasks(ctx context.Context, r *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
	f.mu.Lock()
	f.batches["AddTasks"] = append(f.batches["AddTasks"], len(r.Tasks))
	q, _ := f.queue(r.Queue, true)
	out := &v1.AddTasksResponse{}
	for _, spec := range r.Tasks {
		result := &v1.AddTasksResponse_Result{Id: spec.Id}
		out.Results = append(out.Results, result)
		if strings.HasPrefix(spec.Kind, "bad") {
			result.Error = &v1.ItemError{Code: int32(codes.InvalidArgument), Reason: reason.InvalidKind, Message: "the kind is bad"}
			continue
		}
		if result.Error = f.itemError("AddTasks"); result.Error != nil {
			continue
		}
		if q.tasks[spec.Id] != nil {
			result.AlreadyAdded = true
			continue
		}
		task := &fakeTask{spec: spec, state: v1.TaskState_TASK_STATE_READY, added: time.Now()}
		if at := spec.GetRunAt(); at != nil && at.AsTime().After(time.Now()) {
			task.state, task.readyAt = v1.TaskState_TASK_STATE_DELAYED, at.AsTime()
		}
		q.tasks[spec.Id] = task
		q.order = append(q.order, task)
	}
	f.wake()
	f.mu.Unlock()
	f.commit()
	return out, nil
}

// ready says whether a task can be leased at now, after moving it on as time
// demands.
func (task *fakeTask) ready(now time.Time) bool {
	switch task.state {
	case v1.TaskState_TASK_STATE_DELAYED, v1.TaskState_TASK_STATE_RETRYING:
		if !now.Before(task.readyAt) {
			task.state = v1.TaskState_TASK_STATE_READY
		}
	case v1.TaskState_TASK_STATE_LEASED:
		if !now.Before(task.deadline) {
			task.state = v1.TaskState_TASK_STATE_READY
		}
	}
	return task.state == v1.TaskState_TASK_STATE_READY
}

func (f *fakeServer) PollTasks(ctx context.Context, r *v1.PollTasksRequest) (*v1.PollTasksResponse, error) {
	end := time.Now().Add(r.GetWait().AsDuration())
	for {
		f.mu.Lock()
		q, err := f.queue(r.Queue, false)
		if err != nil {
			f.mu.Unlock()
			return nil, err
		}
		now := time.Now()
		q.pollers[r.Identity] = &v1.Poller{Identity: r.Identity, LastPollAt: timestamppb.New(now)}
		out := &v1.PollTasksResponse{}
		for _, task := range q.order {
			if len(out.Tasks) == int(max(r.MaxTasks, 1)) || q.paused {
				break
			}
			if task.ready(now) {
				out.Tasks = append(out.Tasks, task.grant(r, now))
			}
		}
		changed := f.changed
		f.mu.Unlock()
		if len(out.Tasks) > 0 || !now.Before(end) {
			f.mu.Lock()
			f.batches["PollTasks"] = append(f.batches["PollTasks"], len(out.Tasks))
			f.mu.Unlock()
			out.ServerTime = timestamppb.Now()
			return out, nil
		}
		// Delays and leases end without a wake; look now and then.
		timer := time.NewTimer(min(time.Until(end), 5*time.Millisecond))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (task *fakeTask) grant(r *v1.PollTasksRequest, now time.Time) *v1.LeasedTask {
	task.lease = 30 * time.Second
	if d := task.spec.GetLeaseTime(); d != nil {
		task.lease = d.AsDuration()
	}
	if r.LeaseTime != nil {
		task.lease = r.LeaseTime.AsDuration()
	}
	task.attempt++
	task.state = v1.TaskState_TASK_STATE_LEASED
	task.deadline = now.Add(task.lease)
	task.token = fmt.Sprintf("%s/%d/%d", task.spec.Id, task.attempt, now.UnixNano())
	task.worker = r.Identity
	return &v1.LeasedTask{
		Id: task.spec.Id, Kind: task.spec.Kind, Payload: task.spec.Payload, Headers: task.spec.Headers,
		Attempt: task.attempt, MaxAttempts: task.maxAttempts(),
		AddedAt: timestamppb.New(task.added), LeaseDeadline: timestamppb.New(task.deadline),
		LeaseToken: []byte(task.token), LastError: task.lastErr,
	}
}

func (task *fakeTask) maxAttempts() int32 {
	if task.spec.MaxAttempts == 0 {
		return 25
	}
	return task.spec.MaxAttempts
}

// held finds the task of a lease token, or says why it is not held any more.
func (f *fakeServer) held(queue string, token []byte) (*fakeQueue, *fakeTask, *v1.ItemError) {
	refuse := func(r, text string) *v1.ItemError {
		return &v1.ItemError{Code: int32(reason.Code(r)), Reason: r, Message: text}
	}
	id, _, ok := strings.Cut(string(token), "/")
	q := f.queues[queue]
	if q == nil || !ok {
		return nil, nil, refuse(reason.InvalidLeaseToken, "no token of this queue")
	}
	task := q.tasks[id]
	switch {
	case task == nil:
		return nil, nil, refuse(reason.TaskNotFound, "no such task")
	case task.state == v1.TaskState_TASK_STATE_COMPLETED:
		return nil, nil, refuse(reason.TaskAlreadyCompleted, "the task is completed")
	case task.state == v1.TaskState_TASK_STATE_CANCELLED:
		return nil, nil, refuse(reason.TaskCancelled, "the task is cancelled")
	case task.state != v1.TaskState_TASK_STATE_LEASED || task.token != string(token):
		return nil, nil, refuse(reason.LeaseLost, "the token is of an older lease")
	}
	return q, task, nil
}

func (q *fakeQueue) remove(task *fakeTask) {
	if i := slices.Index(q.order, task); i >= 0 {
		q.order = slices.Delete(q.order, i, i+1)
	}
}

func (f *fakeServer) CompleteTasks(ctx context.Context, r *v1.CompleteTasksRequest) (*v1.CompleteTasksResponse, error) {
	f.mu.Lock()
	f.batches["CompleteTasks"] = append(f.batches["CompleteTasks"], len(r.LeaseTokens))
	out := &v1.CompleteTasksResponse{}
	for _, token := range r.LeaseTokens {
		q, task, refused := f.held(r.Queue, token)
		if refused == nil {
			refused = f.itemError("CompleteTasks")
		}
		out.Results = append(out.Results, &v1.ItemResult{Error: refused})
		if refused == nil {
			task.state = v1.TaskState_TASK_STATE_COMPLETED
			q.remove(task)
		}
	}
	f.mu.Unlock()
	f.commit()
	return out, nil
}

func (f *fakeServer) FailTasks(ctx context.Context, r *v1.FailTasksRequest) (*v1.FailTasksResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &v1.FailTasksResponse{}
	for _, failure := range r.Failures {
		_, task, refused := f.held(r.Queue, failure.LeaseToken)
		result := &v1.FailTasksResponse_Result{Error: refused}
		out.Results = append(out.Results, result)
		if refused != nil {
			continue
		}
		task.lastErr, task.worker = failure.Error, ""
		if failure.NotRetryable || task.attempt >= task.maxAttempts() {
			task.state = v1.TaskState_TASK_STATE_DEAD
		} else {
			task.state = v1.TaskState_TASK_STATE_RETRYING
			backoff := time.Second
			if d := task.spec.GetRetry().GetInitialBackoff(); d != nil {
				backoff = d.AsDuration()
			}
			if failure.RetryDelay != nil {
				backoff = failure.RetryDelay.AsDuration()
			}
			task.readyAt = time.Now().Add(backoff)
		}
		result.State = task.state
	}
	f.wake()
	return out, nil
}

func (f *fakeServer) ExtendLeases(ctx context.Context, r *v1.ExtendLeasesRequest) (*v1.ExtendLeasesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &v1.ExtendLeasesResponse{}
	for _, e := range r.Extensions {
		_, task, refused := f.held(r.Queue, e.LeaseToken)
		result := &v1.ExtendLeasesResponse_Result{Error: refused}
		out.Results = append(out.Results, result)
		if refused == nil {
			if e.LeaseTime != nil {
				task.lease = e.LeaseTime.AsDuration()
			}
			task.deadline = time.Now().Add(task.lease)
			result.LeaseDeadline = timestamppb.New(task.deadline)
		}
	}
	return out, nil
}

func (f *fakeServer) ReleaseTasks(ctx context.Context, r *v1.ReleaseTasksRequest) (*v1.ReleaseTasksResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &v1.ReleaseTasksResponse{}
	for _, token := range r.LeaseTokens {
		_, task, refused := f.held(r.Queue, token)
		out.Results = append(out.Results, &v1.ItemResult{Error: refused})
		if refused == nil {
			task.state, task.worker = v1.TaskState_TASK_STATE_READY, ""
			task.attempt--
		}
	}
	f.wake()
	return out, nil
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
