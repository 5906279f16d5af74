package rebalancer

import (
	"context"
	"log/slog"
	"strings"
	"time"
)

// Phase is what a rebalancer does at the moment.
type Phase string

// Phases.
const (
	// Idle: there is nothing to do, or it is not this node that does it; Status.Reason says which.
	Idle Phase = "idle"
	// Moving: buckets are on their way.
	Moving Phase = "moving"
	// Waiting: buckets should move and cannot at the moment; Status.Reason says why.
	Waiting Phase = "waiting"
)

// Status is what a rebalancer does at one moment.
type Status struct {
	// On: it may work. Only the one that is Active knows.
	On bool
	// Active: it is the one that works.
	Active bool
	// Where is the replica set whose master is the one.
	Where string
	Phase Phase
	// Reason says in words why nothing moves; empty while something does.
	Reason string
	// Since is when the rebalancing under way began, or the last one.
	Since time.Time
	// Moved and ToMove are buckets of the rebalancing under way, or of the last one: moved so far, and
	// moved when it is done.
	Moved, ToMove int
	// Took is how long it has lasted, or took.
	Took time.Duration
	// Left is about how long it will take, 0 when it cannot be told.
	Left time.Duration
	// Failed counts calls of Send that did not move all their buckets, since the start of the process.
	Failed int
}

// job is one rebalancing from the first imbalance to perfect counts, over as many rounds as it takes.
type job struct {
	running bool
}

// Rate is how many buckets a second were moved.
func (s Status) Rate() float64 {
	if s.Took <= 0 {
		return 0
	}
	return float64(s.Moved) / s.Took.Seconds()
}

// Status returns what it does.
func (r *Rebalancer) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	if r.job.running {
		s.Took = time.Since(s.Since)
	}
	if r.job.running && s.Moved > 0 {
		s.Left = time.Duration(float64(s.Took) / float64(s.Moved) * float64(s.ToMove-s.Moved)).Round(10 * time.Millisecond)
	}
	return s
}

// OneLine makes one line of the text of errors that were joined.
func OneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

func (r *Rebalancer) working() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.job.running
}

func (r *Rebalancer) setOn(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.On = on
}

func (r *Rebalancer) setIdle(active bool, where, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Active, r.status.Where, r.status.Phase, r.status.Reason = active, where, Idle, reason
	if r.job.running {
		r.status.Took = time.Since(r.status.Since)
	}
	r.job.running = false
	r.metrics.active(active)
	r.metrics.toMove.Set(0)
}

func (r *Rebalancer) setWaiting(reason string) {
	reason = OneLine(reason)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Active, r.status.Where, r.status.Phase, r.status.Reason = true, r.o.ReplicaSet, Waiting, reason
	r.metrics.active(true)
}

// begin notes that want buckets are to move, as a new job or as the rest of the running one.
func (r *Rebalancer) begin(sets []Set, want int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.status
	if !r.job.running {
		r.job.running = true
		s.Moved, s.Since = 0, time.Now()
		r.log.LogAttrs(context.Background(), slog.LevelInfo, "rebalancing begins",
			slog.Int("buckets", want), slog.Int("replica sets", len(sets)))
	}
	s.Active, s.Where, s.Phase, s.Reason = true, r.o.ReplicaSet, Moving, ""
	s.ToMove = s.Moved + want
	r.metrics.active(true)
	r.metrics.toMove.Set(float64(want))
}

// progress notes the outcome of a batch.
func (r *Rebalancer) progress(moved int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Moved += moved
	r.metrics.moved.Add(float64(moved))
	r.metrics.toMove.Set(float64(max(0, r.status.ToMove-r.status.Moved)))
	if err != nil {
		r.status.Failed++
		r.metrics.failures.Inc()
	}
}

// balanced notes that there is nothing to do.
func (r *Rebalancer) balanced(imbalance float64) {
	r.mu.Lock()
	was, s := r.job.running, r.status
	r.mu.Unlock()
	if was {
		r.log.LogAttrs(context.Background(), slog.LevelInfo, "rebalancing is done",
			slog.Int("buckets", s.Moved), slog.Duration("took", time.Since(s.Since)))
	}
	r.said = ""
	reason := "the buckets are where they should be"
	if imbalance > 0 {
		reason = "the imbalance of " + percent(imbalance) + " is within the threshold of " + percent(r.o.Threshold)
	}
	r.setIdle(true, r.o.ReplicaSet, reason)
}
