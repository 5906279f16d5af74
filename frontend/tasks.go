package frontend

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// AddTasks implements v1.TaskServiceServer.
func (f *Frontend) AddTasks(ctx context.Context, req *v1.AddTasksRequest) (resp *v1.AddTasksResponse, err error) {
	ctx, c, err := f.begin(ctx, mAddTasks)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.batch(&c, &req.Namespace, req.Queue, "tasks", len(req.Tasks)); err != nil {
		return nil, err
	}
	if err := f.limits.checkSticky(req.StickyWorker); err != nil {
		return nil, err
	}
	var bad faults
	var size int64
	for i, t := range req.Tasks {
		if err := f.limits.checkTask(t, c.start); err != nil {
			bad.add(i, len(req.Tasks), err)
			continue
		}
		if t.Id == "" {
			id, err := uuid.NewV7()
			if err != nil {
				return nil, reason.New(codes.Internal, reason.Internal, nil, "no random numbers for a task id: %v", err)
			}
			t.Id = id.String()
		}
		size += taskBytes(t)
	}
	// The wire's own limit is exact; this one also holds for callers in the
	// process and so allows for the overhead that taskBytes adds.
	if most := int64(f.limits.RequestBytes) + int64(len(req.Tasks))*itemOverhead; size > most {
		return nil, tooLarge(reason.RequestTooLarge, "tasks", f.limits.RequestBytes,
			"the request has %d bytes of tasks; at most %d are allowed, split it", size, f.limits.RequestBytes)
	}
	if err := c.hold(size); err != nil {
		return nil, err
	}
	all, n := req.Tasks, len(req.Tasks)
	req.Tasks = right(req.Tasks, bad)
	resp = &v1.AddTasksResponse{}
	if len(req.Tasks) > 0 {
		if resp, err = f.backend.AddTasks(ctx, req); err != nil {
			return nil, err
		}
	}
	resp.Results, err = merge(n, f.counted(&c, bad), resp.Results, func(i int, err error) *v1.AddTasksResponse_Result {
		return &v1.AddTasksResponse_Result{Id: all[i].GetId(), Error: reason.Item(err)}
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// pollMargin is how long before the caller's deadline a poll ends, at most.
const pollMargin = 500 * time.Millisecond

// handBackTime bounds the release of tasks whose poller is gone.
const handBackTime = 5 * time.Second

// PollTasks implements v1.TaskServiceServer. A poll whose caller has a deadline
// before the end of the wait ends a little before it, so that the caller gets an
// answer. Tasks that were leased for a caller who is gone are released.
func (f *Frontend) PollTasks(ctx context.Context, req *v1.PollTasksRequest) (resp *v1.PollTasksResponse, err error) {
	ctx, c, err := f.begin(ctx, mPollTasks)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if f.draining.Err() != nil {
		return nil, shuttingDown()
	}
	if err := f.checkPoll(ctx, req); err != nil {
		return nil, err
	}
	pollCtx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(f.draining, cancel)
	resp, err = f.backend.PollTasks(pollCtx, req)
	stop()
	cancel()
	if err != nil {
		switch {
		case ctx.Err() != nil:
			return nil, ended(ctx.Err())
		case f.draining.Err() != nil:
			return nil, shuttingDown()
		}
		return nil, err
	}
	if ctx.Err() != nil {
		f.handBack(req, resp.Tasks)
		return nil, ended(ctx.Err())
	}
	c.items(len(resp.Tasks))
	return resp, nil
}

func shuttingDown() error {
	return reason.New(codes.Unavailable, reason.ShuttingDown, nil, "the node is shutting down; poll again")
}

// checkPoll checks a poll and fills in its defaults.
func (f *Frontend) checkPoll(ctx context.Context, req *v1.PollTasksRequest) error {
	l := &f.limits
	if err := l.address(&req.Namespace, req.Queue); err != nil {
		return err
	}
	if err := l.checkIdentity(req.Identity); err != nil {
		return err
	}
	if err := l.checkSticky(req.StickyWorker); err != nil {
		return err
	}
	switch {
	case req.MaxTasks == 0:
		req.MaxTasks = 1
	case req.MaxTasks < 0 || int(req.MaxTasks) > l.PollTasks:
		return tooLarge(reason.InvalidMaxTasks, "max_tasks", l.PollTasks,
			"max_tasks is %d; it must be between 1 and %d", req.MaxTasks, l.PollTasks)
	}
	if err := l.checkLease("lease_time", req.LeaseTime); err != nil {
		return err
	}
	wait := l.DefaultPollWait
	if req.Wait != nil {
		if err := checkDuration(reason.InvalidDuration, "wait", req.Wait, 0, l.PollWait); err != nil {
			return err
		}
		wait = req.Wait.AsDuration()
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		if left = left - min(left/10, pollMargin); left < wait {
			wait = max(left, 0)
			req.Wait = nil
		}
	}
	if req.Wait == nil {
		req.Wait = durationpb.New(wait)
	}
	return nil
}

// checkIdentity checks who somebody says to be.
func (l *Limits) checkIdentity(identity string) error {
	if len(identity) > l.IdentityBytes {
		return tooLarge(reason.InvalidIdentity, "identity", l.IdentityBytes,
			"the identity is %d bytes long; at most %d are allowed", len(identity), l.IdentityBytes)
	}
	return nil
}

// checkSticky checks the name of a worker that has a queue of its own.
func (l *Limits) checkSticky(worker string) error {
	if len(worker) > min(l.IdentityBytes, maxTokenBytes/2) {
		return tooLarge(reason.InvalidIdentity, "sticky_worker", l.IdentityBytes,
			"the worker's name is %d bytes long; at most %d are allowed", len(worker), min(l.IdentityBytes, maxTokenBytes/2))
	}
	for i := 0; i < len(worker); i++ {
		if charClass[worker[i]]&charControl != 0 {
			return invalid(reason.InvalidIdentity, "sticky_worker", "the worker's name %q has a control character", shorten(worker))
		}
	}
	return nil
}

// handBack releases tasks whose poller is gone, so that they need not wait for
// their leases to run out.
func (f *Frontend) handBack(req *v1.PollTasksRequest, tasks []*v1.LeasedTask) {
	if len(tasks) == 0 {
		return
	}
	tokens := make([][]byte, len(tasks))
	for i, t := range tasks {
		tokens[i] = t.LeaseToken
	}
	ctx, cancel := context.WithTimeout(context.Background(), handBackTime)
	defer cancel()
	_, err := f.backend.ReleaseTasks(ctx, &v1.ReleaseTasksRequest{Namespace: req.Namespace, Queue: req.Queue, LeaseTokens: tokens})
	if err != nil {
		f.logger.Warn("tasks of a poller that is gone stay leased until their leases run out",
			"namespace", req.Namespace, "queue", req.Queue, "tasks", len(tasks), "err", err)
	}
}

// CompleteTasks implements v1.TaskServiceServer.
func (f *Frontend) CompleteTasks(ctx context.Context, req *v1.CompleteTasksRequest) (resp *v1.CompleteTasksResponse, err error) {
	ctx, c, err := f.begin(ctx, mCompleteTasks)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.batch(&c, &req.Namespace, req.Queue, "lease_tokens", len(req.LeaseTokens)); err != nil {
		return nil, err
	}
	n, bad := len(req.LeaseTokens), checkTokens(req.LeaseTokens)
	req.LeaseTokens = right(req.LeaseTokens, bad)
	resp = &v1.CompleteTasksResponse{}
	if len(req.LeaseTokens) > 0 {
		if resp, err = f.backend.CompleteTasks(ctx, req); err != nil {
			return nil, err
		}
	}
	if resp.Results, err = merge(n, f.counted(&c, bad), resp.Results, failedItem); err != nil {
		return nil, err
	}
	return resp, nil
}

// ReleaseTasks implements v1.TaskServiceServer.
func (f *Frontend) ReleaseTasks(ctx context.Context, req *v1.ReleaseTasksRequest) (resp *v1.ReleaseTasksResponse, err error) {
	ctx, c, err := f.begin(ctx, mReleaseTasks)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.batch(&c, &req.Namespace, req.Queue, "lease_tokens", len(req.LeaseTokens)); err != nil {
		return nil, err
	}
	n, bad := len(req.LeaseTokens), checkTokens(req.LeaseTokens)
	req.LeaseTokens = right(req.LeaseTokens, bad)
	resp = &v1.ReleaseTasksResponse{}
	if len(req.LeaseTokens) > 0 {
		if resp, err = f.backend.ReleaseTasks(ctx, req); err != nil {
			return nil, err
		}
	}
	if resp.Results, err = merge(n, f.counted(&c, bad), resp.Results, failedItem); err != nil {
		return nil, err
	}
	return resp, nil
}

// FailTasks implements v1.TaskServiceServer.
func (f *Frontend) FailTasks(ctx context.Context, req *v1.FailTasksRequest) (resp *v1.FailTasksResponse, err error) {
	ctx, c, err := f.begin(ctx, mFailTasks)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.batch(&c, &req.Namespace, req.Queue, "failures", len(req.Failures)); err != nil {
		return nil, err
	}
	n := len(req.Failures)
	var bad faults
	for i, failure := range req.Failures {
		if err := f.limits.checkFailure(failure); err != nil {
			bad.add(i, n, err)
			continue
		}
		failure.Error = cut(failure.Error, f.limits.ErrorBytes)
	}
	req.Failures = right(req.Failures, bad)
	resp = &v1.FailTasksResponse{}
	if len(req.Failures) > 0 {
		if resp, err = f.backend.FailTasks(ctx, req); err != nil {
			return nil, err
		}
	}
	resp.Results, err = merge(n, f.counted(&c, bad), resp.Results, func(_ int, err error) *v1.FailTasksResponse_Result {
		return &v1.FailTasksResponse_Result{Error: reason.Item(err)}
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// ExtendLeases implements v1.TaskServiceServer.
func (f *Frontend) ExtendLeases(ctx context.Context, req *v1.ExtendLeasesRequest) (resp *v1.ExtendLeasesResponse, err error) {
	ctx, c, err := f.begin(ctx, mExtendLeases)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.batch(&c, &req.Namespace, req.Queue, "extensions", len(req.Extensions)); err != nil {
		return nil, err
	}
	n := len(req.Extensions)
	var bad faults
	for i, e := range req.Extensions {
		if err := f.limits.checkExtension(e); err != nil {
			bad.add(i, n, err)
		}
	}
	req.Extensions = right(req.Extensions, bad)
	resp = &v1.ExtendLeasesResponse{}
	if len(req.Extensions) > 0 {
		if resp, err = f.backend.ExtendLeases(ctx, req); err != nil {
			return nil, err
		}
	}
	resp.Results, err = merge(n, f.counted(&c, bad), resp.Results, func(_ int, err error) *v1.ExtendLeasesResponse_Result {
		return &v1.ExtendLeasesResponse_Result{Error: reason.Item(err)}
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// GetTask implements v1.TaskServiceServer.
func (f *Frontend) GetTask(ctx context.Context, req *v1.GetTaskRequest) (*v1.GetTaskResponse, error) {
	return serve(ctx, f, mGetTask, req, f.backend.GetTask, func() error {
		if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
			return err
		}
		return checkID("id", &req.Id)
	})
}

// CancelTask implements v1.TaskServiceServer.
func (f *Frontend) CancelTask(ctx context.Context, req *v1.CancelTaskRequest) (*v1.CancelTaskResponse, error) {
	return serve(ctx, f, mCancelTask, req, f.backend.CancelTask, func() error {
		if err := f.limits.address(&req.Namespace, req.Queue); err != nil {
			return err
		}
		return checkID("id", &req.Id)
	})
}

// batch checks what all batches have in common and records the size.
func (f *Frontend) batch(c *call, namespace *string, queue, field string, n int) error {
	if err := f.limits.address(namespace, queue); err != nil {
		return err
	}
	if err := f.limits.checkBatch(field, n); err != nil {
		return err
	}
	c.items(n)
	return nil
}

// counted records the number of faults and returns them.
func (f *Frontend) counted(c *call, bad faults) faults {
	if bad != nil {
		f.metrics.faults.WithLabelValues(methodNames[c.method]).Add(float64(bad.count()))
	}
	return bad
}

func failedItem(_ int, err error) *v1.ItemResult { return &v1.ItemResult{Error: reason.Item(err)} }

// checkTokens checks the form of lease tokens.
func checkTokens(tokens [][]byte) (bad faults) {
	for i, t := range tokens {
		if err := checkToken(t); err != nil {
			bad.add(i, len(tokens), err)
		}
	}
	return bad
}

// checkFailure checks one failure.
func (l *Limits) checkFailure(f *v1.FailTasksRequest_Failure) error {
	if f == nil {
		return invalid(reason.InvalidRequest, "failures", "the failure is missing")
	}
	if err := checkToken(f.LeaseToken); err != nil {
		return err
	}
	if f.RetryDelay == nil {
		return nil
	}
	return checkDuration(reason.InvalidDuration, "retry_delay", f.RetryDelay, 0, l.Delay)
}

// checkExtension checks one extension.
func (l *Limits) checkExtension(e *v1.ExtendLeasesRequest_Extension) error {
	if e == nil {
		return invalid(reason.InvalidRequest, "extensions", "the extension is missing")
	}
	if err := checkToken(e.LeaseToken); err != nil {
		return err
	}
	return l.checkLease("lease_time", e.LeaseTime)
}
