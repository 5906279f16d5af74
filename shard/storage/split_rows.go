package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// half is which rows of a pair of buckets a call is on.
type half uint8

const (
	bothHalves half = iota
	lowerHalf
	upperHalf
)

// pair is what a bucket stands for while it is being split: in the old view both halves, in
// the new one its own. Keys below are those of the engine without their bucket.
//
// Rows whose keys are below the cursor lie in the bucket of their half; the others lie in
// lower, whichever half they are of. Once the pair is done all lie in their halves.
type pair struct {
	count  uint32 // of buckets, before they are doubled
	lower  shard.BucketID
	half   half
	done   bool
	cursor []byte
	// puts are the keys from the cursor on that a command of one half has put: its own writes
	// are not among what it reads.
	puts map[string]struct{}
}

func newPair(st *splitState, view uint8, b shard.BucketID) pair {
	p := pair{count: st.count, lower: b}
	switch {
	case view == st.view:
	case uint32(b) > st.count:
		p.lower, p.half = b-shard.BucketID(st.count), upperHalf
	default:
		p.half = lowerHalf
	}
	return p
}

func (p *pair) upper() shard.BucketID { return p.lower + shard.BucketID(p.count) }

// own is the bucket that the caller has named.
func (p *pair) own() shard.BucketID {
	if p.half == upperHalf {
		return p.upper()
	}
	return p.lower
}

// settled reports whether the rows of a key lie in the bucket of their half.
func (p *pair) settled(key []byte) bool { return p.done || bytes.Compare(key, p.cursor) < 0 }

// isUpper reports whether rows of a hash belong to the upper half.
func isUpper(hash, count uint32) bool { return hash/count%2 == 1 }

// mine reports whether a row of the lower bucket, by its value, is one of the half.
func (p *pair) mine(value []byte) bool {
	if p.half == bothHalves || len(value) < hashLen {
		return true // a damaged one is everybody's, so that it is seen
	}
	return isUpper(binary.BigEndian.Uint32(value), p.count) == (p.half == upperHalf)
}

func withBucket(b []byte, bucket shard.BucketID, key []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(bucket)), key...)
}

// endWithBucket is where a range ends: before a key, or nil for the end of the bucket.
func endWithBucket(bucket shard.BucketID, to []byte) []byte {
	if to == nil {
		return binary.BigEndian.AppendUint32(nil, uint32(bucket)+1)
	}
	return withBucket(nil, bucket, to)
}

// within returns the keys of a range that was given with a bucket; to is nil for the end.
func within(from, to []byte) (_, _ []byte) {
	const n = prefixLen - 1
	end := to[n:]
	if !bytes.Equal(from[:n], to[:n]) {
		end = nil
	}
	return from[n:], end
}

// cut cuts a range at the cursor: [from, low) is settled and [high, to) is not. Each is there
// only if its flag says so.
func (p *pair) cut(from, to []byte) (low []byte, hasLow bool, high []byte, hasHigh bool) {
	if p.done {
		return to, true, nil, false
	}
	low, high = p.cursor, p.cursor
	if to != nil && bytes.Compare(to, low) < 0 {
		low = to
	}
	if bytes.Compare(from, high) > 0 {
		high = from
	}
	return low, bytes.Compare(from, low) < 0, high, to == nil || bytes.Compare(high, to) < 0
}

// isDone reports whether a bucket is split, and every reader sees it.
func (st *splitState) isDone(view uint8, b shard.BucketID) bool {
	if st.phase != splitting {
		return true
	}
	if uint32(b) > st.count {
		b -= shard.BucketID(st.count)
	}
	return st.done[b].Load()
}

// whole reports whether a bucket of a view is just its own range of keys. done is what isDone
// said before the rows were read.
func (st *splitState) whole(view uint8, done bool) bool {
	return st.phase != splitting || done && view != st.view
}

// reader returns what shows the rows of a caller's bucket as if they lay there, of a moment that r
// reads. done is what isDone said before.
func (st *splitState) reader(r engine.Reader, view uint8, b shard.BucketID, done bool) (engine.Reader, error) {
	p := newPair(st, view, b)
	if p.done = done; !done {
		x := rows{r: r}
		value, ok, err := x.Get(SpaceSplit, splitCursorKey(p.lower))
		if err != nil {
			return nil, err
		}
		if ok {
			c, err := decodeSplitCursor(value)
			if err != nil {
				return nil, err
			}
			p.done, p.cursor = c.done, c.key
		}
		if p.half == bothHalves && !p.done && len(p.cursor) == 0 {
			return r, nil // nothing of it is split yet
		}
	}
	return &pairReader{r: r, p: &p}, nil
}

// aimTx makes a transaction see what its caller's bucket stands for.
func (s *Storage) aimTx(tx *Tx, st *splitState, cmd *engine.Command) error {
	if st == nil {
		return s.viewRefused(s.opts.BucketCount, 0)
	}
	count := st.count
	switch {
	case cmd.View == st.view:
	case cmd.View == st.view+1 && st.phase == splitting:
		count *= 2
	default:
		// It was on its way when the doubling was finished.
		return s.viewRefused(st.count, st.count/2)
	}
	if cmd.Bucket < 1 || uint32(cmd.Bucket) > count {
		return s.noBucket(cmd.Bucket, count)
	}
	if st.phase != splitting {
		return nil
	}
	p := &s.splits.pair
	*p = newPair(st, cmd.View, cmd.Bucket)
	c := s.splits.cursor(p.lower)
	p.done, p.cursor = c.done, c.key
	if p.half == bothHalves && !p.done && len(p.cursor) == 0 || p.half != bothHalves && p.done {
		return nil
	}
	tx.pair, tx.r = p, &pairReader{r: tx.tx, p: p}
	return nil
}

// placePut returns the bucket in which a row is to be put.
func (t *Tx) placePut(space Space, hash uint32, key []byte) (shard.BucketID, error) {
	p := t.pair
	up := isUpper(hash, p.count)
	if p.half != bothHalves && (hash%p.count+1 != uint32(p.lower) || up != (p.half == upperHalf)) {
		return 0, &shard.Error{Code: shard.InvalidArguments, Bucket: t.bucket, Reason: fmt.Sprintf(
			"a row with hash %#x is put, which is of bucket %d: the hash must be that of the sharding key", hash, shard.BucketOf(hash, 2*p.count))}
	}
	t.key = append(append(t.key[:0], byte(space)), key...)
	if !p.settled(t.key) {
		if p.half != bothHalves {
			if p.puts == nil {
				p.puts = map[string]struct{}{}
			}
			p.puts[string(t.key)] = struct{}{}
		}
		return p.lower, nil
	}
	if p.half != bothHalves {
		return p.own(), nil
	}
	// A key has one row in both halves, whatever hash it had before.
	to, other := p.lower, p.upper()
	if up {
		to, other = other, to
	}
	t.deleteRow(other, t.key)
	return to, nil
}

func (t *Tx) deleteRow(b shard.BucketID, key []byte) {
	k := t.tx.Delete(prefixLen - 1 + len(key))
	binary.BigEndian.PutUint32(k, uint32(b))
	copy(k[prefixLen-1:], key)
}

// pairDelete deletes a row of a pair.
func (t *Tx) pairDelete(space Space, key []byte) error {
	p := t.pair
	k := append([]byte{byte(space)}, key...)
	switch {
	case p.half == bothHalves:
		if p.settled(k) {
			t.deleteRow(p.upper(), k)
		}
		t.deleteRow(p.lower, k)
	case p.settled(k):
		t.deleteRow(p.own(), k)
	default:
		if _, put := p.puts[string(k)]; !put {
			value, ok, err := t.tx.Get(withBucket(nil, p.lower, k))
			if err != nil {
				return err
			}
			if ok && !p.mine(value) {
				return nil // it is of the other half
			}
		}
		t.deleteRow(p.lower, k)
	}
	return nil
}

// Rows of one half that are not split yet lie among those of the other, and are deleted one by
// one: at most so many are looked at for one range.
const (
	maxRangeRows  = 4096
	maxRangeBytes = 1 << 20
)

// pairDeleteRange deletes the rows of a range of a pair.
func (t *Tx) pairDeleteRange(fromKey, toKey []byte) error {
	p := t.pair
	from, to := within(fromKey, toKey)
	if to != nil && bytes.Compare(from, to) >= 0 {
		return nil
	}
	if p.half == bothHalves {
		t.tx.DeleteRange(withBucket(nil, p.lower, from), endWithBucket(p.lower, to))
		t.tx.DeleteRange(withBucket(nil, p.upper(), from), endWithBucket(p.upper(), to))
		return nil
	}
	low, hasLow, high, hasHigh := p.cut(from, to)
	if hasLow {
		t.tx.DeleteRange(withBucket(nil, p.own(), from), endWithBucket(p.own(), low))
	}
	if !hasHigh {
		return nil
	}
	var gone [][]byte
	rows, size := 0, 0
	err := t.tx.Scan(withBucket(nil, p.lower, high), endWithBucket(p.lower, to), false, func(key, value []byte) bool {
		rows++
		size += len(key) + len(value)
		if p.mine(value) {
			gone = append(gone, bytes.Clone(key[prefixLen-1:]))
		}
		return rows <= maxRangeRows && size <= maxRangeBytes
	})
	if err != nil {
		return err
	}
	if rows > maxRangeRows || size > maxRangeBytes {
		return &shard.Error{Code: shard.TransferIsInProgress, Bucket: t.bucket, Reason: "a range is to be deleted that is too large as long as the bucket is not split; that comes first now"}
	}
	for k := range p.puts {
		if bytes.Compare([]byte(k), high) >= 0 && (to == nil || bytes.Compare([]byte(k), to) < 0) {
			t.deleteRow(p.lower, []byte(k))
		}
	}
	for _, k := range gone {
		t.deleteRow(p.lower, k)
	}
	return nil
}

// pairReader shows the rows of a pair as if they lay in the caller's bucket. It is for one
// goroutine, as what it reads from.
type pairReader struct {
	r   engine.Reader
	p   *pair
	key []byte // scratch
}

// Get implements engine.Reader.
func (x *pairReader) Get(key []byte) ([]byte, bool, error) {
	p := x.p
	if len(key) < prefixLen || binary.BigEndian.Uint32(key) != uint32(p.own()) {
		return x.r.Get(key)
	}
	k := key[prefixLen-1:]
	settled := p.settled(k)
	if settled && p.half != bothHalves {
		return x.r.Get(key)
	}
	x.key = withBucket(x.key[:0], p.lower, k)
	value, ok, err := x.r.Get(x.key)
	switch {
	case err != nil:
		return nil, false, err
	case ok && (settled || p.mine(value)):
		return value, true, nil
	case !settled:
		return nil, false, nil
	}
	x.key = withBucket(x.key[:0], p.upper(), k)
	return x.r.Get(x.key)
}

// Scan implements engine.Reader.
func (x *pairReader) Scan(fromKey, toKey []byte, reverse bool, fn func(key, value []byte) bool) error {
	p := x.p
	if len(fromKey) < prefixLen-1 || len(toKey) < prefixLen-1 || binary.BigEndian.Uint32(fromKey) != uint32(p.own()) {
		return x.r.Scan(fromKey, toKey, reverse, fn)
	}
	from, to := within(fromKey, toKey)
	if to != nil && bytes.Compare(from, to) >= 0 {
		return nil
	}
	low, hasLow, high, hasHigh := p.cut(from, to)
	more := true
	settled := func() error {
		if !hasLow || !more {
			return nil
		}
		if p.half == bothHalves {
			return x.merge(from, low, reverse, func(key, value []byte) bool { more = fn(key, value); return more })
		}
		return x.r.Scan(withBucket(nil, p.own(), from), endWithBucket(p.own(), low), reverse, func(key, value []byte) bool {
			more = fn(key, value)
			return more
		})
	}
	rest := func() error {
		if !hasHigh || !more {
			return nil
		}
		var room []byte
		return x.r.Scan(withBucket(nil, p.lower, high), endWithBucket(p.lower, to), reverse, func(key, value []byte) bool {
			if !p.mine(value) {
				return true
			}
			if p.half == upperHalf {
				room = withBucket(room[:0], p.own(), key[prefixLen-1:])
				key = room
			}
			more = fn(key, value)
			return more
		})
	}
	if reverse {
		settled, rest = rest, settled
	}
	if err := settled(); err != nil {
		return err
	}
	return rest()
}

// Rows of a merge are read ahead, by so many at first and then by twice as many.
const (
	firstAhead    = 16
	maxAhead      = 512
	maxAheadBytes = 256 << 10
)

// side is one of two buckets that are merged, read in pieces.
type side struct {
	bucket   shard.BucketID
	from, to []byte // what is not read yet
	ended    bool
	rows     []aheadRow
	next     int
	ahead    int
}

type aheadRow struct{ key, value []byte }

// head returns the next row, nil when there is none.
func (a *side) head(r engine.Reader, reverse bool) (*aheadRow, error) {
	if a.next < len(a.rows) {
		return &a.rows[a.next], nil
	}
	if a.ended {
		return nil, nil
	}
	a.rows, a.next = a.rows[:0], 0
	size := 0
	a.ended = true
	err := r.Scan(withBucket(nil, a.bucket, a.from), endWithBucket(a.bucket, a.to), reverse, func(key, value []byte) bool {
		if len(a.rows) == a.ahead || size > maxAheadBytes {
			a.ended = false
			return false
		}
		size += len(key) + len(value)
		b := append(append(make([]byte, 0, len(key)+len(value)), key...), value...)
		a.rows = append(a.rows, aheadRow{b[:len(key):len(key)], b[len(key):]})
		return true
	})
	if err != nil {
		return nil, err
	}
	a.ahead = min(2*a.ahead, maxAhead)
	if len(a.rows) == 0 {
		return nil, nil
	}
	if last := a.rows[len(a.rows)-1].key[prefixLen-1:]; reverse {
		a.to = last
	} else {
		a.from = append(bytes.Clone(last), 0)
	}
	return &a.rows[0], nil
}

// merge calls fn with the rows of both halves in the order of their keys.
func (x *pairReader) merge(from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	sides := [2]side{
		{bucket: x.p.lower, from: from, to: to, ahead: firstAhead},
		{bucket: x.p.upper(), from: from, to: to, ahead: firstAhead},
	}
	for {
		low, err := sides[0].head(x.r, reverse)
		if err != nil {
			return err
		}
		up, err := sides[1].head(x.r, reverse)
		if err != nil {
			return err
		}
		take := 0
		switch {
		case low == nil && up == nil:
			return nil
		case low == nil:
			take = 1
		case up != nil:
			if c := bytes.Compare(low.key[prefixLen-1:], up.key[prefixLen-1:]); c == 0 {
				// Two rows of one key: the doubling is over for nobody, and callers in the new
				// view have used it twice. In the old view the lower one counts, as for Get.
				sides[1].next++
			} else if c > 0 != reverse {
				take = 1
			}
		}
		row := low
		if take == 1 {
			row = up
			binary.BigEndian.PutUint32(row.key, uint32(x.p.lower))
		}
		sides[take].next++
		if !fn(row.key, row.value) {
			return nil
		}
	}
}
