package httpclient

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// Result is how an attempt ended.
type Result struct {
	Request *http.Request
	// Response is nil if there is an error, and Err the other way round.
	Response *http.Response
	Err      error
	// Signal is what the server said about retries.
	Signal retry.Signal
	// Idempotent is what the config says about the request.
	Idempotent bool
	// Unconnected: no connection could be had.
	Unconnected bool
	// Unsent: the head of the request was not written.
	Unsent bool
	// AttemptTimeout: the time for one attempt was over, and not the caller's.
	AttemptTimeout bool
	// CallerGone: the request's context has ended.
	CallerGone bool
}

// Classify is what outcomes mean if the config has no classifier of its own.
func Classify(r Result) retry.Class {
	if r.Err == nil {
		code := r.Response.StatusCode
		switch {
		case r.Signal == retry.Never && code >= 400:
			return retry.NotRetryable
		case r.Signal == retry.Nack:
			return retry.Requeueable
		case code == http.StatusTooManyRequests, code == http.StatusBadGateway,
			code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
			if r.Idempotent {
				return retry.Retryable
			}
			return retry.Failed
		case code >= 500:
			return retry.Failed
		}
		return retry.Success
	}
	switch {
	case r.CallerGone && errors.Is(r.Err, context.Canceled):
		return retry.Ignored
	case r.Signal == retry.Never:
		return retry.NotRetryable
	case r.CallerGone:
		return retry.Failed
	case r.Unconnected:
		return retry.Unconnected
	case r.Unsent:
		return retry.Requeueable
	case r.Idempotent:
		return retry.Retryable
	}
	return retry.Failed
}

// signalOf is what an answer says about retries. A 503 with "Retry-After: 0" is a
// NACK too: that is how others say it.
func signalOf(resp *http.Response) retry.Signal {
	s := retry.ParseSignal(resp.Header.Values(retry.SignalKey))
	if s == retry.NoSignal && resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "0" {
		return retry.Nack
	}
	return s
}

// maxRetryAfter is the longest pause that a server can ask for and still be asked
// again.
const maxRetryAfter = 10 * time.Second

// retryAfter is the pause that the answer asks for.
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	v := resp.Header.Get("Retry-After")
	if v == "" {
		return 0
	}
	if seconds, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// unconnected tells errors of connecting from all others.
func unconnected(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// outcomeOf says what an attempt tells about its endpoint.
func outcomeOf(r Result) balance.Outcome {
	if r.Err != nil {
		switch {
		case r.CallerGone && !r.AttemptTimeout:
			// Too slow for this caller may still be quick for others; a hanging server
			// shows by its load.
			if errors.Is(r.Err, context.DeadlineExceeded) {
				return balance.Failure
			}
			return balance.Ignored
		case r.Unconnected:
			return balance.Unreachable
		}
		return balance.Failure
	}
	switch code := r.Response.StatusCode; {
	case r.Signal == retry.Nack, code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		return balance.Refused
	case code >= 500 && code != http.StatusNotImplemented:
		return balance.Failure
	}
	return balance.Success
}

// Refuse answers a request with 503 and a NACK: the handler has done nothing for
// it, and the client may send it to another server.
func Refuse(w http.ResponseWriter, text string) {
	w.Header().Set(retry.SignalKey, retry.Nack.Value())
	w.Header().Set("Retry-After", "0")
	http.Error(w, text, http.StatusServiceUnavailable)
}

// MarkNever marks an answer that is still to be written: no client must send the
// request again.
func MarkNever(w http.ResponseWriter) { w.Header().Set(retry.SignalKey, retry.Never.Value()) }

// Error is the error of a request whose retries were held back, or that must not
// be sent again.
type Error struct{ err error }

// Error implements error.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the error of the last attempt.
func (e *Error) Unwrap() error { return e.err }

// RetrySignal implements retry.Signaller.
func (e *Error) RetrySignal() retry.Signal { return retry.Never }
