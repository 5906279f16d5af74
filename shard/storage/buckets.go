package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// Rows of the space _bucket:
//
//	key 0            ranges of buckets that were given one state at once:
//	                 version, then first, last (4 bytes each, big endian), state (1 byte) of each
//	key 1, bucket    one bucket, which overrides the ranges:
//	                 version, state (1 byte), destination (the rest)
//
// Bootstrapping writes one row, whatever the number of buckets.
const (
	rangesRow     = 0
	bucketRow     = 1
	bucketVersion = 1
	rangeSize     = 9
)

// slot is what is known of a bucket in one word: its state in the lowest byte, and
// above it a number that changes with every change.
type slot uint64

func (s slot) state() shard.State { return shard.State(s & 0xff) }

func (s slot) with(state shard.State) slot { return (s>>8+1)<<8 | slot(state) }

// bucketTable is the space _bucket in memory. The goroutine that applies commands
// changes it; everybody reads.
type bucketTable struct {
	slots []atomic.Uint64 // by bucket id; 0 is unused

	mu    sync.Mutex
	dest  map[shard.BucketID]string
	count [shard.Garbage + 1]int
}

func newBucketTable(n uint32) *bucketTable {
	t := &bucketTable{slots: make([]atomic.Uint64, n+1), dest: map[shard.BucketID]string{}}
	t.count[shard.Absent] = int(n)
	return t
}

func (t *bucketTable) load(b shard.BucketID) slot { return slot(t.slots[b].Load()) }

func (t *bucketTable) destination(b shard.BucketID) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dest[b]
}

func (t *bucketTable) set(b shard.BucketID, state shard.State, destination string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLocked(b, state, destination)
}

func (t *bucketTable) setLocked(b shard.BucketID, state shard.State, destination string) {
	old := t.load(b)
	t.count[old.state()]--
	t.count[state]++
	if destination == "" {
		delete(t.dest, b)
	} else {
		t.dest[b] = destination
	}
	t.slots[b].Store(uint64(old.with(state)))
}

func (t *bucketTable) has(b shard.BucketID) bool { return b >= 1 && int(b) < len(t.slots) }

// read replaces the table by the rows of r.
func (t *bucketTable) read(r engine.Reader) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for b := 1; b < len(t.slots); b++ {
		t.setLocked(shard.BucketID(b), shard.Absent, "")
	}
	x := rows{r: r}
	var bad error
	fail := func(key []byte, why string) bool {
		bad = &shard.Error{Code: shard.BucketIsCorrupted, Reason: fmt.Sprintf("row %x of _bucket: %s", key, why)}
		return false
	}
	err := x.Scan(SpaceBucket, nil, nil, false, func(key, value []byte) bool {
		if len(value) < 1 || value[0] != bucketVersion {
			return fail(key, "its format version is not known")
		}
		value = value[1:]
		switch {
		case len(key) == 1 && key[0] == rangesRow:
			for ; len(value) >= rangeSize; value = value[rangeSize:] {
				first, last, state := decodeRange(value)
				if !t.has(first) || !t.has(last) || !state.Valid() {
					return fail(key, "a range that cannot be")
				}
				for b := first; b <= last; b++ {
					t.setLocked(b, state, "")
				}
			}
		case len(key) == 5 && key[0] == bucketRow:
			b := shard.BucketID(binary.BigEndian.Uint32(key[1:]))
			if !t.has(b) || len(value) < 1 || !shard.State(value[0]).Valid() {
				return fail(key, "a bucket or state that cannot be")
			}
			t.setLocked(b, shard.State(value[0]), string(value[1:]))
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

func appendRange(b []byte, first, last shard.BucketID, state shard.State) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(first))
	b = binary.BigEndian.AppendUint32(b, uint32(last))
	return append(b, byte(state))
}

func decodeRange(b []byte) (first, last shard.BucketID, state shard.State) {
	return shard.BucketID(binary.BigEndian.Uint32(b)), shard.BucketID(binary.BigEndian.Uint32(b[4:])), shard.State(b[8])
}

// System functions, on bucket 0.
const (
	fnBootstrap = "_bucket.bootstrap" // args: a range
	fnSetState  = "_bucket.set"       // args: bucket (4 bytes, big endian), state (1 byte), destination
)

// applySystem carries out a system function. The table changes only after everything
// that can fail, and after earlier commands' rows can be seen by all.
func (s *Storage) applySystem(etx engine.Tx, cmd *engine.Command) ([]byte, error) {
	tx := &s.tx
	tx.tx, tx.r, tx.bucket, tx.time = etx, etx, 0, cmd.Time
	switch cmd.Function {
	case fnBootstrap:
		return nil, s.applyBootstrap(tx, cmd.Args)
	case fnSetState:
		return nil, s.applySetState(tx, cmd.Args)
	}
	return nil, engine.Fatal(fmt.Errorf("the log has a call of system function %q, which this version of Switchyard does not know; use the version that wrote it, or a newer one", cmd.Function))
}

func (s *Storage) applyBootstrap(tx *Tx, args []byte) error {
	if len(args) != rangeSize {
		return &shard.Error{Code: shard.InvalidArguments, Reason: "a range of buckets is needed"}
	}
	first, last, state := decodeRange(args)
	if !s.table.has(first) || !s.table.has(last) || first > last || !shard.Absent.CanBecome(state) {
		return &shard.Error{Code: shard.InvalidArguments, Reason: fmt.Sprintf("buckets %d to %d cannot be made %v", first, last, state)}
	}
	empty := true
	if err := tx.Scan(SpaceBucket, nil, nil, false, func(key, _ []byte) bool { empty = false; return false }); err != nil {
		return err
	}
	if !empty {
		return &shard.Error{Code: shard.NonEmpty, ReplicaSet: s.opts.ReplicaSet}
	}
	if err := tx.Put(SpaceBucket, 0, []byte{rangesRow}, append([]byte{bucketVersion}, args...)); err != nil {
		return err
	}
	if err := tx.tx.Settle(); err != nil {
		return err
	}
	for b := first; b <= last; b++ {
		s.table.set(b, state, "")
	}
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
	if was := s.table.load(b).state(); !was.CanBecome(state) {
		return &shard.Error{Code: shard.BucketInvalidUpdate, Bucket: b, ReplicaSet: s.opts.ReplicaSet, Reason: fmt.Sprintf("from %v to %v", was, state)}
	}
	key := binary.BigEndian.AppendUint32([]byte{bucketRow}, uint32(b))
	if err := tx.PutParts(SpaceBucket, 0, key, []byte{bucketVersion, byte(state)}, []byte(destination)); err != nil {
		return err
	}
	if err := tx.tx.Settle(); err != nil {
		return err
	}
	s.table.set(b, state, destination)
	return nil
}

func (s *Storage) system(ctx context.Context, fn string, args []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := wait(ctx, func(done func([]byte, error)) {
		s.eng.Propose(engine.Command{Function: fn, Args: args}, done)
	})
	return err
}

// Bootstrap makes all buckets ACTIVE here, in one command. It is done once in a
// cluster's life; later it answers NON_EMPTY.
func (s *Storage) Bootstrap(ctx context.Context) error {
	return s.system(ctx, fnBootstrap, appendRange(nil, 1, shard.BucketID(s.opts.BucketCount), shard.Active))
}

// SetBucketState puts a bucket into another state. destination says where a SENT bucket
// went, and is empty otherwise. BUCKET_INVALID_UPDATE says that the states cannot follow
// each other.
func (s *Storage) SetBucketState(ctx context.Context, b shard.BucketID, state shard.State, destination string) error {
	if err := s.checkBucket(b); err != nil {
		return err
	}
	args := binary.BigEndian.AppendUint32(nil, uint32(b))
	return s.system(ctx, fnSetState, append(append(args, byte(state)), destination...))
}

// BucketState returns the state of a bucket here and, for a SENT one, where it went.
func (s *Storage) BucketState(b shard.BucketID) (shard.State, string) {
	if !s.table.has(b) {
		return shard.Absent, ""
	}
	return s.table.load(b).state(), s.table.destination(b)
}

// BucketCounts returns how many buckets are in each state here.
func (s *Storage) BucketCounts() map[shard.State]int {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	counts := make(map[shard.State]int, len(s.table.count))
	for state, n := range s.table.count {
		if n > 0 {
			counts[shard.State(state)] = n
		}
	}
	return counts
}
