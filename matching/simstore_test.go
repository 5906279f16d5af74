package matching

import (
	"bytes"
	"fmt"
	"slices"
	"sort"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// memStore is the store of the simulation: sorted rows in memory, and what the
// function matching.write does to them.
type memStore struct {
	rows map[string][]byte
	keys []string // sorted; some may be gone
	news []string // keys that are not among them yet
}

// putRow, which tests also call for what nobody writes.
func (s *memStore) putRow(key string, value []byte) {
	if _, ok := s.rows[key]; !ok {
		s.news = append(s.news, key)
	}
	s.rows[key] = value
}

// sorted brings keys up to date.
func (s *memStore) sorted() []string {
	if len(s.news) > 0 || len(s.keys) > 2*len(s.rows)+100 {
		sort.Strings(s.news)
		merged := make([]string, 0, len(s.keys)+len(s.news))
		old, news := s.keys, s.news
		for len(old)+len(news) > 0 {
			var k string
			if len(news) == 0 || len(old) > 0 && old[0] <= news[0] {
				k, old = old[0], old[1:]
			} else {
				k, news = news[0], news[1:]
			}
			if _, ok := s.rows[k]; ok && (len(merged) == 0 || merged[len(merged)-1] != k) {
				merged = append(merged, k)
			}
		}
		s.keys, s.news = merged, nil
	}
	return s.keys
}

func storeKey(space storage.Space, key []byte) string {
	return string(append([]byte{byte(space)}, key...))
}

func (s *memStore) Get(space storage.Space, key []byte) ([]byte, bool, error) {
	v, ok := s.rows[storeKey(space, key)]
	return v, ok, nil
}

func (s *memStore) Scan(space storage.Space, from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	keys := s.sorted()
	lo, hi := storeKey(space, from), storeKey(space, to)
	i, _ := slices.BinarySearch(keys, lo)
	j, _ := slices.BinarySearch(keys, hi)
	in := keys[i:j]
	for n := range in {
		k := in[n]
		if reverse {
			k = in[len(in)-1-n]
		}
		if row, ok := s.rows[k]; ok && !fn([]byte(k[1:]), row) {
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
	_, _, last, ok := metaIdentity(s.rows[storeKey(spaceMeta, w.key)])
	if !ok || w.batch != last+1 {
		return fmt.Errorf("write %d came after write %d", w.batch, last)
	}
	s.putRow(storeKey(spaceMeta, w.key), bytes.Clone(w.meta))
	return w.carryOut(s)
}

func (s *memStore) put(space storage.Space, key, value []byte) error {
	s.putRow(storeKey(space, key), bytes.Clone(value))
	return nil
}

func (s *memStore) delete(space storage.Space, key []byte) error {
	delete(s.rows, storeKey(space, key))
	return nil
}

func (s *memStore) deleteRange(space storage.Space, from, to []byte) error {
	lo, hi := storeKey(space, from), storeKey(space, to)
	keys := s.sorted()
	i, _ := slices.BinarySearch(keys, lo)
	for ; i < len(keys) && keys[i] < hi; i++ {
		delete(s.rows, keys[i])
	}
	return nil
}
