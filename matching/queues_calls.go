package matching

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// The calls of CallService: which partition each goes to.

// Call hands a request to a worker and waits for its answer; see CallService.
func (q *Queues) Call(ctx context.Context, req *v1.CallRequest) (*v1.CallResponse, error) {
	var resp *v1.CallResponse
	err := q.balanced(ctx, req.GetNamespace(), req.GetQueue(), func(_ *queueEntry, k *known) error {
		id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: rand.Int32N(k.counts.GetWrite())}
		return q.callAt(ctx, id, func(peer v1.MatchingServiceServer) error {
			r, err := peer.PartitionCall(ctx, &v1.PartitionCallRequest{Header: &v1.PartitionHeader{Partition: id.Number, Counts: k.header}, Request: req})
			resp = r.GetResponse()
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// PollCalls waits for calls; see CallService.
func (q *Queues) PollCalls(ctx context.Context, req *v1.PollCallsRequest) (*v1.PollCallsResponse, error) {
	var resp *v1.PollCallsResponse
	err := q.balanced(ctx, req.GetNamespace(), req.GetQueue(), func(e *queueEntry, k *known) error {
		n := e.callPolls.begin(k.counts.GetRead())
		defer e.callPolls.end(n)
		id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: n}
		return q.at(ctx, id, func(peer v1.MatchingServiceServer) error {
			r, err := peer.PartitionPollCalls(ctx, &v1.PartitionPollCallsRequest{Header: &v1.PartitionHeader{Partition: n, Counts: k.header}, Request: req})
			resp = r.GetResponse()
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// AnswerCalls returns answers to callers; see CallService.
func (q *Queues) AnswerCalls(ctx context.Context, req *v1.AnswerCallsRequest) (*v1.AnswerCallsResponse, error) {
	resp := &v1.AnswerCallsResponse{Results: make([]*v1.ItemResult, len(req.GetAnswers()))}
	groups := map[int32][]int{}
	for i, a := range req.GetAnswers() {
		n, _, ok := parseCallToken(a.GetCallToken())
		if !ok {
			resp.Results[i] = &v1.ItemResult{Error: reason.Item(errInvalidCallToken)}
			continue
		}
		groups[n] = append(groups[n], i)
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error
	)
	for n, items := range groups {
		wg.Go(func() {
			part := &v1.AnswerCallsRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Identity: req.GetIdentity(), Answers: pick(req.GetAnswers(), items)}
			err := q.at(ctx, PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: n}, func(peer v1.MatchingServiceServer) error {
				r, err := peer.PartitionAnswerCalls(ctx, &v1.PartitionAnswerCallsRequest{Header: &v1.PartitionHeader{Partition: n}, Request: part})
				for k, result := range r.GetResponse().GetResults() {
					resp.Results[items[k]] = result // of this partition only
				}
				return err
			})
			if err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	return resp, nil
}

// callAt is at for calls: they are tried again only when it is sure that no worker has
// them.
func (q *Queues) callAt(ctx context.Context, id PartitionID, fn func(v1.MatchingServiceServer) error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		peer, _, err := q.peers.Owner(id)
		if err == nil {
			if err = fn(peer); reason.Of(err) != reason.PartitionMoved {
				return err
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}
