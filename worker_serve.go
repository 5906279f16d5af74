package switchyard

import (
	"context"
	"errors"
	"sync"
	"time"
)

// seat is the place of one handler: what runs there, for the keeper of leases.
type seat struct {
	mu     sync.Mutex
	job    *Job // nil between two jobs
	cancel context.CancelCauseFunc
	// extendAt is when the lease is to be extended; extending: that is on its
	// way.
	extendAt  time.Time
	extending bool
	// lost: the server said that the lease is gone.
	lost bool
}

// serve runs tasks, one after the other, until the worker stops. finished says
// that the seat's last task ended its goroutine.
func (w *Worker) serve(s *seat, finished bool) {
	var running *Job
	defer func() {
		if running == nil {
			w.handlers.Done()
			return
		}
		// The handler called runtime.Goexit, as testing's FailNow does. Its
		// goroutine is lost, the seat is not.
		w.settle(s, running, errGoexit)
		go w.serve(s, true)
	}()
	for {
		job := w.jobs.next(finished, w.late)
		if job == nil {
			return
		}
		ctx := w.begin(s, job)
		running = job
		err := w.call(ctx, job)
		running = nil
		w.settle(s, job, err)
		finished = true
	}
}

// begin seats a job.
func (w *Worker) begin(s *seat, job *Job) context.Context {
	ctx, cancel := context.WithCancelCause(w.jobsCtx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.job, s.cancel = job, cancel
	s.extendAt = job.deadline.Add(-job.lease * 2 / 3)
	s.extending, s.lost = false, false
	return ctx
}

// call runs the handler.
func (w *Worker) call(ctx context.Context, job *Job) (err error) {
	defer func() {
		if value := recover(); value != nil {
			w.panics.Add(1)
			err = newPanicError(value)
		}
	}()
	err = w.handler.HandleTask(ctx, job)
	var panicked *PanicError
	if err != nil && errors.As(err, &panicked) { // by the Recover middleware
		w.panics.Add(1)
	}
	return err
}

// settle frees the seat and sends the result on its way.
func (w *Worker) settle(s *seat, job *Job, err error) {
	s.mu.Lock()
	cancel, lost := s.cancel, s.lost
	s.job, s.cancel = nil, nil
	s.mu.Unlock()
	cancel(context.Canceled)
	switch {
	case lost:
		// Somebody else has the task, or it is gone.
	case err == nil:
		w.results.completed(job)
	case errors.Is(err, ErrRelease), w.interrupted(err):
		w.results.release(job)
	default:
		w.results.failed(job, err)
	}
}

// interrupted says whether a handler failed only because the worker stopped: its
// attempt does not count.
func (w *Worker) interrupted(err error) bool {
	return w.jobsCtx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, ErrWorkerStopped))
}

// late is called for a task that waited too long to start.
func (w *Worker) late(job *Job) {
	if time.Until(job.deadline) > 0 {
		w.results.release(job)
		return
	}
	w.leasesLost.Add(1)
}
