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
