package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testBuckets = 20

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open opens a storage over a folder, or in memory when dir is empty.
func open(ctx context.Context, dir string, reg *Registry) (*Storage, error) {
	return Open(ctx, Options{
		Registry: reg, BucketCount: testBuckets, ReplicaSet: "a",
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return raftengine.Open(ctx, raftengine.Options{Dir: dir, Memory: dir == "", Machine: m, BucketCount: testBuckets})
		},
	})
}

func mustOpen(t testing.TB, dir string, reg *Registry) *Storage {
	t.Helper()
	s, err := open(testContext(t), dir, reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func bootstrapped(t testing.TB, reg *Registry) *Storage {
	t.Helper()
	s := mustOpen(t, "", reg)
	if err := s.Bootstrap(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBootstrap_onceAndForGood(t *testing.T) {
	ctx, dir := testContext(t), t.TempDir()
	s := mustOpen(t, dir, NewRegistry())
	if _, err := s.Write(ctx, 1, KVPut, KVPutArgs(0, nil, nil)); !errors.Is(err, shard.WrongBucket) {
		t.Errorf("a write before the bootstrap: %v", err)
	}
	if err := s.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Bootstrap(ctx); !errors.Is(err, shard.NonEmpty) {
		t.Errorf("second bootstrap: %v", err)
	}
	if err := s.SetBucketState(ctx, 3, shard.Pinned, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.SetBucketState(ctx, 4, shard.Sending, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.SetBucketState(ctx, 4, shard.Sent, "b"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, dir, NewRegistry())
	counts := s.BucketCounts()
	if counts[shard.Active] != testBuckets-2 || counts[shard.Pinned] != 1 || counts[shard.Sent] != 1 || len(counts) != 3 {
		t.Errorf("after the restart: %v", counts)
	}
	if state, dest := s.BucketState(4); state != shard.Sent || dest != "b" {
		t.Errorf("bucket 4: %v, %q", state, dest)
	}
	if _, err := s.Write(ctx, 3, KVPut, KVPutArgs(0, []byte("k"), []byte("v"))); err != nil {
		t.Error(err)
	}
}

func TestBuckets_whatEachStateAllows(t *testing.T) {
	ctx := testContext(t)
	// How to bring an ACTIVE bucket into each state.
	paths := map[shard.State][]shard.State{
		shard.Active: {}, shard.Pinned: {shard.Pinned}, shard.ReadOnly: {shard.ReadOnly}, shard.Sending: {shard.Sending},
		shard.Sent: {shard.Sending, shard.Sent}, shard.Garbage: {shard.Sending, shard.Sent, shard.Garbage},
		shard.Receiving: {shard.Sending, shard.Sent, shard.Garbage, shard.Absent, shard.Receiving},
		shard.Absent:    {shard.Sending, shard.Sent, shard.Garbage, shard.Absent},
	}
	for state, path := range paths {
		t.Run(state.String(), func(t *testing.T) {
			s := bootstrapped(t, NewRegistry())
			for _, step := range path {
				dest := ""
				if step == shard.Sent {
					dest = "elsewhere"
				}
				if err := s.SetBucketState(ctx, 9, step, dest); err != nil {
					t.Fatal(step, err)
				}
			}
			_, err := s.Write(ctx, 9, KVPut, KVPutArgs(0, []byte("k"), []byte("v")))
			if (err == nil) != state.CanWrite() {
				t.Errorf("write: %v", err)
			}
			var e *shard.Error
			if state == shard.Sent && (!errors.As(err, &e) || e.Destination != "elsewhere" || e.Code != shard.WrongBucket) {
				t.Errorf("write: %v, want the destination", err)
			}
			if _, err := s.Read(ctx, 9, KVGet, KVGetArgs([]byte("k"))); (err == nil) != state.CanRead() {
				t.Errorf("read: %v", err)
			}
			if _, err := s.Write(ctx, 10, KVPut, KVPutArgs(0, []byte("k"), []byte("v"))); err != nil {
				t.Errorf("write to the bucket beside it: %v", err)
			}
		})
	}
}

func TestSetBucketState_refusesWhatCannotFollow(t *testing.T) {
	ctx := testContext(t)
	s := bootstrapped(t, NewRegistry())
	if err := s.SetBucketState(ctx, 1, shard.Garbage, ""); !errors.Is(err, shard.BucketInvalidUpdate) {
		t.Errorf("ACTIVE to GARBAGE: %v", err)
	}
	if state, _ := s.BucketState(1); state != shard.Active {
		t.Errorf("the state is %v", state)
	}
	for _, b := range []shard.BucketID{0, testBuckets + 1} {
		if err := s.SetBucketState(ctx, b, shard.Pinned, ""); !errors.Is(err, shard.WrongBucket) {
			t.Errorf("bucket %d: %v", b, err)
		}
		if _, err := s.Write(ctx, b, KVPut, nil); !errors.Is(err, shard.WrongBucket) {
			t.Errorf("a write to bucket %d: %v", b, err)
		}
		if err := s.View(ctx, b, func(*View) error { return nil }); !errors.Is(err, shard.WrongBucket) {
			t.Errorf("a view of bucket %d: %v", b, err)
		}
	}
}

// TestBuckets_stateIsCheckedInTheOrderOfTheLog proposes writes around a change of state
// without waiting: those before it succeed, those behind it do not.
func TestBuckets_stateIsCheckedInTheOrderOfTheLog(t *testing.T) {
	ctx := testContext(t)
	s := bootstrapped(t, NewRegistry())
	const n = 100
	results := make(chan error, 2*n)
	propose := func() {
		for range n {
			s.WriteAsync(6, KVPut, KVPutArgs(0, []byte("k"), []byte("v")), func(_ []byte, err error) { results <- err })
		}
	}
	propose()
	changed := make(chan error, 1)
	s.eng.Propose(engine.Command{Function: fnSetState, Args: []byte{0, 0, 0, 6, byte(shard.ReadOnly)}}, func(_ []byte, err error) { changed <- err })
	propose()
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	for i := range 2 * n {
		if err := <-results; (i < n) != (err == nil) {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	if err := s.SetBucketState(ctx, 6, shard.Active, ""); err != nil {
		t.Error(err)
	}
}

func TestFunctions_errorsAndPanicsLeaveNothing(t *testing.T) {
	ctx := testContext(t)
	own := errors.New("an error of the function's own")
	reg := NewRegistry()
	reg.Register("fail", func(tx *Tx, args []byte) ([]byte, error) {
		return []byte("ignored"), errors.Join(tx.Put(SpaceKV, 0, args, args), own)
	})
	reg.Register("own", func(tx *Tx, args []byte) ([]byte, error) {
		if err := tx.Put(SpaceKV, 0, args, args); err != nil {
			return nil, err
		}
		return nil, own
	})
	reg.Register("panic", func(tx *Tx, args []byte) ([]byte, error) {
		if err := tx.Put(SpaceKV, 0, args, args); err != nil {
			return nil, err
		}
		panic("on purpose")
	})
	reg.RegisterRead("panic-read", func(*View, []byte) ([]byte, error) { panic("on purpose") })
	s := bootstrapped(t, reg)
	if _, err := s.Write(ctx, 2, "own", []byte("k")); err != own {
		t.Errorf("the function's error became %v", err)
	}
	if v, err := s.Write(ctx, 2, "fail", []byte("k")); !errors.Is(err, own) || v != nil && string(v) != "ignored" {
		t.Errorf("%q %v", v, err)
	}
	_, err := s.Write(ctx, 2, "panic", []byte("k"))
	if !errors.Is(err, shard.FunctionFailed) || !strings.Contains(err.Error(), "on purpose") {
		t.Errorf("a panic became %v", err)
	}
	if _, err := s.Read(ctx, 2, "panic-read", nil); !errors.Is(err, shard.FunctionFailed) {
		t.Errorf("a panic of a read became %v", err)
	}
	err = s.View(ctx, 2, func(v *View) error {
		_, ok, err := v.Get(SpaceKV, []byte("k"))
		if ok {
			t.Error("a row of a failed function was kept")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := s.Write(ctx, 2, "nothing", nil); !errors.Is(err, shard.FunctionNotFound) {
		t.Errorf("no such function: %v", err)
	}
}

func TestTx_rowsOfOneBucketOnly(t *testing.T) {
	ctx := testContext(t)
	const low, high = Space(0x20), Space(0xff)
	reg := NewRegistry()
	reg.Register("fill", func(tx *Tx, args []byte) ([]byte, error) {
		for _, space := range []Space{low, low + 1, high} {
			for _, key := range []string{"", "a", "b", "c", "\xff\xff"} {
				if err := tx.PutParts(space, 7, []byte(key), []byte(key), fmt.Appendf(nil, ".%d", tx.Bucket())); err != nil {
					return nil, err
				}
			}
		}
		return nil, nil
	})
	reg.Register("cut", func(tx *Tx, args []byte) ([]byte, error) {
		if err := tx.Delete(low, []byte("c")); err != nil {
			return nil, err
		}
		return nil, tx.DeleteRange(high, nil, nil)
	})
	reg.Register("drain", func(tx *Tx, args []byte) ([]byte, error) { // deletes while it scans
		n := 0
		var bad error
		err := tx.Scan(low+1, nil, nil, false, func(key, _ []byte) bool {
			n++
			bad = tx.Delete(low+1, key)
			return bad == nil
		})
		return fmt.Append(nil, n), errors.Join(err, bad)
	})
	s := bootstrapped(t, reg)
	for _, b := range []shard.BucketID{4, 5, 6} {
		if _, err := s.Write(ctx, b, "fill", nil); err != nil {
			t.Fatal(err)
		}
	}
	scan := func(b shard.BucketID, space Space, from, to []byte, reverse bool) (got []string) {
		t.Helper()
		err := s.View(ctx, b, func(v *View) error {
			return v.Scan(space, from, to, reverse, func(key, value []byte) bool {
				if want := fmt.Sprintf("%s.%d", key, b); string(value) != want {
					t.Errorf("row %q has %q, want %q", key, value, want)
				}
				if again, ok, err := v.Get(space, slices.Clone(key)); err != nil || !ok || string(again) != string(value) {
					t.Errorf("Get within Scan: %q %v %v", again, ok, err)
				}
				got = append(got, string(key))
				return true
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	all := []string{"", "a", "b", "c", "\xff\xff"}
	for _, space := range []Space{low, low + 1, high} {
		if got := scan(5, space, nil, nil, false); !slices.Equal(got, all) {
			t.Errorf("space %x: %q", space, got)
		}
	}
	if got := scan(5, low, []byte("a"), []byte("c"), true); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("a to c backwards: %q", got)
	}
	if _, err := s.Write(ctx, 5, "cut", nil); err != nil {
		t.Fatal(err)
	}
	if got := scan(5, low, nil, nil, false); !slices.Equal(got, []string{"", "a", "b", "\xff\xff"}) {
		t.Errorf("after Delete: %q", got)
	}
	if got := scan(5, high, nil, nil, false); got != nil {
		t.Errorf("after DeleteRange: %q", got)
	}
	for _, b := range []shard.BucketID{4, 6} {
		if got := scan(b, high, nil, nil, false); !slices.Equal(got, all) {
			t.Errorf("bucket %d lost rows: %q", b, got)
		}
	}
	if n, err := s.Write(ctx, 5, "drain", nil); err != nil || string(n) != "5" {
		t.Errorf("drain: %q %v", n, err)
	}
	if got := scan(5, low+1, nil, nil, false); got != nil {
		t.Errorf("after drain: %q", got)
	}
}

func TestTx_readsSeeTheStateBeforeTheCommand(t *testing.T) {
	ctx := testContext(t)
	reg := NewRegistry()
	reg.Register("put-get", func(tx *Tx, args []byte) ([]byte, error) {
		if err := tx.Put(SpaceKV, 0, []byte("k"), args); err != nil {
			return nil, err
		}
		v, _, err := tx.Get(SpaceKV, []byte("k"))
		return slices.Clone(v), err
	})
	s := bootstrapped(t, reg)
	before := ""
	for _, arg := range []string{"1", "2", "3"} {
		v, err := s.Write(ctx, 1, "put-get", []byte(arg))
		if err != nil || string(v) != before {
			t.Errorf("read %q %v, want %q", v, err, before)
		}
		before = arg
	}
}

func TestWrite_callerThatDoesNotWait(t *testing.T) {
	reg := NewRegistry()
	block := make(chan struct{})
	reg.Register("block", func(*Tx, []byte) ([]byte, error) { <-block; return nil, nil })
	s := bootstrapped(t, reg)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Write(ctx, 1, "block", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	close(block)
}

// TestRestart_functionThatIsGone: a log with calls that this version does not know must
// not be replayed without them.
func TestRestart_functionThatIsGone(t *testing.T) {
	ctx, dir := testContext(t), t.TempDir()
	reg := NewRegistry()
	reg.Register("old", func(*Tx, []byte) ([]byte, error) { return nil, nil })
	s := mustOpen(t, dir, reg)
	if err := s.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(ctx, 1, "old", nil); err != nil {
		t.Fatal(err)
	}
	// The machine of a version without the function meets the command.
	_, err := machine{&Storage{opts: s.opts, table: s.table}}.Apply(nil, &engine.Command{Function: "old", Bucket: 1})
	if !engine.IsFatal(err) || !strings.Contains(err.Error(), `"old"`) {
		t.Errorf("got %v", err)
	}
	_, err = machine{s}.Apply(nil, &engine.Command{Function: "_later"})
	if !engine.IsFatal(err) {
		t.Errorf("got %v", err)
	}
}

func TestRegistry_refusesFaultsOfTheProgram(t *testing.T) {
	ok := func(*Tx, []byte) ([]byte, error) { return nil, nil }
	for name, do := range map[string]func(*Registry){
		"no name":           func(r *Registry) { r.Register("", ok) },
		"a reserved name":   func(r *Registry) { r.Register("_x", ok) },
		"a long name":       func(r *Registry) { r.Register(strings.Repeat("x", 256), ok) },
		"no function":       func(r *Registry) { r.Register("x", nil) },
		"no read function":  func(r *Registry) { r.RegisterRead("x", nil) },
		"a name twice":      func(r *Registry) { r.Register(KVPut, ok) },
		"a read as a write": func(r *Registry) { r.Register(KVGet, ok) },
		"too late":          func(r *Registry) { r.freeze(); r.Register("x", ok) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			do(NewRegistry())
		})
	}
}

func TestOpen_refuses(t *testing.T) {
	_, err := Open(testContext(t), Options{})
	if !errors.Is(err, shard.InvalidConfig) {
		t.Error(err)
	}
	failing := errors.New("no engine")
	_, err = Open(testContext(t), Options{Registry: NewRegistry(), BucketCount: 1, OpenEngine: func(context.Context, engine.Machine) (engine.Engine, error) {
		return nil, failing
	}})
	if err != failing {
		t.Error(err)
	}
}
