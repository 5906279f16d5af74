package matching

import (
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// What a result means when the call was repeated, because the try before got no answer and may
// have got through.

// When the task has been completed, perhaps by an earlier lease's successor, the caller is told
// that it has: TASK_ALREADY_COMPLETED wants nothing of it. Of the others it is not known whether
// this very call ended the lease, or time did.

// leaseOver are the reasons that say that a lease is over.
var leaseOver = []string{
	reason.LeaseLost, reason.TaskAlreadyCompleted, reason.TaskDead, reason.TaskCancelled, reason.TaskExpired, reason.TaskNotFound,
}

func repeatedRelease(r *v1.ItemResult) *v1.ItemResult {
	if slices.Contains(leaseOver, r.GetError().GetReason()) {
		return refusedItem(errEndUnknown)
	}
	return r
}

func repeatedFail(r *v1.FailTasksResponse_Result) *v1.FailTasksResponse_Result {
	if slices.Contains(leaseOver, r.GetError().GetReason()) {
		return &v1.FailTasksResponse_Result{Error: reason.Item(errEndUnknown)}
	}
	return r
}

var errEndUnknown = reason.New(codes.Unavailable, reason.OutcomeUnknown, nil,
	"the lease has ended: by this request, whose first try got no answer, or because it ran out before")
