package raftengine

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// timedLog is the log as Raft sees it: it measures, and ends the engine on an error,
// because Raft itself would panic or try again.
type timedLog struct {
	logStore
	e *Engine
	// several is set while the group has other members; only then the tail is kept.
	several atomic.Bool
	tail    tail
	marks   marks
	// floor is where Raft's log began when it last began anew, behind rows that hold all from
	// before: from where the rows stood at the start, or from a snapshot.
	floor atomic.Pointer[position]
	// timer runs while Raft waits for the disk.
	timer timer
}

func newTimedLog(e *Engine, store logStore) *timedLog {
	t := &timedLog{logStore: store, e: e}
	t.tail.max = int(min(max(lagFactor*e.opts.TrailingBytes, tailBytesMin), tailBytes))
	return t
}

func (t *timedLog) StoreLogs(logs []*raft.Log) error {
	if err := t.e.failure(); err != nil {
		return err
	}
	start := time.Now()
	t.timer.begin()
	err := t.logStore.StoreLogs(logs)
	t.timer.end()
	if err != nil {
		t.e.fail(fmt.Errorf("log: %w", err))
		return err
	}
	t.e.metrics.append(len(logs), time.Since(start))
	if t.e.opts.Transport == nil {
		return nil
	}
	for _, l := range logs {
		if l.Type == raft.LogConfiguration {
			t.several.Store(len(raft.DecodeConfiguration(l.Data).Servers) > 1)
		}
	}
	t.marks.add(logs)
	if t.several.Load() {
		t.tail.add(logs)
	}
	return nil
}

func (t *timedLog) StoreLog(l *raft.Log) error { return t.StoreLogs([]*raft.Log{l}) }

func (t *timedLog) GetLog(index uint64, l *raft.Log) error {
	if t.several.Load() && t.tail.get(index, l) {
		return nil
	}
	err := t.logStore.GetLog(index, l)
	if err != nil && errors.Is(err, raft.ErrLogNotFound) && t.onFloor(index, l) {
		return nil
	}
	// Raft asks for entries that are gone only to find out that they are.
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		t.e.failNow(fmt.Errorf("log: entry %d cannot be read: %w", index, err))
	}
	return err
}

// onFloor gives the term of the entry right before the log. Raft does not look at its
// snapshot for that, and would not agree with a master about the very first entry.
func (t *timedLog) onFloor(index uint64, l *raft.Log) bool {
	f := t.floor.Load()
	if f == nil || f.index != index {
		return false
	}
	if first, err := t.logStore.FirstIndex(); err != nil || first != 0 && first != index+1 {
		return false
	}
	*l = raft.Log{Index: index, Term: f.term}
	return true
}

// setFloor notes that the log begins behind at. The first entry of a log is never on the
// floor, since Raft sends that one without a look at what is before it.
func (t *timedLog) setFloor(at position) {
	if at.index > 1 {
		t.floor.Store(&at)
	}
}

// Floor implements raftrpc.Host.
func (e *Engine) Floor(previous uint64) (index, term uint64) {
	first, err := e.log.FirstIndex()
	if err != nil || first != 0 && first <= previous {
		return 0, 0 // an error is noticed where it matters
	}
	if f := e.log.floor.Load(); f != nil && (first == 0 || first == f.index+1) {
		return f.index, f.term
	}
	if first == 0 || first > e.fsm.applied.Load() {
		return 0, 0
	}
	var l raft.Log
	if e.log.logStore.GetLog(first, &l) != nil {
		return 0, 0 // cut meanwhile
	}
	return first, l.Term
}

// Applied implements raftrpc.Host.
func (e *Engine) Applied() (index, term uint64) {
	r := e.raftUp.Load()
	if r == nil {
		return 0, 0 // it has not started
	}
	return e.fsm.applied.Load(), r.CurrentTerm()
}

func (t *timedLog) DeleteRange(from, to uint64) error {
	if to = t.spare(from, to); to < from {
		return nil
	}
	if last, err := t.logStore.LastIndex(); err == nil && to >= last {
		t.tail.drop(from)
	}
	err := t.logStore.DeleteRange(from, to)
	if err != nil {
		t.e.fail(fmt.Errorf("log: entries %d to %d cannot be dropped: %w", from, to, err))
	}
	return err
}

// Bounds of what stays behind a snapshot while there are other members.
const (
	// minTrailing is the least number of entries. It is more than a deposed master can have
	// stored in vain, so that its log is never longer than the snapshot it may be sent.
	minTrailing = 4 * window
	// lagFactor is how many times Options.TrailingBytes stay for members that lag behind, and
	// lagContact how lately they must have answered.
	lagFactor  = 4
	lagContact = 10 * time.Second
)

// spare returns up to where the log is dropped when Raft wants to drop it up to to: what
// other members may need soon stays.
func (t *timedLog) spare(from, to uint64) uint64 {
	last, err := t.logStore.LastIndex()
	if err != nil || to >= last || !t.several.Load() {
		return to // the whole log, or its end: what a member does with entries that do not count
	}
	keep := to + 1 - min(to, minTrailing)
	if at := t.marks.back(to, t.e.opts.TrailingBytes); at < keep {
		keep = at
	}
	if need := t.e.neededBy(); need < keep {
		keep = min(keep, max(need, t.marks.back(to, lagFactor*t.e.opts.TrailingBytes)))
	}
	if keep <= from {
		return from - 1
	}
	return min(to, keep-1)
}

// neededBy returns the first entry that a member lacks which answers and follows the log,
// or is being sent a snapshot.
func (e *Engine) neededBy() uint64 {
	need := uint64(math.MaxUint64)
	if at, ok := e.snaps.oldestOpen(); ok {
		need = at + 1
	}
	m := e.lead.master.Load()
	if m == nil {
		return need
	}
	for _, member := range e.memberList() {
		if member.Acknowledged > 0 && member.Silent >= 0 && member.Silent < lagContact {
			need = min(need, member.Acknowledged+1)
		}
	}
	return need
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

func (f fatalStable) Set(key, value []byte) error {
	f.e.log.timer.begin()
	defer f.e.log.timer.end()
	return f.check(f.StableStore.Set(key, value))
}

func (f fatalStable) SetUint64(key []byte, v uint64) error {
	f.e.log.timer.begin()
	defer f.e.log.timer.end()
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

// dropStaleLog drops a log that ends before the rows, or goes on differently, because
// the rows were taken over from another member and a crash came before the log was dropped.
func (e *Engine) dropStaleLog(at position) error {
	if at.index == 0 || at.index > e.meta.Load().Base {
		return nil
	}
	first, err := e.log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := e.log.LastIndex()
	if err != nil || last == 0 || first > at.index {
		return err
	}
	if last >= at.index {
		var l raft.Log
		if err := e.log.GetLog(at.index, &l); err != nil {
			return err
		}
		if l.Term == at.term {
			return nil
		}
	}
	e.opts.Logger.Info("the log from before the rows were taken over from another member is dropped", "first", first, "last", last, "rows", at.index)
	return e.log.DeleteRange(first, last)
}

// openLog opens the log and the store of the vote. The log must reach the entry at which
// the rows stand.
func (e *Engine) openLog(dir string, at position) error {
	if e.opts.Memory {
		e.log, e.stable = newTimedLog(e, &memLog{}), raft.NewInmemStore()
		return nil
	}
	durability := wal.DurabilityFsync
	if e.opts.Durability == Interval {
		durability = wal.DurabilityInterval
	}
	mustHave := at.index
	if at.index <= e.meta.Load().Base {
		mustHave = 0 // taken over from another member, not from the log
	}
	log, found, err := wal.Open(dir, wal.Options{
		SegmentBytes: e.opts.segmentBytes,
		Durability:   durability,
		SyncInterval: e.opts.SyncInterval,
		MustHave:     mustHave,
		FS:           e.opts.logFS,
		Logger:       e.opts.Logger,
		OnSync:       func(d time.Duration) { e.metrics.syncTime.observe(d.Seconds()) },
	})
	if err != nil {
		return err
	}
	e.log, e.wal, e.found = newTimedLog(e, log), log, found
	e.log.marks.found(found.FirstIndex, found.LastIndex, found.Bytes)
	stable, err := wal.OpenStable(dir, wal.StableOptions{FS: e.opts.logFS, MustExist: found.LastIndex > 0 || at.index > 0})
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
