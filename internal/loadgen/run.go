package loadgen

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

const (
	// callTimeout bounds one call to the server.
	callTimeout = 30 * time.Second
	// stallTimeout is how long a worker may see no task while some are missing.
	stallTimeout = 60 * time.Second // a lost lease takes 30 s
	// leaseTime of the tasks: longer than any stall, so that what is slow does
	// not come twice.
	leaseTime = 5 * time.Minute
	// grace is how long calls that are on their way may go on after an interrupt.
	grace = 2 * time.Second
	// fillers is how many batches are on their way while Drain fills its queue.
	fillers = 4
)

// Run is one run of a scenario. The exported methods may be called while it
// runs.
type Run struct {
	opts   Options
	client *switchyard.Client
	queue  string
	base   time.Time

	// calls is the context of calls: it outlives an interrupt for the grace.
	calls context.Context

	phase           atomic.Pointer[string]
	issued          atomic.Int64
	added           atomic.Int64
	redelivered     atomic.Int64
	worker          atomic.Pointer[switchyard.Worker]
	seen            seenSet
	addLatency      Histogram
	deliveryLatency Histogram

	mu  sync.Mutex
	err error
}

// New prepares a run; options that make no sense are an error.
func New(client *switchyard.Client, opts Options) (*Run, error) {
	opts, err := opts.WithDefaults()
	if err != nil {
		return nil, err
	}
	r := &Run{
		opts: opts, client: client, base: time.Now(),
		queue: fmt.Sprintf("bench-%s-%08x", opts.Scenario, rand.Uint32()),
	}
	r.setPhase("starting")
	return r, nil
}

// Queue returns the name of the queue that the run makes and removes.
func (r *Run) Queue() string { return r.queue }

// Phase says in a word or two what the run is doing.
func (r *Run) Phase() string { return *r.phase.Load() }

func (r *Run) setPhase(s string) { r.phase.Store(&s) }

// Added returns how many tasks the server has acknowledged so far.
func (r *Run) Added() int64 { return r.added.Load() }

// Completed returns how many completions the server has acknowledged so far.
func (r *Run) Completed() int64 {
	if w := r.worker.Load(); w != nil {
		return w.Stats().Completed
	}
	return 0
}

// Latency returns the quantiles that a live line shows: of the delivery where
// there is a worker, of the add elsewhere.
func (r *Run) Latency() Quantiles {
	if r.opts.Scenario == Mixed || r.opts.Scenario == Latency {
		return r.deliveryLatency.Quantiles()
	}
	return r.addLatency.Quantiles()
}

// Start carries the run out. It ends early, with a report of what was measured,
// when ctx ends. The queue is removed in any case.
func (r *Run) Start(ctx context.Context) (_ *Report, err error) {
	var endCalls context.CancelFunc
	r.calls, endCalls = context.WithCancel(context.WithoutCancel(ctx))
	defer endCalls()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, endCalls) })()
	call, cancel := context.WithTimeout(r.calls, callTimeout)
	_, err = r.client.QueueService().CreateQueue(call, &v1.CreateQueueRequest{Namespace: r.client.Namespace(), Queue: r.queue})
	cancel()
	if err != nil {
		return nil, err
	}
	defer func() {
		r.setPhase("removing the queue")
		wait := callTimeout
		if ctx.Err() != nil {
			wait = grace
		}
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
		defer cancel()
		_, deleteErr := r.client.QueueService().DeleteQueue(call, &v1.DeleteQueueRequest{Namespace: r.client.Namespace(), Queue: r.queue, Force: true})
		if err == nil && deleteErr != nil {
			err = fmt.Errorf("removing the queue: %w", deleteErr)
		}
	}()
	report := &Report{Options: r.opts}
	switch r.opts.Scenario {
	case Add, Batch:
		r.runAdd(ctx, report)
	case Drain:
		r.runDrain(ctx, report)
	case Mixed, Latency:
		r.runTogether(ctx, report)
	}
	report.Added, report.Completed, report.Redelivered = r.Added(), r.Completed(), r.redelivered.Load()
	report.Add, report.Delivery = r.addLatency.Quantiles(), r.deliveryLatency.Quantiles()
	report.Interrupted = ctx.Err() != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	return report, r.err
}

// fail keeps the first error; stop ends what goes on.
func (r *Run) fail(err error, stop context.CancelFunc) {
	r.mu.Lock()
	if r.err == nil {
		r.err = err
	}
	r.mu.Unlock()
	stop()
}

// runAdd measures adding alone.
func (r *Run) runAdd(ctx context.Context, report *Report) {
	r.setPhase("adding")
	report.Seconds = r.add(ctx, r.opts.Duration, r.opts.Concurrency, r.opts.Scenario == Batch).Seconds()
	report.Tasks = r.added.Load()
}

// add lets n goroutines add until the duration is over (0: no limit), Count
// tasks were added, or ctx ends. It returns how long that took.
func (r *Run) add(ctx context.Context, duration time.Duration, n int, batches bool) time.Duration {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if duration > 0 {
		defer time.AfterFunc(duration, stop).Stop()
	}
	start := time.Now()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			var err error
			if batches {
				err = r.addBatches(ctx)
			} else {
				err = r.addSingles(ctx)
			}
			if err != nil {
				r.fail(err, stop)
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// addSingles adds one task after the other. Calls on their way when ctx ends
// are let finish.
func (r *Run) addSingles(ctx context.Context) error {
	payload := r.newPayload()
	for ctx.Err() == nil {
		number := r.issued.Add(1)
		if number > r.opts.Count {
			return nil
		}
		if err := r.addOne(payload, number); err != nil {
			return err
		}
	}
	return nil
}

func (r *Run) addOne(payload []byte, number int64) error {
	call, cancel := context.WithTimeout(r.calls, callTimeout)
	defer cancel()
	r.stamp(payload, number)
	start := time.Now()
	if _, err := r.client.Add(call, r.queue, switchyard.Task{Kind: "bench", Payload: payload}); err != nil {
		return err
	}
	r.addLatency.Record(time.Since(start))
	r.added.Add(1)
	return nil
}

func (r *Run) addBatches(ctx context.Context) error {
	tasks := make([]switchyard.Task, r.opts.Batch)
	for i := range tasks {
		tasks[i] = switchyard.Task{Kind: "bench", Payload: r.newPayload()}
	}
	for ctx.Err() == nil {
		last := r.issued.Add(int64(len(tasks)))
		first := last - int64(len(tasks)) + 1
		if first > r.opts.Count {
			return nil
		}
		batch := tasks[:min(int64(len(tasks)), r.opts.Count-first+1)]
		for i := range batch {
			r.stamp(batch[i].Payload, first+int64(i))
		}
		call, cancel := context.WithTimeout(r.calls, callTimeout)
		start := time.Now()
		_, err := r.client.AddMany(call, r.queue, batch)
		cancel()
		if err != nil {
			return err
		}
		if r.opts.Scenario == Batch {
			r.addLatency.Record(time.Since(start))
		}
		r.added.Add(int64(len(batch)))
	}
	return nil
}

// runDrain fills the queue, then measures how fast it is worked off.
func (r *Run) runDrain(ctx context.Context, report *Report) {
	r.setPhase("filling")
	r.add(ctx, 0, fillers, true)
	if ctx.Err() != nil || r.failed() {
		return
	}
	r.setPhase("draining")
	start := time.Now()
	w := r.startWorker(ctx)
	defer w.end()
	w.waitFor(ctx, r.added.Load())
	report.Seconds = time.Since(start).Seconds()
	report.Tasks = r.Completed()
}

// runTogether lets tasks be added and worked off at the same time.
func (r *Run) runTogether(ctx context.Context, report *Report) {
	r.setPhase("adding and working")
	start := time.Now()
	w := r.startWorker(ctx)
	defer w.end()
	if r.opts.Scenario == Latency {
		r.pace(w.ctx)
	} else {
		r.add(w.ctx, r.opts.Duration, r.opts.Concurrency, false)
	}
	// What is measured ends with the adding; what is still there is worked off
	// to see that nothing is missing.
	report.Tasks = r.Completed()
	report.Seconds = time.Since(start).Seconds()
	if !r.failed() {
		r.setPhase("working off the rest")
		w.waitFor(ctx, r.added.Load())
	}
}

// pace adds tasks at a steady rate. A task whose time has come does not wait for
// the one before it, unless as many as Concurrency are on their way.
func (r *Run) pace(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, r.opts.Duration)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	payloads := make(chan []byte, r.opts.Concurrency)
	for range r.opts.Concurrency {
		payloads <- r.newPayload()
	}
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for number := int64(1); number <= r.opts.Count; number++ {
		due := start.Add(time.Duration(float64(number) / r.opts.Rate * float64(time.Second)))
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			return
		case payload := <-payloads:
			r.issued.Store(number)
			wg.Go(func() {
				if err := r.addOne(payload, number); err != nil {
					r.fail(err, stop)
				}
				payloads <- payload
			})
		}
	}
}

func (r *Run) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err != nil
}

// Every payload begins with the time since base and the task's number.

func (r *Run) newPayload() []byte {
	p := make([]byte, r.opts.PayloadBytes)
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], rand.Uint64())
	_, _ = rand.NewChaCha8(seed).Read(p) // it never fails
	return p
}

func (r *Run) stamp(payload []byte, number int64) {
	binary.LittleEndian.PutUint64(payload[8:], uint64(number))
	binary.LittleEndian.PutUint64(payload, uint64(time.Since(r.base)))
}

var errForeign = errors.New("a task that this run did not add")

// handle is the worker's handler.
func (r *Run) handle(_ context.Context, job *switchyard.Job) error {
	if len(job.Payload) < MinPayloadBytes {
		return switchyard.NotRetryable(errForeign)
	}
	sent, number := binary.LittleEndian.Uint64(job.Payload), binary.LittleEndian.Uint64(job.Payload[8:])
	if number == 0 || number > uint64(r.issued.Load()) {
		return switchyard.NotRetryable(errForeign)
	}
	if r.opts.Scenario != Drain {
		r.deliveryLatency.Record(time.Since(r.base) - time.Duration(sent))
	}
	if !r.seen.add(number) {
		r.redelivered.Add(1)
	}
	return nil
}
