package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

const (
	stableName    = "stable"
	stableMagic   = 0x3130425453595753 // "SWYSTB01" in the file
	stableVersion = 1
	// MaxStableBytes bounds all keys and values of a Stable together. Raft keeps three small ones.
	MaxStableBytes = 1 << 20
)

// ErrStableTooLarge refuses a value that makes a Stable larger than MaxStableBytes.
var ErrStableTooLarge = errors.New("too much for the stable store")

// Stable is raft's stable store: a few small values, each change of which is durable when it returns. It is one small
// file that is replaced as a whole. Its methods are safe for concurrent use.
type Stable struct {
	fs  FS
	dir string

	mu     sync.Mutex
	values map[string][]byte
	failed *FailedError
}

var _ raft.StableStore = (*Stable)(nil)

// StableOptions are the settings of a Stable. The zero value is usable.
type StableOptions struct {
	FS FS // nil for the machine's
	// MustExist refuses a folder without the file. Set it when the log beside it has entries: without its last term and
	// vote a member could vote twice.
	MustExist bool
}

// OpenStable opens the stable store in dir, or makes a new one. A damaged file is a CorruptionError.
func OpenStable(dir string, opt StableOptions) (*Stable, error) {
	if opt.FS == nil {
		opt.FS = OS
	}
	s := &Stable{fs: opt.FS, dir: dir, values: map[string][]byte{}}
	if err := s.fs.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("stable store: cannot make its folder: %w", err)
	}
	files, err := s.fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("stable store: cannot list its folder: %w", err)
	}
	found := false
	for _, f := range files {
		switch f.Name {
		case stableName:
			found = true
			if err := s.load(f.Size); err != nil {
				return nil, err
			}
		case stableName + extTemp:
			if err := s.fs.Remove(filepath.Join(dir, f.Name)); err != nil {
				return nil, fmt.Errorf("stable store: cannot remove an unfinished file: %w", err)
			}
		}
	}
	if !found && opt.MustExist {
		return nil, &CorruptionError{File: s.path(), Detail: "the file with raft's term and vote is missing"}
	}
	return s, nil
}

func (s *Stable) path() string { return filepath.Join(s.dir, stableName) }

func (s *Stable) load(size int64) error {
	f, err := s.fs.Open(s.path(), false)
	if err != nil {
		return fmt.Errorf("stable store: %w", err)
	}
	defer func() { _ = f.Close() }()
	if size > MaxStableBytes+(64<<10) {
		return &CorruptionError{File: s.path(), Detail: fmt.Sprintf("the file has %d bytes, more than it can have", size)}
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("stable store: cannot read %s: %w", s.path(), err)
	}
	s.values, err = decodeStable(b)
	if errors.Is(err, errNewVersion) {
		return fmt.Errorf("stable store: %s: %w", s.path(), err)
	}
	if err != nil {
		return &CorruptionError{File: s.path(), Detail: err.Error()}
	}
	return nil
}

// encodeStable lays the values out: magic, version, count, then each key and value with its length, then a checksum.
func encodeStable(values map[string][]byte) []byte {
	le := binary.LittleEndian
	b := le.AppendUint64(nil, stableMagic)
	b = le.AppendUint32(b, stableVersion)
	b = le.AppendUint32(b, uint32(len(values)))
	for _, k := range slices.Sorted(maps.Keys(values)) {
		b = append(le.AppendUint32(b, uint32(len(k))), k...)
		b = append(le.AppendUint32(b, uint32(len(values[k]))), values[k]...)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var errStableDamaged = errors.New("the file is damaged")

func decodeStable(b []byte) (map[string][]byte, error) {
	le := binary.LittleEndian
	if len(b) < 20 || le.Uint64(b) != stableMagic {
		return nil, errStableDamaged
	}
	body, sum := b[:len(b)-4], le.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errStableDamaged
	}
	if v := le.Uint32(b[8:]); v > stableVersion {
		return nil, fmt.Errorf("%w: stable store format %d, this one reads up to %d", errNewVersion, v, stableVersion)
	}
	count := le.Uint32(b[12:])
	values := map[string][]byte{}
	body = body[16:]
	next := func() ([]byte, bool) {
		if len(body) < 4 || uint64(le.Uint32(body)) > uint64(len(body)-4) {
			return nil, false
		}
		n := le.Uint32(body)
		v := body[4 : 4+n]
		body = body[4+n:]
		return v, true
	}
	for range count {
		k, ok := next()
		if !ok {
			return nil, errStableDamaged
		}
		v, ok := next()
		if !ok {
			return nil, errStableDamaged
		}
		values[string(k)] = slices.Clone(v)
	}
	if len(body) != 0 {
		return nil, errStableDamaged
	}
	return values, nil
}

// Set stores a value. An error other than ErrStableTooLarge is a FailedError and final.
func (s *Stable) Set(key, val []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return s.failed
	}
	next := maps.Clone(s.values)
	next[string(key)] = slices.Clone(val)
	size := 0
	for k, v := range next {
		size += len(k) + len(v)
	}
	if size > MaxStableBytes {
		return fmt.Errorf("%w: %d bytes with key %q, the limit is %d", ErrStableTooLarge, size, key, MaxStableBytes)
	}
	if op, err := s.replace(encodeStable(next)); err != nil {
		s.failed = &FailedError{Op: op, File: s.path(), Err: err}
		return s.failed
	}
	s.values = next
	return nil
}

// replace puts b in place of the file, and returns what failed.
func (s *Stable) replace(b []byte) (string, error) {
	temp := s.path() + extTemp
	f, err := s.fs.Create(temp)
	if err != nil {
		return "create", err
	}
	err = writeAll(f, b, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "write", err
	}
	if err := s.fs.Rename(temp, s.path()); err != nil {
		return "rename", err
	}
	if err := s.fs.SyncDir(s.dir); err != nil {
		return "sync the folder of", err
	}
	return "", nil
}

// Get returns a copy of the value of key, or nil if there is none.
func (s *Stable) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return nil, s.failed
	}
	return slices.Clone(s.values[string(key)]), nil
}

// SetUint64 is Set of a number.
func (s *Stable) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

// GetUint64 returns the number that SetUint64 stored, or 0 if there is none.
func (s *Stable) GetUint64(key []byte) (uint64, error) {
	v, err := s.Get(key)
	if err != nil || len(v) == 0 {
		return 0, err
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("stable store: key %q holds %d bytes, not a number", key, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}
