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
	m := meta{uid: uid, nextSeq: 1, freshFrom: 1}
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
	row := m.append(nil)
	return row, tx.Put(spaceMeta, hash, key, row)
}

var errMoved = reason.New(codes.Unavailable, reason.PartitionMoved, nil,
	"the queue's partition was taken over by another owner: try again")

// checkRange refuses whoever doesn't hold the newest range id.
func checkRange(tx *storage.Tx, w *writeArgs) error {
	row, ok, err := tx.Get(spaceMeta, w.key)
	if err != nil {
		return err
	}
	if !ok {
		return errMoved
	}
	if uid, rangeID, ok := metaIdentity(row); !ok || uid != w.uid || rangeID != w.rangeID {
		return errMoved
	}
	return nil
}

// write carries out a batch if its range id is the newest.
func write(tx *storage.Tx, args []byte) ([]byte, error) {
	var w writeArgs
	if err := w.decode(args); err != nil {
		return nil, err
	}
	if err := checkRange(tx, &w); err != nil {
		return nil, err
	}
	if err := tx.Put(spaceMeta, w.hash, w.key, w.meta); err != nil {
		return nil, err
	}
	for len(w.ops) > 0 {
		kind, space, key, value, err := w.next()
		if err != nil {
			return nil, err
		}
		switch kind {
		case opPut:
			err = tx.Put(space, w.hash, key, value)
		case opDelete:
			err = tx.Delete(space, key)
		case opDeleteRange:
			err = tx.DeleteRange(space, key, value)
		default:
			err = corrupt("operation")
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// drop deletes a partition with all its rows if the range id is the newest. Its
// argument is a batch; only the head counts.
func drop(tx *storage.Tx, args []byte) ([]byte, error) {
	var w writeArgs
	if err := w.decode(args); err != nil {
		return nil, err
	}
	if err := checkRange(tx, &w); err != nil {
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
