package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/switchyard-dev/switchyard/shard"
)

// splitStep moves the cursors of some buckets on, within limits. Each number is a varint.
type splitStep struct {
	first shard.BucketID // where to begin
	// buckets, rows and bytes bound what is looked at; a bucket counts as visitRows rows
	// besides its own, and one row is always looked at.
	buckets, rows, bytes uint64
}

// visitRows is what looking into a bucket costs, in rows.
const visitRows = 16

// What one step may ask for.
const (
	maxStepRows  = 1 << 16
	maxStepBytes = 1 << 26
)

func (st splitStep) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(st.first))
	b = binary.AppendUvarint(b, st.buckets)
	b = binary.AppendUvarint(b, st.rows)
	return binary.AppendUvarint(b, st.bytes)
}

// splitStepResult is where the step has ended: the first bucket that is not split, 0 for none
// from the first one on.
func decodeSplitStepResult(b []byte) (next shard.BucketID, err error) {
	in := decoder{b: b}
	n := in.number()
	return shard.BucketID(n), in.end(fnSplitStep)
}

// applySplitStep carries out a step. It reads no more than the limits say, so that the commands
// behind it wait no longer.
func (s *Storage) applySplitStep(tx *Tx, args []byte) ([]byte, error) {
	in := decoder{b: args}
	step := splitStep{shard.BucketID(in.number()), in.number(), in.number(), in.number()}
	if err := in.end(fnSplitStep); err != nil {
		return nil, err
	}
	if step.first < 1 || step.buckets == 0 || step.rows == 0 || step.rows > maxStepRows || step.bytes == 0 || step.bytes > maxStepBytes {
		return nil, invalid(fnSplitStep, "limits that cannot be")
	}
	if err := tx.tx.Settle(); err != nil {
		return nil, err
	}
	s.publishSplit()
	st := s.splits.state.Load()
	if st == nil || st.phase != splitting {
		return nil, &shard.Error{Code: shard.SplitIsInProgress, ReplicaSet: s.opts.ReplicaSet, Reason: "bucket_count is not being doubled"}
	}
	changed := map[shard.BucketID]*splitCursor{}
	b := s.unsplit(st, step.first)
	for used := uint64(0); b != 0 && step.buckets > 0 && used < step.rows && step.bytes > 0; step.buckets-- {
		c, rows, size, err := s.splitOn(tx, st, b, max(step.rows-used, visitRows+1)-visitRows, step.bytes)
		if err != nil {
			return nil, err
		}
		changed[b] = c
		used += rows + visitRows
		step.bytes -= min(size, step.bytes)
		if c.done {
			b = s.unsplit(st, b+1)
		}
	}
	for b, c := range changed {
		if err := tx.Put(SpaceSplit, 0, splitCursorKey(b), c.encode()); err != nil {
			return nil, err
		}
	}
	// Nothing can fail any more.
	for b, c := range changed {
		s.splits.setCursor(b, c)
		if c.done {
			s.splits.finished = append(s.splits.finished, b)
		}
	}
	return binary.AppendUvarint(nil, uint64(b)), nil
}

// splitOn moves the cursor of one bucket on and the rows that it passes to their halves.
func (s *Storage) splitOn(tx *Tx, st *splitState, b shard.BucketID, maxRows, maxBytes uint64) (_ *splitCursor, rows, size uint64, err error) {
	c := *s.splits.cursor(b)
	upper := b + shard.BucketID(st.count)
	var moved []aheadRow
	var stop, bad = []byte(nil), error(nil)
	err = tx.tx.Scan(withBucket(nil, b, c.key), endWithBucket(b, nil), false, func(key, value []byte) bool {
		if rows > 0 && (rows >= maxRows || size >= maxBytes) {
			stop = bytes.Clone(key[prefixLen-1:])
			return false
		}
		hash, _, err := splitValue(value)
		if err != nil {
			bad = fmt.Errorf("row %x: %w", key, err)
			return false
		}
		rows++
		size += uint64(len(key) + len(value))
		if hash%st.count+1 != uint32(b) {
			c.misplaced++
		}
		if isUpper(hash, st.count) {
			c.moved++
			c.bytes += uint64(len(key) + len(value))
			moved = append(moved, aheadRow{bytes.Clone(key[prefixLen-1:]), bytes.Clone(value)})
		}
		return true
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, 0, 0, err
	}
	for _, row := range moved {
		k, v := tx.tx.Put(prefixLen-1+len(row.key), len(row.value))
		binary.BigEndian.PutUint32(k, uint32(upper))
		copy(k[prefixLen-1:], row.key)
		copy(v, row.value)
		tx.deleteRow(b, row.key)
	}
	c.seen += rows
	c.key, c.done = stop, stop == nil
	return &c, rows, size, nil
}
