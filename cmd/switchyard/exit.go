package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/api/reason"
)

// Exit codes. docs/cli.md and the help text of the root command list them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4
	exitUnavailable = 5
	exitPartly      = 6
	exitInterrupted = 130
)

// exitError is an error with the exit code it leads to. An exitError without an
// error inside prints nothing: the command has said all there is.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef is an error in what the user typed.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// usageOf is usagef with a pointer to the command's help.
func usageOf(c *cobra.Command, err error) error {
	return usagef("%w; see: %s --help", err, c.CommandPath())
}

// finish prints err, if any, as one line and returns the exit code.
func (a *app) finish(err error) int {
	code, text := a.explain(err)
	if text != "" {
		text = strings.TrimPrefix(strings.TrimSpace(text), "switchyard: ")
		fmt.Fprintln(a.stderr, "switchyard: "+strings.ReplaceAll(text, "\n", " "))
	}
	return code
}

// explain turns an error into an exit code and a sentence that says what to do.
func (a *app) explain(err error) (code int, text string) {
	if err == nil {
		return exitOK, ""
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err == nil {
			return exit.code, ""
		}
		return exit.code, err.Error()
	}
	if !fromServer(err) {
		return exitFailed, err.Error()
	}
	e := reason.From(err)
	switch {
	case unreachable(e):
		return exitUnavailable, fmt.Sprintf("cannot reach a server at %s: %s; start one with: switchyard dev", a.address, dialProblem(e.Message()))
	case e.Reason() == reason.DeadlineExceeded:
		return exitUnavailable, fmt.Sprintf("the server at %s did not answer within %v; --timeout gives it longer", a.address, a.timeout)
	case e.Reason() == reason.RequestCancelled:
		return exitInterrupted, "interrupted"
	}
	text = e.Error()
	if hint := a.hint(e); hint != "" {
		text += "; " + hint
	}
	return codeOf(e.Code()), text
}

// fromServer reports whether err came out of a call.
func fromServer(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || reason.Of(err) != "" {
		return true
	}
	_, ok := status.FromError(err)
	return ok
}

func codeOf(c codes.Code) int {
	switch c {
	case codes.OK:
		return exitOK
	case codes.InvalidArgument, codes.OutOfRange:
		return exitUsage
	case codes.NotFound:
		return exitNotFound
	case codes.AlreadyExists, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.Aborted:
		return exitRefused
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return exitUnavailable
	case codes.Canceled:
		return exitInterrupted
	}
	return exitFailed
}

// hint is what this command line can do about an error.
func (a *app) hint(e *reason.Error) string {
	queue := e.Meta()["queue"]
	if queue == "" {
		queue = "QUEUE"
	}
	switch e.Reason() {
	case reason.QueueNotFound:
		return "create it with: switchyard queue create " + queue
	case reason.QueueAlreadyExists:
		return "change it with: switchyard queue update " + queue
	case reason.QueueNotEmpty:
		return "delete its tasks too with: switchyard queue delete --force " + queue
	}
	return ""
}

// unreachable reports whether gRPC found nobody at the address.
func unreachable(e *reason.Error) bool {
	if e.Reason() != reason.NotReady && e.Reason() != reason.DeadlineExceeded {
		return false // a server has said what it is
	}
	switch e.Code() {
	case codes.Unavailable, codes.DeadlineExceeded:
		return strings.Contains(e.Message(), "connection error") || strings.Contains(e.Message(), "name resolver error") ||
			strings.Contains(e.Message(), "error reading from server")
	}
	return false
}

// dialProblem cuts gRPC's nested connection errors down to their cause.
func dialProblem(text string) string {
	for _, before := range []string{"desc = ", "while dialing: ", "connect: ", "lookup "} {
		if i := strings.LastIndex(text, before); i >= 0 {
			text = text[i+len(before):]
		}
	}
	return strings.Trim(text, `"`)
}
