package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/switchyard-dev/switchyard/api/reason"
)

// Code says what is wrong, by number and name. Numbers below 100 and their names are
// those of Tarantool vshard, so that its users find what they know; numbers from 100
// on are Switchyard's own. A Code is an error itself, for errors.Is(err, WrongBucket).
type Code int

// Codes of the sharded store.
const (
	// WrongBucket: the bucket is not here; Destination says where it went, if known.
	WrongBucket Code = 1
	// NonMaster: this replica is not its replica set's master; Master is, if known.
	NonMaster Code = 2
	// BucketAlreadyExists: the bucket that is to be created is here already.
	BucketAlreadyExists Code = 3
	// NoSuchReplicaSet: no replica set of that name is known.
	NoSuchReplicaSet Code = 4
	// MoveToSelf: a bucket cannot be moved to the replica set that has it.
	MoveToSelf Code = 5
	// MissingMaster: the replica set has no master.
	MissingMaster Code = 6
	// TransferIsInProgress: the bucket is moving; the same call will work soon.
	TransferIsInProgress Code = 7
	// UnreachableReplicaSet: no replica of the set answers.
	UnreachableReplicaSet Code = 8
	// NoRouteToBucket: nobody known has the bucket.
	NoRouteToBucket Code = 9
	// NonEmpty: the store was bootstrapped already.
	NonEmpty Code = 10
	// UnreachableMaster: the replica set's master does not answer.
	UnreachableMaster Code = 11
	// OutOfSync: the replica does not follow its master.
	OutOfSync Code = 12
	// HighReplicationLag: the replica is far behind.
	HighReplicationLag Code = 13
	// UnreachableReplica: a replica does not answer.
	UnreachableReplica Code = 14
	// LowRedundancy: fewer replicas than configured are alive.
	LowRedundancy Code = 15
	// InvalidRebalancing: more than one rebalancer is at work.
	InvalidRebalancing Code = 16
	// SuboptimalReplica: calls go to another replica than the preferred one.
	SuboptimalReplica Code = 17
	// UnknownBuckets: there are buckets whose place is not known.
	UnknownBuckets Code = 18
	// ReplicaSetIsLocked: the replica set neither sends nor receives buckets.
	ReplicaSetIsLocked Code = 19
	// BucketIsLocked: the bucket is being changed by somebody else.
	BucketIsLocked Code = 22
	// InvalidConfig: the configuration cannot be used.
	InvalidConfig Code = 23
	// BucketIsPinned: a pinned bucket is not moved.
	BucketIsPinned Code = 24
	// TooManyReceiving: the replica set receives as many buckets as it may.
	TooManyReceiving Code = 25
	// StorageIsReferenced: a map-reduce call holds the storage.
	StorageIsReferenced Code = 26
	// StorageRefAdd: a reference could not be taken.
	StorageRefAdd Code = 27
	// StorageRefUse: a reference could not be used.
	StorageRefUse Code = 28
	// StorageRefDelete: a reference could not be given back.
	StorageRefDelete Code = 29
	// BucketReceiveData: the rows that came for a bucket cannot be used.
	BucketReceiveData Code = 30
	// ReplicaSetInBackoff: the replica set failed a moment ago and is left alone.
	ReplicaSetInBackoff Code = 32
	// StorageIsDisabled: the storage takes no calls at the moment.
	StorageIsDisabled Code = 33
	// BucketIsCorrupted: what is known of a bucket contradicts itself.
	BucketIsCorrupted Code = 34
	// RouterIsDisabled: the router takes no calls at the moment.
	RouterIsDisabled Code = 35
	// BucketGC: the rows of a bucket could not be deleted.
	BucketGC Code = 36
	// BucketInvalidUpdate: a bucket cannot go from its state to that one.
	BucketInvalidUpdate Code = 39
	// MasterNotSynced: the new master has not caught up yet.
	MasterNotSynced Code = 42

	// Overloaded: too many commands or bytes are in flight. Nothing was done.
	Overloaded Code = 100
	// FunctionNotFound: no function of that name is registered.
	FunctionNotFound Code = 101
	// FunctionFailed: the function broke off by a fault of its own (a panic). Its rows were discarded.
	FunctionFailed Code = 102
	// ArgumentsTooLarge: the arguments are over the limit. Nothing was done.
	ArgumentsTooLarge Code = 103
	// InvalidArguments: the arguments are not what the function expects. Nothing was done.
	InvalidArguments Code = 104
	// StoreFailed: the store cannot write or read any more (a full disk, a failed sync,
	// corruption). Whether the command took effect is unknown; an operator has to act.
	StoreFailed Code = 105
	// StoreClosed: the store is stopping or stopped.
	StoreClosed Code = 106
	// OutcomeUnknown: the command was under way when the master, or the connection to it, was
	// lost. It may or may not have taken effect, or may do so yet.
	OutcomeUnknown Code = 107
	// TransferIsOver: what was asked belongs to a transfer of the bucket that has ended or is
	// not known. Nothing was done.
	TransferIsOver Code = 108
	// SplitIsInProgress: bucket_count is being doubled, and what was asked has to wait until
	// that is finished. Nothing was done.
	SplitIsInProgress Code = 109
)

// codeInfo is the name of a code, the reason it carries to users, and what it means in words.
type codeInfo struct{ name, reason, text string }

var codeTable = map[Code]codeInfo{
	WrongBucket:           {"WRONG_BUCKET", reason.NotReady, "the bucket is not here"},
	NonMaster:             {"NON_MASTER", reason.NotReady, "this replica is not the master of its replica set"},
	BucketAlreadyExists:   {"BUCKET_ALREADY_EXISTS", reason.Internal, "the bucket exists already"},
	NoSuchReplicaSet:      {"NO_SUCH_REPLICASET", reason.Internal, "there is no such replica set"},
	MoveToSelf:            {"MOVE_TO_SELF", reason.Internal, "the bucket is on that replica set already"},
	MissingMaster:         {"MISSING_MASTER", reason.NotReady, "the replica set has no master"},
	TransferIsInProgress:  {"TRANSFER_IS_IN_PROGRESS", reason.NotReady, "the bucket is moving, try again"},
	UnreachableReplicaSet: {"UNREACHABLE_REPLICASET", reason.NotReady, "no replica of the set answers"},
	NoRouteToBucket:       {"NO_ROUTE_TO_BUCKET", reason.NotReady, "nobody known has the bucket"},
	NonEmpty:              {"NON_EMPTY", reason.Internal, "the store was bootstrapped already"},
	UnreachableMaster:     {"UNREACHABLE_MASTER", reason.NotReady, "the master does not answer"},
	OutOfSync:             {"OUT_OF_SYNC", reason.Internal, "the replica does not follow its master"},
	HighReplicationLag:    {"HIGH_REPLICATION_LAG", reason.Internal, "the replica is far behind its master"},
	UnreachableReplica:    {"UNREACHABLE_REPLICA", reason.Internal, "a replica does not answer"},
	LowRedundancy:         {"LOW_REDUNDANCY", reason.Internal, "fewer replicas are alive than configured"},
	InvalidRebalancing:    {"INVALID_REBALANCING", reason.Internal, "more than one rebalancer is at work"},
	SuboptimalReplica:     {"SUBOPTIMAL_REPLICA", reason.Internal, "calls go to another replica than the preferred one"},
	UnknownBuckets:        {"UNKNOWN_BUCKETS", reason.Internal, "the place of some buckets is not known"},
	ReplicaSetIsLocked:    {"REPLICASET_IS_LOCKED", reason.Internal, "the replica set is locked"},
	BucketIsLocked:        {"BUCKET_IS_LOCKED", reason.NotReady, "the bucket is being changed by somebody else"},
	InvalidConfig:         {"INVALID_CFG", reason.Internal, "the configuration cannot be used"},
	BucketIsPinned:        {"BUCKET_IS_PINNED", reason.Internal, "the bucket is pinned"},
	TooManyReceiving:      {"TOO_MANY_RECEIVING", reason.Internal, "too many buckets are on their way to this replica set"},
	StorageIsReferenced:   {"STORAGE_IS_REFERENCED", reason.Internal, "a call over all buckets holds the storage"},
	StorageRefAdd:         {"STORAGE_REF_ADD", reason.Internal, "the storage cannot be referenced"},
	StorageRefUse:         {"STORAGE_REF_USE", reason.Internal, "the reference cannot be used"},
	StorageRefDelete:      {"STORAGE_REF_DEL", reason.Internal, "the reference cannot be given back"},
	BucketReceiveData:     {"BUCKET_RECV_DATA_ERROR", reason.Internal, "the rows received for the bucket cannot be used"},
	ReplicaSetInBackoff:   {"REPLICASET_IN_BACKOFF", reason.NotReady, "the replica set failed a moment ago"},
	StorageIsDisabled:     {"STORAGE_IS_DISABLED", reason.NotReady, "the storage takes no calls at the moment"},
	BucketIsCorrupted:     {"BUCKET_IS_CORRUPTED", reason.StorageFailed, "what is known of the bucket contradicts itself"},
	RouterIsDisabled:      {"ROUTER_IS_DISABLED", reason.NotReady, "the router takes no calls at the moment"},
	BucketGC:              {"BUCKET_GC_ERROR", reason.Internal, "the rows of the bucket could not be deleted"},
	BucketInvalidUpdate:   {"BUCKET_INVALID_UPDATE", reason.Internal, "the bucket cannot change its state that way"},
	MasterNotSynced:       {"MASTER_NOT_SYNCED", reason.NotReady, "the new master has not caught up yet"},

	Overloaded:        {"OVERLOADED", reason.Overloaded, "too much is in flight, try again later"},
	FunctionNotFound:  {"FUNCTION_NOT_FOUND", reason.Internal, "the function is not registered"},
	FunctionFailed:    {"FUNCTION_FAILED", reason.Internal, "the function failed"},
	ArgumentsTooLarge: {"ARGUMENTS_TOO_LARGE", reason.RequestTooLarge, "the arguments are too large"},
	InvalidArguments:  {"INVALID_ARGUMENTS", reason.Internal, "the arguments are not what the function expects"},
	StoreFailed:       {"STORE_FAILED", reason.StorageFailed, "the store has failed"},
	StoreClosed:       {"STORE_CLOSED", reason.ShuttingDown, "the store is closed"},
	OutcomeUnknown:    {"OUTCOME_UNKNOWN", reason.OutcomeUnknown, "it is unknown whether the command took effect"},
	TransferIsOver:    {"TRANSFER_IS_OVER", reason.Internal, "that transfer of the bucket has ended"},
	SplitIsInProgress: {"SPLIT_IS_IN_PROGRESS", reason.NotReady, "bucket_count is being doubled"},
}

// Codes returns every code, in no particular order.
func Codes() []Code {
	all := make([]Code, 0, len(codeTable))
	for c := range codeTable {
		all = append(all, c)
	}
	return all
}

// String returns the code's name.
func (c Code) String() string {
	if i, ok := codeTable[c]; ok {
		return i.name
	}
	return fmt.Sprintf("CODE(%d)", int(c))
}

// Error makes a Code usable as a target of errors.Is.
func (c Code) Error() string { return c.String() }

// Error is an error of the sharded store. It is not changed after it was made.
// errors.Is works with a Code, errors.As with *Error, and a cause is unwrapped.
type Error struct {
	// Code says what is wrong.
	Code Code
	// Bucket is the bucket that was asked for, 0 when there is none.
	Bucket BucketID
	// ReplicaSet is the replica set that answered, if it matters.
	ReplicaSet string
	// Destination is the replica set that has the bucket now, if known.
	Destination string
	// Master is the replica set's master, if known.
	Master string
	// Reason says more, in words; it may be empty.
	Reason string
	// Err is the cause, or nil.
	Err error
}

// Error returns a sentence with all that is known, and the name of the code.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Bucket != 0 {
		fmt.Fprintf(&b, "bucket %d: ", e.Bucket)
	}
	if i, ok := codeTable[e.Code]; ok {
		b.WriteString(i.text)
	} else {
		b.WriteString("error of the store")
	}
	if e.Reason != "" {
		b.WriteString(": ")
		b.WriteString(e.Reason)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	for _, p := range [...]struct{ name, value string }{
		{"replica set", e.ReplicaSet}, {"destination", e.Destination}, {"master", e.Master},
	} {
		if p.value != "" {
			fmt.Fprintf(&b, ", %s %s", p.name, p.value)
		}
	}
	fmt.Fprintf(&b, " (%s)", e.Code)
	return b.String()
}

// Is reports whether target is this error's Code, or an *Error of the same code.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return t == e.Code
	case *Error:
		return t.Code == e.Code
	}
	return false
}

// As turns the error into the *reason.Error that users see, for errors.As and so for
// reason.From: a store's error that nobody handled keeps its reason on the wire.
func (e *Error) As(target any) bool {
	t, ok := target.(**reason.Error)
	if !ok {
		return false
	}
	r := e.UserReason()
	user := reason.New(reason.Code(r), r, map[string]string{"store": e.Code.String()}, "%s", e.Error())
	return errors.As(user, t)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// UserReason returns the reason of package api/reason under which the error reaches
// a user when nobody handled it.
func (e *Error) UserReason() string {
	if e.Code == OutcomeUnknown {
		switch {
		case errors.Is(e.Err, context.DeadlineExceeded):
			return reason.DeadlineExceeded
		case errors.Is(e.Err, context.Canceled):
			return reason.RequestCancelled
		}
	}
	if i, ok := codeTable[e.Code]; ok {
		return i.reason
	}
	return reason.Internal
}
