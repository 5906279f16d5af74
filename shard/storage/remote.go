package storage

import (
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// NewView returns a view of a bucket whose rows r reads, by the keys and with the values
// of the engine. It is how a view of a storage in another process is made.
func NewView(bucket shard.BucketID, r engine.Reader) *View {
	return &View{rows{bucket: bucket, r: r}}
}

// Reader returns what the view reads from, by the engine's keys: of all buckets. It is for
// those who carry views to other processes.
func (v *View) Reader() engine.Reader { return v.r }

// ManyReader is a reader that gets many rows in less time than one after the other.
type ManyReader interface {
	// GetMany calls fn with each key's number and value, in the order of keys, until fn
	// returns false. The value is valid during fn.
	GetMany(keys [][]byte, fn func(i int, value []byte, ok bool) bool) error
}

// GetMany calls fn with the number of each key, its row's value and whether there is one,
// in the order of keys, until fn returns false. The value is valid during fn and must not
// be changed. In another process it is one round trip for many rows, where Get is one
// each.
func (v *View) GetMany(space Space, keys [][]byte, fn func(i int, value []byte, ok bool) bool) error {
	many, remote := v.r.(ManyReader)
	if !remote {
		for i, key := range keys {
			value, ok, err := v.Get(space, key)
			if err != nil {
				return err
			}
			if !fn(i, value, ok) {
				return nil
			}
		}
		return nil
	}
	full := make([][]byte, len(keys))
	for i, key := range keys {
		full[i] = appendKey(nil, v.bucket, space, key)
	}
	var bad error
	err := many.GetMany(full, func(i int, raw []byte, ok bool) bool {
		var value []byte
		if ok {
			if _, value, bad = splitValue(raw); bad != nil {
				return false
			}
		}
		return fn(i, value, ok)
	})
	if bad != nil {
		return bad
	}
	return err
}
