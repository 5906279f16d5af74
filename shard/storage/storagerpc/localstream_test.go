package storagerpc

import (
	"context"
	"errors"
	"io"
	"testing"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func TestLocalStream_isLikeOneOverTheNetwork(t *testing.T) {
	s, err := NewServer(ServerOptions{Storage: newStorage(t, "", storage.NewRegistry()), Member: "a1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	ctx := testContext(t)
	read := func(ctx context.Context, req *v1.CheckBucketsRequest, most int) (n int, err error) {
		err = s.Do(ctx, func(ctx context.Context, c v1.StorageServiceClient) error {
			stream, err := c.CheckBuckets(ctx, req)
			if err != nil {
				return err
			}
			for n < most {
				resp, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				n += len(resp.GetBuckets())
			}
			return nil
		})
		return n, err
	}
	if n, err := read(ctx, &v1.CheckBucketsRequest{Buckets: []uint32{1, 2, 3}}, 100); n != 3 || err != nil {
		t.Errorf("all: %d, %v", n, err)
	}
	// Who has read enough leaves, and the handler ends with it.
	if n, err := read(ctx, &v1.CheckBucketsRequest{}, 2); n != 2 || err != nil {
		t.Errorf("a few: %d, %v", n, err)
	}
	if _, err := read(ctx, &v1.CheckBucketsRequest{Buckets: []uint32{0}}, 100); !errors.Is(err, shard.NoRouteToBucket) {
		t.Errorf("a bucket that cannot be: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := read(ended, &v1.CheckBucketsRequest{}, 100); err == nil {
		t.Error("it ran after its context had ended")
	}
	err = s.Do(ctx, func(ctx context.Context, c v1.StorageServiceClient) error {
		_, err := c.Calls(ctx)
		return err
	})
	if err == nil {
		t.Error("a stream of the client was opened")
	}
}
