package raftengine

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
)

// The engine's own rows lie before all keys that a machine may use: a machine's keys
// are at least 5 bytes long and start with a bucket, and space 0 of bucket 0 is the
// engine's.
var (
	appliedKey = []byte{0, 0, 0, 0, 0, 'a'}
	configKey  = []byte{0, 0, 0, 0, 0, 'c'}
)

// position is where in the log the rows stand.
type position struct {
	index, term uint64
	// time is the largest time of a command so far, in nanoseconds.
	time int64
}

const positionSize = 1 + 3*8

func (p position) encode(b *[positionSize]byte) {
	b[0] = 1 // version
	binary.BigEndian.PutUint64(b[1:], p.index)
	binary.BigEndian.PutUint64(b[9:], p.term)
	binary.BigEndian.PutUint64(b[17:], uint64(p.time))
}

func decodePosition(b []byte) (position, error) {
	if len(b) != positionSize || b[0] != 1 {
		return position{}, fmt.Errorf("rows: the row of the applied index has %d bytes that this version cannot read", len(b))
	}
	return position{
		index: binary.BigEndian.Uint64(b[1:]),
		term:  binary.BigEndian.Uint64(b[9:]),
		time:  int64(binary.BigEndian.Uint64(b[17:])),
	}, nil
}

// loadPosition reads where the rows stand; zero in an empty store.
func loadPosition(db *pebble.DB) (position, error) {
	v, ok, err := getCopy(db, appliedKey)
	if err != nil || !ok {
		return position{}, err
	}
	return decodePosition(v)
}

// loadConfig reads the group's members and the index at which they were agreed on.
func loadConfig(db *pebble.DB) (raft.Configuration, uint64, error) {
	v, ok, err := getCopy(db, configKey)
	if err != nil || !ok {
		return raft.Configuration{}, 0, err
	}
	if len(v) < 9 || v[0] != 1 {
		return raft.Configuration{}, 0, errors.New("rows: the row of the group's members cannot be read")
	}
	return raft.DecodeConfiguration(v[9:]), binary.BigEndian.Uint64(v[1:]), nil
}

func encodeConfig(index uint64, data []byte) []byte {
	v := append(make([]byte, 0, 9+len(data)), 1)
	v = binary.BigEndian.AppendUint64(v, index)
	return append(v, data...)
}

func getCopy(r pebble.Reader, key []byte) ([]byte, bool, error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	v = append([]byte(nil), v...)
	return v, true, closer.Close()
}
