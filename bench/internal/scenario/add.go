package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

func serialAdd(ctx context.Context, r *run) (Result, error) {
	a, err := r.q.Adder(ctx)
	if err != nil {
		return Result{}, err
	}
	defer a.Close()
	took := make([]time.Duration, 0, 1<<17)
	start := time.Now()
	for now := start; now.Sub(start) < r.o.Duration; {
		if err := a.Add(ctx, r.l.Payload()); err != nil {
			return Result{}, err
		}
		end := time.Now()
		took = append(took, end.Sub(now))
		now = end
	}
	result := Result{Tasks: int64(len(took)), Seconds: time.Since(start).Seconds(), Syncs: r.sync.count() - r.startSyncs}
	sortDurations(took)
	result.P50, result.P99 = quantile(took, 0.50), quantile(took, 0.99)
	result.Rate = float64(result.Tasks) / result.Seconds
	return result, r.checkWaiting(ctx, result.Tasks)
}

func concurrentAdd(ctx context.Context, r *run) (Result, error) {
	start := time.Now()
	added, took, err := r.add(ctx, start.Add(r.o.Duration))
	result := Result{Tasks: added, Seconds: took.Seconds(), Syncs: r.sync.count() - r.startSyncs}
	if err != nil {
		return result, err
	}
	result.Rate = float64(added) / result.Seconds
	return result, r.checkWaiting(ctx, added)
}

func batchAdd(ctx context.Context, r *run) (Result, error) {
	a, err := r.q.Adder(ctx)
	if err != nil {
		return Result{}, err
	}
	defer a.Close()
	start := time.Now()
	var n int64
	for time.Since(start) < r.o.Duration {
		if err := a.AddBatch(ctx, r.l.Batch(r.o.Batch)); err != nil {
			return Result{}, err
		}
		n += int64(r.o.Batch)
	}
	result := Result{Tasks: n, Seconds: time.Since(start).Seconds(), Syncs: r.sync.count() - r.startSyncs}
	result.Rate = float64(n) / result.Seconds
	return result, r.checkWaiting(ctx, n)
}

// add runs the adders until a moment and returns how many adds were acknowledged
// and the time that the adders took, their start left out.
func (r *run) add(ctx context.Context, until time.Time) (int64, time.Duration, error) {
	var (
		wg     sync.WaitGroup
		total  atomic.Int64
		errs   = make([]error, r.o.Adders)
		ready  sync.WaitGroup
		begin  = make(chan struct{})
		length = time.Until(until)
		end    time.Time
	)
	ready.Add(r.o.Adders)
	for i := range r.o.Adders {
		wg.Go(func() {
			a, err := r.q.Adder(ctx)
			ready.Done()
			if err != nil {
				errs[i] = err
				return
			}
			defer a.Close()
			<-begin
			for time.Now().Before(end) {
				if err := a.Add(ctx, r.l.Payload()); err != nil {
					errs[i] = err
					return
				}
				total.Add(1)
			}
		})
	}
	ready.Wait()
	start := time.Now()
	end = start.Add(length)
	close(begin)
	wg.Wait()
	return total.Load(), time.Since(start), errors.Join(errs...)
}

// checkWaiting checks that all that was acknowledged waits in the queue.
func (r *run) checkWaiting(ctx context.Context, added int64) error {
	var remaining int64
	// Some systems count a moment later.
	for end := time.Now().Add(10 * time.Second); ; {
		var err error
		if remaining, err = r.q.Remaining(ctx); err != nil {
			return fmt.Errorf("count what waits: %w", err)
		}
		if remaining >= added || time.Now().After(end) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return r.l.Check(added, remaining)
}
