package raftengine

import (
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2"
)

// reader reads rows of Pebble for one goroutine. src is the database or a snapshot.
type reader struct {
	src    pebble.Reader
	closer io.Closer // of the value that was returned last
}

func (r *reader) Get(key []byte) ([]byte, bool, error) {
	if err := r.release(); err != nil {
		return nil, false, err
	}
	v, closer, err := r.src.Get(key)
	if err != nil {
		if errors.Is(err, pebble.ErrNotFound) {
			return nil, false, nil
		}
		return nil, false, err
	}
	r.closer = closer
	return v, true, nil
}

func (r *reader) Scan(from, to []byte, reverse bool, fn func(key, value []byte) bool) (err error) {
	if err := r.release(); err != nil {
		return err
	}
	it, err := r.src.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	move, ok := it.Next, false
	if reverse {
		move, ok = it.Prev, it.Last()
	} else {
		ok = it.First()
	}
	for ; ok; ok = move() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if !fn(it.Key(), v) {
			break
		}
	}
	return it.Error()
}

// release gives the last value back to Pebble.
func (r *reader) release() error {
	if r.closer == nil {
		return nil
	}
	c := r.closer
	r.closer = nil
	return c.Close()
}
