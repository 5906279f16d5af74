package matching

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// CreateQueue makes a queue; see QueueService.
func (e *Engine) CreateQueue(ctx context.Context, req *v1.CreateQueueRequest) (*v1.CreateQueueResponse, error) {
	q, err := e.createQueue(ctx, req.GetNamespace(), req.GetQueue(), req.GetConfig())
	if err != nil {
		return nil, err
	}
	return &v1.CreateQueueResponse{Queue: q}, nil
}

// UpdateQueue changes a queue's configuration; see QueueService.
func (e *Engine) UpdateQueue(ctx context.Context, req *v1.UpdateQueueRequest) (*v1.UpdateQueueResponse, error) {
	q, err := e.changeQueue(ctx, req.GetNamespace(), req.GetQueue(), func(q *v1.Queue) error {
		c := req.GetConfig()
		if c == nil {
			c = &v1.QueueConfig{}
		}
		if len(req.GetUpdateMask().GetPaths()) == 0 {
			q.Config = c
			return nil
		}
		if q.Config == nil {
			q.Config = &v1.QueueConfig{}
		}
		for _, path := range req.GetUpdateMask().GetPaths() {
			if err := updatePath(q.Config, c, path); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.UpdateQueueResponse{Queue: q}, nil
}

// updatePath copies one field.
func updatePath(to, from *v1.QueueConfig, path string) error {
	if strings.HasPrefix(path, "retry.") && to.Retry == nil {
		to.Retry = &v1.RetryPolicy{}
	}
	switch path {
	case "lease_time":
		to.LeaseTime = from.GetLeaseTime()
	case "max_attempts":
		to.MaxAttempts = from.GetMaxAttempts()
	case "time_to_live":
		to.TimeToLive = from.GetTimeToLive()
	case "retry":
		to.Retry = from.GetRetry()
	case "retry.initial_backoff":
		to.Retry.InitialBackoff = from.GetRetry().GetInitialBackoff()
	case "retry.max_backoff":
		to.Retry.MaxBackoff = from.GetRetry().GetMaxBackoff()
	case "retry.multiplier":
		to.Retry.Multiplier = from.GetRetry().GetMultiplier()
	case "retry.jitter":
		to.Retry.Jitter = from.GetRetry().Jitter
	default:
		return reason.New(codes.InvalidArgument, reason.InvalidUpdateMask, map[string]string{"path": path}, "the update mask names %q, which no queue has", path)
	}
	return nil
}

// PauseQueue stops handing out tasks; see QueueService.
func (e *Engine) PauseQueue(ctx context.Context, req *v1.PauseQueueRequest) (*v1.PauseQueueResponse, error) {
	q, err := e.changeQueue(ctx, req.GetNamespace(), req.GetQueue(), func(q *v1.Queue) error { q.Paused = true; return nil })
	if err != nil {
		return nil, err
	}
	return &v1.PauseQueueResponse{Queue: q}, nil
}

// ResumeQueue hands out tasks again; see QueueService.
func (e *Engine) ResumeQueue(ctx context.Context, req *v1.ResumeQueueRequest) (*v1.ResumeQueueResponse, error) {
	q, err := e.changeQueue(ctx, req.GetNamespace(), req.GetQueue(), func(q *v1.Queue) error { q.Paused = false; return nil })
	if err != nil {
		return nil, err
	}
	return &v1.ResumeQueueResponse{Queue: q}, nil
}

// DeleteQueue removes a queue with its tasks; see QueueService. When it is cut
// short, the queue is still there, perhaps without its tasks, and deleting it again
// finishes the work.
func (e *Engine) DeleteQueue(ctx context.Context, req *v1.DeleteQueueRequest) (*v1.DeleteQueueResponse, error) {
	e.queueMu.Lock()
	defer e.queueMu.Unlock()
	err := e.retryUnloaded(ctx, root(req.GetNamespace(), req.GetQueue()), false, func(o *owner) error {
		d := &dropCall{force: req.GetForce()}
		d.init()
		if err := o.do(ctx, d, &d.call); err != nil {
			return err
		}
		if d.tasks > 0 {
			return reason.New(codes.FailedPrecondition, reason.QueueNotEmpty, map[string]string{"queue": req.GetQueue()},
				"queue %q still has %d tasks: purge it first, or delete it with force", req.GetQueue(), d.tasks)
		}
		e.setDeleting(o.id, true)
		defer e.setDeleting(o.id, false)
		o.stop()
		select {
		case <-o.exited:
		case <-ctx.Done():
			return ctx.Err()
		}
		var b batch
		b.begin(o.id.Hash(), o.uid, o.rangeID, o.id.Key())
		_, err := e.router.Call(ctx, o.bucket, router.CallRW, fnDrop, b.args)
		if err != nil {
			return e.storeError(err)
		}
		return e.callQueue(ctx, fnQueueDelete, &v1.Queue{Namespace: req.GetNamespace(), Name: req.GetQueue()})
	})
	if err != nil {
		return nil, err
	}
	return &v1.DeleteQueueResponse{}, nil
}

func (e *Engine) setDeleting(id PartitionID, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if on {
		e.deleting[id] = struct{}{}
	} else {
		delete(e.deleting, id)
	}
}

// ListQueues lists a namespace's queues by name; see QueueService.
func (e *Engine) ListQueues(ctx context.Context, req *v1.ListQueuesRequest) (*v1.ListQueuesResponse, error) {
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil {
		return nil, reason.New(codes.InvalidArgument, reason.InvalidPageToken, nil, "the page token is not one that ListQueues returned")
	}
	ns := req.GetNamespace()
	resp := &v1.ListQueuesResponse{}
	err = e.router.View(ctx, e.namespaceBucket(ns), router.CallRO, func(v *storage.View) error {
		resp.Queues, resp.NextPageToken = nil, "" // a view may run again
		from := queueKey(ns, string(after))
		if len(after) > 0 {
			from = append(from, 0)
		}
		var bad error
		err := v.Scan(spaceQueues, from, append([]byte(ns), 1), false, func(_, value []byte) bool {
			if len(resp.Queues) >= int(req.GetPageSize()) {
				last := resp.Queues[len(resp.Queues)-1].GetQueue().GetName()
				resp.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(last))
				return false
			}
			var q *v1.Queue
			if q, bad = decodeQueue(value); bad != nil {
				return false
			}
			resp.Queues = append(resp.Queues, &v1.ListQueuesResponse_Entry{Queue: q})
			return true
		})
		if err == nil {
			err = bad
		}
		return err
	})
	if err != nil {
		return nil, e.storeError(err)
	}
	for _, entry := range resp.GetQueues() {
		if entry.Counts, err = e.counts(ctx, root(ns, entry.GetQueue().GetName())); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// counts counts a partition's tasks without loading it.
func (e *Engine) counts(ctx context.Context, id PartitionID) (*v1.QueueCounts, error) {
	if o := e.present(id); o != nil {
		d := &describeCall{}
		d.init()
		if o.submit(d, false) == nil {
			<-d.done
			if d.err == nil {
				return d.counts.proto(), nil
			}
		}
	}
	var m meta
	bucket := shard.BucketOf(id.Hash(), e.router.BucketCount())
	err := e.router.View(ctx, bucket, router.CallRO, func(v *storage.View) error {
		row, ok, err := v.Get(spaceMeta, []byte(id.Key()))
		if err != nil || !ok {
			return err
		}
		return m.decode(row)
	})
	if err != nil {
		return nil, e.storeError(err)
	}
	return stateCounts{m.counts.fresh, m.counts.scheduled, m.counts.leased, m.counts.dead}.proto(), nil
}

func (c stateCounts) proto() *v1.QueueCounts {
	return &v1.QueueCounts{Ready: c.ready, Delayed: c.delayed, Leased: c.leased, Dead: c.dead}
}

// DescribeQueue tells a queue's condition; see QueueService.
func (e *Engine) DescribeQueue(ctx context.Context, req *v1.DescribeQueueRequest) (*v1.DescribeQueueResponse, error) {
	q, err := e.getQueue(ctx, req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	d := &describeCall{}
	d.init()
	id := root(req.GetNamespace(), req.GetQueue())
	err = e.retryUnloaded(ctx, id, false, func(o *owner) error { return o.do(ctx, d, &d.call) })
	if err != nil {
		return nil, err
	}
	resp := &v1.DescribeQueueResponse{
		Queue: q, Counts: d.counts.proto(),
		Stats: &v1.QueueStats{
			AddRate: d.rates[statAdded], DispatchRate: d.rates[statDispatched], CompleteRate: d.rates[statCompleted],
			FailRate: d.rates[statFailed], SyncMatchShare: d.syncRate,
		},
		Partitions: []*v1.PartitionDescription{{
			Partition: id.Number, Counts: d.counts.proto(), RangeId: int64(d.rangeID), LoadedTasks: int64(d.loaded), WaitingPolls: int32(d.waiting),
		}},
	}
	if d.oldest != 0 {
		resp.Stats.BacklogAge = durationpb.New(max(0, timeSince(d.now, d.oldest)))
	}
	slices.SortFunc(d.pollers, func(a, b pollerInfo) int { return strings.Compare(a.identity, b.identity) })
	for _, p := range d.pollers {
		resp.Pollers = append(resp.Pollers, &v1.Poller{Identity: p.identity, LastPollAt: timestamp(p.last), Waiting: int32(p.waiting)})
	}
	return resp, nil
}

// purgeChunk is how many tasks one write removes or revives.
const purgeChunk = 1000

// PurgeQueue removes waiting tasks that were there when it began; see
// QueueService. It works in chunks: cut short, it has removed a part.
func (e *Engine) PurgeQueue(ctx context.Context, req *v1.PurgeQueueRequest) (*v1.PurgeQueueResponse, error) {
	resp := &v1.PurgeQueueResponse{}
	var before uint64 // tasks added later stay
	waiting := func(v *storage.View, o *owner) ([]storedTask, error) {
		var m meta
		row, ok, err := v.Get(spaceMeta, []byte(o.id.Key()))
		if err != nil || !ok {
			return nil, err
		}
		if err := m.decode(row); err != nil {
			return nil, err
		}
		if before == 0 {
			before = m.nextSeq
		}
		return waitingTasks(v, o.uid, m.freshFrom, before, purgeChunk)
	}
	dead := func(v *storage.View, o *owner) ([]storedTask, error) {
		found, _, err := deadTasks(v, o.uid, 0, purgeChunk)
		var out []storedTask
		for _, f := range found {
			if f.seq < before {
				out = append(out, f.storedTask)
			}
		}
		return out, err
	}
	passes := []func(*storage.View, *owner) ([]storedTask, error){waiting}
	if req.GetIncludeDead() {
		passes = append(passes, dead)
	}
	for _, find := range passes {
		for {
			n := 0
			err := e.retryUnloaded(ctx, root(req.GetNamespace(), req.GetQueue()), false, func(o *owner) error {
				r := &removeCall{}
				_, err := e.lookAndDo(ctx, o, func(v *storage.View) (replier, *call, error) {
					tasks, err := find(v, o)
					if n = len(tasks); err != nil || n == 0 {
						return nil, nil, err
					}
					r.tasks = tasks
					return r, &r.call, nil
				})
				resp.Purged += int64(r.removed)
				return err
			})
			if err != nil {
				return nil, err
			}
			if n == 0 {
				break
			}
		}
	}
	return resp, nil
}

// ListDeadTasks lists dead tasks in the order in which they were added; see
// QueueService.
func (e *Engine) ListDeadTasks(ctx context.Context, req *v1.ListDeadTasksRequest) (*v1.ListDeadTasksResponse, error) {
	var from uint64
	if t := req.GetPageToken(); t != "" {
		b, err := base64.RawURLEncoding.DecodeString(t)
		if err != nil || len(b) != 8 {
			return nil, reason.New(codes.InvalidArgument, reason.InvalidPageToken, nil, "the page token is not one that ListDeadTasks returned")
		}
		from = binary.BigEndian.Uint64(b)
	}
	resp := &v1.ListDeadTasksResponse{}
	err := e.retryUnloaded(ctx, root(req.GetNamespace(), req.GetQueue()), false, func(o *owner) error {
		b := &barrierCall{}
		b.init()
		if err := o.do(ctx, b, &b.call); err != nil {
			return err
		}
		return e.storeError(e.router.View(ctx, o.bucket, router.CallRO, func(v *storage.View) error {
			resp.Tasks, resp.NextPageToken = nil, ""
			tasks, next, err := deadTasks(v, o.uid, from, int(req.GetPageSize()))
			for i := range tasks {
				resp.Tasks = append(resp.Tasks, tasks[i].proto(o, e.now()))
			}
			if next != 0 {
				resp.NextPageToken = base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, next))
			}
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// RedriveDeadTasks makes dead tasks ready again; see QueueService. Without ids it
// takes those that are dead when it begins, in chunks.
func (e *Engine) RedriveDeadTasks(ctx context.Context, req *v1.RedriveDeadTasksRequest) (*v1.RedriveDeadTasksResponse, error) {
	resp := &v1.RedriveDeadTasksResponse{}
	id := root(req.GetNamespace(), req.GetQueue())
	redrive := func(find func(*storage.View, *owner) ([]storedTask, error)) (n int, err error) {
		err = e.retryUnloaded(ctx, id, false, func(o *owner) error {
			r := &reviveCall{}
			_, err := e.lookAndDo(ctx, o, func(v *storage.View) (replier, *call, error) {
				tasks, err := find(v, o)
				if n = len(tasks); err != nil || n == 0 {
					return nil, nil, err
				}
				r.tasks = tasks
				return r, &r.call, nil
			})
			resp.Redriven += int64(r.revived)
			return err
		})
		return n, err
	}
	if len(req.GetIds()) > 0 {
		ids, err := parseIDs(req.GetIds())
		if err != nil {
			return nil, err
		}
		if limit := req.GetLimit(); limit > 0 && int64(len(ids)) > limit {
			ids = ids[:limit]
		}
		_, err = redrive(func(v *storage.View, o *owner) ([]storedTask, error) {
			var out []storedTask
			for _, id := range ids {
				f, ok, err := findTask(v, o.uid, id)
				if err != nil {
					return nil, err
				}
				if !ok {
					return nil, taskNotFound(req.GetQueue(), id.String())
				}
				if f.gone || f.state != storedDead {
					return nil, reason.New(codes.FailedPrecondition, reason.TaskNotFound, map[string]string{"task": id.String()}, "task %s is not dead: only dead tasks are redriven", id)
				}
				out = append(out, f.storedTask)
			}
			return out, nil
		})
		return resp, err
	}
	var from, before uint64
	for {
		limit := int64(purgeChunk)
		if req.GetLimit() > 0 {
			if limit = min(limit, req.GetLimit()-resp.Redriven); limit <= 0 {
				return resp, nil
			}
		}
		n, err := redrive(func(v *storage.View, o *owner) ([]storedTask, error) {
			if before == 0 {
				row, ok, err := v.Get(spaceMeta, []byte(o.id.Key()))
				if err != nil || !ok {
					return nil, err
				}
				var m meta
				if err := m.decode(row); err != nil {
					return nil, err
				}
				before = m.nextSeq
			}
			found, next, err := deadTasks(v, o.uid, from, int(limit))
			if err != nil {
				return nil, err
			}
			var out []storedTask
			for _, f := range found {
				if f.seq < before {
					out = append(out, f.storedTask)
				}
			}
			if from = next; next == 0 {
				from = before
			}
			return out, nil
		})
		if err != nil || n == 0 {
			return resp, err
		}
	}
}

func parseIDs(ids []string) ([]taskID, error) {
	out := make([]taskID, len(ids))
	for i, s := range ids {
		u, err := parseUUID(s)
		if err != nil {
			return nil, err
		}
		out[i] = u
	}
	slices.SortFunc(out, func(a, b taskID) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(out), nil
}
