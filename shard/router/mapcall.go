package router

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/switchyard-dev/switchyard/shard"
)

// mapWorkers bounds the reads of one MapCallRO that run at once.
const mapWorkers = 8

// MapCallRO runs a read function on each of the buckets, nil for all, and returns the
// results by bucket. Each bucket is read at a moment of its own. The first error ends
// it and is returned.
func (r *Router) MapCallRO(ctx context.Context, buckets []shard.BucketID, fn string, args []byte) (map[shard.BucketID][]byte, error) {
	if buckets == nil {
		buckets = make([]shard.BucketID, r.BucketCount())
		for i := range buckets {
			buckets[i] = shard.BucketID(i + 1)
		}
	}
	var mu sync.Mutex
	results := make(map[shard.BucketID][]byte, len(buckets))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(mapWorkers)
	for _, b := range buckets {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			result, err := r.Call(ctx, b, CallRO, fn, args)
			if err != nil {
				return err
			}
			mu.Lock()
			results[b] = result
			mu.Unlock()
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil && len(results) < len(buckets) {
		return nil, err
	}
	return results, nil
}
