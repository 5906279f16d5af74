package router

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// The one-node path: a replica set in the same process.

func BenchmarkLocal_put(b *testing.B) {
	r := newRouter(b)
	args := storage.KVPutArgs(1, []byte("k"), make([]byte, 256))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, err := r.Call(ctx, shard.BucketID(i%16+1), CallRW, storage.KVPut, args); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLocal_get(b *testing.B) {
	r := newRouter(b)
	args := storage.KVGetArgs([]byte("k"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, err := r.Call(ctx, shard.BucketID(i%16+1), CallRO, storage.KVGet, args); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLocal_view(b *testing.B) {
	r := newRouter(b)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		err := r.View(context.Background(), shard.BucketID(i%16+1), CallRO, func(v *storage.View) error {
			_, _, err := v.Get(storage.SpaceKV, []byte("k"))
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLocal_async(b *testing.B) {
	r := newRouter(b)
	args := storage.KVPutArgs(1, []byte("k"), make([]byte, 256))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 256)
	done := func([]byte, error) { <-slots; wg.Done() }
	for i := range b.N {
		wg.Add(1)
		slots <- struct{}{}
		r.CallRWAsync(shard.BucketID(i%16+1), storage.KVPut, args, done)
	}
	wg.Wait()
}

// callers runs b.N calls from 64 callers.
func callers(b *testing.B, call func(ctx context.Context, i int) error) {
	b.ReportAllocs()
	b.ResetTimer()
	var n atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for {
				i := int(n.Add(1))
				if i > b.N {
					return
				}
				if err := call(ctx, i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

func benchKey(i int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(i)) }

// newBenchCluster serves one replica set of one over loopback, with fsync before every
// acknowledgement.
func newBenchCluster(b *testing.B) *Router {
	b.Helper()
	ctx := testContext(b)
	dir := b.TempDir()
	s, err := storage.Open(ctx, storage.Options{
		Registry: storage.NewRegistry(), BucketCount: 16, ReplicaSet: "a",
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return raftengine.Open(ctx, raftengine.Options{Dir: dir, Machine: m, BucketCount: 16})
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	if err := s.Bootstrap(ctx); err != nil {
		b.Fatal(err)
	}
	g := newGroup(b, s, 1)
	set := g.set()
	set.Members[0].Address = g.nodes[0].proxy.target // not through the proxy
	r := newRemoteRouter(b, Options{Topology: Static(set)})
	for i := range 1000 {
		if _, err := r.Call(ctx, shard.BucketID(i%16+1), CallRW, storage.KVPut, storage.KVPutArgs(1, benchKey(i), make([]byte, 256))); err != nil {
			b.Fatal(err)
		}
	}
	return r
}

func benchPut(ctx context.Context, r *Router, i int) error {
	i %= 1000
	_, err := r.Call(ctx, shard.BucketID(i%16+1), CallRW, storage.KVPut, storage.KVPutArgs(1, benchKey(i), make([]byte, 256)))
	return err
}

func benchGet(ctx context.Context, r *Router, i int) error {
	i %= 1000
	_, err := r.Call(ctx, shard.BucketID(i%16+1), CallRO, storage.KVGet, storage.KVGetArgs(benchKey(i)))
	return err
}

func BenchmarkRemote_put64(b *testing.B) {
	r := newBenchCluster(b)
	callers(b, func(ctx context.Context, i int) error { return benchPut(ctx, r, i) })
}

func BenchmarkRemote_get64(b *testing.B) {
	r := newBenchCluster(b)
	callers(b, func(ctx context.Context, i int) error { return benchGet(ctx, r, i) })
}

// serial makes b.N calls one after the other.
func serial(b *testing.B, call func(ctx context.Context, i int) error) {
	b.ReportAllocs()
	b.ResetTimer()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	took := make([]time.Duration, 0, b.N)
	for i := range b.N {
		start := time.Now()
		if err := call(ctx, i); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

func BenchmarkRemote_putSerial(b *testing.B) {
	r := newBenchCluster(b)
	serial(b, func(ctx context.Context, i int) error { return benchPut(ctx, r, i) })
}

func BenchmarkRemote_getSerial(b *testing.B) {
	r := newBenchCluster(b)
	serial(b, func(ctx context.Context, i int) error { return benchGet(ctx, r, i) })
}

// One Get by a view, which is a stream of its own.
func BenchmarkRemote_viewSerial(b *testing.B) {
	r := newBenchCluster(b)
	serial(b, func(ctx context.Context, i int) error {
		return r.View(ctx, shard.BucketID(i%16+1), CallMR, func(v *storage.View) error {
			_, _, err := v.Get(storage.SpaceKV, benchKey(i%1000))
			return err
		})
	})
}
