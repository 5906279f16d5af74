package matching

import (
	"context"
	"crypto/rand"
	"encoding/binary"
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
	for first := true; ; first = false {
		e.polls.mu.Lock()
		err := e.polls.refused(id, req.GetIdentity())
		e.polls.mu.Unlock()
		if err != nil && first {
			return nil, err
		} else if err != nil { // it was ended where it was lent to
			return &v1.PartitionPollCallsResponse{Response: nonNil(nil)}, nil
		}
		left := time.Until(end)
		p, lend, err := e.calls.poll(id, req.GetIdentity(), max(int(req.GetMaxCalls()), 1), left > 0, e.options.Limits.WaitingPolls)
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
