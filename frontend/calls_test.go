package frontend_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/frontend"
)

// callBackend answers calls as its functions say and keeps what it was asked.
type callBackend struct {
	frontend.Backend
	calls   []*v1.CallRequest
	polls   []*v1.PollCallsRequest
	answers []*v1.AnswerCallsRequest
	call    func(context.Context) (*v1.CallResponse, error)
	poll    func(context.Context) (*v1.PollCallsResponse, error)
}

func (b *callBackend) Call(ctx context.Context, req *v1.CallRequest) (*v1.CallResponse, error) {
	b.calls = append(b.calls, req)
	if b.call != nil {
		return b.call(ctx)
	}
	return &v1.CallResponse{}, nil
}

func (b *callBackend) PollCalls(ctx context.Context, req *v1.PollCallsRequest) (*v1.PollCallsResponse, error) {
	b.polls = append(b.polls, req)
	if b.poll != nil {
		return b.poll(ctx)
	}
	return &v1.PollCallsResponse{}, nil
}

func (b *callBackend) AnswerCalls(_ context.Context, req *v1.AnswerCallsRequest) (*v1.AnswerCallsResponse, error) {
	b.answers = append(b.answers, req)
	return &v1.AnswerCallsResponse{Results: itemResults(len(req.Answers))}, nil
}

func TestCall_isCheckedAndEndsBeforeTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &callBackend{}
		f := newFrontend(t, b, nil)
		for _, c := range []struct {
			req  *v1.CallRequest
			want string
		}{
			{&v1.CallRequest{Kind: "k"}, reason.InvalidQueueName},
			{&v1.CallRequest{Queue: "q"}, reason.InvalidKind},
			{&v1.CallRequest{Queue: "q", Kind: "k", Payload: make([]byte, 1<<20+1)}, reason.PayloadTooLarge},
			{&v1.CallRequest{Queue: "q", Kind: "k", Headers: map[string]string{"": "x"}}, reason.InvalidHeader},
			{&v1.CallRequest{Queue: "q", Kind: "k", Timeout: ns(0)}, reason.InvalidDuration},
			{&v1.CallRequest{Queue: "q", Kind: "k", Timeout: ns(-1)}, reason.InvalidDuration},
			{&v1.CallRequest{Queue: "q", Kind: "k", Timeout: ns(time.Hour)}, reason.InvalidDuration},
		} {
			if _, err := f.Call(t.Context(), c.req); reason.Of(err) != c.want {
				t.Errorf("%v: %v, want %s", c.req, err, c.want)
			}
		}
		if len(b.calls) != 0 {
			t.Fatal("a bad call reached the backend")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		for _, ctx := range []context.Context{t.Context(), ctx} {
			if _, err := f.Call(ctx, &v1.CallRequest{Queue: "q", Kind: "k"}); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.calls[0]; got.Timeout.AsDuration() != 10*time.Second || got.Namespace != "default" {
			t.Errorf("a call without a timeout became %v", got)
		}
		if got := b.calls[1].Timeout.AsDuration(); got != 2700*time.Millisecond {
			t.Errorf("a call with 3 s left has a timeout of %v", got)
		}
	})
}

func TestPollCalls_isCheckedAndItsCallsGoOnWhenThePollerIsGone(t *testing.T) {
	b := &callBackend{}
	f := newFrontend(t, b, nil)
	for _, c := range []struct {
		req  *v1.PollCallsRequest
		want string
	}{
		{&v1.PollCallsRequest{}, reason.InvalidQueueName},
		{&v1.PollCallsRequest{Queue: "q", MaxCalls: -1}, reason.InvalidMaxTasks},
		{&v1.PollCallsRequest{Queue: "q", MaxCalls: 1 << 30}, reason.InvalidMaxTasks},
		{&v1.PollCallsRequest{Queue: "q", Identity: strings.Repeat("x", 256)}, reason.InvalidIdentity},
		{&v1.PollCallsRequest{Queue: "q", Wait: ns(-1)}, reason.InvalidDuration},
	} {
		if _, err := f.PollCalls(t.Context(), c.req); reason.Of(err) != c.want {
			t.Errorf("%v: %v, want %s", c.req, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	b.poll = func(context.Context) (*v1.PollCallsResponse, error) {
		cancel() // the poller leaves as the call is handed over
		return &v1.PollCallsResponse{Calls: []*v1.WaitingCall{{CallToken: []byte("t")}}}, nil
	}
	if _, err := f.PollCalls(ctx, &v1.PollCallsRequest{Queue: "q"}); reason.Of(err) != reason.RequestCancelled {
		t.Fatal(err)
	}
	if len(b.answers) != 1 || !b.answers[0].Answers[0].Declined || string(b.answers[0].Answers[0].CallToken) != "t" {
		t.Errorf("the call was not declined: %v", b.answers)
	}
	if got := b.polls[0]; got.MaxCalls != 1 || got.Wait.AsDuration() != 20*time.Second {
		t.Errorf("the poll became %v", got)
	}
}

func TestAnswerCalls_aBadAnswerFailsAlone(t *testing.T) {
	b := &callBackend{}
	f := newFrontend(t, b, nil)
	resp, err := f.AnswerCalls(t.Context(), &v1.AnswerCallsRequest{Queue: "q", Answers: []*v1.AnswerCallsRequest_Answer{
		{}, {CallToken: []byte("t"), Error: strings.Repeat("x", 5000)}, nil, {CallToken: []byte("t"), Payload: make([]byte, 1<<20+1)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{reason.InvalidLeaseToken, "", reason.InvalidRequest, reason.PayloadTooLarge} {
		if got := resp.Results[i].GetError().GetReason(); got != want {
			t.Errorf("answer %d: %q, want %q", i, got, want)
		}
	}
	if got := b.answers[0].Answers; len(got) != 1 || len(got[0].Error) != 4096 {
		t.Errorf("the backend got %v", got)
	}
}

func TestDrain_endsCallsAndPollsForCalls(t *testing.T) {
	b := &callBackend{
		call: func(ctx context.Context) (*v1.CallResponse, error) { <-ctx.Done(); return nil, ctx.Err() },
		poll: func(ctx context.Context) (*v1.PollCallsResponse, error) { <-ctx.Done(); return nil, ctx.Err() },
	}
	f := newFrontend(t, b, nil)
	got := make(chan error, 2)
	go func() {
		_, err := f.Call(t.Context(), &v1.CallRequest{Queue: "q", Kind: "k"})
		got <- err
	}()
	go func() {
		_, err := f.PollCalls(t.Context(), &v1.PollCallsRequest{Queue: "q"})
		got <- err
	}()
	f.Drain()
	for range 2 {
		if err := <-got; reason.Of(err) != reason.ShuttingDown {
			t.Errorf("%v, want SHUTTING_DOWN", err)
		}
	}
}

func TestSticky_theNameOfAWorkerIsChecked(t *testing.T) {
	f := newFrontend(t, &recorder{}, nil)
	for _, name := range []string{strings.Repeat("w", 256), "a\nb"} {
		if _, err := f.PollTasks(t.Context(), &v1.PollTasksRequest{Queue: "q", StickyWorker: name}); reason.Of(err) != reason.InvalidIdentity {
			t.Errorf("poll as %q: %v", name, err)
		}
		if _, err := f.AddTasks(t.Context(), &v1.AddTasksRequest{Queue: "q", StickyWorker: name, Tasks: []*v1.TaskSpec{{Kind: "k"}}}); reason.Of(err) != reason.InvalidIdentity {
			t.Errorf("add for %q: %v", name, err)
		}
	}
}
