package raftengine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// gate counts those who use something, and lets its owner close it and wait until the
// last has left. Entering and leaving are one atomic addition each.
type gate struct {
	n    atomic.Int64
	shut atomic.Bool
	once sync.Once
	idle chan struct{}
}

func (g *gate) init() { g.once.Do(func() { g.idle = make(chan struct{}, 1) }) }

// enter returns false when the gate is closed.
func (g *gate) enter() bool {
	g.n.Add(1)
	if g.shut.Load() {
		g.leave()
		return false
	}
	return true
}

func (g *gate) leave() {
	if g.n.Add(-1) == 0 && g.shut.Load() {
		g.init()
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

func (g *gate) close() { g.shut.Store(true) }

// wait returns when nobody is inside a closed gate.
func (g *gate) wait(ctx context.Context) error {
	g.init()
	for g.n.Load() > 0 {
		select {
		case <-g.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// stamp gives commands their time: the clock's, but never less than the one before,
// also across a restart with a clock that was set back. add calls it under its lock.
type stamp struct {
	now  func() time.Time
	last int64
}

func (s *stamp) next() time.Time {
	if t := s.now().UnixNano(); t > s.last {
		s.last = t
	}
	return time.Unix(0, s.last)
}

func (s *stamp) catchUp(t int64) { s.last = max(s.last, t) }
