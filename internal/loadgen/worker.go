package loadgen

import (
	"context"
	"fmt"
	"time"

	"github.com/switchyard-dev/switchyard"
)

// worker runs the SDK's worker until it is ended.
type worker struct {
	run    *Run
	worker *switchyard.Worker
	// ctx ends with the run's context, or when the worker fails.
	ctx   context.Context
	stop  context.CancelFunc
	ended chan struct{}
}

func (r *Run) startWorker(parent context.Context) *worker {
	w := &worker{run: r, ended: make(chan struct{})}
	w.ctx, w.stop = context.WithCancel(parent)
	w.worker = switchyard.NewWorker(r.client, r.queue, switchyard.HandlerFunc(r.handle), switchyard.WorkerOptions{
		Concurrency: r.opts.Concurrency,
		LeaseTime:   leaseTime,
		OnError:     func(e switchyard.TaskError) { r.fail(e, w.stop) },
	})
	r.worker.Store(w.worker)
	go func() {
		defer close(w.ended)
		if err := w.worker.Run(w.ctx); err != nil {
			r.fail(err, w.stop)
		}
	}()
	return w
}

// waitFor waits until n tasks were completed, as acknowledged by the server. It
// gives up when nothing is completed for a while.
func (w *worker) waitFor(ctx context.Context, n int64) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	last, since := int64(-1), time.Now()
	for {
		done := w.run.Completed()
		if done >= n {
			return
		}
		if done != last {
			last, since = done, time.Now()
		} else if time.Since(since) > stallTimeout {
			w.run.fail(fmt.Errorf("%d of %d tasks were completed and no more came for %v", done, n, stallTimeout), w.stop)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-w.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// end stops the worker and waits for it.
func (w *worker) end() {
	w.stop()
	<-w.ended
}
