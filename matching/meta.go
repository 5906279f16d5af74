package matching

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// meta is the row that stands for a partition. The owner rewrites it with every
// batch, so it is exact.
type meta struct {
	uid     uint64
	rangeID uint64
	// batch is the number of the last write under this range id. Writes follow one
	// another without a gap, or are refused.
	batch   uint64
	nextSeq uint64
	// lastAdded keeps the time of adding from running backwards over a restart.
	lastAdded int64
	counts    counts
	// legacyFrom: fresh tasks that were added before there were places have at least
	// this sequence number; 0 when there are none.
	legacyFrom uint64
	levels     [maxLevel + 1]levelMeta
	used       byte // a bit for each level that is not all zero
}

// levelMeta is what the meta row keeps of one priority.
type levelMeta struct {
	fresh int64
	// base is the virtual time that has been reached, and last the place of the last
	// task without a fairness key.
	base, last uint64
	// low: no fresh task has an earlier place.
	low uint64
}

// counts are numbers of rows.
type counts struct {
	fresh     int64 // bodies in the backlog without a lease, over all levels
	scheduled int64
	leased    int64
	dead      int64
}

const (
	metaVersion = 2
	// metaFixed is the part that fences: version, uid, range id, batch.
	metaFixed = 1 + 3*8
	// Version 1 had no levels and no batches.
	metaVersion1 = 1
	metaSize1    = 1 + 4*8 + 5*8
)

func (m *meta) append(b []byte) []byte {
	b = append(b, metaVersion)
	b = binary.BigEndian.AppendUint64(b, m.uid)
	b = binary.BigEndian.AppendUint64(b, m.rangeID)
	b = binary.BigEndian.AppendUint64(b, m.batch)
	b = binary.AppendUvarint(b, m.nextSeq)
	b = binary.AppendVarint(b, m.lastAdded)
	b = binary.AppendVarint(b, m.counts.scheduled)
	b = binary.AppendVarint(b, m.counts.leased)
	b = binary.AppendVarint(b, m.counts.dead)
	b = binary.AppendUvarint(b, m.legacyFrom)
	b = append(b, m.used)
	for used := m.used; used != 0; used &= used - 1 {
		l := &m.levels[bits.TrailingZeros8(used)]
		b = binary.AppendVarint(b, l.fresh)
		b = binary.AppendUvarint(b, l.base)
		b = binary.AppendUvarint(b, l.last)
		b = binary.AppendUvarint(b, l.low)
	}
	return b
}

func (m *meta) decode(b []byte) error {
	*m = meta{}
	if len(b) == 0 {
		return corrupt("partition meta")
	}
	switch b[0] {
	case metaVersion1:
		return m.decode1(b)
	case metaVersion:
	default:
		return fmt.Errorf("matching: partition meta has version %d, this program knows %d: upgrade it", b[0], metaVersion)
	}
	r := reader{b: b[1:]}
	m.uid, m.rangeID, m.batch = r.u64(), r.u64(), r.u64()
	m.nextSeq, m.lastAdded = r.uvarint(), r.varint()
	m.counts.scheduled, m.counts.leased, m.counts.dead = r.varint(), r.varint(), r.varint()
	m.legacyFrom = r.uvarint()
	if m.used = r.byte(); m.used >= 1<<len(m.levels) {
		return corrupt("partition meta")
	}
	for used := m.used; used != 0; used &= used - 1 {
		l := &m.levels[bits.TrailingZeros8(used)]
		l.fresh, l.base, l.last, l.low = r.varint(), r.uvarint(), r.uvarint(), r.uvarint()
		m.counts.fresh += l.fresh
	}
	return r.end("partition meta")
}

// decode1 reads the row as it was before there were priorities: all fresh tasks are
// of the default level and have no place but their sequence number.
func (m *meta) decode1(b []byte) error {
	if len(b) != metaSize1 {
		return corrupt("partition meta")
	}
	u := func(i int) uint64 { return binary.BigEndian.Uint64(b[i:]) }
	m.uid, m.rangeID, m.nextSeq, m.legacyFrom = u(1), u(9), u(17), u(25)
	m.counts = counts{int64(u(33)), int64(u(41)), int64(u(49)), int64(u(57))}
	m.lastAdded = int64(u(65))
	m.levels[defaultLevel].fresh = m.counts.fresh
	m.used = 1 << defaultLevel
	return nil
}

// metaIdentity reads only what fences.
func metaIdentity(b []byte) (uid, rangeID, batch uint64, ok bool) {
	switch {
	case len(b) == metaSize1 && b[0] == metaVersion1:
	case len(b) >= metaFixed && b[0] == metaVersion:
		batch = binary.BigEndian.Uint64(b[17:])
	default:
		return 0, 0, 0, false
	}
	return binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]), batch, true
}

// count notes that a number of tasks got fresh, or are it no longer.
func (m *meta) count(level uint8, n int64) {
	m.counts.fresh += n
	m.levels[level].fresh += n
	m.used |= 1 << level
}

// newMeta is the row of a partition that is new.
func newMeta(uid uint64) meta { return meta{uid: uid, nextSeq: 1} }
