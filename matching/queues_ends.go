package matching

import (
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// What a result means when the call was repeated, because the try before got no answer and may
// have got through.

// repeatedComplete is a task's result of a repeated call: that it has been completed is what
// the call wants.
func repeatedComplete(r *v1.ItemResult) *v1.ItemResult {
	if r.GetError().GetReason() == reason.TaskAlreadyCompleted {
		return &v1.ItemResult{}
	}
	return r
}

// repeatedRelease: that the lease has ended is what the call wants.
func repeatedRelease(r *v1.ItemResult) *v1.ItemResult {
	if r.GetError().GetReason() == reason.LeaseLost {
		return &v1.ItemResult{}
	}
	return r
}

// repeatedFail: whether this call or time ended the lease is not known.
func repeatedFail(r *v1.FailTasksResponse_Result) *v1.FailTasksResponse_Result {
	switch r.GetError().GetReason() {
	case reason.TaskDead:
		return &v1.FailTasksResponse_Result{State: v1.TaskState_TASK_STATE_DEAD}
	case reason.LeaseLost:
		return &v1.FailTasksResponse_Result{Error: reason.Item(errEndUnknown)}
	}
	return r
}

var errEndUnknown = reason.New(codes.Unavailable, reason.OutcomeUnknown, nil,
	"the lease has ended: by this request, whose first try got no answer, or because it ran out before")
