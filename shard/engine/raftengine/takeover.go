package raftengine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
)

// takeOverRows puts the rows of a snapshot from another member in the place of the rows
// here. It runs on the goroutine that applies.
//
// The new rows are made in a folder of their own. The one moment that counts is when
// meta.json names that folder: a start before it finds the old rows with their log, and one
// after it the new rows, and drops the log that ends before them.
func (e *Engine) takeOverRows(m raft.SnapshotMeta) error {
	name := fmt.Sprintf("%s-%s", rowsDir, m.ID)
	if name == e.meta.Load().rowsName() {
		name += "-again"
	}
	dir := e.fs.PathJoin(e.dir, name)
	if err := e.fs.RemoveAll(dir); err != nil {
		return err
	}
	if err := e.linkRows(e.fs.PathJoin(e.snaps.dir, m.ID, snapshotRows), dir); err != nil {
		return fmt.Errorf("the rows of another member cannot be taken over: %w", err)
	}
	fresh, err := e.openRows(dir)
	if err != nil {
		return errors.Join(err, e.fs.RemoveAll(dir))
	}
	drop := func(err error) error {
		return errors.Join(err, fresh.db.Close(), e.fs.RemoveAll(dir))
	}
	at, err := loadPosition(fresh.db)
	if err != nil {
		return drop(err)
	}
	members, from, err := loadConfig(fresh.db)
	if err != nil {
		return drop(err)
	}
	if at.index < m.Index || len(members.Servers) == 0 {
		return drop(fmt.Errorf("the rows of a snapshot at entry %d stand at entry %d, with %d members", m.Index, at.index, len(members.Servers)))
	}
	if at.index <= e.fsm.at.index {
		return drop(e.keepRows(m))
	}
	last, err := e.log.LastIndex()
	if err != nil {
		return drop(err)
	}
	if err := e.updateMeta(func(meta *meta) { meta.Rows, meta.Base = name, at.index }); err != nil {
		e.fail(err)
		return errors.Join(err, fresh.db.Close()) // meta.json may name their folder
	}
	e.replaceRows(fresh)
	if err := e.fsm.restart(fresh.db, at); err != nil {
		e.fail(err)
		return err
	}
	if err := e.snaps.settle(m.ID, at, members, from); err != nil {
		e.fail(fmt.Errorf("snapshot: %w", err))
		return err
	}
	e.log.setFloor(position{index: m.Index, term: m.Term})
	e.logged.Store(0)
	e.log.several.Store(len(members.Servers) > 1)
	e.opts.Logger.Info("the rows of another member were taken over", "applied", at.index, "term", at.term)
	if last > m.Index {
		// Raft goes on counting from the end of a log that it drops; see minTrailing.
		e.fail(fmt.Errorf("the log went on to entry %d, behind the rows at entry %d that were taken over; the next start goes on from there", last, m.Index))
	}
	return nil
}

// keepRows answers a snapshot that holds no more than the rows here. They stay, but the log
// is about to be dropped all the same, so they must be on the disk.
func (e *Engine) keepRows(m raft.SnapshotMeta) error {
	if err := e.rows.Load().db.Flush(); err != nil {
		return err
	}
	if err := e.updateMeta(func(meta *meta) { meta.Base = e.fsm.at.index }); err != nil {
		e.fail(err)
		return err
	}
	e.log.setFloor(position{index: m.Index, term: m.Term})
	return nil
}

// restart makes the fsm go on with other rows.
func (f *fsm) restart(db *pebble.DB, at position) error {
	if err := f.batch.Close(); err != nil {
		return err
	}
	f.db, f.batch, f.at = db, newBatch(db), at
	f.tx.src = db
	f.appliedTerm.Store(at.term)
	f.applied.Store(at.index)
	if err := f.e.opts.Machine.Reset(&reader{src: db}); err != nil {
		return fmt.Errorf("the rows of another member cannot be used: %w", err)
	}
	return nil
}

// removeStrayRows removes folders of rows that a crash left beside the one that counts.
func (e *Engine) removeStrayRows(dir string) error {
	names, err := e.fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, rowsDir) && name != e.meta.Load().rowsName() {
			if err := e.fs.RemoveAll(e.fs.PathJoin(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}
