package matching

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// What has to ask several partitions.

const (
	// firstPause and lastPause bound the pauses of a call that looks for a
	// partition's owner; the call's deadline bounds it as a whole.
	firstPause = 5 * time.Millisecond
	lastPause  = 250 * time.Millisecond
	// searchTime bounds the search for an owner when the call has no deadline.
	searchTime = 30 * time.Second
)

// at calls fn with the way to a partition's owner, again while the owner is another,
// or is on a node that cannot be reached.
func (q *Queues) at(ctx context.Context, id PartitionID, fn func(v1.MatchingServiceServer) error) error {
	var giveUp time.Time
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		peer, local, err := q.peers.Owner(id)
		if err == nil {
			if err = fn(peer); err == nil {
				return nil
			}
			switch reason.Of(err) {
			case reason.PartitionMoved, reason.OutcomeUnknown: // repeating is safe: adds have ids, ends have tokens
			case reason.NotReady, reason.ShuttingDown:
				if local {
					return err
				}
			default:
				return err
			}
		}
		if giveUp.IsZero() {
			giveUp = time.Now().Add(searchTime)
		} else if time.Now().After(giveUp) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// each runs fn for each of the partitions 0 to n-1, several at a time, until the
// first error.
func each(ctx context.Context, n int32, fn func(ctx context.Context, n int32) error) error {
	if n == 1 {
		return fn(ctx, 0)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for i := range n {
		g.Go(func() error { return fn(ctx, i) })
	}
	return g.Wait()
}

// configure tells a queue's partitions in memory that its row has changed. One that
// cannot be told finds out by itself a little later.
func (q *Queues) configure(ctx context.Context, row *v1.StoredQueue) {
	_ = each(ctx, rowCounts(row).GetRead(), func(ctx context.Context, n int32) error {
		id := PartitionID{Namespace: row.GetNamespace(), Queue: row.GetName(), Number: n}
		peer, _, err := q.peers.Owner(id)
		if err == nil {
			_, err = peer.ConfigurePartition(ctx, &v1.ConfigurePartitionRequest{Namespace: id.Namespace, Queue: id.Queue, Partition: n})
		}
		if err != nil {
			q.log.Warn("partition was not told of its queue's change", "partition", id.String(), "err", err)
		}
		return nil // the others are told all the same
	})
}

// describePartitions asks all partitions of a queue how they are; those that are not
// in memory are read from the store. With load, the root is loaded.
func (q *Queues) describePartitions(ctx context.Context, row *v1.StoredQueue, load bool) ([]*v1.DescribePartitionResponse, error) {
	all := make([]*v1.DescribePartitionResponse, rowCounts(row).GetRead())
	err := each(ctx, int32(len(all)), func(ctx context.Context, n int32) error {
		id := PartitionID{Namespace: row.GetNamespace(), Queue: row.GetName(), Number: n}
		req := &v1.DescribePartitionRequest{Namespace: id.Namespace, Queue: id.Queue, Partition: n, OnlyIfLoaded: n != 0 || !load}
		return q.at(ctx, id, func(peer v1.MatchingServiceServer) (err error) {
			all[n], err = peer.DescribePartition(ctx, req)
			return err
		})
	})
	return all, err
}

// DescribeQueue tells a queue's condition; see QueueService.
func (q *Queues) DescribeQueue(ctx context.Context, req *v1.DescribeQueueRequest) (*v1.DescribeQueueResponse, error) {
	row, err := q.getQueue(ctx, req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	all, err := q.describePartitions(ctx, row, true)
	if err != nil {
		return nil, err
	}
	resp := &v1.DescribeQueueResponse{Queue: public(row), Counts: mergeCounts(all), Stats: mergeStats(all), Pollers: mergePollers(all)}
	for _, d := range all {
		if n, ok := Parent(d.GetPartition().GetPartition()); ok && d.GetPartition() != nil {
			d.Partition.Parent = &n
		}
		resp.Partitions = append(resp.Partitions, d.GetPartition())
	}
	resp.Priorities = mergePriorities(all)
	resp.Scaling = all[0].GetScaling()
	return resp, nil
}

func mergeCounts(all []*v1.DescribePartitionResponse) *v1.QueueCounts {
	sum := &v1.QueueCounts{}
	for _, d := range all {
		c := d.GetPartition().GetCounts()
		sum.Ready += c.GetReady()
		sum.Delayed += c.GetDelayed()
		sum.Leased += c.GetLeased()
		sum.Dead += c.GetDead()
	}
	return sum
}

// mergeStats makes a queue's statistics of its partitions': sums, the greatest age,
// and the share of sync matches weighted by what was dispatched.
func mergeStats(all []*v1.DescribePartitionResponse) *v1.QueueStats {
	sum := &v1.QueueStats{}
	for _, d := range all {
		s := d.GetStats()
		sum.AddRate += s.GetAddRate()
		sum.DispatchRate += s.GetDispatchRate()
		sum.CompleteRate += s.GetCompleteRate()
		sum.FailRate += s.GetFailRate()
		sum.RateLimited = sum.RateLimited || s.GetRateLimited()
		sum.SyncMatchShare += s.GetSyncMatchShare() * s.GetDispatchRate()
		if s.GetBacklogAge().AsDuration() > sum.GetBacklogAge().AsDuration() || sum.BacklogAge == nil {
			sum.BacklogAge = s.GetBacklogAge()
		}
	}
	if sum.DispatchRate > 0 {
		sum.SyncMatchShare = min(sum.SyncMatchShare/sum.DispatchRate, 1)
	}
	return sum
}

// mergePriorities does the same for each priority.
func mergePriorities(all []*v1.DescribePartitionResponse) []*v1.PriorityStats {
	var by [maxLevel + 1]*v1.PriorityStats
	for _, d := range all {
		for _, s := range d.GetPartition().GetPriorities() {
			if s.GetPriority() < 1 || s.GetPriority() > maxLevel {
				continue
			}
			sum := by[s.GetPriority()]
			if sum == nil {
				sum = &v1.PriorityStats{Priority: s.GetPriority()}
				by[s.GetPriority()] = sum
			}
			sum.Ready += s.GetReady()
			sum.AddRate += s.GetAddRate()
			sum.DispatchRate += s.GetDispatchRate()
			sum.SyncMatchShare += s.GetSyncMatchShare() * s.GetDispatchRate()
			if s.GetBacklogAge().AsDuration() > sum.GetBacklogAge().AsDuration() {
				sum.BacklogAge = s.GetBacklogAge()
			}
		}
	}
	var out []*v1.PriorityStats
	for _, sum := range by {
		if sum == nil {
			continue
		}
		if sum.DispatchRate > 0 {
			sum.SyncMatchShare = min(sum.SyncMatchShare/sum.DispatchRate, 1)
		}
		out = append(out, sum)
	}
	return out
}

// mergePollers makes one entry of each identity.
func mergePollers(all []*v1.DescribePartitionResponse) []*v1.Poller {
	by := map[string]*v1.Poller{}
	for _, d := range all {
		for _, p := range d.GetPollers() {
			m := by[p.GetIdentity()]
			if m == nil {
				by[p.GetIdentity()] = proto.CloneOf(p) // the partition keeps its own
				continue
			}
			m.Waiting += p.GetWaiting()
			if p.GetLastPollAt().AsTime().After(m.GetLastPollAt().AsTime()) {
				m.LastPollAt = p.GetLastPollAt()
			}
		}
	}
	out := make([]*v1.Poller, 0, len(by))
	for _, p := range by {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *v1.Poller) int { return strings.Compare(a.GetIdentity(), b.GetIdentity()) })
	return out
}

// PurgeQueue removes waiting tasks that were there when it began; see
// QueueService. It works in chunks: cut short, it has removed a part.
func (q *Queues) PurgeQueue(ctx context.Context, req *v1.PurgeQueueRequest) (*v1.PurgeQueueResponse, error) {
	row, err := q.getQueue(ctx, req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	resp := &v1.PurgeQueueResponse{}
	err = each(ctx, rowCounts(row).GetRead(), func(ctx context.Context, n int32) error {
		id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: n}
		return q.at(ctx, id, func(peer v1.MatchingServiceServer) error {
			part, err := peer.PurgePartition(ctx, &v1.PurgePartitionRequest{Namespace: id.Namespace, Queue: id.Queue, Partition: n, IncludeDead: req.GetIncludeDead()})
			mu.Lock()
			resp.Purged += part.GetPurged()
			mu.Unlock()
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// ListDeadTasks lists dead tasks, partition by partition, in the order in which
// they were added there; see QueueService. Its page token is the partition's number
// in 4 bytes and the partition's own token.
func (q *Queues) ListDeadTasks(ctx context.Context, req *v1.ListDeadTasksRequest) (*v1.ListDeadTasksResponse, error) {
	row, err := q.getQueue(ctx, req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	n, inner := int32(0), ""
	if t := req.GetPageToken(); t != "" {
		b, err := base64.RawURLEncoding.DecodeString(t)
		if err != nil || len(b) < 4 || binary.BigEndian.Uint32(b) >= MaxPartitions {
			return nil, reason.New(codes.InvalidArgument, reason.InvalidPageToken, nil, "the page token is not one that ListDeadTasks returned")
		}
		n, inner = int32(binary.BigEndian.Uint32(b)), string(b[4:])
	}
	resp := &v1.ListDeadTasksResponse{}
	last := rowCounts(row).GetRead() - 1
	for ; n <= last; n++ {
		room := int(req.GetPageSize()) - len(resp.GetTasks())
		if room <= 0 {
			resp.NextPageToken = deadPageToken(n, inner)
			break
		}
		id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: n}
		part := &v1.ListDeadTasksRequest{Namespace: id.Namespace, Queue: id.Queue, PageSize: int32(room), PageToken: inner}
		err := q.at(ctx, id, func(peer v1.MatchingServiceServer) error {
			got, err := peer.ListPartitionDeadTasks(ctx, &v1.ListPartitionDeadTasksRequest{Partition: n, Request: part})
			resp.Tasks = append(resp.Tasks, got.GetResponse().GetTasks()...)
			inner = got.GetResponse().GetNextPageToken()
			return err
		})
		if err != nil {
			return nil, err
		}
		if inner != "" {
			resp.NextPageToken = deadPageToken(n, inner)
			break
		}
	}
	return resp, nil
}

func deadPageToken(n int32, inner string) string {
	return base64.RawURLEncoding.EncodeToString(append(binary.BigEndian.AppendUint32(nil, uint32(n)), inner...))
}

// RedriveDeadTasks makes dead tasks ready again; see QueueService. Without ids it
// takes those that are dead when it begins, in chunks, partition by partition.
func (q *Queues) RedriveDeadTasks(ctx context.Context, req *v1.RedriveDeadTasksRequest) (*v1.RedriveDeadTasksResponse, error) {
	row, err := q.getQueue(ctx, req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	resp := &v1.RedriveDeadTasksResponse{}
	ids := req.GetIds()
	for n := range rowCounts(row).GetRead() {
		part := &v1.RedriveDeadTasksRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Ids: ids}
		if req.GetLimit() > 0 {
			if part.Limit = req.GetLimit() - resp.GetRedriven(); part.Limit <= 0 {
				return resp, nil
			}
		}
		id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: n}
		err := q.at(ctx, id, func(peer v1.MatchingServiceServer) error {
			got, err := peer.RedrivePartition(ctx, &v1.RedrivePartitionRequest{Partition: n, Request: part})
			if err == nil {
				resp.Redriven += got.GetRedriven()
				ids = got.GetNotFound()
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(req.GetIds()) > 0 && len(ids) == 0 {
			return resp, nil
		}
	}
	if len(ids) > 0 {
		return nil, taskNotFound(req.GetQueue(), ids[0])
	}
	return resp, nil
}

// DeleteQueue removes a queue with its tasks; see QueueService. The queue is marked
// first, so that no partition comes back while the others are dropped. When it is cut
// short, deleting again finishes the work.
func (q *Queues) DeleteQueue(ctx context.Context, req *v1.DeleteQueueRequest) (*v1.DeleteQueueResponse, error) {
	row, err := q.getQueue(ctx, req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	if !req.GetForce() && !row.GetDeleting() {
		all, err := q.describePartitions(ctx, row, false)
		if err != nil {
			return nil, err
		}
		if c := mergeCounts(all); c.GetReady()+c.GetDelayed()+c.GetLeased()+c.GetDead() > 0 {
			return nil, queueNotEmpty(req.GetQueue(), c.GetReady()+c.GetDelayed()+c.GetLeased()+c.GetDead())
		}
	}
	mark := func(on bool) (err error) {
		row, err = q.changeQueue(ctx, req.GetNamespace(), req.GetQueue(), func(row *v1.StoredQueue) error { row.Deleting = on; return nil })
		return err
	}
	if err := mark(true); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var left int64
	err = each(ctx, rowCounts(row).GetRead(), func(ctx context.Context, n int32) error {
		tasks, err := q.dropPartition(ctx, PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: n}, req.GetForce())
		mu.Lock()
		left += tasks
		mu.Unlock()
		return err
	})
	if err != nil {
		return nil, err
	}
	sticky, err := q.stickyQueues(ctx, root(req.GetNamespace(), req.GetQueue()), math.MaxInt64)
	for _, id := range sticky {
		if err == nil && left == 0 {
			left, err = q.dropSticky(ctx, id, req.GetForce())
		}
	}
	if err != nil {
		return nil, err
	}
	if left > 0 { // tasks came at the last moment
		return nil, cmp.Or(mark(false), queueNotEmpty(req.GetQueue(), left))
	}
	if err := q.callQueue(ctx, fnQueueDelete, row); err != nil {
		return nil, err
	}
	q.forgetCounts(req.GetNamespace(), req.GetQueue())
	return &v1.DeleteQueueResponse{}, nil
}

func queueNotEmpty(queue string, tasks int64) error {
	return reason.New(codes.FailedPrecondition, reason.QueueNotEmpty, map[string]string{"queue": queue},
		"queue %q still has %d tasks: purge it first, or delete it with force", queue, tasks)
}

// dropPartition deletes a partition's rows, unless it has tasks and force is not set.
func (q *Queues) dropPartition(ctx context.Context, id PartitionID, force bool) (tasks int64, err error) {
	req := &v1.DropPartitionRequest{Namespace: id.Namespace, Queue: id.Queue, Partition: id.Number, StickyWorker: id.Sticky, Force: force}
	err = q.at(ctx, id, func(peer v1.MatchingServiceServer) error {
		resp, err := peer.DropPartition(ctx, req)
		tasks = resp.GetTasks()
		return err
	})
	return tasks, err
}

// shrink drops the partitions that a queue does not add to any more, from the last
// one down to the first that is not empty, and lowers its number of partitions.
func (q *Queues) shrink(ctx context.Context, id PartitionID) {
	row, err := q.getQueue(ctx, id.Namespace, id.Queue)
	if err != nil {
		return
	}
	if managed(row) {
		return
	}
	counts := rowCounts(row)
	n := counts.GetRead()
	for n > counts.GetWrite() {
		m, ok, err := q.storedMeta(ctx, id.sibling(n-1))
		if err != nil || ok && m.counts.tasks() > 0 {
			break
		}
		if ok {
			if tasks, err := q.dropPartition(ctx, id.sibling(n-1), false); err != nil || tasks > 0 {
				break
			}
		}
		n--
	}
	if n == counts.GetRead() {
		return
	}
	_, err = q.changeQueue(ctx, id.Namespace, id.Queue, func(row *v1.StoredQueue) error {
		if row.GetReadPartitions() == counts.GetRead() && !managed(row) { // else it was changed meanwhile
			row.ReadPartitions = max(n, row.GetWritePartitions())
		}
		return nil
	})
	if err != nil {
		q.log.Warn("a queue's number of partitions was not lowered", "queue", id.String(), "err", err)
	}
}

// EndWorkerPolls ends all polls of a worker in all partitions of a queue, by the counts
// that hold now, and in its sticky queues; see QueueService.
func (q *Queues) EndWorkerPolls(ctx context.Context, req *v1.EndWorkerPollsRequest) (*v1.EndWorkerPollsResponse, error) {
	row, err := q.getQueue(ctx, req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	home := root(req.GetNamespace(), req.GetQueue())
	ids, err := q.stickyQueues(ctx, home, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	for n := range rowCounts(row).GetRead() {
		ids = append(ids, home.sibling(n))
	}
	var ended atomic.Int32
	err = each(ctx, int32(len(ids)), func(ctx context.Context, i int32) error {
		id := ids[i]
		return q.at(ctx, id, func(peer v1.MatchingServiceServer) error {
			resp, err := peer.CancelWorkerPolls(ctx, &v1.CancelWorkerPollsRequest{Namespace: id.Namespace, Queue: id.Queue, Partition: id.Number,
				StickyWorker: id.Sticky, Identity: req.GetIdentity()})
			ended.Add(resp.GetCancelled())
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return &v1.EndWorkerPollsResponse{Ended: ended.Load()}, nil
}
