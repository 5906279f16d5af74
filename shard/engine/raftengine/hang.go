package raftengine

import (
	"sync/atomic"
	"time"
)

// A disk that hangs gives no error, so nothing that fails would say so: Raft's goroutine of
// a master waits for the log, and those that send heartbeats go on, so that the others keep
// a master that does nothing. Therefore each write to the disk that a master waits for is
// timed, and one that takes longer than Options.HangTimeout silences this member: it sends
// nothing as a master, asks for no votes, refuses commands, and the others elect another one.
// It goes on when its disk does.

// timer times what one goroutine at a time does.
type timer struct{ began atomic.Int64 }

// epoch is the zero of timers. Differences of wall clock times would take a clock that was
// set for a disk that hangs.
var epoch = time.Now()

func (t *timer) begin() { t.began.Store(int64(time.Since(epoch)) + 1) }
func (t *timer) end()   { t.began.Store(0) }

// running returns for how long, 0 when nothing is under way.
func (t *timer) running() time.Duration {
	began := t.began.Load()
	if began == 0 {
		return 0
	}
	return max(time.Since(epoch)+1-time.Duration(began), 1)
}

// hanging returns for how long the disk has not answered, and what waits for it.
func (e *Engine) hanging() (d time.Duration, what string) {
	d, what = e.log.timer.running(), "the log"
	if rows := e.fsm.timer.running(); rows > d {
		d, what = rows, "the rows"
	}
	return d, what
}

// Hangs implements raftrpc.Host.
func (e *Engine) Hangs() bool { return e.lead.hangs.Load() }

// checkDisk gives up mastership when the disk hangs, and takes it up again when the disk
// answers and nobody else was elected. It runs on the goroutine of followLeadership.
func (e *Engine) checkDisk() {
	d, what := e.hanging()
	switch hangs := d > e.opts.HangTimeout; {
	case hangs == e.lead.hangs.Load():
		return
	case hangs:
		e.lead.hangs.Store(true)
		e.metrics.hangs.Add(1)
		e.opts.Logger.Error("the disk hangs", "writing", what, "for", d.Round(time.Millisecond))
		if e.lead.master.Load() == nil || e.alone() {
			return
		}
		e.opts.Logger.Warn("this member gives up being the master, because its disk hangs")
		e.endMastership()
		// What is with Raft is answered when Raft lets go of it: it may yet take effect.
		e.queue.demote(e.notMaster)
	default:
		e.lead.hangs.Store(false)
		e.opts.Logger.Info("the disk answers again")
		if e.lead.leads && e.lead.master.Load() == nil {
			e.lead.attempt++
			e.prepare()
		}
	}
	e.publish()
}
