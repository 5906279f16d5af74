package storage

import (
	"encoding/binary"
	"errors"

	"github.com/switchyard-dev/switchyard/shard"
)

// Rows of the space _bucket:
//
//	key 0            ranges of buckets that were given one state at once:
//	                 version, then first, last (4 bytes each, big endian), state (1 byte) of each
//	key 1, bucket    one bucket, which overrides the ranges: version, then
//	                 1: state (1 byte), peer (the rest)
//	                 2: state, flags (1 byte each), transfer, chunks, rows (varints), sum (8 bytes), peer (the rest)
//
// Bootstrapping writes one row, whatever the number of buckets.
const (
	rangesRow     = 0
	bucketRow     = 1
	rangesVersion = 1
	rangeSize     = 9

	rowVersion    = 2
	rowReadOnly   = 1 // flag
	maxNameLength = 255
)

func appendRange(b []byte, first, last shard.BucketID, state shard.State) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(first))
	b = binary.BigEndian.AppendUint32(b, uint32(last))
	return append(b, byte(state))
}

func decodeRange(b []byte) (first, last shard.BucketID, state shard.State) {
	return shard.BucketID(binary.BigEndian.Uint32(b)), shard.BucketID(binary.BigEndian.Uint32(b[4:])), shard.State(b[8])
}

func appendRow(b []byte, r shard.Row) []byte {
	var flags byte
	if r.ReadOnly {
		flags = rowReadOnly
	}
	b = append(b, rowVersion, byte(r.State), flags)
	b = binary.AppendUvarint(b, r.Transfer)
	b = binary.AppendUvarint(b, r.Taken.Chunks)
	b = binary.AppendUvarint(b, r.Taken.Rows)
	b = binary.BigEndian.AppendUint64(b, r.Taken.Sum)
	return append(b, r.Peer...)
}

var errBadRow = errors.New("a bucket's row that cannot be read")

func decodeRow(b []byte) (r shard.Row, err error) {
	if len(b) < 2 {
		return r, errBadRow
	}
	switch b[0] {
	case 1:
		r = shard.Row{State: shard.State(b[1]), Peer: string(b[2:])}
	case rowVersion:
		in := decoder{b: b[2:]}
		r.State = shard.State(b[1])
		r.ReadOnly = in.byte()&rowReadOnly != 0
		r.Transfer, r.Taken.Chunks, r.Taken.Rows, r.Taken.Sum = in.number(), in.number(), in.number(), in.fixed64()
		r.Peer = string(in.b)
		if in.bad {
			return shard.Row{}, errBadRow
		}
	default:
		return r, errors.New("its format version is not known")
	}
	if !r.State.Valid() {
		return shard.Row{}, errors.New("a state that cannot be")
	}
	return r, nil
}

// putRow writes a bucket's row. The transaction is on bucket 0.
func putRow(tx *Tx, b shard.BucketID, r shard.Row) error {
	var key [5]byte
	key[0] = bucketRow
	binary.BigEndian.PutUint32(key[1:], uint32(b))
	var room [128]byte
	return tx.Put(SpaceBucket, 0, key[:], appendRow(room[:0], r))
}
