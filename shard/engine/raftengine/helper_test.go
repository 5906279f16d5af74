package raftengine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		victim()
		return
	}
	goleak.VerifyTestMain(m)
}

// book is a machine that writes one row per command and counts commands in a row of its
// own, so that a command applied twice, or half, shows.
type book struct {
	mu    sync.Mutex
	hook  func(cmd *engine.Command) // runs before each command
	times []time.Time
}

var countKey = []byte{0, 0, 0, 1, 1}

func rowKey(name string) []byte { return append([]byte{0, 0, 0, 1, 2}, name...) }

var errRefused = errors.New("refused")

func (b *book) Reset(engine.Reader) error { return nil }

func (b *book) Apply(tx engine.Tx, cmd *engine.Command) ([]byte, error) {
	b.mu.Lock()
	hook := b.hook
	b.times = append(b.times, cmd.Time)
	b.mu.Unlock()
	if hook != nil {
		hook(cmd)
	}
	put := func() {
		key := rowKey(string(cmd.Args))
		k, v := tx.Put(len(key), len(cmd.Args))
		copy(k, key)
		copy(v, cmd.Args)
	}
	count := func() ([]byte, error) {
		n, err := readCount(tx)
		if err != nil {
			return nil, err
		}
		k, v := tx.Put(len(countKey), 8)
		copy(k, countKey)
		binary.BigEndian.PutUint64(v, n+1)
		return binary.BigEndian.AppendUint64(nil, n+1), nil
	}
	switch cmd.Function {
	case "put": // only writes
		put()
		return nil, nil
	case "add": // reads, then writes
		n, err := count()
		if err == nil {
			put()
		}
		return n, err
	case "add-late": // writes, then reads
		put()
		return count()
	case "refuse":
		put()
		return nil, errRefused
	case "refuse-late":
		put()
		if _, err := count(); err != nil {
			return nil, err
		}
		return nil, errRefused
	case "wipe":
		from := rowKey("")
		tx.DeleteRange(from, []byte{0, 0, 0, 1, 3})
		return nil, nil
	}
	return nil, engine.Fatal(errors.New("no function " + cmd.Function))
}

func readCount(r engine.Reader) (uint64, error) {
	v, ok, err := r.Get(countKey)
	if err != nil || !ok {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), nil
}

// testContext ends long before the test binary does.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// mustOpen opens an engine and closes it at the end of the test, if nobody did.
func mustOpen(t testing.TB, o Options) *Engine {
	t.Helper()
	if o.Machine == nil {
		o.Machine = &book{}
	}
	if o.Logger == nil {
		o.Logger = testLogger(t)
	}
	e, err := Open(testContext(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close(testContext(t)) })
	return e
}

// testLogger shows warnings in the test's output.
func testLogger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func mustClose(t testing.TB, e *Engine) {
	t.Helper()
	if err := e.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// call proposes a command and waits.
func call(t testing.TB, e *Engine, fn, arg string) ([]byte, error) {
	t.Helper()
	type answer struct {
		value []byte
		err   error
	}
	ch := make(chan answer, 1)
	e.Propose(engine.Command{Function: fn, Bucket: 1, Args: []byte(arg)}, func(v []byte, err error) { ch <- answer{v, err} })
	select {
	case a := <-ch:
		return a.value, a.err
	case <-time.After(time.Minute):
		t.Fatal("no answer")
		return nil, nil
	}
}

func mustCall(t testing.TB, e *Engine, fn, arg string) {
	t.Helper()
	if _, err := call(t, e, fn, arg); err != nil {
		t.Fatalf("%s %q: %v", fn, arg, err)
	}
}

// contents returns the count and the names of the rows.
func contents(t testing.TB, e *Engine) (count uint64, names []string) {
	t.Helper()
	err := e.View(testContext(t), func(r engine.Reader) (err error) {
		if count, err = readCount(r); err != nil {
			return err
		}
		return r.Scan(rowKey(""), []byte{0, 0, 0, 1, 3}, false, func(k, _ []byte) bool {
			names = append(names, string(k[5:]))
			return true
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return count, names
}

// crash stops e as the end of its process would, and returns options that open what is
// on the disk then. With a crashable memory file system for the rows, what was not
// synced is gone, as after a loss of power.
func crash(t testing.TB, e *Engine) Options {
	t.Helper()
	o := e.opts
	o.Logger = nil
	e.closing.Store(true)
	if err := e.stopRaft(testContext(t)); err != nil {
		t.Fatal(err)
	}
	old := o.Dir
	if mem, ok := o.fs.(*vfs.MemFS); ok {
		// The folder keeps its name in the memory file system; the log is on the disk.
		o.fs = mem.CrashClone(vfs.CrashCloneCfg{})
		kept := filepath.Join(t.TempDir(), "log")
		copyTree(t, filepath.Join(old, logDir), kept)
		closeAnyhow(t, e)
		if err := os.RemoveAll(filepath.Join(old, logDir)); err != nil {
			t.Fatal(err)
		}
		copyTree(t, kept, filepath.Join(old, logDir))
		return o
	}
	o.Dir = t.TempDir()
	copyTree(t, old, o.Dir)
	closeAnyhow(t, e)
	return o
}

// closeAnyhow ends an engine whose Raft was stopped, without a flush.
func closeAnyhow(t testing.TB, e *Engine) {
	t.Helper()
	e.closed.Do(func() {
		e.closing.Store(true)
		e.queue.abort(errClosed(), true)
		e.rows.Load().views.close()
		if err := e.release(); err != nil {
			t.Error(err)
		}
	})
}

func copyTree(t testing.TB, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		in, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a file of the log that is being prepared
		}
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.Create(target)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return errors.Join(err, out.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, code shard.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("got %v, want %v", err, code)
	}
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// readPosition opens a folder of rows by itself and returns where it stands.
func readPosition(t testing.TB, dir string) position {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{ReadOnly: true, Logger: quiet{}, FormatMajorVersion: pebble.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	at, err := loadPosition(db)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return at
}

type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {}
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
