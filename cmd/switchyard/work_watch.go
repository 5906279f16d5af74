package main

import (
	"context"
	"time"

	"github.com/switchyard-dev/switchyard"
	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

const (
	// idleInterval is how often --exit-when-empty looks while no command runs.
	idleInterval = 100 * time.Millisecond
	// busyInterval is how often the progress line's counts are fetched.
	busyInterval = time.Second
)

// queueWatch looks at the counts of the queue that is being worked off.
type queueWatch struct {
	client  *switchyard.Client
	queue   string
	timeout time.Duration
	retries bool // delayed tasks count as work
	handler *commandHandler
}

// counts asks the server. A queue that does not exist has no tasks.
func (w *queueWatch) counts(ctx context.Context) (*v1.QueueCounts, error) {
	call, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	d, err := w.client.QueueService().DescribeQueue(call, &v1.DescribeQueueRequest{Namespace: w.client.Namespace(), Queue: w.queue})
	switch {
	case reason.Of(err) == reason.QueueNotFound:
		return &v1.QueueCounts{}, nil
	case err != nil:
		return nil, err
	}
	w.handler.left.Store(d.GetCounts().GetReady())
	return d.GetCounts(), nil
}

// untilEmpty returns when the queue has nothing left to do, with its last
// counts, or without when ctx ends. A server that is away is waited for.
func (w *queueWatch) untilEmpty(ctx context.Context) (*v1.QueueCounts, error) {
	tick := time.NewTicker(idleInterval)
	defer tick.Stop()
	for last := (time.Time{}); ; {
		// While a command runs, its task is leased: there is no need to ask for
		// more than the progress line.
		if w.handler.running.Load() == 0 || time.Since(last) >= busyInterval {
			last = time.Now()
			n, err := w.counts(ctx)
			switch {
			case ctx.Err() != nil:
				return nil, nil
			case err != nil && codeOf(reason.From(err).Code()) != exitUnavailable:
				return nil, err
			case err == nil && n.GetReady() == 0 && n.GetLeased() == 0 && (!w.retries || n.GetDelayed() == 0):
				return n, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-tick.C:
		}
	}
}

// untilDone keeps the counts of the progress line fresh until ctx ends.
func (w *queueWatch) untilDone(ctx context.Context) {
	tick := time.NewTicker(busyInterval)
	defer tick.Stop()
	for {
		_, _ = w.counts(ctx) // the worker itself tells of a server that is away
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
