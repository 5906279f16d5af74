package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Names in the folder: numbered segments, prepared files for future segments (of zeros, or recycled), files being made.
const (
	extSegment  = ".seg"
	extZero     = ".zero"
	extRecycled = ".old"
	extTemp     = ".tmp"
	extBad      = ".bad"
)

func segmentName(seq uint64) string { return fmt.Sprintf("%016x%s", seq, extSegment) }

// parseName returns the number in a file name of ours.
func parseName(name, ext string) (uint64, bool) {
	hex, ok := strings.CutSuffix(name, ext)
	if !ok || len(hex) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(hex, 16, 64)
	return n, err == nil
}

// readChunk is how much recovery reads at once.
const readChunk = 1 << 20

// window reads a file front to back in big pieces.
type window struct {
	f     File
	size  int64
	buf   []byte
	start int64
	chunk int // bytes read at once at least, 0 for readChunk
}

// at returns n bytes from off, valid until the next call. The caller makes sure that they lie within the file.
func (w *window) at(off int64, n int) ([]byte, error) {
	if off >= w.start && off+int64(n) <= w.start+int64(len(w.buf)) {
		return w.buf[off-w.start:][:n], nil
	}
	chunk := w.chunk
	if chunk == 0 {
		chunk = readChunk
	}
	want := int(min(max(int64(n), int64(chunk)), w.size-off))
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.start, w.buf = off, w.buf[:want]
	got, err := w.f.ReadAt(w.buf, off)
	w.buf = w.buf[:got]
	if got < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return w.buf[:n], nil
}

// scanned is what is in one segment file.
type scanned struct {
	seq       uint64
	name      string
	path      string
	size      int64
	header    segmentHeader
	headerErr error // errBadHeader when the header is not there

	frames   int
	first    int64 // where the first frame begins
	last     int64 // where the last valid frame begins, 0 if there is none
	end      int64 // where the next frame would begin
	sealed   bool
	dirtyEnd int64  // end of what an unfinished write left behind end; end when there is nothing
	claim    *claim // a valid frame behind end
}

// claim is a valid frame behind a place where none can be read.
type claim struct {
	off    int64
	synced uint64 // the highest among such frames
	last   uint64 // the highest entry index in such frames
}

func (s *scanned) begun() bool { return s.headerErr == nil || s.claim != nil }

// unproven is a frame that no later frame has said to be durable.
type unproven struct {
	seq uint64
	off int64
}

// chain is the log as it can be read from a folder.
type chain struct {
	dir      string
	segs     []*scanned // oldest first; what the log consists of
	stale    []string   // segments that were deleted but whose names are still there
	unbegun  *scanned   // a segment that was named but holds no frame
	bounds   bounds
	lastSeq  uint64
	clean    bool       // the last frame says that the log was closed
	unproven []unproven // in the last segment, in order
	index    sparseIndex
	tornAt   *scanned // the segment with an unfinished write at its end
	damage   *CorruptionError
	damaged  *scanned // the segment that damage is about, nil if it is missing
	bytes    int64    // of all frames
	buf      []byte   // read into
}

// openFunc opens a segment for the scan.
type openFunc func(path string) (File, error)

// segmentFiles sorts a folder's files by what they are.
type segmentFiles struct {
	segs    []*scanned
	spares  []FileInfo
	temps   []string
	highest uint64 // number among spares and temps
}

func listFiles(fs FS, dir string) (*segmentFiles, error) {
	files, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	out := &segmentFiles{}
	for _, f := range files {
		if seq, ok := parseName(f.Name, extSegment); ok {
			out.segs = append(out.segs, &scanned{seq: seq, name: f.Name, path: filepath.Join(dir, f.Name), size: f.Size})
			continue
		}
		for _, ext := range []string{extZero, extRecycled, extTemp} {
			n, ok := parseName(f.Name, ext)
			if !ok {
				continue
			}
			out.highest = max(out.highest, n)
			if ext == extTemp {
				out.temps = append(out.temps, f.Name)
			} else {
				out.spares = append(out.spares, f)
			}
		}
	}
	sort.Slice(out.segs, func(i, j int) bool { return out.segs[i].seq < out.segs[j].seq })
	return out, nil
}

// scanChain reads all segments. Damage is reported in the chain, not as an error: an error means that a file cannot be read
// or is of a newer version. It changes nothing.
func scanChain(dir string, files *segmentFiles, open openFunc) (*chain, error) {
	c := &chain{dir: dir}
	segs := files.segs
	// A gap in the numbers: what lies before it was being deleted when the process ended, or else it is found missing below.
	for i := len(segs) - 1; i > 0; i-- {
		if segs[i].seq != segs[i-1].seq+1 {
			for _, s := range segs[:i] {
				c.stale = append(c.stale, s.name)
			}
			segs = segs[i:]
			break
		}
	}
	started := false
	for i, s := range segs {
		f, err := open(s.path)
		if err != nil {
			return nil, fmt.Errorf("write-ahead log: cannot open %s: %w", s.path, err)
		}
		err = c.scan(s, f, !started)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, fmt.Errorf("write-ahead log: cannot read %s: %w", s.path, err)
		}
		if c.damage != nil {
			return c, nil
		}
		if s.frames == 0 {
			if c.judgeEmpty(s, i, segs) {
				return c, nil
			}
			break
		}
		started = true
		c.segs = append(c.segs, s)
		if s.sealed {
			continue
		}
		if i < len(segs)-1 {
			later, err := beganLater(segs[i+1:], c.lastSeq, open)
			if err != nil {
				return nil, err
			}
			if later != nil {
				c.corrupt(s, s.end, "the segment ends here although a later one was begun, "+later.name)
				return c, nil
			}
			for _, e := range segs[i+1:] {
				c.unbegun = e
			}
		}
		c.judgeTail(s)
		break
	}
	if c.damage == nil {
		c.checkStart(segs)
	}
	return c, nil
}

// judgeEmpty handles a segment without a valid frame, and tells whether it is damage.
func (c *chain) judgeEmpty(s *scanned, i int, segs []*scanned) bool {
	switch {
	case s.claim != nil && s.claim.synced > c.lastSeq:
		c.corruptClaim(s)
	case i < len(segs)-1:
		c.corrupt(s, 0, "the segment holds no readable frame although a later one is there, "+segs[len(segs)-1].name)
	case i == 0 && s.seq > 1:
		// Earlier segments are deleted only after a frame here has said so.
		c.corrupt(s, 0, "the oldest segment holds no readable frame")
	default:
		c.unbegun = s
		return false
	}
	return true
}

// judgeTail decides whether what follows the last frame of the log is damage or an unfinished write.
func (c *chain) judgeTail(s *scanned) {
	if s.claim != nil && s.claim.synced > c.lastSeq {
		c.corruptClaim(s)
		return
	}
	if s.dirtyEnd > s.end {
		c.tornAt = s
	}
}

// checkStart finds segments missing at the front.
func (c *chain) checkStart(segs []*scanned) {
	if c.bounds.empty() || len(segs) == 0 {
		return
	}
	if len(c.index.pos) > 0 && c.index.pos[0].index <= c.bounds.first {
		return
	}
	next := c.bounds.last + 1
	if len(c.index.pos) > 0 {
		next = c.index.pos[0].index
	}
	c.damage = &CorruptionError{
		File: filepath.Join(c.dir, segmentName(segs[0].seq-1)), NextIndex: c.bounds.first, LastIndex: next - 1,
		Detail: "a segment is missing",
	}
}

func (c *chain) corruptClaim(s *scanned) {
	c.corrupt(s, s.end, fmt.Sprintf("the frame here cannot be read, but a later one at byte %d says that it was durable", s.claim.off))
	c.damage.LastIndex = s.claim.last
}

func (c *chain) corrupt(s *scanned, off int64, detail string) {
	next := c.bounds.last + 1
	c.damage = &CorruptionError{File: s.path, Offset: off, NextIndex: next, Detail: detail}
	c.damaged = s
}

// beganLater returns the first of segs that shows any sign of having been written to in this life.
func beganLater(segs []*scanned, lastSeq uint64, open openFunc) (*scanned, error) {
	for _, s := range segs {
		f, err := open(s.path)
		if err != nil {
			return nil, fmt.Errorf("write-ahead log: cannot open %s: %w", s.path, err)
		}
		probe := &chain{lastSeq: lastSeq}
		err = probe.scan(s, f, false)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, fmt.Errorf("write-ahead log: cannot read %s: %w", s.path, err)
		}
		if s.begun() || probe.damage != nil {
			return s, nil
		}
	}
	return nil, nil
}

// scan reads one segment into s and moves the chain on by its frames. first says that the chain begins here.
func (c *chain) scan(s *scanned, f File, first bool) error {
	w := &window{f: f, size: s.size, start: -1, buf: c.buf[:0]}
	defer func() { c.buf = w.buf }()
	s.headerErr, s.first, s.end, s.dirtyEnd = errBadHeader, segmentHeaderSize, segmentHeaderSize, segmentHeaderSize
	if s.size >= segmentHeaderSize {
		b, err := w.at(0, segmentHeaderSize)
		if err != nil {
			return err
		}
		s.headerErr = s.header.parse(b, s.seq)
	}
	if errors.Is(s.headerErr, errNewVersion) {
		return s.headerErr
	}
	// A file has its full length before it becomes a segment.
	if s.size < MinSegmentBytes || s.headerErr == nil && uint64(s.size) < s.header.size {
		c.corrupt(s, s.size, fmt.Sprintf("the file was cut short: it has %d bytes", s.size))
		return nil
	}
	if s.headerErr != nil {
		s.end, s.dirtyEnd = 0, 0
		return s.findClaims(w, c.lastSeq, 0)
	}
	if first {
		c.bounds, c.lastSeq = s.header.bounds, s.header.firstSeq-1
	} else if s.header.firstSeq != c.lastSeq+1 || s.header.bounds != c.bounds {
		c.corrupt(s, 0, fmt.Sprintf("the segment begins with frame %d, but frame %d is the next", s.header.firstSeq, c.lastSeq+1))
		return nil
	}
	if err := c.frames(s, w); err != nil || c.damage != nil || s.sealed {
		return err
	}
	return s.findClaims(w, c.lastSeq, s.header.salt)
}

// frames reads the valid frames from the front.
func (c *chain) frames(s *scanned, w *window) error {
	var h frameHeader
	for s.end+frameHeaderSize <= s.size && !s.sealed {
		b, err := w.at(s.end, frameHeaderSize)
		if err != nil {
			return err
		}
		if !h.parse(b) || h.salt != s.header.salt || h.seq != c.lastSeq+1 || s.end+h.size() > s.size {
			break
		}
		if b, err = w.at(s.end, int(h.size())); err != nil {
			return err
		}
		if checksum(b, s.seq, s.end) != h.crc {
			break
		}
		err = checkBody(&h, b)
		var next bounds
		if err == nil {
			next, err = c.bounds.apply(&h, b)
		}
		if err != nil {
			c.corrupt(s, s.end, err.Error())
			return nil
		}
		c.accept(s, &h, next)
	}
	s.dirtyEnd = s.end
	return nil
}

// accept moves the chain on by one valid frame.
func (c *chain) accept(s *scanned, h *frameHeader, next bounds) {
	switch h.kind {
	case kindEntries:
		c.index.add(h.first, s.seq, s.end)
	case kindBounds:
		c.index.trim(next)
	}
	c.bounds, c.lastSeq, c.clean = next, h.seq, h.kind == kindClosed
	s.sealed = h.kind == kindSealed
	if s.frames == 0 {
		c.unproven = nil
	}
	done := 0
	for done < len(c.unproven) && c.unproven[done].seq <= h.synced {
		done++
	}
	c.unproven = append(c.unproven[done:], unproven{h.seq, s.end})
	s.frames++
	s.last = s.end
	s.end += h.size()
	c.bytes += h.size()
}

// findClaims looks behind the last frame for what else was written: valid frames, and where an unfinished write ends.
// salt 0 means that the header, and with it the salt, is unknown.
func (s *scanned) findClaims(w *window, lastSeq, salt uint64) error {
	var want [8]byte
	binary.LittleEndian.PutUint64(want[:], salt)
	zeros := salt != 0 && !s.header.recycled
	// Frames are found in pieces that overlap by a frame header.
	for base := s.end; base+frameHeaderSize <= s.size; base += readChunk - frameHeaderSize {
		n := int(min(readChunk, s.size-base))
		b, err := w.at(base, n)
		if err != nil {
			return err
		}
		if zeros {
			if i := lastNonZero(b); i >= 0 {
				s.dirtyEnd = max(s.dirtyEnd, base+int64(i)+1)
			}
		}
		// Candidates are copied out: looking at one moves the window.
		for _, off := range candidates(b, base, want, salt, lastSeq) {
			if err := s.tryClaim(w, off, lastSeq, salt); err != nil {
				return err
			}
		}
	}
	return nil
}

// candidates returns the places in b, which begins at base, that may be frames.
func candidates(b []byte, base int64, want [8]byte, salt, lastSeq uint64) []int64 {
	var out []int64
	if salt != 0 {
		for i := 16; i+8 <= len(b); {
			j := bytes.Index(b[i:], want[:])
			if j < 0 {
				break
			}
			i += j
			if (i-16)%frameAlign == 0 && base%frameAlign == 0 {
				out = append(out, base+int64(i-16))
			}
			i++
		}
		return out
	}
	var h frameHeader
	for i := 0; i+frameHeaderSize <= len(b); i += frameAlign {
		seq := binary.LittleEndian.Uint64(b[i+24:])
		if seq > lastSeq && h.parse(b[i:]) {
			out = append(out, base+int64(i))
		}
	}
	return out
}

// tryClaim notes the frame at off if there is one.
func (s *scanned) tryClaim(w *window, off int64, lastSeq, salt uint64) error {
	if off+frameHeaderSize > s.size {
		return nil
	}
	if salt != 0 {
		s.dirtyEnd = max(s.dirtyEnd, off+frameHeaderSize)
	}
	b, err := w.at(off, frameHeaderSize)
	if err != nil {
		return err
	}
	var h frameHeader
	if !h.parse(b) || h.seq <= lastSeq || off+h.size() > s.size || salt != 0 && h.salt != salt {
		return nil
	}
	if b, err = w.at(off, int(h.size())); err != nil {
		return err
	}
	if salt != 0 {
		s.dirtyEnd = max(s.dirtyEnd, off+h.size())
	}
	if checksum(b, s.seq, off) != h.crc {
		return nil
	}
	if s.claim == nil {
		s.claim = &claim{off: off}
	}
	s.claim.synced = max(s.claim.synced, h.synced)
	if h.kind == kindEntries && h.count > 0 {
		s.claim.last = max(s.claim.last, h.first+uint64(h.count)-1)
	}
	return nil
}

// lastNonZero returns the index of the last byte of b that is not zero, or -1.
func lastNonZero(b []byte) int {
	n := len(b)
	for n >= 8 && binary.LittleEndian.Uint64(b[n-8:]) == 0 {
		n -= 8
	}
	for n > 0 && b[n-1] == 0 {
		n--
	}
	return n - 1
}
