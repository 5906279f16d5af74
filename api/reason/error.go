package reason

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Error is an error with a code, a reason and particulars. Its fields are not
// changed after it was made, so it may be shared between goroutines.
type Error struct {
	code    codes.Code
	reason  string
	message string
	meta    map[string]string
}

// New makes an error. meta may be nil; it belongs to the error afterwards. The
// text is formatted as by fmt.Sprintf and should be a sentence that says what
// is wrong with which value and, where it helps, what to do.
func New(code codes.Code, r string, meta map[string]string, format string, args ...any) error {
	return &Error{code: code, reason: r, message: sprintf(format, args...), meta: meta}
}

// sprintf spares the copy of a text that has nothing to format.
func sprintf(format string, args ...any) string {
	if len(args) == 0 && strings.IndexByte(format, '%') < 0 {
		return format
	}
	return fmt.Sprintf(format, args...)
}

// Error returns "message (REASON)".
func (e *Error) Error() string { return e.message + " (" + e.reason + ")" }

// Code returns the gRPC code.
func (e *Error) Code() codes.Code { return e.code }

// Reason returns the machine-readable reason.
func (e *Error) Reason() string { return e.reason }

// Message returns the sentence for a person, without the reason.
func (e *Error) Message() string { return e.message }

// Meta returns the particulars; it must not be changed.
func (e *Error) Meta() map[string]string { return e.meta }

// Is reports whether target is an Error of the same reason, for errors.Is.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.reason == e.reason
}

// GRPCStatus makes the status that goes over the wire. gRPC calls it.
func (e *Error) GRPCStatus() *status.Status {
	s := status.New(e.code, e.message)
	d, err := s.WithDetails(&errdetails.ErrorInfo{Reason: e.reason, Domain: Domain, Metadata: e.meta})
	if err != nil { // only for code OK, which is no error
		return s
	}
	return d
}

// From returns err as an *Error, whatever it is: one of ours, wrapped or not; a
// status from the wire; a context's end; anything else becomes an Internal
// error. It returns nil for nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	// A context's end before a status: gRPC's own errors are statuses already.
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{code: codes.DeadlineExceeded, reason: DeadlineExceeded, message: err.Error()}
	case errors.Is(err, context.Canceled):
		return &Error{code: codes.Canceled, reason: RequestCancelled, message: err.Error()}
	}
	s, ok := status.FromError(err)
	if !ok {
		return &Error{code: codes.Internal, reason: Internal, message: err.Error()}
	}
	if info := infoOf(s); info != nil {
		return &Error{code: s.Code(), reason: info.GetReason(), message: s.Message(), meta: info.GetMetadata()}
	}
	return &Error{code: s.Code(), reason: ofCode(s.Code()), message: s.Message()}
}

// ofCode is the reason of a status that carries none: gRPC made it itself.
func ofCode(c codes.Code) string {
	switch c {
	case codes.DeadlineExceeded:
		return DeadlineExceeded
	case codes.Canceled:
		return RequestCancelled
	case codes.Unimplemented:
		return UnknownMethod
	case codes.Unavailable:
		return NotReady
	case codes.InvalidArgument:
		return InvalidRequest
	case codes.ResourceExhausted: // gRPC makes it for a message over a limit
		return RequestTooLarge
	}
	return Internal
}

// Of returns err's reason, and "" when it has none: nil, or an error that
// neither this package nor a Switchyard server made.
func Of(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.reason
	}
	s, ok := status.FromError(err)
	if !ok {
		return ""
	}
	return infoOf(s).GetReason() // "" for nil
}

// infoOf returns what a server of Switchyard said about a status, nil when none did.
func infoOf(s *status.Status) *errdetails.ErrorInfo {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}

// Item returns err as the error of one item of a batch, nil for nil.
func Item(err error) *v1.ItemError {
	e := From(err)
	if e == nil {
		return nil
	}
	return &v1.ItemError{Code: int32(e.code), Reason: e.reason, Message: e.message}
}

// FromItem returns the error that an item carries, nil for nil.
func FromItem(item *v1.ItemError) error {
	if item == nil {
		return nil
	}
	return &Error{code: codes.Code(item.GetCode()), reason: item.GetReason(), message: item.GetMessage()}
}
