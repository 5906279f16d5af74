package switchyard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/api/reason"
)

// Error is an error of a Switchyard server, or of the way to it: a gRPC code, a
// machine-readable reason, a sentence for a person, and particulars. Get it
// with errors.As.
type Error = reason.Error

// Errors to compare with, by errors.Is. The errors that calls return have the
// same reason and a text of their own.
var (
	ErrQueueNotFound        = sentinel(reason.QueueNotFound, "the queue does not exist")
	ErrQueueAlreadyExists   = sentinel(reason.QueueAlreadyExists, "the queue exists already")
	ErrQueueNotEmpty        = sentinel(reason.QueueNotEmpty, "the queue has tasks")
	ErrTaskNotFound         = sentinel(reason.TaskNotFound, "the task is not known")
	ErrTaskAlreadyCompleted = sentinel(reason.TaskAlreadyCompleted, "the task was completed before")
	ErrTaskCancelled        = sentinel(reason.TaskCancelled, "the task was cancelled")
	ErrTaskExpired          = sentinel(reason.TaskExpired, "the task's time to live was over")
	ErrTaskDead             = sentinel(reason.TaskDead, "the task has failed for good")
	ErrPayloadTooLarge      = sentinel(reason.PayloadTooLarge, "the payload is too large")
	ErrOverloaded           = sentinel(reason.Overloaded, "the server is overloaded")

	// ErrLeaseLost is also the cause with which a job's context is cancelled
	// when its lease is gone.
	ErrLeaseLost = sentinel(reason.LeaseLost, "the task's lease is lost")
)

// ErrWorkerStopped is the cause with which a job's context is cancelled when
// its worker stops and the job did not end within the stop timeout.
var ErrWorkerStopped = errors.New("switchyard: the worker is stopping")

// ErrClientClosed is returned by calls of a client after Close.
var ErrClientClosed = errors.New("switchyard: the client is closed")

func sentinel(r, text string) error { return reason.New(reason.Code(r), r, nil, "%s", text) }

// Reason returns the machine-readable reason of an error, "QUEUE_NOT_FOUND" for
// instance, and "" when it has none.
func Reason(err error) string { return reason.Of(err) }

// BatchError is the error of AddMany when some of the tasks were not added. The
// results tell which, and why each.
type BatchError struct {
	// Failed of Total tasks were not added.
	Failed, Total int
	// First is the error of the first task that failed.
	First error
}

// Error names the numbers and the first error.
func (e *BatchError) Error() string {
	return fmt.Sprintf("%d of %d tasks were not added; the first: %v", e.Failed, e.Total, e.First)
}

// Unwrap returns the first error.
func (e *BatchError) Unwrap() error { return e.First }

// transient says whether the same call may succeed soon without anybody acting.
// Whether the failed one took effect is not known.
func transient(err error) bool {
	if err == nil {
		return false
	}
	var e *Error
	if errors.As(err, &e) {
		return transientReason(e.Code(), e.Reason())
	}
	s, ok := status.FromError(err)
	if !ok {
		return false
	}
	if s.Code() == codes.ResourceExhausted && len(s.Details()) == 0 {
		return false // gRPC's own: a message over the size limit stays so
	}
	return transientReason(s.Code(), reason.Of(err))
}

func transientReason(code codes.Code, r string) bool {
	if r == reason.StorageFailed {
		return false // an operator has to act
	}
	return code == codes.Unavailable || reason.Retryable(r)
}

// callError turns what gRPC returned into the error for the user: what was
// tried, the server's reason, and the end of the context if that was it.
func callError(ctx context.Context, op, what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrClientClosed) {
		return err
	}
	if end := contextEnd(ctx, err); end != nil {
		if errors.Is(err, end) {
			return fmt.Errorf("%s %s: %w", op, what, err)
		}
		return fmt.Errorf("%s %s: %w: %w", op, what, end, reason.From(err))
	}
	return fmt.Errorf("%s %s: %w", op, what, reason.From(err))
}

// contextEnd returns why the context ended, nil if it did not. gRPC may notice
// a deadline a moment before the context does, so its word counts as well.
func contextEnd(ctx context.Context, err error) error {
	if end := ctx.Err(); end != nil {
		return end
	}
	if deadline, ok := ctx.Deadline(); ok && status.Code(err) == codes.DeadlineExceeded &&
		time.Until(deadline) < 10*time.Millisecond {
		return context.DeadlineExceeded
	}
	return nil
}
