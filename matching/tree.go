package matching

import (
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
)

// The partitions of a queue form a tree with the root 0. A partition that lacks
// pollers, or tasks, turns to its parent; so both meet, at the root at the latest.

const (
	// TreeDegree is how many children a partition has at most.
	TreeDegree = 20
	// MaxPartitions is the most partitions that a queue can have.
	MaxPartitions = 4096
	// DefaultPartitions is how many partitions a queue has that does not say.
	DefaultPartitions = 4
)

// Parent is the partition to which partition n forwards; the root has none (false),
// and neither has a number that no partition can have.
func Parent(n int32) (int32, bool) {
	if n <= 0 || n >= MaxPartitions {
		return 0, false
	}
	return (n - 1) / TreeDegree, true
}

func checkNumber(n int32) error {
	if n < 0 || n >= MaxPartitions {
		return reason.New(codes.InvalidArgument, reason.InvalidPartition, nil,
			"partition %d cannot be: partitions are numbered 0 to %d", n, MaxPartitions-1)
	}
	return nil
}

// checkChild refuses a forwarded request whose source is no child of its target.
func checkChild(target, source int32) error {
	if p, ok := Parent(source); !ok || p != target {
		return reason.New(codes.InvalidArgument, reason.InvalidForward, nil,
			"partition %d cannot forward to partition %d: it is not its child", source, target)
	}
	return nil
}
