package raftengine

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard/engine/wal"
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
	raft.StableStore
	e *Engine
}

func (f fatalStable) check(err error) error {
	if err != nil {
		f.e.failNow(fmt.Errorf("log: the vote cannot be kept: %w", err))
	}
	return err
}

func (f fatalStable) Set(key, value []byte) error { return f.check(f.StableStore.Set(key, value)) }
func (f fatalStable) SetUint64(key []byte, v uint64) error {
	return f.check(f.StableStore.SetUint64(key, v))
}

// failNow is fail where Raft panics when this returns: OnFatal has some time to end the
// process in a better way.
func (e *Engine) failNow(err error) {
	e.fail(err)
	if !e.closing.Load() {
		time.Sleep(fatalGrace)
	}
}

// openLog opens the log and the store of the vote. The log must reach the entry at which
// the rows stand.
func (e *Engine) openLog(dir string, at position) error {
	if e.opts.Memory {
		e.log, e.stable = &timedLog{&memLog{}, e}, raft.NewInmemStore()
		return nil
	}
	durability := wal.DurabilityFsync
	if e.opts.Durability == Interval {
		durability = wal.DurabilityInterval
	}
	log, found, err := wal.Open(dir, wal.Options{
		SegmentBytes: e.opts.segmentBytes,
		Durability:   durability,
		SyncInterval: e.opts.SyncInterval,
		MustHave:     at.index,
		FS:           e.opts.logFS,
		Logger:       e.opts.Logger,
		OnSync:       func(d time.Duration) { e.metrics.syncTime.observe(d.Seconds()) },
	})
	if err != nil {
		return err
	}
	e.log, e.wal, e.found = &timedLog{log, e}, log, found
	stable, err := wal.OpenStable(dir, wal.StableOptions{FS: e.opts.logFS, MustExist: found.LastIndex > 0})
	if err != nil {
		return err
	}
	e.stable = stable
	if found.TornBytes > 0 {
		e.opts.Logger.Warn("the log ended in an unfinished write, which was cut off; nothing of it had been acknowledged as durable",
			"bytes", found.TornBytes, "file", found.TornFile, "offset", found.TornOffset)
	}
	e.opts.Logger.Debug("log opened", "first", found.FirstIndex, "last", found.LastIndex, "bytes", found.Bytes, "took", found.Took)
	return nil
}
