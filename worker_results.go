package switchyard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// The most results in one request, and their size.
const (
	maxResultBatch = 1000
	maxResultBytes = 1 << 20
)

// ack is a result on its way to the server.
type ack struct {
	token   []byte
	job     *Job
	failure *v1.FailTasksRequest_Failure // of a failed one
}

// results carries the endings of tasks to the server, in shared requests, while
// the handlers go on with the next tasks.
type results struct {
	worker *Worker
	prefix []byte
	ctx    context.Context

	complete, fail, releases resultQueue
	errors                   atomic.Int64
	running                  group

	mu sync.Mutex
	// open results that the server has not acknowledged.
	open    int
	changed sync.Cond
	waiters int
	closed  bool
}

// resultQueue is one kind of ending.
type resultQueue struct {
	op    string
	share sharer[ack]
	done  atomic.Int64
	// call makes one request; errs has an entry per item, or is nil if none
	// failed.
	call func(ctx context.Context, acks []ack) (errs []error, err error)
	// repeated says whether err, of an item that was sent before, only says that
	// the first request did it.
	repeated func(err error) bool
}

func (r *results) init(w *Worker) {
	r.worker = w
	r.prefix = appendQueuePrefix(nil, w.client.opts.namespace, w.queue)
	r.changed.L = &r.mu
	setUp := func(q *resultQueue, op string, call func(context.Context, []ack) ([]error, error), repeated ...error) {
		q.op, q.call = op, call
		q.repeated = func(err error) bool {
			for _, r := range repeated {
				if errors.Is(err, r) {
					return true
				}
			}
			return false
		}
		q.share = sharer[ack]{
			limits:  shareLimits{tasks: maxResultBatch, bytes: maxResultBytes, requests: 2},
			send:    func(acks []ack) { r.send(q, acks) },
			running: &r.running,
		}
	}
	setUp(&r.complete, "complete", r.callTokens(v1.TaskService_CompleteTasks_FullMethodName), ErrTaskAlreadyCompleted)
	// Once failed or released, the token is one of an older attempt.
	setUp(&r.fail, "fail", r.callFail, ErrLeaseLost, ErrTaskDead)
	setUp(&r.releases, "release", r.callTokens(v1.TaskService_ReleaseTasks_FullMethodName), ErrLeaseLost)
}

// start readies r and returns the function that ends it, whatever is on its way.
func (r *results) start(base context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(base)
	r.ctx = ctx
	return func() {
		r.mu.Lock()
		r.closed = true
		r.changed.Broadcast()
		r.mu.Unlock()
		cancel()
		r.running.Wait()
	}
}

// completed, failed and release take a job's ending. The first two wait while
// too many are on their way.
func (r *results) completed(job *Job) {
	r.take(&r.complete, ack{token: job.token, job: job}, 0, true)
}

func (r *results) failed(job *Job, err error) {
	failure := &v1.FailTasksRequest_Failure{LeaseToken: job.token, Error: cut(err.Error(), maxErrorText)}
	var order *handlerError
	for rest := err; errors.As(rest, &order); rest = order.cause {
		failure.NotRetryable = failure.NotRetryable || order.notRetryable
		if order.delayed && failure.RetryDelay == nil {
			failure.RetryDelay = durationpb.New(order.after)
		}
	}
	r.take(&r.fail, ack{token: job.token, job: job, failure: failure}, len(failure.Error), true)
}

func (r *results) release(job *Job) {
	r.take(&r.releases, ack{token: job.token, job: job}, 0, false)
}

func (r *results) take(q *resultQueue, a ack, bytes int, wait bool) {
	r.mu.Lock()
	for wait && r.open >= r.worker.opts.MaxUnacknowledged && !r.closed {
		r.waiters++
		r.changed.Wait()
		r.waiters--
	}
	closed := r.closed
	if !closed {
		r.open++
	}
	r.mu.Unlock()
	if closed {
		r.lost(q, a, ErrWorkerStopped)
		return
	}
	q.share.submit(a, 1, len(a.token)+bytes, false)
}

func (r *results) acknowledged(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open -= n
	if r.waiters > 0 || r.open == 0 {
		r.changed.Broadcast()
	}
}

func (r *results) unacknowledged() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// flush waits until nothing is on its way, for so long at most.
func (r *results) flush(limit time.Duration) error {
	timer := time.AfterFunc(limit, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.closed = true
		r.changed.Broadcast()
	})
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.open > 0 && !r.closed {
		r.waiters++
		r.changed.Wait()
		r.waiters--
	}
	if r.open > 0 {
		return fmt.Errorf("switchyard: %d results did not reach the server within %v; their tasks will be handed out again", r.open, limit)
	}
	return nil
}

// send carries a batch to the server, again and again until each item is
// accepted, refused, or too old to matter.
func (r *results) send(q *resultQueue, acks []ack) {
	// acks stays as it is, since it belongs to the sharer; left is what is open.
	left := acks
	for try := 1; len(left) > 0; try++ {
		ctx, cancel := context.WithTimeout(r.ctx, r.worker.client.opts.timeout)
		start := time.Now()
		errs, err := q.call(ctx, left)
		took := time.Since(start)
		cancel()

		open := left
		switch {
		case err == nil:
			r.worker.jobs.observe(took)
			left = r.sort(q, left, errs, try)
		case !r.again(err):
			for _, a := range left {
				r.lost(q, a, err)
			}
			left = nil
		case try > 1:
			// When the lease is over the server has given the task to another.
			left = r.young(q, left, err)
		}
		r.acknowledged(len(open) - len(left))
		if len(left) > 0 && !sleep(r.ctx, r.worker.client.opts.backoff.Delay(try, rand.Float64())) {
			for _, a := range left {
				r.lost(q, a, ErrWorkerStopped)
			}
			r.acknowledged(len(left))
			return
		}
	}
}

// again says whether a request that failed as a whole is to be sent again.
func (r *results) again(err error) bool {
	return r.ctx.Err() == nil && r.worker.client.ctx.Err() == nil &&
		(transient(err) || status.Code(err) == codes.DeadlineExceeded)
}

// sort takes the results of single items and returns those to send again.
func (r *results) sort(q *resultQueue, acks []ack, errs []error, try int) (again []ack) {
	done := len(acks)
	for i, err := range errs { // nil if all is well
		switch {
		case err == nil, try > 1 && q.repeated(err):
			continue
		case transient(err) && (try == 1 || time.Now().Before(acks[i].job.deadline)):
			again = append(again, acks[i])
		default:
			r.lost(q, acks[i], err)
		}
		done--
	}
	q.done.Add(int64(done))
	return again
}

func (r *results) young(q *resultQueue, acks []ack, err error) (young []ack) {
	now := time.Now()
	for _, a := range acks {
		if now.Before(a.job.deadline) {
			young = append(young, a)
		} else {
			r.lost(q, a, err)
		}
	}
	return young
}

// lost counts a result that the server will not take.
func (r *results) lost(q *resultQueue, a ack, err error) {
	r.errors.Add(1)
	if errors.Is(err, ErrLeaseLost) {
		r.worker.leasesLost.Add(1)
	}
	r.worker.report(q.op, a.job, err)
}

// callTokens is the call of a method that takes nothing but lease tokens.
func (r *results) callTokens(method string) func(context.Context, []ack) ([]error, error) {
	return func(ctx context.Context, acks []ack) ([]error, error) {
		response := itemsResponse{want: len(acks)}
		err := r.worker.client.hot.Invoke(ctx, method, &tokensRequest{r.prefix, acks}, &response)
		return response.errs, err
	}
}

func (r *results) callFail(ctx context.Context, acks []ack) ([]error, error) {
	request := &v1.FailTasksRequest{
		Namespace: r.worker.client.opts.namespace,
		Queue:     r.worker.queue,
		Failures:  make([]*v1.FailTasksRequest_Failure, len(acks)),
	}
	for i := range acks {
		request.Failures[i] = acks[i].failure
	}
	response, err := r.worker.client.tasks.FailTasks(ctx, request)
	if err != nil {
		return nil, err
	}
	if len(response.GetResults()) != len(acks) {
		return nil, errResultCount
	}
	errs := make([]error, len(acks))
	for i, result := range response.Results {
		errs[i] = reason.FromItem(result.GetError())
	}
	return errs, nil
}
