package raftengine

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// fsm applies the log to the rows. Raft calls it from one goroutine.
type fsm struct {
	e     *Engine
	db    *pebble.DB
	tx    tx
	batch *pebble.Batch
	names engine.Names
	cmd   engine.Command

	// timer runs while a batch is committed, which waits for the disk when that is behind.
	timer timer

	// at is where the rows stand once batch is committed.
	at position
	// applied is the last index whose rows are visible, and appliedTerm its term.
	applied, appliedTerm atomic.Uint64

	// matched are the proposals of the entries at hand, results those waiting for the
	// next commit, responses what Raft gets back (always nil). All are reused.
	matched   []*proposal
	results   []result
	responses []any
}

// result is the outcome of a command whose proposer waits for the commit.
type result struct {
	p     *proposal
	value []byte
	err   error
}

var _ raft.BatchingFSM = (*fsm)(nil)

func newFSM(e *Engine, db *pebble.DB, at position) *fsm {
	f := &fsm{e: e, db: db, batch: newBatch(db), at: at}
	f.tx = tx{reader: reader{src: db}, f: f}
	f.applied.Store(at.index)
	f.appliedTerm.Store(at.term)
	return f
}

// ApplyBatch applies committed entries in their order.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	f.matched = f.e.queue.match(logs, f.matched[:0])
	f.e.metrics.applyBatch(len(logs))
	for i, l := range logs {
		p := f.matched[i]
		f.matched[i] = nil
		if err := f.e.failure(); err != nil {
			f.finish(p, nil, err)
			continue
		}
		if err := f.apply(l, p); err != nil {
			f.e.fail(err)
		}
	}
	if f.e.failure() == nil && f.dirty() {
		if err := f.commit(); err != nil {
			f.e.fail(err)
		}
	}
	// After a failure what was not committed has no answer yet.
	f.answer(f.e.failure())
	if len(f.responses) < len(logs) {
		f.responses = make([]any, max(len(logs), 1024))
	}
	return f.responses[:len(logs)]
}

// dirty reports whether something is waiting for a commit.
func (f *fsm) dirty() bool { return f.at.index != f.applied.Load() }

// apply carries out one entry. An error stops the engine.
func (f *fsm) apply(l *raft.Log, p *proposal) error {
	if l.Index <= f.at.index {
		// The rows have it already: a replay after a crash. Nobody can be waiting.
		if p != nil {
			f.finish(p, nil, &shard.Error{Code: shard.StoreFailed, Reason: fmt.Sprintf("log entry %d was applied before it was proposed", l.Index)})
			return errors.New("the log gave out an index twice")
		}
		return nil
	}
	f.e.logged.Add(int64(len(l.Data) + len(l.Extensions)))
	f.tx.start()
	switch l.Type {
	case raft.LogConfiguration:
		value := encodeConfig(l.Index, l.Data)
		k, v := f.tx.Put(len(configKey), len(value))
		copy(k, configKey)
		copy(v, value)
	case raft.LogCommand:
		if err := engine.ParseHead(l.Extensions, &f.names, &f.cmd); err != nil {
			f.finish(p, nil, f.e.failedError(err))
			return fmt.Errorf("log entry %d: %w", l.Index, err)
		}
		if f.cmd.Function == readyFunction {
			if p != nil {
				f.finish(p, readyValue(l.Term, f.at.time), nil)
			}
			break
		}
		f.cmd.Args = l.Data
		value, err := f.e.opts.Machine.Apply(&f.tx, &f.cmd)
		f.cmd.Args = nil
		relErr := f.tx.release()
		if err != nil {
			if rbErr := f.tx.rollback(); rbErr != nil {
				relErr = errors.Join(relErr, rbErr)
			}
		}
		if err := errors.Join(relErr, f.tx.fault(err)); err != nil {
			f.finish(p, nil, f.e.failedError(err))
			return fmt.Errorf("log entry %d, function %s: %w", l.Index, f.cmd.Function, err)
		}
		if t := f.cmd.Time.UnixNano(); t > f.at.time {
			f.at.time = t
		}
		if p != nil {
			f.results = append(f.results, result{p, value, err})
		}
	}
	f.at.index, f.at.term = l.Index, l.Term
	if f.batch.Len() >= maxBatchBytes {
		return f.commit()
	}
	return nil
}

// fault returns err when it must stop the engine: the machine said so, or Pebble could
// not read.
func (t *tx) fault(err error) error {
	if err == nil || !(engine.IsFatal(err) || pebble.IsCorruptionError(err) || t.f.e.failure() != nil) {
		return nil
	}
	return err
}

// commit makes the rows of the batch visible, together with where in the log they
// stand, and answers the proposers.
func (f *fsm) commit() error {
	if err := f.e.failure(); err != nil {
		return err
	}
	op := f.batch.SetDeferred(len(appliedKey), positionSize)
	copy(op.Key, appliedKey)
	f.at.encode((*[positionSize]byte)(op.Value))
	size := f.batch.Len()
	start := time.Now()
	f.timer.begin()
	err := f.batch.Commit(pebble.NoSync)
	f.timer.end()
	if err != nil {
		return fmt.Errorf("rows: %w", err)
	}
	f.batch.Reset()
	f.e.metrics.commit(size, time.Since(start))
	f.appliedTerm.Store(f.at.term)
	f.applied.Store(f.at.index)
	f.answer(nil)
	f.e.snapshotIfDue()
	if !f.e.Voice() {
		f.e.lead.poke() // perhaps it has caught up now
	}
	return nil
}

// finish notes the outcome of one command; p may be nil.
func (f *fsm) finish(p *proposal, value []byte, err error) {
	if p != nil {
		f.results = append(f.results, result{p, value, err})
	}
}

// answer tells the proposers of all results. With an error, that is the answer to all.
func (f *fsm) answer(failure error) {
	if len(f.results) == 0 {
		return
	}
	if failure != nil {
		for i := range f.results {
			f.results[i].value, f.results[i].err = nil, failure
		}
	}
	f.e.queue.finish(f.results)
	clear(f.results)
	f.results = f.results[:0]
}

// Apply is for entries that come one by one; Raft uses ApplyBatch.
func (f *fsm) Apply(l *raft.Log) any {
	f.ApplyBatch([]*raft.Log{l})
	return nil
}

// StoreConfiguration is not needed: configurations come through ApplyBatch.

// Snapshot is instant: the rows are flushed and linked in Persist. They may then hold
// later commands than Raft thinks; those are skipped when they are replayed.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.e.failure(); err != nil {
		return nil, err
	}
	return &checkpoint{f.e}, nil
}

// Restore takes over the snapshot that was received last from another member.
func (f *fsm) Restore(snapshot io.ReadCloser) error {
	defer func() { _ = snapshot.Close() }()
	if err := f.e.failure(); err != nil {
		return err
	}
	source := snapshot
	if w, ok := snapshot.(raft.ReadCloserWrapper); ok {
		source = w.WrappedReadCloser()
	}
	r, ok := source.(*snapshotReader)
	if !ok {
		return fmt.Errorf("a snapshot to take over is a %T", source)
	}
	return f.e.takeOverRows(r.meta)
}
