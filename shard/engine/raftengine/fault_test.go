package raftengine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// fatalRecorder collects what OnFatal is told.
type fatalRecorder chan error

func (f fatalRecorder) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-f:
		return err
	case <-time.After(time.Minute):
		t.Fatal("OnFatal was not called")
		return nil
	}
}

// wantFailed checks that an engine refuses everything and says why.
func wantFailed(t *testing.T, e *Engine, cause string) {
	t.Helper()
	_, err := call(t, e, "add", "after")
	wantCode(t, err, shard.StoreFailed)
	if err == nil || !strings.Contains(err.Error(), cause) {
		t.Errorf("a command is refused with %v, want the cause %q", err, cause)
	}
	err = e.View(context.Background(), func(engine.Reader) error { return nil })
	wantCode(t, err, shard.StoreFailed)
	if st := e.Status(); st.State != engine.Failed || st.Err == nil || !strings.Contains(st.Err.Error(), cause) {
		t.Errorf("status %+v, want the cause %q", st, cause)
	}
}

// logFaults is a file system for the log that fails on demand.
type logFaults struct {
	wal.FS
	write, sync atomic.Pointer[error]
}

type faultyFile struct {
	wal.File
	f *logFaults
}

func (l *logFaults) wrap(f wal.File, err error) (wal.File, error) {
	if err != nil {
		return nil, err
	}
	return faultyFile{f, l}, nil
}
func (l *logFaults) Open(name string, write bool) (wal.File, error) {
	return l.wrap(l.FS.Open(name, write))
}
func (l *logFaults) Create(name string) (wal.File, error) { return l.wrap(l.FS.Create(name)) }

func (f faultyFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.f.write.Load(); err != nil {
		return 0, *err
	}
	return f.File.WriteAt(b, off)
}
func (f faultyFile) Sync() error {
	if err := f.f.sync.Load(); err != nil {
		return *err
	}
	return f.File.Sync()
}

func TestLog_failureEndsTheEngineAndLosesNothing(t *testing.T) {
	for name, strike := range map[string]func(*logFaults){
		"a failed sync": func(l *logFaults) { err := error(syscall.EIO); l.sync.Store(&err) },
		"a full disk":   func(l *logFaults) { err := error(syscall.ENOSPC); l.write.Store(&err) },
	} {
		t.Run(name, func(t *testing.T) {
			faults := &logFaults{FS: wal.OS}
			fatal := make(fatalRecorder, 1)
			o := Options{Dir: t.TempDir(), logFS: faults, OnFatal: func(err error) { fatal <- err }}
			e := mustOpen(t, o)
			for i := range 20 {
				mustCall(t, e, "add", fmt.Sprintf("a%02d", i))
			}
			strike(faults)
			answers := make(chan error, 500)
			for i := range 500 {
				e.Propose(engine.Command{Function: "add", Bucket: 1, Args: fmt.Appendf(nil, "b%03d", i)}, func(_ []byte, err error) { answers <- err })
			}
			for range 500 {
				select {
				case err := <-answers:
					wantCode(t, err, shard.StoreFailed)
				case <-time.After(time.Minute):
					t.Fatal("a command has no answer")
				}
			}
			if err := fatal.wait(t); !errors.Is(err, wal.ErrFailed) {
				t.Errorf("OnFatal: %v", err)
			}
			wantFailed(t, e, "log")
			_ = e.Close(testContext(t)) // reports the log's error again
			o.logFS, o.OnFatal = nil, nil
			e = mustOpen(t, o)
			if n, names := contents(t, e); n < 20 || names[19] != "a19" {
				t.Errorf("count %d after the restart", n)
			}
		})
	}
}

func TestRows_failureEndsTheEngineAndLosesNothing(t *testing.T) {
	for name, cause := range map[string]error{"a full disk": syscall.ENOSPC, "a failed write": syscall.EIO} {
		t.Run(name, func(t *testing.T) {
			var on atomic.Bool
			mem := vfs.NewMem()
			faulty := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if on.Load() && strings.HasSuffix(op.Path, ".sst") && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate) {
					return &os.PathError{Op: "write", Path: op.Path, Err: cause}
				}
				return nil
			}))
			fatal := make(fatalRecorder, 1)
			o := Options{Dir: t.TempDir(), fs: faulty, MemTableBytes: 1 << 20, OnFatal: func(err error) { fatal <- err }}
			e := mustOpen(t, o)
			mustCall(t, e, "add", "a")
			on.Store(true)
			big := strings.Repeat("x", 64<<10)
			acked := 1
			for {
				_, err := call(t, e, "add", fmt.Sprintf("%05d%s", acked, big))
				if err != nil {
					wantCode(t, err, shard.StoreFailed)
					break
				}
				if acked++; acked > 1000 {
					t.Fatal("nothing failed")
				}
			}
			if err := fatal.wait(t); !errors.Is(err, cause) {
				t.Errorf("OnFatal: %v", err)
			}
			wantFailed(t, e, "rows")
			_ = e.Close(testContext(t))
			on.Store(false)
			o.fs, o.OnFatal = mem, nil
			e = mustOpen(t, o)
			if n, _ := contents(t, e); n < uint64(acked) {
				t.Errorf("count %d after the restart, %d were acknowledged", n, acked)
			}
		})
	}
}

func TestSnapshot_failureKeepsTheLog(t *testing.T) {
	var on atomic.Bool
	faulty := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && strings.Contains(op.Path, snapshotDir) && op.Kind == errorfs.OpMkdirAll {
			return syscall.ENOSPC
		}
		return nil
	}))
	o := Options{Dir: t.TempDir(), fs: faulty, SnapshotBytes: 16 << 10}
	e := mustOpen(t, o)
	on.Store(true)
	for e.metrics.snapshotFail.Load() == 0 {
		mustCall(t, e, "add", strings.Repeat("x", 1000))
	}
	if first, err := e.log.FirstIndex(); first != 1 || err != nil {
		t.Errorf("the log begins at %d, %v", first, err)
	}
	on.Store(false)
	for e.metrics.snapshots.Load() == 0 {
		mustCall(t, e, "add", strings.Repeat("y", 1000))
	}
	if err := e.failure(); err != nil {
		t.Errorf("a snapshot that failed ended the engine: %v", err)
	}
}

// TestRows_corruptTableIsReported flips bytes in a table of the rows.
func TestRows_corruptTableIsReported(t *testing.T) {
	dir := t.TempDir()
	e := mustOpen(t, Options{Dir: dir})
	marker := strings.Repeat("find-me", 40)
	for i := range 500 {
		mustCall(t, e, "add", fmt.Sprintf("%03d%s", i, marker))
	}
	mustClose(t, e)
	tables, err := filepath.Glob(filepath.Join(dir, rowsDir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal("no tables", err)
	}
	for _, name := range tables {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// Somewhere in the rows' blocks, which come first.
		for i := 100; i < min(len(b)/2, 4000); i += 50 {
			b[i] ^= 0x40
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fatal := make(fatalRecorder, 1)
	e, err = Open(testContext(t), Options{Dir: dir, Machine: &book{}, OnFatal: func(err error) { fatal <- err }})
	if err != nil {
		// Found while opening: as good.
		wantCode(t, err, shard.StoreFailed)
		return
	}
	defer func() { _ = e.Close(testContext(t)) }()
	err = e.View(context.Background(), func(r engine.Reader) error {
		return r.Scan(rowKey(""), []byte{0, 0, 0, 1, 3}, false, func(k, v []byte) bool {
			if !bytes.HasSuffix(v, []byte(marker)) {
				t.Errorf("row %.10q is wrong, and nobody said so", k)
			}
			return true
		})
	})
	wantCode(t, err, shard.StoreFailed)
	fatal.wait(t)
	wantFailed(t, e, "corrupt")
}

// TestMachine_faultEndsTheEngine: a command that this version does not know must not be
// passed over.
func TestMachine_faultEndsTheEngine(t *testing.T) {
	fatal := make(fatalRecorder, 1)
	o := Options{Dir: t.TempDir(), OnFatal: func(err error) { fatal <- err }}
	e := mustOpen(t, o)
	mustCall(t, e, "add", "a")
	if _, err := call(t, e, "unknown", "x"); !errors.Is(err, shard.StoreFailed) {
		t.Error(err)
	}
	fatal.wait(t)
	wantFailed(t, e, "no function unknown")
	_ = e.Close(testContext(t))
	o.Machine = &book{}
	e, err := Open(testContext(t), o)
	if err == nil {
		_ = e.Close(testContext(t))
		t.Fatal("the command that cannot be applied was passed over at the restart")
	}
	wantCode(t, err, shard.StoreFailed)
	<-fatal
}

func TestLog_damageIsReportedAtStart(t *testing.T) {
	dir := t.TempDir()
	e := mustOpen(t, Options{Dir: dir})
	for i := range 100 {
		mustCall(t, e, "add", fmt.Sprintf("row-%03d", i))
	}
	o := crash(t, e)
	segs, err := filepath.Glob(filepath.Join(o.Dir, logDir, "*.seg"))
	if err != nil || len(segs) == 0 {
		t.Fatal("no segments", err)
	}
	b, err := os.ReadFile(segs[0])
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.Index(b, []byte("row-050"))
	if i < 0 {
		t.Fatal("the entry is not in the first segment")
	}
	b[i] ^= 1
	if err := os.WriteFile(segs[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Machine = &book{}
	e, err = Open(testContext(t), o)
	if err == nil {
		mustClose(t, e)
		t.Fatal("it opened")
	}
	wantCode(t, err, shard.StoreFailed)
	if !errors.Is(err, wal.ErrCorrupt) || !strings.Contains(err.Error(), filepath.Base(segs[0])) {
		t.Error(err)
	}
}
