package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/hashicorp/raft"
)

// formatVersion is written into every segment header. A log of a newer version is refused.
const formatVersion = 1

const (
	segmentMagic      = 0x3130474f4c595753 // "SWYLOG01" in the file
	segmentHeaderSize = 64
	frameHeaderSize   = 48
	frameAlign        = 8
	entryHeaderSize   = 25
	boundsBodySize    = 8
	// markRoom is kept free in every segment for the frame that seals it.
	markRoom = frameHeaderSize
	// maxEntryBytes bounds one entry's data and extensions together.
	maxEntryBytes = 1 << 30
	// maxFrameBody bounds a frame: a larger StoreLogs becomes several frames (one larger entry is a frame by itself).
	maxFrameBody = 64 << 20
)

// frameKind says what a frame means.
type frameKind uint8

const (
	// kindEntries holds raft entries with consecutive indexes.
	kindEntries frameKind = iota + 1
	// kindBounds sets which indexes count from here on: it deletes a prefix, a suffix or all.
	kindBounds
	// kindClosed is written by a clean Close: all before it is durable.
	kindClosed
	// kindSealed ends a segment: the next frame is the first of the next segment.
	kindSealed
)

func (k frameKind) valid() bool { return k >= kindEntries && k <= kindSealed }

func (k frameKind) String() string {
	switch k {
	case kindEntries:
		return "entries"
	case kindBounds:
		return "bounds"
	case kindClosed:
		return "closed"
	case kindSealed:
		return "sealed"
	}
	return fmt.Sprintf("frameKind(%d)", uint8(k))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// bounds is the range of indexes in the log. first == last+1 is an empty log whose last entry, now deleted, was last;
// 0, 0 is a log that never had one.
type bounds struct{ first, last uint64 }

func (b bounds) empty() bool { return b.last == 0 || b.first > b.last }

// contains tells whether index is in the log.
func (b bounds) contains(index uint64) bool { return !b.empty() && index >= b.first && index <= b.last }

// segmentHeader opens a segment. It is written together with the segment's first frame.
type segmentHeader struct {
	version  uint16
	recycled bool   // the file held an older segment; its unused part is not zeros
	seq      uint64 // number of the segment, as in its file name
	salt     uint64 // random, no byte zero; says which incarnation of the file a frame belongs to
	firstSeq uint64 // sequence number of the first frame
	bounds   bounds // before the first frame
	size     uint64 // bytes of the file
}

const flagRecycled = 1

// put writes the header into b[:segmentHeaderSize].
func (h *segmentHeader) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], segmentMagic)
	le.PutUint16(b[12:], h.version)
	flags := uint16(0)
	if h.recycled {
		flags = flagRecycled
	}
	le.PutUint16(b[14:], flags)
	le.PutUint64(b[16:], h.seq)
	le.PutUint64(b[24:], h.salt)
	le.PutUint64(b[32:], h.firstSeq)
	le.PutUint64(b[40:], h.bounds.first)
	le.PutUint64(b[48:], h.bounds.last)
	le.PutUint64(b[56:], h.size)
	le.PutUint32(b[8:], crc32.Checksum(b[12:segmentHeaderSize], castagnoli))
}

var (
	errBadHeader  = errors.New("the segment header is damaged")
	errNewVersion = errors.New("made by a newer version of Switchyard")
)

// parse reads a header; seq is the segment number in the file's name.
func (h *segmentHeader) parse(b []byte, seq uint64) error {
	le := binary.LittleEndian
	if le.Uint64(b) != segmentMagic || le.Uint32(b[8:]) != crc32.Checksum(b[12:segmentHeaderSize], castagnoli) {
		return errBadHeader
	}
	*h = segmentHeader{
		version:  le.Uint16(b[12:]),
		recycled: le.Uint16(b[14:])&flagRecycled != 0,
		seq:      le.Uint64(b[16:]),
		salt:     le.Uint64(b[24:]),
		firstSeq: le.Uint64(b[32:]),
		bounds:   bounds{le.Uint64(b[40:]), le.Uint64(b[48:])},
		size:     le.Uint64(b[56:]),
	}
	if h.version > formatVersion {
		return fmt.Errorf("%w: log format %d, this one reads up to %d", errNewVersion, h.version, formatVersion)
	}
	// A recycled file that was not begun still has the header of its former life.
	if h.seq != seq || h.size > math.MaxInt64 || h.firstSeq == 0 {
		return errBadHeader
	}
	return nil
}

// frameHeader opens a frame.
type frameHeader struct {
	crc    uint32
	kind   frameKind
	body   uint32 // bytes of the body without padding
	count  uint32 // entries
	salt   uint64
	seq    uint64 // 1, 2, 3 … over the whole life of the log
	synced uint64 // the highest sequence number known to be durable when this frame was written
	first  uint64 // entries: the first index; bounds: the first index that counts
}

// size is the frame's length on disk.
func (h *frameHeader) size() int64 { return frameSize(int64(h.body)) }

func frameSize(body int64) int64 {
	return frameHeaderSize + (body+frameAlign-1)&^(frameAlign-1)
}

// put writes all but the checksum into b[:frameHeaderSize].
func (h *frameHeader) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], uint32(h.kind))
	le.PutUint32(b[8:], h.body)
	le.PutUint32(b[12:], h.count)
	le.PutUint64(b[16:], h.salt)
	le.PutUint64(b[24:], h.seq)
	le.PutUint64(b[32:], h.synced)
	le.PutUint64(b[40:], h.first)
}

// parse reads a header and tells whether it can be one.
func (h *frameHeader) parse(b []byte) bool {
	le := binary.LittleEndian
	kind := le.Uint32(b[4:])
	*h = frameHeader{
		crc:    le.Uint32(b),
		kind:   frameKind(kind),
		body:   le.Uint32(b[8:]),
		count:  le.Uint32(b[12:]),
		salt:   le.Uint64(b[16:]),
		seq:    le.Uint64(b[24:]),
		synced: le.Uint64(b[32:]),
		first:  le.Uint64(b[40:]),
	}
	return kind <= math.MaxUint8 && h.kind.valid() && h.seq > 0 && h.synced < h.seq && h.body <= maxEntryBytes+entryHeaderSize
}

// checksum is the CRC of a whole frame. Where the frame lies is part of it, so that a frame copied elsewhere, into the
// data of an entry say, is not a frame.
func checksum(frame []byte, segment uint64, off int64) uint32 {
	seed := segment*0x9e3779b97f4a7c15 ^ uint64(off)*0xc2b2ae3d27d4eb4f
	return crc32.Update(uint32(seed^seed>>32), castagnoli, frame[4:])
}

// seal completes a frame that lies at off of a segment.
func seal(frame []byte, segment uint64, off int64) {
	binary.LittleEndian.PutUint32(frame, checksum(frame, segment, off))
}

// entriesBody is the length of the frame body that holds logs.
func entrySize(l *raft.Log) int64 {
	return entryHeaderSize + int64(len(l.Data)) + int64(len(l.Extensions))
}

// appendEntry appends one entry to a frame body. Its index is implied by its place.
func appendEntry(dst []byte, l *raft.Log) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(len(l.Data)))
	dst = le.AppendUint32(dst, uint32(len(l.Extensions)))
	dst = le.AppendUint64(dst, l.Term)
	at := int64(math.MinInt64)
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	dst = le.AppendUint64(dst, uint64(at))
	dst = append(dst, byte(l.Type))
	dst = append(dst, l.Data...)
	return append(dst, l.Extensions...)
}

// entrySpan tells the length of the entry at the start of b, or false when b cannot hold it.
func entrySpan(b []byte) (int, bool) {
	if len(b) < entryHeaderSize {
		return 0, false
	}
	le := binary.LittleEndian
	n := entryHeaderSize + uint64(le.Uint32(b)) + uint64(le.Uint32(b[4:]))
	if n > uint64(len(b)) {
		return 0, false
	}
	return int(n), true
}

// readEntry fills l from the entry at the start of b, which entrySpan has measured. Data and extensions are copies.
func readEntry(b []byte, index uint64, l *raft.Log) {
	le := binary.LittleEndian
	data, ext := int(le.Uint32(b)), int(le.Uint32(b[4:]))
	*l = raft.Log{Index: index, Term: le.Uint64(b[8:]), Type: raft.LogType(b[24])}
	if at := int64(le.Uint64(b[16:])); at != math.MinInt64 {
		l.AppendedAt = time.Unix(0, at)
	}
	if data+ext == 0 {
		return
	}
	c := make([]byte, data+ext)
	copy(c, b[entryHeaderSize:])
	if data > 0 {
		l.Data = c[:data:data]
	}
	if ext > 0 {
		l.Extensions = c[data:]
	}
}

// checkBody tells what is wrong inside a frame whose checksum is right: nothing ever, unless it was made by a faulty
// program. frame is a whole frame.
func checkBody(h *frameHeader, frame []byte) error {
	body := frame[frameHeaderSize : frameHeaderSize+int64(h.body)]
	switch h.kind {
	case kindEntries:
		if h.count == 0 || h.first == 0 || h.first > math.MaxUint64-uint64(h.count) {
			return fmt.Errorf("a frame of %d entries from index %d", h.count, h.first)
		}
		for i := range h.count {
			n, ok := entrySpan(body)
			if !ok {
				return fmt.Errorf("entry %d of %d does not fit its frame", i+1, h.count)
			}
			body = body[n:]
		}
		if len(body) != 0 {
			return fmt.Errorf("%d bytes behind the last entry of a frame", len(body))
		}
	case kindBounds:
		if len(body) != boundsBodySize {
			return fmt.Errorf("a bounds frame of %d bytes", len(body))
		}
	default:
		if len(body) != 0 {
			return fmt.Errorf("a %v frame of %d bytes", h.kind, len(body))
		}
	}
	return nil
}

// apply returns the bounds after a frame that checkBody found right, or what is wrong with it after b.
func (b bounds) apply(h *frameHeader, frame []byte) (bounds, error) {
	switch h.kind {
	case kindEntries:
		if b.empty() {
			return bounds{h.first, h.first + uint64(h.count) - 1}, nil
		}
		if h.first != b.last+1 {
			return b, fmt.Errorf("entries from index %d follow index %d", h.first, b.last)
		}
		return bounds{b.first, b.last + uint64(h.count)}, nil
	case kindBounds:
		n := bounds{h.first, binary.LittleEndian.Uint64(frame[frameHeaderSize:])}
		if b.empty() || n.first < b.first || n.last > b.last || n.first > n.last+1 {
			return b, fmt.Errorf("bounds %d to %d follow %d to %d", n.first, n.last, b.first, b.last)
		}
		return n, nil
	}
	return b, nil
}
