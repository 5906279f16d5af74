package matching

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// The calls of TaskService: which partition each goes to.

// maxCountTries is how often a call tries again whose counts were out of date.
const maxCountTries = 4

// balanced runs fn for the partitions that choose picks by the queue's counts, and
// again when they turn out to be out of date.
func (q *Queues) balanced(ctx context.Context, namespace, queue string, fn func(*queueEntry, *known) error) error {
	for tries := 0; ; tries++ {
		e, k, err := q.partitionsOf(ctx, namespace, queue, true)
		if err != nil {
			return err
		}
		err = fn(e, k)
		switch reason.Of(err) {
		case reason.StalePartitionCounts:
			if c := CountsFromError(err); c != nil {
				e.known.CompareAndSwap(k, knownCounts(c))
			} else {
				e.known.CompareAndSwap(k, nil)
			}
		case reason.QueueNotFound: // deleted, and perhaps to be created anew
			e.known.CompareAndSwap(k, nil)
		default:
			return err
		}
		// Counts can change while a call is under way, and a partition may hear of it a
		// moment after another.
		if tries == maxCountTries || ctx.Err() != nil {
			return err
		}
		if tries > 0 {
			select {
			case <-time.After(time.Duration(tries) * countsPause / 2):
			case <-ctx.Done():
				return err
			}
		}
	}
}

// AddTasks adds tasks; see TaskService.
func (q *Queues) AddTasks(ctx context.Context, req *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
	if w := req.GetStickyWorker(); w != "" {
		id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Sticky: w}
		return q.addTo(ctx, nil, nil, id, req)
	}
	// What some partitions have taken is not offered again when the others refuse.
	results := make([]*v1.AddTasksResponse_Result, len(req.GetTasks()))
	err := q.balanced(ctx, req.GetNamespace(), req.GetQueue(), func(e *queueEntry, k *known) error {
		return q.addSplit(ctx, e, k, req, results)
	})
	if err != nil {
		return nil, err
	}
	return &v1.AddTasksResponse{Results: results}, nil
}

// addSplit adds the tasks of a batch that have no result yet, split by partition.
func (q *Queues) addSplit(ctx context.Context, e *queueEntry, k *known, req *v1.AddTasksRequest, results []*v1.AddTasksResponse_Result) error {
	tasks := req.GetTasks()
	n := k.counts.GetWrite()
	at := make([]int32, len(tasks))
	same := true
	for i, t := range tasks {
		if n > 1 {
			id, err := parseUUID(t.GetId())
			if err != nil {
				return err
			}
			at[i] = k.writeTo(id)
		}
		same = same && at[i] == at[0] && results[i] == nil
	}
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue()}
	if same {
		resp, err := q.addTo(ctx, e, k, id.sibling(at[0]), req)
		copy(results, resp.GetResults())
		return err
	}
	type part struct {
		req    *v1.AddTasksRequest
		places []int
	}
	parts := make(map[int32]*part, n)
	for i, t := range tasks {
		if results[i] != nil {
			continue
		}
		p := parts[at[i]]
		if p == nil {
			p = &part{req: &v1.AddTasksRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue()}}
			parts[at[i]] = p
		}
		p.req.Tasks = append(p.req.Tasks, t)
		p.places = append(p.places, i)
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error
	)
	for number, p := range parts {
		wg.Go(func() {
			resp, err := q.addTo(ctx, e, k, id.sibling(number), p.req)
			if err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
				return
			}
			for k, i := range p.places { // of this partition only
				results[i] = resp.GetResults()[k]
			}
		})
	}
	wg.Wait()
	return failed
}

// addTo adds tasks to one partition. When its owner changed meanwhile, what was under
// way is repeated: its id tells whether it arrived.
func (q *Queues) addTo(ctx context.Context, e *queueEntry, k *known, id PartitionID, req *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
	preq := &v1.PartitionAddTasksRequest{Header: &v1.PartitionHeader{Partition: id.Number, StickyWorker: id.Sticky, Counts: k.asHeader()}, Request: req}
	var resp *v1.AddTasksResponse
	tries := 0
	err := q.at(ctx, id, func(peer v1.MatchingServiceServer) error {
		tries++
		r, err := peer.PartitionAddTasks(ctx, preq)
		if err != nil {
			return err
		}
		resp = r.GetResponse()
		if e != nil {
			e.learn(r.GetCounts())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if tries > 1 {
		// Whether it was an earlier try of this very call that added them is not
		// known; they were not there before, as far as its caller can tell.
		for _, r := range resp.GetResults() {
			r.AlreadyAdded = false
		}
	}
	return resp, nil
}

// PollTasks leases tasks; see TaskService. While the queue's backlogs are known, a poll may
// wait at several partitions, one after another.
func (q *Queues) PollTasks(ctx context.Context, req *v1.PollTasksRequest) (*v1.PollTasksResponse, error) {
	if w := req.GetStickyWorker(); w != "" {
		return q.pollFrom(ctx, nil, nil, PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Sticky: w}, req)
	}
	until := time.Now().Add(req.GetWait().AsDuration())
	var turns pollTurns
	left := req.GetWait().AsDuration()
	for first := true; ; first = false {
		resp, again, err := q.pollTurn(ctx, req, &turns, left)
		if err != nil && !first && ctx.Err() == nil {
			switch reason.Of(err) {
			case reason.NotReady, reason.ShuttingDown, reason.WorkerCancelled, reason.PartitionMoved: // it has waited in vain, no more
				return &v1.PollTasksResponse{ServerTime: timestamp(q.now())}, nil
			}
		}
		if err != nil || !again {
			return resp, err
		}
		if left = time.Until(until); left <= 0 {
			return resp, nil
		}
	}
}

// pollTurn polls one partition for a turn of what is left of a poll's wait. again says that
// it should be tried elsewhere: its turn was over, or something new is known.
func (q *Queues) pollTurn(ctx context.Context, req *v1.PollTasksRequest, turns *pollTurns, left time.Duration) (resp *v1.PollTasksResponse, again bool, err error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue()}
	wait := req.GetWait().AsDuration()
	err = q.balanced(ctx, id.Namespace, id.Queue, func(e *queueEntry, k *known) (err error) {
		first, turn := e.choosePoll(k, turns, left)
		defer e.polls.end(first)
		part := req
		if turn < wait {
			part = &v1.PollTasksRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Identity: req.GetIdentity(),
				MaxTasks: req.GetMaxTasks(), Wait: durationpb.New(turn), LeaseTime: req.GetLeaseTime()}
		}
		began := time.Now()
		resp, err = q.pollFrom(ctx, e, k, id.sibling(first), part)
		if err != nil || wait > 0 {
			again = len(resp.GetTasks()) == 0 && (turn < left && time.Since(began) >= turn || e.known.Load() != k)
			return err
		}
		// A poll that does not wait finds nothing only when there is nothing.
		n := k.counts.GetRead()
		for i := int32(1); i < n && len(resp.GetTasks()) == 0 && err == nil; i++ {
			resp, err = q.pollFrom(ctx, e, k, id.sibling((first+i)%n), req)
		}
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return resp, again, nil
}

func (q *Queues) pollFrom(ctx context.Context, e *queueEntry, k *known, id PartitionID, req *v1.PollTasksRequest) (*v1.PollTasksResponse, error) {
	preq := &v1.PartitionPollTasksRequest{Header: &v1.PartitionHeader{Partition: id.Number, StickyWorker: id.Sticky, Counts: k.asHeader()}, Request: req}
	var resp *v1.PollTasksResponse
	err := q.at(ctx, id, func(peer v1.MatchingServiceServer) error {
		r, err := peer.PartitionPollTasks(ctx, preq)
		if err != nil {
			return err
		}
		resp = r.GetResponse()
		if e != nil {
			e.learn(r.GetCounts())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// byPartition groups the items of a call by the partition that their lease tokens
// name. one is that partition when it is the same for all. A token that names none
// goes to the root, which refuses it.
func byPartition(namespace, queue string, n int, token func(i int) []byte) (one PartitionID, groups map[PartitionID][]int) {
	id := func(i int) PartitionID {
		t, ok := parseToken(token(i))
		if !ok || t.partition < 0 || t.partition >= MaxPartitions {
			return PartitionID{Namespace: namespace, Queue: queue}
		}
		return PartitionID{Namespace: namespace, Queue: queue, Number: t.partition, Sticky: t.sticky}
	}
	one = id(0)
	for i := 1; i < n; i++ {
		p := id(i)
		if groups == nil {
			if p == one {
				continue
			}
			groups = map[PartitionID][]int{}
			for j := range i {
				groups[one] = append(groups[one], j)
			}
		}
		groups[p] = append(groups[p], i)
	}
	return one, groups
}

// ends sends the items of a call to the partitions where their leases are and puts
// the results together. send sends those with the given indices (nil for all). repeated, if
// not nil, gives the result of a repetition the meaning that it has when an earlier try of
// this very call may have got through.
func ends[R any](ctx context.Context, q *Queues, namespace, queue string, n int, token func(i int) []byte,
	send func(peer v1.MatchingServiceServer, h *v1.PartitionHeader, items []int) ([]R, error), refused func(error) R, repeated func(R) R,
) ([]R, error) {
	if n == 0 {
		return nil, nil
	}
	to := func(id PartitionID, items []int) (results []R, err error) {
		h := &v1.PartitionHeader{Partition: id.Number, StickyWorker: id.Sticky}
		tries := 0
		err = q.at(ctx, id, func(peer v1.MatchingServiceServer) error {
			tries++
			results, err = send(peer, h, items)
			return err
		})
		if tries > 1 && repeated != nil {
			for i, r := range results {
				results[i] = repeated(r)
			}
		}
		if reason.Of(err) == reason.StalePartitionCounts { // no such partition: nobody gave out that token
			results, err = make([]R, max(len(items), 0)), nil
			if items == nil {
				results = make([]R, n)
			}
			for i := range results {
				results[i] = refused(errInvalidToken)
			}
		}
		return results, err
	}
	one, groups := byPartition(namespace, queue, n, token)
	if groups == nil {
		return to(one, nil)
	}
	out := make([]R, n)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for id, items := range groups {
		wg.Go(func() {
			results, err := to(id, items)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			for i, r := range results {
				out[items[i]] = r
			}
		})
	}
	wg.Wait()
	return out, failed
}

func pick[T any](all []T, items []int) []T {
	if items == nil {
		return all
	}
	some := make([]T, len(items))
	for i, n := range items {
		some[i] = all[n]
	}
	return some
}

func refusedItem(err error) *v1.ItemResult { return &v1.ItemResult{Error: reason.Item(err)} }

// CompleteTasks ends tasks with success; see TaskService.
func (q *Queues) CompleteTasks(ctx context.Context, req *v1.CompleteTasksRequest) (*v1.CompleteTasksResponse, error) {
	all := req.GetLeaseTokens()
	results, err := ends(ctx, q, req.GetNamespace(), req.GetQueue(), len(all), func(i int) []byte { return all[i] },
		func(peer v1.MatchingServiceServer, h *v1.PartitionHeader, items []int) ([]*v1.ItemResult, error) {
			part := req
			if items != nil {
				part = &v1.CompleteTasksRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue(), LeaseTokens: pick(all, items)}
			}
			resp, err := peer.PartitionCompleteTasks(ctx, &v1.PartitionCompleteTasksRequest{Header: h, Request: part})
			return resp.GetResponse().GetResults(), err
		}, refusedItem, nil)
	if err != nil {
		return nil, err
	}
	return &v1.CompleteTasksResponse{Results: results}, nil
}

// ReleaseTasks hands tasks back; see TaskService.
func (q *Queues) ReleaseTasks(ctx context.Context, req *v1.ReleaseTasksRequest) (*v1.ReleaseTasksResponse, error) {
	all := req.GetLeaseTokens()
	results, err := ends(ctx, q, req.GetNamespace(), req.GetQueue(), len(all), func(i int) []byte { return all[i] },
		func(peer v1.MatchingServiceServer, h *v1.PartitionHeader, items []int) ([]*v1.ItemResult, error) {
			part := &v1.ReleaseTasksRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue(), LeaseTokens: pick(all, items)}
			resp, err := peer.PartitionReleaseTasks(ctx, &v1.PartitionReleaseTasksRequest{Header: h, Request: part})
			return resp.GetResponse().GetResults(), err
		}, refusedItem, repeatedRelease)
	if err != nil {
		return nil, err
	}
	return &v1.ReleaseTasksResponse{Results: results}, nil
}

// FailTasks ends attempts with an error; see TaskService.
func (q *Queues) FailTasks(ctx context.Context, req *v1.FailTasksRequest) (*v1.FailTasksResponse, error) {
	all := req.GetFailures()
	results, err := ends(ctx, q, req.GetNamespace(), req.GetQueue(), len(all), func(i int) []byte { return all[i].GetLeaseToken() },
		func(peer v1.MatchingServiceServer, h *v1.PartitionHeader, items []int) ([]*v1.FailTasksResponse_Result, error) {
			part := &v1.FailTasksRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Failures: pick(all, items)}
			resp, err := peer.PartitionFailTasks(ctx, &v1.PartitionFailTasksRequest{Header: h, Request: part})
			return resp.GetResponse().GetResults(), err
		}, func(err error) *v1.FailTasksResponse_Result {
			return &v1.FailTasksResponse_Result{Error: reason.Item(err)}
		}, repeatedFail)
	if err != nil {
		return nil, err
	}
	return &v1.FailTasksResponse{Results: results}, nil
}

// ExtendLeases moves deadlines; see TaskService.
func (q *Queues) ExtendLeases(ctx context.Context, req *v1.ExtendLeasesRequest) (*v1.ExtendLeasesResponse, error) {
	all := req.GetExtensions()
	results, err := ends(ctx, q, req.GetNamespace(), req.GetQueue(), len(all), func(i int) []byte { return all[i].GetLeaseToken() },
		func(peer v1.MatchingServiceServer, h *v1.PartitionHeader, items []int) ([]*v1.ExtendLeasesResponse_Result, error) {
			part := &v1.ExtendLeasesRequest{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Extensions: pick(all, items)}
			resp, err := peer.PartitionExtendLeases(ctx, &v1.PartitionExtendLeasesRequest{Header: h, Request: part})
			return resp.GetResponse().GetResults(), err
		}, func(err error) *v1.ExtendLeasesResponse_Result {
			return &v1.ExtendLeasesResponse_Result{Error: reason.Item(err)}
		}, nil)
	if err != nil {
		return nil, err
	}
	return &v1.ExtendLeasesResponse{Results: results}, nil
}

// find runs fn against the partition where a task's id leads to, and against the
// others when it is not there: the number of partitions may have changed since it was
// added.
func (q *Queues) find(ctx context.Context, namespace, queue, task string, fn func(v1.MatchingServiceServer, *v1.PartitionHeader) error) error {
	id, err := parseUUID(task)
	if err != nil {
		return err
	}
	var counts *v1.PartitionCounts
	if q.router == nil {
		counts, err = q.rootCounts(ctx, namespace, queue, true)
	} else {
		var row *v1.StoredQueue
		row, err = q.getQueue(ctx, namespace, queue)
		counts = rowCounts(row)
	}
	if err != nil {
		return err
	}
	first := WritePartition(id, counts.GetWrite())
	for i := range counts.GetRead() {
		n := (first + i) % counts.GetRead()
		err = q.at(ctx, PartitionID{Namespace: namespace, Queue: queue, Number: n}, func(peer v1.MatchingServiceServer) error {
			return fn(peer, &v1.PartitionHeader{Partition: n})
		})
		if reason.Of(err) != reason.TaskNotFound {
			return err
		}
	}
	return err
}

// GetTask looks a task up; see TaskService.
func (q *Queues) GetTask(ctx context.Context, req *v1.GetTaskRequest) (resp *v1.GetTaskResponse, err error) {
	err = q.find(ctx, req.GetNamespace(), req.GetQueue(), req.GetId(), func(peer v1.MatchingServiceServer, h *v1.PartitionHeader) error {
		r, err := peer.PartitionGetTask(ctx, &v1.PartitionGetTaskRequest{Header: h, Request: req})
		resp = r.GetResponse()
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// CancelTask removes a task; see TaskService.
func (q *Queues) CancelTask(ctx context.Context, req *v1.CancelTaskRequest) (resp *v1.CancelTaskResponse, err error) {
	err = q.find(ctx, req.GetNamespace(), req.GetQueue(), req.GetId(), func(peer v1.MatchingServiceServer, h *v1.PartitionHeader) error {
		r, err := peer.PartitionCancelTask(ctx, &v1.PartitionCancelTaskRequest{Header: h, Request: req})
		resp = r.GetResponse()
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}
