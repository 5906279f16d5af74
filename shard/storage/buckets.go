package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// slot is what is known of a bucket in one word: its state in the lowest byte, and
// above it a number that changes with every change.
type slot uint64

func (s slot) state() shard.State { return shard.State(s & 0xff) }

func (s slot) with(state shard.State) slot { return (s>>8+1)<<8 | slot(state) }

// bucketTable is the space _bucket in memory. The goroutine that applies commands
// changes it; everybody reads.
type bucketTable struct {
	slots atomic.Pointer[[]atomic.Uint64] // by bucket id; 0 is unused

	mu sync.Mutex
	// rows has those that say more than their state.
	rows  map[shard.BucketID]shard.Row
	count [shard.Garbage + 1]int
	// changed is closed at the next change.
	changed chan struct{}
}

func newBucketTable(n uint32) *bucketTable {
	t := &bucketTable{rows: map[shard.BucketID]shard.Row{}, changed: make(chan struct{})}
	slots := make([]atomic.Uint64, n+1)
	t.slots.Store(&slots)
	t.count[shard.Absent] = int(n)
	return t
}

func (t *bucketTable) load(b shard.BucketID) slot { return slot((*t.slots.Load())[b].Load()) }

// row returns all that is known of a bucket.
func (t *bucketTable) row(b shard.BucketID) shard.Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rowLocked(b)
}

func (t *bucketTable) rowLocked(b shard.BucketID) shard.Row {
	if r, ok := t.rows[b]; ok {
		return r
	}
	return shard.Row{State: t.load(b).state()}
}

// special returns the rows that say more than their state.
func (t *bucketTable) special() map[shard.BucketID]shard.Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.rows)
}

func (t *bucketTable) destination(b shard.BucketID) string { return t.row(b).Peer }

// change returns a channel that is closed at the next change of any bucket.
func (t *bucketTable) change() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

func (t *bucketTable) set(b shard.BucketID, r shard.Row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLocked(b, r)
	t.tellLocked()
}

func (t *bucketTable) tellLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *bucketTable) setLocked(b shard.BucketID, r shard.Row) {
	old := t.load(b)
	t.count[old.state()]--
	t.count[r.State]++
	if r == (shard.Row{State: r.State}) {
		delete(t.rows, b)
	} else {
		t.rows[b] = r
	}
	(*t.slots.Load())[b].Store(uint64(old.with(r.State)))
}

func (t *bucketTable) has(b shard.BucketID) bool { return b >= 1 && int(b) < len(*t.slots.Load()) }

// grow makes room for n buckets.
func (t *bucketTable) grow(n uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.growLocked(n)
}

func (t *bucketTable) growLocked(n uint32) {
	old := *t.slots.Load()
	if int(n) < len(old) {
		return
	}
	slots := make([]atomic.Uint64, n+1)
	for b := range old {
		slots[b].Store(old[b].Load())
	}
	t.count[shard.Absent] += len(slots) - len(old)
	t.slots.Store(&slots)
}

// upperRanges returns ranges that give each bucket above count the state of its lower one.
func (t *bucketTable) upperRanges(count uint32) (ranges []byte) {
	last := shard.Absent
	for b := shard.BucketID(1); uint32(b) <= count; b++ {
		state := t.load(b).state()
		upper := b + shard.BucketID(count)
		switch {
		case state == shard.Absent:
		case state == last:
			binary.BigEndian.PutUint32(ranges[len(ranges)-rangeSize+4:], uint32(upper))
		default:
			ranges = appendRange(ranges, upper, upper, state)
		}
		last = state
	}
	return ranges
}

// split makes the buckets above count, each in the state of its lower one.
func (t *bucketTable) split(count uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.growLocked(2 * count)
	for b := shard.BucketID(1); uint32(b) <= count; b++ {
		t.setLocked(b+shard.BucketID(count), shard.Row{State: t.load(b).state()})
	}
	t.tellLocked()
}

// read replaces the table by the rows of r.
func (t *bucketTable) read(r engine.Reader) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.tellLocked()
	for b := 1; b < len(*t.slots.Load()); b++ {
		t.setLocked(shard.BucketID(b), shard.Row{})
	}
	x := rows{r: r}
	var bad error
	fail := func(key []byte, why string) bool {
		bad = &shard.Error{Code: shard.BucketIsCorrupted, Reason: fmt.Sprintf("row %x of _bucket: %s", key, why)}
		return false
	}
	err := x.Scan(SpaceBucket, nil, nil, false, func(key, value []byte) bool {
		switch {
		case len(key) == 1 && key[0] == rangesRow:
			if len(value) < 1 || value[0] != rangesVersion {
				return fail(key, "its format version is not known")
			}
			for value = value[1:]; len(value) >= rangeSize; value = value[rangeSize:] {
				first, last, state := decodeRange(value)
				if !t.has(first) || !t.has(last) || !state.Valid() {
					return fail(key, "a range that cannot be")
				}
				for b := first; b <= last; b++ {
					t.setLocked(b, shard.Row{State: state})
				}
			}
		case len(key) == 5 && key[0] == bucketRow:
			b := shard.BucketID(binary.BigEndian.Uint32(key[1:]))
			row, err := decodeRow(value)
			if err != nil {
				return fail(key, err.Error())
			}
			if !t.has(b) {
				return fail(key, "there is no such bucket")
			}
			t.setLocked(b, row)
		default:
			return fail(key, "a key that is not known")
		}
		return true
	})
	if err == nil {
		err = bad
	}
	return err
}

// System functions, on bucket 0.
const (
	fnBootstrap = "_bucket.bootstrap" // args: ranges
	fnSetState  = "_bucket.set"       // args: bucket (4 bytes, big endian), state (1 byte), destination
	fnStep      = "_bucket.step"      // args: see steps.go
	fnChunk     = "_bucket.chunk"     // args: see chunk.go
	fnFact      = "_replicaset.set"   // args: see facts.go
	fnNothing   = "_nothing"          // done when everything before it is
)

// applySystem carries out a system function. The table changes only after everything
// that can fail, and after earlier commands' rows can be seen by all.
func (s *Storage) applySystem(etx engine.Tx, cmd *engine.Command) ([]byte, error) {
	tx := &s.tx
	tx.tx, tx.r, tx.bucket, tx.time, tx.capture, tx.pair = etx, etx, 0, cmd.Time, nil, nil
	switch cmd.Function {
	case fnBootstrap:
		return nil, s.applyBootstrap(tx, cmd.Args)
	case fnSetState:
		return nil, s.applySetState(tx, cmd.Args)
	case fnStep:
		return s.applySteps(tx, cmd.Args)
	case fnChunk:
		return s.applyChunk(tx, cmd.Args)
	case fnFact:
		return nil, s.applyFact(tx, cmd.Args)
	case fnNothing:
		return nil, nil
	case fnSplitPhase:
		return nil, s.applySplitPhase(tx, cmd.Args)
	case fnSplitStep:
		return s.applySplitStep(tx, cmd.Args)
	}
	return nil, engine.Fatal(fmt.Errorf("the log has a call of system function %q, which this version of Switchyard does not know; use the version that wrote it, or a newer one", cmd.Function))
}

func (s *Storage) applyBootstrap(tx *Tx, args []byte) error {
	if len(args) == 0 || len(args)%rangeSize != 0 {
		return &shard.Error{Code: shard.InvalidArguments, Reason: "ranges of buckets are needed"}
	}
	for a := args; len(a) > 0; a = a[rangeSize:] {
		first, last, state := decodeRange(a)
		if !s.table.has(first) || !s.table.has(last) || first > last || !shard.Absent.CanBecome(state) {
			return &shard.Error{Code: shard.InvalidArguments, Reason: fmt.Sprintf("buckets %d to %d cannot be made %v", first, last, state)}
		}
	}
	empty := true
	if err := tx.Scan(SpaceBucket, nil, nil, false, func(key, _ []byte) bool { empty = false; return false }); err != nil {
		return err
	}
	if !empty {
		return &shard.Error{Code: shard.NonEmpty, ReplicaSet: s.opts.ReplicaSet}
	}
	if err := tx.Put(SpaceBucket, 0, []byte{rangesRow}, append([]byte{rangesVersion}, args...)); err != nil {
		return err
	}
	if err := tx.tx.Settle(); err != nil {
		return err
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for a := args; len(a) > 0; a = a[rangeSize:] {
		first, last, state := decodeRange(a)
		for b := first; b <= last; b++ {
			s.table.setLocked(b, shard.Row{State: state})
		}
	}
	s.table.tellLocked()
	return nil
}

func (s *Storage) applySetState(tx *Tx, args []byte) error {
	if len(args) < 5 {
		return &shard.Error{Code: shard.InvalidArguments, Reason: "a bucket and a state are needed"}
	}
	b, state, destination := shard.BucketID(binary.BigEndian.Uint32(args)), shard.State(args[4]), string(args[5:])
	if !s.table.has(b) {
		return s.checkBucket(b)
	}
	was := s.table.row(b)
	if !was.State.CanBecome(state) {
		return &shard.Error{Code: shard.BucketInvalidUpdate, Bucket: b, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("from %v to %v", was.State, state)}
	}
	if st := s.splits.state.Load(); st != nil && st.phase != splitSteady {
		return &shard.Error{Code: shard.SplitIsInProgress, Bucket: b, ReplicaSet: s.opts.ReplicaSet, Reason: "no bucket changes its state while bucket_count is doubled"}
	}
	row := shard.Row{State: state, Peer: destination, Transfer: was.Transfer}
	if err := putRow(tx, b, row); err != nil {
		return err
	}
	if err := tx.tx.Settle(); err != nil {
		return err
	}
	s.table.set(b, row)
	return nil
}

// system proposes a system function and waits for its outcome.
func (s *Storage) system(ctx context.Context, fn string, args []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return wait(ctx, func(done func([]byte, error)) {
		s.eng.Propose(engine.Command{Function: fn, Args: args}, done)
	})
}

// Bootstrap makes all buckets ACTIVE here, in one command. It is done once in a
// cluster's life; later it answers NON_EMPTY.
func (s *Storage) Bootstrap(ctx context.Context) error {
	_, err := s.system(ctx, fnBootstrap, appendRange(nil, 1, shard.BucketID(s.opts.BucketCount), shard.Active))
	return err
}

// SetBucketState puts a bucket into another state. destination says where a SENT bucket
// went, and is empty otherwise. BUCKET_INVALID_UPDATE says that the states cannot follow
// each other. It is no part of a move.
func (s *Storage) SetBucketState(ctx context.Context, b shard.BucketID, state shard.State, destination string) error {
	if err := s.checkBucket(b); err != nil {
		return err
	}
	args := binary.BigEndian.AppendUint32(nil, uint32(b))
	_, err := s.system(ctx, fnSetState, append(append(args, byte(state)), destination...))
	return err
}

// BucketState returns the state of a bucket here and, for a SENT one, where it went.
func (s *Storage) BucketState(b shard.BucketID) (shard.State, string) {
	if !s.table.has(b) {
		return shard.Absent, ""
	}
	r := s.table.row(b)
	return r.State, r.Peer
}

// BucketRow returns all that this replica knows of a bucket.
func (s *Storage) BucketRow(b shard.BucketID) shard.Row {
	if !s.table.has(b) {
		return shard.Row{}
	}
	return s.table.row(b)
}

// Changed returns a channel that is closed at the next change of any bucket's row.
func (s *Storage) Changed() <-chan struct{} { return s.table.change() }

// BucketCounts returns how many buckets are in each state here.
func (s *Storage) BucketCounts() map[shard.State]int { return s.bucketCounts(s.opts.BucketCount) }

// bucketCounts is BucketCounts in the view of a bucket_count.
func (s *Storage) bucketCounts(count uint32) map[shard.State]int {
	parts := 1
	if st := s.splits.state.Load(); st != nil && st.phase == splitting && count == st.count {
		parts = 2 // both halves are counted, and are in the same state
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	counts := make(map[shard.State]int, len(s.table.count))
	for state, n := range s.table.count {
		if n > 0 {
			counts[shard.State(state)] = n / parts
		}
	}
	return counts
}
