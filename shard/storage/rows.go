package storage

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// Space is a set of rows within a bucket. Numbers are on disk; 0 to 15 are reserved, and
// 16 to 63 are those of Switchyard's own functions.
type Space uint8

// FirstUserSpace is the first space for the functions of whoever uses the store for data
// of their own.
const FirstUserSpace Space = 64

// Spaces of this package.
const (
	// SpaceBucket is "_bucket", in bucket 0 only.
	SpaceBucket Space = 1
	// SpaceKV holds the rows of the kv functions.
	SpaceKV Space = 8
)

const (
	prefixLen = 5 // of a key: bucket and space
	hashLen   = 4 // of a value
)

func putPrefix(b []byte, bucket shard.BucketID, space Space) {
	binary.BigEndian.PutUint32(b, uint32(bucket))
	b[4] = byte(space)
}

// appendKey appends the engine's key of a row.
func appendKey(b []byte, bucket shard.BucketID, space Space, key []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(bucket))
	b = append(b, byte(space))
	return append(b, key...)
}

// appendEnd appends the engine's key at which a range of a space ends: that of to, or
// the end of the space when to is nil.
func appendEnd(b []byte, bucket shard.BucketID, space Space, to []byte) []byte {
	if to != nil {
		return appendKey(b, bucket, space, to)
	}
	if space == 0xff {
		return binary.BigEndian.AppendUint32(b, uint32(bucket)+1)
	}
	return appendKey(b, bucket, space+1, nil)
}

func splitValue(v []byte) (hash uint32, value []byte, err error) {
	if len(v) < hashLen {
		return 0, nil, &shard.Error{Code: shard.BucketIsCorrupted, Reason: fmt.Sprintf("a row has %d bytes and needs at least %d", len(v), hashLen)}
	}
	return binary.BigEndian.Uint32(v), v[hashLen:], nil
}

// rows reads rows of one bucket. Tx and View are it, and so have the same reads.
type rows struct {
	bucket shard.BucketID
	r      engine.Reader
	key    []byte // scratch
	end    []byte // scratch
}

// Bucket returns the bucket that the call is on.
func (x *rows) Bucket() shard.BucketID { return x.bucket }

// Get returns the value of a row and whether there is one. The value is valid until the
// next call and must not be changed.
func (x *rows) Get(space Space, key []byte) (value []byte, ok bool, err error) {
	x.key = appendKey(x.key[:0], x.bucket, space, key)
	v, ok, err := x.r.Get(x.key)
	if err != nil || !ok {
		return nil, false, err
	}
	_, value, err = splitValue(v)
	return value, err == nil, err
}

// Scan calls fn with the rows of a space whose keys are at least from and below to, in
// the order of their keys or backwards, until fn returns false. nil is the beginning and
// the end of the space. Key and value are valid during fn and must not be changed. fn
// may call Get.
func (x *rows) Scan(space Space, from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	// Not the scratch of Get, which fn may call.
	begin := appendKey(x.end[:0], x.bucket, space, from)
	both := appendEnd(begin, x.bucket, space, to)
	x.end = nil
	var bad error
	err := x.r.Scan(both[:len(begin):len(begin)], both[len(begin):], reverse, func(k, v []byte) bool {
		_, value, err := splitValue(v)
		if err != nil {
			bad = err
			return false
		}
		return fn(k[prefixLen:], value)
	})
	x.end = both
	if bad != nil {
		return bad
	}
	return err
}

// Tx is what a write function reads and writes: rows of one bucket. Its reads see the
// rows as they were before the command, never the function's own writes. It is for the
// function's goroutine and time only.
type Tx struct {
	rows
	tx      engine.Tx
	time    time.Time
	capture *capture // of the bucket, when it is being sent
	pair    *pair    // what the bucket stands for, when it is being split
}

// Time returns the master's clock when it took the command: the same on every replica,
// and never earlier than that of a command before.
func (t *Tx) Time() time.Time { return t.time }

// Put writes a row: hash is that of its sharding key. Key and value are copied.
func (t *Tx) Put(space Space, hash uint32, key, value []byte) error {
	bucket, err := t.place(space, hash, key)
	if err != nil {
		return err
	}
	k, v := t.tx.Put(prefixLen+len(key), hashLen+len(value))
	putPrefix(k, bucket, space)
	copy(k[prefixLen:], key)
	binary.BigEndian.PutUint32(v, hash)
	copy(v[hashLen:], value)
	return nil
}

// place returns the bucket that a row is written to, and notes the row when the bucket is being
// sent.
func (t *Tx) place(space Space, hash uint32, key []byte) (shard.BucketID, error) {
	if t.pair != nil {
		return t.placePut(space, hash, key)
	}
	if t.capture != nil {
		t.capture.note(space, key)
	}
	return t.bucket, nil
}

// PutParts is Put of a value that is given in parts, which spares joining them first.
func (t *Tx) PutParts(space Space, hash uint32, key []byte, parts ...[]byte) error {
	n := hashLen
	for _, p := range parts {
		n += len(p)
	}
	bucket, err := t.place(space, hash, key)
	if err != nil {
		return err
	}
	k, v := t.tx.Put(prefixLen+len(key), n)
	putPrefix(k, bucket, space)
	copy(k[prefixLen:], key)
	binary.BigEndian.PutUint32(v, hash)
	v = v[hashLen:]
	for _, p := range parts {
		v = v[copy(v, p):]
	}
	return nil
}

// Delete deletes a row; there need not be one.
func (t *Tx) Delete(space Space, key []byte) error {
	if t.pair != nil {
		return t.pairDelete(space, key)
	}
	if t.capture != nil {
		t.capture.note(space, key)
	}
	k := t.tx.Delete(prefixLen + len(key))
	putPrefix(k, t.bucket, space)
	copy(k[prefixLen:], key)
	return nil
}

// DeleteRange deletes the rows of a space whose keys are at least from and below to; nil
// is the beginning and the end of the space. It costs the same for one row and for
// millions, but many of them slow down reads of the space until they are compacted.
func (t *Tx) DeleteRange(space Space, from, to []byte) error {
	t.key = appendKey(t.key[:0], t.bucket, space, from)
	t.end = appendEnd(t.end[:0], t.bucket, space, to)
	if t.pair != nil {
		return t.pairDeleteRange(t.key, t.end)
	}
	if t.capture != nil {
		t.capture.noteRange(t.key, t.end)
	}
	t.tx.DeleteRange(t.key, t.end)
	return nil
}

// View is what a read function reads: rows of one bucket at one moment.
type View struct{ rows }
