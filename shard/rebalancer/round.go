package rebalancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// round looks once, and moves what has to be moved. It returns how long to wait for the next look.
func (r *Rebalancer) round(ctx context.Context, changed <-chan struct{}) time.Duration {
	here, where := r.here()
	if !here {
		r.failures, r.foreignSince = 0, time.Time{}
		reason := "the master of replica set " + where + " rebalances"
		if where == r.o.ReplicaSet {
			reason = "the master of this replica set rebalances, and this node is not it"
		}
		r.setIdle(false, where, reason)
		return r.o.Idle
	}
	sets, err := r.o.Store.Sets(ctx)
	if err != nil {
		return r.trouble(ctx, "the replica sets cannot be asked: "+err.Error())
	}
	r.metrics.rounds.Inc()
	perfect, wait, ok := r.judge(ctx, sets)
	if !ok {
		return wait
	}
	return r.move(ctx, changed, sets, perfect)
}

// judge decides whether buckets are to be moved now; if not, how long to wait for the next look.
func (r *Rebalancer) judge(ctx context.Context, sets []Set) (perfect []int, wait time.Duration, ok bool) {
	known := r.o.Store.Known()
	off := slices.ContainsFunc(sets, func(s Set) bool { return s.Off })
	r.setOn(!off)
	if off {
		r.setIdle(true, r.o.ReplicaSet, "it was turned off")
		return nil, r.o.Idle, false
	}
	owned, moving := 0, 0
	for i := range sets {
		s := &sets[i]
		if s.Err != nil {
			return nil, r.trouble(ctx, fmt.Sprintf("replica set %s does not answer: %v", s.Name, s.Err)), false
		}
		owned += s.Owned()
		moving += s.moving()
	}
	for _, name := range known {
		if !slices.ContainsFunc(sets, func(s Set) bool { return s.Name == name }) {
			return nil, r.trouble(ctx, fmt.Sprintf("replica set %s was not asked", name)), false
		}
	}
	if moving > 0 {
		now := time.Now()
		if r.foreignSince.IsZero() {
			r.foreignSince = now
		}
		if now.Sub(r.foreignSince) < patience {
			r.setWaiting(fmt.Sprintf("%d buckets are on their way already", moving))
			return nil, foreignWait, false
		}
	} else {
		r.foreignSince = time.Time{}
	}
	if count := int(r.o.BucketCount()); owned != count {
		// The sets were not asked at the very same moment, so this passes if something moves.
		if r.failures < 3 {
			r.setWaiting(fmt.Sprintf("%d of %d buckets are owned", owned, count))
			return nil, r.backoff(), false
		}
		return nil, r.trouble(ctx, fmt.Sprintf("the replica sets own %d buckets, and there are %d: the check of all buckets says which",
			owned, count)), false
	}
	perfect, err := Perfect(sets)
	if err != nil {
		return nil, r.trouble(ctx, err.Error()), false
	}
	imbalance := Imbalance(sets, perfect)
	r.metrics.imbalance.Set(imbalance)
	if imbalance <= r.o.Threshold && !(r.working() && imbalance > 0) {
		r.failures = 0
		r.balanced(imbalance)
		return nil, r.o.Idle, false
	}
	return perfect, 0, true
}

// move carries out one plan, and returns how long to wait for the next look.
func (r *Rebalancer) move(ctx context.Context, changed <-chan struct{}, sets []Set, perfect []int) time.Duration {
	flows := Flows(sets, perfect)
	want := 0
	for _, f := range flows {
		want += f.Count
	}
	r.begin(sets, want)
	routes, planErr := r.plan(ctx, flows, sets)
	moved, moveErr := r.carryOut(ctx, changed, newSchedule(r.o.Limits, routes))
	if ctx.Err() != nil {
		return r.o.Idle
	}
	err := errors.Join(planErr, moveErr)
	switch {
	case err == nil && (moved > 0 || len(routes) > 0):
		r.failures = 0
		return 0
	case err == nil:
		return r.trouble(ctx, fmt.Sprintf("%d buckets should move, and their replica sets have none that they can send", want))
	case moved > 0:
		r.failures = 0
	}
	if passing(err) {
		r.setWaiting(err.Error())
		return r.backoff()
	}
	return r.trouble(ctx, err.Error())
}

// plan asks every source what it can move and chooses.
func (r *Rebalancer) plan(ctx context.Context, flows []Flow, sets []Set) (routes []Route, err error) {
	for i := range sets {
		s := &sets[i]
		var from []Flow
		for _, f := range flows {
			if f.Source == s.Name {
				from = append(from, f)
			}
		}
		if len(from) == 0 {
			continue
		}
		movable, e := r.o.Store.Movable(ctx, s.Name)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("replica set %s does not list its buckets: %w", s.Name, e))
			continue
		}
		average := int64(0)
		if n := s.Owned(); n > 0 {
			average = s.Bytes / int64(n)
		}
		movable = slices.Clone(movable)
		for k := range movable {
			if movable[k].Bytes < 0 {
				movable[k].Bytes = average
			}
		}
		routes = append(routes, MakePlan(from, movable)...)
	}
	return routes, err
}

// outcome of a batch.
type outcome struct {
	batch batch
	moved int
	err   error
}

// send sends a batch, and rests when others need the source too. hurry ends a rest.
func (r *Rebalancer) send(ctx context.Context, b batch, hurry <-chan struct{}) outcome {
	began := time.Now()
	sent, err := r.o.Store.Send(ctx, b.route.Source, b.route.Destination, b.buckets)
	r.progress(sent.Moved, err)
	if rest := r.o.Limits.rest(time.Since(began), sent.Served); err == nil && rest > 0 {
		t := time.NewTimer(rest)
		defer t.Stop()
		select {
		case <-t.C:
		case <-hurry:
		case <-ctx.Done():
		}
	}
	return outcome{b, sent.Moved, err}
}

// carryOut sends the batches of a schedule until all are done, or something has changed and those
// under way are.
func (r *Rebalancer) carryOut(ctx context.Context, changed <-chan struct{}, s *schedule) (moved int, err error) {
	done := make(chan outcome)
	hurry := make(chan struct{})
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			close(hurry)
		}
	}
	for {
		for !stopped {
			b, ok := s.next()
			if !ok {
				break
			}
			go func() { done <- r.send(ctx, b, hurry) }()
		}
		if s.underway == 0 {
			return moved, err
		}
		if s.waiting == 0 {
			stop() // nobody waits for a rest to end
		}
		select {
		case o := <-done:
			s.done(o.batch, o.err != nil)
			moved += o.moved
			if o.err != nil {
				err = errors.Join(err, fmt.Errorf("%s to %s: %w", o.batch.route.Source, o.batch.route.Destination, o.err))
			}
			if here, _ := r.here(); !here {
				stop()
			}
		case <-changed:
			changed = nil
			stop()
		case <-r.wake:
			// Somebody wants a fresh look.
			stop()
		case <-ctx.Done():
			// Send ends soon.
			o := <-done
			s.done(o.batch, true)
			stop()
		}
	}
}

// passing reports whether err is what happens to a move when something else is done with the bucket or
// set at the same time.
func passing(err error) bool {
	for _, code := range [...]shard.Code{shard.TransferIsInProgress, shard.BucketIsPinned, shard.WrongBucket, shard.ReplicaSetIsLocked,
		shard.StorageIsReferenced, shard.TooManyReceiving, shard.TransferIsOver, shard.NonMaster, shard.SplitIsInProgress} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// trouble reports why nothing can be done at the moment, loudly when it is news, and returns the wait.
func (r *Rebalancer) trouble(ctx context.Context, reason string) time.Duration {
	if ctx.Err() != nil {
		return r.o.Idle
	}
	r.setWaiting(reason)
	r.metrics.failures.Inc()
	if r.said != reason {
		r.said = reason
		r.log.LogAttrs(ctx, slog.LevelWarn, "rebalancing waits", slog.String("reason", reason))
	}
	return r.backoff()
}

func percent(v float64) string {
	if math.IsInf(v, 1) {
		return "all"
	}
	return fmt.Sprintf("%.3g %%", v)
}
