package storage

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// Doubling bucket_count from N to 2N splits every bucket b in place into b and b+N: a row goes
// to b+N when its hash says so. All that decides about it is in rows of the replica set:
//
//	phase    steady (N) → held (N, no moves) → splitting (N and 2N) → steady (2N)
//	cursor   of each bucket b ≤ N, while splitting: rows of b whose keys are below it are in
//	         their halves, those from it on are all in b
//
// So at each position of the log a row is in exactly one place, which its key, its hash and
// the cursor tell; a step moves the cursor on and the rows that it passes to their halves.
//
// Every command carries the view of its caller: how often bucket_count had been doubled, as the
// caller knows it. In the old view a call on b is on the pair of b and b+N, in the new one on
// one half; see pair. A view that is neither is refused.

// SpaceSplit is "_split", in bucket 0 only. Rows:
//
//	key 0            version, phase, view (1 byte each), bucket_count (4 bytes, big endian)
//	key 1, bucket    its cursor; see splitCursor
const SpaceSplit Space = 3

const (
	splitStateRow  = 0
	splitCursorRow = 1
	splitVersion   = 1
)

// splitPhase is how far the doubling is in this replica set. Numbers are on disk.
type splitPhase uint8

const (
	// splitSteady: there is one bucket_count.
	splitSteady splitPhase = 0
	// splitHeld: as before, and no move of a bucket begins.
	splitHeld splitPhase = 1
	// splitting: calls of both counts are served, and no bucket changes its state.
	splitting splitPhase = 2
)

// splitState is what there is to know for everybody. It is replaced, never changed.
type splitState struct {
	phase splitPhase
	// count is bucket_count, before it is doubled while that goes on; view is how often it
	// had been doubled.
	count uint32
	view  uint8
	// done has the buckets that are split, while splitting. A reader that finds one set will
	// find its rows in their halves.
	done []atomic.Bool
}

// limit is the highest number of a bucket in any view.
func (st *splitState) limit() uint32 {
	if st.phase == splitting {
		return 2 * st.count
	}
	return st.count
}

// of returns the view of a caller that knows a bucket_count, and whether it is served.
func (st *splitState) of(count uint32) (view uint8, ok bool) {
	switch {
	case count == st.count:
		return st.view, true
	case st.phase == splitting && count == 2*st.count:
		return st.view + 1, true
	}
	return 0, false
}

func (st *splitState) encode() []byte {
	b := []byte{splitVersion, byte(st.phase), st.view}
	return binary.BigEndian.AppendUint32(b, st.count)
}

func decodeSplitState(b []byte) (*splitState, error) {
	if len(b) != 7 || b[0] != splitVersion {
		return nil, &shard.Error{Code: shard.BucketIsCorrupted, Reason: "the state of a doubling of bucket_count cannot be read, or is that of a newer version"}
	}
	st := &splitState{phase: splitPhase(b[1]), view: b[2], count: binary.BigEndian.Uint32(b[3:])}
	if st.phase > splitting || st.count == 0 || st.view > engine.MaxView {
		return nil, &shard.Error{Code: shard.BucketIsCorrupted, Reason: "a state of a doubling of bucket_count that cannot be"}
	}
	if st.phase == splitting {
		st.done = make([]atomic.Bool, st.count+1)
	}
	return st, nil
}

// splitCursor is how far a bucket is split. As a row: version, done (1 byte each), four numbers
// (varints), key (the rest).
type splitCursor struct {
	done bool
	// key is the space and the key of the first row that may not be in its half.
	key []byte
	// seen rows were looked at, of which moved went to the upper half with bytes in keys and
	// values. misplaced are those whose hash is not one of this bucket at all.
	seen, moved, bytes, misplaced uint64
}

func (c *splitCursor) encode() []byte {
	b := appendFlag([]byte{splitVersion}, c.done)
	for _, n := range [...]uint64{c.seen, c.moved, c.bytes, c.misplaced} {
		b = binary.AppendUvarint(b, n)
	}
	return append(b, c.key...)
}

func decodeSplitCursor(b []byte) (c splitCursor, err error) {
	in := decoder{b: b}
	version := in.byte()
	c.done = in.flag()
	c.seen, c.moved, c.bytes, c.misplaced = in.number(), in.number(), in.number(), in.number()
	c.key = append([]byte(nil), in.b...)
	if in.bad || version != splitVersion {
		return c, &shard.Error{Code: shard.BucketIsCorrupted, Reason: "how far a bucket is split cannot be read, or is of a newer version"}
	}
	return c, nil
}

func splitCursorKey(b shard.BucketID) []byte {
	return binary.BigEndian.AppendUint32([]byte{splitCursorRow}, uint32(b))
}

// splits are the rows of SpaceSplit in memory.
type splits struct {
	// state is nil as long as bucket_count was never touched, which is the way that most
	// calls take.
	state atomic.Pointer[splitState]
	// base takes its place when there are no rows; see Open.
	base atomic.Pointer[splitState]

	mu      sync.Mutex
	cursors map[shard.BucketID]*splitCursor
	// finished are buckets whose last step was applied, but may not be visible yet. It is for
	// the goroutine that applies commands.
	finished []shard.BucketID
	// urgent are buckets that a call waits for.
	urgent map[shard.BucketID]struct{}

	wake    chan struct{}
	stopped chan struct{}
	pair    pair // of the command being applied
}

// cursor returns how far a bucket is split. The cursor is not changed any more.
func (x *splits) cursor(b shard.BucketID) *splitCursor {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.cursors[b]; c != nil {
		return c
	}
	return &splitCursor{}
}

func (x *splits) setCursor(b shard.BucketID, c *splitCursor) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cursors == nil {
		x.cursors = map[shard.BucketID]*splitCursor{}
	}
	x.cursors[b] = c
}

// read replaces everything by the rows of r.
func (x *splits) read(r engine.Reader) error {
	st := x.base.Load()
	cursors := map[shard.BucketID]*splitCursor{}
	rows := rows{r: r}
	var bad error
	err := rows.Scan(SpaceSplit, nil, nil, false, func(key, value []byte) bool {
		switch {
		case len(key) == 1 && key[0] == splitStateRow:
			st, bad = decodeSplitState(value)
		case len(key) == 5 && key[0] == splitCursorRow:
			var c splitCursor
			c, bad = decodeSplitCursor(value)
			cursors[shard.BucketID(binary.BigEndian.Uint32(key[1:]))] = &c
		default:
			bad = &shard.Error{Code: shard.BucketIsCorrupted, Reason: fmt.Sprintf("row %x of _split: a key that is not known", key)}
		}
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	if st != nil && st.phase == splitting {
		for b, c := range cursors {
			if b < 1 || int(b) >= len(st.done) {
				return &shard.Error{Code: shard.BucketIsCorrupted, Bucket: b, Reason: "a bucket that is split and cannot be"}
			}
			st.done[b].Store(c.done)
		}
	}
	x.mu.Lock()
	x.cursors = cursors
	x.mu.Unlock()
	x.finished = x.finished[:0]
	x.state.Store(st)
	return nil
}

// aim returns the view of a caller that knows a bucket_count and calls a bucket of it.
func (s *Storage) aim(count uint32, b shard.BucketID) (st *splitState, view uint8, err error) {
	st = s.splits.state.Load()
	if st == nil {
		if count != s.opts.BucketCount {
			return nil, 0, s.aimRefused(s.opts.BucketCount, count)
		}
	} else {
		var ok bool
		if view, ok = st.of(count); !ok {
			return nil, 0, s.aimRefused(st.count, count)
		}
	}
	if b < 1 || uint32(b) > count {
		return nil, 0, s.noBucket(b, count)
	}
	return st, view, nil
}

func (s *Storage) noBucket(b shard.BucketID, count uint32) error {
	return &shard.Error{Code: shard.WrongBucket, Bucket: b, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("buckets are numbered 1 to %d", count)}
}

// aimRefused is viewRefused, unless this member may be behind and the caller know better: what
// the rows here do not say yet may be so. That it was doubled is for ever.
func (s *Storage) aimRefused(ours, theirs uint32) error {
	st := s.splits.state.Load()
	sure := st != nil && st != s.splits.base.Load() && theirs < ours
	if !sure && ours != theirs && engine.Doubled(ours, theirs) && s.eng.Status().State != engine.Master {
		return &shard.Error{Code: shard.MasterNotSynced, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("the caller expects bucket_count %d, this member knows %d and may not have caught up", theirs, ours)}
	}
	return s.viewRefused(ours, theirs)
}

// viewRefused is the error for a caller with a bucket_count that is not served.
func (s *Storage) viewRefused(ours, theirs uint32) error {
	e := &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("the caller expects bucket_count %d, this replica set has %d", theirs, ours)}
	switch {
	case uint64(theirs)*2 == uint64(ours):
		e.Reason += ", as it was doubled: set the new one and restart the caller"
	case uint64(theirs) == 2*uint64(ours):
		e.Reason += ", which is not being doubled yet"
	}
	return e
}

// Functions of the doubling, on bucket 0.
const (
	fnSplitPhase = "_split.phase" // args: splitOrder (1 byte), bucket_count before the doubling (varint)
	fnSplitStep  = "_split.step"  // args: see split_step.go
)

// splitOrder says what fnSplitPhase is to do. Numbers are in logs.
type splitOrder uint8

const (
	splitHold    splitOrder = 1 // steady → held
	splitRelease splitOrder = 2 // held → steady
	splitBegin   splitOrder = 3 // held → splitting
	splitFinish  splitOrder = 4 // splitting → steady, doubled
)

// applySplitPhase goes from one phase to another. Again: nothing.
func (s *Storage) applySplitPhase(tx *Tx, args []byte) error {
	in := decoder{b: args}
	order, number := splitOrder(in.byte()), in.number()
	if err := in.end(fnSplitPhase); err != nil {
		return err
	}
	count := uint32(number)
	if number < 1 || number > maxBucketCount {
		return invalid(fnSplitPhase, fmt.Sprintf("bucket_count %d cannot be", number))
	}
	// What earlier commands wrote becomes visible before a change of the phase does.
	if err := tx.tx.Settle(); err != nil {
		return err
	}
	s.publishSplit()
	now := s.splits.state.Load()
	if now == nil || now == s.splits.base.Load() {
		// No row says it yet: whoever orders it knows.
		now = &splitState{count: count}
	}
	next := &splitState{phase: now.phase, count: now.count, view: now.view, done: now.done}
	if order == splitFinish && now.phase == splitSteady && uint64(now.count) == 2*number {
		return nil
	}
	if now.count != count {
		return s.viewRefused(now.count, count)
	}
	switch {
	case order == splitHold && 2*number > maxBucketCount:
		return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("bucket_count %d cannot be doubled: %d is the largest", count, maxBucketCount)}
	case order == splitHold && now.phase == splitSteady:
		next.phase = splitHeld
	case order == splitHold, order == splitBegin && now.phase == splitting, order == splitRelease && now.phase == splitSteady:
		return nil
	case order == splitRelease && now.phase == splitHeld:
		next.phase = splitSteady
	case order == splitBegin && now.phase == splitHeld:
		if err := s.checkRest(); err != nil {
			return err
		}
		next.phase, next.done = splitting, make([]atomic.Bool, count+1)
	case order == splitFinish && now.phase == splitting:
		if b := s.unsplit(now, 1); b != 0 {
			return &shard.Error{Code: shard.SplitIsInProgress, Bucket: b, ReplicaSet: s.opts.ReplicaSet, Reason: "the bucket is not split yet"}
		}
		next = &splitState{count: 2 * count, view: now.view + 1}
	default:
		return &shard.Error{Code: shard.SplitIsInProgress, ReplicaSet: s.opts.ReplicaSet,
			Reason: fmt.Sprintf("the doubling of bucket_count %d is %v and order %d cannot follow", count, now.phase, order)}
	}
	if err := s.storeSplitPhase(tx, next, order); err != nil {
		return err
	}
	s.splits.state.Store(next)
	s.table.mu.Lock()
	s.table.tellLocked()
	s.table.mu.Unlock()
	if order == splitFinish {
		s.splits.mu.Lock()
		s.splits.cursors, s.splits.urgent = nil, nil
		s.splits.mu.Unlock()
		if s.opts.BucketCount == count {
			s.opts.Logger.Error("bucket_count has been doubled, and this node has not heard of it: set the new one and restart it", "replica_set", s.opts.ReplicaSet, "bucket_count", next.count)
		}
	}
	s.splits.signal()
	return nil
}

// storeSplitPhase writes what belongs to a new phase, and with splitBegin makes the upper
// buckets, each in the state of its lower one.
func (s *Storage) storeSplitPhase(tx *Tx, next *splitState, order splitOrder) error {
	if order == splitBegin {
		ranges, _, err := tx.Get(SpaceBucket, []byte{rangesRow})
		if err != nil {
			return err
		}
		all := append([]byte(nil), ranges...)
		if len(all) == 0 {
			all = []byte{rangesVersion}
		}
		all = append(all, s.table.upperRanges(next.count)...)
		if err := tx.Put(SpaceBucket, 0, []byte{rangesRow}, all); err != nil {
			return err
		}
	}
	if order == splitFinish {
		if err := tx.DeleteRange(SpaceSplit, []byte{splitCursorRow}, []byte{splitCursorRow + 1}); err != nil {
			return err
		}
	}
	if err := tx.Put(SpaceSplit, 0, []byte{splitStateRow}, next.encode()); err != nil {
		return err
	}
	if order == splitBegin {
		s.table.split(next.count)
	}
	return nil
}

// unrested reports whether a bucket is in the middle of a move.
func unrested(row shard.Row) bool {
	return row.Moving() || row.State == shard.Receiving || row.State == shard.Sent || row.State == shard.Garbage
}

// checkRest returns nil when no bucket is on its way from or to here.
func (s *Storage) checkRest() error {
	for b, row := range s.table.special() {
		if unrested(row) {
			return &shard.Error{Code: shard.TransferIsInProgress, Bucket: b, ReplicaSet: s.opts.ReplicaSet, Destination: row.Peer, Reason: "a move is not over yet: the bucket is " + row.State.String()}
		}
	}
	return nil
}

// unsplit returns the first bucket from b on that is here and not split, 0 for none.
func (s *Storage) unsplit(st *splitState, b shard.BucketID) shard.BucketID {
	s.splits.mu.Lock()
	defer s.splits.mu.Unlock()
	for ; uint32(b) <= st.count; b++ {
		if s.table.load(b).state() == shard.Absent {
			continue
		}
		if c := s.splits.cursors[b]; c == nil || !c.done {
			return b
		}
	}
	return 0
}

// publishSplit tells readers which buckets are split; their rows have just become visible.
func (s *Storage) publishSplit() {
	if st := s.splits.state.Load(); st != nil && st.phase == splitting {
		for _, b := range s.splits.finished {
			st.done[b].Store(true)
		}
	}
	s.splits.finished = s.splits.finished[:0]
}

// held returns an error when a step of a bucket would not go with the doubling.
func (s *Storage) held(kind shard.EventKind, b shard.BucketID, changes bool) error {
	st := s.splits.state.Load()
	switch {
	case st == nil || st.phase == splitSteady || !changes:
		return nil
	case st.phase == splitHeld && kind != shard.EventSend && kind != shard.EventReceive && kind != shard.EventForceCreate:
		return nil
	case kind == shard.EventForget:
		return nil
	}
	return &shard.Error{Code: shard.SplitIsInProgress, Bucket: b, ReplicaSet: s.opts.ReplicaSet,
		Reason: fmt.Sprintf("%v has to wait until the doubling of bucket_count is finished or called off", kind)}
}

var splitPhaseNames = [...]string{"steady", "held", "splitting"}

func (p splitPhase) String() string {
	if int(p) < len(splitPhaseNames) {
		return splitPhaseNames[p]
	}
	return fmt.Sprintf("phase %d", uint8(p))
}
