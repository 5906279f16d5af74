package wal

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Recovery says what Open found.
type Recovery struct {
	// Clean tells that the log was closed in order, or is new.
	Clean                 bool
	FirstIndex, LastIndex uint64 // 0 for an empty log
	Segments              int
	Bytes                 int64 // of the frames read
	// TornBytes is the length of an unfinished write that was cut off the end of TornFile at TornOffset: it was never
	// acknowledged as durable. 0 if there was none.
	TornBytes  int64
	TornFile   string
	TornOffset int64
	Took       time.Duration
}

// Open opens the log in dir, or makes a new one. The Recovery is nil when an error is returned. A CorruptionError means
// that acknowledged entries are missing or damaged; nothing in the folder was changed then. See the package comment for
// the rule. Nobody else may use the folder at the same time; the caller sees to that.
func Open(dir string, opt Options) (*Log, *Recovery, error) {
	start := time.Now()
	if err := opt.setDefaults(); err != nil {
		return nil, nil, err
	}
	if err := opt.FS.MkdirAll(dir); err != nil {
		return nil, nil, fmt.Errorf("write-ahead log: cannot make its folder: %w", err)
	}
	files, err := listFiles(opt.FS, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("write-ahead log: cannot list its folder: %w", err)
	}
	c, err := scanChain(dir, files, func(path string) (File, error) { return opt.FS.Open(path, false) })
	if err != nil {
		return nil, nil, err
	}
	c.mustHave(opt.MustHave)
	if c.damage != nil {
		return nil, nil, c.damage
	}
	l := &Log{dir: dir, opt: opt, fs: opt.FS, dirty: make(chan struct{}, 1), stop: make(chan struct{})}
	if err := l.adopt(c, files); err != nil {
		l.closeFiles()
		return nil, nil, fmt.Errorf("write-ahead log: cannot take over what was found in %s: %w", dir, err)
	}
	rec := c.recovery()
	rec.Took = time.Since(start)
	l.spares.signal()
	go l.spares.run()
	if opt.Durability == DurabilityInterval {
		l.done.Add(1)
		go l.syncEvery()
	}
	return l, rec, nil
}

// mustHave turns a log that ends too early into damage.
func (c *chain) mustHave(index uint64) {
	if c.damage != nil || index <= c.bounds.last {
		return
	}
	c.damage = &CorruptionError{
		File: c.dir, NextIndex: c.bounds.last + 1, LastIndex: index,
		Detail: fmt.Sprintf("the log ends at index %d, but what it feeds has applied index %d", c.bounds.last, index),
	}
	if n := len(c.segs); n > 0 {
		c.damage.File, c.damage.Offset, c.damaged = c.segs[n-1].path, c.segs[n-1].end, c.segs[n-1]
	}
}

func (c *chain) recovery() *Recovery {
	r := &Recovery{Clean: c.clean || c.lastSeq == 0 && c.unbegun == nil, Segments: len(c.segs), Bytes: c.bytes}
	if n := len(c.segs); n > 0 && c.segs[n-1].sealed && c.unbegun == nil {
		r.Clean = true
	}
	if !c.bounds.empty() {
		r.FirstIndex, r.LastIndex = c.bounds.first, c.bounds.last
	}
	torn := c.tornAt
	if torn == nil && c.unbegun != nil && c.unbegun.dirtyEnd > c.unbegun.end {
		torn = c.unbegun
	}
	if torn != nil {
		r.Clean = false
		r.TornBytes, r.TornFile, r.TornOffset = torn.dirtyEnd-torn.end, torn.path, torn.end
	}
	return r
}

// adopt brings the folder into order and takes over its segments.
func (l *Log) adopt(c *chain, files *segmentFiles) error {
	var doomed []string
	doomed = append(doomed, files.temps...)
	doomed = append(doomed, c.stale...)
	if c.unbegun != nil {
		doomed = append(doomed, c.unbegun.name)
	}
	var ready []spareFile
	for _, f := range files.spares {
		if f.Size < MinSegmentBytes || f.Size > l.opt.SegmentBytes || len(ready) == maxSpares {
			doomed = append(doomed, f.Name)
			continue
		}
		_, zero := parseName(f.Name, extZero)
		ready = append(ready, spareFile{path: filepath.Join(l.dir, f.Name), size: f.Size, recycled: !zero})
	}
	size := min(firstSegmentBytes, l.opt.SegmentBytes)
	l.nextSeg = 1
	for i, s := range c.segs {
		last := i == len(c.segs)-1
		f, err := l.fs.Open(s.path, last)
		if err != nil {
			return err
		}
		seg := &segment{seq: s.seq, path: s.path, size: s.size, salt: s.header.salt, recycled: s.header.recycled, f: f, end: s.end, visible: s.end}
		seg.refs.Store(1)
		l.segs = append(l.segs, seg)
		l.nextSeg = s.seq + 1
		if last {
			size = min(max(size, s.size*4), l.opt.SegmentBytes)
			if err := l.mend(c, s, f); err != nil {
				return err
			}
			if !s.sealed {
				l.active.Store(seg)
			}
		}
	}
	for _, name := range doomed {
		if err := l.fs.Remove(filepath.Join(l.dir, name)); err != nil {
			return err
		}
	}
	if l.opt.Durability != DurabilityNone {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return err
		}
	}
	l.spares = newSpares(l.fs, l.dir, l.opt.SegmentBytes, size, files.highest, l.lowSpace)
	l.spares.ready = ready
	l.seq, l.end, l.bounds, l.index = c.lastSeq, c.bounds, c.bounds, c.index
	l.index.force = true
	if c.clean {
		l.lastKind = kindClosed
	}
	l.written.Store(c.lastSeq)
	if l.opt.Durability != DurabilityNone {
		l.synced.Store(c.lastSeq)
	}
	return nil
}

// mend overwrites an unfinished write with zeros, so that nothing of it can ever be taken for a frame, and writes again
// what is not proven to be durable: bytes that were read may be in the system's memory only, left there by a failed sync.
func (l *Log) mend(c *chain, s *scanned, f File) error {
	torn := s.dirtyEnd > s.end
	proven := len(c.unproven) == 0 || c.clean && len(c.unproven) == 1
	if !torn && proven {
		return nil
	}
	for off := s.end; off < s.dirtyEnd; off += fillChunk {
		if err := writeAll(f, zeroChunk[:min(fillChunk, s.dirtyEnd-off)], off); err != nil {
			return err
		}
	}
	if !proven && l.opt.Durability != DurabilityNone {
		w := &window{f: f, size: s.end}
		for off := c.unproven[0].off; off < s.end; off += readChunk {
			b, err := w.at(off, int(min(readChunk, s.end-off)))
			if err != nil {
				return err
			}
			if err := writeAll(f, b, off); err != nil {
				return err
			}
		}
	}
	if l.opt.Durability == DurabilityNone {
		return nil
	}
	return f.Sync()
}

func writeAll(f File, b []byte, off int64) error {
	n, err := f.WriteAt(b, off)
	if err == nil && n < len(b) {
		err = errors.New("short write")
	}
	return err
}

func (l *Log) closeFiles() {
	for _, s := range l.segs {
		_ = s.f.Close()
	}
}
