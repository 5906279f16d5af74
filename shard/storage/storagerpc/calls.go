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

// readStorage is a storage whose replicas answer reads too.
type readStorage interface {
	ReadAny(ctx context.Context, bucket shard.BucketID, fn string, args []byte) ([]byte, error)
}

// read runs a read function as a call of kind wants it.
func read(ctx context.Context, s Storage, kind v1.StorageCallKind, bucket shard.BucketID, fn string, args []byte) ([]byte, error) {
	if kind == v1.StorageCallKind_STORAGE_CALL_KIND_READ_ANY {
		if r, ok := s.(readStorage); ok {
			return r.ReadAny(ctx, bucket, fn, args)
		}
	}
	return s.Read(ctx, bucket, fn, args)
}

// flight is a call on a server, from its arrival to the sending of its result.
type flight struct {
	st     *callStream
	call   *v1.StorageCall
	until  time.Time // of a read: when its caller has gone; zero for never
	bytes  int64     // that it takes of the stream's account
	result v1.StorageResult
	done   func([]byte, error) // f.finish, made once
}

var flights = sync.Pool{New: func() any {
	f := new(flight)
	f.done = f.finish
	return f
}}

// callStream is one stream of Calls on a server. One goroutine receives, that of the handler
// sends, and a bounded number runs reads.
type callStream struct {
	s       *Server
	storage Storage // as the client knows it
	stream  grpc.BidiStreamingServer[v1.CallsRequest, v1.CallsResponse]
	ctx     context.Context
	wake    chan struct{} // something for the sender

	mu      sync.Mutex
	room    sync.Cond // fewer calls or bytes are in flight, or it is over
	calls   int       // in flight: received, and the result not handed to gRPC
	bytes   int64
	ready   []*flight // have their results
	spare   []*flight
	reads   []*flight // wait for a reader
	readers int
	cancels map[uint64]context.CancelFunc // of the reads that run
	closing bool                          // no more calls are taken
	workers sync.WaitGroup                // readers and the receiver
}

// Calls implements StorageService.
func (s *Server) Calls(stream grpc.BidiStreamingServer[v1.CallsRequest, v1.CallsResponse]) error {
	ctx, end, err := s.begin(stream.Context())
	if err != nil {
		return err
	}
	defer end()
	storage, leave, err := s.join(ctx)
	if err != nil {
		return statusOf(err)
	}
	defer leave()
	// The client learns at once that it is welcome.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	st := &callStream{s: s, storage: storage, stream: stream, ctx: ctx, wake: make(chan struct{}, 1), cancels: map[uint64]context.CancelFunc{}}
	st.room.L = &st.mu
	stop := context.AfterFunc(ctx, func() {
		st.mu.Lock()
		st.closing = true
		st.room.Broadcast()
		st.mu.Unlock()
	})
	defer stop()
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		st.receive()
	}()
	err = st.send()
	st.shut()
	st.workers.Wait()
	return err
}

// shut refuses calls that come after the sender has ended.
func (st *callStream) shut() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closing = true
	for _, cancel := range st.cancels {
		cancel()
	}
	st.reads = nil
	st.room.Broadcast()
}

// receive takes batches until the stream ends.
func (st *callStream) receive() {
	for {
		req, err := st.stream.Recv()
		if err != nil {
			st.mu.Lock()
			st.closing = true
			st.mu.Unlock()
			st.signal()
			return
		}
		now := time.Now()
		for _, call := range req.GetCalls() {
			if !st.take(call, now) {
				return
			}
		}
		if len(req.GetCancel()) > 0 {
			st.mu.Lock()
			for _, id := range req.GetCancel() {
				if cancel := st.cancels[id]; cancel != nil {
					cancel()
				}
			}
			st.mu.Unlock()
		}
	}
}

// take starts one call, when there is room. It reports whether more calls are taken.
func (st *callStream) take(call *v1.StorageCall, now time.Time) bool {
	f, _ := flights.Get().(*flight)
	f.st, f.call = st, call
	f.result.Id = call.GetId()
	f.bytes = int64(len(call.GetArgs())) + callBytes
	f.until = time.Time{}
	st.mu.Lock()
	for !st.closing && st.calls > 0 && (st.calls >= st.s.opts.MaxCalls || st.bytes+f.bytes > st.s.opts.MaxBytes) {
		st.room.Wait()
	}
	if st.closing {
		st.mu.Unlock()
		return false
	}
	st.calls++
	st.bytes += f.bytes
	kind := call.GetKind()
	if kind == v1.StorageCallKind_STORAGE_CALL_KIND_READ || kind == v1.StorageCallKind_STORAGE_CALL_KIND_READ_ANY {
		if ms := call.GetTimeoutMs(); ms > 0 {
			f.until = now.Add(time.Duration(ms) * time.Millisecond)
		}
		st.reads = append(st.reads, f)
		if st.readers < st.s.opts.Readers {
			st.readers++
			st.workers.Add(1)
			go st.reader()
		}
		st.mu.Unlock()
		return true
	}
	st.mu.Unlock()
	if kind != v1.StorageCallKind_STORAGE_CALL_KIND_WRITE {
		f.finish(nil, &shard.Error{Code: shard.InvalidArguments, Bucket: shard.BucketID(call.GetBucket()), Reason: fmt.Sprintf("%v is not a kind of call", kind)})
		return true
	}
	st.storage.WriteAsync(shard.BucketID(call.GetBucket()), call.GetFunction(), call.GetArgs(), f.done)
	return true
}

// reader runs reads until there are none.
func (st *callStream) reader() {
	defer st.workers.Done()
	for {
		st.mu.Lock()
		if len(st.reads) == 0 {
			st.readers--
			st.mu.Unlock()
			return
		}
		f := st.reads[0]
		st.reads = st.reads[1:]
		if len(st.reads) == 0 {
			st.reads = nil
		}
		ctx, cancel := st.ctx, context.CancelFunc(nil)
		if !f.until.IsZero() {
			ctx, cancel = context.WithDeadline(ctx, f.until)
		} else {
			ctx, cancel = context.WithCancel(ctx)
		}
		id := f.call.GetId()
		st.cancels[id] = cancel
		st.mu.Unlock()
		result, err := []byte(nil), ctx.Err()
		if err == nil {
			result, err = read(ctx, st.storage, f.call.GetKind(), shard.BucketID(f.call.GetBucket()), f.call.GetFunction(), f.call.GetArgs())
		}
		cancel()
		st.mu.Lock()
		delete(st.cancels, id)
		st.mu.Unlock()
		f.finish(result, err)
	}
}

// finish has the outcome of a call. It is the engine that calls it for a write.
func (f *flight) finish(result []byte, err error) {
	if len(result) > MaxArgs {
		err = &shard.Error{Code: shard.FunctionFailed, Bucket: shard.BucketID(f.call.GetBucket()),
			Reason: fmt.Sprintf("%s has a result of %d bytes, the limit is %d; if it writes, it has taken effect", f.call.GetFunction(), len(result), MaxArgs)}
	}
	if err != nil {
		result = nil
	}
	f.result.Result, f.result.Error = result, EncodeError(err)
	st := f.st
	f.call = nil // the arguments are not needed any more
	st.mu.Lock()
	st.bytes += int64(len(result))
	f.bytes += int64(len(result))
	st.ready = append(st.ready, f)
	st.mu.Unlock()
	st.signal()
}

func (st *callStream) signal() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// send sends results until the stream is over: the client has ended it or is gone, or the
// server stops and has answered everything.
func (st *callStream) send() error {
	var resp v1.CallsResponse
	drained := st.s.drained
	for {
		st.mu.Lock()
		batch := st.ready
		st.ready, st.spare = st.spare[:0], nil
		over := st.closing && st.calls == 0
		st.mu.Unlock()
		if len(batch) == 0 {
			if over {
				if drained == nil {
					return statusOf(st.s.errStopping())
				}
				return nil // the client has ended it
			}
			select {
			case <-st.wake:
			case <-st.ctx.Done():
				return statusOf(st.ctx.Err())
			case <-drained:
				drained = nil
				st.mu.Lock()
				st.closing = true
				st.room.Broadcast()
				st.mu.Unlock()
			}
			continue
		}
		for rest := batch; len(rest) > 0; {
			n, size := 0, 0
			for n < len(rest) && n < batchCalls && (n == 0 || size+int(rest[n].bytes) <= batchBytes) {
				size += int(rest[n].bytes)
				resp.Results = append(resp.Results, &rest[n].result)
				n++
			}
			if err := st.stream.Send(&resp); err != nil {
				return err
			}
			resp.Results = resp.Results[:0]
			st.release(rest[:n])
			rest = rest[n:]
		}
		clear(batch)
		st.mu.Lock()
		st.spare = batch[:0]
		st.mu.Unlock()
	}
}

// release takes calls whose results are sent out of the accounts.
func (st *callStream) release(sent []*flight) {
	var bytes int64
	for _, f := range sent {
		bytes += f.bytes
		f.result.Result, f.result.Error = nil, nil
		f.st = nil
		flights.Put(f)
	}
	st.mu.Lock()
	st.calls -= len(sent)
	st.bytes -= bytes
	st.room.Broadcast()
	st.mu.Unlock()
}
