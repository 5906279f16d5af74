package wal

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// keepBuffer is the largest write buffer that is kept for the next call.
const keepBuffer = 4 << 20

// Log is a durable raft log. All methods are safe for concurrent use.
type Log struct {
	dir string
	opt Options
	fs  FS

	// w guards writing: one writer at a time.
	w        sync.Mutex
	buf      []byte
	seq      uint64 // of the last frame
	lastKind frameKind
	end      bounds // with what is being stored
	nextSeg  uint64
	pending  []position

	// active is the segment that is written to, nil before the first frame and after a sealed last segment.
	active  atomic.Pointer[segment]
	written atomic.Uint64 // seq of the last frame written
	synced  atomic.Uint64 // seq of the last frame known durable
	unsync  atomic.Int64  // bytes written and not synced
	// syncMu makes syncs one after the other: the error of a sync is told only once by the system, and a sync beside it
	// would claim what failed.
	syncMu sync.Mutex
	failed atomic.Pointer[FailedError]
	closed atomic.Bool

	// mu guards what readers see.
	mu     sync.RWMutex
	segs   []*segment
	index  sparseIndex
	bounds bounds
	epoch  uint64 // counts deletions at the end

	cache  readCache
	spares *spares
	dirty  chan struct{}
	stop   chan struct{}
	done   sync.WaitGroup
}

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
)

// IsMonotonic tells raft that indexes have no gaps.
func (l *Log) IsMonotonic() bool { return true }

// FirstIndex returns the first index in the log, 0 if it is empty.
func (l *Log) FirstIndex() (uint64, error) {
	b, err := l.current()
	return b.first, err
}

// LastIndex returns the last index in the log, 0 if it is empty.
func (l *Log) LastIndex() (uint64, error) {
	b, err := l.current()
	return b.last, err
}

func (l *Log) current() (bounds, error) {
	if err := l.usable(); err != nil {
		return bounds{}, err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.bounds.empty() {
		return bounds{}, nil
	}
	return l.bounds, nil
}

// usable returns why the log can no longer be used, if so.
func (l *Log) usable() error {
	if f := l.failed.Load(); f != nil {
		return f
	}
	if l.closed.Load() {
		return ErrClosed
	}
	return nil
}

// fail makes the log refuse everything from now on. The first failure stays.
func (l *Log) fail(op, file string, err error) error {
	f := &FailedError{Op: op, File: file, Err: err}
	if l.failed.CompareAndSwap(nil, f) {
		l.opt.Logger.Error("write-ahead log failed", "op", op, "file", file, "error", err)
	}
	return l.failed.Load()
}

// StoreLog is StoreLogs of one entry.
func (l *Log) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs appends entries, whose indexes must follow each other and the last one; into an empty log any first index is
// fine. With DurabilityFsync they are durable when it returns. It keeps nothing of logs. ErrNotContiguous and ErrTooLarge
// leave the log as it was; any other error is a FailedError and final.
func (l *Log) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return l.usable()
	}
	l.w.Lock()
	defer l.w.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if err := l.checkNew(logs); err != nil {
		return err
	}
	l.pending = l.pending[:0]
	for len(logs) > 0 {
		n, body := 1, entrySize(logs[0])
		for n < len(logs) && body+entrySize(logs[n]) <= maxFrameBody {
			body += entrySize(logs[n])
			n++
		}
		h := frameHeader{kind: kindEntries, body: uint32(body), count: uint32(n), first: logs[0].Index}
		if err := l.writeFrame(&h, logs[:n], 0); err != nil {
			return err
		}
		if l.end.empty() {
			l.end.first = h.first
		}
		l.end.last = h.first + uint64(n) - 1
		logs = logs[n:]
	}
	if err := l.settle(); err != nil {
		return err
	}
	l.publish(l.end)
	return nil
}

// checkNew refuses entries that cannot be appended.
func (l *Log) checkNew(logs []*raft.Log) error {
	next := logs[0].Index
	if !l.end.empty() {
		next = l.end.last + 1
	}
	for _, e := range logs {
		if e.Index != next || next == 0 || next == ^uint64(0) {
			return fmt.Errorf("%w: %d comes where %d should", ErrNotContiguous, e.Index, next)
		}
		if int64(len(e.Data))+int64(len(e.Extensions)) > maxEntryBytes {
			return fmt.Errorf("%w: entry %d has %d bytes, the limit is %d", ErrTooLarge, e.Index, len(e.Data)+len(e.Extensions), maxEntryBytes)
		}
		next++
	}
	return nil
}

// writeFrame encodes and writes one frame, into the next segment if it does not fit this one. h lacks salt and sequence
// numbers. The body is logs, or last for new bounds. l.end is as before the frame.
func (l *Log) writeFrame(h *frameHeader, logs []*raft.Log, last uint64) error {
	total, head := h.size(), int64(0)
	seg := l.active.Load()
	if seg == nil || seg.end+total+markRoom > seg.size && h.kind != kindSealed {
		if err := l.rotate(total); err != nil {
			return err
		}
		seg, head = l.active.Load(), segmentHeaderSize
	}
	h.salt, h.seq, h.synced = seg.salt, l.seq+1, l.synced.Load()
	if int64(cap(l.buf)) < head+total {
		l.buf = make([]byte, 0, head+total+total/4)
	}
	buf := l.buf[:head+total]
	frame := buf[head:]
	h.put(frame)
	body := frame[:frameHeaderSize]
	for _, e := range logs {
		body = appendEntry(body, e)
	}
	if h.kind == kindBounds {
		body = binary.LittleEndian.AppendUint64(body, last)
	}
	clear(frame[len(body):])
	seal(frame, seg.seq, seg.end)
	if head > 0 {
		hdr := segmentHeader{
			version: formatVersion, recycled: seg.recycled, seq: seg.seq, salt: seg.salt, firstSeq: h.seq,
			bounds: l.end, size: uint64(seg.size),
		}
		hdr.put(buf)
	}
	if cap(l.buf) > keepBuffer {
		l.buf = nil
	}
	n, err := seg.f.WriteAt(buf, seg.end-head)
	if err == nil && n < len(buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return l.fail("write", seg.path, err)
	}
	if h.kind == kindEntries {
		l.pending = append(l.pending, position{h.first, seg.seq, seg.end})
	}
	seg.end += total
	l.seq, l.lastKind = h.seq, h.kind
	l.unsync.Add(total)
	l.written.Store(h.seq)
	return nil
}

// settle makes what was written as durable as the options ask for.
func (l *Log) settle() error {
	switch l.opt.Durability {
	case DurabilityFsync:
		return l.sync()
	case DurabilityInterval:
		if l.unsync.Load() > l.opt.MaxUnsyncedBytes {
			return l.sync()
		}
		select {
		case l.dirty <- struct{}{}:
		default:
		}
	}
	return nil
}

// sync makes all that was written durable.
func (l *Log) sync() error {
	if l.opt.Durability == DurabilityNone {
		return nil
	}
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if f := l.failed.Load(); f != nil {
		return f
	}
	// In this order: a frame is counted as written after its segment is active, and a segment is left only synced.
	seq, bytes := l.written.Load(), l.unsync.Load()
	seg := l.active.Load()
	if seg == nil || seq == l.synced.Load() {
		return nil
	}
	var start time.Time
	if l.opt.OnSync != nil {
		start = time.Now()
	}
	if err := seg.f.Sync(); err != nil {
		return l.fail("sync", seg.path, err)
	}
	if l.opt.OnSync != nil {
		l.opt.OnSync(time.Since(start))
	}
	l.synced.Store(seq)
	l.unsync.Add(-bytes)
	return nil
}

// publish shows readers what was stored.
func (l *Log) publish(b bounds) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.pending {
		l.index.add(p.index, p.seg, p.off)
	}
	for i := len(l.segs) - 1; i >= 0 && l.segs[i].visible != l.segs[i].end; i-- {
		l.segs[i].visible = l.segs[i].end
	}
	l.bounds = b
}

// DeleteRange deletes the entries from min to max, which must include the first or the last one; what is not in the log is
// ignored. It is durable when it returns. Files that hold no other entries are used again or removed.
func (l *Log) DeleteRange(min, max uint64) error {
	l.w.Lock()
	defer l.w.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	old := l.end
	if min > max || old.empty() || max < old.first || min > old.last {
		return nil
	}
	b := old
	switch {
	case min <= old.first && max >= old.last:
		b.first = old.last + 1
	case min <= old.first:
		b.first = max + 1
	case max >= old.last:
		b.last = min - 1
	default:
		return fmt.Errorf("%w: %d to %d of %d to %d", ErrMiddle, min, max, old.first, old.last)
	}
	l.pending = l.pending[:0]
	h := frameHeader{kind: kindBounds, body: boundsBodySize, first: b.first}
	if err := l.writeFrame(&h, nil, b.last); err != nil {
		return err
	}
	l.end = b
	// Before a file goes, whatever the durability.
	if err := l.sync(); err != nil {
		return err
	}
	l.publish(b)
	for _, s := range l.trim(b) {
		s.dropped.Store(true)
		l.release(s)
	}
	return nil
}

// Sync makes everything stored so far durable, whatever the durability but DurabilityNone.
func (l *Log) Sync() error {
	if err := l.usable(); err != nil {
		return err
	}
	return l.sync()
}

// syncEvery syncs an interval after something was written.
func (l *Log) syncEvery() {
	defer l.done.Done()
	timer := time.NewTimer(l.opt.SyncInterval)
	defer timer.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-l.dirty:
		}
		timer.Reset(l.opt.SyncInterval)
		select {
		case <-l.stop:
			return
		case <-timer.C:
		}
		if l.sync() != nil {
			return
		}
	}
}

// Close makes everything durable, notes that the log was closed in order, and lets go of the files. A second Close does
// nothing. After a failure it closes the files and returns the failure.
func (l *Log) Close() error {
	l.w.Lock()
	defer l.w.Unlock()
	if l.closed.Load() {
		return nil
	}
	close(l.stop)
	l.done.Wait()
	l.spares.close()
	err := l.sayClosed()
	l.closed.Store(true)
	l.mu.Lock()
	segs := l.segs
	l.segs = nil
	l.mu.Unlock()
	for _, s := range segs {
		l.release(s)
	}
	return err
}

// sayClosed writes the mark of a clean end, so that damage to the last entries will be noticed.
func (l *Log) sayClosed() error {
	if f := l.failed.Load(); f != nil {
		return f
	}
	seg := l.active.Load()
	if seg == nil || l.lastKind == kindClosed {
		return nil
	}
	if err := l.sync(); err != nil {
		return err
	}
	kind := kindClosed
	if seg.end+frameHeaderSize+markRoom > seg.size {
		kind = kindSealed
	}
	if err := l.writeFrame(&frameHeader{kind: kind}, nil, 0); err != nil {
		return err
	}
	return l.sync()
}
