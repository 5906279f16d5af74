package grouptest

import (
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// faults is a disk that fills up or hangs on demand.
type faults struct {
	wal.FS // of the log
	// fullLog and fullRows say that no more fits into the log, or into what is below a path
	// that contains the text. Raft's vote still fits: without it Raft panics, after a time in
	// which a process ends.
	fullLog  atomic.Bool
	fullRows atomic.Pointer[string]

	mu   sync.Mutex
	hang chan struct{} // syncs of the log wait until it is closed
}

func (f *faults) options(o raftengine.Options) raftengine.Options {
	f.FS = wal.OS
	fs := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		text := f.fullRows.Load()
		if text == nil || !strings.Contains(op.Path, *text) {
			return nil
		}
		switch op.Kind {
		case errorfs.OpCreate, errorfs.OpLink, errorfs.OpMkdirAll, errorfs.OpFileWrite:
			return syscall.ENOSPC
		}
		return nil
	}))
	return o.WithFS(fs).WithLogFS(f)
}

// hangs makes syncs of the log hang until release is called.
func (f *faults) hangs() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan struct{})
	f.hang = c
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.hang = nil
		close(c)
	})
}

func (f *faults) free() {
	f.fullLog.Store(false)
	f.fullRows.Store(nil)
}

type faultyFile struct {
	wal.File
	f   *faults
	log bool
}

func (f *faults) wrap(name string, file wal.File, err error) (wal.File, error) {
	if err != nil {
		return nil, err
	}
	ext := filepath.Ext(name)
	return faultyFile{file, f, ext == ".seg" || ext == ".zero" || ext == ".old"}, nil
}

func (f *faults) Open(name string, write bool) (wal.File, error) {
	file, err := f.FS.Open(name, write)
	return f.wrap(name, file, err)
}

func (f *faults) Create(name string) (wal.File, error) {
	file, err := f.FS.Create(name)
	return f.wrap(name, file, err)
}

func (f faultyFile) WriteAt(b []byte, off int64) (int, error) {
	if f.log && f.f.fullLog.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(b, off)
}

func (f faultyFile) Sync() error {
	f.f.mu.Lock()
	hang := f.f.hang
	f.f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return f.File.Sync()
}
