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
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// One partition's part of the calls that concern a whole queue.

// ConfigurePartition implements v1.MatchingServiceServer: a partition in memory takes
// over what its queue's row says now, and so do the sticky queues beside a root.
func (e *Engine) ConfigurePartition(ctx context.Context, req *v1.ConfigurePartitionRequest) (*v1.ConfigurePartitionResponse, error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: req.GetPartition()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	var owners []*owner
	if o := e.present(id); o != nil {
		owners = append(owners, o)
	}
	if id.isRoot() {
		for _, o := range e.inMemory() {
			if o.id.Sticky != "" && o.id.Namespace == id.Namespace && o.id.Queue == id.Queue {
				owners = append(owners, o)
			}
		}
	}
	if len(owners) == 0 {
		return &v1.ConfigurePartitionResponse{}, nil
	}
	q, err := e.getQueue(ctx, id.Namespace, id.Queue)
	if err != nil {
		return nil, err
	}
	for _, o := range owners {
		o.configure(q)
	}
	return &v1.ConfigurePartitionResponse{}, nil
}

// configure takes over a queue's row.
func (o *owner) configure(q *v1.StoredQueue) {
	s := settingsOf(q)
	o.settings.Store(&s)
	o.setCounts(q)
	o.scale(q)
	o.internal(configure{s})
}

// PublishCounts implements v1.MatchingServiceServer.
func (e *Engine) PublishCounts(_ context.Context, req *v1.PublishCountsRequest) (*v1.PublishCountsResponse, error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: req.GetPartition()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	o := e.present(id)
	if o == nil {
		return &v1.PublishCountsResponse{}, nil
	}
	if c := req.GetCounts(); plausible(c) && c.GetRead() <= MaxPartitions && c.GetVersion() > 0 {
		o.learnCounts(c)
	}
	drained := id.Number >= o.partitionCounts().GetWrite() && !o.working.Load()
	return &v1.PublishCountsResponse{WasLoaded: true, Drained: drained, Backlog: o.backlog.Load()}, nil
}

// DropPartition implements v1.MatchingServiceServer.
func (e *Engine) DropPartition(ctx context.Context, req *v1.DropPartitionRequest) (*v1.DropPartitionResponse, error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: req.GetPartition(), Sticky: req.GetStickyWorker()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	if _, ok, err := e.storedMeta(ctx, id); err != nil {
		return nil, err
	} else if o := e.present(id); !ok && o == nil {
		return &v1.DropPartitionResponse{}, nil
	}
	for {
		o, err := e.owner(ctx, id, loadDrop)
		if err != nil {
			return nil, err
		}
		d := &dropCall{force: req.GetForce()}
		d.init()
		switch err := o.do(ctx, d, &d.call); {
		case err == errUnloaded:
			select {
			case <-o.exited:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			e.forget(o)
			continue
		case err != nil:
			o.stop() // it may have been carried out all the same
			return nil, err
		case d.tasks > 0:
			return &v1.DropPartitionResponse{Tasks: d.tasks}, nil
		}
		e.setDeleting(o.id, true)
		defer e.setDeleting(o.id, false)
		o.stop()
		select {
		case <-o.exited:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		e.forget(o)
		var b batch
		b.begin(o.id.Hash(), o.uid, o.rangeID, o.id.Key())
		_, err = e.router.Call(ctx, o.bucket, router.CallRW, fnDrop, b.args)
		return &v1.DropPartitionResponse{}, e.storeError(err)
	}
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

// DescribePartition implements v1.MatchingServiceServer.
func (e *Engine) DescribePartition(ctx context.Context, req *v1.DescribePartitionRequest) (*v1.DescribePartitionResponse, error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: req.GetPartition(), Sticky: req.GetStickyWorker()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	d := &describeCall{}
	d.init()
	var o *owner
	if req.GetOnlyIfLoaded() {
		if o = e.present(id); o == nil {
			return e.describeStored(ctx, id)
		}
		if err := o.submit(d, false); err != nil {
			return e.describeStored(ctx, id)
		}
		select {
		case <-d.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if d.err != nil {
			return nil, d.err
		}
	} else {
		err := e.retryUnloaded(ctx, id, false, func(to *owner) error {
			o = to
			return o.do(ctx, d, &d.call)
		})
		if err != nil {
			return nil, err
		}
	}
	resp := &v1.DescribePartitionResponse{Loaded: true, Counts: o.partitionCounts()}
	resp.Partition, resp.Stats, resp.Pollers = d.proto(id)
	if s := o.scaler.Load(); s != nil {
		resp.Scaling = s.status.Load()
	}
	return resp, nil
}

// proto is what a partition's description tells users.
func (d *describeCall) proto(id PartitionID) (*v1.PartitionDescription, *v1.QueueStats, []*v1.Poller) {
	p := &v1.PartitionDescription{
		Partition: id.Number, Counts: d.counts.proto(), RangeId: int64(d.rangeID), LoadedTasks: int64(d.loaded), WaitingPolls: int32(d.waiting),
	}
	s := &v1.QueueStats{
		AddRate: d.rates[statAdded], DispatchRate: d.rates[statDispatched], CompleteRate: d.rates[statCompleted],
		FailRate: d.rates[statFailed], SyncMatchShare: d.syncRate,
	}
	if d.oldest != 0 {
		s.BacklogAge = durationpb.New(max(0, timeSince(d.now, d.oldest)))
	}
	for level := range d.levels {
		l := &d.levels[level]
		if *l == (levelInfo{}) {
			continue
		}
		ps := &v1.PriorityStats{Priority: int32(level), Ready: l.ready, AddRate: l.rates[statAdded], DispatchRate: l.rates[statDispatched]}
		if l.oldest != 0 {
			ps.BacklogAge = durationpb.New(max(0, timeSince(d.now, l.oldest)))
		}
		if ps.DispatchRate > 0 {
			ps.SyncMatchShare = min(l.rates[statSyncMatched]/ps.DispatchRate, 1)
		}
		p.Priorities = append(p.Priorities, ps)
	}
	s.RateLimited = d.limited
	slices.SortFunc(d.pollers, func(a, b pollerInfo) int { return strings.Compare(a.identity, b.identity) })
	pollers := make([]*v1.Poller, len(d.pollers))
	for i, p := range d.pollers {
		pollers[i] = &v1.Poller{Identity: p.identity, LastPollAt: timestamp(p.last), Waiting: int32(p.waiting)}
	}
	p.Stats, p.Pollers, p.Loaded = s, pollers, true
	return p, s, pollers
}

// describeStored describes a partition that is not in memory.
func (e *Engine) describeStored(ctx context.Context, id PartitionID) (*v1.DescribePartitionResponse, error) {
	m, _, err := e.storedMeta(ctx, id)
	if err != nil {
		return nil, err
	}
	c := stateCounts{m.counts.fresh, m.counts.scheduled, m.counts.leased, m.counts.dead}
	if c.delayed > 0 {
		var due int64
		err = e.router.View(ctx, e.bucketOf(id), router.CallRO, func(v *storage.View) error {
			due, err = countDue(v, m.uid, e.now())
			return err
		})
		if err != nil {
			return nil, e.storeError(err)
		}
		c.ready, c.delayed = c.ready+due, c.delayed-min(due, c.delayed)
	}
	return &v1.DescribePartitionResponse{
		Partition: &v1.PartitionDescription{Partition: id.Number, Counts: c.proto(), RangeId: int64(m.rangeID)}, Stats: &v1.QueueStats{},
	}, nil
}

// purgeChunk is how many tasks one write removes or revives.
const purgeChunk = 1000

// PurgePartition implements v1.MatchingServiceServer.
func (e *Engine) PurgePartition(ctx context.Context, req *v1.PurgePartitionRequest) (*v1.PurgePartitionResponse, error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: req.GetPartition()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	resp := &v1.PurgePartitionResponse{}
	var before uint64 // tasks added later stay
	purge := func(find findTasks) error {
		for {
			r := &removeCall{}
			n, err := e.withTasks(ctx, id, find, func(tasks []storedTask) (replier, *call) {
				resp.Purged += int64(r.removed) // by a try whose partition left memory
				r = &removeCall{tasks: tasks}
				return r, &r.call
			})
			resp.Purged += int64(r.removed)
			if err != nil || n == 0 {
				return err
			}
		}
	}
	err := purge(func(v *storage.View, o *owner) ([]storedTask, error) {
		m, err := metaOnce(v, o, &before)
		if err != nil || m == nil {
			return nil, err
		}
		return waitingTasks(v, m, before, purgeChunk)
	})
	if err == nil && req.GetIncludeDead() {
		err = purge(func(v *storage.View, o *owner) ([]storedTask, error) {
			found, _, err := deadTasks(v, o.uid, 0, purgeChunk)
			return addedBefore(found, before), err
		})
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// findTasks finds the tasks for one write that removes or revives them.
type findTasks func(*storage.View, *owner) ([]storedTask, error)

// withTasks finds tasks of a partition, hands them to its owner by the call that do makes, and
// returns how many it found. Without any, there is no call.
func (e *Engine) withTasks(ctx context.Context, id PartitionID, find findTasks, do func([]storedTask) (replier, *call)) (n int, err error) {
	err = e.retryUnloaded(ctx, id, false, func(o *owner) error {
		_, err := e.lookAndDo(ctx, o, func(v *storage.View) (replier, *call, error) {
			found, err := find(v, o)
			if n = len(found); err != nil || n == 0 {
				return nil, nil, err
			}
			next, c := do(found)
			return next, c, nil
		})
		return err
	})
	return n, err
}

// metaOnce reads a partition's meta row, nil if there is none, and notes the next sequence
// number when it is the first time.
func metaOnce(v *storage.View, o *owner, next *uint64) (*meta, error) {
	row, ok, err := v.Get(spaceMeta, []byte(o.id.Key()))
	if err != nil || !ok {
		return nil, err
	}
	m := &meta{}
	if err := m.decode(row); err != nil {
		return nil, err
	}
	if *next == 0 {
		*next = m.nextSeq
	}
	return m, nil
}

// addedBefore are the tasks with a sequence number below next.
func addedBefore(found []found, next uint64) (out []storedTask) {
	for _, f := range found {
		if f.seq < next {
			out = append(out, f.storedTask)
		}
	}
	return out
}

// ListPartitionDeadTasks implements v1.MatchingServiceServer. Tasks come in the order
// in which they were added.
func (e *Engine) ListPartitionDeadTasks(ctx context.Context, preq *v1.ListPartitionDeadTasksRequest) (*v1.ListPartitionDeadTasksResponse, error) {
	req := preq.GetRequest()
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: preq.GetPartition()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	var from uint64
	if t := req.GetPageToken(); t != "" {
		b, err := base64.RawURLEncoding.DecodeString(t)
		if err != nil || len(b) != 8 {
			return nil, reason.New(codes.InvalidArgument, reason.InvalidPageToken, nil, "the page token is not one that ListDeadTasks returned")
		}
		from = binary.BigEndian.Uint64(b)
	}
	resp := &v1.ListDeadTasksResponse{}
	err := e.retryUnloaded(ctx, id, false, func(o *owner) error {
		b := &barrierCall{}
		b.init()
		if err := o.do(ctx, b, &b.call); err != nil {
			return err
		}
		return e.storeError(e.look(ctx, o, func(v *storage.View) error {
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
	return &v1.ListPartitionDeadTasksResponse{Response: resp}, nil
}

// RedrivePartition implements v1.MatchingServiceServer. Without ids it takes those
// that are dead when it begins, in chunks.
func (e *Engine) RedrivePartition(ctx context.Context, preq *v1.RedrivePartitionRequest) (*v1.RedrivePartitionResponse, error) {
	req := preq.GetRequest()
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: preq.GetPartition()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	resp := &v1.RedrivePartitionResponse{}
	redrive := func(find findTasks) (int, error) {
		r := &reviveCall{}
		n, err := e.withTasks(ctx, id, find, func(tasks []storedTask) (replier, *call) {
			resp.Redriven += int64(r.revived) // by a try whose partition left memory
			r = &reviveCall{tasks: tasks}
			return r, &r.call
		})
		resp.Redriven += int64(r.revived)
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
			resp.NotFound = nil
			for _, id := range ids {
				f, ok, err := findTask(v, o.uid, id)
				if err != nil {
					return nil, err
				}
				if !ok {
					resp.NotFound = append(resp.NotFound, id.String())
					continue
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
			if m, err := metaOnce(v, o, &before); err != nil || m == nil {
				return nil, err
			}
			found, next, err := deadTasks(v, o.uid, from, int(limit))
			if err != nil {
				return nil, err
			}
			if from = next; next == 0 {
				from = before
			}
			return addedBefore(found, before), nil
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
