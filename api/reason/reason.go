package reason

import "google.golang.org/grpc/codes"

// Domain is the ErrorInfo domain of every error of Switchyard.
const Domain = "switchyard.dev"

// Calls.
const (
	// NoPoller: no worker took the call in time. Nothing was done.
	NoPoller = "NO_POLLER"
	// CallTimedOut: a worker took the call and has not answered in time.
	CallTimedOut = "CALL_TIMED_OUT"
	// CallGone: an answer whose caller has left.
	CallGone = "CALL_GONE"
)

// Between nodes.
const (
	// InvalidPartition: no such partition can be.
	InvalidPartition = "INVALID_PARTITION"
	// InvalidForward: a forwarded request that is not from where it says.
	InvalidForward = "INVALID_FORWARD"
)

// Queues.
const (
	// QueueNotFound: the queue does not exist, or was deleted in the meantime.
	QueueNotFound = "QUEUE_NOT_FOUND"
	// QueueAlreadyExists: a queue of that name exists.
	QueueAlreadyExists = "QUEUE_ALREADY_EXISTS"
	// QueueNotEmpty: DeleteQueue without force on a queue that has tasks.
	QueueNotEmpty = "QUEUE_NOT_EMPTY"
)

// Tasks and leases.
const (
	// TaskNotFound: no task of that id is known.
	TaskNotFound = "TASK_NOT_FOUND"
	// TaskAlreadyCompleted: the task has ended with success.
	TaskAlreadyCompleted = "TASK_ALREADY_COMPLETED"
	// TaskCancelled: the task was removed by CancelTask or PurgeQueue.
	TaskCancelled = "TASK_CANCELLED"
	// TaskExpired: the task was dropped when its time to live was over.
	TaskExpired = "TASK_EXPIRED"
	// TaskDead: the task has failed for good.
	TaskDead = "TASK_DEAD"
	// LeaseLost: the token is of an older attempt, or the lease ran out and the
	// task was handed on or is waiting again.
	LeaseLost = "LEASE_LOST"
	// InvalidLeaseToken: the bytes are not a lease token of this queue.
	InvalidLeaseToken = "INVALID_LEASE_TOKEN"
)

// Arguments. Metadata "field" names the field, "limit" the limit where there is
// one.
const (
	// InvalidRequest: the request cannot be read at all: malformed protobuf or
	// JSON, wrong UTF-8, a missing item.
	InvalidRequest = "INVALID_REQUEST"
	// InvalidNamespace: length or characters.
	InvalidNamespace = "INVALID_NAMESPACE"
	// InvalidQueueName: length or characters.
	InvalidQueueName = "INVALID_QUEUE_NAME"
	// InvalidTaskID: not a UUID.
	InvalidTaskID = "INVALID_TASK_ID"
	// InvalidKind: empty, too long, or with control characters.
	InvalidKind = "INVALID_KIND"
	// InvalidHeader: too many, too large, or an empty name.
	InvalidHeader = "INVALID_HEADER"
	// InvalidDuration: malformed or out of range.
	InvalidDuration = "INVALID_DURATION"
	// InvalidTime: malformed or too far away.
	InvalidTime = "INVALID_TIME"
	// InvalidRetryPolicy: a multiplier, jitter or backoff out of range.
	InvalidRetryPolicy = "INVALID_RETRY_POLICY"
	// InvalidMaxAttempts: out of range.
	InvalidMaxAttempts = "INVALID_MAX_ATTEMPTS"
	// InvalidMaxTasks: PollTasks.max_tasks out of range.
	InvalidMaxTasks = "INVALID_MAX_TASKS"
	// InvalidIdentity: too long.
	InvalidIdentity = "INVALID_IDENTITY"
	// InvalidPageSize: out of range.
	InvalidPageSize = "INVALID_PAGE_SIZE"
	// InvalidPageToken: not a token that this call gave out.
	InvalidPageToken = "INVALID_PAGE_TOKEN"
	// InvalidUpdateMask: a path that is not part of the queue's configuration.
	InvalidUpdateMask = "INVALID_UPDATE_MASK"
	// InvalidPriority: negative.
	InvalidPriority = "INVALID_PRIORITY"
	// InvalidFairness: a fairness key that is too long, twice or one too many, or a
	// weight that is negative or no number.
	InvalidFairness = "INVALID_FAIRNESS"
	// InvalidRateLimit: negative or no number.
	InvalidRateLimit = "INVALID_RATE_LIMIT"
	// InvalidLimit: negative.
	InvalidLimit = "INVALID_LIMIT"
	// InvalidScaling: settings of managed partition counts that cannot be.
	InvalidScaling = "INVALID_SCALING"
	// PayloadTooLarge: one task's payload is over the limit.
	PayloadTooLarge = "PAYLOAD_TOO_LARGE"
	// RequestTooLarge: the whole request is over the limit.
	RequestTooLarge = "REQUEST_TOO_LARGE"
	// BatchTooLarge: more items than one request may carry.
	BatchTooLarge = "BATCH_TOO_LARGE"
	// BatchEmpty: a batch without items.
	BatchEmpty = "BATCH_EMPTY"
	// UnknownMethod: no such call or path.
	UnknownMethod = "UNKNOWN_METHOD"
)

// The server's state.
const (
	// Overloaded: a limit on work in progress is reached. Nothing was done;
	// retry with backoff.
	Overloaded = "OVERLOADED"
	// ShuttingDown: the node is stopping. Retry, elsewhere if there is another.
	ShuttingDown = "SHUTTING_DOWN"
	// NotReady: the node is starting or has no leader at the moment; retry.
	NotReady = "NOT_READY"
	// PartitionMoved: another owner has the partition now; retry.
	PartitionMoved = "PARTITION_MOVED"
	// OutcomeUnknown: the store changed its master while the request was on its way to the
	// disks; it may have taken effect or not. Repeat it: adds have ids, and ends of leases
	// have tokens.
	OutcomeUnknown = "OUTCOME_UNKNOWN"
	// StalePartitionCounts: the caller's idea of how many partitions the queue has
	// is too far off for this request; the right counts are in the metadata (read,
	// write). Nothing was done; choose a partition again.
	StalePartitionCounts = "STALE_PARTITION_COUNTS"
	// StickyWorkerUnavailable: the worker of a sticky queue has not polled it
	// lately. Nothing was done; use the queue itself.
	StickyWorkerUnavailable = "STICKY_WORKER_UNAVAILABLE"
	// WorkerCancelled: the worker's polls were cancelled a moment ago and its new
	// ones are refused for a while.
	WorkerCancelled = "WORKER_CANCELLED"
	// StorageFailed: the store cannot write or read (disk full, corruption).
	// An operator has to act; whether the request took effect is unknown.
	StorageFailed = "STORAGE_FAILED"
	// DeadlineExceeded: the request's deadline passed; whether it took effect
	// is unknown.
	DeadlineExceeded = "DEADLINE_EXCEEDED"
	// RequestCancelled: the caller went away.
	RequestCancelled = "REQUEST_CANCELLED"
	// Internal: a fault of the server; its log has more.
	Internal = "INTERNAL"
)

// table is every reason with the code that it goes with.
var table = []struct {
	reason string
	code   codes.Code
}{
	{QueueNotFound, codes.NotFound},
	{QueueAlreadyExists, codes.AlreadyExists},
	{QueueNotEmpty, codes.FailedPrecondition},
	{TaskNotFound, codes.NotFound},
	{TaskAlreadyCompleted, codes.FailedPrecondition},
	{TaskCancelled, codes.FailedPrecondition},
	{TaskExpired, codes.FailedPrecondition},
	{TaskDead, codes.FailedPrecondition},
	{LeaseLost, codes.FailedPrecondition},
	{InvalidLeaseToken, codes.InvalidArgument},
	{InvalidRequest, codes.InvalidArgument},
	{InvalidNamespace, codes.InvalidArgument},
	{InvalidQueueName, codes.InvalidArgument},
	{InvalidTaskID, codes.InvalidArgument},
	{InvalidKind, codes.InvalidArgument},
	{InvalidHeader, codes.InvalidArgument},
	{InvalidDuration, codes.InvalidArgument},
	{InvalidTime, codes.InvalidArgument},
	{InvalidRetryPolicy, codes.InvalidArgument},
	{InvalidMaxAttempts, codes.InvalidArgument},
	{InvalidMaxTasks, codes.InvalidArgument},
	{InvalidIdentity, codes.InvalidArgument},
	{InvalidPageSize, codes.InvalidArgument},
	{InvalidPageToken, codes.InvalidArgument},
	{InvalidUpdateMask, codes.InvalidArgument},
	{InvalidPriority, codes.InvalidArgument},
	{InvalidFairness, codes.InvalidArgument},
	{InvalidRateLimit, codes.InvalidArgument},
	{InvalidLimit, codes.InvalidArgument},
	{PayloadTooLarge, codes.InvalidArgument},
	{RequestTooLarge, codes.InvalidArgument},
	{BatchTooLarge, codes.InvalidArgument},
	{BatchEmpty, codes.InvalidArgument},
	{UnknownMethod, codes.Unimplemented},
	{Overloaded, codes.ResourceExhausted},
	{ShuttingDown, codes.Unavailable},
	{NotReady, codes.Unavailable},
	{PartitionMoved, codes.Unavailable},
	{OutcomeUnknown, codes.Unavailable},
	{StalePartitionCounts, codes.Aborted},
	{StickyWorkerUnavailable, codes.FailedPrecondition},
	{WorkerCancelled, codes.FailedPrecondition},
	{NoPoller, codes.DeadlineExceeded},
	{CallTimedOut, codes.DeadlineExceeded},
	{CallGone, codes.NotFound},
	{InvalidPartition, codes.InvalidArgument},
	{InvalidScaling, codes.InvalidArgument},
	{InvalidForward, codes.InvalidArgument},
	{StorageFailed, codes.Unavailable},
	{DeadlineExceeded, codes.DeadlineExceeded},
	{RequestCancelled, codes.Canceled},
	{Internal, codes.Internal},
}

// All returns every reason, in the order of the documentation.
func All() []string {
	all := make([]string, len(table))
	for i, row := range table {
		all[i] = row.reason
	}
	return all
}

// Code returns the gRPC code that goes with a reason, codes.Unknown for a text
// that is not a reason of this package.
func Code(reason string) codes.Code {
	for _, row := range table {
		if row.reason == reason {
			return row.code
		}
	}
	return codes.Unknown
}

// Retryable says whether the same request may succeed soon without anybody
// acting, and nothing of it was done: the server refused it before it started.
func Retryable(reason string) bool {
	switch reason {
	case Overloaded, ShuttingDown, NotReady, PartitionMoved, StalePartitionCounts:
		return true
	}
	return false
}
