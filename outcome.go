package switchyard

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// ErrRelease is returned by a handler to hand its task back unworked: the task
// is ready again at once, for any worker, and the attempt does not count. Use
// RetryAfter to try later instead; a task that every worker releases goes round
// and round.
var ErrRelease = errors.New("switchyard: released by the handler")

// NotRetryable marks an error as final: the task becomes dead whatever attempts
// are left. It returns nil for nil.
func NotRetryable(err error) error {
	if err == nil {
		return nil
	}
	return &handlerError{cause: err, notRetryable: true}
}

// RetryAfter marks an error so that the next attempt starts after d instead of
// after the task's backoff. The attempt counts. It returns nil for nil; a d
// below 0 counts as 0.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &handlerError{cause: err, after: max(d, 0), delayed: true}
}

// handlerError is an error with an order for what to do with the task.
type handlerError struct {
	cause        error
	notRetryable bool
	delayed      bool
	after        time.Duration
}

func (e *handlerError) Error() string { return e.cause.Error() }
func (e *handlerError) Unwrap() error { return e.cause }

// PanicError is what a handler's panic becomes.
type PanicError struct {
	// Value is what the handler panicked with.
	Value any
	// Stack is the goroutine's stack, cut to a few kilobytes.
	Stack string
}

// Error returns the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.Value, e.Stack) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// errGoexit is the error of a handler that ended its goroutine.
var errGoexit = errors.New("the handler called runtime.Goexit")

const (
	// The server keeps that much of an error text.
	maxErrorText = 4 << 10
	// A panic's stack is cut so that its end is not lost behind it.
	maxStack = 3 << 10
)

// cut shortens s to at most n bytes of valid UTF-8.
func cut(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
