package wal

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// FS is the part of a file system that the log uses. Tests put faults and power cuts behind it.
//
// What the log takes for granted: after Sync returned, the file's bytes and length survive a power cut; after SyncDir
// returned, so do the names in the folder; names change in the order in which they were changed; a power cut leaves each
// 512-byte sector of an unsynced write old or new.
type FS interface {
	// Open opens an existing file, for reading alone or for both.
	Open(name string, write bool) (File, error)
	// Create makes a new empty file, or empties an old one, for reading and writing.
	Create(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// List returns the files of a folder, sorted by name.
	List(dir string) ([]FileInfo, error)
	MkdirAll(dir string) error
	SyncDir(dir string) error
}

// FileInfo is a name within a folder and a length in bytes.
type FileInfo struct {
	Name string
	Size int64
}

// File is an open file. Sync makes its bytes and its length durable.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Sync() error
	Size() (int64, error)
}

// OS is the file system of the machine.
var OS FS = osFS{}

type osFS struct{}

type osFile struct{ *os.File }

func (f osFile) Sync() error { return syncData(f.File) }

func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (osFS) Open(name string, write bool) (File, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := os.OpenFile(name, flag, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }
func (osFS) Remove(name string) error     { return os.Remove(name) }
func (osFS) MkdirAll(dir string) error    { return os.MkdirAll(dir, 0o700) }
func (osFS) SyncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func (osFS) List(dir string) ([]FileInfo, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []FileInfo
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went away meanwhile: a log makes and renames files in the background
		}
		if err != nil {
			return nil, err
		}
		out = append(out, FileInfo{e.Name(), info.Size()})
	}
	return out, nil
}
