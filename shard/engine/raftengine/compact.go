package raftengine

import (
	"errors"

	"github.com/hashicorp/raft"
)

// snapshotIfDue asks for a snapshot when enough was logged since the last one.
func (e *Engine) snapshotIfDue() {
	if e.logged.Load() < e.opts.SnapshotBytes {
		return
	}
	select {
	case e.snapDue <- struct{}{}:
	default:
	}
}

// takeSnapshots takes a snapshot and cuts the log whenever one is due.
func (e *Engine) takeSnapshots() {
	defer e.background.Done()
	for {
		select {
		case <-e.stop:
			return
		case <-e.snapDue:
		}
		if e.logged.Load() < e.opts.SnapshotBytes {
			continue // asked for again while the last one was taken
		}
		if err := e.snapshot(); err != nil && e.failure() == nil && !e.closing.Load() {
			e.metrics.snapshotFail.Add(1)
			e.opts.Logger.Error("a snapshot could not be taken; the log stays as it is, and the next attempt follows after as much again was logged", "error", err)
		}
	}
}

// snapshot takes one now.
func (e *Engine) snapshot() error {
	select {
	case e.snapping <- struct{}{}:
		defer func() { <-e.snapping }()
	case <-e.stop:
		return errClosed()
	}
	before := e.logged.Load()
	err := e.raft.Snapshot().Error()
	// Counted anew in any case: a disk without space must not be asked again at once.
	e.logged.Add(-before)
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return err
	}
	return nil
}
