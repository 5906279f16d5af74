package storage

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// A chunk holds rows of one bucket on their way: fresh (1 byte), then for each row
//
//	0, key           it is gone
//	1, key, value    it is there
//
// with the lengths before key and value, which are those of the engine, the key without
// its bucket. A key stands once in a chunk. In a fresh chunk there are only rows that are
// there, and the bucket cannot have them already.
const (
	rowGone  = 0
	rowThere = 1
)

// rowHash is what a row adds to the sum of its bucket. It is XXH64 over the key, without
// its bucket, and the value, so it is the same on every replica set.
func rowHash(key, value []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(key)))
	_, _ = d.Write(n[:])
	_, _ = d.Write(key)
	_, _ = d.Write(value)
	return d.Sum64()
}

// chunkMaker builds chunks and keeps account of what was given.
type chunkMaker struct {
	b     []byte
	given *shard.Progress
}

func newChunk(given *shard.Progress, fresh bool, room int) chunkMaker {
	return chunkMaker{appendFlag(make([]byte, 0, room), fresh), given}
}

// there adds a row and returns what it adds to the sum.
func (c *chunkMaker) there(key, value []byte) (hash uint64) {
	c.b = append(c.b, rowThere)
	c.b = appendText(appendText(c.b, key), value)
	hash = rowHash(key, value)
	c.given.Rows++
	c.given.Sum += hash
	return hash
}

// takeBack takes back what a row has added before it changed.
func (c *chunkMaker) takeBack(hash uint64) {
	c.given.Rows--
	c.given.Sum -= hash
}

func (c *chunkMaker) gone(key []byte) {
	c.b = append(c.b, rowGone)
	c.b = appendText(c.b, key)
}

func (c *chunkMaker) empty() bool { return len(c.b) <= 1 }

// chunkArgs are the arguments of fnChunk: bucket, transfer, number (varints) and the chunk.
func chunkArgs(b shard.BucketID, transfer, seq uint64, chunk []byte) []byte {
	args := make([]byte, 0, 24+len(chunk))
	args = binary.AppendUvarint(args, uint64(b))
	args = binary.AppendUvarint(args, transfer)
	args = binary.AppendUvarint(args, seq)
	return append(args, chunk...)
}

// applyChunk takes a chunk. The result is an outcome.
func (s *Storage) applyChunk(tx *Tx, args []byte) ([]byte, error) {
	in := decoder{b: args}
	b, transfer, seq := shard.BucketID(in.number()), in.number(), in.number()
	fresh := in.flag()
	if in.bad {
		return nil, &shard.Error{Code: shard.InvalidArguments, Reason: "a chunk that cannot be read"}
	}
	if err := s.checkBucket(b); err != nil {
		return nil, err
	}
	was := s.table.row(b)
	row, effect, err := was.Step(shard.Event{Kind: shard.EventChunk, Bucket: b, Transfer: transfer, Seq: seq})
	if err != nil {
		return nil, err
	}
	if effect == shard.EffectTake {
		if err := takeRows(tx, b, &in, fresh, &row.Taken); err != nil {
			return nil, err
		}
	}
	if row != was {
		if err := putRow(tx, b, row); err != nil {
			return nil, err
		}
		s.table.progress(b, row)
	}
	return encodeOutcomes([]stepOutcome{{row: row}}), nil
}

// progress notes how far a RECEIVING bucket is, which nobody waits for and no reader may use: so
// it needs no settling and is not told.
func (t *bucketTable) progress(b shard.BucketID, r shard.Row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows[b] = r
}

// takeRows writes the rows of a chunk and keeps count of them.
func takeRows(tx *Tx, b shard.BucketID, in *decoder, fresh bool, taken *shard.Progress) error {
	bad := &shard.Error{Code: shard.BucketReceiveData, Bucket: b, Reason: "a chunk that cannot be read"}
	key := binary.BigEndian.AppendUint32(nil, uint32(b))
	for len(in.b) > 0 {
		kind := in.byte()
		name := in.text()
		var value []byte
		if kind == rowThere {
			value = in.text()
		}
		if in.bad || kind > rowThere || kind == rowGone && fresh || len(name) == 0 || kind == rowThere && len(value) < hashLen {
			return bad
		}
		key = append(key[:prefixLen-1], name...)
		if !fresh {
			old, ok, err := tx.tx.Get(key)
			if err != nil {
				return err
			}
			if ok {
				taken.Rows--
				taken.Sum -= rowHash(name, old)
			}
		}
		if kind == rowGone {
			copy(tx.tx.Delete(len(key)), key)
			continue
		}
		k, v := tx.tx.Put(len(key), len(value))
		copy(k, key)
		copy(v, value)
		taken.Rows++
		taken.Sum += rowHash(name, value)
	}
	return nil
}

// bucketReader reads the rows of one bucket by the engine's keys without their bucket.
type bucketReader struct {
	r   engine.Reader
	key []byte
}

func readBucket(r engine.Reader, b shard.BucketID) bucketReader {
	return bucketReader{r, binary.BigEndian.AppendUint32(nil, uint32(b))}
}

func (x *bucketReader) get(key string) ([]byte, bool, error) {
	x.key = append(x.key[:prefixLen-1], key...)
	return x.r.Get(x.key)
}

// scan calls fn with rows from a key on and below another, "" for the end of the bucket.
func (x *bucketReader) scan(from, to string, fn func(key, value []byte) bool) error {
	begin := append(bytes.Clone(x.key[:prefixLen-1]), from...)
	end := binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(x.key)+1)
	if to != "" {
		end = append(bytes.Clone(x.key[:prefixLen-1]), to...)
	}
	return x.r.Scan(begin, end, false, func(k, v []byte) bool { return fn(k[prefixLen-1:], v) })
}
