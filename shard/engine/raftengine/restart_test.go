package raftengine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

func TestRestart_afterACleanClose(t *testing.T) {
	dir := t.TempDir()
	var names []string
	for run := range 4 {
		e := mustOpen(t, Options{Dir: dir})
		for i := range 20 {
			name := fmt.Sprintf("%d-%02d", run, i)
			mustCall(t, e, "add", name)
			names = append(names, name)
		}
		if n, got := contents(t, e); n != uint64(len(names)) || !slices.Equal(got, names) {
			t.Fatalf("run %d: count %d, %d rows, want %d", run, n, len(got), len(names))
		}
		mustClose(t, e)
	}
	m := &book{}
	e := mustOpen(t, Options{Dir: dir, Machine: m})
	if len(m.times) != 0 {
		t.Errorf("%d commands were replayed after a clean close", len(m.times))
	}
	if id := e.ClusterID(); id == "" || e.BucketCount() != DefaultBucketCount {
		t.Errorf("cluster %q, %d buckets", id, e.BucketCount())
	}
}

// TestRestart_afterCrashes does random commands, flushes, snapshots and crashes, with
// the rows in a file system that loses what was not synced. The count shows a command
// that was applied twice, the rows one that is missing.
func TestRestart_afterCrashes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	o := Options{Dir: t.TempDir(), fs: vfs.NewCrashableMem(), SnapshotBytes: 1 << 40, segmentBytes: 16 << 10}
	var names []string
	for run := range 12 {
		o.Machine = &book{}
		e := mustOpen(t, o)
		n, got := contents(t, e)
		if n != uint64(len(names)) || !slices.Equal(got, names) {
			t.Fatalf("run %d: count %d, %d rows, want %d", run, n, len(got), len(names))
		}
		for range rnd.IntN(30) {
			switch rnd.IntN(10) {
			case 0:
				if err := e.rows.Load().db.Flush(); err != nil {
					t.Fatal(err)
				}
			case 1:
				if err := e.snapshot(); err != nil {
					t.Fatal(err)
				}
			case 2:
				if _, err := call(t, e, "refuse-late", "never"); err != errRefused {
					t.Fatal(err)
				}
			default:
				first := len(names)
				for i := range 1 + rnd.IntN(40) {
					names = append(names, fmt.Sprintf("%08d", first+i))
				}
				adds := names[first:]
				done := make(chan error, len(adds))
				for _, name := range adds {
					e.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte(name)}, func(_ []byte, err error) { done <- err })
				}
				for range adds {
					if err := <-done; err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if rnd.IntN(4) == 0 {
			mustClose(t, e)
		} else {
			o = crash(t, e)
		}
	}
}

func TestReplay_skipsWhatTheRowsHave(t *testing.T) {
	o := Options{Dir: t.TempDir(), fs: vfs.NewCrashableMem()}
	e := mustOpen(t, o)
	for i := range 10 {
		mustCall(t, e, "add", fmt.Sprintf("a%02d", i))
	}
	if err := e.rows.Load().db.Flush(); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		mustCall(t, e, "add", fmt.Sprintf("b%02d", i))
	}
	o = crash(t, e)
	m := &book{}
	o.Machine = m
	e = mustOpen(t, o)
	if n, names := contents(t, e); n != 15 || len(names) != 15 {
		t.Errorf("count %d, %d rows", n, len(names))
	}
	if len(m.times) != 5 {
		t.Errorf("%d commands were applied again, want the 5 behind the flush", len(m.times))
	}
}

func TestSnapshot_isTakenByBytesAndCutsTheLog(t *testing.T) {
	o := Options{Dir: t.TempDir(), SnapshotBytes: 64 << 10, segmentBytes: 16 << 10}
	e := mustOpen(t, o)
	added := uint64(0)
	for e.metrics.snapshots.Load() < 3 {
		for _, err := range proposeAll(t, e, 200, func(int) string { return "add" }) {
			if err != nil {
				t.Fatal(err)
			}
		}
		added += 200
	}
	var first uint64
	eventually(t, "the log is cut", func() bool {
		var err error
		if first, err = e.log.FirstIndex(); err != nil {
			t.Fatal(err)
		}
		return first > 1
	})
	st := e.Status()
	if st.SnapshotAt == 0 || first > st.SnapshotAt+1 {
		t.Errorf("the log begins at %d, the snapshot is at %d", first, st.SnapshotAt)
	}
	o = crash(t, e)
	dirs, err := os.ReadDir(filepath.Join(o.Dir, snapshotDir))
	if err != nil || len(dirs) == 0 || len(dirs) > 2 {
		t.Errorf("%d snapshots in the folder, %v", len(dirs), err)
	}
	o.SnapshotBytes = 1 << 40 // no other one is begun at the start
	e = mustOpen(t, o)
	if n, _ := contents(t, e); n != added {
		t.Errorf("count %d, want %d", n, added)
	}
	// A checkpoint is a whole store: it opens by itself.
	ids, err := os.ReadDir(filepath.Join(o.Dir, snapshotDir))
	if err != nil || len(ids) != 1 {
		t.Fatalf("%d snapshots after the start, %v", len(ids), err)
	}
	copied := t.TempDir()
	copyTree(t, filepath.Join(o.Dir, snapshotDir, ids[0].Name(), snapshotRows), copied)
	at := readPosition(t, copied)
	if at.index < e.snaps.newestIndex() {
		t.Errorf("the checkpoint stands at %d, its name says %d", at.index, e.snaps.newestIndex())
	}
}

// TestSnapshot_leftoversOfACrash starts with half a snapshot, and with two.
func TestSnapshot_leftoversOfACrash(t *testing.T) {
	dir := t.TempDir()
	e := mustOpen(t, Options{Dir: dir})
	mustCall(t, e, "add", "a")
	if err := e.snapshot(); err != nil {
		t.Fatal(err)
	}
	snaps := filepath.Join(dir, snapshotDir)
	first, err := os.ReadDir(snaps)
	if err != nil || len(first) != 1 {
		t.Fatal(first, err)
	}
	kept := filepath.Join(t.TempDir(), "kept")
	copyTree(t, filepath.Join(snaps, first[0].Name()), kept)
	mustCall(t, e, "add", "b")
	if err := e.snapshot(); err != nil {
		t.Fatal(err)
	}
	want := e.snaps.newestIndex()
	mustClose(t, e)
	copyTree(t, kept, filepath.Join(snaps, first[0].Name()))
	copyTree(t, kept, filepath.Join(snaps, snapshotTmp+"x"))
	e = mustOpen(t, Options{Dir: dir})
	left, err := os.ReadDir(snaps)
	if err != nil || len(left) != 1 || e.snaps.newestIndex() != want {
		t.Errorf("%v left, newest at %d, want %d: %v", left, e.snaps.newestIndex(), want, err)
	}
	if n, _ := contents(t, e); n != 2 {
		t.Errorf("count %d", n)
	}
	mustClose(t, e)
	if err := os.WriteFile(filepath.Join(snaps, left[0].Name(), snapshotMeta), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if e, err := Open(testContext(t), Options{Dir: dir, Machine: &book{}}); err == nil {
		mustClose(t, e)
		t.Error("a snapshot that cannot be read was passed over in silence")
	}
}

// TestBootstrap_cutShort starts again after a crash between the steps of the first start.
func TestBootstrap_cutShort(t *testing.T) {
	dir := t.TempDir()
	e := mustOpen(t, Options{Dir: dir})
	m := *e.meta.Load()
	mustClose(t, e)
	fresh := t.TempDir()
	m.Started = false
	if err := m.write(vfs.Default, fresh); err != nil {
		t.Fatal(err)
	}
	e = mustOpen(t, Options{Dir: fresh})
	mustCall(t, e, "add", "a")
	mustClose(t, e)
	if err := e.meta.Load().write(vfs.Default, fresh); err != nil {
		t.Fatal(err)
	}
	e = mustOpen(t, Options{Dir: fresh})
	if n, _ := contents(t, e); n != 1 {
		t.Errorf("count %d", n)
	}
	if e.meta.Load().MemberID != m.MemberID {
		t.Error("the member has another id")
	}
}

// TestInterval_rowsAreNeverAheadOfTheLog: what a flush makes durable is in the synced
// part of the log, although the interval is long.
func TestInterval_rowsAreNeverAheadOfTheLog(t *testing.T) {
	e := mustOpen(t, Options{Dir: t.TempDir(), Durability: Interval, SyncInterval: time.Minute})
	mustCall(t, e, "add", "a")
	if e.wal.Status().UnsyncedBytes == 0 {
		t.Fatal("the log was synced before its time; the test shows nothing")
	}
	if err := e.rows.Load().db.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := e.wal.Status().UnsyncedBytes; n != 0 {
		t.Errorf("%d bytes of the log were not synced before the rows", n)
	}
}

func TestMemLog_keepsWhatRaftNeeds(t *testing.T) {
	m := &memLog{}
	arg := []byte("data")
	var logs []*raft.Log
	for i := uint64(5); i < 15; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: 2, Data: arg, Extensions: arg})
	}
	if err := m.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
	copy(arg, "XXXX")
	bounds := func(first, last uint64) {
		t.Helper()
		f, _ := m.FirstIndex()
		l, _ := m.LastIndex()
		if f != first || l != last {
			t.Errorf("%d to %d, want %d to %d", f, l, first, last)
		}
	}
	bounds(5, 14)
	var l raft.Log
	if err := m.GetLog(7, &l); err != nil || string(l.Data) != "data" || string(l.Extensions) != "data" {
		t.Errorf("%+v, %v", l, err)
	}
	if m.GetLog(4, &l) != raft.ErrLogNotFound || m.GetLog(15, &l) != raft.ErrLogNotFound {
		t.Error("entries outside were found")
	}
	if err := m.StoreLog(&raft.Log{Index: 20}); err == nil {
		t.Error("a gap was taken")
	}
	if err := m.DeleteRange(7, 9); err == nil {
		t.Error("a hole was made")
	}
	if err := m.DeleteRange(1, 6); err != nil {
		t.Error(err)
	}
	bounds(7, 14)
	if err := m.DeleteRange(12, 99); err != nil {
		t.Error(err)
	}
	bounds(7, 11)
	if err := m.DeleteRange(7, 11); err != nil {
		t.Error(err)
	}
	bounds(0, 0)
	if err := m.StoreLog(&raft.Log{Index: 20}); err != nil {
		t.Error(err)
	}
	bounds(20, 20)
}
