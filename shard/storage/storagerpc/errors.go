package storagerpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// maxCauses bounds how deep a chain of causes is carried.
const maxCauses = 8

// maxText bounds the texts of an error on the wire, in bytes.
const maxText = 16 << 10

func cut(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "…"
	}
	return s
}

// EncodeError puts an error into its form on the wire. A *shard.Error keeps all its
// fields, one that has a gRPC status keeps that, and of others the text is kept.
func EncodeError(err error) *v1.StorageError { return encodeError(err, maxCauses) }

func encodeError(err error, depth int) *v1.StorageError {
	if err == nil {
		return nil
	}
	// Only what the error itself is: of a wrapped one the wrapping says more.
	if e, ok := err.(*shard.Error); ok {
		out := &v1.StorageError{
			Code: int32(e.Code), Bucket: uint32(e.Bucket), ReplicaSet: e.ReplicaSet, Destination: e.Destination,
			Master: e.Master, Reason: cut(e.Reason),
		}
		if e.Err != nil && depth > 0 {
			out.Cause = encodeError(e.Err, depth-1)
		}
		return out
	}
	out := &v1.StorageError{Text: cut(err.Error())}
	if e, ok := errors.AsType[*shard.Error](err); ok && depth > 0 {
		out.Cause = encodeError(e, depth-1)
		return out
	}
	var st *status.Status
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		st = status.New(codes.DeadlineExceeded, out.Text)
	case errors.Is(err, context.Canceled):
		st = status.New(codes.Canceled, out.Text)
	default:
		var has bool
		if st, has = status.FromError(err); !has {
			return out
		}
	}
	if b, merr := proto.Marshal(st.Proto()); merr == nil {
		out.Status = b
	}
	return out
}

// DecodeError is the reverse of EncodeError. The result of an error that is not the
// store's is a [*RemoteError].
func DecodeError(e *v1.StorageError) error { return decodeError(e, maxCauses) }

func decodeError(e *v1.StorageError, depth int) error {
	if e == nil {
		return nil
	}
	var cause error
	if depth > 0 {
		cause = decodeError(e.GetCause(), depth-1)
	}
	if e.GetCode() != 0 {
		return &shard.Error{
			Code: shard.Code(e.GetCode()), Bucket: shard.BucketID(e.GetBucket()), ReplicaSet: e.GetReplicaSet(),
			Destination: e.GetDestination(), Master: e.GetMaster(), Reason: e.GetReason(), Err: cause,
		}
	}
	r := &RemoteError{text: e.GetText(), cause: cause}
	if len(e.GetStatus()) > 0 {
		var s spb.Status
		if err := proto.Unmarshal(e.GetStatus(), &s); err == nil && codes.Code(s.GetCode()) != codes.OK {
			r.status = status.FromProto(&s)
		}
	}
	return r
}

// RemoteError is an error of a function on another node that is not the store's own. It
// has the same text there. errors.Is finds a context's end in it, and package reason the
// reason that it had.
type RemoteError struct {
	text   string
	cause  error
	status *status.Status
}

// Error returns the text.
func (e *RemoteError) Error() string { return e.text }

// Unwrap returns the error of the store that was wrapped, or nil.
func (e *RemoteError) Unwrap() error { return e.cause }

// Is reports whether target is the end of a context that the error stands for.
func (e *RemoteError) Is(target error) bool {
	switch e.status.Code() {
	case codes.DeadlineExceeded:
		return target == context.DeadlineExceeded
	case codes.Canceled:
		return target == context.Canceled
	}
	return false
}

// GRPCStatus returns the status that the error has, made up if it had none.
func (e *RemoteError) GRPCStatus() *status.Status {
	if e.status != nil {
		return e.status
	}
	return status.New(codes.Unknown, e.text)
}

// Status makes the gRPC status of an answer that is an error, for other services of the
// store. A Client's DoConn finds the store's error in it again.
func Status(err error) error { return statusOf(err) }

// statusOf makes the status of an answer that is an error. Whoever does not know the
// store's errors finds a reason in it.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*shard.Error](err)
	if !ok {
		if _, has := status.FromError(err); has {
			return err
		}
		return status.FromContextError(err).Err()
	}
	user := reason.From(e)
	st, derr := user.GRPCStatus().WithDetails(EncodeError(err))
	if derr != nil {
		return user
	}
	return st.Err()
}

// fromStatus finds the error of the store in a status, else returns it as it is.
func fromStatus(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range st.Details() {
		if e, ok := d.(*v1.StorageError); ok {
			return DecodeError(e)
		}
	}
	return err
}

// ConnError says that a member could not be asked, or did not answer.
type ConnError struct {
	// Address is the member's.
	Address string
	// Sent says that the call may have reached the member. If not, nothing was done.
	Sent bool
	// Err is the cause.
	Err error
}

// Error names the address and says what is known.
func (e *ConnError) Error() string {
	switch {
	case e.Sent && (errors.Is(e.Err, context.DeadlineExceeded) || errors.Is(e.Err, context.Canceled)):
		return fmt.Sprintf("%s has not answered yet: %v", e.Address, e.Err)
	case e.Sent:
		return fmt.Sprintf("the connection to %s was lost: %s", e.Address, briefly(e.Err))
	}
	return fmt.Sprintf("%s cannot be reached: %s", e.Address, briefly(e.Err))
}

// briefly is an error without the layers of gRPC around it.
func briefly(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	text := st.Message()
	for _, layer := range []string{"desc = ", "transport: Error while dialing: "} {
		if _, inner, ok := strings.Cut(text, layer); ok {
			text = strings.Trim(inner, `"`)
		}
	}
	return text
}

// Unwrap returns the cause.
func (e *ConnError) Unwrap() error { return e.Err }
