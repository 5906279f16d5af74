package storage

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/switchyard-dev/switchyard/shard"
)

// maxList is the most buckets that one command changes.
const maxList = 16384

// step is one event for a list of buckets, in one command.
type step struct {
	kind shard.EventKind
	peer string
	// together: all buckets change or none, and the first error is that of the command.
	// Otherwise each bucket has an outcome of its own.
	together bool
	items    []stepItem
}

type stepItem struct {
	bucket   shard.BucketID
	transfer uint64
	readOnly bool
}

// outcome of a step for one bucket.
type stepOutcome struct {
	row shard.Row // after the step
	err error
}

// Arguments: kind (1 byte), together (1 byte), peer, number of buckets, then bucket and transfer (varints) and
// read-only (1 byte) of each.
func (st *step) encode() []byte {
	b := make([]byte, 0, 16+len(st.peer)+len(st.items)*8)
	b = appendFlag(append(b, byte(st.kind)), st.together)
	b = appendText(b, st.peer)
	b = binary.AppendUvarint(b, uint64(len(st.items)))
	for _, it := range st.items {
		b = binary.AppendUvarint(b, uint64(it.bucket))
		b = binary.AppendUvarint(b, it.transfer)
		b = appendFlag(b, it.readOnly)
	}
	return b
}

func decodeStep(args []byte) (st step, ok bool) {
	in := decoder{b: args}
	st.kind, st.together = shard.EventKind(in.byte()), in.flag()
	st.peer = string(in.text())
	n := in.number()
	if n > maxList || len(st.peer) > maxNameLength {
		return st, false
	}
	st.items = make([]stepItem, n)
	for i := range st.items {
		st.items[i] = stepItem{bucket: shard.BucketID(in.number()), transfer: in.number(), readOnly: in.flag()}
	}
	return st, !in.bad && len(in.b) == 0
}

// applySteps runs a step for a list of buckets. The result holds an outcome for each.
func (s *Storage) applySteps(tx *Tx, args []byte) ([]byte, error) {
	st, ok := decodeStep(args)
	if !ok {
		return nil, &shard.Error{Code: shard.InvalidArguments, Reason: "a step on buckets that cannot be read"}
	}
	out := make([]stepOutcome, len(st.items))
	effects := make([]shard.Effect, len(st.items))
	was := make([]shard.Row, len(st.items))
	for i, it := range st.items {
		if err := s.checkBucket(it.bucket); err != nil {
			out[i].err = err
		} else {
			was[i] = s.table.row(it.bucket)
			out[i].row, effects[i], out[i].err = was[i].Step(shard.Event{
				Kind: st.kind, Bucket: it.bucket, Transfer: it.transfer, Peer: st.peer, ReadOnly: it.readOnly})
			if out[i].err == nil {
				out[i].err = s.held(st.kind, it.bucket, out[i].row != was[i])
			}
		}
		if st.together && out[i].err != nil {
			return nil, out[i].err
		}
	}
	for i, it := range st.items {
		if out[i].err != nil || out[i].row == was[i] {
			continue
		}
		// A bucket that is deleted loses its rows with the state.
		if effects[i] == shard.EffectWipe || was[i].State == shard.Garbage && out[i].row.State == shard.Absent {
			tx.wipe(it.bucket)
		}
		if err := putRow(tx, it.bucket, out[i].row); err != nil {
			return nil, err
		}
	}
	if err := tx.tx.Settle(); err != nil {
		return nil, err
	}
	if st.kind == shard.EventSend {
		// Before the rows can be seen: a move that nobody looks after is aborted.
		for i, it := range st.items {
			if out[i].err == nil {
				s.captures.begin(it.bucket, out[i].row.Transfer)
			}
		}
	}
	s.table.mu.Lock()
	for i, it := range st.items {
		if out[i].err == nil && out[i].row != was[i] {
			s.table.setLocked(it.bucket, out[i].row)
		}
	}
	s.table.tellLocked()
	s.table.mu.Unlock()
	return encodeOutcomes(out), nil
}

// wipe deletes all rows of a bucket. The transaction is on bucket 0.
func (t *Tx) wipe(b shard.BucketID) {
	t.key = binary.BigEndian.AppendUint32(t.key[:0], uint32(b))
	t.end = binary.BigEndian.AppendUint32(t.end[:0], uint32(b)+1)
	t.tx.DeleteRange(t.key, t.end)
}

// Outcomes: for each a code (varint), 0 for none; then the row's length and bytes, or the reason's and the
// destination's.
func encodeOutcomes(out []stepOutcome) []byte {
	b := make([]byte, 0, len(out)*24)
	var room [128]byte
	for _, o := range out {
		if o.err != nil {
			code, text, destination := shard.BucketInvalidUpdate, o.err.Error(), ""
			if e, ok := o.err.(*shard.Error); ok { // made by Step or checkBucket, which do not wrap
				code, text, destination = e.Code, e.Reason, e.Destination
			}
			b = binary.AppendUvarint(b, uint64(code))
			b = appendText(appendText(b, text), destination)
			continue
		}
		b = append(b, 0)
		row := appendRow(room[:0], o.row)
		b = append(binary.AppendUvarint(b, uint64(len(row))), row...)
	}
	return b
}

func (s *Storage) decodeOutcomes(items []stepItem, b []byte) ([]stepOutcome, error) {
	in := decoder{b: b}
	out := make([]stepOutcome, len(items))
	for i := range out {
		if code := in.number(); code != 0 {
			text, destination := string(in.text()), string(in.text())
			out[i].err = &shard.Error{Code: shard.Code(code), Bucket: items[i].bucket, ReplicaSet: s.opts.ReplicaSet, Destination: destination, Reason: text}
			continue
		}
		row, err := decodeRow(in.text())
		if err != nil || in.bad {
			return nil, fmt.Errorf("storage: the outcome of a step cannot be read")
		}
		out[i].row = row
	}
	return out, nil
}

// propose logs a step and returns the outcome for each bucket.
func (s *Storage) propose(ctx context.Context, st step) ([]stepOutcome, error) {
	if len(st.items) == 0 {
		return nil, nil
	}
	result, err := s.system(ctx, fnStep, st.encode())
	if err != nil {
		return nil, err
	}
	return s.decodeOutcomes(st.items, result)
}
