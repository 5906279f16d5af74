package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// Band is a row of the table.
type Band struct {
	Name  string `json:"name"`
	Genre string `json:"genre"`
	Year  int    `json:"year"`
}

// The table and its secondary index. All rows of a band lie in the bucket of its name, so
// one command writes them together.
const (
	spaceBands   = storage.FirstUserSpace     // name → the band
	spaceByGenre = storage.FirstUserSpace + 1 // genre, 0, name → nothing
)

// insert is what bands.insert takes. A write function computes nothing that could differ
// from one replica to another, so the hash of the sharding key comes with the call.
type insert struct {
	Hash uint32 `json:"hash"`
	Band Band   `json:"band"`
}

// register adds the functions of the table to a store.
func register(r *storage.Registry) {
	r.Register("bands.insert", insertBand)
	r.RegisterRead("bands.get", getBand)
	r.RegisterRead("bands.by_genre", bandsByGenre)
	r.RegisterRead("bands.count_by_genre", countByGenre)
}

// insertBand writes a band and its entry of the index, in place of an older row.
func insertBand(tx *storage.Tx, args []byte) ([]byte, error) {
	var in insert
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, fmt.Errorf("bands.insert: %w", err)
	}
	name := []byte(in.Band.Name)
	if len(name) == 0 || bytes.IndexByte([]byte(in.Band.Genre), 0) >= 0 {
		return nil, fmt.Errorf("bands.insert: a band has a name, and no genre has a zero byte")
	}
	if old, ok, err := tx.Get(spaceBands, name); err != nil {
		return nil, err
	} else if ok {
		var was Band
		if err := json.Unmarshal(old, &was); err != nil {
			return nil, err
		}
		if err := tx.Delete(spaceByGenre, genreKey(was.Genre, was.Name)); err != nil {
			return nil, err
		}
	}
	row, err := json.Marshal(in.Band)
	if err != nil {
		return nil, err
	}
	if err := tx.Put(spaceBands, in.Hash, name, row); err != nil {
		return nil, err
	}
	return nil, tx.Put(spaceByGenre, in.Hash, genreKey(in.Band.Genre, in.Band.Name), nil)
}

func genreKey(genre, name string) []byte {
	return append(append([]byte(genre), 0), name...)
}

// getBand returns the row of a name, nothing when there is none.
func getBand(v *storage.View, name []byte) ([]byte, error) {
	row, _, err := v.Get(spaceBands, name)
	return bytes.Clone(row), err
}

// bandsByGenre returns the names of a genre's bands in one bucket, by the index.
func bandsByGenre(v *storage.View, genre []byte) ([]byte, error) {
	from := append(bytes.Clone(genre), 0)
	to := append(bytes.Clone(genre), 1)
	names := []string{}
	err := v.Scan(spaceByGenre, from, to, false, func(key, _ []byte) bool {
		names = append(names, string(key[len(from):]))
		return true
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(names)
}

// countByGenre is the map step of a count over the whole table: the counts of one bucket.
func countByGenre(v *storage.View, _ []byte) ([]byte, error) {
	counts := map[string]int{}
	err := v.Scan(spaceByGenre, nil, nil, false, func(key, _ []byte) bool {
		genre, _, _ := bytes.Cut(key, []byte{0})
		counts[string(genre)]++
		return true
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(counts)
}
