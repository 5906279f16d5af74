package switchyard

import (
	"context"
	"errors"
	"fmt"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func quote(s string) string { return fmt.Sprintf("%q", s) }

// Get looks a task up. Completed, cancelled and expired tasks are known for 10
// minutes after they were added; then the error is ErrTaskNotFound.
func (c *Client) Get(ctx context.Context, queue, id string) (*TaskInfo, error) {
	var info *TaskInfo
	err := c.do(ctx, "get task", id+" of queue "+quote(queue), func(ctx context.Context, _ bool) error {
		response, err := c.tasks.GetTask(ctx, &v1.GetTaskRequest{Namespace: c.opts.namespace, Queue: queue, Id: id})
		if err == nil {
			info = taskInfoOf(response.GetTask())
		}
		return err
	})
	return info, err
}

// Cancel removes a task that has not been completed, in whatever state it is,
// and returns that state. A worker that holds it learns so when it extends the
// lease or reports its result.
func (c *Client) Cancel(ctx context.Context, queue, id string) (TaskState, error) {
	var state TaskState
	err := c.do(ctx, "cancel task", id+" of queue "+quote(queue), func(ctx context.Context, repeated bool) error {
		response, err := c.tasks.CancelTask(ctx, &v1.CancelTaskRequest{Namespace: c.opts.namespace, Queue: queue, Id: id})
		if err == nil {
			state = taskStateOf(response.GetState())
		} else if repeated && Reason(err) == Reason(ErrTaskCancelled) {
			return nil // by the first try
		}
		return err
	})
	if errors.Is(err, ErrTaskCancelled) {
		state = TaskCancelled
	}
	return state, err
}
