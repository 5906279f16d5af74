package storage

import (
	"context"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// Counted is a storage as a caller sees it who knows another bucket_count than this member was
// told. All methods may be called from any goroutine; those that are not about calls are the
// storage's own.
type Counted struct {
	*Storage
	count uint32
}

// As returns the storage for callers who know a bucket_count: it must be the one that counts
// or, while that is doubled, the double. Else INVALID_CFG, with both; also later, when it does
// not count any more.
func (s *Storage) As(count uint32) (*Counted, error) {
	if _, _, err := s.aim(count, 1); err != nil {
		return nil, err
	}
	return &Counted{s, count}, nil
}

// Check returns nil while the caller's bucket_count is served.
func (c *Counted) Check() error {
	_, _, err := c.aim(c.count, 1)
	return err
}

// BucketCount returns the caller's bucket_count.
func (c *Counted) BucketCount() uint32 { return c.count }

// WriteAsync is Storage.WriteAsync.
func (c *Counted) WriteAsync(bucket shard.BucketID, fn string, args []byte, done func([]byte, error)) {
	c.writeAsync(c.count, bucket, fn, args, done)
}

// Write is Storage.Write.
func (c *Counted) Write(ctx context.Context, bucket shard.BucketID, fn string, args []byte) ([]byte, error) {
	return c.write(ctx, c.count, bucket, fn, args)
}

// Read is Storage.Read.
func (c *Counted) Read(ctx context.Context, bucket shard.BucketID, fn string, args []byte) ([]byte, error) {
	return c.read(ctx, c.count, bucket, fn, args)
}

// ReadAny is Storage.ReadAny.
func (c *Counted) ReadAny(ctx context.Context, bucket shard.BucketID, fn string, args []byte) ([]byte, error) {
	return c.readAny(ctx, c.count, bucket, fn, args)
}

// View is Storage.View.
func (c *Counted) View(ctx context.Context, bucket shard.BucketID, fn func(*View) error) error {
	return c.view(ctx, c.count, bucket, fn)
}

// ViewAny is Storage.ViewAny.
func (c *Counted) ViewAny(ctx context.Context, bucket shard.BucketID, fn func(*View) error) error {
	return c.viewAny(ctx, c.count, bucket, fn)
}

// BucketState is Storage.BucketState.
func (c *Counted) BucketState(b shard.BucketID) (shard.State, string) {
	if uint32(b) > c.count {
		return shard.Absent, ""
	}
	return c.Storage.BucketState(b)
}

// BucketCounts is Storage.BucketCounts.
func (c *Counted) BucketCounts() map[shard.State]int { return c.bucketCounts(c.count) }

// ListBuckets is Storage.ListBuckets.
func (c *Counted) ListBuckets(_ context.Context, fn func(*v1.ListBucketsResponse_Bucket) error) error {
	return c.listBuckets(c.count, fn)
}
