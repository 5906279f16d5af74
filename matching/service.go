package matching

import (
	"context"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// What the calls aimed at one partition have in common.

// partition returns the partition that a header names.
func partition(h *v1.PartitionHeader, namespace, queue string) (PartitionID, error) {
	id := PartitionID{Namespace: namespace, Queue: queue, Number: h.GetPartition(), Sticky: h.GetStickyWorker()}
	if err := checkNumber(id.Number); err != nil {
		return id, err
	}
	if id.Sticky != "" && id.Number != 0 {
		return id, reason.New(codes.InvalidArgument, reason.InvalidPartition, nil, "a sticky queue has no partition %d: it has one, number 0", id.Number)
	}
	return id, nil
}

// checkHop refuses a forwarded request that is not from a neighbour in the tree.
func checkHop(h *v1.PartitionHeader, id PartitionID) error {
	switch h.GetHop() {
	case v1.Hop_HOP_UNSPECIFIED:
		return nil
	case v1.Hop_HOP_LENT:
		if id.Sticky == "" {
			return checkChild(id.Number, h.GetSource())
		}
	case v1.Hop_HOP_PULLED:
		if id.Sticky == "" {
			return checkChild(h.GetSource(), id.Number)
		}
	}
	return reason.New(codes.InvalidArgument, reason.InvalidForward, nil, "hop %v does not lead to partition %v", h.GetHop(), id)
}

// enter is what every call does that a client aims at a partition: it finds the
// owner and compares the counts. The answer's counts are nil when the caller knows
// them.
func (e *Engine) enter(ctx context.Context, h *v1.PartitionHeader, id PartitionID, op operation, fn func(*owner) error) (*v1.PartitionCounts, error) {
	var counts *v1.PartitionCounts
	enter := func(o *owner) error {
		counts = o.partitionCounts()
		if op != opEnd && h.GetHop() == v1.Hop_HOP_UNSPECIFIED && id.Sticky == "" {
			if err := checkCounts(counts, h.GetCounts(), id, op); err != nil {
				if !e.lookUpCounts(ctx, o, h.GetCounts()) {
					return err
				}
				counts = o.partitionCounts()
				if err := checkCounts(counts, h.GetCounts(), id, op); err != nil {
					return err
				}
			}
		}
		return fn(o)
	}
	var err error
	if id.Sticky != "" && op == opWrite {
		err = e.addSticky(ctx, id, enter)
	} else {
		err = e.retryUnloaded(ctx, id, op != opEnd, enter)
	}
	if err != nil {
		return nil, err
	}
	if sameCounts(counts, h.GetCounts()) {
		counts = nil
	}
	return counts, nil
}
