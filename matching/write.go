package matching

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// A batch is what one fenced write carries: rows to put and delete, and the
// calls that are answered once it is durable.
//
// Wire form, the argument of the function matching.write:
//
//	version 2 | hash 4 | uid 8 | range id 8 | batch 8 | operations length 4 | key length 2 |
//	partition key | operations | meta row
//
// The batch number is one more than that of the write before it, from 1 on under each
// range id. An operation is
//
//	kind 1 | space 1 | key length 2 | key | value length 4 | value
//
// where a range deletion has its end as value, a move its new space and key, and a
// deletion has none. Version 1 had no batch number, no length of operations, and the
// meta row before them.
type batch struct {
	args    []byte
	ops     int
	replies []replier
	ended   []byte // ids and sequence numbers of tasks that ended; see core_sweep.go
	opsAt   int    // where the operations begin in args
	nextSeq uint64 // sequence numbers below it are durable with this batch
	number  uint64
}

// replier is a call that waits for its batch. It is told once.
type replier interface{ reply(err error) }

const (
	writeVersion  = 1 // of all arguments but those of matching.write
	writeVersion2 = 2
)

const (
	opPut byte = iota + 1
	opDelete
	opDeleteRange
	opMove
)

const (
	batchAt  = 1 + 4 + 8 + 8 // of the batch number in args
	opsLenAt = batchAt + 8
)

// begin lays the head of a batch down.
func (b *batch) begin(hash uint32, uid, rangeID uint64, key string) {
	a := append(b.args[:0], writeVersion2)
	a = binary.BigEndian.AppendUint32(a, hash)
	a = binary.BigEndian.AppendUint64(a, uid)
	a = binary.BigEndian.AppendUint64(a, rangeID)
	a = append(a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // see seal
	a = binary.BigEndian.AppendUint16(a, uint16(len(key)))
	a = append(a, key...)
	b.opsAt = len(a)
	b.args = a
}

// seal ends the operations and adds the partition's meta row.
func (b *batch) seal(m *meta) {
	binary.BigEndian.PutUint64(b.args[batchAt:], m.batch)
	binary.BigEndian.PutUint32(b.args[opsLenAt:], uint32(len(b.args)-b.opsAt))
	b.args = m.append(b.args)
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

// parkBody moves the body of a task that is not fresh any more out of the backlog.
func (b *batch) parkBody(from location, uid, seq uint64) {
	k := b.op(opMove, from.space())
	b.args = from.appendBodyKey(b.args, uid, seq)
	b.endKey(k)
	v := b.beginValue()
	b.args = append(b.args, byte(spaceParked))
	b.args = appendSeqKey(b.args, uid, seq)
	b.endValue(v)
}

func (b *batch) putPass(uid uint64, level uint8, key string, pass uint64) {
	k := b.op(opPut, spacePasses)
	b.args = appendPassKey(b.args, uid, level, key)
	b.endKey(k)
	v := b.beginValue()
	b.args = append(b.args, rowVersion)
	b.args = binary.AppendUvarint(b.args, pass)
	b.endValue(v)
}

func (b *batch) deletePass(uid uint64, level uint8, key string) {
	k := b.op(opDelete, spacePasses)
	b.args = appendPassKey(b.args, uid, level, key)
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
	hash                uint32
	uid, rangeID, batch uint64 // batch is 0 in version 1
	key, meta           []byte
	ops                 []byte
}

func (w *writeArgs) decode(args []byte) error {
	r := reader{b: args}
	switch v := r.byte(); v {
	case writeVersion:
		w.hash, w.uid, w.rangeID = r.u32(), r.u64(), r.u64()
		w.key = r.bytes(int(r.u16()))
		w.meta = r.bytes(metaSize1)
		w.ops = r.b
	case writeVersion2:
		w.hash, w.uid, w.rangeID, w.batch = r.u32(), r.u64(), r.u64(), r.u64()
		n := int(r.u32())
		w.key = r.bytes(int(r.u16()))
		w.ops = r.bytes(n)
		w.meta = r.b
	default:
		return fmt.Errorf("matching: write has version %d, this program knows %d", v, writeVersion2)
	}
	if r.bad {
		return corrupt("write")
	}
	return nil
}

// rowWriter takes the rows of a write.
type rowWriter interface {
	Get(space storage.Space, key []byte) (value []byte, ok bool, err error)
	put(space storage.Space, key, value []byte) error
	delete(space storage.Space, key []byte) error
	deleteRange(space storage.Space, from, to []byte) error
}

// carryOut does the operations of a write.
func (w *writeArgs) carryOut(to rowWriter) error {
	all := w.ops
	for len(w.ops) > 0 {
		before := len(all) - len(w.ops)
		kind, space, key, value, err := w.next()
		if err != nil {
			return err
		}
		switch kind {
		case opPut:
			err = to.put(space, key, value)
		case opDelete:
			err = to.delete(space, key)
		case opDeleteRange:
			err = to.deleteRange(space, key, value)
		case opMove:
			err = moveRow(to, all[:before], space, key, value)
		default:
			err = corrupt("operation")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// moveRow gives a row another key. The row may have been put by an operation before.
func moveRow(to rowWriter, before []byte, space storage.Space, key, target []byte) error {
	if len(target) == 0 {
		return corrupt("operation")
	}
	row, ok, err := to.Get(space, key)
	if err != nil {
		return err
	}
	if !ok {
		for w := (writeArgs{ops: before}); len(w.ops) > 0; {
			kind, s, k, v, err := w.next()
			if err != nil {
				return err
			}
			if kind == opPut && s == space && bytes.Equal(k, key) {
				row, ok = v, true
			}
		}
	}
	if !ok {
		return corrupt("row to move that is not there")
	}
	if err := to.put(storage.Space(target[0]), target[1:], bytes.Clone(row)); err != nil {
		return err
	}
	return to.delete(space, key)
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
