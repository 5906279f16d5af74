package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
)

// TestCode_numbersAndNames pins the numbers that vshard's users know.
func TestCode_numbersAndNames(t *testing.T) {
	for number, name := range map[Code]string{
		1: "WRONG_BUCKET", 2: "NON_MASTER", 3: "BUCKET_ALREADY_EXISTS", 4: "NO_SUCH_REPLICASET", 5: "MOVE_TO_SELF",
		6: "MISSING_MASTER", 7: "TRANSFER_IS_IN_PROGRESS", 8: "UNREACHABLE_REPLICASET", 9: "NO_ROUTE_TO_BUCKET",
		10: "NON_EMPTY", 11: "UNREACHABLE_MASTER", 12: "OUT_OF_SYNC", 13: "HIGH_REPLICATION_LAG",
		14: "UNREACHABLE_REPLICA", 15: "LOW_REDUNDANCY", 16: "INVALID_REBALANCING", 17: "SUBOPTIMAL_REPLICA",
		18: "UNKNOWN_BUCKETS", 19: "REPLICASET_IS_LOCKED", 22: "BUCKET_IS_LOCKED", 23: "INVALID_CFG",
		24: "BUCKET_IS_PINNED", 25: "TOO_MANY_RECEIVING", 30: "BUCKET_RECV_DATA_ERROR", 32: "REPLICASET_IN_BACKOFF",
		33: "STORAGE_IS_DISABLED", 34: "BUCKET_IS_CORRUPTED", 35: "ROUTER_IS_DISABLED", 36: "BUCKET_GC_ERROR",
		39: "BUCKET_INVALID_UPDATE", 42: "MASTER_NOT_SYNCED", 100: "OVERLOADED", 105: "STORE_FAILED",
	} {
		if number.String() != name {
			t.Errorf("code %d is %s, want %s", int(number), number, name)
		}
	}
	seen := map[string]bool{}
	for _, c := range Codes() {
		if seen[c.String()] {
			t.Errorf("name %s stands twice", c)
		}
		seen[c.String()] = true
		if got := reason.Code((&Error{Code: c}).UserReason()); got == codes.Unknown {
			t.Errorf("%v maps to a reason that is not known", c)
		}
	}
}

func TestError_textAndMatching(t *testing.T) {
	err := error(&Error{Code: WrongBucket, Bucket: 12, Destination: "b", Reason: "the bucket is SENT here", Err: io.EOF})
	for _, part := range []string{"bucket 12", "SENT", "destination b", "EOF", "(WRONG_BUCKET)"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
	if !errors.Is(err, WrongBucket) || errors.Is(err, NonMaster) || !errors.Is(err, io.EOF) || !errors.Is(err, &Error{Code: WrongBucket}) {
		t.Error("errors.Is")
	}
}

func TestError_keepsItsReasonOnTheWire(t *testing.T) {
	for code, want := range map[Code]string{
		Overloaded: reason.Overloaded, StoreFailed: reason.StorageFailed, StoreClosed: reason.ShuttingDown,
		TransferIsInProgress: reason.NotReady, ArgumentsTooLarge: reason.RequestTooLarge, FunctionFailed: reason.Internal,
	} {
		if got := reason.From(&Error{Code: code}); got.Reason() != want || got.Code() != reason.Code(want) {
			t.Errorf("%v becomes %v, want %s", code, got, want)
		}
	}
}

func TestError_unknownOutcomeByDeadlineHasTheDeadlinesReason(t *testing.T) {
	for want, cause := range map[string]error{
		reason.DeadlineExceeded: fmt.Errorf("late: %w", context.DeadlineExceeded),
		reason.RequestCancelled: context.Canceled,
		reason.OutcomeUnknown:   errors.New("the connection was lost"),
	} {
		if got := reason.Of(&Error{Code: OutcomeUnknown, Err: cause}); got != want {
			t.Errorf("%v: the reason is %s, want %s", cause, got, want)
		}
	}
}
