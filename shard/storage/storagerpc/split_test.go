package storagerpc

import (
	"context"
	"errors"
	"strings"
	"testing"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// TestSplit_clientsOfBothCounts: each client is answered as its bucket_count wants it, and the
// clients of the old one are known.
func TestSplit_clientsOfBothCounts(t *testing.T) {
	ctx := testContext(t)
	store := newStorage(t, "", storage.NewRegistry())
	s, address := serve(t, ServerOptions{Storage: store})
	old, fresh := dial(t, address, ClientOptions{BucketCount: buckets}), dial(t, address, ClientOptions{BucketCount: 2 * buckets})
	const write, read = v1.StorageCallKind_STORAGE_CALL_KIND_WRITE, v1.StorageCallKind_STORAGE_CALL_KIND_READ
	// A key of the upper half of its bucket.
	key := []byte("k")
	for shard.BucketOf(shard.MPCRC32Bytes(key), 2*buckets) <= buckets {
		key = append(key, 'k')
	}
	hash := shard.MPCRC32Bytes(key)
	lower, upper := shard.BucketOf(hash, buckets), shard.BucketOf(hash, 2*buckets)
	get := func(c *Client, b shard.BucketID) string {
		t.Helper()
		out, err := c.Call(ctx, read, b, storage.KVGet, storage.KVGetArgs(key))
		if err != nil {
			t.Fatal(err)
		}
		v, _, err := storage.KVGetResult(out)
		if err != nil {
			t.Fatal(err)
		}
		var viewed string
		if err := c.View(ctx, read, b, func(v *storage.View) error {
			return v.Scan(storage.SpaceKV, nil, nil, false, func(_, value []byte) bool { viewed += string(value); return true })
		}); err != nil || viewed != string(v) {
			t.Fatalf("a view shows %q, %v, and kv.get %q", viewed, err, v)
		}
		return string(v)
	}
	if _, err := fresh.Call(ctx, read, upper, storage.KVGet, storage.KVGetArgs(key)); !errors.Is(err, shard.InvalidConfig) || !strings.Contains(err.Error(), "not being doubled") {
		t.Errorf("before the doubling: %v", err)
	}
	if _, err := old.Call(ctx, write, lower, storage.KVPut, storage.KVPutArgs(hash, key, []byte("1"))); err != nil {
		t.Fatal(err)
	}
	start := func(step v1.SplitStep) error {
		return old.Do(ctx, func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.StartSplit(ctx, &v1.StartSplitRequest{BucketCount: buckets, Step: step})
			return err
		})
	}
	if err := start(v1.SplitStep_SPLIT_STEP_UNSPECIFIED); !errors.Is(err, shard.InvalidArguments) {
		t.Errorf("no step: %v", err)
	}
	if err := errors.Join(start(v1.SplitStep_SPLIT_STEP_HOLD), start(v1.SplitStep_SPLIT_STEP_BEGIN)); err != nil {
		t.Fatal(err)
	}
	if got := get(old, lower) + get(fresh, upper) + get(fresh, lower); got != "11" {
		t.Errorf("both halves show %q", got)
	}
	if _, err := fresh.Call(ctx, write, upper, storage.KVPut, storage.KVPutArgs(hash, key, []byte("2"))); err != nil {
		t.Fatal(err)
	}
	if got := get(old, lower); got != "2" {
		t.Errorf("the old view shows %q", got)
	}
	for c, want := range map[*Client]uint32{old: buckets, fresh: 2 * buckets} {
		resp, err := c.Discover(ctx)
		if err != nil || resp.GetBucketCount() != want || len(resp.GetRanges()) != 1 || resp.GetRanges()[0].GetLast() != want {
			t.Errorf("discovery of %d buckets: %v, %v", want, resp, err)
		}
	}
	if s.Callers(buckets) < 1 || s.Callers(2*buckets) < 1 {
		t.Errorf("%d and %d callers", s.Callers(buckets), s.Callers(2*buckets))
	}
	finish := func() error {
		return fresh.Do(ctx, func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.FinishSplit(ctx, &v1.FinishSplitRequest{BucketCount: buckets})
			return err
		})
	}
	for err := finish(); err != nil; err = finish() {
		if !errors.Is(err, shard.SplitIsInProgress) || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if got := get(fresh, upper); got != "2" {
		t.Errorf("after the doubling %q", got)
	}
	// Its stream was open all the time.
	if _, err := old.Call(ctx, read, lower, storage.KVGet, storage.KVGetArgs(key)); !errors.Is(err, shard.InvalidConfig) || !strings.Contains(err.Error(), "it was doubled") {
		t.Errorf("the old view after the doubling: %v", err)
	}
	if _, err := old.Call(ctx, write, lower, storage.KVPut, storage.KVPutArgs(hash, key, []byte("3"))); !errors.Is(err, shard.InvalidConfig) {
		t.Errorf("the old view after the doubling: %v", err)
	}
}
