package matching

import (
	"slices"

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

// leaseOver are the reasons that say that a lease is over.
var leaseOver = []string{
	reason.LeaseLost, reason.TaskAlreadyCompleted, reason.TaskDead, reason.TaskCancelled, reason.TaskExpired, reason.TaskNotFound,
}

// repeatedRelease: that the lease has ended is what the call wants.
func repeatedRelease(r *v1.ItemResult) *v1.ItemResult {
	if slices.Contains(leaseOver, r.GetError().GetReason()) {
		return &v1.ItemResult{}
	}
	return r
}

// repeatedFail: whether this call or time ended the lease is not known, unless the task is dead,
// which is what a call says that fails it for good.
func repeatedFail(r *v1.FailTasksResponse_Result) *v1.FailTasksResponse_Result {
	switch why := r.GetError().GetReason(); {
	case why == reason.TaskDead:
		return &v1.FailTasksResponse_Result{State: v1.TaskState_TASK_STATE_DEAD}
	case slices.Contains(leaseOver, why):
		return &v1.FailTasksResponse_Result{Error: reason.Item(errEndUnknown)}
	}
	return r
}

var errEndUnknown = reason.New(codes.Unavailable, reason.OutcomeUnknown, nil,
	"the lease has ended: by this request, whose first try got no answer, or because it ran out before")
