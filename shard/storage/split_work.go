package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// maxBucketCount is the largest bucket_count.
const maxBucketCount = 1 << 20

// Limits of a step of the splitter: what one command looks at, and so how long those behind it
// wait.
const (
	stepBuckets     = 256
	defaultStepRows = 1024
	stepBytes       = 256 << 10
	// splitRetry is the pause after a step that failed; it is also how often the splitter
	// looks whether there is something to do that nobody told it.
	splitRetry = 500 * time.Millisecond
	// sampleRows are looked at of each bucket before the doubling begins.
	sampleRows = 256
)

func (x *splits) init() {
	x.wake = make(chan struct{}, 1)
	x.stopped = make(chan struct{})
}

func (x *splits) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// hurry lets a bucket be split before others.
func (x *splits) hurry(b shard.BucketID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.urgent == nil {
		x.urgent = map[shard.BucketID]struct{}{}
	}
	x.urgent[b] = struct{}{}
}

// nextUrgent returns a bucket that is to be split before others and is not, 0 for none.
func (x *splits) nextUrgent() shard.BucketID {
	x.mu.Lock()
	defer x.mu.Unlock()
	for b := range x.urgent {
		if c := x.cursors[b]; c == nil || !c.done {
			return b
		}
		delete(x.urgent, b)
	}
	return 0
}

// checkCount compares the bucket_count that this member was told with what the rows say, when
// the engine has been opened. A member of several may learn the newest only later, from the
// master: there the calls tell.
func (s *Storage) checkCount() error {
	st := s.splits.state.Load()
	if recorder, ok := s.eng.(interface{ BucketCount() uint32 }); ok && st == nil && recorder.BucketCount() != s.opts.BucketCount {
		base := &splitState{count: recorder.BucketCount()}
		s.splits.base.Store(base)
		s.splits.state.CompareAndSwap(nil, base)
		st = s.splits.state.Load()
	}
	if st == nil {
		return nil
	}
	if _, ok := st.of(s.opts.BucketCount); ok {
		return nil
	}
	later := uint64(s.opts.BucketCount) == 2*uint64(st.limit()) && s.eng.Status().State != engine.Master
	if later {
		return nil
	}
	e := &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("bucket_count is set to %d, and the store has %d", s.opts.BucketCount, st.count)}
	switch {
	case uint64(st.count) == 2*uint64(s.opts.BucketCount):
		e.Reason += ": it was doubled; set the new one"
	case uint64(s.opts.BucketCount) == 2*uint64(st.count):
		e.Reason += ": begin the doubling first (switchyard shard split start), with the old one set"
	}
	return e
}

// runSplitter is a goroutine: while this member is master, it splits the buckets.
func (s *Storage) runSplitter(ctx context.Context) {
	defer close(s.splits.stopped)
	t := time.NewTicker(splitRetry)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.splits.wake:
		}
		st := s.splits.state.Load()
		if st == nil || st.phase != splitting || s.Status().State != engine.Master {
			continue
		}
		if err := s.splitAll(ctx, st); err != nil && ctx.Err() == nil && !errors.Is(err, shard.NonMaster) {
			s.opts.Logger.Warn("splitting buckets is held up", "replica_set", s.opts.ReplicaSet, "err", err)
		}
	}
}

// splitAll steps until every bucket is split and every reader knows it.
func (s *Storage) splitAll(ctx context.Context, st *splitState) error {
	b := s.toTell(st)
	for b != 0 && ctx.Err() == nil && s.splits.state.Load() == st {
		began := time.Now()
		step := splitStep{first: b, buckets: stepBuckets, rows: uint64(s.opts.SplitRows), bytes: stepBytes}
		if u := s.splits.nextUrgent(); u != 0 {
			step.first, step.buckets = u, 1
		}
		result, err := s.system(ctx, fnSplitStep, step.encode())
		if err != nil {
			return err
		}
		next, err := decodeSplitStepResult(result)
		if err != nil {
			return err
		}
		if step.buckets > 1 {
			if b = next; b == 0 {
				b = s.toTell(st) // the one before was the last
			}
		}
		s.splitPause(ctx, time.Since(began))
	}
	return nil
}

// splitPause leaves room to others: while calls wait to be written, splitting takes at most half
// of the time.
func (s *Storage) splitPause(ctx context.Context, took time.Duration) {
	if s.eng.Status().InFlight < 4 {
		return
	}
	t := time.NewTimer(min(took, 20*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// toTell returns the first bucket that is not split as far as readers know, 0 for none.
func (s *Storage) toTell(st *splitState) shard.BucketID {
	for b := shard.BucketID(1); uint32(b) <= st.count; b++ {
		if s.table.load(b).state() != shard.Absent && !st.done[b].Load() {
			return b
		}
	}
	return 0
}

func (s *Storage) orderSplit(ctx context.Context, order splitOrder, count uint32) error {
	_, err := s.system(ctx, fnSplitPhase, binary.AppendUvarint([]byte{byte(order)}, uint64(count)))
	return err
}

// HoldMoves prepares the doubling of bucket_count: no move from or to this replica set begins
// any more. Those under way go on. count is bucket_count as it is. Again: nothing.
func (s *Storage) HoldMoves(ctx context.Context, count uint32) error {
	if err := s.ofCount(count); err != nil {
		return err
	}
	return s.orderSplit(ctx, splitHold, count)
}

// ReleaseMoves undoes HoldMoves. SPLIT_IS_IN_PROGRESS after BeginSplit. Again: nothing.
func (s *Storage) ReleaseMoves(ctx context.Context, count uint32) error {
	if err := s.ofCount(count); err != nil {
		return err
	}
	return s.orderSplit(ctx, splitRelease, count)
}

// ofCount checks that bucket_count is, or was before it began to be doubled, count.
func (s *Storage) ofCount(count uint32) error {
	ours := s.opts.BucketCount
	if st := s.splits.state.Load(); st != nil {
		ours = st.count
	}
	if ours != count {
		return s.viewRefused(ours, count)
	}
	return nil
}

// BeginSplit begins to split the buckets of this replica set, in the background; callers with
// bucket_count and with its double are served from then on. HoldMoves comes before, in all
// replica sets. TRANSFER_IS_IN_PROGRESS while a move is not over. INVALID_ARGUMENTS when rows
// have hashes that are not of their buckets; some rows of each bucket are looked at. It cannot
// be undone. Again: nothing.
func (s *Storage) BeginSplit(ctx context.Context, count uint32) error {
	if err := s.ofCount(count); err != nil {
		return err
	}
	if st := s.splits.state.Load(); st == nil || st.phase != splitting {
		if err := s.sample(ctx, count); err != nil {
			return err
		}
	}
	return s.orderSplit(ctx, splitBegin, count)
}

// sample looks at some rows of each bucket.
func (s *Storage) sample(ctx context.Context, count uint32) error {
	for b := shard.BucketID(1); uint32(b) <= count; b++ {
		if s.table.load(b).state() == shard.Absent {
			continue
		}
		var bad error
		err := s.eng.View(ctx, func(r engine.Reader) error {
			n := 0
			x := readBucket(r, b)
			return x.scan("", "", func(key, value []byte) bool {
				if hash, _, err := splitValue(value); err != nil {
					bad = err
				} else if hash%count+1 != uint32(b) {
					bad = &shard.Error{Code: shard.InvalidArguments, Bucket: b, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf(
						"row %x has hash %#x, which is of bucket %d: it would not be found after the doubling; write it again with the hash of its sharding key", key, hash, shard.BucketOf(hash, count))}
				}
				n++
				return bad == nil && n < sampleRows
			})
		})
		if err = errors.Join(err, bad); err != nil {
			return err
		}
	}
	return nil
}

// FinishSplit ends the doubling: bucket_count is the double, and callers with the old one are
// refused from then on. SPLIT_IS_IN_PROGRESS while a bucket is not split. BUCKET_IS_CORRUPTED when
// rows were met whose hashes are not of their buckets, unless despite is set. count is
// bucket_count before the doubling. Again: nothing.
func (s *Storage) FinishSplit(ctx context.Context, count uint32, despite bool) error {
	st := s.splits.state.Load()
	if st == nil || st.phase == splitting && st.count != count {
		return s.ofCount(2 * count)
	}
	if p := s.SplitProgress(); p.Misplaced > 0 && !despite {
		return &shard.Error{Code: shard.BucketIsCorrupted, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf(
			"%d rows have hashes that are not of their buckets: callers with the new bucket_count may not find them", p.Misplaced)}
	}
	return s.orderSplit(ctx, splitFinish, count)
}

// SplitProgress is how far the doubling of bucket_count is in a replica set.
type SplitProgress struct {
	// Phase is "steady", "held" (no move begins) or "splitting".
	Phase string
	// BucketCount is the one that counts, before the doubling while that goes on. Told is
	// what this member was told.
	BucketCount, Told uint32
	// Buckets are here, not counting upper halves, and Done of them are split.
	Buckets, Done int
	// Rows were looked at, of which Moved went to upper halves with Bytes in keys and values.
	Rows, Moved, Bytes uint64
	// Misplaced rows have a hash that is not of their bucket.
	Misplaced uint64
	// Moving buckets are in the middle of a move, for which BeginSplit waits.
	Moving int
}

// Splitting reports whether callers of both counts are served.
func (p SplitProgress) Splitting() bool { return p.Phase == splitting.String() }

// SplitProgress returns how far the doubling is, as this member knows it.
func (s *Storage) SplitProgress() SplitProgress {
	p := SplitProgress{Phase: splitSteady.String(), BucketCount: s.opts.BucketCount, Told: s.opts.BucketCount}
	st := s.splits.state.Load()
	if st == nil {
		return p
	}
	p.Phase, p.BucketCount = st.phase.String(), st.count
	if st.phase == splitHeld {
		for _, row := range s.table.special() {
			if unrested(row) {
				p.Moving++
			}
		}
	}
	if st.phase != splitting {
		return p
	}
	s.splits.mu.Lock()
	defer s.splits.mu.Unlock()
	for b := shard.BucketID(1); uint32(b) <= st.count; b++ {
		if s.table.load(b).state() == shard.Absent {
			continue
		}
		p.Buckets++
		if c := s.splits.cursors[b]; c != nil {
			if c.done {
				p.Done++
			}
			p.Rows += c.seen
			p.Moved += c.moved
			p.Bytes += c.bytes
			p.Misplaced += c.misplaced
		}
	}
	return p
}
