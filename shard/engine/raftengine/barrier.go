package raftengine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard"
)

// barrier shares the question to the other members, whether this one is still the master,
// among all who want to know at the same time. A caller joins the round that has not
// begun yet, so that each answer is to a question asked after its call.
//
// Raft's own check of mastership is not used: it also counts answers to messages that
// were sent before the question.
type barrier struct {
	mu      sync.Mutex
	next    *round
	running bool
}

// round is one question.
type round struct {
	done chan struct{}
	err  error
}

// ReadBarrier implements engine.Engine.
func (e *Engine) ReadBarrier(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.failure(); err != nil {
		return err
	}
	if e.closing.Load() {
		return errClosed()
	}
	if e.lead.master.Load() == nil {
		return e.notMaster()
	}
	if e.alone() {
		return nil
	}
	b := &e.barrier
	b.mu.Lock()
	if b.next == nil {
		b.next = &round{done: make(chan struct{})}
	}
	r := b.next
	if !b.running {
		if e.closing.Load() { // background must not grow while it is waited for
			b.mu.Unlock()
			return errClosed()
		}
		b.running = true
		e.background.Add(1)
		go e.runRounds()
	}
	b.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// alone tells whether this member is a majority by itself.
func (e *Engine) alone() bool {
	if e.opts.Transport == nil {
		return true
	}
	voters := 0
	for _, s := range e.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter {
			if string(s.ID) != e.id() {
				return false
			}
			voters++
		}
	}
	return voters == 1
}

// runRounds asks one question after the other until nobody has one.
func (e *Engine) runRounds() {
	defer e.background.Done()
	b := &e.barrier
	for {
		b.mu.Lock()
		r := b.next
		b.next = nil
		if r == nil {
			b.running = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		r.err = e.confirm()
		e.metrics.barriers.Add(1)
		close(r.done)
	}
}

// widenAfter is how long a round waits for those it asked first.
const widenAfter = 3 * time.Millisecond

// confirm asks the other voters until a majority has said, to a question asked now, that
// this member is the master.
func (e *Engine) confirm() error {
	m := e.lead.master.Load()
	if m == nil {
		return e.notMaster()
	}
	t := e.opts.Transport
	from := t.Stamp()
	patience := time.NewTimer(2*e.opts.HeartbeatTimeout + 2*e.opts.ElectionTimeout)
	defer patience.Stop()
	ask := time.NewTicker(max(e.opts.HeartbeatTimeout/4, time.Millisecond))
	defer ask.Stop()
	// As many as are needed are asked first, those who were heard last, and soon all.
	widen := time.NewTimer(widenAfter)
	defer widen.Stop()
	wide := false
	asking := make(map[raft.ServerID]chan struct{})
	for {
		changed := t.Changed()
		var others []raft.Server
		voters, agree, asked := 0, 0, 0
		for _, s := range e.servers() {
			if s.Suffrage != raft.Voter {
				continue
			}
			voters++
			if string(s.ID) == e.id() || t.Confirmed(string(s.ID), m.term) > from {
				agree++
				continue
			}
			others = append(others, s)
			if c := asking[s.ID]; c != nil && !isClosed(c) {
				asked++
			}
		}
		if agree <= voters/2 {
			slices.SortStableFunc(others, func(a, b raft.Server) int {
				_, ca := t.Progress(string(a.ID), m.term)
				_, cb := t.Progress(string(b.ID), m.term)
				return cb.Compare(ca)
			})
		}
		for _, s := range others {
			if agree > voters/2 || !wide && agree+asked > voters/2 {
				break
			}
			if c := asking[s.ID]; c != nil && !isClosed(c) {
				continue
			}
			c := make(chan struct{})
			asking[s.ID] = c
			asked++
			e.background.Add(1)
			go func() {
				defer e.background.Done()
				defer close(c)
				_ = t.Heartbeat(string(s.ID), string(s.Address), m.term)
			}()
		}
		if agree > voters/2 {
			if e.lead.master.Load() != m {
				return e.notMaster()
			}
			return nil
		}
		select {
		case <-changed:
		case <-ask.C: // those who failed to answer are asked again
		case <-widen.C:
			wide = true
		case <-m.lost:
			return e.notMaster()
		case <-e.stop:
			return errClosed()
		case <-patience.C:
			return &shard.Error{Code: shard.NonMaster, Reason: "no majority of the members answers"}
		}
	}
}
