package admin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// codeOf is the gRPC code of an error of the store, by what it asks of the caller: another
// argument, another moment, or something to be changed first.
func codeOf(e *shard.Error) codes.Code {
	switch e.Code {
	case shard.InvalidConfig, shard.InvalidArguments, shard.ArgumentsTooLarge:
		return codes.InvalidArgument
	case shard.NoSuchReplicaSet, shard.FunctionNotFound:
		return codes.NotFound
	case shard.NonEmpty, shard.BucketAlreadyExists:
		return codes.AlreadyExists
	case shard.MoveToSelf, shard.BucketIsPinned, shard.ReplicaSetIsLocked, shard.BucketInvalidUpdate, shard.TransferIsInProgress,
		shard.BucketIsLocked, shard.StorageIsReferenced, shard.StorageRefAdd, shard.TransferIsOver, shard.SplitIsInProgress:
		return codes.FailedPrecondition
	case shard.Overloaded, shard.TooManyReceiving:
		return codes.ResourceExhausted
	case shard.OutcomeUnknown:
		return codes.Unknown
	case shard.BucketIsCorrupted:
		return codes.DataLoss
	}
	if e.UserReason() == reason.NotReady || e.Code == shard.UnreachableReplica || e.Code == shard.StoreClosed || e.Code == shard.OutOfSync {
		return codes.Unavailable
	}
	return codes.Internal
}

// userError puts an error into the form that users get: one of the store keeps its name as the reason.
func userError(err error) error {
	e, ok := errors.AsType[*shard.Error](err)
	if !ok {
		if err == nil {
			return nil
		}
		return reason.From(err)
	}
	code := codeOf(e)
	if e.Code == shard.NoRouteToBucket && strings.Contains(e.Reason, "numbered") {
		code = codes.InvalidArgument // there is no such bucket
	}
	meta := map[string]string{}
	for name, value := range map[string]string{"replica_set": e.ReplicaSet, "destination": e.Destination, "master": e.Master} {
		if value != "" {
			meta[name] = value
		}
	}
	if e.Bucket != 0 {
		meta["bucket"] = strconv.Itoa(int(e.Bucket))
	}
	return reason.New(code, e.Code.String(), meta, "%s", text(err, e))
}

// text is the sentence of an error without the name of its code, which is beside it.
func text(err error, e *shard.Error) string {
	return strings.TrimSuffix(err.Error(), " ("+e.Code.String()+")")
}

// failure is what is told of a bucket that failed.
func failure(b shard.BucketID, err error) *v1.BucketFailure {
	f := &v1.BucketFailure{Bucket: uint32(b), Text: err.Error()}
	if e, ok := errors.AsType[*shard.Error](err); ok {
		f.Code, f.Text = e.Code.String(), text(err, e)
	} else if errors.Is(err, context.Canceled) {
		f.Code = reason.RequestCancelled
	}
	return f
}

// plain is an error of this package: it is one of the store, in words of its own.
type plain struct {
	of   *shard.Error
	text string
}

func (p *plain) Error() string { return p.text + " (" + p.of.Code.String() + ")" }

// Unwrap returns the error of the store.
func (p *plain) Unwrap() error { return p.of }

func invalid(format string, args ...any) error {
	return &plain{&shard.Error{Code: shard.InvalidArguments}, fmt.Sprintf(format, args...)}
}

func misconfigured(set, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if set != "" {
		text = "replica set " + set + ": " + text
	}
	return &plain{&shard.Error{Code: shard.InvalidConfig, ReplicaSet: set}, text}
}

func noSet(name string, known []string) error {
	text := fmt.Sprintf("there is no replica set %q; none is known", name)
	if len(known) > 0 {
		text = fmt.Sprintf("there is no replica set %q; there are %s", name, strings.Join(known, ", "))
	}
	return &plain{&shard.Error{Code: shard.NoSuchReplicaSet, ReplicaSet: name}, text}
}

// noBucket is the error of a bucket that cannot be.
func noBucket(b, count uint32) error {
	return &plain{&shard.Error{Code: shard.NoRouteToBucket, Bucket: shard.BucketID(b), Reason: "numbered"}, fmt.Sprintf("there is no bucket %d: buckets are numbered 1 to %d", b, count)}
}
