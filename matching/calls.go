package matching

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Calls are requests that wait for a worker's answer. They are never stored: a call
// lives in the memory of one partition's owner for as long as its caller waits.
//
// A call that finds no poll in its partition goes up the tree at once, and one poll of
// each partition is lent upwards, so both meet at the root at the latest; only there
// do calls wait. What is forwarded is proxied: the answer goes back the same way.

const (
	// DefaultCallTimeout is how long a call waits that does not say.
	DefaultCallTimeout = 10 * time.Second
	// maxWaitingCalls is the most calls that wait for a poll at one partition.
	maxWaitingCalls = 10_000
	// callMargin is how much earlier a call ends where it was forwarded to, so that
	// it says itself why.
	callMargin = 20 * time.Millisecond
)

type callID [16]byte

// waitingCall is a call and who waits for it. The table's lock guards what changes.
type waitingCall struct {
	id       callID
	queue    string
	request  *v1.CallRequest
	deadline time.Time
	taken    bool // a worker has it
	settled  bool
	done     chan struct{}
	answer   *v1.CallResponse
	err      error
}

// callPoll is a poll for calls.
type callPoll struct {
	max   int
	done  chan struct{}
	calls []*waitingCall
	over  bool
	err   error
}

// callLine is what waits at one partition.
type callLine struct {
	calls []*waitingCall
	polls []*callPoll
	lent  bool // a poll is at the parent
}

// callTable holds the calls of all partitions of an engine.
type callTable struct {
	mu       sync.Mutex
	lines    map[PartitionID]*callLine
	taken    map[callID]takenCall
	stopping bool
}

type takenCall struct {
	call *waitingCall
	at   PartitionID
}

func (t *callTable) line(id PartitionID) *callLine {
	l := t.lines[id]
	if l == nil {
		if t.lines == nil {
			t.lines, t.taken = map[PartitionID]*callLine{}, map[callID]takenCall{}
		}
		l = &callLine{}
		t.lines[id] = l
	}
	return l
}

func (t *callTable) tidy(id PartitionID, l *callLine) {
	if len(l.calls)+len(l.polls) == 0 && !l.lent {
		delete(t.lines, id)
	}
}

// match gives waiting calls to waiting polls.
func (t *callTable) match(id PartitionID, l *callLine) {
	for len(l.calls) > 0 && len(l.polls) > 0 {
		p := l.polls[0]
		n := min(p.max, len(l.calls))
		for _, c := range l.calls[:n] {
			c.taken = true
			t.taken[c.id] = takenCall{c, id}
			p.calls = append(p.calls, c)
		}
		l.calls = append(l.calls[:0:0], l.calls[n:]...)
		t.endPoll(l, p)
	}
}

func (t *callTable) endPoll(l *callLine, p *callPoll) {
	for i, q := range l.polls {
		if q == p {
			l.polls = append(l.polls[:i:i], l.polls[i+1:]...)
			break
		}
	}
	if !p.over {
		p.over = true
		close(p.done)
	}
}

// settle ends a call, once.
func (t *callTable) settle(c *waitingCall, answer *v1.CallResponse, err error) {
	if c.settled {
		return
	}
	c.settled, c.answer, c.err = true, answer, err
	delete(t.taken, c.id)
	close(c.done)
}

// put queues a call or hands it over; false when it should go to the parent instead.
func (t *callTable) put(id PartitionID, c *waitingCall, mayWait bool) (ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping {
		return false, errStopping
	}
	l := t.line(id)
	defer t.tidy(id, l)
	switch {
	case len(l.polls) == 0 && !mayWait:
		return false, nil
	case len(l.calls) >= maxWaitingCalls:
		return false, reason.New(codes.ResourceExhausted, reason.Overloaded, map[string]string{"queue": id.Queue},
			"%d calls wait for a worker of queue %q, which is the limit: start more workers or call less", maxWaitingCalls, id.Queue)
	}
	l.calls = append(l.calls, c)
	t.match(id, l)
	return true, nil
}

// giveUp ends a call whose time is over or whose caller left.
func (t *callTable) giveUp(id PartitionID, c *waitingCall, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[id]; l != nil {
		for i, q := range l.calls {
			if q == c {
				l.calls = append(l.calls[:i:i], l.calls[i+1:]...)
				break
			}
		}
		t.tidy(id, l)
	}
	t.settle(c, nil, err)
}

// errCallAgain sends a call on its way again.
var errCallAgain = errors.New("matching: call was not begun")

// putBack makes calls wait again that were taken and not begun: here at a root, else
// on their way up again.
func (t *callTable) putBack(id PartitionID, calls []*waitingCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.line(id)
	_, up := id.parent()
	var again []*waitingCall
	for _, c := range calls {
		switch {
		case c.settled:
		case up:
			t.settle(c, nil, errCallAgain)
		default:
			c.taken = false
			delete(t.taken, c.id)
			again = append(again, c)
		}
	}
	l.calls = append(again, l.calls...)
	t.match(id, l)
	t.tidy(id, l)
}

// stop ends all that waits.
func (t *callTable) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopping = true
	for id := range t.lines {
		t.drop(id, errStopping)
	}
	for _, c := range t.taken {
		t.settle(c.call, nil, errStopping)
	}
}

// dropForeign ends what waits at partitions that belong to other nodes: it goes there.
func (t *callTable) dropForeign(owns func(PartitionID) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.lines {
		if !owns(id) {
			t.drop(id, errNotOwned)
		}
	}
}

func (t *callTable) drop(id PartitionID, err error) {
	l := t.lines[id]
	for _, c := range l.calls {
		t.settle(c, nil, err)
	}
	l.calls = nil
	for len(l.polls) > 0 {
		l.polls[0].err = err
		t.endPoll(l, l.polls[0])
	}
	t.tidy(id, l)
}

// callHere checks a call's header.
func (e *Engine) callHere(h *v1.PartitionHeader, namespace, queue string) (PartitionID, error) {
	id, err := partition(h, namespace, queue)
	if err != nil {
		return id, err
	}
	if id.Sticky != "" {
		return id, reason.New(codes.InvalidArgument, reason.InvalidPartition, nil, "a sticky queue takes no calls")
	}
	if err := checkHop(h, id); err != nil {
		return id, err
	}
	if !e.owns(id) {
		return id, errNotOwned
	}
	return id, nil
}

// PartitionCall implements v1.MatchingServiceServer.
func (e *Engine) PartitionCall(ctx context.Context, preq *v1.PartitionCallRequest) (*v1.PartitionCallResponse, error) {
	req := preq.GetRequest()
	id, err := e.callHere(preq.GetHeader(), req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	timeout := req.GetTimeout().AsDuration()
	if timeout <= 0 {
		timeout = DefaultCallTimeout
	}
	deadline := time.Now().Add(timeout)
	for {
		answer, err := e.callOnce(ctx, id, req, deadline)
		if err != errCallAgain {
			return answer, err
		}
	}
}

func (e *Engine) callOnce(ctx context.Context, id PartitionID, req *v1.CallRequest, deadline time.Time) (*v1.PartitionCallResponse, error) {
	c := &waitingCall{queue: id.Queue, request: req, deadline: deadline, done: make(chan struct{})}
	if _, err := rand.Read(c.id[:]); err != nil {
		return nil, reason.New(codes.Internal, reason.Internal, nil, "no random numbers for a call: %v", err)
	}
	parent, up := id.parent()
	here, err := e.calls.put(id, c, !up)
	if err != nil {
		return nil, err
	}
	if !here {
		return e.callParent(ctx, id, parent, req, time.Until(deadline))
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		e.calls.giveUp(id, c, e.calls.tooLate(c))
	case <-ctx.Done():
		e.calls.giveUp(id, c, ctx.Err())
	}
	<-c.done
	if c.err != nil {
		return nil, c.err
	}
	return &v1.PartitionCallResponse{Response: c.answer}, nil
}

// tooLate is why a call ends whose time is over.
func (t *callTable) tooLate(c *waitingCall) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.taken {
		return reason.New(codes.DeadlineExceeded, reason.NoPoller, map[string]string{"queue": c.queue},
			"no worker of queue %q took the call in time: start one that serves calls, or one more", c.queue)
	}
	return reason.New(codes.DeadlineExceeded, reason.CallTimedOut, map[string]string{"queue": c.queue},
		"a worker of queue %q took the call and has not answered in time", c.queue)
}

// callParent sends a call up.
func (e *Engine) callParent(ctx context.Context, id, parent PartitionID, req *v1.CallRequest, timeout time.Duration) (*v1.PartitionCallResponse, error) {
	up := &v1.CallRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Kind: req.GetKind(), Payload: req.GetPayload(), Headers: req.GetHeaders(),
		Timeout: durationpb.New(max(timeout-callMargin, time.Millisecond))}
	var resp *v1.PartitionCallResponse
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := e.callAt(ctx, parent, func(peer v1.MatchingServiceServer) (err error) {
		resp, err = peer.PartitionCall(ctx, &v1.PartitionCallRequest{
			Header: &v1.PartitionHeader{Partition: parent.Number, Hop: v1.Hop_HOP_LENT, Source: id.Number}, Request: up,
		})
		return err
	})
	e.metrics.hop("call", err == nil, err)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// PartitionPollCalls implements v1.MatchingServiceServer.
func (e *Engine) PartitionPollCalls(ctx context.Context, preq *v1.PartitionPollCallsRequest) (*v1.PartitionPollCallsResponse, error) {
	req := preq.GetRequest()
	id, err := e.callHere(preq.GetHeader(), req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	wait := req.GetWait().AsDuration()
	end := time.Now().Add(wait)
	for {
		left := time.Until(end)
		p, lend, err := e.calls.poll(id, max(int(req.GetMaxCalls()), 1), left > 0, e.options.Limits.WaitingPolls)
		if err != nil {
			return nil, err
		}
		if lend {
			resp, err := e.lendCallPoll(ctx, id, req, left)
			e.calls.lentBack(id)
			if len(resp.GetCalls()) > 0 || ctx.Err() != nil || left <= 0 || time.Until(end) <= 0 {
				if ctx.Err() != nil {
					e.decline(id, resp.GetCalls())
					return nil, ctx.Err()
				}
				return &v1.PartitionPollCallsResponse{Response: nonNil(resp)}, nil
			}
			if err != nil { // the parent cannot be reached: a moment later, perhaps
				select {
				case <-time.After(min(time.Duration(hopPause), time.Until(end))):
				case <-ctx.Done():
				}
			}
			continue
		}
		again, err := e.calls.wait(ctx, id, p, left)
		switch {
		case err != nil:
			return nil, err
		case again:
			continue
		}
		return &v1.PartitionPollCallsResponse{Response: p.response(id)}, nil
	}
}

func nonNil(r *v1.PollCallsResponse) *v1.PollCallsResponse {
	if r == nil {
		return &v1.PollCallsResponse{ServerTime: timestamp(time.Now().UnixNano())}
	}
	return r
}

// poll queues a poll for calls, or says that it should be lent to the parent.
func (t *callTable) poll(id PartitionID, most int, mayWait bool, limit int) (p *callPoll, lend bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping {
		return nil, false, errStopping
	}
	l := t.line(id)
	defer t.tidy(id, l)
	if len(l.polls) >= limit {
		return nil, false, errTooManyPolls(id, limit)
	}
	if _, up := id.parent(); up && !l.lent && len(l.calls) == 0 {
		l.lent = true
		return nil, true, nil
	}
	p = &callPoll{max: most, done: make(chan struct{})}
	l.polls = append(l.polls, p)
	t.match(id, l)
	if !mayWait {
		t.endPoll(l, p)
	}
	return p, false, nil
}

// lentBack notes that a partition has no poll at its parent any more; the next one that
// waits goes there.
func (t *callTable) lentBack(id PartitionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.line(id)
	l.lent = false
	if len(l.polls) > 0 {
		p := l.polls[0]
		p.over = true // see wait
		l.polls = l.polls[1:]
		close(p.done)
	}
	t.tidy(id, l)
}

// wait waits for a poll's end. again says that it was taken out of the line to be lent.
func (t *callTable) wait(ctx context.Context, id PartitionID, p *callPoll, d time.Duration) (again bool, err error) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	over := false
	select {
	case <-p.done:
	case <-timer.C:
		over = true
	case <-ctx.Done():
	}
	t.mu.Lock()
	if l := t.lines[id]; l != nil {
		t.endPoll(l, p)
		t.tidy(id, l)
	}
	calls, err := p.calls, p.err
	t.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		t.putBack(id, calls)
		return false, ctx.Err()
	case len(calls) > 0 || over || d <= 0:
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

func (p *callPoll) response(id PartitionID) *v1.PollCallsResponse {
	resp := &v1.PollCallsResponse{ServerTime: timestamp(time.Now().UnixNano())}
	for _, c := range p.calls {
		r := c.request
		resp.Calls = append(resp.Calls, &v1.WaitingCall{Kind: r.GetKind(), Payload: r.GetPayload(), Headers: r.GetHeaders(),
			Deadline: timestamp(c.deadline.UnixNano()), CallToken: callToken(id.Number, c.id)})
	}
	return resp
}

// lendCallPoll polls the parent in a poll's place.
func (e *Engine) lendCallPoll(ctx context.Context, id PartitionID, req *v1.PollCallsRequest, wait time.Duration) (*v1.PollCallsResponse, error) {
	parent, _ := id.parent()
	peer, _, err := e.peers.Owner(parent)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(wait, 0)+lendMargin)
	defer cancel()
	resp, err := peer.PartitionPollCalls(ctx, &v1.PartitionPollCallsRequest{
		Header: &v1.PartitionHeader{Partition: parent.Number, Hop: v1.Hop_HOP_LENT, Source: id.Number},
		Request: &v1.PollCallsRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Identity: req.GetIdentity(), MaxCalls: req.GetMaxCalls(),
			Wait: durationpb.New(max(wait, 0))},
	})
	e.metrics.hop("call_poll", len(resp.GetResponse().GetCalls()) > 0, err)
	return resp.GetResponse(), err
}

// decline gives calls back that came from another partition for a poller who is gone.
func (e *Engine) decline(id PartitionID, calls []*v1.WaitingCall) {
	if len(calls) == 0 {
		return
	}
	req := &v1.AnswerCallsRequest{Namespace: id.Namespace, Queue: id.Queue}
	for _, c := range calls {
		req.Answers = append(req.Answers, &v1.AnswerCallsRequest_Answer{CallToken: c.GetCallToken(), Declined: true})
	}
	e.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, giveBackTime)
		defer cancel()
		if _, err := e.AnswerCalls(ctx, req); err != nil {
			e.log.Warn("calls of a poller that is gone wait until their callers give up", "partition", id.String(), "calls", len(calls), "err", err)
		}
	})
}

// PartitionAnswerCalls implements v1.MatchingServiceServer.
func (e *Engine) PartitionAnswerCalls(_ context.Context, preq *v1.PartitionAnswerCallsRequest) (*v1.PartitionAnswerCallsResponse, error) {
	req := preq.GetRequest()
	id, err := partition(preq.GetHeader(), req.GetNamespace(), req.GetQueue())
	if err != nil {
		return nil, err
	}
	resp := &v1.AnswerCallsResponse{}
	for _, a := range req.GetAnswers() {
		var failed error
		n, call, ok := parseCallToken(a.GetCallToken())
		if !ok || n != id.Number {
			failed = errInvalidCallToken
		} else if !e.calls.answer(id, call, a, req.GetIdentity()) {
			failed = errCallGone
		}
		resp.Results = append(resp.Results, &v1.ItemResult{Error: reason.Item(failed)})
	}
	return &v1.PartitionAnswerCallsResponse{Response: resp}, nil
}

func (t *callTable) answer(id PartitionID, call callID, a *v1.AnswerCallsRequest_Answer, identity string) bool {
	t.mu.Lock()
	c, ok := t.taken[call]
	if !ok || c.at != id {
		t.mu.Unlock()
		return false
	}
	if a.GetDeclined() {
		t.mu.Unlock()
		t.putBack(id, []*waitingCall{c.call})
		return true
	}
	answer := &v1.CallResponse{Identity: identity, Error: a.GetError()}
	if answer.Error == "" {
		answer.Payload = a.GetPayload()
	}
	t.settle(c.call, answer, nil)
	t.mu.Unlock()
	return true
}

// A call's token: version 1 | partition 4 | id 16.
const callTokenVersion = 1

func callToken(n int32, id callID) []byte {
	b := append(make([]byte, 0, 21), callTokenVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	return append(b, id[:]...)
}

func parseCallToken(b []byte) (n int32, id callID, ok bool) {
	if len(b) != 21 || b[0] != callTokenVersion {
		return 0, id, false
	}
	n = int32(binary.BigEndian.Uint32(b[1:]))
	copy(id[:], b[5:])
	return n, id, checkNumber(n) == nil
}

var (
	errInvalidCallToken = reason.New(codes.InvalidArgument, reason.InvalidLeaseToken, nil,
		"the call token is not one of this queue's: use the token as PollCalls returned it")
	errCallGone = reason.New(codes.NotFound, reason.CallGone, nil, "the caller has left, or has an answer already")
)
