package switchyard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// The keeper looks after leases: one goroutine for all seats, so that a task
// that ends soon costs no timer. It extends the leases of running tasks when a
// third of their time is over and hands back tasks that wait too long.

// extension is a lease on its way to be extended.
type extension struct {
	seat  *seat
	job   *Job
	lease time.Duration
}

// startKeeper starts the keeper and returns the function that ends it.
func (w *Worker) startKeeper() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { w.keep(ctx, &wg) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// shortestLease is the shortest that servers grant.
const shortestLease = 100 * time.Millisecond

// noteLease makes the keeper look often enough for leases of that length.
func (w *Worker) noteLease(lease time.Duration) {
	lease = max(lease, shortestLease)
	for {
		shortest := w.minLease.Load()
		if shortest != 0 && int64(lease) >= shortest {
			return
		}
		if w.minLease.CompareAndSwap(shortest, int64(lease)) {
			break
		}
		// Another poll was first; its lease may be the longer one.
	}
	select {
	case w.shorter <- struct{}{}:
	default:
	}
}

// keepInterval is how often the keeper looks: ten times in the shortest lease.
func (w *Worker) keepInterval() time.Duration {
	lease := time.Duration(w.minLease.Load())
	if lease == 0 {
		return time.Second
	}
	return min(max(lease/10, 10*time.Millisecond), time.Second)
}

func (w *Worker) keep(ctx context.Context, wg *sync.WaitGroup) {
	timer := time.NewTimer(w.keepInterval())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.shorter:
		case <-timer.C:
		}
		now := time.Now()
		for _, job := range w.jobs.overdue(now) {
			w.late(job)
		}
		due := w.dueExtensions(now)
		for len(due) > 0 {
			batch := due[:min(len(due), maxResultBatch)]
			due = due[len(batch):]
			wg.Go(func() { w.extend(ctx, batch) })
		}
		timer.Reset(w.keepInterval())
	}
}

func (w *Worker) dueExtensions(now time.Time) []extension {
	var due []extension
	for i := range w.seats {
		s := &w.seats[i]
		s.mu.Lock()
		if s.job != nil && !s.lost {
			switch {
			case !now.Before(s.job.deadline):
				// Not known to the server's word, but to be reckoned with. The result
				// is still offered to the server in the end.
				s.cancel(ErrLeaseLost)
			case !s.extending && !now.Before(s.extendAt):
				s.extending = true
				due = append(due, extension{s, s.job, s.job.lease})
			}
		}
		s.mu.Unlock()
	}
	return due
}

// extend extends leases.
func (w *Worker) extend(ctx context.Context, batch []extension) {
	request := &v1.ExtendLeasesRequest{
		Namespace:  w.client.opts.namespace,
		Queue:      w.queue,
		Extensions: make([]*v1.ExtendLeasesRequest_Extension, len(batch)),
	}
	patience := batch[0].lease
	for i, e := range batch {
		request.Extensions[i] = &v1.ExtendLeasesRequest_Extension{
			LeaseToken: e.job.token,
			LeaseTime:  durationProto(w.opts.LeaseTime),
		}
		patience = min(patience, e.lease)
	}
	ctx, cancel := context.WithTimeout(ctx, max(patience/3, shortestLease))
	defer cancel()
	start := time.Now()
	response, err := w.client.tasks.ExtendLeases(ctx, request)
	if err == nil && len(response.GetResults()) != len(batch) {
		err = errResultCount
	}
	for i, e := range batch {
		itemErr := err
		if err == nil {
			itemErr = reason.FromItem(response.Results[i].GetError())
		}
		// An error of the whole request, a lost connection say, says nothing of
		// this lease.
		w.extended(e, itemErr, err == nil && itemErr != nil && !transient(itemErr), start)
	}
}

// extended notes the result of an extension that was asked for at start.
func (w *Worker) extended(e extension, err error, lost bool, start time.Time) {
	s := e.seat
	s.mu.Lock()
	if s.job != e.job {
		s.mu.Unlock()
		return // it ended meanwhile
	}
	s.extending = false
	switch {
	case err == nil:
		// The lease began anew after start, so this is the careful reckoning.
		e.job.deadline = start.Add(e.lease)
		s.extendAt = start.Add(e.lease / 3)
	case lost:
		s.lost = true
		s.cancel(leaseLost(err))
	default:
		s.extendAt = time.Now().Add(e.lease / 20)
	}
	s.mu.Unlock()
	if lost {
		w.leasesLost.Add(1)
		w.report("extend", e.job, err)
	}
}

// leaseLost is the cause of a job's end: ErrLeaseLost and what the server said.
func leaseLost(err error) error {
	if errors.Is(err, ErrLeaseLost) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrLeaseLost, err)
}
