package raftengine

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// timedLog is the log as Raft sees it: it measures, and ends the engine on an error,
// because Raft itself would panic or try again.
type timedLog struct {
	logStore
	e *Engine
}

func (t *timedLog) StoreLogs(logs []*raft.Log) error {
	if err := t.e.failure(); err != nil {
		return err
	}
	start := time.Now()
	err := t.logStore.StoreLogs(logs)
	if err != nil {
		t.e.fail(fmt.Errorf("log: %w", err))
		return err
	}
	t.e.metrics.append(len(logs), time.Since(start))
	return nil
}

func (t *timedLog) StoreLog(l *raft.Log) error { return t.StoreLogs([]*raft.Log{l}) }

func (t *timedLog) GetLog(index uint64, l *raft.Log) error {
	err := t.logStore.GetLog(index, l)
	// Raft asks for entries that are gone only to find out that they are.
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		t.e.failNow(fmt.Errorf("log: entry %d cannot be read: %w", index, err))
	}
	return err
}

func (t *timedLog) DeleteRange(from, to uint64) error {
	err := t.logStore.DeleteRange(from, to)
	if err != nil {
		t.e.fail(fmt.Errorf("log: entries %d to %d cannot be dropped: %w", from, to, err))
	}
	return err
}

// IsMonotonic tells Raft that entries follow each other without gaps.
func (t *timedLog) IsMonotonic() bool { return true }

// fatalStable ends the engine when Raft's term or vote cannot be kept; Raft panics then.
type fatalStable struct {
	stableStore
	e *Engine
}

func (f fatalStable) check(err error) error {
	if err != nil {
		f.e.failNow(fmt.Errorf("log: the vote cannot be kept: %w", err))
	}
	return err
}

func (f fatalStable) Set(key, value []byte) error { return f.check(f.stableStore.Set(key, value)) }
func (f fatalStable) SetUint64(key []byte, v uint64) error {
	return f.check(f.stableStore.SetUint64(key, v))
}

// failNow is fail where Raft panics when this returns: OnFatal has some time to end the
// process in a better way.
func (e *Engine) failNow(err error) {
	e.fail(err)
	if !e.closing.Load() {
		time.Sleep(fatalGrace)
	}
}

// openLog opens the log and the store of the vote. The log must reach mustHave.
func (e *Engine) openLog(dir string, mustHave uint64) error {
	open := e.opts.openLog
	if open == nil {
		if !e.opts.Memory {
			return errors.New("no log on disk yet")
		}
		open = func(string, uint64) (logStore, stableStore, error) {
			return &memLog{}, memStable{raft.NewInmemStore()}, nil
		}
	}
	log, stable, err := open(dir, mustHave)
	if err != nil {
		return err
	}
	e.log, e.stable = &timedLog{log, e}, stable
	return nil
}
