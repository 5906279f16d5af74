package grpcretry

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/retry"
)

// Result is how an attempt ended.
type Result struct {
	// Method is the full method name.
	Method string
	// Err is nil or the error, Code its code.
	Err  error
	Code codes.Code
	// Signal is what the server said about retries.
	Signal retry.Signal
	// Idempotent is the method's.
	Idempotent bool
	// Unsent: it is known that nothing was written.
	Unsent bool
	// NoEndpoints: it is known that there was nothing to send to.
	NoEndpoints bool
	// AttemptTimeout: the time for one attempt was over, and not the caller's.
	AttemptTimeout bool
	// CallerGone: the caller's context has ended.
	CallerGone bool
}

// Classify is what outcomes mean if a Method has no classifier of its own.
func Classify(r Result) retry.Class {
	switch {
	case r.Err == nil:
		return retry.Success
	case r.CallerGone && r.Code == codes.Canceled:
		return retry.Ignored
	case r.Signal == retry.Never:
		return retry.NotRetryable
	case r.CallerGone, r.NoEndpoints:
		return retry.Failed
	case r.Signal == retry.Nack, r.Unsent:
		return retry.Requeueable
	case !r.Idempotent:
		return retry.Failed
	case r.AttemptTimeout, r.Code == codes.Unavailable, r.Code == codes.ResourceExhausted:
		return retry.Retryable
	}
	return retry.Failed
}

// pushback is the trailer with which gRPC servers ask for a pause, in
// milliseconds, or, with a negative number, for no retry at all.
const pushback = "grpc-retry-pushback-ms"

// classify looks at the end of an attempt. ctx is the logical request's, own says
// that the attempt had a deadline before ctx's.
func (m *method) classify(ctx context.Context, err error, trailer metadata.MD, a *retry.Attempt, own bool) (class retry.Class, wait time.Duration) {
	if err == nil {
		return m.config.Classify(Result{Method: m.name, Idempotent: m.config.Idempotent}), 0
	}
	r := Result{
		Method: m.name, Err: err, Code: status.Code(err), Idempotent: m.config.Idempotent,
		Signal: retry.ParseSignal(trailer[retry.SignalKey]), Unsent: a.Unsent(), NoEndpoints: a.Nowhere(),
		CallerGone: ctx.Err() != nil,
	}
	r.AttemptTimeout = own && r.Code == codes.DeadlineExceeded && !r.CallerGone
	if v := trailer[pushback]; len(v) > 0 {
		if ms, err := strconv.ParseInt(v[0], 10, 32); err != nil || ms < 0 {
			r.Signal = retry.Never
		} else {
			wait = time.Duration(ms) * time.Millisecond
		}
	}
	if retry.NoRetry(ctx) || retry.SignalOf(err) == retry.Never {
		r.Signal = retry.Never
	}
	class = m.config.Classify(r)
	if class != retry.Success && r.Signal == retry.Never && class != retry.Ignored {
		class = retry.NotRetryable // overrides every classifier
	}
	if class == retry.Retryable || class == retry.Requeueable {
		wait = max(wait, retryInfo(err))
	}
	return class, wait
}

// retryInfo is the pause that a google.rpc.RetryInfo asks for.
func retryInfo(err error) time.Duration {
	s, ok := status.FromError(err)
	if !ok || len(s.Proto().GetDetails()) == 0 {
		return 0
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// Error is the error of a request whose retries were held back, or that must not
// be sent again. Callers need not know it: it has the status of the last attempt.
// A server that returns it from a handler passes retry.Never on to its caller.
type Error struct{ err error }

// Error implements error.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the error of the last attempt.
func (e *Error) Unwrap() error { return e.err }

// GRPCStatus returns the status of the last attempt.
func (e *Error) GRPCStatus() *status.Status { return status.Convert(e.err) }

// RetrySignal implements retry.Signaller.
func (e *Error) RetrySignal() retry.Signal { return retry.Never }

// finish is the error that the caller gets.
func finish(err error, d retry.Decision) error {
	if err != nil && d.NotRetryable {
		return &Error{err}
	}
	return err
}
