package switchyard

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// poll fetches tasks until the worker stops. Several of these run at once.
func (w *Worker) poll(ctx context.Context) {
	misses := 0
	for {
		n := w.jobs.reserve()
		if n == 0 {
			return
		}
		start := time.Now()
		jobs, err := w.fetch(ctx, n)
		if !w.jobs.deliver(n, jobs, time.Now()) {
			for i := range jobs {
				w.results.release(&jobs[i])
			}
			return
		}
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil:
			w.pollErrors.Add(1)
			if final(err) || w.client.ctx.Err() != nil {
				w.fail(err)
				return
			}
			if misses++; misses == 1 {
				w.log.Warn("cannot poll; trying again", "error", err)
			}
		case len(jobs) == 0 && time.Since(start) < w.opts.PollWait/2:
			// The server did not wait: it is stopping, say. Do not storm it.
			misses++
		default:
			misses = 0
		}
		if misses > 0 && !sleep(ctx, w.client.opts.backoff.Delay(misses, rand.Float64())) {
			return
		}
	}
}

// fail makes Run end with err.
func (w *Worker) fail(err error) {
	if w.client.ctx.Err() != nil {
		err = ErrClientClosed
	}
	select {
	case w.fatal <- callError(context.Background(), "poll queue", quote(w.queue), err):
	default: // another poll was first
	}
}

// final says whether polling again can only fail again.
func final(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated,
		codes.Unimplemented, codes.FailedPrecondition:
		return true
	}
	return false
}

// pollGrace is how long after its wait a poll is given up. The server ends it
// itself; this is for one that does not.
const pollGrace = 10 * time.Second

// fetch makes one poll.
func (w *Worker) fetch(ctx context.Context, n int) ([]Job, error) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.PollWait+pollGrace)
	defer cancel()
	request := &v1.PollTasksRequest{
		Namespace: w.client.opts.namespace,
		Queue:     w.queue,
		Identity:  w.opts.Identity,
		MaxTasks:  int32(n),
		Wait:      durationpb.New(w.opts.PollWait),
		LeaseTime: durationProto(w.opts.LeaseTime),

		StickyWorker: w.opts.Sticky,
	}
	response := pollResponse{now: time.Now}
	err := w.client.hot.Invoke(ctx, v1.TaskService_PollTasks_FullMethodName, request, &response)
	if err != nil {
		return nil, err
	}
	w.fetched.Add(int64(len(response.jobs)))
	received := time.Now()
	for i := range response.jobs {
		job := &response.jobs[i]
		job.Queue = w.queue
		job.deadline = received.Add(response.left[i])
		if job.lease = w.opts.LeaseTime; job.lease == 0 {
			job.lease = max(response.left[i], time.Millisecond)
		}
		w.noteLease(job.lease)
	}
	return response.jobs, nil
}
