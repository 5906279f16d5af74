package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard/bench/internal/system"
)

func (r *run) handle(p []byte) { r.l.Handle(p) }

var errCut = errors.New("not drained in time")

// drained waits until all tasks were handled and the system holds none, or the
// time is over (errCut).
func (r *run) drained(ctx context.Context, workers system.Workers, tasks int64, limit time.Time) error {
	for r.l.Handled() < tasks {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Now().After(limit) {
			if _, err := workers.Completed(ctx); err != nil {
				return err
			}
			return errCut
		}
		time.Sleep(2 * time.Millisecond)
	}
	for {
		completed, err := workers.Completed(ctx)
		if err != nil {
			return err
		}
		if completed >= tasks {
			remaining, err := r.q.Remaining(ctx)
			if err != nil {
				return err
			}
			if remaining == 0 {
				return nil
			}
		}
		if time.Now().After(limit) {
			return errCut
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func drain(ctx context.Context, r *run) (Result, error) {
	a, err := r.q.Adder(ctx)
	if err != nil {
		return Result{}, err
	}
	r.sync.slow(false)
	for left := r.o.Drain; left > 0; {
		n := min(left, r.o.Batch)
		if err := a.AddBatch(ctx, r.l.Batch(n)); err != nil {
			return Result{}, fmt.Errorf("fill: %w", err)
		}
		left -= n
	}
	if err := a.Close(); err != nil {
		return Result{}, err
	}
	tasks := int64(r.o.Drain)
	if err := r.checkWaiting(ctx, tasks); err != nil {
		return Result{}, fmt.Errorf("fill: %w", err)
	}
	r.sync.slow(true)
	r.startSyncs = r.sync.count()
	start := time.Now()
	workers, err := r.q.Work(ctx, r.o.Workers, r.handle)
	if err != nil {
		return Result{}, err
	}
	err = r.drained(ctx, workers, tasks, start.Add(r.o.DrainLimit))
	result := Result{Tasks: tasks, Seconds: time.Since(start).Seconds(), Syncs: r.sync.count() - r.startSyncs}
	if errors.Is(err, errCut) {
		if result.Tasks, err = workers.Completed(ctx); err == nil {
			result.Note = fmt.Sprintf("cut after %v", r.o.DrainLimit)
			r.sync.slow(false)
		}
	}
	result.Rate = float64(result.Tasks) / result.Seconds
	if stopErr := workers.Stop(ctx); err == nil {
		err = stopErr
	}
	if err != nil {
		return result, err
	}
	return result, r.checkRest(ctx, tasks)
}

// checkRest checks, when the workers stopped, that what was not handled is still
// in the queue.
func (r *run) checkRest(ctx context.Context, added int64) error {
	var err error
	for end := time.Now().Add(10 * time.Second); ; {
		var remaining int64
		if remaining, err = r.q.Remaining(ctx); err != nil {
			return fmt.Errorf("count what remains: %w", err)
		}
		if err = r.l.Check(added, remaining); err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// together lets adders add for the duration while workers work, and ends when all
// that was added is completed. So neither adders that starve the workers nor
// workers that starve the adders make a system look fast.
func together(ctx context.Context, r *run) (Result, error) {
	workers, err := r.q.Work(ctx, r.o.Workers, r.handle)
	if err != nil {
		return Result{}, err
	}
	start := time.Now()
	added, took, addErr := r.add(ctx, start.Add(r.o.Duration))
	result := Result{Tasks: added, AddRate: float64(added) / took.Seconds()}
	during, err := workers.Completed(ctx)
	result.CompletedWhileAdding = float64(during) / took.Seconds()
	if err = errors.Join(addErr, err); err == nil {
		err = r.drained(ctx, workers, added, start.Add(r.o.DrainLimit))
	}
	result.Seconds, result.Syncs = time.Since(start).Seconds(), r.sync.count()-r.startSyncs
	if errors.Is(err, errCut) {
		if result.Tasks, err = workers.Completed(ctx); err == nil {
			result.Note = fmt.Sprintf("cut after %v", r.o.DrainLimit)
			r.sync.slow(false)
		}
	}
	result.Rate = float64(result.Tasks) / result.Seconds
	if stopErr := workers.Stop(ctx); err == nil {
		err = stopErr
	}
	if err != nil {
		return result, err
	}
	return result, r.checkRest(ctx, added)
}

func addToHandler(ctx context.Context, r *run) (Result, error) {
	const lead = time.Second // not measured
	var (
		mu      sync.Mutex
		ages    []time.Duration
		measure atomic.Bool
	)
	workers, err := r.q.Work(ctx, r.o.Workers, func(p []byte) {
		age, ok := r.l.Handle(p)
		if ok && measure.Load() {
			mu.Lock()
			ages = append(ages, age)
			mu.Unlock()
		}
	})
	if err != nil {
		return Result{}, err
	}
	// Payloads are stamped when they are due, so the wait for an adder counts.
	due := make(chan []byte, 4*r.o.LatencyRate)
	var (
		wg    sync.WaitGroup
		added atomic.Int64
		errs  = make([]error, r.o.Adders)
	)
	for i := range r.o.Adders {
		a, err := r.q.Adder(ctx)
		if err != nil {
			return Result{}, err
		}
		wg.Go(func() {
			defer a.Close()
			for p := range due {
				if errs[i] != nil {
					continue
				}
				if errs[i] = a.Add(ctx, p); errs[i] == nil {
					added.Add(1)
				}
			}
		})
	}
	start := time.Now()
	interval := time.Second / time.Duration(r.o.LatencyRate)
	var overflow bool
	syncs := r.sync.count()
	for n := 0; ; n++ {
		at := start.Add(time.Duration(n) * interval)
		if at.Sub(start) >= lead+r.o.LatencyDuration {
			break
		}
		if !measure.Load() && at.Sub(start) >= lead {
			measure.Store(true)
			syncs = r.sync.count()
		}
		if ctx.Err() != nil {
			break
		}
		time.Sleep(time.Until(at))
		select {
		case due <- r.l.Payload():
		default:
			overflow = true
		}
	}
	close(due)
	wg.Wait()
	result := Result{Syncs: r.sync.count() - syncs}
	err = r.drained(ctx, workers, added.Load(), time.Now().Add(r.o.DrainLimit))
	if err = errors.Join(err, errors.Join(errs...), workers.Stop(ctx)); err != nil {
		return result, err
	}
	if overflow {
		result.Note = "could not keep up with the rate"
	}
	sortDurations(ages)
	result.Tasks, result.Seconds = int64(len(ages)), r.o.LatencyDuration.Seconds()
	result.P50, result.P99 = quantile(ages, 0.50), quantile(ages, 0.99)
	return result, r.checkRest(ctx, added.Load())
}
