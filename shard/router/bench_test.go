package router

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
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
