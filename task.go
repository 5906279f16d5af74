package switchyard

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Task is a task to add. Only Kind is required; fields left at zero take the
// queue's settings.
type Task struct {
	// ID is a UUID, best of version 7. Leave it empty to have one made. A task
	// whose id was added to the queue within the last 10 minutes is not added
	// again; so set it when the same task may be added twice.
	ID string
	// Kind names the handler, 1 to 255 bytes.
	Kind string
	// Payload is opaque to the server; 1 MiB at most by default.
	Payload []byte
	// Headers are carried along unchanged.
	Headers map[string]string
	// RunAt is the time before which the task does not start.
	RunAt time.Time
	// Delay is RunAt as a time from now, by this process's clock. If both are
	// set the later one counts.
	Delay time.Duration
	// TTL is how long after it was added the task may start; an older one is
	// dropped.
	TTL time.Duration
	// MaxAttempts is how often the task is tried before it is dead.
	MaxAttempts int
	// Retry says how long to wait between attempts; nil takes the queue's.
	Retry *RetryPolicy
	// LeaseTime is how long a worker holds the task when the worker does not say
	// otherwise.
	LeaseTime time.Duration
	// Priority is 1 to 5, 1 goes first; 3 by default.
	Priority int
	// FairnessKey names whose task it is, in at most 64 bytes: tasks of one priority
	// and different keys take turns, so that a key with many tasks does not keep the
	// others waiting. Tasks without a key are one more key.
	FairnessKey string
	// FairnessWeight is how large the key's share is among those that wait, at least
	// 0.001; 1 by default.
	FairnessWeight float64
}

// RetryPolicy says how long a failed task waits for its next attempt: after the
// n-th, InitialBackoff * Multiplier^(n-1), at most MaxBackoff, of which the
// share Jitter is random. Fields left at zero take the queue's value.
type RetryPolicy struct {
	InitialBackoff time.Duration
	MaxBackoff     time.Duration
	// Multiplier is at least 1.
	Multiplier float64
	// Jitter is 0 to 1; NoJitter for none.
	Jitter float64
}

// NoJitter is the RetryPolicy.Jitter of waits that are not random at all.
const NoJitter = -1

func (p *RetryPolicy) proto() *v1.RetryPolicy {
	if p == nil {
		return nil
	}
	out := &v1.RetryPolicy{
		InitialBackoff: durationProto(p.InitialBackoff),
		MaxBackoff:     durationProto(p.MaxBackoff),
		Multiplier:     p.Multiplier,
	}
	if jitter := p.Jitter; jitter != 0 {
		if jitter == NoJitter {
			jitter = 0
		}
		out.Jitter = &jitter
	}
	return out
}

func retryPolicyOf(p *v1.RetryPolicy) *RetryPolicy {
	if p == nil {
		return nil
	}
	out := &RetryPolicy{
		InitialBackoff: p.GetInitialBackoff().AsDuration(),
		MaxBackoff:     p.GetMaxBackoff().AsDuration(),
		Multiplier:     p.GetMultiplier(),
		Jitter:         p.GetJitter(),
	}
	if p.Jitter != nil && p.GetJitter() == 0 {
		out.Jitter = NoJitter
	}
	return out
}

// runAt returns when the task may start, the zero time for at once.
func (t *Task) runAt() time.Time {
	if t.Delay <= 0 {
		return t.RunAt
	}
	if at := time.Now().Add(t.Delay); at.After(t.RunAt) {
		return at
	}
	return t.RunAt
}

// AddResult says what became of an added task.
type AddResult struct {
	// ID is the task's id, the one that was made for it if it had none.
	ID string
	// AlreadyAdded says that the queue had the task from an earlier call.
	AlreadyAdded bool
	// Err says why this task was not added; nil for one that was.
	Err error
}

// TaskState is where a task is in its life.
type TaskState int

// The states of a task.
const (
	TaskUnknown TaskState = iota
	// TaskDelayed waits for its run-at time.
	TaskDelayed
	// TaskReady waits for a worker.
	TaskReady
	// TaskLeased is in a worker's hands.
	TaskLeased
	// TaskRetrying failed and waits for its next attempt.
	TaskRetrying
	// TaskDead failed for good; kept until it is redriven, purged or cancelled.
	TaskDead
	// TaskCompleted ended with success.
	TaskCompleted
	// TaskCancelled was removed by Cancel or a purge.
	TaskCancelled
	// TaskExpired was dropped because its time to live was over.
	TaskExpired
)

var taskStateNames = [...]string{
	"unknown", "delayed", "ready", "leased", "retrying", "dead", "completed", "cancelled", "expired",
}

// String returns the state as one lower-case word.
func (s TaskState) String() string {
	if s < 0 || int(s) >= len(taskStateNames) {
		return taskStateNames[TaskUnknown]
	}
	return taskStateNames[s]
}

// taskStateOf relies on the numbers being those of the wire, which a test
// checks.
func taskStateOf(s v1.TaskState) TaskState {
	if s < 0 || int(s) >= len(taskStateNames) {
		return TaskUnknown
	}
	return TaskState(s)
}

// TaskInfo is all that the server knows of a task. Times that do not apply are
// zero.
type TaskInfo struct {
	ID, Namespace, Queue, Kind string
	Payload                    []byte
	Headers                    map[string]string
	State                      TaskState
	// Attempt is the running or the last one, 0 before the first.
	Attempt, MaxAttempts int
	AddedAt              time.Time
	// RunAt is when it may run next, if delayed or retrying.
	RunAt time.Time
	// LeaseDeadline is when its lease ends, if leased, and Worker who holds it.
	LeaseDeadline time.Time
	Worker        string
	// LastError is why the last attempt failed, if one did.
	LastError string
	// DeadAt is when it became dead.
	DeadAt time.Time
	// ExpiresAt is when it is dropped if it has not started.
	ExpiresAt time.Time
	// Priority is 1 to 5.
	Priority       int
	FairnessKey    string
	FairnessWeight float64
}

func taskInfoOf(t *v1.Task) *TaskInfo {
	return &TaskInfo{
		ID:            t.GetId(),
		Namespace:     t.GetNamespace(),
		Queue:         t.GetQueue(),
		Kind:          t.GetKind(),
		Payload:       t.GetPayload(),
		Headers:       t.GetHeaders(),
		State:         taskStateOf(t.GetState()),
		Attempt:       int(t.GetAttempt()),
		MaxAttempts:   int(t.GetMaxAttempts()),
		AddedAt:       timeOf(t.GetAddedAt()),
		RunAt:         timeOf(t.GetRunAt()),
		LeaseDeadline: timeOf(t.GetLeaseDeadline()),
		Worker:        t.GetWorkerIdentity(),
		LastError:     t.GetLastError(),
		DeadAt:        timeOf(t.GetDeadAt()),
		ExpiresAt:     timeOf(t.GetExpiresAt()),

		Priority:       int(t.GetPriority()),
		FairnessKey:    t.GetFairnessKey(),
		FairnessWeight: float64(t.GetFairnessWeight()),
	}
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// durationProto returns nil for 0: not given.
func durationProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
