package switchyard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Call is a request that waits for a worker's answer; see Client.Call.
type Call struct {
	// Kind is the name of the handler, 1 to 255 bytes.
	Kind string
	// Payload is handed to the handler as it is.
	Payload []byte
	// Headers are handed to the handler as they are.
	Headers map[string]string
	// Timeout is how long to wait for the answer; default 10 s, 60 s at most. The
	// context's deadline ends it too.
	Timeout time.Duration
}

// CallError is what a worker said went wrong with a call.
type CallError struct {
	// Text is the worker's, Identity its name.
	Text, Identity string
}

// Error returns the worker's text.
func (e *CallError) Error() string { return e.Text }

// ErrNoPoller says that no worker took a call in time.
var ErrNoPoller = sentinel(reason.NoPoller, "no worker took the call")

// ErrCallTimedOut says that a worker took a call and did not answer in time.
var ErrCallTimedOut = sentinel(reason.CallTimedOut, "the worker did not answer in time")

// Call hands a request to a worker of a queue, a CallWorker, and returns its answer.
// It is never stored, and at most one worker gets it to its end: nobody tries again
// what a worker has begun. An error of the worker is a *CallError.
func (c *Client) Call(ctx context.Context, queue string, call Call) ([]byte, error) {
	request := &v1.CallRequest{
		Namespace: c.opts.namespace, Queue: queue, Kind: call.Kind, Payload: call.Payload, Headers: call.Headers,
	}
	timeout := 10 * time.Second
	if call.Timeout != 0 {
		timeout = call.Timeout
		request.Timeout = durationpb.New(call.Timeout)
	}
	callCtx, cancel := context.WithTimeout(ctx, max(timeout, 0)+pollGrace)
	defer cancel()
	for try := 1; ; try++ {
		response, err := c.calls.Call(callCtx, request)
		switch {
		case err == nil && response.GetError() != "":
			return nil, &CallError{Text: response.GetError(), Identity: response.GetIdentity()}
		case err == nil:
			return response.GetPayload(), nil
		case c.ctx.Err() != nil:
			return nil, ErrClientClosed
		// Only what certainly never reached a worker is tried again.
		case !reason.Retryable(reason.Of(err)) || !c.pause(callCtx, try):
			return nil, callError(ctx, "call queue", quote(queue), err)
		}
	}
}

// AddSticky adds tasks to the sticky queue of one worker beside a queue: only that
// worker gets them. It fails with ErrStickyWorkerUnavailable when the worker has not
// polled lately; add the tasks to the queue itself then. It makes one request, which
// is not shared with others. The results are in the order of the tasks; those of
// tasks that the server refused have no id.
func (c *Client) AddSticky(ctx context.Context, queue, worker string, tasks ...Task) ([]AddResult, error) {
	if worker == "" {
		return nil, errors.New("switchyard: the worker of a sticky queue has no name")
	}
	request := &v1.AddTasksRequest{Namespace: c.opts.namespace, Queue: queue, StickyWorker: worker}
	for i := range tasks {
		id := tasks[i].ID
		if id == "" {
			id = NewID()
		}
		spec, err := tasks[i].spec(id)
		if err != nil {
			return nil, addError(ctx, queue, err)
		}
		request.Tasks = append(request.Tasks, spec)
	}
	var response *v1.AddTasksResponse
	err := c.do(ctx, "add to queue", quote(queue), func(ctx context.Context, _ bool) (err error) {
		response, err = c.tasks.AddTasks(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	results := make([]AddResult, len(tasks))
	failed := &BatchError{Total: len(tasks)}
	for i, r := range response.GetResults() {
		if err := reason.FromItem(r.GetError()); err != nil {
			results[i].Err = err
			if failed.Failed++; failed.First == nil {
				failed.First = err
			}
			continue
		}
		results[i] = AddResult{ID: r.GetId(), AlreadyAdded: r.GetAlreadyAdded()}
	}
	if failed.Failed > 0 {
		return results, failed
	}
	return results, nil
}

// ErrStickyWorkerUnavailable says that the worker of a sticky queue is not there.
var ErrStickyWorkerUnavailable = sentinel(reason.StickyWorkerUnavailable, "the worker does not poll its sticky queue")

// spec is the task as the generated code has it.
func (t *Task) spec(id string) (*v1.TaskSpec, error) {
	encoded, err := appendTask(nil, t, id)
	if err != nil {
		return nil, err
	}
	var one v1.AddTasksRequest // appendTask makes a field of it
	if err := proto.Unmarshal(encoded, &one); err != nil {
		return nil, fmt.Errorf("the task cannot be encoded: %w", err)
	}
	return one.GetTasks()[0], nil
}
