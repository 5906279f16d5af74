package wal

import (
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// readOnce and readAhead are how much GetLog reads at once for an entry anywhere, and for one that follows the last.
const (
	readOnce  = 2 * indexGap
	readAhead = 64 << 10
)

// readCache holds the frame that was read last and where in it: entries are mostly read one after the other.
type readCache struct {
	mu    sync.Mutex
	seg   *segment // nil for nothing
	epoch uint64
	win   window
	off   int64 // of the frame
	frame []byte
	first uint64 // its first index
	count uint64 // of its entries that were not deleted since
	at    uint64 // the entry that rest begins with
	rest  []byte
}

// GetLog fills out with the entry at index, or returns raft.ErrLogNotFound. The entry's bytes are its own.
func (l *Log) GetLog(index uint64, out *raft.Log) error {
	if err := l.usable(); err != nil {
		return err
	}
	l.mu.RLock()
	if !l.bounds.contains(index) || len(l.segs) == 0 {
		l.mu.RUnlock()
		return raft.ErrLogNotFound
	}
	p, until, ok := l.index.find(index)
	if !ok {
		l.mu.RUnlock()
		return fmt.Errorf("write-ahead log: no place is known for index %d", index)
	}
	until = min(until, l.bounds.last+1)
	seg := l.segs[p.seg-l.segs[0].seq]
	limit, epoch := seg.visible, l.epoch
	seg.refs.Add(1)
	l.mu.RUnlock()
	defer l.release(seg)

	c := &l.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seg != seg || c.epoch != epoch || index < c.first || index-c.first >= c.count {
		if err := c.load(seg, epoch, p, until, limit, index); err != nil {
			l.opt.Logger.Error("an entry of the write-ahead log cannot be read", "index", index, "error", err)
			return err
		}
	}
	c.read(index, out)
	return nil
}

// load makes the frame that holds index the current one.
func (c *readCache) load(seg *segment, epoch uint64, p position, until uint64, limit int64, index uint64) error {
	off := p.off
	chunk := readOnce
	if c.seg == seg && c.epoch == epoch {
		if c.first >= p.index && c.first+c.count <= index {
			off, chunk = c.off+int64(len(c.frame)), readAhead
		}
	} else if c.win.f != seg.f {
		c.win = window{f: seg.f, buf: c.win.buf[:0]}
	}
	c.win.size, c.win.chunk = limit, chunk
	c.seg = nil
	var h frameHeader
	for off+frameHeaderSize <= limit {
		b, err := c.win.at(off, frameHeaderSize)
		if err != nil {
			return fmt.Errorf("write-ahead log: cannot read %s: %w", seg.path, err)
		}
		if !h.parse(b) || h.salt != seg.salt || off+h.size() > limit {
			return &CorruptionError{File: seg.path, Offset: off, NextIndex: index, Detail: "the frame here was readable before"}
		}
		if h.kind != kindEntries || index < h.first || index-h.first >= uint64(h.count) {
			off += h.size()
			continue
		}
		if b, err = c.win.at(off, int(h.size())); err != nil {
			return fmt.Errorf("write-ahead log: cannot read %s: %w", seg.path, err)
		}
		if checksum(b, seg.seq, off) != h.crc {
			return &CorruptionError{File: seg.path, Offset: off, NextIndex: h.first, LastIndex: h.first + uint64(h.count) - 1, Detail: "the frame here was readable before"}
		}
		c.seg, c.epoch, c.off, c.frame, c.first = seg, epoch, off, b, h.first
		c.count = min(uint64(h.count), until-h.first)
		c.at, c.rest = h.first, b[frameHeaderSize:frameHeaderSize+int64(h.body)]
		return nil
	}
	return &CorruptionError{File: seg.path, Offset: off, NextIndex: index, Detail: "the entry is not where it was"}
}

// read takes an entry out of the current frame, whose entries were checked when it was written or when the log was opened.
func (c *readCache) read(index uint64, out *raft.Log) {
	if index < c.at {
		h := frameHeader{}
		h.parse(c.frame)
		c.at, c.rest = c.first, c.frame[frameHeaderSize:frameHeaderSize+int64(h.body)]
	}
	for {
		n, ok := entrySpan(c.rest)
		if !ok {
			panic("write-ahead log: a checked frame is short")
		}
		entry := c.rest[:n]
		if c.at == index {
			readEntry(entry, index, out)
			break
		}
		c.rest = c.rest[n:]
		c.at++
	}
	if cap(c.win.buf) > keepBuffer && index-c.first == c.count-1 {
		c.seg, c.frame, c.rest = nil, nil, nil
		c.win = window{}
	}
}
