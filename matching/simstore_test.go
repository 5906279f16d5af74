package matching

import (
	"bytes"
	"slices"
	"sort"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// memStore is the store of the simulation: sorted rows in memory, and what the
// function matching.write does to them.
type memStore struct {
	rows map[string][]byte
	keys []string // sorted; nil when out of date
}

func storeKey(space storage.Space, key []byte) string {
	return string(append([]byte{byte(space)}, key...))
}

func (s *memStore) Get(space storage.Space, key []byte) ([]byte, bool, error) {
	v, ok := s.rows[storeKey(space, key)]
	return v, ok, nil
}

func (s *memStore) Scan(space storage.Space, from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	if s.keys == nil {
		for k := range s.rows {
			s.keys = append(s.keys, k)
		}
		sort.Strings(s.keys)
	}
	lo, hi := storeKey(space, from), storeKey(space, to)
	i, _ := slices.BinarySearch(s.keys, lo)
	j, _ := slices.BinarySearch(s.keys, hi)
	in := s.keys[i:j]
	for n := range in {
		k := in[n]
		if reverse {
			k = in[len(in)-1-n]
		}
		if !fn([]byte(k[1:]), s.rows[k]) {
			break
		}
	}
	return nil
}

func (s *memStore) apply(args []byte) error {
	var w writeArgs
	if err := w.decode(args); err != nil {
		return err
	}
	s.keys = nil
	s.rows[storeKey(spaceMeta, w.key)] = bytes.Clone(w.meta)
	for len(w.ops) > 0 {
		kind, space, key, value, err := w.next()
		if err != nil {
			return err
		}
		switch kind {
		case opPut:
			s.rows[storeKey(space, key)] = bytes.Clone(value)
		case opDelete:
			delete(s.rows, storeKey(space, key))
		case opDeleteRange:
			lo, hi := storeKey(space, key), storeKey(space, value)
			for k := range s.rows {
				if lo <= k && k < hi {
					delete(s.rows, k)
				}
			}
		}
	}
	return nil
}
