package raftengine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard"
)

func errClosed() error { return &shard.Error{Code: shard.StoreClosed} }

// Close implements engine.Engine. The rows are flushed, so that the next start has
// nothing to replay. When ctx ends, the commands left are answered with STORE_CLOSED and
// the flush is left out; with a context that has ended already, Close is a quick stop
// that leaves the replay to the next start. Either way everything is released, unless
// the disk or a view hangs for closeGrace longer. Later calls return what the first did.
func (e *Engine) Close(ctx context.Context) error {
	e.closed.Do(func() { e.closeE = e.shutdown(ctx) })
	return e.closeE
}

// closeGrace is how much longer than its context Close waits for what cannot be cut short.
const closeGrace = 5 * time.Second

func (e *Engine) shutdown(ctx context.Context) error {
	idle := e.queue.close(errClosed())
	select {
	case <-idle:
	case <-ctx.Done():
	}
	e.leaveOffice(ctx)
	e.closing.Store(true)
	rows := e.rows.Load()
	rows.views.close()
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-hard.Done():
		case <-time.After(e.opts.closeGrace):
			cancel()
		}
	})()
	if err := e.stopRaft(hard); err != nil {
		e.queue.abort(errClosed(), false)
		return err
	}
	e.queue.abort(errClosed(), true)
	// While Raft ran, rows could be replaced.
	if now := e.rows.Load(); now != rows {
		rows = now
		rows.views.close()
	}
	if err := rows.views.wait(hard); err != nil {
		return fmt.Errorf("views of the store are still open: %w", err)
	}
	if err := e.waitOld(hard); err != nil {
		return err
	}
	var flushErr error
	if ctx.Err() == nil && e.failure() == nil {
		if err := rows.db.Flush(); err != nil {
			flushErr = fmt.Errorf("flush of the rows: %w", err)
		}
	}
	return errors.Join(flushErr, e.release())
}

// stopRaft waits for Raft's goroutines, which may be held up by a disk that hangs.
func (e *Engine) stopRaft(ctx context.Context) error {
	stopped := make(chan struct{})
	go func() {
		e.lead.waitWalk(ctx)
		_ = e.shutdownRaft().Error()
		e.stopBackground()
		close(stopped)
	}()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the store did not stop in time: %w", ctx.Err())
	}
}

// leaveOffice hands mastership over, so that the others need not notice first that this
// member is gone.
func (e *Engine) leaveOffice(ctx context.Context) {
	if e.opts.Transport == nil || ctx.Err() != nil || e.failure() != nil || e.alone() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOverAtClose)
	defer cancel()
	// Nobody begins a change of the members after this.
	done, err := e.change(ctx)
	if err != nil {
		return
	}
	_ = done // kept
	if m := e.lead.master.Load(); m != nil {
		if err := e.handOver(ctx, m, ""); err != nil {
			e.opts.Logger.Warn("mastership was not handed over before the stop; the others will elect a master", "error", err)
		}
	}
}

// handOverAtClose is how long Close tries to hand mastership over.
const handOverAtClose = 3 * time.Second

// stopBackground ends the engine's own goroutines and waits for them.
func (e *Engine) stopBackground() {
	e.closing.Store(true)
	// Whoever saw that it was not closing has joined background when the lock is free.
	e.barrier.mu.Lock()
	close(e.stop)
	e.barrier.mu.Unlock()
	e.background.Wait()
}

// shutdownRaft tells Raft to stop; the future waits for it. What Raft waits for from
// other members is cut short.
func (e *Engine) shutdownRaft() raft.Future {
	e.raftOnce.Do(func() {
		r := e.raftUp.Load()
		if e.lead.observer != nil {
			r.DeregisterObserver(e.lead.observer)
		}
		e.raftDown = r.Shutdown()
		if e.opts.Transport != nil {
			_ = e.opts.Transport.Close()
		}
	})
	return e.raftDown
}

// release closes what was opened, in the order that leaves the least to do at the next
// start.
func (e *Engine) release() error {
	var errs []error
	if e.raft != nil && !isClosed(e.stop) { // an Open that failed half way
		_ = e.shutdownRaft().Error()
		e.stopBackground()
	}
	if e.fsm != nil {
		errs = append(errs, e.fsm.batch.Close())
	}
	if e.log != nil {
		errs = append(errs, e.log.Close())
	}
	if rows := e.rows.Load(); rows != nil {
		errs = append(errs, rows.db.Close())
	}
	if e.unlock != nil {
		errs = append(errs, e.unlock())
	}
	return errors.Join(errs...)
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
