package matching

import (
	"context"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// The shell of forwarding: it makes the calls that the core asks for.

const (
	// recallTime is how long a lent poll may take to come back before its call is
	// broken off; tasks that it was given then wait until their leases run out.
	recallTime = 2 * time.Second
	// pullTime bounds a poll at a child.
	pullTime = 5 * time.Second
	// lendMargin is how much longer than its wait a lent poll may take.
	lendMargin = 5 * time.Second
)

// hop starts one of the core's requests. Its answer comes as an event.
func (o *owner) hop(request any) {
	switch r := request.(type) {
	case lendPoll:
		r.p.recall = &recallable{}
		ctx, cancel := context.WithCancel(o.hops)
		r.p.recall.breakOff = cancel
		r.p.recall.id = o.engine.polls.newID()
		go o.lend(ctx, r.p)
	case recallPoll:
		go o.recall(r.p)
	case pullTasks:
		go o.pull(r.p, r.offer)
	case offerTasks:
		go o.offer(r)
	default:
		panic("matching: unknown hop")
	}
}

// recallable is a lent poll as the shell sees it.
type recallable struct {
	id       string
	breakOff context.CancelFunc
}

func (o *owner) lend(ctx context.Context, p *pollCall) {
	defer p.recall.breakOff()
	wait := time.Duration(max(p.until-o.engine.steady(), 0))
	ctx, cancel := context.WithTimeout(ctx, wait+lendMargin)
	defer cancel()
	to, _ := o.id.parent()
	resp, local, err := o.pollAt(ctx, to, v1.Hop_HOP_LENT, p, wait, p.recall.id)
	o.engine.metrics.hop("lend", len(resp.GetTasks()) > 0, err)
	o.internal(polledAway{p: p, local: local, answer: resp, err: err})
}

// pollAt polls another partition in p's place.
func (o *owner) pollAt(ctx context.Context, to PartitionID, hop v1.Hop, p *pollCall, wait time.Duration, id string) (*v1.PollTasksResponse, bool, error) {
	peer, local, err := o.engine.peers.Owner(to)
	if err != nil {
		return nil, local, err
	}
	resp, err := peer.PartitionPollTasks(ctx, &v1.PartitionPollTasksRequest{
		Header: &v1.PartitionHeader{Partition: to.Number, Hop: hop, Source: o.id.Number},
		PollId: id,
		Request: &v1.PollTasksRequest{
			Namespace: to.Namespace, Queue: to.Queue, Identity: p.identity, MaxTasks: int32(p.max),
			Wait: durationpb.New(wait), LeaseTime: leaseTimeProto(p.leaseTime),
		},
	})
	return resp.GetResponse(), local, err
}

func leaseTimeProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// recall ends a lent poll where it is, so that nothing that it is given meanwhile is
// lost on the way.
func (o *owner) recall(p *pollCall) {
	defer o.internal(recallDone{})
	ctx, cancel := context.WithTimeout(o.hops, recallTime)
	defer cancel()
	to, _ := o.id.parent()
	peer, _, err := o.engine.peers.Owner(to)
	if err == nil {
		_, err = peer.CancelPoll(ctx, &v1.CancelPollRequest{Namespace: to.Namespace, Queue: to.Queue, Partition: to.Number, PollId: p.recall.id})
	}
	if err != nil {
		p.recall.breakOff()
	}
}

// recallDone says that the shell has nothing more to do with a recall.
type recallDone struct{}

func (o *owner) pull(p *pollCall, offer *offerCall) {
	ctx, cancel := context.WithTimeout(o.hops, pullTime)
	defer cancel()
	resp, _, err := o.pollAt(ctx, o.id.sibling(offer.source), v1.Hop_HOP_PULLED, p, 0, "")
	o.engine.metrics.hop("pull", len(resp.GetTasks()) > 0, err)
	o.internal(polledAway{p: p, offer: offer, answer: resp, err: err})
}

func (o *owner) offer(r offerTasks) {
	hold := o.engine.options.Forwarding.OfferHold
	ctx, cancel := context.WithTimeout(o.offers, hold+lendMargin)
	defer cancel()
	to, _ := o.id.parent()
	peer, local, err := o.engine.peers.Owner(to)
	var resp *v1.OfferTasksResponse
	if err == nil {
		age := max(o.engine.now()-r.oldest, 0)
		resp, err = peer.OfferTasks(ctx, &v1.OfferTasksRequest{
			Namespace: to.Namespace, Queue: to.Queue, Partition: to.Number, Source: o.id.Number,
			Tasks: int32(r.tasks), Age: durationpb.New(time.Duration(age)), Hold: durationpb.New(hold),
		})
	}
	o.engine.metrics.hop("offer", resp.GetTaken(), err)
	o.internal(offered{local: local, taken: resp.GetTaken(), err: err})
}

// maxOfferHold bounds what a child may ask for.
const maxOfferHold = 10 * time.Minute

// OfferTasks implements v1.MatchingServiceServer. An offer does not load a root: one
// that is not in memory has no pollers, and it tells its partitions when it is
// loaded.
func (e *Engine) OfferTasks(ctx context.Context, req *v1.OfferTasksRequest) (*v1.OfferTasksResponse, error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: req.GetPartition()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	if err := checkChild(id.Number, req.GetSource()); err != nil {
		return nil, err
	}
	c := &offerCall{source: req.GetSource(), oldest: e.now() - int64(max(req.GetAge().AsDuration(), 0))}
	c.init()
	var o *owner
	submit := func(to *owner) error {
		o = to
		return o.submit(c, false)
	}
	if id.isRoot() {
		if to := e.present(id); to == nil || submit(to) != nil {
			return nil, errRootNotLoaded
		}
	} else if err := e.retryUnloaded(ctx, id, false, submit); err != nil {
		return nil, err
	}
	timer := time.NewTimer(min(max(req.GetHold().AsDuration(), 0), maxOfferHold))
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		o.withdraw(c)
	case <-ctx.Done():
		o.withdraw(c)
	}
	if c.err != nil {
		return nil, c.err
	}
	return &v1.OfferTasksResponse{Taken: c.taken}, nil
}

var errRootNotLoaded = reason.New(codes.Unavailable, reason.NotReady, nil, "the root of the queue is not in memory: nobody polls it")

// withdraw ends an offer and waits for its answer, which comes at once, or as soon as
// the poll that went to the child is back.
func (o *owner) withdraw(c *offerCall) {
	_ = o.submit(offerOver{c}, false) // an owner that is stopping answers all offers
	<-c.done
}

// pollTable knows waiting polls by their ids, so that they can be ended by them.
type pollTable struct {
	mu      sync.Mutex
	prefix  string
	last    uint64
	byID    map[string]waitingPoll
	early   map[string]time.Time // cancelled before they came
	workers map[string]time.Time // refused until then
}

type waitingPoll struct {
	owner *owner
	poll  *pollCall
}

const (
	// earlyTime is how long a cancellation waits for its poll.
	earlyTime = 10 * time.Second
	// refuseTime is how long a worker whose polls were cancelled is refused.
	refuseTime = 30 * time.Second
	// tableLimit bounds early cancellations, and refused workers.
	tableLimit = 10_000
)

func (t *pollTable) init(seed uint64) {
	t.prefix = strconv.FormatUint(seed, 36) + "-"
	t.byID, t.early, t.workers = map[string]waitingPoll{}, map[string]time.Time{}, map[string]time.Time{}
}

// newID makes an id that no other poll in the cluster has.
func (t *pollTable) newID() string {
	t.mu.Lock()
	t.last++
	n := t.last
	t.mu.Unlock()
	return t.prefix + strconv.FormatUint(n, 36)
}

func (t *pollTable) begin(id string, o *owner, p *pollCall) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refused(o.id, p.identity); err != nil {
		return err
	}
	if id == "" {
		return nil
	}
	if _, ok := t.early[id]; ok {
		delete(t.early, id)
		p.noWait = true
	}
	t.byID[id] = waitingPoll{o, p}
	return nil
}

// refused says that a worker's polls were cancelled a moment ago. The caller holds the lock.
func (t *pollTable) refused(id PartitionID, identity string) error {
	if len(t.workers) > 0 {
		if until, ok := t.workers[workerKey(id, identity)]; ok && time.Now().Before(until) {
			return reason.New(codes.FailedPrecondition, reason.WorkerCancelled, map[string]string{"queue": id.Queue},
				"the polls of worker %q were cancelled a moment ago", identity)
		}
	}
	return nil
}

func (t *pollTable) end(id string, p *pollCall) {
	if id == "" {
		return
	}
	t.mu.Lock()
	if t.byID[id].poll == p {
		delete(t.byID, id)
	}
	t.mu.Unlock()
}

func (t *pollTable) cancel(id string) (waitingPoll, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.byID[id]
	if !ok {
		sweep(t.early, tableLimit)
		t.early[id] = time.Now().Add(earlyTime)
	}
	return w, ok
}

// sweep drops what is over when a table is full, and everything if that does not
// help: the table only spares some waiting.
func sweep(m map[string]time.Time, limit int) {
	if len(m) < limit {
		return
	}
	now := time.Now()
	for k, until := range m {
		if now.After(until) {
			delete(m, k)
		}
	}
	if len(m) >= limit {
		clear(m)
	}
}

// CancelPoll implements v1.MatchingServiceServer.
func (e *Engine) CancelPoll(_ context.Context, req *v1.CancelPollRequest) (*v1.CancelPollResponse, error) {
	if req.GetPollId() == "" {
		return nil, reason.New(codes.InvalidArgument, reason.InvalidRequest, nil, "a poll to cancel has no id")
	}
	w, ok := e.polls.cancel(req.GetPollId())
	if ok {
		_ = w.owner.submit(cancelPoll{w.poll}, false) // an owner that is stopping answers all polls
	}
	return &v1.CancelPollResponse{Found: ok}, nil
}

func workerKey(id PartitionID, identity string) string {
	return id.Namespace + "\x00" + id.Queue + "\x00" + identity
}

// CancelWorkerPolls implements v1.MatchingServiceServer.
func (e *Engine) CancelWorkerPolls(ctx context.Context, req *v1.CancelWorkerPollsRequest) (*v1.CancelWorkerPollsResponse, error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: req.GetPartition(), Sticky: req.GetStickyWorker()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	calls := e.calls.endPolls(id, req.GetIdentity())
	e.polls.mu.Lock()
	sweep(e.polls.workers, tableLimit)
	e.polls.workers[workerKey(id, req.GetIdentity())] = time.Now().Add(refuseTime)
	e.polls.mu.Unlock()
	o := e.present(id)
	if o == nil {
		return &v1.CancelWorkerPollsResponse{Cancelled: calls}, nil
	}
	c := &cancelWorker{identity: req.GetIdentity()}
	c.init()
	if err := o.submit(c, false); err != nil {
		return &v1.CancelWorkerPollsResponse{Cancelled: calls}, nil // a stopping owner ends all polls
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &v1.CancelWorkerPollsResponse{Cancelled: int32(c.n) + calls}, c.err
}

// cancelWorker ends all waiting polls of one worker.
type cancelWorker struct {
	call
	identity string
	n        int
}

func (c *core) cancelWorker(w *cancelWorker) {
	for p := c.pollers.first; p != nil; {
		next := p.next
		if p.identity == w.identity {
			c.cancelPoll(p)
			w.count(p)
		}
		p = next
	}
	if l := c.fwd.lent; l != nil && l.identity == w.identity {
		c.cancelAway(l)
		w.count(l)
	}
	c.history.forget(w.identity)
	w.reply(nil)
}

// count counts a poll where its worker put it.
func (w *cancelWorker) count(p *pollCall) {
	if p.hop == v1.Hop_HOP_UNSPECIFIED {
		w.n++
	}
}

func (h *pollerHistory) forget(identity string) {
	if r := h.by[identity]; r != nil && r.waiting == 0 {
		delete(h.by, identity)
	}
}
