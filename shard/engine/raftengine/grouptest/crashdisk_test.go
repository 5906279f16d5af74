package grouptest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// state is what is on a member's disk: all but the log in memory, the log as files.
type state struct {
	mem *vfs.MemFS
	log map[string][]byte
}

// crashDisk is the disk of a member that notes the steps of taking over a snapshot, and
// keeps what a loss of power right before one of them would leave. The log, whose own tests
// have losses of power, is kept as the end of a process would leave it.
type crashDisk struct {
	t   *testing.T
	dir string
	mem *vfs.MemFS

	// inLog is held for reading by changes of the log.
	inLog sync.RWMutex

	mu    sync.Mutex
	armed bool
	steps []string // the kinds of steps, in the order in which they came first
	known map[string]bool
	// at is the step before which the power goes; left gets what is left then.
	at   string
	left chan state
}

// loadDisk puts a state on a new disk for the member in dir.
func loadDisk(t *testing.T, dir string, s state, at string) *crashDisk {
	t.Helper()
	d := &crashDisk{t: t, dir: dir, known: map[string]bool{}, at: at, left: make(chan state, 1)}
	logDir := filepath.Join(dir, "log")
	if err := os.RemoveAll(logDir); err != nil {
		t.Fatal(err)
	}
	if s.mem == nil {
		d.mem = vfs.NewCrashableMem()
		return d
	}
	d.mem = s.mem.CrashClone(vfs.CrashCloneCfg{})
	if err := os.MkdirAll(logDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, b := range s.log {
		if err := os.WriteFile(filepath.Join(logDir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// now returns what is on the disk.
func (d *crashDisk) now() state {
	d.inLog.Lock()
	defer d.inLog.Unlock()
	s := state{mem: d.mem.CrashClone(vfs.CrashCloneCfg{}), log: map[string][]byte{}}
	files, err := os.ReadDir(filepath.Join(d.dir, "log"))
	if err != nil {
		d.t.Error(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(d.dir, "log", f.Name()))
		if err != nil {
			d.t.Error(err)
		}
		s.log[f.Name()] = b
	}
	return s
}

// options puts the disk below an engine.
func (d *crashDisk) options(o raftengine.Options) raftengine.Options {
	fs := errorfs.Wrap(d.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if name, ok := changes[op.Kind]; ok {
			d.step(name, op.Path)
		}
		return nil
	}))
	return smallLog(o).WithFS(fs).WithLogFS(crashLog{d})
}

// changes are the operations that change something on the disk.
var changes = map[errorfs.OpKind]string{
	errorfs.OpCreate: "create", errorfs.OpLink: "link", errorfs.OpRemove: "remove", errorfs.OpRemoveAll: "remove all of",
	errorfs.OpRename: "rename", errorfs.OpMkdirAll: "make", errorfs.OpFileWrite: "write", errorfs.OpFileWriteAt: "write",
	errorfs.OpFileSync: "sync", errorfs.OpFileSyncData: "sync", errorfs.OpFileSyncTo: "sync", errorfs.OpReuseForWrite: "reuse",
}

var digits = regexp.MustCompile(`[0-9]+`)

func (d *crashDisk) step(what, path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if rel, err := filepath.Rel(d.dir, path); err == nil {
		path = rel
	}
	// It begins with the folder of a snapshot that is coming.
	d.armed = d.armed || strings.Contains(path, "tmp-")
	if !d.armed {
		return
	}
	name := what + " " + digits.ReplaceAllString(path, "N")
	if d.known[name] {
		return
	}
	d.known[name] = true
	d.steps = append(d.steps, name)
	if name == d.at {
		d.left <- d.now()
	}
}

// crashLog is the file system of the log.
type crashLog struct{ d *crashDisk }

type crashFile struct {
	wal.File
	d    *crashDisk
	name string
}

func (c crashLog) change(what, name string, do func() error) error {
	c.d.step(what, name)
	c.d.inLog.RLock()
	defer c.d.inLog.RUnlock()
	return do()
}

func (c crashLog) Open(name string, write bool) (wal.File, error) {
	f, err := wal.OS.Open(name, write)
	if err != nil {
		return nil, err
	}
	return crashFile{f, c.d, name}, nil
}

func (c crashLog) Create(name string) (f wal.File, err error) {
	err = c.change("create", name, func() error {
		f, err = wal.OS.Create(name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return crashFile{f, c.d, name}, nil
}

func (c crashLog) Rename(from, to string) error {
	return c.change("rename", from, func() error { return wal.OS.Rename(from, to) })
}

func (c crashLog) Remove(name string) error {
	return c.change("remove", name, func() error { return wal.OS.Remove(name) })
}

func (c crashLog) List(dir string) ([]wal.FileInfo, error) { return wal.OS.List(dir) }
func (c crashLog) MkdirAll(dir string) error               { return wal.OS.MkdirAll(dir) }
func (c crashLog) SyncDir(dir string) error                { return wal.OS.SyncDir(dir) }

func (f crashFile) WriteAt(b []byte, off int64) (n int, err error) {
	err = crashLog{f.d}.change("write", f.name, func() error {
		n, err = f.File.WriteAt(b, off)
		return err
	})
	return n, err
}

func (f crashFile) Sync() error { return crashLog{f.d}.change("sync", f.name, f.File.Sync) }
