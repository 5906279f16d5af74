package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newStorage opens a bootstrapped storage in memory.
func newStorage(t testing.TB, name string, reg *storage.Registry) *storage.Storage {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	s, err := storage.Open(ctx, storage.Options{
		Registry: reg, BucketCount: 16, ReplicaSet: name,
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return raftengine.Open(ctx, raftengine.Options{Memory: true, Machine: m, BucketCount: 16})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

func newRouter(t testing.TB) *Router {
	t.Helper()
	r, err := New(Options{ReplicaSets: []ReplicaSet{newStorage(t, "a", storage.NewRegistry())}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCall_writesAndReads(t *testing.T) {
	ctx := t.Context()
	r := newRouter(t)
	key := []byte("k")
	b, err := r.BucketID("k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Call(ctx, b, CallRW, storage.KVPut, storage.KVPutArgs(shard.MPCRC32Bytes(key), key, []byte("v"))); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []Mode{CallRO, CallBRO, CallRE, CallBRE} {
		result, err := r.Call(ctx, b, mode, storage.KVGet, storage.KVGetArgs(key))
		if err != nil {
			t.Fatal(mode, err)
		}
		if v, ok, err := storage.KVGetResult(result); err != nil || !ok || string(v) != "v" {
			t.Errorf("%v: %q %v %v", mode, v, ok, err)
		}
	}
	for _, mode := range []Mode{CallRW, CallRO} {
		err = r.View(ctx, b, mode, func(v *storage.View) error {
			got, ok, err := v.Get(storage.SpaceKV, key)
			if string(got) != "v" || !ok {
				t.Errorf("view: %q %v", got, ok)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if name, err := r.Route(b); err != nil || name != "a" {
		t.Errorf("Route: %q %v", name, err)
	}
}

func TestCallRWAsync_keepsTheOrderOfOneCaller(t *testing.T) {
	const n = 3000
	reg := storage.NewRegistry()
	var applied []string
	reg.Register("note", func(_ *storage.Tx, args []byte) ([]byte, error) {
		applied = append(applied, string(args))
		return nil, nil
	})
	r, err := New(Options{ReplicaSets: []ReplicaSet{newStorage(t, "a", reg)}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		r.CallRWAsync(3, "note", fmt.Append(nil, i), func(_ []byte, err error) {
			if err != nil {
				t.Error(err)
			}
			wg.Done()
		})
	}
	wg.Wait()
	for i := range n {
		if applied[i] != fmt.Sprint(i) {
			t.Fatalf("command %d was applied at place %d", i, i)
		}
	}
}

func TestCall_refuses(t *testing.T) {
	ctx := t.Context()
	r := newRouter(t)
	for name, c := range map[string]struct {
		bucket shard.BucketID
		mode   Mode
		fn     string
		want   error
	}{
		"bucket 0":             {0, CallRW, storage.KVPut, shard.NoRouteToBucket},
		"bucket too large":     {17, CallRO, storage.KVGet, shard.NoRouteToBucket},
		"no such function":     {1, CallRW, "nothing", shard.FunctionNotFound},
		"a read as a write":    {1, CallRW, storage.KVGet, shard.FunctionNotFound},
		"a write as a read":    {1, CallRO, storage.KVPut, shard.FunctionNotFound},
		"bad arguments, write": {1, CallRW, storage.KVPut, shard.InvalidArguments},
		"bad arguments, read":  {1, CallRO, storage.KVScan, shard.InvalidArguments},
		"no such mode":         {1, Mode(9), storage.KVGet, shard.InvalidArguments},
	} {
		if _, err := r.Call(ctx, c.bucket, c.mode, c.fn, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Call(ended, 1, CallRW, storage.KVDelete, storage.KVDeleteArgs([]byte("k"))); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func TestCall_waitsOutAMove(t *testing.T) {
	ctx := t.Context()
	s := newStorage(t, "a", storage.NewRegistry())
	r, err := New(Options{ReplicaSets: []ReplicaSet{s}})
	if err != nil {
		t.Fatal(err)
	}
	put := func(ctx context.Context) error {
		_, err := r.Call(ctx, 5, CallRW, storage.KVPut, storage.KVPutArgs(1, []byte("k"), []byte("v")))
		return err
	}
	if err := s.SetBucketState(ctx, 5, shard.Sending, ""); err != nil {
		t.Fatal(err)
	}
	// A write waits for as long as its caller does; reads go on.
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := put(short); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, shard.TransferIsInProgress) {
		t.Errorf("a write to a SENDING bucket: %v", err)
	}
	if _, err := r.Call(ctx, 5, CallRO, storage.KVGet, storage.KVGetArgs([]byte("k"))); err != nil {
		t.Errorf("a read of a SENDING bucket: %v", err)
	}
	waiting := make(chan error)
	go func() { waiting <- put(ctx) }()
	if err := s.SetBucketState(ctx, 5, shard.Active, ""); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("a write after the move was undone: %v", err)
	}
}

func TestCall_hasADeadlineOfItsOwn(t *testing.T) {
	reg := storage.NewRegistry()
	release := make(chan struct{})
	reg.Register("hang", func(*storage.Tx, []byte) ([]byte, error) { <-release; return nil, nil })
	s := newStorage(t, "a", reg)
	t.Cleanup(func() { close(release) })
	r, err := New(Options{ReplicaSets: []ReplicaSet{s}, CallTimeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Call(context.Background(), 1, CallRW, "hang", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestCall_followsABucketToItsDestination(t *testing.T) {
	ctx := t.Context()
	a, b := newStorage(t, "a", storage.NewRegistry()), newStorage(t, "b", storage.NewRegistry())
	// Bucket 7 starts on a alone.
	for _, state := range []shard.State{shard.Sending, shard.Sent, shard.Garbage, shard.Absent} {
		if err := b.SetBucketState(ctx, 7, state, ""); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(Options{ReplicaSets: []ReplicaSet{a, b}})
	if err != nil {
		t.Fatal(err)
	}
	if name, _ := r.Route(7); name != "a" {
		t.Fatalf("routed to %q", name)
	}
	for _, step := range []struct {
		s     *storage.Storage
		state shard.State
		dest  string
	}{{b, shard.Receiving, ""}, {a, shard.Sending, ""}, {a, shard.Sent, "b"}, {b, shard.Active, ""}} {
		if err := step.s.SetBucketState(ctx, 7, step.state, step.dest); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Call(ctx, 7, CallRW, storage.KVPut, storage.KVPutArgs(1, []byte("k"), []byte("v"))); err != nil {
		t.Fatal(err)
	}
	if name, _ := r.Route(7); name != "b" {
		t.Errorf("routed to %q after the move", name)
	}
	result, err := b.Read(ctx, 7, storage.KVGet, storage.KVGetArgs([]byte("k")))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := storage.KVGetResult(result); !ok {
		t.Error("the row is not on the destination")
	}
}

func TestCall_bucketThatIsNowhere(t *testing.T) {
	ctx := t.Context()
	s := newStorage(t, "a", storage.NewRegistry())
	r, err := New(Options{ReplicaSets: []ReplicaSet{s}})
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range []shard.State{shard.Sending, shard.Sent} {
		if err := s.SetBucketState(ctx, 2, state, "gone"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Call(ctx, 2, CallRO, storage.KVGet, storage.KVGetArgs([]byte("k"))); !errors.Is(err, shard.WrongBucket) {
		t.Errorf("first call: %v", err)
	}
	if _, err := r.Call(ctx, 2, CallRO, storage.KVGet, storage.KVGetArgs([]byte("k"))); !errors.Is(err, shard.NoRouteToBucket) {
		t.Errorf("second call: %v", err)
	}
	done := make(chan error, 1)
	r.CallRWAsync(2, storage.KVDelete, storage.KVDeleteArgs([]byte("k")), func(_ []byte, err error) { done <- err })
	if err := <-done; !errors.Is(err, shard.NoRouteToBucket) {
		t.Errorf("CallRWAsync: %v", err)
	}
}

func TestMapCallRO_asksEveryBucket(t *testing.T) {
	ctx := t.Context()
	r := newRouter(t)
	for b := shard.BucketID(1); b <= 16; b++ {
		if _, err := r.Call(ctx, b, CallRW, storage.KVPut, storage.KVPutArgs(0, []byte("k"), fmt.Append(nil, b))); err != nil {
			t.Fatal(err)
		}
	}
	check := func(buckets []shard.BucketID, want int) {
		t.Helper()
		results, err := r.MapCallRO(ctx, buckets, storage.KVGet, storage.KVGetArgs([]byte("k")))
		if err != nil || len(results) != want {
			t.Fatalf("%d results, want %d: %v", len(results), want, err)
		}
		for b, result := range results {
			if v, ok, err := storage.KVGetResult(result); err != nil || !ok || string(v) != fmt.Sprint(b) {
				t.Errorf("bucket %d: %q %v %v", b, v, ok, err)
			}
		}
	}
	check(nil, 16)
	check([]shard.BucketID{3, 9}, 2)
	if _, err := r.MapCallRO(ctx, nil, "nothing", nil); !errors.Is(err, shard.FunctionNotFound) {
		t.Errorf("no such function: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.MapCallRO(ended, nil, storage.KVGet, storage.KVGetArgs([]byte("k"))); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func TestInfo_tellsTheTruth(t *testing.T) {
	ctx := t.Context()
	s := newStorage(t, "a", storage.NewRegistry())
	r, err := New(Options{ReplicaSets: []ReplicaSet{s}})
	if err != nil {
		t.Fatal(err)
	}
	info := r.Info(ctx)
	if info.Level != Green || len(info.Alerts) != 0 || info.Buckets != (BucketInfo{ReadWrite: 16}) || len(info.ReplicaSets) != 1 {
		t.Errorf("healthy: %+v", info)
	}
	for _, step := range []struct {
		b     shard.BucketID
		state shard.State
	}{{1, shard.Pinned}, {2, shard.ReadOnly}, {3, shard.Sending}, {4, shard.Sending}, {4, shard.Sent}} {
		if err := s.SetBucketState(ctx, step.b, step.state, ""); err != nil {
			t.Fatal(err)
		}
	}
	info = r.Info(ctx)
	if info.Level != Yellow || info.Buckets != (BucketInfo{ReadWrite: 13, ReadOnly: 2, Unknown: 1}) || info.Alerts[0].Code != shard.UnknownBuckets {
		t.Errorf("one bucket gone: %+v", info)
	}
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	info = r.Info(ctx)
	if info.Level != Red || info.Alerts[0].Code != shard.UnreachableMaster || info.Buckets.ReadWrite != 0 {
		t.Errorf("closed: %+v", info)
	}
}

func TestNew_refuses(t *testing.T) {
	a := newStorage(t, "a", storage.NewRegistry())
	for name, o := range map[string]Options{
		"no replica set": {},
		"a name twice":   {ReplicaSets: []ReplicaSet{a, a}},
		"a bad limit":    {ReplicaSets: []ReplicaSet{a}, MaxTries: -1},
	} {
		if _, err := New(o); !errors.Is(err, shard.InvalidConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
