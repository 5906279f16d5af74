package raftengine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

func TestPropose_rowsAreVisibleWhenDone(t *testing.T) {
	for _, o := range []Options{{Memory: true}, {Dir: t.TempDir()}, {Dir: t.TempDir(), Durability: Interval}} {
		e := mustOpen(t, o)
		for i := range 50 {
			v, err := call(t, e, "add", fmt.Sprintf("%03d", i))
			if err != nil || binary.BigEndian.Uint64(v) != uint64(i+1) {
				t.Fatalf("add %d: %x %v", i, v, err)
			}
			if n, names := contents(t, e); n != uint64(i+1) || len(names) != i+1 {
				t.Fatalf("after %d: count %d, %d rows", i+1, n, len(names))
			}
		}
		if s := e.Status(); s.State != engine.Master || s.Applied < 50 || s.Logged < s.Applied || s.InFlight != 0 || s.InFlightBytes != 0 {
			t.Errorf("status %+v", s)
		}
		mustClose(t, e)
	}
}

// proposeAll proposes commands without waiting in between, so that they share batches,
// and returns their errors.
func proposeAll(t *testing.T, e *Engine, n int, fn func(i int) string) []error {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		e.Propose(engine.Command{Function: fn(i), Bucket: 1, Args: fmt.Appendf(nil, "%05d", i)}, func(_ []byte, err error) {
			errs[i] = err
			wg.Done()
		})
	}
	wg.Wait()
	return errs
}

func TestApply_failedCommandsLeaveNothing(t *testing.T) {
	const n = 3000
	e := mustOpen(t, Options{Memory: true})
	kinds := []string{"put", "refuse", "add", "refuse-late", "add-late", "refuse", "put"}
	errs := proposeAll(t, e, n, func(i int) string { return kinds[i%len(kinds)] })
	var want []string
	count := uint64(0)
	for i, err := range errs {
		kind := kinds[i%len(kinds)]
		if refused := strings.HasPrefix(kind, "refuse"); refused != (err == errRefused) || (!refused && err != nil) {
			t.Fatalf("command %d, %s: %v", i, kind, err)
		} else if !refused {
			want = append(want, fmt.Sprintf("%05d", i))
		}
		if strings.HasPrefix(kind, "add") {
			count++
		}
	}
	gotCount, got := contents(t, e)
	if gotCount != count || !slices.Equal(got, want) {
		t.Errorf("count %d, want %d; %d rows, want %d", gotCount, count, len(got), len(want))
	}
}

func TestApply_rangesAreDeleted(t *testing.T) {
	e := mustOpen(t, Options{Memory: true})
	kinds := []string{"put", "put", "wipe", "add"}
	for _, err := range proposeAll(t, e, 8, func(i int) string { return kinds[i%4] }) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n, names := contents(t, e); n != 2 || !slices.Equal(names, []string{"00007"}) {
		t.Errorf("count %d, rows %q", n, names)
	}
}

func TestPropose_isStampedInOrder(t *testing.T) {
	// A clock that jumps back, as after a correction.
	at := time.Unix(1000, 0)
	step := 0
	now := func() time.Time {
		step++
		if step%5 == 0 {
			return at.Add(-time.Hour)
		}
		return at.Add(time.Duration(step) * time.Second)
	}
	m := &book{}
	dir := t.TempDir()
	e := mustOpen(t, Options{Dir: dir, Machine: m, Now: now})
	for range 20 {
		mustCall(t, e, "put", "x")
	}
	o := crash(t, e)
	last := m.times[len(m.times)-1]
	o.Now = func() time.Time { return at.Add(-time.Hour) }
	m2 := &book{}
	o.Machine = m2
	e = mustOpen(t, o)
	mustCall(t, e, "put", "x")
	all := append(slices.Clone(m.times), m2.times[len(m2.times)-1])
	if !slices.IsSortedFunc(all, time.Time.Compare) {
		t.Errorf("times run backwards: %v", all)
	}
	if all[len(all)-1].Before(last) {
		t.Error("the time before the restart is forgotten")
	}
}

func TestPropose_refusesWhatIsTooMuch(t *testing.T) {
	release := make(chan struct{})
	m := &book{hook: func(*engine.Command) { <-release }}
	e := mustOpen(t, Options{Memory: true, Machine: m, MaxInFlight: 600, MaxArgs: 100})
	var wg sync.WaitGroup
	wg.Add(600)
	for range 600 {
		e.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte("x")}, func(_ []byte, err error) {
			if err != nil {
				t.Error(err)
			}
			wg.Done()
		})
	}
	if _, err := call(t, e, "add", "y"); !errors.Is(err, shard.Overloaded) {
		t.Errorf("too many: %v", err)
	}
	close(release)
	wg.Wait()
	if n, _ := contents(t, e); n != 600 {
		t.Errorf("%d applied", n)
	}
	mustCall(t, e, "add", "z")
	_, err := call(t, e, "add", strings.Repeat("x", 101))
	wantCode(t, err, shard.ArgumentsTooLarge)
	_, err = call(t, e, "", "x")
	wantCode(t, err, shard.FunctionNotFound)
	_, err = call(t, e, strings.Repeat("f", 256), "x")
	wantCode(t, err, shard.FunctionNotFound)
}

func TestPropose_bytesInFlightAreBounded(t *testing.T) {
	release := make(chan struct{})
	m := &book{hook: func(*engine.Command) { <-release }}
	e := mustOpen(t, Options{Memory: true, Machine: m, MaxInFlightBytes: 1000})
	done := make(chan error, 1)
	// One command larger than the limit is taken when nothing else is in flight.
	e.Propose(engine.Command{Function: "put", Bucket: 1, Args: make([]byte, 2000)}, func(_ []byte, err error) { done <- err })
	_, err := call(t, e, "put", "x")
	wantCode(t, err, shard.Overloaded)
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	mustCall(t, e, "put", "x")
}

func TestClose_waitsForWhatIsInFlight(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m := &book{hook: func(*engine.Command) { once.Do(func() { close(started) }); <-release }}
	e := mustOpen(t, Options{Memory: true, Machine: m})
	answers := make(chan error, 2)
	for range 2 {
		e.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte("x")}, func(_ []byte, err error) { answers <- err })
	}
	<-started
	closed := make(chan error)
	go func() { closed <- e.Close(testContext(t)) }()
	eventually(t, "Close has begun", func() bool {
		e.queue.mu.Lock()
		defer e.queue.mu.Unlock()
		return e.queue.refuse != nil
	})
	_, err := call(t, e, "add", "late")
	wantCode(t, err, shard.StoreClosed)
	close(release)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-answers; err != nil {
			t.Errorf("a command in flight: %v", err)
		}
	}
	err = e.View(testContext(t), func(engine.Reader) error { return nil })
	wantCode(t, err, shard.StoreClosed)
	if s := e.Status(); s.State != engine.Closed {
		t.Errorf("state %v", s.State)
	}
	if err := e.Close(testContext(t)); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestClose_doesNotWaitForEver(t *testing.T) {
	e := mustOpen(t, Options{Memory: true, closeGrace: 50 * time.Millisecond})
	inside, leave := make(chan struct{}), make(chan struct{})
	viewed := make(chan error)
	go func() {
		viewed <- e.View(context.Background(), func(engine.Reader) error {
			close(inside)
			<-leave
			return nil
		})
	}()
	<-inside
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := e.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close with an open view: %v", err)
	}
	close(leave)
	if err := <-viewed; err != nil {
		t.Error(err)
	}
	if err := e.release(); err != nil { // what Close could not
		t.Error(err)
	}
}

func TestClose_atOnce(t *testing.T) {
	dir := t.TempDir()
	started, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m := &book{}
	e := mustOpen(t, Options{Dir: dir, Machine: m})
	mustCall(t, e, "add", "before")
	m.hook = func(*engine.Command) { once.Do(func() { close(started) }); <-release }
	answers := make(chan error, 400)
	for range 400 {
		e.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte("x")}, func(_ []byte, err error) { answers <- err })
	}
	<-started
	time.AfterFunc(20*time.Millisecond, func() { close(release) })
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.Close(ended); err != nil {
		t.Error(err)
	}
	done := 0
	for range 400 {
		if err := <-answers; err == nil {
			done++
		} else {
			wantCode(t, err, shard.StoreClosed)
		}
	}
	e = mustOpen(t, Options{Dir: dir})
	if n, _ := contents(t, e); n < uint64(done+1) || n > 401 {
		t.Errorf("count %d after the restart, %d were done", n, done)
	}
}

func TestView_isOfOneMoment(t *testing.T) {
	e := mustOpen(t, Options{Memory: true})
	mustCall(t, e, "add", "a")
	err := e.View(testContext(t), func(r engine.Reader) error {
		before, err := readCount(r)
		if err != nil {
			return err
		}
		mustCall(t, e, "add", "b")
		after, err := readCount(r)
		if before != after {
			t.Errorf("the view changed from %d to %d", before, after)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.View(ended, func(engine.Reader) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	if err := e.View(testContext(t), func(engine.Reader) error { return errRefused }); err != errRefused {
		t.Errorf("the error of a view's function became %v", err)
	}
}

func TestView_scansBothWays(t *testing.T) {
	e := mustOpen(t, Options{Memory: true})
	for _, name := range []string{"b", "a", "d", "c"} {
		mustCall(t, e, "put", name)
	}
	scan := func(from, to string, reverse bool, limit int) string {
		var got strings.Builder
		err := e.View(testContext(t), func(r engine.Reader) error {
			return r.Scan(rowKey(from), rowKey(to), reverse, func(k, _ []byte) bool {
				got.Write(k[5:])
				return got.Len() < limit
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return got.String()
	}
	for _, c := range []struct {
		from, to string
		reverse  bool
		limit    int
		want     string
	}{
		{"", "z", false, 9, "abcd"}, {"", "z", true, 9, "dcba"}, {"b", "d", false, 9, "bc"},
		{"b", "d", true, 9, "cb"}, {"", "z", false, 2, "ab"}, {"", "z", true, 1, "d"}, {"x", "z", false, 9, ""},
	} {
		if got := scan(c.from, c.to, c.reverse, c.limit); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestOpen_isQuickOnAnEmptyFolder(t *testing.T) {
	start := time.Now()
	e := mustOpen(t, Options{Dir: t.TempDir()})
	mustCall(t, e, "add", "x")
	took := time.Since(start)
	t.Logf("first command done after %v", took)
	if took > 5*time.Second { // far below on a quiet machine
		t.Errorf("took %v", took)
	}
}

func TestOpen_refuses(t *testing.T) {
	dir := t.TempDir()
	e := mustOpen(t, Options{Dir: dir, ClusterID: "c1", BucketCount: 100})
	mustCall(t, e, "add", "x")
	open := func(t *testing.T, dir string, o Options) string {
		t.Helper()
		o.Dir, o.Machine = dir, &book{}
		if o.BucketCount == 0 {
			o.BucketCount = 100
		}
		e, err := Open(testContext(t), o)
		if err == nil {
			mustClose(t, e)
			t.Fatal("it opened")
		}
		return err.Error()
	}
	t.Run("a folder in use", func(t *testing.T) {
		if got := open(t, dir, Options{}); !strings.Contains(got, "another process uses it") {
			t.Error(got)
		}
	})
	mustClose(t, e)
	meta := filepath.Join(dir, metaName)
	good, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(t *testing.T, from, to string) {
		t.Helper()
		text := strings.Replace(string(good), from, to, 1)
		if text == string(good) {
			t.Fatalf("no %q in %s", from, good)
		}
		if err := os.WriteFile(meta, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(meta, good, 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("another bucket count", func(t *testing.T) {
		if got := open(t, dir, Options{BucketCount: 200}); !strings.Contains(got, "bucket_count 100 and cannot be used with 200") {
			t.Error(got)
		}
	})
	t.Run("another cluster", func(t *testing.T) {
		if got := open(t, dir, Options{ClusterID: "c2"}); !strings.Contains(got, "cluster c1, not to c2") {
			t.Error(got)
		}
	})
	t.Run("a newer format", func(t *testing.T) {
		edit(t, `"format": 1`, `"format": 2`)
		if got := open(t, dir, Options{}); !strings.Contains(got, "format version 2") {
			t.Error(got)
		}
	})
	t.Run("a damaged meta.json", func(t *testing.T) {
		edit(t, `"bucket_count": 100`, `"bucket_count": 101`)
		if got := open(t, dir, Options{BucketCount: 101}); !strings.Contains(got, "checksum") {
			t.Error(got)
		}
	})
	t.Run("a meta.json that is no JSON", func(t *testing.T) {
		edit(t, `{`, `x`)
		if got := open(t, dir, Options{}); !strings.Contains(got, metaName) {
			t.Error(got)
		}
	})
	t.Run("a missing meta.json", func(t *testing.T) {
		copied := t.TempDir()
		copyTree(t, dir, copied)
		if err := os.Remove(filepath.Join(copied, metaName)); err != nil {
			t.Fatal(err)
		}
		if got := open(t, copied, Options{}); !strings.Contains(got, "is missing although") {
			t.Error(got)
		}
	})
	t.Run("a missing log", func(t *testing.T) {
		copied := t.TempDir()
		copyTree(t, dir, copied)
		if err := os.RemoveAll(filepath.Join(copied, logDir)); err != nil {
			t.Fatal(err)
		}
		if got := open(t, copied, Options{}); !strings.Contains(got, "log") {
			t.Error(got)
		}
	})
	t.Run("missing rows", func(t *testing.T) {
		copied := t.TempDir()
		copyTree(t, dir, copied)
		names, err := filepath.Glob(filepath.Join(copied, rowsDir, "*.sst"))
		if err != nil || len(names) == 0 {
			t.Fatal("no tables", err)
		}
		for _, n := range names {
			if err := os.Remove(n); err != nil {
				t.Fatal(err)
			}
		}
		if got := open(t, copied, Options{}); !strings.Contains(got, rowsDir) {
			t.Error(got)
		}
	})
	t.Run("a folder that cannot be made", func(t *testing.T) {
		if got := open(t, filepath.Join(meta, "sub"), Options{}); !strings.Contains(got, "cannot be made") {
			t.Error(got)
		}
	})
	for name, o := range map[string]Options{
		"no machine":             {Memory: true},
		"no folder":              {Machine: &book{}},
		"too many buckets":       {Memory: true, Machine: &book{}, BucketCount: MaxBucketCount + 1},
		"an unknown durability":  {Memory: true, Machine: &book{}, Durability: 7},
		"a sync interval of 1ns": {Memory: true, Machine: &book{}, SyncInterval: 1},
		"a negative limit":       {Memory: true, Machine: &book{}, MaxInFlight: -1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(testContext(t), o)
			wantCode(t, err, shard.InvalidConfig)
		})
	}
}
