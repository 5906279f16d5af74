package matching

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func callRequest(queue, payload string, timeout time.Duration) *v1.CallRequest {
	return &v1.CallRequest{Namespace: "default", Queue: queue, Kind: "k", Payload: []byte(payload), Timeout: durationpb.New(timeout)}
}

func (f *fixture) pollCalls(ctx context.Context, queue string, most int, wait time.Duration) (*v1.PollCallsResponse, error) {
	return f.PollCalls(ctx, &v1.PollCallsRequest{Namespace: "default", Queue: queue, Identity: "test", MaxCalls: int32(most), Wait: durationpb.New(wait)})
}

func (f *fixture) answer(queue string, answers ...*v1.AnswerCallsRequest_Answer) []*v1.ItemResult {
	f.Helper()
	resp, err := f.AnswerCalls(f.ctx, &v1.AnswerCallsRequest{Namespace: "default", Queue: queue, Identity: "test", Answers: answers})
	require.NoError(f, err)
	return resp.GetResults()
}

// serveCalls answers calls with an echo until ctx ends.
func (f *fixture) serveCalls(ctx context.Context, queue string, most int) {
	for ctx.Err() == nil {
		resp, err := f.pollCalls(ctx, queue, most, 10*time.Second)
		if err != nil {
			if ctx.Err() == nil {
				f.Errorf("poll: %v", err)
			}
			return
		}
		for _, c := range resp.GetCalls() {
			f.answer(queue, &v1.AnswerCallsRequest_Answer{CallToken: c.GetCallToken(), Payload: append([]byte("re: "), c.GetPayload()...)})
		}
	}
}

func TestCall_finds_a_worker_in_any_partition_and_brings_its_answer(t *testing.T) {
	for _, partitions := range []int{1, 4, 45} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			f := newFixture(t, newStore(t, ""), nil)
			f.makeQueue("q", partitions)
			ctx, stop := context.WithCancel(f.ctx)
			var workers, callers sync.WaitGroup
			for range 2 {
				workers.Go(func() { f.serveCalls(ctx, "q", 3) })
			}
			for i := range 8 {
				callers.Go(func() {
					for j := range 25 {
						text := fmt.Sprint(i, "/", j)
						resp, err := f.Call(f.ctx, callRequest("q", text, 30*time.Second))
						if err != nil || string(resp.GetPayload()) != "re: "+text {
							t.Errorf("call %s: %q, %v", text, resp.GetPayload(), err)
							return
						}
					}
				})
			}
			callers.Wait()
			stop()
			workers.Wait()
			f.calls.mu.Lock()
			defer f.calls.mu.Unlock()
			require.Empty(t, f.calls.lines, "nothing is left of calls and polls that ended")
			require.Empty(t, f.calls.taken)
		})
	}
}

func TestCall_without_a_poller_fails_with_no_poller(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	_, err := f.Call(f.ctx, callRequest("q", "x", 50*time.Millisecond))
	require.Equal(t, reason.NoPoller, reason.Of(err))
}

func TestCall_whose_worker_does_not_answer_times_out(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 1)
	failed := make(chan error)
	go func() {
		_, err := f.Call(f.ctx, callRequest("q", "x", time.Second))
		failed <- err
	}()
	resp, err := f.pollCalls(f.ctx, "q", 1, 20*time.Second)
	require.NoError(t, err)
	require.Len(t, resp.GetCalls(), 1)
	require.Equal(t, reason.CallTimedOut, reason.Of(<-failed))
	late := f.answer("q", &v1.AnswerCallsRequest_Answer{CallToken: resp.GetCalls()[0].GetCallToken()})
	require.Equal(t, reason.CallGone, late[0].GetError().GetReason(), "an answer that comes too late says so")
}

func TestCall_that_its_worker_declines_goes_to_another(t *testing.T) {
	for _, partitions := range []int{1, 4} {
		f := newFixture(t, newStore(t, ""), nil)
		f.makeQueue("q", partitions)
		answers := make(chan *v1.CallResponse, 1)
		go func() {
			resp, err := f.Call(f.ctx, callRequest("q", "x", 30*time.Second))
			if err != nil {
				t.Error(err)
			}
			answers <- resp
		}()
		for range 5 {
			resp, err := f.pollCalls(f.ctx, "q", 1, 20*time.Second)
			require.NoError(t, err)
			require.Len(t, resp.GetCalls(), 1)
			f.answer("q", &v1.AnswerCallsRequest_Answer{CallToken: resp.GetCalls()[0].GetCallToken(), Declined: true})
		}
		resp, err := f.pollCalls(f.ctx, "q", 1, 20*time.Second)
		require.NoError(t, err)
		f.answer("q", &v1.AnswerCallsRequest_Answer{CallToken: resp.GetCalls()[0].GetCallToken(), Error: "no"})
		got := <-answers
		require.Equal(t, "no", got.GetError())
		require.Equal(t, "test", got.GetIdentity())
	}
}

func TestCall_is_not_lost_with_a_poll_whose_caller_left(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	for range 50 {
		ctx, cancel := context.WithCancel(f.ctx)
		left := make(chan struct{})
		go func() {
			defer close(left)
			resp, err := f.pollCalls(ctx, "q", 1, 20*time.Second)
			if err == nil && len(resp.GetCalls()) > 0 { // it came first
				f.answer("q", &v1.AnswerCallsRequest_Answer{CallToken: resp.GetCalls()[0].GetCallToken(), Declined: true})
			}
		}()
		answered := make(chan error)
		go func() {
			_, err := f.Call(f.ctx, callRequest("q", "x", 30*time.Second))
			answered <- err
		}()
		cancel()
		<-left
		resp, err := f.pollCalls(f.ctx, "q", 1, 20*time.Second)
		require.NoError(t, err)
		require.Len(t, resp.GetCalls(), 1)
		f.answer("q", &v1.AnswerCallsRequest_Answer{CallToken: resp.GetCalls()[0].GetCallToken()})
		require.NoError(t, <-answered)
	}
}

func TestCall_waits_on_at_the_new_owner_when_its_partition_moves(t *testing.T) {
	r, fs := newCluster(t, 2, func(PartitionID) int { return 0 }, nil)
	fs[0].makeQueue("q", 1)
	answered := make(chan error, 1)
	go func() {
		_, err := fs[0].Call(fs[0].ctx, callRequest("q", "x", 30*time.Second))
		answered <- err
	}()
	eventually(t, "the call waits", func() bool {
		fs[0].calls.mu.Lock()
		defer fs[0].calls.mu.Unlock()
		return len(fs[0].calls.lines) == 1
	})
	r.setOwner(func(PartitionID) int { return 1 })
	resp, err := fs[1].pollCalls(fs[1].ctx, "q", 1, 20*time.Second)
	require.NoError(t, err)
	require.Len(t, resp.GetCalls(), 1)
	fs[0].answer("q", &v1.AnswerCallsRequest_Answer{CallToken: resp.GetCalls()[0].GetCallToken()})
	require.NoError(t, <-answered)
}

func TestPollCalls_ends_empty_after_its_wait(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	for range 3 {
		for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
			resp, err := f.pollCalls(f.ctx, "q", 1, wait)
			require.NoError(t, err)
			require.Empty(t, resp.GetCalls())
		}
	}
}

func TestAnswerCalls_refuses_a_token_that_nobody_gave_out(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	results := f.answer("q", &v1.AnswerCallsRequest_Answer{CallToken: []byte("nonsense")},
		&v1.AnswerCallsRequest_Answer{CallToken: callToken(3, callID{1})})
	require.Equal(t, reason.InvalidLeaseToken, results[0].GetError().GetReason())
	require.Equal(t, reason.CallGone, results[1].GetError().GetReason())
}
