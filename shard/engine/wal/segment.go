package wal

import (
	"crypto/rand"
	"encoding/binary"
	"path/filepath"
	"sync/atomic"
)

// segment is one file of the log.
type segment struct {
	seq      uint64
	path     string
	size     int64
	salt     uint64
	recycled bool
	f        File
	end      int64 // where the next frame goes; the writer's
	visible  int64 // up to where readers may read; guarded by Log.mu
	refs     atomic.Int32
	dropped  atomic.Bool // no longer part of the log: the file may be used again
}

// rotate seals the active segment and begins the next one, with room for a frame of total bytes.
func (l *Log) rotate(total int64) error {
	if l.active.Load() != nil {
		if err := l.writeFrame(&frameHeader{kind: kindSealed}, nil, 0); err != nil {
			return err
		}
		if err := l.sync(); err != nil {
			return err
		}
	}
	f, err := l.spares.take(segmentHeaderSize + total + markRoom)
	if err != nil {
		return l.fail("prepare a segment in", l.dir, err)
	}
	seg := &segment{
		seq: l.nextSeg, path: filepath.Join(l.dir, segmentName(l.nextSeg)), size: f.size, recycled: f.recycled,
		salt: newSalt(), end: segmentHeaderSize,
	}
	seg.refs.Store(1)
	if err := l.fs.Rename(f.path, seg.path); err != nil {
		return l.fail("name a segment", seg.path, err)
	}
	// Nothing is written into the file before its new name is durable: under the old one it is free for use.
	if l.opt.Durability != DurabilityNone {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return l.fail("sync the folder", l.dir, err)
		}
	}
	if seg.f, err = l.fs.Open(seg.path, true); err != nil {
		return l.fail("open", seg.path, err)
	}
	l.nextSeg++
	l.mu.Lock()
	l.segs = append(l.segs, seg)
	l.mu.Unlock()
	l.active.Store(seg)
	return nil
}

// newSalt returns a random number without a zero byte, which is found fast among zeros.
func newSalt() uint64 {
	var b [8]byte
	// Never fails, by its documentation.
	_, _ = rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) | 0x0101010101010101
}

// trim forgets deleted entries and returns the segments that hold no others.
func (l *Log) trim(b bounds) []*segment {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch++
	l.index.trim(b)
	oldest := l.active.Load().seq
	if len(l.index.pos) > 0 {
		oldest = l.index.pos[0].seg
	}
	n := 0
	for l.segs[n].seq < oldest {
		n++
	}
	drop := append([]*segment(nil), l.segs[:n]...)
	l.segs = append([]*segment(nil), l.segs[n:]...)
	return drop
}

// release gives up one use of a segment. The last one closes it and hands a deleted one's file on.
func (l *Log) release(s *segment) {
	if s.refs.Add(-1) > 0 {
		return
	}
	err := s.f.Close()
	if err == nil && s.dropped.Load() {
		err = l.spares.recycle(s.path, s.size)
	}
	if err != nil {
		// The next start removes it.
		l.opt.Logger.Warn("cannot reuse a segment of the write-ahead log", "file", s.path, "error", err)
	}
}
