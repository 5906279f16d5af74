package storagerpc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

const (
	// mapCalls is how many calls of one MapCall are in flight at once.
	mapCalls = 512
	// maxRef is the longest time that a reference holds.
	maxRef = 10 * time.Minute
)

// Ref implements StorageService. A storage that cannot move buckets needs no references.
func (s *Server) Ref(ctx context.Context, req *v1.RefRequest) (*v1.RefResponse, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	timeout := req.GetTimeout().AsDuration()
	if req.GetId() == "" || timeout <= 0 || timeout > maxRef {
		return nil, statusOf(&shard.Error{Code: shard.StorageRefAdd, ReplicaSet: s.storage.ReplicaSet(), Reason: fmt.Sprintf("an id and a timeout of at most %v are needed", maxRef)})
	}
	seen, err := s.seen(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	asked, err := bucketIDs(seen, req.GetBuckets())
	if err != nil {
		return nil, statusOf(err)
	}
	if r, ok := s.storage.(Referrer); ok {
		if err := r.Ref(ctx, req.GetId(), time.Now().Add(timeout)); err != nil {
			return nil, statusOf(err)
		}
	} else if master, _ := s.role(); master != s.opts.Member {
		return nil, statusOf(&shard.Error{Code: shard.NonMaster, ReplicaSet: s.storage.ReplicaSet(), Master: master})
	}
	resp := &v1.RefResponse{}
	add := func(b shard.BucketID) {
		state, _ := seen.BucketState(b)
		if state.CanRead() {
			resp.Buckets = AppendRange(resp.GetBuckets(), b, state)
		}
	}
	for _, b := range asked {
		add(b)
	}
	if len(asked) == 0 {
		for b := shard.BucketID(1); uint32(b) <= seen.BucketCount(); b++ {
			add(b)
		}
	}
	return resp, nil
}

// AppendRange appends a bucket to ranges: to the last one, if it is its neighbour in the same
// state.
func AppendRange(ranges []*v1.BucketRange, b shard.BucketID, state shard.State) []*v1.BucketRange {
	if k := len(ranges); k > 0 {
		if last := ranges[k-1]; last.GetLast() == uint32(b)-1 && last.GetState() == uint32(state) {
			last.Last++
			return ranges
		}
	}
	return append(ranges, &v1.BucketRange{First: uint32(b), Last: uint32(b), State: uint32(state)})
}

// Unref implements StorageService.
func (s *Server) Unref(ctx context.Context, req *v1.UnrefRequest) (*v1.UnrefResponse, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if r, ok := s.storage.(Referrer); ok {
		if err := r.Unref(ctx, req.GetId()); err != nil {
			return nil, statusOf(err)
		}
	}
	return &v1.UnrefResponse{}, nil
}

// MapCall implements StorageService.
func (s *Server) MapCall(req *v1.MapCallRequest, stream grpc.ServerStreamingServer[v1.MapCallResponse]) error {
	ctx, end, err := s.begin(stream.Context())
	if err != nil {
		return err
	}
	defer end()
	seen, err := s.seen(ctx)
	if err != nil {
		return statusOf(err)
	}
	return statusOf(s.runMapCall(ctx, seen, req, stream.Send))
}

// RunMapCall is MapCall in this process. send is called by one goroutine at a time.
func (s *Server) RunMapCall(ctx context.Context, req *v1.MapCallRequest, send func(*v1.MapCallResponse) error) error {
	return s.runMapCall(ctx, s.storage, req, send)
}

func (s *Server) runMapCall(ctx context.Context, seen Storage, req *v1.MapCallRequest, send func(*v1.MapCallResponse) error) error {
	if req.GetRef() != "" {
		if r, ok := s.storage.(Referrer); ok {
			if err := r.CheckRef(req.GetRef()); err != nil {
				return err
			}
		}
	}
	isRead := req.GetKind() == v1.StorageCallKind_STORAGE_CALL_KIND_READ || req.GetKind() == v1.StorageCallKind_STORAGE_CALL_KIND_READ_ANY
	if !isRead && req.GetKind() != v1.StorageCallKind_STORAGE_CALL_KIND_WRITE {
		return &shard.Error{Code: shard.InvalidArguments, Reason: fmt.Sprintf("%v is not a kind of call", req.GetKind())}
	}
	var buckets []shard.BucketID
	for _, g := range req.GetBuckets() {
		if g.GetFirst() < 1 || g.GetLast() > seen.BucketCount() || g.GetFirst() > g.GetLast() {
			return &shard.Error{Code: shard.InvalidArguments, Reason: fmt.Sprintf("there are no buckets %d to %d", g.GetFirst(), g.GetLast())}
		}
		for b := g.GetFirst(); b <= g.GetLast(); b++ {
			buckets = append(buckets, shard.BucketID(b))
		}
		if len(buckets) > int(seen.BucketCount()) {
			return &shard.Error{Code: shard.InvalidArguments, Reason: "buckets are named more than once"}
		}
	}
	return s.runMap(ctx, seen, req, buckets, isRead, send)
}

// runMap calls the function on each bucket, a bounded number at once, and sends the results as
// they come. What is in flight has room in results, so nobody waits for a slow send but those
// that have not begun.
func (s *Server) runMap(ctx context.Context, seen Storage, req *v1.MapCallRequest, buckets []shard.BucketID, isRead bool, send func(*v1.MapCallResponse) error) error {
	width := mapCalls
	if isRead {
		width = s.opts.Readers
	}
	results := make(chan *v1.StorageResult, width)
	slots := make(chan struct{}, width)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		for _, b := range buckets {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			done := func(result []byte, err error) {
				results <- &v1.StorageResult{Id: uint64(b), Result: result, Error: EncodeError(err)}
			}
			if isRead {
				running.Go(func() { done(read(ctx, seen, req.GetKind(), b, req.GetFunction(), req.GetArgs())) })
			} else {
				seen.WriteAsync(b, req.GetFunction(), req.GetArgs(), done)
			}
		}
	})
	for left := len(buckets); left > 0; {
		resp := &v1.MapCallResponse{}
		size := 0
		select {
		case r := <-results:
			resp.Results = append(resp.Results, r)
			size += len(r.GetResult())
		case <-ctx.Done():
			return ctx.Err()
		}
		for more := true; more && size < batchBytes; {
			select {
			case r := <-results:
				resp.Results = append(resp.Results, r)
				size += len(r.GetResult())
			default:
				more = false
			}
		}
		if err := send(resp); err != nil {
			return err
		}
		for range resp.GetResults() {
			<-slots
		}
		left -= len(resp.GetResults())
	}
	return nil
}
