package wal

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// Report says what is in a log's folder. It can be shown as JSON.
type Report struct {
	Dir        string          `json:"dir"`
	OK         bool            `json:"ok"`
	FirstIndex uint64          `json:"first_index"` // 0 for an empty log
	LastIndex  uint64          `json:"last_index"`
	Clean      bool            `json:"clean"` // closed in order
	Bytes      int64           `json:"bytes"`
	Segments   []SegmentReport `json:"segments"`
	// TailFile and TailOffset say where the next frame would be written: what a crash may leave unfinished lies there.
	// Empty when the next frame begins a new segment.
	TailFile   string `json:"tail_file,omitempty"`
	TailOffset int64  `json:"tail_offset,omitempty"`
	TornBytes  int64  `json:"torn_bytes,omitempty"` // of an unfinished write there, which Open will cut off
	// Damage is the error that Open returns, empty when it can be opened.
	Damage       string   `json:"damage,omitempty"`
	DamageFile   string   `json:"damage_file,omitempty"`
	DamageOffset int64    `json:"damage_offset,omitempty"`
	Leftovers    []string `json:"leftovers,omitempty"` // files of deleted or not begun segments, which Open will remove
}

// SegmentReport describes one file.
type SegmentReport struct {
	File       string `json:"file"`
	Segment    uint64 `json:"segment"`
	Size       int64  `json:"size"`
	Frames     int    `json:"frames"`
	FirstFrame int64  `json:"first_frame"` // offset of the first frame
	LastFrame  int64  `json:"last_frame"`  // offset of the last readable frame
	End        int64  `json:"end"`         // offset behind it
	Sealed     bool   `json:"sealed"`
}

// Check reads the log in dir and changes nothing. The log may be in use: then its end may look unfinished.
// fs is nil for the machine's.
func Check(dir string, fs FS) (*Report, error) {
	if fs == nil {
		fs = OS
	}
	files, err := listFiles(fs, dir)
	if err != nil {
		return nil, fmt.Errorf("write-ahead log: cannot list its folder: %w", err)
	}
	c, err := scanChain(dir, files, func(path string) (File, error) { return fs.Open(path, false) })
	if err != nil {
		return nil, err
	}
	return c.report(), nil
}

func (c *chain) report() *Report {
	rec := c.recovery()
	r := &Report{
		Dir: c.dir, OK: c.damage == nil, FirstIndex: rec.FirstIndex, LastIndex: rec.LastIndex, Clean: rec.Clean && c.damage == nil,
		Bytes: c.bytes, Leftovers: c.stale,
	}
	if c.unbegun != nil {
		r.Leftovers = append(r.Leftovers, c.unbegun.name)
	}
	segs := c.segs
	if c.damaged != nil && (len(segs) == 0 || segs[len(segs)-1] != c.damaged) {
		segs = append(segs[:len(segs):len(segs)], c.damaged)
	}
	for _, s := range segs {
		r.Segments = append(r.Segments, SegmentReport{
			File: s.path, Segment: s.seq, Size: s.size, Frames: s.frames, FirstFrame: s.first, LastFrame: s.last, End: s.end, Sealed: s.sealed,
		})
	}
	if c.damage != nil {
		r.Damage, r.DamageFile, r.DamageOffset = c.damage.Error(), c.damage.File, c.damage.Offset
		return r
	}
	if n := len(c.segs); n > 0 && !c.segs[n-1].sealed {
		r.TailFile, r.TailOffset = c.segs[n-1].path, c.segs[n-1].end
	}
	r.TornBytes = rec.TornBytes
	return r
}

// Repaired says what Repair did.
type Repaired struct {
	Damage string   `json:"damage"`          // what was wrong, empty if nothing was
	Moved  []string `json:"moved,omitempty"` // files that hold what was cut off
	// FirstIndex and LastIndex are what the log holds now, 0 if it is empty.
	FirstIndex uint64 `json:"first_index"`
	LastIndex  uint64 `json:"last_index"`
	// LostFrom and LostTo are the indexes that were cut off. LostTo is 0 if it is not known how far the log went.
	LostFrom uint64 `json:"lost_from,omitempty"`
	LostTo   uint64 `json:"lost_to,omitempty"`
}

// ErrNoRepair refuses a repair that would not leave a log behind.
var ErrNoRepair = errors.New("this damage cannot be repaired by cutting")

// Repair cuts a damaged log off before the first frame that cannot be read, and so LOSES ACKNOWLEDGED ENTRIES. It is for a
// person to decide, when there is neither a replica nor a backup. What is cut off is kept beside the log in files that end
// in .bad. A log that is not damaged is left as it is. Nobody may use the folder at the same time. fs is nil for the
// machine's.
//
// A state that has applied entries which are cut off stays ahead of the log: Open with its MustHave goes on refusing.
func Repair(dir string, fs FS) (*Repaired, error) {
	if fs == nil {
		fs = OS
	}
	files, err := listFiles(fs, dir)
	if err != nil {
		return nil, fmt.Errorf("write-ahead log: cannot list its folder: %w", err)
	}
	c, err := scanChain(dir, files, func(path string) (File, error) { return fs.Open(path, false) })
	if err != nil {
		return nil, err
	}
	out := &Repaired{}
	if !c.bounds.empty() {
		out.FirstIndex, out.LastIndex = c.bounds.first, c.bounds.last
	}
	if c.damage == nil {
		return out, nil
	}
	if c.damaged == nil {
		// The front is missing: cutting there leaves nothing.
		return nil, fmt.Errorf("%w: %v", ErrNoRepair, c.damage)
	}
	out.Damage, out.LostFrom, out.LostTo = c.damage.Error(), c.damage.NextIndex, c.damage.LastIndex
	// From the end: should this be cut short, the log is still damaged and can be repaired again.
	for i := len(files.segs) - 1; i >= 0 && files.segs[i].seq > c.damaged.seq; i-- {
		if err := moveBad(fs, files.segs[i].path, out); err != nil {
			return nil, err
		}
	}
	if c.damaged.frames == 0 {
		err = moveBad(fs, c.damaged.path, out)
	} else {
		err = cutBad(fs, c.damaged, out)
	}
	if err == nil {
		err = fs.SyncDir(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("write-ahead log: repair: %w", err)
	}
	return out, nil
}

func moveBad(fs FS, path string, out *Repaired) error {
	bad, err := badName(fs, path)
	if err != nil {
		return err
	}
	if err := fs.Rename(path, bad); err != nil {
		return err
	}
	out.Moved = append(out.Moved, bad)
	return nil
}

// badName returns a name for what is cut off, unlike those of earlier repairs.
func badName(fs FS, path string) (string, error) {
	files, err := fs.List(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		name := fmt.Sprintf("%s.%d%s", path, n, extBad)
		if !slices.ContainsFunc(files, func(f FileInfo) bool { return f.Name == filepath.Base(name) }) {
			return name, nil
		}
	}
}

// cutBad copies what follows the last readable frame to a file of its own and overwrites it with zeros.
func cutBad(fs FS, s *scanned, out *Repaired) error {
	f, err := fs.Open(s.path, true)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	bad, err := badName(fs, s.path)
	if err != nil {
		return err
	}
	g, err := fs.Create(bad)
	if err != nil {
		return err
	}
	w := &window{f: f, size: size}
	for off := s.end; off < size && err == nil; off += readChunk {
		var b []byte
		if b, err = w.at(off, int(min(readChunk, size-off))); err == nil {
			err = writeAll(g, b, off-s.end)
		}
	}
	if err == nil {
		err = g.Sync()
	}
	if cerr := g.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fs.SyncDir(filepath.Dir(s.path))
	}
	if err != nil {
		return err
	}
	out.Moved = append(out.Moved, bad)
	// The file may have been cut short: its header says how long it is.
	end := max(size, int64(min(s.header.size, MaxSegmentBytes+maxEntryBytes)))
	for off := s.end; off < end; off += fillChunk {
		if err := writeAll(f, zeroChunk[:min(fillChunk, end-off)], off); err != nil {
			return err
		}
	}
	return f.Sync()
}
