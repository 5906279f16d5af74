package matching

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// root is the first partition of a queue.
func root(namespace, queue string) PartitionID {
	return PartitionID{Namespace: namespace, Queue: queue}
}

// PartitionAddTasks implements v1.MatchingServiceServer.
func (e *Engine) PartitionAddTasks(ctx context.Context, preq *v1.PartitionAddTasksRequest) (*v1.PartitionAddTasksResponse, error) {
	req := preq.GetRequest()
	id, err := partition(preq.GetHeader(), req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	if err := checkHop(preq.GetHeader(), id); err != nil {
		return nil, err
	}
	a := &addCall{}
	a.init()
	o, err := e.ownerToAdd(ctx, id)
	if err != nil {
		return nil, err
	}
	ttl := o.settings.Load().timeToLive
	now := e.now()
	if a.items = a.one[:]; len(req.GetTasks()) != 1 {
		a.items = make([]addItem, len(req.GetTasks()))
	}
	size := 0
	for _, t := range req.GetTasks() {
		size += bodySize(t)
	}
	buf := make([]byte, 0, size)
	for i, t := range req.GetTasks() {
		it := &a.items[i]
		if it.id, err = parseUUID(t.GetId()); err != nil {
			return nil, err
		}
		it.addedAt = now
		var b body
		b.fromSpec(it.id, now, ttl, t)
		it.runAt = b.runAt
		at := len(buf)
		buf = b.append(buf)
		it.body = buf[at:len(buf):len(buf)]
	}
	var known []bool // items that another partition has
	var again []bool // items that an earlier owner may have taken
	var counts *v1.PartitionCounts
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, lastPause) {
		counts, err = e.enter(ctx, preq.GetHeader(), id, opWrite, func(o *owner) error {
			var err error
			if known, err = e.addedElsewhere(ctx, o, preq.GetHeader(), a.items); err != nil || known != nil {
				return err
			}
			if err := e.addTo(ctx, o, a); err != nil {
				return err
			}
			o.addsSeen(len(a.items))
			return nil
		})
		if err == nil {
			break
		}
		// What was under way when the store lost its master is repeated: its id tells
		// whether it arrived.
		if ctx.Err() != nil || !masterLost(err) {
			return nil, err
		}
		if again == nil {
			again = make([]bool, len(a.items))
		}
		for i := range a.items {
			it := &a.items[i]
			if it.result == added {
				again[i] = true
				it.result, it.looked = addLookUp, false
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if known != nil {
		return e.addRest(ctx, preq, known)
	}
	a.over()
	results := make([]v1.AddTasksResponse_Result, len(a.items))
	var answer struct { // in one piece of memory
		partition v1.PartitionAddTasksResponse
		v1.AddTasksResponse
	}
	resp := &answer.AddTasksResponse
	resp.Results = make([]*v1.AddTasksResponse_Result, len(a.items))
	for i := range a.items {
		r := &results[i]
		r.Id = req.GetTasks()[i].GetId()
		r.AlreadyAdded = a.items[i].result == alreadyAdded && (again == nil || !again[i])
		resp.Results[i] = r
	}
	answer.partition.Response, answer.partition.Counts = resp, counts
	return &answer.partition, nil
}

// masterLost says whether a write came to nothing, or to nobody knows what, because
// the store changed its master.
func masterLost(err error) bool {
	return errors.Is(err, shard.NonMaster) || errors.Is(err, shard.MissingMaster) || errors.Is(err, shard.MasterNotSynced) ||
		errors.Is(err, shard.OutcomeUnknown)
}

// addTo gives a call to an owner until all its items are decided.
func (e *Engine) addTo(ctx context.Context, o *owner, a *addCall) error {
	for {
		if err := o.do(ctx, a, &a.call); err != nil {
			return err
		}
		undecided := false
		for i := range a.items {
			undecided = undecided || a.items[i].result == addLookUp
		}
		if !undecided {
			return nil
		}
		if err := e.lookUpIDs(ctx, o, a); err != nil {
			return err
		}
	}
}

// lookUpIDs finds out which undecided ids the store knows.
func (e *Engine) lookUpIDs(ctx context.Context, o *owner, a *addCall) error {
	now := e.now()
	err := e.look(ctx, o, func(v *storage.View) error {
		var key []byte
		for i := range a.items {
			it := &a.items[i]
			if it.result != addLookUp {
				continue
			}
			key = appendIDKey(key[:0], o.uid, it.id)
			value, ok, err := v.Get(spaceIDs, key)
			if err != nil {
				return err
			}
			it.looked, it.known = true, false
			if !ok {
				continue
			}
			var row idRow
			if err := row.decode(value); err != nil {
				return err
			}
			if it.known, err = idKnown(v, o.uid, row, now); err != nil {
				return err
			}
		}
		return nil
	})
	return e.storeError(err)
}

func bodySize(t *v1.TaskSpec) int {
	n := 136 + len(t.GetKind()) + len(t.GetPayload()) + len(t.GetFairnessKey())
	for k, v := range t.GetHeaders() {
		n += 10 + len(k) + len(v)
	}
	return n
}

// fromSpec makes the stored form of a task. ttl is what holds when the task has
// none of its own.
func (t *body) fromSpec(id taskID, now int64, ttl time.Duration, s *v1.TaskSpec) {
	t.id, t.addedAt, t.kind, t.payload = id, now, s.GetKind(), s.GetPayload()
	if at := s.GetRunAt(); at != nil {
		if n := at.AsTime().UnixNano(); n > now {
			t.runAt = n
		}
	}
	if d := s.GetTimeToLive(); d != nil {
		ttl = d.AsDuration()
	}
	if ttl > 0 {
		t.expiresAt = now + int64(ttl)
	}
	if p := s.GetPriority(); p != 0 {
		t.level = uint8(min(max(p, 1), maxLevel))
	}
	t.fairKey = s.GetFairnessKey()
	if len(t.fairKey) > maxFairKey { // the frontend refuses it
		t.fairKey = t.fairKey[:maxFairKey]
	}
	if w := s.GetFairnessWeight(); w > 0 && w != 1 {
		t.weight = max(w, minWeight)
	}
	t.maxAttempts = s.GetMaxAttempts()
	if d := s.GetLeaseTime(); d != nil {
		t.leaseTime = int64(d.AsDuration())
	}
	if r := s.GetRetry(); r != nil {
		p := retryOf(r)
		t.retry = &p
	}
	for k, v := range s.GetHeaders() {
		t.headers = append(t.headers, header{k, v})
	}
}

// retryOf converts a policy; what it leaves open stays zero, and jitter -1.
func retryOf(r *v1.RetryPolicy) retryPolicy {
	p := retryPolicy{multiplier: r.GetMultiplier(), jitter: -1}
	if d := r.GetInitialBackoff(); d != nil {
		p.initial = d.AsDuration()
	}
	if d := r.GetMaxBackoff(); d != nil {
		p.max = d.AsDuration()
	}
	if r.Jitter != nil {
		p.jitter = r.GetJitter()
	}
	return p
}

// PartitionGetTask implements v1.MatchingServiceServer.
func (e *Engine) PartitionGetTask(ctx context.Context, preq *v1.PartitionGetTaskRequest) (*v1.PartitionGetTaskResponse, error) {
	req := preq.GetRequest()
	at, err := partition(preq.GetHeader(), req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	id, err := parseUUID(req.GetId())
	if err != nil {
		return nil, err
	}
	resp := &v1.GetTaskResponse{}
	err = e.retryUnloaded(ctx, at, false, func(o *owner) error {
		b := &barrierCall{}
		b.init()
		if err := o.do(ctx, b, &b.call); err != nil {
			return err
		}
		return e.storeError(e.look(ctx, o, func(v *storage.View) error {
			f, ok, err := findTask(v, o.uid, id)
			if err != nil {
				return err
			}
			if !ok {
				return taskNotFound(req.GetQueue(), req.GetId())
			}
			resp.Task = f.proto(o, e.now())
			return nil
		}))
	})
	if err != nil {
		return nil, err
	}
	return &v1.PartitionGetTaskResponse{Response: resp}, nil
}

func taskNotFound(queue, id string) error {
	return reason.New(codes.NotFound, reason.TaskNotFound, map[string]string{"queue": queue, "task": id},
		"task %s is not in queue %q, or ended more than 10 minutes after it was added", id, queue)
}

// proto is the task as users see it.
func (f *found) proto(o *owner, now int64) *v1.Task {
	t := &v1.Task{Id: f.id.String(), Namespace: o.id.Namespace, Queue: o.id.Queue, AddedAt: timestamp(f.addedAt)}
	if f.gone {
		switch f.ended {
		case endingCancelled:
			t.State = v1.TaskState_TASK_STATE_CANCELLED
		case endingExpired:
			t.State = v1.TaskState_TASK_STATE_EXPIRED
		default:
			t.State = v1.TaskState_TASK_STATE_COMPLETED
		}
		return t
	}
	t.Kind, t.Payload, t.Headers = f.body.kind, f.body.payload, headerMap(f.body.headers)
	t.Attempt, t.MaxAttempts, t.LastError = f.attempt, f.body.maxAttempts, f.lastError
	if t.MaxAttempts == 0 {
		t.MaxAttempts = o.settings.Load().maxAttempts
	}
	t.ExpiresAt = timestamp(f.body.expiresAt)
	t.Priority, t.FairnessKey, t.FairnessWeight = defaultLevel, f.body.fairKey, 1
	if f.body.level != 0 {
		t.Priority = int32(f.body.level)
	}
	if f.body.weight != 0 {
		t.FairnessWeight = f.body.weight
	}
	switch f.state {
	case storedFresh:
		t.State = v1.TaskState_TASK_STATE_READY
	case storedScheduled:
		switch {
		case f.at <= now:
			t.State = v1.TaskState_TASK_STATE_READY
		case f.attempt > 0:
			t.State, t.RunAt = v1.TaskState_TASK_STATE_RETRYING, timestamp(f.at)
		default:
			t.State, t.RunAt = v1.TaskState_TASK_STATE_DELAYED, timestamp(f.at)
		}
	case storedLeased:
		t.State, t.LeaseDeadline, t.WorkerIdentity = v1.TaskState_TASK_STATE_LEASED, timestamp(f.deadline), f.identity
	case storedDead:
		t.State, t.DeadAt = v1.TaskState_TASK_STATE_DEAD, timestamp(f.deadAt)
	}
	return t
}

// PartitionCancelTask implements v1.MatchingServiceServer.
func (e *Engine) PartitionCancelTask(ctx context.Context, preq *v1.PartitionCancelTaskRequest) (*v1.PartitionCancelTaskResponse, error) {
	req := preq.GetRequest()
	at, err := partition(preq.GetHeader(), req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	id, err := parseUUID(req.GetId())
	if err != nil {
		return nil, err
	}
	resp := &v1.CancelTaskResponse{}
	err = e.retryUnloaded(ctx, at, false, func(o *owner) error {
		for {
			var f found
			r := &removeCall{}
			done, err := e.lookAndDo(ctx, o, func(v *storage.View) (replier, *call, error) {
				var ok bool
				var err error
				f, ok, err = findTask(v, o.uid, id)
				switch {
				case err != nil:
					return nil, nil, err
				case !ok:
					return nil, nil, taskNotFound(req.GetQueue(), req.GetId())
				case f.gone:
					return nil, nil, goneError(req.GetId(), f.ended)
				}
				r.tasks = []storedTask{f.storedTask}
				return r, &r.call, nil
			})
			if err != nil {
				return err
			}
			if done && !r.tasks[0].changed {
				resp.State = f.proto(o, e.now()).GetState()
				return nil
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return &v1.PartitionCancelTaskResponse{Response: resp}, nil
}

// lookAndDo looks into the store and gives the owner the call that look makes of
// what it found; look may return no call. The owner knows what has changed since.
func (e *Engine) lookAndDo(ctx context.Context, o *owner, look func(*storage.View) (replier, *call, error)) (done bool, err error) {
	b := &lookupCall{}
	b.init()
	if err := o.submit(b, true); err != nil {
		return false, err
	}
	// Not o.do: once begun, the look must end in the owner too.
	<-b.done
	if b.err != nil {
		return false, b.err
	}
	var next replier
	var c *call
	err = e.look(ctx, o, func(v *storage.View) error {
		var err error
		next, c, err = look(v)
		return err
	})
	if err != nil || next == nil {
		o.internal(abandonLookup{})
		return false, e.storeError(err)
	}
	c.init()
	o.internal(next)
	select {
	case <-c.done:
		return true, c.err
	case <-o.exited:
		select {
		case <-c.done:
			return true, c.err
		default:
			return false, errUnloaded
		}
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
