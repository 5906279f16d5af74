package matching

import (
	"context"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching/scaling"
)

// How many partitions a queue has is known to its partitions; clients learn it from
// them. A request says what its client believes and is refused when that is too far
// off, so that a client cannot go on for long with counts that are out of date.

// operation is what a call is to a partition.
type operation uint8

const (
	opWrite operation = iota // adds
	opRead                   // polls
	opEnd                    // goes to where its task is, whatever the counts
)

// Allowed drift of a client's count: within driftDelta, or within driftRatio.
const (
	driftDelta = 1
	driftRatio = 1.5
)

// rowCounts are the counts that a queue's row says: managed ones if there are any.
func rowCounts(q *v1.StoredQueue) *v1.PartitionCounts {
	if managed(q) {
		if c, err := scaling.DecodeCounts(q.GetScalingState()); err == nil && c.Managed() {
			return countsProto(c, c.Version)
		}
	}
	c := &v1.PartitionCounts{Read: max(q.GetReadPartitions(), 1), Write: max(q.GetWritePartitions(), 1)}
	c.Read = min(c.Read, MaxPartitions)
	c.Write = min(c.Write, c.Read)
	return c
}

// plausible says whether counts can be right; others count as unknown.
func plausible(c *v1.PartitionCounts) bool {
	return c.GetWrite() >= 1 && c.GetRead() >= c.GetWrite()
}

// checkCounts compares what a client believes with what is right, at the start of a
// call; calls that wait already are not disturbed.
func checkCounts(right, client *v1.PartitionCounts, id PartitionID, op operation) error {
	if !plausible(right) {
		return nil
	}
	switch {
	case id.Number >= right.GetRead():
		return staleCounts(right, id, "has no partition %d", id.Number)
	case op == opWrite && id.Number >= right.GetWrite():
		return staleCounts(right, id, "takes no new tasks in partition %d, which is being emptied", id.Number)
	case !plausible(client):
		return nil
	case op == opWrite && drifted(client.GetWrite(), right.GetWrite()), op == opRead && drifted(client.GetRead(), right.GetRead()):
		return staleCounts(right, id, "was asked with counts read %d, write %d", client.GetRead(), client.GetWrite())
	}
	return nil
}

// countsPause is the least time between two looks for newer counts.
const countsPause = 50 * time.Millisecond

// lookUpCounts looks for newer counts in the queue's row when a client may know some:
// it may have heard of a change before the partition. It says whether there are any.
func (e *Engine) lookUpCounts(ctx context.Context, o *owner, client *v1.PartitionCounts) bool {
	mine := o.partitionCounts()
	if v := client.GetVersion(); !plausible(client) || v < mine.GetVersion() || v == mine.GetVersion() && v > 0 {
		return false // those without a version come from the row alone: either may be the newer
	}
	now, last := e.steady(), o.countsAt.Load()
	if now-last < int64(countsPause) || !o.countsAt.CompareAndSwap(last, now) {
		return false // clients can say anything
	}
	q, err := e.getQueue(ctx, o.id.Namespace, o.id.Queue)
	if err != nil {
		return false
	}
	o.setCounts(q)
	return !sameCounts(mine, o.partitionCounts())
}

func drifted(client, right int32) bool {
	low, high := float64(min(client, right)), float64(max(client, right))
	return high-low > driftDelta && high > low*driftRatio
}

func staleCounts(right *v1.PartitionCounts, id PartitionID, format string, args ...any) error {
	args = append([]any{id.Queue}, args...)
	args = append(args, right.GetRead(), right.GetWrite())
	return reason.New(codes.Aborted, reason.StalePartitionCounts, map[string]string{
		"queue": id.Queue, "read": strconv.Itoa(int(right.GetRead())), "write": strconv.Itoa(int(right.GetWrite())),
	}, "queue %q "+format+": it has %d partitions to poll and %d to add to", args...)
}

// CountsFromError returns the right counts from an error with the reason
// STALE_PARTITION_COUNTS, nil from any other.
func CountsFromError(err error) *v1.PartitionCounts {
	if reason.Of(err) != reason.StalePartitionCounts {
		return nil
	}
	meta := reason.From(err).Meta()
	read, err1 := strconv.ParseInt(meta["read"], 10, 32)
	write, err2 := strconv.ParseInt(meta["write"], 10, 32)
	c := &v1.PartitionCounts{Read: int32(read), Write: int32(write)}
	if err1 != nil || err2 != nil || !plausible(c) || c.GetRead() > MaxPartitions {
		return nil
	}
	return c
}

// sameCounts says whether a client, or a partition, knows the newest. A client's own
// leave the backlog out.
func sameCounts(a, b *v1.PartitionCounts) bool {
	return a == b || a.GetRead() == b.GetRead() && a.GetWrite() == b.GetWrite() && a.GetVersion() == b.GetVersion() &&
		a.GetBacklogCap() == b.GetBacklogCap() && a.GetBacklogVersion() == b.GetBacklogVersion()
}

// hasBacklog says whether there is a known backlog anywhere by which polls are chosen.
func hasBacklog(c *v1.PartitionCounts) bool {
	return c.GetBacklogCap() > 0 && slices.ContainsFunc(c.GetBacklog(), func(level byte) bool { return level > 0 })
}

// olderCounts says whether counts are older than others. Counts that are not managed have
// no version; they come from the queue's row alone, and it is the newest that was read.
func olderCounts(c, than *v1.PartitionCounts) bool {
	switch v := c.GetVersion(); {
	case v == 0:
		return false
	case v != than.GetVersion():
		return v < than.GetVersion()
	}
	return c.GetBacklogVersion() < than.GetBacklogVersion()
}

// partitionCounts are the counts that hold for the owner's queue, as far as the
// partition has heard of them. Nil for a sticky queue.
func (o *owner) partitionCounts() *v1.PartitionCounts { return o.counts.Load() }

// learnCounts takes over counts from the queue's row or its root, unless they are
// older than those that hold.
func (o *owner) learnCounts(c *v1.PartitionCounts) {
	for {
		old := o.counts.Load()
		if olderCounts(c, old) {
			return
		}
		if o.counts.CompareAndSwap(old, c) {
			if c.GetRead() != old.GetRead() {
				o.internal(countsChanged{})
			}
			return
		}
	}
}

// share is the partition's part of its queue's rate limits.
func (o *owner) share() float64 { return 1 / float64(max(o.partitionCounts().GetRead(), 1)) }
