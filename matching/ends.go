package matching

import (
	"context"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// end runs an endCall and explains each item that failed.
func (e *Engine) end(ctx context.Context, h *v1.PartitionHeader, namespace, queue string, c *endCall, tokens func(i int) []byte) ([]*v1.ItemError, error) {
	id, err := partition(h, namespace, queue)
	if err != nil {
		return nil, err
	}
	c.init()
	parsed := make([]token, len(c.items))
	for i := range c.items {
		t, ok := parseToken(tokens(i))
		parsed[i] = t
		c.items[i].seq, c.items[i].nonce, c.items[i].invalid = t.seq, t.nonce, !ok || t.partition != id.Number || t.sticky != id.Sticky
	}
	var errs []*v1.ItemError
	fail := func(i int, err error) {
		if errs == nil {
			errs = make([]*v1.ItemError, len(c.items))
		}
		errs[i] = reason.Item(err)
	}
	err = e.retryUnloaded(ctx, id, false, func(o *owner) error {
		for i := range c.items {
			if parsed[i].uid != o.uid {
				c.items[i].invalid = true
			}
		}
		if err := o.do(ctx, c, &c.call); err != nil {
			return err
		}
		for i := range c.items {
			it := &c.items[i]
			if it.invalid {
				fail(i, errInvalidToken)
			} else if it.lost {
				why, err := e.whyLost(ctx, o, parsed[i])
				if err != nil {
					return err
				}
				fail(i, why)
			}
		}
		return nil
	})
	return errs, err
}

// whyLost explains a token whose lease is not the task's any more.
func (e *Engine) whyLost(ctx context.Context, o *owner, t token) (why, err error) {
	err = e.look(ctx, o, func(v *storage.View) error {
		f, ok, err := findTask(v, o.uid, t.id)
		if err != nil {
			return err
		}
		id := t.id.String()
		meta := map[string]string{"task": id}
		switch {
		case !ok || f.seq != t.seq:
			why = reason.New(codes.NotFound, reason.TaskNotFound, meta, "task %s is not known any more: it ended more than 10 minutes ago", id)
		case f.gone:
			why = goneError(id, f.ended)
		case f.state == storedDead:
			why = reason.New(codes.FailedPrecondition, reason.TaskDead, meta, "task %s is dead after %d attempts: redrive it to run it again", id, f.attempt)
		default:
			why = reason.New(codes.FailedPrecondition, reason.LeaseLost, meta,
				"the lease of task %s ran out or was given back, and the task may be with another worker: make the lease time longer or extend the lease", id)
		}
		return nil
	})
	return why, e.storeError(err)
}

func goneError(id string, how ending) error {
	meta := map[string]string{"task": id}
	switch how {
	case endingCancelled:
		return reason.New(codes.FailedPrecondition, reason.TaskCancelled, meta, "task %s was cancelled", id)
	case endingExpired:
		return reason.New(codes.FailedPrecondition, reason.TaskExpired, meta, "task %s was dropped because its time to live was over", id)
	}
	return reason.New(codes.FailedPrecondition, reason.TaskAlreadyCompleted, meta, "task %s has been completed already", id)
}

// itemResults makes results of nothing but errors; all share one value when none
// failed.
func itemResults(n int, errs []*v1.ItemError) []*v1.ItemResult {
	out := make([]*v1.ItemResult, n)
	ok := &v1.ItemResult{}
	for i := range out {
		out[i] = ok
		if errs != nil && errs[i] != nil {
			out[i] = &v1.ItemResult{Error: errs[i]}
		}
	}
	return out
}

// PartitionCompleteTasks implements v1.MatchingServiceServer.
func (e *Engine) PartitionCompleteTasks(ctx context.Context, preq *v1.PartitionCompleteTasksRequest) (*v1.PartitionCompleteTasksResponse, error) {
	req := preq.GetRequest()
	tokens := req.GetLeaseTokens()
	c := &endCall{kind: endComplete}
	c.make(len(tokens))
	errs, err := e.end(ctx, preq.GetHeader(), req.GetNamespace(), req.GetQueue(), c, func(i int) []byte { return tokens[i] })
	if err != nil {
		return nil, err
	}
	c.over()
	var answer struct { // in one piece of memory
		partition v1.PartitionCompleteTasksResponse
		v1.CompleteTasksResponse
	}
	answer.Results = itemResults(len(tokens), errs)
	answer.partition.Response = &answer.CompleteTasksResponse
	return &answer.partition, nil
}

// PartitionReleaseTasks implements v1.MatchingServiceServer.
func (e *Engine) PartitionReleaseTasks(ctx context.Context, preq *v1.PartitionReleaseTasksRequest) (*v1.PartitionReleaseTasksResponse, error) {
	req := preq.GetRequest()
	tokens := req.GetLeaseTokens()
	c := &endCall{kind: endRelease}
	c.make(len(tokens))
	errs, err := e.end(ctx, preq.GetHeader(), req.GetNamespace(), req.GetQueue(), c, func(i int) []byte { return tokens[i] })
	if err != nil {
		return nil, err
	}
	return &v1.PartitionReleaseTasksResponse{Response: &v1.ReleaseTasksResponse{Results: itemResults(len(tokens), errs)}}, nil
}

// PartitionFailTasks implements v1.MatchingServiceServer.
func (e *Engine) PartitionFailTasks(ctx context.Context, preq *v1.PartitionFailTasksRequest) (*v1.PartitionFailTasksResponse, error) {
	req := preq.GetRequest()
	fs := req.GetFailures()
	c := &endCall{kind: endFail}
	c.make(len(fs))
	for i, f := range fs {
		it := &c.items[i]
		it.errorText, it.notRetryable = f.GetError(), f.GetNotRetryable()
		it.hasDelay, it.retryDelay = f.GetRetryDelay() != nil, f.GetRetryDelay().AsDuration()
	}
	errs, err := e.end(ctx, preq.GetHeader(), req.GetNamespace(), req.GetQueue(), c, func(i int) []byte { return fs[i].GetLeaseToken() })
	if err != nil {
		return nil, err
	}
	resp := &v1.FailTasksResponse{}
	for i := range c.items {
		r := &v1.FailTasksResponse_Result{}
		switch {
		case errs != nil && errs[i] != nil:
			r.Error = errs[i]
		case c.items[i].dead:
			r.State = v1.TaskState_TASK_STATE_DEAD
		default:
			r.State, r.RetryAt = v1.TaskState_TASK_STATE_RETRYING, timestamp(c.items[i].at)
		}
		resp.Results = append(resp.Results, r)
	}
	return &v1.PartitionFailTasksResponse{Response: resp}, nil
}

// PartitionExtendLeases implements v1.MatchingServiceServer.
func (e *Engine) PartitionExtendLeases(ctx context.Context, preq *v1.PartitionExtendLeasesRequest) (*v1.PartitionExtendLeasesResponse, error) {
	req := preq.GetRequest()
	xs := req.GetExtensions()
	c := &endCall{kind: endExtend}
	c.make(len(xs))
	for i, x := range xs {
		c.items[i].leaseTime = x.GetLeaseTime().AsDuration()
	}
	errs, err := e.end(ctx, preq.GetHeader(), req.GetNamespace(), req.GetQueue(), c, func(i int) []byte { return xs[i].GetLeaseToken() })
	if err != nil {
		return nil, err
	}
	resp := &v1.ExtendLeasesResponse{}
	for i := range c.items {
		r := &v1.ExtendLeasesResponse_Result{LeaseDeadline: timestamp(c.items[i].at)}
		if errs != nil && errs[i] != nil {
			r = &v1.ExtendLeasesResponse_Result{Error: errs[i]}
		}
		resp.Results = append(resp.Results, r)
	}
	return &v1.PartitionExtendLeasesResponse{Response: resp}, nil
}
