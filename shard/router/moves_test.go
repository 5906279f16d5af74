package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// links carries messages of transfers between storages of this process.
type links struct {
	mu   sync.Mutex
	sets map[string]*storage.Storage
}

func (l *links) Transfer(ctx context.Context, req *v1.TransferRequest) (*v1.TransferResponse, error) {
	l.mu.Lock()
	s := l.sets[req.GetTo()]
	l.mu.Unlock()
	if s == nil {
		return nil, &shard.Error{Code: shard.UnreachableMaster, ReplicaSet: req.GetTo()}
	}
	return s.Receive(ctx, req)
}

func (l *links) ReplicaSets() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for name := range l.sets {
		names = append(names, name)
	}
	return names
}

// newMovers serves replica sets that can move buckets to each other. The first has all.
func newMovers(t testing.TB, disk bool, reg func() *storage.Registry, names ...string) []*group {
	t.Helper()
	l := &links{sets: map[string]*storage.Storage{}}
	var groups []*group
	for i, name := range names {
		dir := ""
		if disk {
			dir = t.TempDir()
		}
		s, err := storage.Open(testContext(t), storage.Options{
			Registry: reg(), BucketCount: 16, ReplicaSet: name, Link: l,
			OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
				return raftengine.Open(ctx, raftengine.Options{Memory: !disk, Dir: dir, Machine: m, BucketCount: 16})
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
		req := &v1.BootstrapStorageRequest{ClusterId: "c", BucketCount: 16, ReplicaSet: name}
		if i == 0 {
			req.Buckets = []*v1.BucketRange{{First: 1, Last: 16}}
		}
		if err := s.BootstrapReplicaSet(testContext(t), req); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		l.sets[name] = s
		l.mu.Unlock()
		groups = append(groups, serveGroup(t, s, s, 1))
	}
	return groups
}

// load writes and reads a bucket until it is stopped, and counts.
type load struct {
	stop          atomic.Bool
	wg            sync.WaitGroup
	writes, reads atomic.Int64
	gap           atomic.Int64 // longest time without a write, ns
}

func startLoad(ctx context.Context, t testing.TB, r *Router, b shard.BucketID) *load {
	l := &load{}
	l.wg.Go(func() {
		last := time.Now()
		for i := 0; !l.stop.Load(); i++ {
			if _, err := r.Call(ctx, b, CallRW, storage.KVPut, putArgs("counter", fmt.Sprint(i))); err != nil {
				t.Errorf("write %d: %v", i, err)
				return
			}
			now := time.Now()
			l.gap.Store(max(l.gap.Load(), int64(now.Sub(last))))
			last = now
			l.writes.Store(int64(i))
		}
	})
	l.wg.Go(func() {
		for !l.stop.Load() {
			written := l.writes.Load()
			result, err := r.Call(ctx, b, CallMR, storage.KVGet, storage.KVGetArgs([]byte("counter")))
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			v, ok, err := storage.KVGetResult(result)
			var got int64
			if ok {
				_, err = fmt.Sscan(string(v), &got)
			}
			if err != nil || got < written {
				t.Errorf("read %q, %v, after write %d was done", v, err, written)
				return
			}
			l.reads.Add(1)
		}
	})
	return l
}

func (l *load) end() {
	l.stop.Store(true)
	l.wg.Wait()
}

func TestMoves_underLoadNoCallFails(t *testing.T) {
	groups := newMovers(t, false, storage.NewRegistry, "a", "b", "c")
	r := newRemoteRouter(t, Options{ClusterID: "c"}, groups...)
	ctx := testContext(t)
	value := string(make([]byte, 1000))
	for i := range 2000 {
		mustPut(t, r, 5, fmt.Sprintf("row %d", i), value)
	}
	l := startLoad(ctx, t, r, 5)
	for i := range 9 {
		at := l.writes.Load()
		eventually(t, "it is written", func() bool { return l.writes.Load() > at+20 || t.Failed() })
		to := groups[(i+1)%3].name
		failed, err := r.SendBuckets(ctx, []shard.BucketID{5, 6, 7}, to)
		if err != nil || len(failed) != 0 {
			t.Fatalf("move %d: %v %v", i, failed, err)
		}
		eventually(t, "the router knows", func() bool { name, err := r.Route(5); return err == nil && name == to })
	}
	l.end()
	t.Logf("%d writes, %d reads, the longest time without a write was %v", l.writes.Load(), l.reads.Load(), time.Duration(l.gap.Load()))
	n := 0
	if err := r.View(ctx, 5, CallMR, func(v *storage.View) error {
		n = 0
		return v.Scan(storage.SpaceKV, nil, nil, false, func(_, _ []byte) bool { n++; return true })
	}); err != nil || n != 2001 {
		t.Errorf("%d rows are left, %v", n, err)
	}
	if info := r.Info(ctx); info.Level != Green || info.Buckets.ReadWrite != 16 {
		t.Errorf("after the moves: %+v", info)
	}
}

func TestMoves_areHeldBackByCallsOverManyBuckets(t *testing.T) {
	groups := newMovers(t, false, bucketRegistry, "a", "b")
	r := newRemoteRouter(t, Options{}, groups...)
	ctx := testContext(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			failed, err := r.SendBuckets(ctx, []shard.BucketID{1, 2, 3}, groups[(i+1)%2].name)
			if err != nil {
				t.Errorf("a move: %v", err)
				return
			}
			for b, err := range failed {
				// A call that holds the buckets for long is a reason not to move, or they are
				// where they should be because the last move failed.
				if !errors.Is(err, shard.StorageIsReferenced) && !errors.Is(err, shard.MoveToSelf) {
					t.Errorf("bucket %d: %v", b, err)
					return
				}
			}
		}
	})
	for range 20 {
		results, err := r.MapCallRW(ctx, nil, "bucket", nil)
		if err != nil || len(results) != 16 {
			t.Errorf("%d results, %v", len(results), err)
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}

func TestMoves_refusalsHaveNames(t *testing.T) {
	groups := newMovers(t, false, storage.NewRegistry, "a", "b")
	r := newRemoteRouter(t, Options{}, groups...)
	ctx := testContext(t)
	eventually(t, "the places are known", func() bool { _, err := r.Route(3); return err == nil })
	if _, err := r.SendBuckets(ctx, []shard.BucketID{3}, "z"); !errors.Is(err, shard.NoSuchReplicaSet) {
		t.Errorf("an unknown destination: %v", err)
	}
	if _, err := r.SendBuckets(ctx, []shard.BucketID{17}, "b"); !errors.Is(err, shard.NoRouteToBucket) {
		t.Errorf("no such bucket: %v", err)
	}
	change := func(c v1.BucketChange, b uint32) error {
		return r.OnMaster(ctx, "a", func(ctx context.Context, s v1.StorageServiceClient) error {
			_, err := s.ChangeBuckets(ctx, &v1.ChangeBucketsRequest{Buckets: []uint32{b}, Change: c})
			return err
		})
	}
	if err := change(v1.BucketChange_BUCKET_CHANGE_PIN, 4); err != nil {
		t.Fatal(err)
	}
	wants := map[string]struct {
		bucket shard.BucketID
		to     string
		code   shard.Code
	}{
		"to itself": {3, "a", shard.MoveToSelf},
		"pinned":    {4, "b", shard.BucketIsPinned},
	}
	try := func() {
		t.Helper()
		for name, w := range wants {
			failed, err := r.SendBuckets(ctx, []shard.BucketID{w.bucket}, w.to)
			if !errors.Is(err, w.code) && !errors.Is(failed[w.bucket], w.code) {
				t.Errorf("%s: %v %v, want %v", name, failed, err, w.code)
			}
			if place, err := r.Route(w.bucket); err != nil || place != "a" {
				t.Errorf("%s: bucket %d is on %q, %v", name, w.bucket, place, err)
			}
		}
	}
	try()
	err := r.OnMaster(ctx, "b", func(ctx context.Context, s v1.StorageServiceClient) error {
		_, err := s.SetLock(ctx, &v1.SetLockRequest{Locked: true})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	wants = map[string]struct {
		bucket shard.BucketID
		to     string
		code   shard.Code
	}{"locked": {3, "b", shard.ReplicaSetIsLocked}}
	try()
}
