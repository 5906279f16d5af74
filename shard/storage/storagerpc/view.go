package storagerpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

const (
	// maxChunkRows and maxChunkBytes bound one answer to a scan.
	maxChunkRows  = 4096
	maxChunkBytes = 1 << 20
	// maxGets is the largest number of rows that one request gets.
	maxGets = 4096
)

// viewStorage is a storage whose replicas can be viewed too.
type viewStorage interface {
	ViewAny(ctx context.Context, bucket shard.BucketID, fn func(*storage.View) error) error
}

// view makes a view as a call of kind wants it.
func view(ctx context.Context, s Storage, kind v1.StorageCallKind, bucket shard.BucketID, fn func(*storage.View) error) error {
	if kind == v1.StorageCallKind_STORAGE_CALL_KIND_READ_ANY {
		if r, ok := s.(viewStorage); ok {
			return r.ViewAny(ctx, bucket, fn)
		}
	}
	return s.View(ctx, bucket, fn)
}

// errViewOver ends a view whose client has gone.
var errViewOver = errors.New("storagerpc: the view is over")

// View implements StorageService.
func (s *Server) View(stream grpc.BidiStreamingServer[v1.ViewRequest, v1.ViewResponse]) error {
	ctx, end, err := s.begin(stream.Context())
	if err != nil {
		return err
	}
	defer end()
	select {
	case s.views <- struct{}{}:
		defer func() { <-s.views }()
	default:
		return statusOf(&shard.Error{Code: shard.Overloaded, ReplicaSet: s.storage.ReplicaSet(), Reason: fmt.Sprintf("%d views are open, which is the limit", s.opts.MaxViews)})
	}
	seen, err := s.seen(ctx)
	if err != nil {
		return statusOf(err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.ViewAge)
	defer cancel()
	v := &viewServer{s: s, stream: stream, ctx: ctx, requests: make(chan *v1.ViewRequest)}
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		v.receive()
	}()
	first, err := v.next()
	if errors.Is(err, errViewOver) {
		return nil
	}
	if err != nil {
		return statusOf(err)
	}
	if first.GetOpen() == nil {
		return statusOf(&shard.Error{Code: shard.InvalidArguments, Reason: "the first request must open the view"})
	}
	v.bucket = shard.BucketID(first.GetOpen().GetBucket())
	err = view(ctx, seen, first.GetOpen().GetKind(), v.bucket, func(view *storage.View) error {
		return v.serve(view.Reader(), first)
	})
	if errors.Is(err, errViewOver) {
		return nil
	}
	return statusOf(err)
}

// viewServer serves one view.
type viewServer struct {
	s        *Server
	stream   grpc.BidiStreamingServer[v1.ViewRequest, v1.ViewResponse]
	ctx      context.Context
	bucket   shard.BucketID
	requests chan *v1.ViewRequest // closed when the client has ended the stream
}

func (v *viewServer) receive() {
	defer close(v.requests)
	for {
		req, err := v.stream.Recv()
		if err != nil {
			return
		}
		select {
		case v.requests <- req:
		case <-v.ctx.Done():
			return
		}
	}
}

// next waits for a request.
func (v *viewServer) next() (*v1.ViewRequest, error) {
	t := time.NewTimer(v.s.opts.ViewIdle)
	defer t.Stop()
	select {
	case req, ok := <-v.requests:
		if !ok {
			return nil, errViewOver
		}
		return req, nil
	case <-v.ctx.Done():
		return nil, v.ctx.Err()
	case <-v.s.drained:
		return nil, v.s.errStopping()
	case <-t.C:
		return nil, &shard.Error{Code: shard.StorageRefUse, Bucket: v.bucket, Reason: fmt.Sprintf("the view was not used for %v", v.s.opts.ViewIdle)}
	}
}

func (v *viewServer) serve(r engine.Reader, req *v1.ViewRequest) error {
	for {
		resp := &v1.ViewResponse{}
		if err := v.answer(r, req, resp); err != nil {
			resp = &v1.ViewResponse{Error: EncodeError(err)}
		}
		if err := v.stream.Send(resp); err != nil {
			return errViewOver
		}
		var err error
		if req, err = v.next(); err != nil {
			return err
		}
	}
}

func (v *viewServer) answer(r engine.Reader, req *v1.ViewRequest, resp *v1.ViewResponse) error {
	if len(req.GetGet()) > maxGets {
		return v.invalid("%d rows are asked for at once, the limit is %d", len(req.GetGet()), maxGets)
	}
	size := 0
	for _, key := range req.GetGet() {
		if !v.ours(key) {
			return v.invalid("key %x is not of the bucket", key)
		}
		value, ok, err := r.Get(key)
		if err != nil {
			return err
		}
		if size += len(value); size > MaxArgs {
			return &shard.Error{Code: shard.ArgumentsTooLarge, Bucket: v.bucket, Reason: fmt.Sprintf("the rows asked for have more than %d bytes", MaxArgs)}
		}
		resp.Values = append(resp.Values, &v1.ViewResponse_Value{Found: ok, Value: slices.Clone(value)})
	}
	scan := req.GetScan()
	if scan == nil {
		return nil
	}
	if !v.ours(scan.GetFrom()) || !v.ours(scan.GetTo()) && !v.end(scan.GetTo()) {
		return v.invalid("the scan is not within the bucket")
	}
	maxRows, maxBytes := limit(scan.GetMaxRows(), maxChunkRows), limit(scan.GetMaxBytes(), maxChunkBytes)
	size = 0
	return r.Scan(scan.GetFrom(), scan.GetTo(), scan.GetReverse(), func(key, value []byte) bool {
		if len(resp.GetRows()) == maxRows || size >= maxBytes {
			resp.More = true
			return false
		}
		size += len(key) + len(value)
		// One allocation for both.
		b := make([]byte, 0, len(key)+len(value))
		b = append(append(b, key...), value...)
		resp.Rows = append(resp.Rows, &v1.ViewResponse_Row{Key: b[:len(key):len(key)], Value: b[len(key):]})
		return true
	})
}

func limit(asked uint32, most int) int {
	if asked == 0 {
		return most
	}
	return min(int(asked), most)
}

// ours reports whether an engine's key is one of the bucket.
func (v *viewServer) ours(key []byte) bool {
	return len(key) >= 4 && shard.BucketID(binary.BigEndian.Uint32(key)) == v.bucket
}

// end reports whether a key is the first behind the bucket.
func (v *viewServer) end(key []byte) bool {
	return bytes.Equal(key, binary.BigEndian.AppendUint32(nil, uint32(v.bucket)+1))
}

func (v *viewServer) invalid(format string, args ...any) error {
	return &shard.Error{Code: shard.InvalidArguments, Bucket: v.bucket, Reason: fmt.Sprintf(format, args...)}
}
