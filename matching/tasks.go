package matching

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"

	"github.com/switchyard-dev/switchyard/api/reason"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// root is the partition that a queue's calls go to while a queue has one.
func root(namespace, queue string) PartitionID {
	return PartitionID{Namespace: namespace, Queue: queue}
}

// AddTasks adds tasks; see TaskService.
func (e *Engine) AddTasks(ctx context.Context, req *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
	a := &addCall{}
	a.init()
	id := root(req.GetNamespace(), req.GetQueue())
	o, err := e.owner(ctx, id, true)
	if err != nil {
		return nil, err
	}
	ttl := o.settings.Load().timeToLive
	now := e.now()
	a.items = make([]addItem, len(req.GetTasks()))
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
	var again []bool // items that an earlier owner may have taken
	for {
		err := e.retryUnloaded(ctx, id, true, func(o *owner) error {
			return e.addTo(ctx, o, a)
		})
		if err == nil {
			break
		}
		// What was under way when the partition was lost is repeated: its id tells
		// whether it arrived.
		if reason.Of(err) != reason.PartitionMoved || ctx.Err() != nil {
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
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	results := make([]v1.AddTasksResponse_Result, len(a.items))
	resp := &v1.AddTasksResponse{Results: make([]*v1.AddTasksResponse_Result, len(a.items))}
	for i := range a.items {
		r := &results[i]
		r.Id = req.GetTasks()[i].GetId()
		r.AlreadyAdded = a.items[i].result == alreadyAdded && (again == nil || !again[i])
		resp.Results[i] = r
	}
	return resp, nil
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
	err := e.router.View(ctx, o.bucket, router.CallRO, func(v *storage.View) error {
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
			if now-row.addedAt < dedupWindow {
				it.known = true
			} else if row.ending == endingNone {
				_, it.known, err = v.Get(row.loc.space(), row.loc.appendBodyKey(nil, o.uid, row.seq))
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
	return e.storeError(err)
}

func bodySize(t *v1.TaskSpec) int {
	n := 128 + len(t.GetKind()) + len(t.GetPayload())
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

// PollTasks leases tasks; see TaskService.
func (e *Engine) PollTasks(ctx context.Context, req *v1.PollTasksRequest) (*v1.PollTasksResponse, error) {
	id := root(req.GetNamespace(), req.GetQueue())
	p := &pollCall{max: int(req.GetMaxTasks()), identity: req.GetIdentity(), leaseTime: req.GetLeaseTime().AsDuration()}
	p.init()
	wait := req.GetWait().AsDuration()
	p.noWait = wait <= 0
	// A caller that goes away should find its answer made, not cut off.
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-pollMargin(wait))
	}
	var o *owner
	err := e.retryUnloaded(ctx, id, true, func(to *owner) error {
		o = to
		return o.submit(p, true)
	})
	if err != nil {
		return nil, err
	}
	if p.noWait {
		select {
		case <-p.done:
		case <-ctx.Done():
			o.cancel(p)
		}
	} else {
		timer := time.NewTimer(max(wait, 0))
		select {
		case <-p.done:
		case <-timer.C:
			o.cancel(p)
		case <-ctx.Done():
			o.cancel(p)
		}
		timer.Stop()
	}
	if p.err != nil {
		return nil, p.err
	}
	if err := ctx.Err(); err != nil {
		o.giveBack(p)
		return nil, err
	}
	return pollResponse(o, p, e.steady())
}

// pollMargin is how long before the caller's deadline a poll ends.
func pollMargin(wait time.Duration) time.Duration { return min(wait/10, time.Second) }

// cancel ends a poll and waits for its answer, which comes at once, or as soon as
// the leases that it has been given are durable.
func (o *owner) cancel(p *pollCall) {
	_ = o.submit(cancelPoll{p}, false) // an owner that is stopping answers all polls
	<-p.done
}

// giveBack releases what a poll was given whose caller is gone.
func (o *owner) giveBack(p *pollCall) {
	if len(p.granted) == 0 {
		return
	}
	r := &endCall{kind: endRelease}
	r.init()
	for _, g := range p.granted {
		r.items = append(r.items, endItem{seq: g.seq, nonce: g.nonce})
	}
	_ = o.submit(r, false) // else the leases run out
}

func pollResponse(o *owner, p *pollCall, now int64) (*v1.PollTasksResponse, error) {
	n := len(p.granted)
	resp := &v1.PollTasksResponse{ServerTime: timestamp(now)}
	if n == 0 {
		return resp, nil
	}
	resp.Tasks = make([]*v1.LeasedTask, n)
	tasks := make([]v1.LeasedTask, n)
	times := make([]timestamppb.Timestamp, 2*n)
	ids := make([]byte, 0, 36*n)
	tokens := make([]byte, 0, tokenSize*n)
	var b body
	for i := range p.granted {
		g := &p.granted[i]
		if err := b.decode(g.body); err != nil {
			return nil, o.engine.storeError(err)
		}
		t := &tasks[i]
		resp.Tasks[i] = t
		ids = appendUUID(ids, b.id)
		t.Id = string(ids[len(ids)-36:])
		t.Kind, t.Payload, t.Headers = b.kind, b.payload, headerMap(b.headers)
		t.Attempt, t.MaxAttempts, t.LastError = g.attempt, g.maxAttempts, g.lastError
		setTimestamp(&times[2*i], b.addedAt)
		setTimestamp(&times[2*i+1], g.deadline)
		t.AddedAt, t.LeaseDeadline = &times[2*i], &times[2*i+1]
		at := len(tokens)
		tokens = token{o.id.Number, o.uid, g.seq, g.nonce, b.id}.append(tokens)
		t.LeaseToken = tokens[at:len(tokens):len(tokens)]
	}
	return resp, nil
}

func headerMap(h []header) map[string]string {
	if len(h) == 0 {
		return nil
	}
	m := make(map[string]string, len(h))
	for _, h := range h {
		m[h.key] = h.value
	}
	return m
}

func timeSince(now, then int64) time.Duration { return time.Duration(now - then) }

func setTimestamp(t *timestamppb.Timestamp, ns int64) {
	t.Seconds, t.Nanos = ns/1e9, int32(ns%1e9)
}

func timestamp(ns int64) *timestamppb.Timestamp {
	if ns == 0 {
		return nil
	}
	t := &timestamppb.Timestamp{}
	setTimestamp(t, ns)
	return t
}

func appendUUID(b []byte, id taskID) []byte {
	const hex = "0123456789abcdef"
	for i, c := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			b = append(b, '-')
		}
		b = append(b, hex[c>>4], hex[c&15])
	}
	return b
}

func parseUUID(s string) (taskID, error) {
	u, err := uuid.Parse(s)
	if err != nil {
		return taskID{}, reason.New(codes.InvalidArgument, reason.InvalidTaskID, nil, "task id %q is not a UUID", s)
	}
	return taskID(u), nil
}

func (id taskID) String() string { return string(appendUUID(nil, id)) }

// token is a lease token: which lease of which task of which partition.
type token struct {
	partition  int32
	uid        uint64
	seq, nonce uint64
	id         taskID
}

const (
	tokenVersion = 1
	tokenSize    = 1 + 4 + 8 + 8 + 8 + 16
)

func (t token) append(b []byte) []byte {
	b = append(b, tokenVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(t.partition))
	b = binary.BigEndian.AppendUint64(b, t.uid)
	b = binary.BigEndian.AppendUint64(b, t.seq)
	b = binary.BigEndian.AppendUint64(b, t.nonce)
	return append(b, t.id[:]...)
}

func parseToken(b []byte) (t token, ok bool) {
	if len(b) != tokenSize || b[0] != tokenVersion {
		return t, false
	}
	t.partition = int32(binary.BigEndian.Uint32(b[1:]))
	t.uid = binary.BigEndian.Uint64(b[5:])
	t.seq = binary.BigEndian.Uint64(b[13:])
	t.nonce = binary.BigEndian.Uint64(b[21:])
	copy(t.id[:], b[29:])
	return t, true
}

var errInvalidToken = reason.New(codes.InvalidArgument, reason.InvalidLeaseToken, nil,
	"the lease token is not one of this queue's: use the token as PollTasks returned it")

// end runs an endCall and explains each item that failed.
func (e *Engine) end(ctx context.Context, namespace, queue string, c *endCall, tokens func(i int) []byte) ([]*v1.ItemError, error) {
	c.init()
	parsed := make([]token, len(c.items))
	for i := range c.items {
		t, ok := parseToken(tokens(i))
		parsed[i] = t
		c.items[i].seq, c.items[i].nonce, c.items[i].invalid = t.seq, t.nonce, !ok || t.partition != 0
	}
	var errs []*v1.ItemError
	fail := func(i int, err error) {
		if errs == nil {
			errs = make([]*v1.ItemError, len(c.items))
		}
		errs[i] = reason.Item(err)
	}
	err := e.retryUnloaded(ctx, root(namespace, queue), false, func(o *owner) error {
		for i := range c.items {
			if parsed[i].uid != o.uid {
				c.items[i].invalid = true
			}
		}
		if err := o.do(ctx, c, &c.call); err != nil {
			return err
		}
		for i := range c.items {
			it := &c.items[i]
			if it.invalid {
				fail(i, errInvalidToken)
			} else if it.lost {
				why, err := e.whyLost(ctx, o, parsed[i])
				if err != nil {
					return err
				}
				fail(i, why)
			}
		}
		return nil
	})
	return errs, err
}

// whyLost explains a token whose lease is not the task's any more.
func (e *Engine) whyLost(ctx context.Context, o *owner, t token) (why, err error) {
	err = e.router.View(ctx, o.bucket, router.CallRO, func(v *storage.View) error {
		f, ok, err := findTask(v, o.uid, t.id)
		if err != nil {
			return err
		}
		id := t.id.String()
		meta := map[string]string{"task": id}
		switch {
		case !ok || f.seq != t.seq:
			why = reason.New(codes.NotFound, reason.TaskNotFound, meta, "task %s is not known any more: it ended more than 10 minutes ago", id)
		case f.gone:
			why = goneError(id, f.ended)
		case f.state == storedDead:
			why = reason.New(codes.FailedPrecondition, reason.TaskDead, meta, "task %s is dead after %d attempts: redrive it to run it again", id, f.attempt)
		default:
			why = reason.New(codes.FailedPrecondition, reason.LeaseLost, meta,
				"the lease of task %s ran out or was given back, and the task may be with another worker: make the lease time longer or extend the lease", id)
		}
		return nil
	})
	return why, e.storeError(err)
}

func goneError(id string, how ending) error {
	meta := map[string]string{"task": id}
	switch how {
	case endingCancelled:
		return reason.New(codes.FailedPrecondition, reason.TaskCancelled, meta, "task %s was cancelled", id)
	case endingExpired:
		return reason.New(codes.FailedPrecondition, reason.TaskExpired, meta, "task %s was dropped because its time to live was over", id)
	}
	return reason.New(codes.FailedPrecondition, reason.TaskAlreadyCompleted, meta, "task %s has been completed already", id)
}

// itemResults makes results of nothing but errors; all share one value when none
// failed.
func itemResults(n int, errs []*v1.ItemError) []*v1.ItemResult {
	out := make([]*v1.ItemResult, n)
	ok := &v1.ItemResult{}
	for i := range out {
		out[i] = ok
		if errs != nil && errs[i] != nil {
			out[i] = &v1.ItemResult{Error: errs[i]}
		}
	}
	return out
}

// CompleteTasks ends tasks with success; see TaskService.
func (e *Engine) CompleteTasks(ctx context.Context, req *v1.CompleteTasksRequest) (*v1.CompleteTasksResponse, error) {
	tokens := req.GetLeaseTokens()
	c := &endCall{kind: endComplete, items: make([]endItem, len(tokens))}
	errs, err := e.end(ctx, req.GetNamespace(), req.GetQueue(), c, func(i int) []byte { return tokens[i] })
	if err != nil {
		return nil, err
	}
	return &v1.CompleteTasksResponse{Results: itemResults(len(tokens), errs)}, nil
}

// ReleaseTasks hands tasks back; see TaskService.
func (e *Engine) ReleaseTasks(ctx context.Context, req *v1.ReleaseTasksRequest) (*v1.ReleaseTasksResponse, error) {
	tokens := req.GetLeaseTokens()
	c := &endCall{kind: endRelease, items: make([]endItem, len(tokens))}
	errs, err := e.end(ctx, req.GetNamespace(), req.GetQueue(), c, func(i int) []byte { return tokens[i] })
	if err != nil {
		return nil, err
	}
	return &v1.ReleaseTasksResponse{Results: itemResults(len(tokens), errs)}, nil
}

// FailTasks ends attempts with an error; see TaskService.
func (e *Engine) FailTasks(ctx context.Context, req *v1.FailTasksRequest) (*v1.FailTasksResponse, error) {
	fs := req.GetFailures()
	c := &endCall{kind: endFail, items: make([]endItem, len(fs))}
	for i, f := range fs {
		it := &c.items[i]
		it.errorText, it.notRetryable = f.GetError(), f.GetNotRetryable()
		it.hasDelay, it.retryDelay = f.GetRetryDelay() != nil, f.GetRetryDelay().AsDuration()
	}
	errs, err := e.end(ctx, req.GetNamespace(), req.GetQueue(), c, func(i int) []byte { return fs[i].GetLeaseToken() })
	if err != nil {
		return nil, err
	}
	resp := &v1.FailTasksResponse{}
	for i := range c.items {
		r := &v1.FailTasksResponse_Result{}
		switch {
		case errs != nil && errs[i] != nil:
			r.Error = errs[i]
		case c.items[i].dead:
			r.State = v1.TaskState_TASK_STATE_DEAD
		default:
			r.State, r.RetryAt = v1.TaskState_TASK_STATE_RETRYING, timestamp(c.items[i].at)
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// ExtendLeases moves deadlines; see TaskService.
func (e *Engine) ExtendLeases(ctx context.Context, req *v1.ExtendLeasesRequest) (*v1.ExtendLeasesResponse, error) {
	xs := req.GetExtensions()
	c := &endCall{kind: endExtend, items: make([]endItem, len(xs))}
	for i, x := range xs {
		c.items[i].leaseTime = x.GetLeaseTime().AsDuration()
	}
	errs, err := e.end(ctx, req.GetNamespace(), req.GetQueue(), c, func(i int) []byte { return xs[i].GetLeaseToken() })
	if err != nil {
		return nil, err
	}
	resp := &v1.ExtendLeasesResponse{}
	for i := range c.items {
		r := &v1.ExtendLeasesResponse_Result{LeaseDeadline: timestamp(c.items[i].at)}
		if errs != nil && errs[i] != nil {
			r = &v1.ExtendLeasesResponse_Result{Error: errs[i]}
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// GetTask looks a task up; see TaskService.
func (e *Engine) GetTask(ctx context.Context, req *v1.GetTaskRequest) (*v1.GetTaskResponse, error) {
	id, err := parseUUID(req.GetId())
	if err != nil {
		return nil, err
	}
	resp := &v1.GetTaskResponse{}
	err = e.retryUnloaded(ctx, root(req.GetNamespace(), req.GetQueue()), false, func(o *owner) error {
		b := &barrierCall{}
		b.init()
		if err := o.do(ctx, b, &b.call); err != nil {
			return err
		}
		return e.storeError(e.router.View(ctx, o.bucket, router.CallRO, func(v *storage.View) error {
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
	return resp, err
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

// CancelTask removes a task; see TaskService.
func (e *Engine) CancelTask(ctx context.Context, req *v1.CancelTaskRequest) (*v1.CancelTaskResponse, error) {
	id, err := parseUUID(req.GetId())
	if err != nil {
		return nil, err
	}
	resp := &v1.CancelTaskResponse{}
	err = e.retryUnloaded(ctx, root(req.GetNamespace(), req.GetQueue()), false, func(o *owner) error {
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
	return resp, err
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
	err = e.router.View(ctx, o.bucket, router.CallRO, func(v *storage.View) error {
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
