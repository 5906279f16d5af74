package matching

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
)

// A sticky queue is one worker's own beside a queue: tasks that only this worker
// should do, as long as it is there. It has one partition.

// stickyAbsence is how long a worker may not have polled its sticky queue before adds
// to it are refused.
const stickyAbsence = 10 * time.Second

func errStickyUnavailable(id PartitionID) error {
	return reason.New(codes.FailedPrecondition, reason.StickyWorkerUnavailable, map[string]string{"queue": id.Queue, "worker": id.Sticky},
		"worker %q does not poll its sticky queue beside queue %q: add to the queue itself", id.Sticky, id.Queue)
}

// pollerAway says whether no poll waits in a sticky queue and none was there lately.
func (o *owner) pollerAway() bool {
	return o.waiting.Load() == 0 && o.engine.steady()-o.polledAt.Load() > int64(stickyAbsence)
}
