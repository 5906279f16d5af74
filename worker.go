package switchyard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// WorkerOptions are a worker's settings. Fields left at zero take the default.
type WorkerOptions struct {
	// Concurrency is how many handlers run at once; default 10 per CPU that the
	// process may use (GOMAXPROCS).
	Concurrency int
	// LeaseTime is how long the worker holds a task without a word; 100 ms to
	// 12 h. The worker extends leases by itself, so it bounds how long a task
	// waits when the worker dies, not how long a handler may take. Default: each
	// task's own lease time.
	LeaseTime time.Duration
	// Polls is how many polls wait at the server at once; default 2.
	Polls int
	// PollWait is how long a poll waits for a task; default 20 s, 60 s at most.
	PollWait time.Duration
	// Prefetch is the most tasks that wait in the worker for a handler. By
	// default the worker fetches what it works off within two round trips, at
	// most 32 per handler and 1000 in all, so that slow handlers keep nothing from
	// other workers. Negative: none.
	Prefetch int
	// MaxUnacknowledged is how many results (completions, failures) may be on
	// their way to the server; then handlers wait. Default: 10,000.
	MaxUnacknowledged int
	// StopTimeout is how long running handlers may go on when Run's context has
	// ended; default 30 s. Their contexts are cancelled then.
	StopTimeout time.Duration
	// CancelTimeout is how long Run waits for handlers whose context was
	// cancelled; default 5 s. Then it returns without them.
	CancelTimeout time.Duration
	// FlushTimeout is how long Run waits at the end for the server to take the
	// last results; default 5 s.
	FlushTimeout time.Duration
	// Middleware goes around the handler, the first one outermost.
	Middleware []Middleware
	// OnError is told of every result that the server did not take, and of every
	// lost lease. It is called from the worker's own goroutines, from several at
	// once, and must return quickly.
	OnError func(TaskError)
	// Logger is where the worker logs; default: the client's logger.
	Logger *slog.Logger
	// Identity is the name of this poller; default: the client's identity.
	Identity string
	// Sticky makes the worker poll its own, sticky queue of this name beside the
	// queue, and nothing else; see Client.AddSticky. A worker that wants both runs
	// two.
	Sticky string
}

// TaskError tells of something that went wrong between a worker and the server.
type TaskError struct {
	// Op is "complete", "fail", "release" or "extend".
	Op string
	// Job is the attempt that it is about; it must not be changed.
	Job *Job
	Err error
}

// Error names the task and what went wrong.
func (e TaskError) Error() string {
	return fmt.Sprintf("%s task %s of kind %q: %v", e.Op, e.Job.ID, e.Job.Kind, e.Err)
}

// Unwrap returns Err.
func (e TaskError) Unwrap() error { return e.Err }

func (o WorkerOptions) withDefaults(c *Client) WorkerOptions {
	setDefault(&o.Concurrency, 10*runtime.GOMAXPROCS(0))
	setDefault(&o.Polls, 2)
	setDefault(&o.PollWait, 20*time.Second)
	setDefault(&o.MaxUnacknowledged, 10_000)
	setDefault(&o.StopTimeout, 30*time.Second)
	setDefault(&o.CancelTimeout, 5*time.Second)
	setDefault(&o.FlushTimeout, 5*time.Second)
	setDefault(&o.Identity, c.opts.identity)
	if o.Logger == nil {
		o.Logger = c.opts.logger
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *WorkerOptions) check() error {
	for _, field := range []struct {
		name       string
		value, min int64
	}{
		{"Concurrency", int64(o.Concurrency), 1},
		{"LeaseTime", int64(o.LeaseTime), 0},
		{"Polls", int64(o.Polls), 1},
		{"PollWait", int64(o.PollWait), 1},
		{"MaxUnacknowledged", int64(o.MaxUnacknowledged), 1},
		{"StopTimeout", int64(o.StopTimeout), 0},
		{"CancelTimeout", int64(o.CancelTimeout), 0},
		{"FlushTimeout", int64(o.FlushTimeout), 0},
	} {
		if field.value < field.min {
			return fmt.Errorf("switchyard: WorkerOptions.%s is %d; it must be at least %d", field.name, field.value, field.min)
		}
	}
	return nil
}

// WorkerStats are a worker's numbers: the first group at the moment, the others
// since Run began.
type WorkerStats struct {
	// Running handlers, Waiting tasks that were fetched and not started, Polls
	// that wait at the server, Unacknowledged results on their way to it.
	Running, Waiting, Polls, Unacknowledged int

	// Fetched tasks.
	Fetched int64
	// Completed tasks, as acknowledged by the server. Failed and Released
	// likewise.
	Completed, Failed, Released int64
	// Panics of handlers; each is a failure too.
	Panics int64
	// LeasesLost while the task was running or waiting.
	LeasesLost int64
	// Errors counts results that the server did not take; see OnError.
	Errors int64
	// PollErrors counts polls that failed.
	PollErrors int64
}

// Worker polls one queue and runs a handler for each task.
type Worker struct {
	client  *Client
	queue   string
	handler Handler
	opts    WorkerOptions
	optsErr error
	log     *slog.Logger
	started atomic.Bool

	jobs    dispatch
	seats   []seat
	results results
	// jobsCtx is the parent of the handlers' contexts.
	jobsCtx  context.Context
	stopJobs context.CancelCauseFunc
	handlers sync.WaitGroup
	now      chan struct{} // closed by StopNow
	stopOnce sync.Once
	// fatal gets the error that ends Run.
	fatal chan error
	// shorter pokes the keeper when leases became shorter.
	shorter  chan struct{}
	minLease atomic.Int64

	fetched, panics, leasesLost, pollErrors atomic.Int64
}

// NewWorker returns a worker of a queue. It does nothing until Run is called.
// The handler is usually a *Mux.
func NewWorker(client *Client, queue string, handler Handler, opts WorkerOptions) *Worker {
	opts = opts.withDefaults(client)
	w := &Worker{
		client:  client,
		queue:   queue,
		handler: wrap(handler, opts.Middleware),
		opts:    opts,
		optsErr: opts.check(),
		log:     opts.Logger.With("queue", queue),
		now:     make(chan struct{}),
		fatal:   make(chan error, 1),
		shorter: make(chan struct{}, 1),
	}
	w.jobs.init(opts)
	w.results.init(w)
	return w
}

// Run works until ctx ends, then stops: it polls no more, hands back the tasks
// that did not start, lets running handlers end within StopTimeout and cancels
// their contexts then, and waits until the server has all results. After a stop
// in which nothing was left behind it returns nil.
//
// It ends by itself, with an error, when polling can never succeed: the queue
// does not exist, or the server refuses the caller. Everything that may pass
// (no connection, an overloaded server) is waited out.
//
// Run may be called once.
func (w *Worker) Run(ctx context.Context) error {
	if w.optsErr != nil {
		return w.optsErr
	}
	if !w.started.CompareAndSwap(false, true) {
		return errors.New("switchyard: Worker.Run was called twice")
	}
	// A stop is in steps, so none of the parts ends with ctx itself.
	base := context.WithoutCancel(ctx)
	w.jobsCtx, w.stopJobs = context.WithCancelCause(base)
	defer w.stopJobs(ErrWorkerStopped)
	pollCtx, stopPolls := context.WithCancel(base)
	defer stopPolls()
	stopResults := w.results.start(base)
	defer stopResults()
	stopKeeper := w.startKeeper()
	defer stopKeeper()

	w.seats = make([]seat, w.opts.Concurrency)
	for i := range w.seats {
		w.handlers.Add(1)
		go w.serve(&w.seats[i], false)
	}
	var pollers sync.WaitGroup
	for range w.opts.Polls {
		pollers.Go(func() { w.poll(pollCtx) })
	}

	var fatal error
	select {
	case <-ctx.Done():
	case <-w.now:
	case fatal = <-w.fatal:
	}

	w.jobs.stop()
	stopPolls()
	pollers.Wait()
	for _, job := range w.jobs.drain() {
		w.results.release(job)
	}
	left := w.awaitHandlers()
	lost := w.results.flush(w.opts.FlushTimeout)
	return errors.Join(fatal, left, lost)
}

// StopNow makes Run stop without the stop timeout: the contexts of running
// handlers are cancelled at once. It does not wait. Safe to call at any time
// and more than once.
func (w *Worker) StopNow() { w.stopOnce.Do(func() { close(w.now) }) }

// awaitHandlers waits for running handlers, first patiently and then with their
// contexts cancelled.
func (w *Worker) awaitHandlers() error {
	done := make(chan struct{})
	go func() {
		w.handlers.Wait()
		close(done)
	}()
	timer := time.NewTimer(w.opts.StopTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
	case <-w.now:
	}
	w.stopJobs(ErrWorkerStopped)
	timer.Reset(w.opts.CancelTimeout)
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	return fmt.Errorf("switchyard: %d handlers are still running %v after their context was cancelled; their tasks go to other workers when the leases end",
		w.jobs.numbers().running, w.opts.CancelTimeout)
}

// Stats returns the worker's numbers. Safe for concurrent use.
func (w *Worker) Stats() WorkerStats {
	n := w.jobs.numbers()
	return WorkerStats{
		Running:        n.running,
		Waiting:        n.waiting,
		Polls:          n.polls,
		Unacknowledged: w.results.unacknowledged(),
		Fetched:        w.fetched.Load(),
		Completed:      w.results.complete.done.Load(),
		Failed:         w.results.fail.done.Load(),
		Released:       w.results.releases.done.Load(),
		Panics:         w.panics.Load(),
		LeasesLost:     w.leasesLost.Load(),
		Errors:         w.results.errors.Load(),
		PollErrors:     w.pollErrors.Load(),
	}
}

// report tells the hook and the log of something that went wrong with a job.
func (w *Worker) report(op string, job *Job, err error) {
	if w.opts.OnError != nil {
		w.opts.OnError(TaskError{Op: op, Job: job, Err: err})
		return
	}
	text := "the server did not take a task's result"
	if op == "extend" {
		text = "a task's lease is lost"
	}
	w.log.Warn(text, "op", op, "id", job.ID, "kind", job.Kind, "error", err)
}
