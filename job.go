package switchyard

import (
	"context"
	"time"
)

// Job is a task in a worker's hands: one attempt. It belongs to its handler
// until that returns.
type Job struct {
	// ID is the task's id, Queue the queue it came from, Kind its handler's name.
	ID, Queue, Kind string
	// Payload is what the producer gave. Copy it if it is kept after the handler
	// returned: it may be part of a larger piece of memory.
	Payload []byte
	// Headers is what the producer gave; nil if nothing.
	Headers map[string]string
	// Attempt is 1 for the first try, MaxAttempts the last one that there is.
	Attempt, MaxAttempts int
	// AddedAt is when the task was added, by the server's clock.
	AddedAt time.Time
	// LastError is why the last attempt failed, "" on the first.
	LastError string
	// Priority is 1 to 5, FairnessKey what the producer gave.
	Priority    int
	FairnessKey string

	token []byte
	// lease is how long the lease lasts each time, deadline when it ends by this
	// process's clock. After the start deadline belongs to the seat.
	lease    time.Duration
	deadline time.Time
}

// Handler runs tasks. It must be safe for concurrent use.
//
// A nil error completes the task. Any other error fails the attempt: the task is
// retried after its backoff, or becomes dead after the last attempt. See
// NotRetryable, RetryAfter and ErrRelease for other endings. A panic counts as
// an error.
//
// ctx is cancelled when the handler's result does not count any more, since the
// lease is lost, or when the worker stops and its stop timeout is over;
// context.Cause tells which (ErrLeaseLost or ErrWorkerStopped). It carries the
// values of the context that was given to Run.
type Handler interface {
	HandleTask(ctx context.Context, job *Job) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, job *Job) error

// HandleTask calls f.
func (f HandlerFunc) HandleTask(ctx context.Context, job *Job) error { return f(ctx, job) }
