package frontend

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// defaultCallTimeout is how long a call waits that does not say.
const defaultCallTimeout = 10 * time.Second

// declineTime bounds handing calls on whose poller is gone.
const declineTime = 5 * time.Second

// Call implements v1.CallServiceServer. It counts as a poll: it waits for somebody
// else.
func (f *Frontend) Call(ctx context.Context, req *v1.CallRequest) (resp *v1.CallResponse, err error) {
	ctx, c, err := f.begin(ctx, mCall)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if f.draining.Err() != nil {
		return nil, shuttingDown()
	}
	if err := f.checkCall(ctx, req); err != nil {
		return nil, err
	}
	if err := c.hold(int64(len(req.Payload)) + itemOverhead); err != nil {
		return nil, err
	}
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.draining, cancel)()
	resp, err = f.backend.Call(callCtx, req)
	if err != nil {
		return nil, f.whyEnded(ctx, err)
	}
	return resp, nil
}

// whyEnded is the error of a call that waited: its caller's, or the node's, or its own.
func (f *Frontend) whyEnded(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ended(ctx.Err())
	case f.draining.Err() != nil:
		return shuttingDown()
	}
	return err
}

// checkCall checks a call and fills in its timeout, which ends before the caller's
// deadline.
func (f *Frontend) checkCall(ctx context.Context, req *v1.CallRequest) error {
	l := &f.limits
	if err := l.address(&req.Namespace, req.Queue); err != nil {
		return err
	}
	if err := l.checkKind(req.Kind); err != nil {
		return err
	}
	if len(req.Payload) > l.PayloadBytes {
		return tooLarge(reason.PayloadTooLarge, "payload", l.PayloadBytes,
			"the payload is %d bytes; at most %d are allowed, keep large data elsewhere and send its address", len(req.Payload), l.PayloadBytes)
	}
	if err := l.checkHeaders(req.Headers); err != nil {
		return err
	}
	return l.waiting(ctx, "timeout", &req.Timeout, min(defaultCallTimeout, l.PollWait), time.Millisecond)
}

// waiting checks how long a call wants to wait, fills in the default, and ends the
// wait a little before the caller's deadline, so that the caller gets an answer.
func (l *Limits) waiting(ctx context.Context, field string, d **durationpb.Duration, standard, least time.Duration) error {
	wait := standard
	if *d != nil {
		if err := checkDuration(reason.InvalidDuration, field, *d, least, l.PollWait); err != nil {
			return err
		}
		wait = (*d).AsDuration()
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		wait = max(min(wait, left-min(left/10, pollMargin)), least)
	}
	*d = durationpb.New(wait)
	return nil
}

// PollCalls implements v1.CallServiceServer. Calls for a poller who is gone go to
// another.
func (f *Frontend) PollCalls(ctx context.Context, req *v1.PollCallsRequest) (resp *v1.PollCallsResponse, err error) {
	ctx, c, err := f.begin(ctx, mPollCalls)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if f.draining.Err() != nil {
		return nil, shuttingDown()
	}
	if err := f.checkPollCalls(ctx, req); err != nil {
		return nil, err
	}
	pollCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.draining, cancel)()
	resp, err = f.backend.PollCalls(pollCtx, req)
	if err != nil {
		return nil, f.whyEnded(ctx, err)
	}
	if ctx.Err() != nil {
		f.decline(req, resp.Calls)
		return nil, ended(ctx.Err())
	}
	c.items(len(resp.Calls))
	return resp, nil
}

func (f *Frontend) checkPollCalls(ctx context.Context, req *v1.PollCallsRequest) error {
	l := &f.limits
	if err := l.address(&req.Namespace, req.Queue); err != nil {
		return err
	}
	if err := l.checkIdentity(req.Identity); err != nil {
		return err
	}
	switch {
	case req.MaxCalls == 0:
		req.MaxCalls = 1
	case req.MaxCalls < 0 || int(req.MaxCalls) > l.PollTasks:
		return tooLarge(reason.InvalidMaxTasks, "max_calls", l.PollTasks, "max_calls is %d; it must be between 1 and %d", req.MaxCalls, l.PollTasks)
	}
	return l.waiting(ctx, "wait", &req.Wait, l.DefaultPollWait, 0)
}

// decline hands calls on whose poller is gone.
func (f *Frontend) decline(req *v1.PollCallsRequest, calls []*v1.WaitingCall) {
	if len(calls) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), declineTime)
	defer cancel()
	back := &v1.AnswerCallsRequest{Namespace: req.Namespace, Queue: req.Queue, Identity: req.Identity}
	for _, call := range calls {
		back.Answers = append(back.Answers, &v1.AnswerCallsRequest_Answer{CallToken: call.CallToken, Declined: true})
	}
	if _, err := f.backend.AnswerCalls(ctx, back); err != nil {
		f.logger.Warn("calls of a poller that is gone wait until their callers give up",
			"namespace", req.Namespace, "queue", req.Queue, "calls", len(calls), "err", err)
	}
}

// AnswerCalls implements v1.CallServiceServer.
func (f *Frontend) AnswerCalls(ctx context.Context, req *v1.AnswerCallsRequest) (resp *v1.AnswerCallsResponse, err error) {
	ctx, c, err := f.begin(ctx, mAnswerCalls)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := f.batch(&c, &req.Namespace, req.Queue, "answers", len(req.Answers)); err != nil {
		return nil, err
	}
	if err := f.limits.checkIdentity(req.Identity); err != nil {
		return nil, err
	}
	var bad faults
	n, size := len(req.Answers), int64(0)
	for i, a := range req.Answers {
		if err := f.limits.checkAnswer(a); err != nil {
			bad.add(i, n, err)
			continue
		}
		size += int64(len(a.Payload)) + itemOverhead
	}
	if err := c.hold(size); err != nil {
		return nil, err
	}
	req.Answers = right(req.Answers, bad)
	resp = &v1.AnswerCallsResponse{}
	if len(req.Answers) > 0 {
		if resp, err = f.backend.AnswerCalls(ctx, req); err != nil {
			return nil, err
		}
	}
	if resp.Results, err = merge(n, f.counted(&c, bad), resp.Results, failedItem); err != nil {
		return nil, err
	}
	return resp, nil
}

// checkAnswer checks one answer and cuts the text of its error.
func (l *Limits) checkAnswer(a *v1.AnswerCallsRequest_Answer) error {
	if a == nil {
		return invalid(reason.InvalidRequest, "answers", "the answer is missing")
	}
	if err := checkToken(a.CallToken); err != nil {
		return err
	}
	if len(a.Payload) > l.PayloadBytes {
		return tooLarge(reason.PayloadTooLarge, "payload", l.PayloadBytes, "the answer's payload is %d bytes; at most %d are allowed", len(a.Payload), l.PayloadBytes)
	}
	a.Error = cut(a.Error, l.ErrorBytes)
	return nil
}
