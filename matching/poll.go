package matching

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching/routing"
)

// PartitionPollTasks implements v1.MatchingServiceServer.
func (e *Engine) PartitionPollTasks(ctx context.Context, preq *v1.PartitionPollTasksRequest) (*v1.PartitionPollTasksResponse, error) {
	req, h := preq.GetRequest(), preq.GetHeader()
	id, err := partition(h, req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	if err := checkHop(h, id); err != nil {
		return nil, err
	}
	p := &pollCall{max: int(req.GetMaxTasks()), identity: req.GetIdentity(), leaseTime: req.GetLeaseTime().AsDuration()}
	p.hop, p.source = h.GetHop(), h.GetSource()
	p.init()
	wait := req.GetWait().AsDuration() // within the caller's deadline; see frontend
	p.noWait = wait <= 0
	p.until = e.steady() + int64(wait)
	var o *owner
	counts, err := e.enter(ctx, h, id, opRead, func(to *owner) error {
		o = to
		if err := e.polls.begin(preq.GetPollId(), o, p); err != nil {
			return err
		}
		err := o.submit(p, h.GetHop() != v1.Hop_HOP_PULLED)
		if err != nil {
			e.polls.end(preq.GetPollId(), p)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	defer e.polls.end(preq.GetPollId(), p)
	if counts != nil && h.GetHop() == v1.Hop_HOP_UNSPECIFIED && o.backlog.Load() == 0 && hasBacklog(counts) {
		// The client does not know of a backlog elsewhere: it is told soon.
		wait = min(wait, routing.EmptyWait)
	}
	o.polledAt.Store(e.steady())
	defer func() { o.polledAt.Store(e.steady()) }()
	var over <-chan time.Time // never for a poll that does not wait: the core ends it
	if !p.noWait {
		timer := timers.Get().(*time.Timer)
		timer.Reset(wait)
		defer func() {
			timer.Stop() // nothing comes of it any more
			timers.Put(timer)
		}()
		over = timer.C
	}
	select {
	case <-p.done:
	case <-over:
		o.cancel(p)
	case <-ctx.Done():
		o.cancel(p)
	}
	if p.err != nil {
		return nil, p.err
	}
	if err := ctx.Err(); err != nil {
		o.giveBack(p)
		return nil, err
	}
	resp := p.answer
	if resp == nil {
		if resp, err = pollResponse(o, p, e.steady()); err != nil {
			return nil, err
		}
	}
	p.over()
	return &v1.PartitionPollTasksResponse{Response: resp, Counts: counts}, nil
}

// timers are timers that are stopped, each for one poll after the other.
var timers = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

// cancel ends a poll and waits for its answer, which comes at once, or as soon as
// the leases that it has been given are durable, or when it is back from where it was
// sent.
func (o *owner) cancel(p *pollCall) {
	_ = o.submit(cancelPoll{p}, false) // an owner that is stopping answers all polls
	<-p.done
}

// giveBack releases what a poll was given whose caller is gone.
func (o *owner) giveBack(p *pollCall) {
	if tasks := p.answer.GetTasks(); len(tasks) > 0 {
		o.engine.giveBack(o.id, tasks)
	}
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

// giveBackTime bounds the release of what another partition gave to a poll whose
// caller is gone.
const giveBackTime = 5 * time.Second

// giveBack releases tasks that another partition leased. If that fails, the leases
// run out.
func (e *Engine) giveBack(id PartitionID, tasks []*v1.LeasedTask) {
	e.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, giveBackTime)
		defer cancel()
		req := &v1.ReleaseTasksRequest{Namespace: id.Namespace, Queue: id.Queue}
		for _, t := range tasks {
			req.LeaseTokens = append(req.LeaseTokens, t.GetLeaseToken())
		}
		if _, err := e.ReleaseTasks(ctx, req); err != nil {
			e.log.Warn("tasks of a poller that is gone stay leased until their leases run out", "partition", id.String(), "tasks", len(tasks), "err", err)
		}
	})
}

// timedTask is a task with its times, in one piece of memory.
type timedTask struct {
	v1.LeasedTask
	addedAt, deadline timestamppb.Timestamp
}

func pollResponse(o *owner, p *pollCall, now int64) (*v1.PollTasksResponse, error) {
	n := len(p.granted)
	resp := &v1.PollTasksResponse{ServerTime: timestamp(now)}
	if n == 0 {
		return resp, nil
	}
	resp.Tasks = make([]*v1.LeasedTask, n)
	tasks := make([]timedTask, n)
	ids := make([]byte, 0, 36*n)
	tokens := make([]byte, 0, (tokenSize+len(o.id.Sticky))*n)
	var b body
	for i := range p.granted {
		g := &p.granted[i]
		if err := b.decode(g.body); err != nil {
			return nil, o.engine.storeError(err)
		}
		t := &tasks[i].LeasedTask
		resp.Tasks[i] = t
		ids = appendUUID(ids, b.id)
		t.Id = string(ids[len(ids)-36:])
		t.Kind, t.Payload, t.Headers = b.kind, b.payload, headerMap(b.headers)
		t.Attempt, t.MaxAttempts, t.LastError = g.attempt, g.maxAttempts, g.lastError
		t.Priority, t.FairnessKey = defaultLevel, b.fairKey
		if b.level != 0 {
			t.Priority = int32(b.level)
		}
		t.AddedAt, t.LeaseDeadline = &tasks[i].addedAt, &tasks[i].deadline
		setTimestamp(t.AddedAt, b.addedAt)
		setTimestamp(t.LeaseDeadline, g.deadline)
		at := len(tokens)
		tokens = token{o.id.Number, o.uid, g.seq, g.nonce, b.id, o.id.Sticky}.append(tokens)
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
