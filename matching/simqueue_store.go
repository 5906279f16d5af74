package matching

import (
	"bytes"
	"slices"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// simStore is the store of one simulated partition: rows in memory.
type simStore struct{ spaces [256]*simRows }

// simRows are the rows of one space. keys are sorted; those of deleted rows leave
// when they are many.
type simRows struct {
	keys []string
	rows map[string][]byte
}

func (s *simStore) space(n storage.Space) *simRows {
	if s.spaces[n] == nil {
		s.spaces[n] = &simRows{rows: map[string][]byte{}}
	}
	return s.spaces[n]
}

// Get implements view.
func (s *simStore) Get(space storage.Space, key []byte) ([]byte, bool, error) {
	v, ok := s.space(space).rows[string(key)]
	return v, ok, nil
}

// Scan implements view.
func (s *simStore) Scan(space storage.Space, from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	r := s.space(space)
	i, _ := slices.BinarySearch(r.keys, string(from))
	j, _ := slices.BinarySearch(r.keys, string(to))
	in := r.keys[i:max(i, j)]
	for n := range in {
		k := in[n]
		if reverse {
			k = in[len(in)-1-n]
		}
		if v, ok := r.rows[k]; ok && !fn([]byte(k), v) {
			break
		}
	}
	return nil
}

func (r *simRows) put(key, value []byte) {
	k := string(key)
	if n := len(r.keys); n == 0 || r.keys[n-1] < k {
		r.keys = append(r.keys, k)
	} else if i, ok := slices.BinarySearch(r.keys, k); !ok {
		r.keys = slices.Insert(r.keys, i, k)
	}
	r.rows[k] = bytes.Clone(value)
}

func (r *simRows) delete(key string) {
	delete(r.rows, key)
	if len(r.keys) > 64 && len(r.keys) > 4*len(r.rows) {
		r.keys = slices.DeleteFunc(r.keys, func(k string) bool { _, ok := r.rows[k]; return !ok })
	}
}

// apply carries out a batch. It panics on one that cannot be: the core has made it.
func (s *simStore) apply(args []byte) {
	var w writeArgs
	if err := w.decode(args); err != nil {
		panic(err)
	}
	if err := w.carryOut(s); err != nil {
		panic(err)
	}
}

func (s *simStore) put(space storage.Space, key, value []byte) error {
	s.space(space).put(key, value)
	return nil
}

func (s *simStore) delete(space storage.Space, key []byte) error {
	s.space(space).delete(string(key))
	return nil
}

func (s *simStore) deleteRange(space storage.Space, from, to []byte) error {
	r := s.space(space)
	for _, k := range slices.Clone(r.keys) {
		if string(from) <= k && k < string(to) {
			r.delete(k)
		}
	}
	return nil
}
