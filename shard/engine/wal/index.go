package wal

import (
	"math"
	"sort"
)

// indexGap is the distance in bytes between the frames that a sparse index keeps.
const indexGap = 4096

// position says where the frame lies that begins with an entry.
type position struct {
	index uint64 // of the entry
	seg   uint64 // number of the segment
	off   int64
}

// sparseIndex finds the frame of an entry: it keeps a bounded share of the frames, in order. From a kept frame on, the
// frames up to the next kept one hold consecutive entries that all count.
type sparseIndex struct {
	pos   []position
	force bool // keep the next frame: entries were deleted before it
}

// add notes a frame that was appended.
func (x *sparseIndex) add(index, seg uint64, off int64) {
	if n := len(x.pos); n > 0 && !x.force {
		if p := &x.pos[n-1]; p.seg == seg && off-p.off < indexGap {
			return
		}
	}
	x.force = false
	x.pos = append(x.pos, position{index, seg, off})
}

// trim drops what is outside b.
func (x *sparseIndex) trim(b bounds) {
	x.force = true
	if b.empty() {
		x.pos = nil
		return
	}
	n := len(x.pos)
	for n > 0 && x.pos[n-1].index > b.last {
		n--
	}
	drop := 0
	for drop+1 < n && x.pos[drop+1].index <= b.first {
		drop++
	}
	if drop > 0 {
		// A new array, so that the old one does not stay for its last part.
		x.pos = append([]position(nil), x.pos[drop:n]...)
		return
	}
	x.pos = x.pos[:n]
}

// find returns the kept frame from which index is found by walking forward, and the index of the next kept frame: entries
// from there on that are met on the way were deleted.
func (x *sparseIndex) find(index uint64) (p position, until uint64, ok bool) {
	i := sort.Search(len(x.pos), func(i int) bool { return x.pos[i].index > index })
	if i == 0 {
		return position{}, 0, false
	}
	until = math.MaxUint64
	if i < len(x.pos) {
		until = x.pos[i].index
	}
	return x.pos[i-1], until, true
}
