package matching

import (
	"encoding/binary"
	"fmt"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// A batch is what one fenced write carries: rows to put and delete, and the
// calls that are answered once it is durable.
//
// Wire form, the argument of the function matching.write:
//
//	version 1 | hash 4 | uid 8 | range id 8 | key length 2 | partition key | meta row | operations
//
// and an operation:
//
//	kind 1 | space 1 | key length 2 | key | value length 4 | value
//
// where a range deletion has its end as value and a deletion has none.
type batch struct {
	args    []byte
	ops     int
	replies []replier
	ended   []byte // ids and sequence numbers of tasks that ended; see core_sweep.go
	metaAt  int    // where the meta row lies in args
	nextSeq uint64 // sequence numbers below it are durable with this batch
	number  uint64
}

// replier is a call that waits for its batch. It is told once.
type replier interface{ reply(err error) }

const writeVersion = 1

const (
	opPut byte = iota + 1
	opDelete
	opDeleteRange
)

// begin lays the head of a batch down.
func (b *batch) begin(hash uint32, uid, rangeID uint64, key string) {
	a := append(b.args[:0], writeVersion)
	a = binary.BigEndian.AppendUint32(a, hash)
	a = binary.BigEndian.AppendUint64(a, uid)
	a = binary.BigEndian.AppendUint64(a, rangeID)
	a = binary.BigEndian.AppendUint16(a, uint16(len(key)))
	a = append(a, key...)
	b.metaAt = len(a)
	for range metaSize {
		a = append(a, 0)
	}
	b.args = a
}

// seal writes the partition's meta row into its place.
func (b *batch) seal(m *meta) {
	m.append(b.args[b.metaAt:b.metaAt])
	b.nextSeq = m.nextSeq
}

// An operation is built in place: op, then the key appended to args, then endKey,
// then for a put the value appended, then endValue.

func (b *batch) op(kind byte, space storage.Space) (keyAt int) {
	b.ops++
	b.args = append(b.args, kind, byte(space), 0, 0)
	return len(b.args)
}

func (b *batch) endKey(keyAt int) {
	binary.BigEndian.PutUint16(b.args[keyAt-2:], uint16(len(b.args)-keyAt))
}

func (b *batch) beginValue() (valueAt int) {
	b.args = append(b.args, 0, 0, 0, 0)
	return len(b.args)
}

func (b *batch) endValue(valueAt int) {
	binary.BigEndian.PutUint32(b.args[valueAt-4:], uint32(len(b.args)-valueAt))
}

func (b *batch) putBody(loc location, uid, seq uint64, body []byte) (stored []byte) {
	k := b.op(opPut, loc.space())
	b.args = loc.appendBodyKey(b.args, uid, seq)
	b.endKey(k)
	v := b.beginValue()
	b.args = append(b.args, body...)
	b.endValue(v)
	return b.args[v:]
}

func (b *batch) deleteBody(loc location, uid, seq uint64) {
	k := b.op(opDelete, loc.space())
	b.args = loc.appendBodyKey(b.args, uid, seq)
	b.endKey(k)
}

func (b *batch) putID(uid uint64, id taskID, row *idRow) {
	k := b.op(opPut, spaceIDs)
	b.args = appendIDKey(b.args, uid, id)
	b.endKey(k)
	v := b.beginValue()
	b.args = row.append(b.args)
	b.endValue(v)
}

func (b *batch) deleteID(uid uint64, id taskID) {
	k := b.op(opDelete, spaceIDs)
	b.args = appendIDKey(b.args, uid, id)
	b.endKey(k)
}

// putRow and deleteRow are for the spaces whose keys are uid and sequence number.

func (b *batch) putRow(space storage.Space, uid, seq uint64, row interface{ append([]byte) []byte }) {
	k := b.op(opPut, space)
	b.args = appendSeqKey(b.args, uid, seq)
	b.endKey(k)
	v := b.beginValue()
	b.args = row.append(b.args)
	b.endValue(v)
}

func (b *batch) deleteRow(space storage.Space, uid, seq uint64) {
	k := b.op(opDelete, space)
	b.args = appendSeqKey(b.args, uid, seq)
	b.endKey(k)
}

func (b *batch) putSchedule(uid uint64, at int64, seq uint64, s *scheduled) {
	k := b.op(opPut, spaceSchedule)
	b.args = appendScheduleKey(b.args, uid, at, seq)
	b.endKey(k)
	v := b.beginValue()
	b.args = s.append(b.args)
	b.endValue(v)

	b.putRow(spaceWhen, uid, seq, when(at))
}

func (b *batch) deleteSchedule(uid uint64, at int64, seq uint64) {
	k := b.op(opDelete, spaceSchedule)
	b.args = appendScheduleKey(b.args, uid, at, seq)
	b.endKey(k)
	b.deleteRow(spaceWhen, uid, seq)
}

// writeArgs is a decoded batch head; ops is what follows it.
type writeArgs struct {
	hash         uint32
	uid, rangeID uint64
	key, meta    []byte
	ops          []byte
}

func (w *writeArgs) decode(args []byte) error {
	r := reader{b: args}
	if v := r.byte(); v != writeVersion {
		return fmt.Errorf("matching: write has version %d, this program knows %d", v, writeVersion)
	}
	w.hash, w.uid, w.rangeID = r.u32(), r.u64(), r.u64()
	w.key = r.bytes(int(r.u16()))
	w.meta = r.bytes(metaSize)
	w.ops = r.b
	if r.bad {
		return corrupt("write")
	}
	return nil
}

// next cuts one operation off.
func (w *writeArgs) next() (kind byte, space storage.Space, key, value []byte, err error) {
	r := reader{b: w.ops}
	kind = r.byte()
	space = storage.Space(r.byte())
	key = r.bytes(int(r.u16()))
	if kind != opDelete {
		value = r.bytes(int(r.u32()))
	}
	if r.bad {
		return 0, 0, nil, nil, corrupt("operation")
	}
	w.ops = r.b
	return kind, space, key, value, nil
}
