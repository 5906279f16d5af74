package storagerpc

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func benchClient(b *testing.B) *Client {
	_, address := serve(b, ServerOptions{Storage: newStorage(b, b.TempDir(), storage.NewRegistry())})
	c := dial(b, address, ClientOptions{})
	value := make([]byte, 256)
	for i := range 1000 {
		key := binary.BigEndian.AppendUint32(nil, uint32(i))
		if _, err := c.Call(b.Context(), v1.StorageCallKind_STORAGE_CALL_KIND_WRITE, shard.BucketID(i%buckets+1), storage.KVPut, storage.KVPutArgs(1, key, value)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	return c
}

func put(ctx context.Context, c *Client, i int, value []byte) error {
	key := binary.BigEndian.AppendUint32(nil, uint32(i%1000))
	_, err := c.Call(ctx, v1.StorageCallKind_STORAGE_CALL_KIND_WRITE, shard.BucketID(i%1000%buckets+1), storage.KVPut, storage.KVPutArgs(1, key, value))
	return err
}

func get(ctx context.Context, c *Client, i int) error {
	key := binary.BigEndian.AppendUint32(nil, uint32(i%1000))
	_, err := c.Call(ctx, v1.StorageCallKind_STORAGE_CALL_KIND_READ, shard.BucketID(i%1000%buckets+1), storage.KVGet, storage.KVGetArgs(key))
	return err
}

func BenchmarkCall_put64(b *testing.B) {
	c := benchClient(b)
	value := make([]byte, 256)
	callers(b, func(ctx context.Context, i int) error { return put(ctx, c, i, value) })
}

func BenchmarkCall_get64(b *testing.B) {
	c := benchClient(b)
	callers(b, func(ctx context.Context, i int) error { return get(ctx, c, i) })
}

func callers(b *testing.B, call func(ctx context.Context, i int) error) {
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

func BenchmarkCall_putSerial(b *testing.B) {
	c := benchClient(b)
	value := make([]byte, 256)
	serial(b, func(i int) error { return put(b.Context(), c, i, value) })
}

func BenchmarkCall_getSerial(b *testing.B) {
	c := benchClient(b)
	serial(b, func(i int) error { return get(b.Context(), c, i) })
}

func serial(b *testing.B, call func(i int) error) {
	took := make([]time.Duration, 0, b.N)
	for i := range b.N {
		start := time.Now()
		if err := call(i); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
