package matching

import (
	"bytes"
	"encoding/binary"
	"math"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// Names of the functions that this package registers with the store.
const (
	fnTake        = "matching.take"
	fnWrite       = "matching.write"
	fnDrop        = "matching.drop"
	fnQueueCreate = "matching.queue.create"
	fnQueueUpdate = "matching.queue.update"
	fnQueueSwap   = "matching.queue.swap"
	fnQueueDelete = "matching.queue.delete"
)

// RegisterFunctions adds the functions that queues need to a store's registry.
func RegisterFunctions(reg *storage.Registry) {
	reg.Register(fnTake, take)
	reg.Register(fnWrite, write)
	reg.Register(fnDrop, drop)
	reg.Register(fnQueueCreate, createQueueRow)
	reg.Register(fnQueueUpdate, updateQueueRow)
	reg.Register(fnQueueSwap, swapQueueRow)
	reg.Register(fnStickyUse, useSticky)
	reg.Register(fnStickyForget, forgetStickyRow)
	reg.Register(fnQueueDelete, deleteQueueRow)
}

// takeArgs: version 1 | hash 4 | uid 8 (for a partition that is new) | key.
func takeArgs(hash uint32, uid uint64, key string) []byte {
	a := []byte{writeVersion}
	a = binary.BigEndian.AppendUint32(a, hash)
	a = binary.BigEndian.AppendUint64(a, uid)
	return append(a, key...)
}

// take raises a partition's range id, making the partition if there is none, and
// returns its meta row.
func take(tx *storage.Tx, args []byte) ([]byte, error) {
	r := reader{b: args}
	version, hash, uid, key := r.byte(), r.u32(), r.u64(), r.b
	if r.bad || version != writeVersion {
		return nil, corrupt("take")
	}
	m := newMeta(uid)
	old, ok, err := tx.Get(spaceMeta, key)
	if err != nil {
		return nil, err
	}
	if ok {
		if err := m.decode(old); err != nil {
			return nil, err
		}
	}
	m.rangeID++
	m.batch = 0
	row := m.append(nil)
	return row, tx.Put(spaceMeta, hash, key, row)
}

var errMoved = reason.New(codes.Unavailable, reason.PartitionMoved, nil,
	"the queue's partition was taken over by another owner: try again")

// errGap is what a write gets that would have to wait for one before it: the owner
// starts again from what has been written.
var errGap = reason.New(codes.Unavailable, reason.PartitionMoved, nil,
	"a write of the queue's partition came without the one before it: try again")

// checkRange refuses whoever doesn't hold the newest range id. It returns the number
// of the last write under it.
func checkRange(tx *storage.Tx, w *writeArgs) (batch uint64, err error) {
	row, ok, err := tx.Get(spaceMeta, w.key)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, errMoved
	}
	uid, rangeID, batch, ok := metaIdentity(row)
	if !ok || uid != w.uid || rangeID != w.rangeID {
		return 0, errMoved
	}
	return batch, nil
}

// write carries out a batch if its range id is the newest and it follows the last one.
// When the store changes its master, writes of one owner can arrive after others of
// its were lost; and one can arrive twice.
func write(tx *storage.Tx, args []byte) ([]byte, error) {
	var w writeArgs
	if err := w.decode(args); err != nil {
		return nil, err
	}
	last, err := checkRange(tx, &w)
	if err != nil {
		return nil, err
	}
	if w.batch != 0 && w.batch != last+1 {
		return nil, errGap
	}
	if err := tx.Put(spaceMeta, w.hash, w.key, w.meta); err != nil {
		return nil, err
	}
	return nil, w.carryOut(txRows{tx, w.hash})
}

// txRows is a transaction whose rows all have one hash.
type txRows struct {
	*storage.Tx
	hash uint32
}

func (t txRows) put(space storage.Space, key, value []byte) error {
	return t.Put(space, t.hash, key, value)
}

func (t txRows) delete(space storage.Space, key []byte) error { return t.Delete(space, key) }

func (t txRows) deleteRange(space storage.Space, from, to []byte) error {
	return t.DeleteRange(space, from, to)
}

// drop deletes a partition with all its rows if the range id is the newest. Its
// argument is a batch; only the head counts.
func drop(tx *storage.Tx, args []byte) ([]byte, error) {
	var w writeArgs
	if err := w.decode(args); err != nil {
		return nil, err
	}
	if _, err := checkRange(tx, &w); err != nil {
		return nil, err
	}
	from := binary.BigEndian.AppendUint64(nil, w.uid)
	to := uidEnd(w.uid)
	for _, s := range partitionSpaces {
		if err := tx.DeleteRange(s, from, to); err != nil {
			return nil, err
		}
	}
	return nil, tx.Delete(spaceMeta, w.key)
}

// uidEnd is the first key behind all keys of a partition.
func uidEnd(uid uint64) []byte {
	if uid == math.MaxUint64 {
		return []byte{255, 255, 255, 255, 255, 255, 255, 255, 255}
	}
	return binary.BigEndian.AppendUint64(nil, uid+1)
}

// Queue rows. Arguments: version 1 | hash 4 | key length 2 | key | row.
func queueArgs(hash uint32, key, row []byte) []byte {
	a := []byte{writeVersion}
	a = binary.BigEndian.AppendUint32(a, hash)
	a = binary.BigEndian.AppendUint16(a, uint16(len(key)))
	a = append(a, key...)
	return append(a, row...)
}

func splitQueueArgs(args []byte) (hash uint32, key, row []byte, err error) {
	r := reader{b: args}
	version := r.byte()
	hash = r.u32()
	key = r.bytes(int(r.u16()))
	if r.bad || version != writeVersion {
		return 0, nil, nil, corrupt("queue arguments")
	}
	return hash, key, r.b, nil
}

var (
	errQueueExists = reason.New(codes.AlreadyExists, reason.QueueAlreadyExists, nil, "the queue exists already")
	errNoQueue     = reason.New(codes.NotFound, reason.QueueNotFound, nil, "the queue does not exist")
)

func createQueueRow(tx *storage.Tx, args []byte) ([]byte, error) {
	hash, key, row, err := splitQueueArgs(args)
	if err != nil {
		return nil, err
	}
	if _, ok, err := tx.Get(spaceQueues, key); err != nil {
		return nil, err
	} else if ok {
		return nil, errQueueExists
	}
	return nil, tx.Put(spaceQueues, hash, key, row)
}

// updateQueueRow replaces a queue's row. It is here for logs of older versions;
// swapQueueRow does the work now.
func updateQueueRow(tx *storage.Tx, args []byte) ([]byte, error) {
	hash, key, row, err := splitQueueArgs(args)
	if err != nil {
		return nil, err
	}
	if _, ok, err := tx.Get(spaceQueues, key); err != nil {
		return nil, err
	} else if !ok {
		return nil, errNoQueue
	}
	return nil, tx.Put(spaceQueues, hash, key, row)
}

// swapped is the result of a swap that took place; it is empty when the row was not
// what the caller had seen.
var swapped = []byte{1}

// swapArgs is what swapQueueRow takes for a row: length of the old row 4 | old | new.
func swapArgs(old, fresh []byte) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(old)+len(fresh)), uint32(len(old)))
	b = append(b, old...)
	return append(b, fresh...)
}

// swapQueueRow replaces a queue's row if it is still what its caller has read.
func swapQueueRow(tx *storage.Tx, args []byte) ([]byte, error) {
	hash, key, row, err := splitQueueArgs(args)
	if err != nil {
		return nil, err
	}
	r := reader{b: row}
	old := r.bytes(int(r.u32()))
	if r.bad {
		return nil, corrupt("queue arguments")
	}
	now, ok, err := tx.Get(spaceQueues, key)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errNoQueue
	case !bytes.Equal(now, old):
		return nil, nil
	}
	return swapped, tx.Put(spaceQueues, hash, key, r.b)
}

func deleteQueueRow(tx *storage.Tx, args []byte) ([]byte, error) {
	_, key, _, err := splitQueueArgs(args)
	if err != nil {
		return nil, err
	}
	return nil, tx.Delete(spaceQueues, key)
}
