package storagerpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// outcome of a call that is waited for.
type outcome struct {
	result []byte
	err    error
}

// pending is a call on its way.
type pending struct {
	call v1.StorageCall
	sent bool
	done func([]byte, error) // nil when somebody waits
	wait chan outcome        // has room for one
}

var pendings = sync.Pool{New: func() any { return &pending{wait: make(chan outcome, 1)} }}

// callsConn is one stream of Calls.
type callsConn struct {
	c      *Client
	ctx    context.Context
	cancel context.CancelCauseFunc
	wake   chan struct{}

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*pending // in flight
	bytes int64               // of their arguments
	queue []*pending          // to be sent, in order
	spare []*pending
	gone  []uint64      // reads whose callers have left
	ended error         // why no more calls are taken
	rest  chan struct{} // closed when no call is in flight; nil when nobody asks
}

var errClientClosed = errors.New("the client was closed")

// stream returns the stream that takes calls; it may still be connecting.
func (c *Client) stream() (*callsConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &ConnError{Address: c.address, Err: errClientClosed}
	}
	if c.calls == nil {
		x := &callsConn{c: c, wake: make(chan struct{}, 1), calls: map[uint64]*pending{}}
		x.ctx, x.cancel = context.WithCancelCause(c.ctx)
		c.calls = x
		c.wg.Add(1)
		go x.run()
	}
	return c.calls, nil
}

// Call runs a function on the member and waits for its result. When ctx ends before that,
// a write may still take effect, and args must stay as they are; the error then wraps that of
// ctx, and is a *ConnError of a write, or of a read that was not sent.
func (c *Client) Call(ctx context.Context, kind v1.StorageCallKind, bucket shard.BucketID, fn string, args []byte) (result []byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, _ := pendings.Get().(*pending)
	p.call.TimeoutMs = 0
	if kind != v1.StorageCallKind_STORAGE_CALL_KIND_WRITE {
		if deadline, ok := ctx.Deadline(); ok {
			p.call.TimeoutMs = uint32(min(max(time.Until(deadline).Milliseconds()+1, 1), 1<<31))
		}
	}
	p.call.Kind, p.call.Bucket, p.call.Function, p.call.Args = kind, uint32(bucket), fn, args
	p.sent, p.done = false, nil
	x, err := c.submit(p)
	if err != nil {
		pendings.Put(p)
		return nil, err
	}
	select {
	case o := <-p.wait:
		p.call.Args = nil
		pendings.Put(p)
		return o.result, o.err
	case <-ctx.Done():
		return x.leave(ctx, p)
	}
}

// WriteAsync runs a write function and calls done with its outcome, on a goroutine that
// reads results, so it must be quick; never inside WriteAsync. Writes of one goroutine are
// applied in the order of its calls as long as the stream lives. args belongs to the client
// until done ran.
func (c *Client) WriteAsync(bucket shard.BucketID, fn string, args []byte, done func([]byte, error)) {
	p, _ := pendings.Get().(*pending)
	p.call.Kind, p.call.Bucket, p.call.Function, p.call.Args = v1.StorageCallKind_STORAGE_CALL_KIND_WRITE, uint32(bucket), fn, args
	p.call.TimeoutMs, p.sent, p.done = 0, false, done
	if _, err := c.submit(p); err != nil {
		pendings.Put(p)
		go done(nil, err)
	}
}

// submit gives a call to the stream. An error means that it was not taken.
func (c *Client) submit(p *pending) (*callsConn, error) {
	if n := len(p.call.GetArgs()); n > MaxArgs {
		return nil, &shard.Error{Code: shard.ArgumentsTooLarge, Bucket: shard.BucketID(p.call.GetBucket()), Reason: fmt.Sprintf("%d bytes, the limit is %d", n, MaxArgs)}
	}
	for {
		x, err := c.stream()
		if err != nil {
			return nil, err
		}
		taken, err := x.submit(p)
		if taken || err != nil {
			return x, err
		}
	}
}

// submit queues a call; taken is false when the stream has ended and another must be used.
func (x *callsConn) submit(p *pending) (taken bool, err error) {
	n := int64(len(p.call.GetArgs()))
	x.mu.Lock()
	if x.ended != nil {
		x.mu.Unlock()
		return false, nil
	}
	if o := &x.c.opts; len(x.calls) >= o.MaxCalls || x.bytes+n > o.MaxBytes && x.bytes > 0 {
		err := &shard.Error{Code: shard.Overloaded, ReplicaSet: o.ReplicaSet,
			Reason: fmt.Sprintf("%d calls with %d bytes are on their way to %s", len(x.calls), x.bytes, x.c.address)}
		x.mu.Unlock()
		return false, err
	}
	x.next++
	p.call.Id = x.next
	x.calls[x.next] = p
	x.bytes += n
	x.queue = append(x.queue, p)
	x.mu.Unlock()
	select {
	case x.wake <- struct{}{}:
	default:
	}
	return true, nil
}

// idle returns a channel that is closed when no call is in flight.
func (x *callsConn) idle() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rest == nil {
		x.rest = make(chan struct{})
	}
	rest := x.rest
	x.restLocked()
	return rest
}

// restLocked tells who waits for it that no call is in flight. x.mu must be held.
func (x *callsConn) restLocked() {
	if x.rest != nil && len(x.calls) == 0 {
		close(x.rest)
		x.rest = nil
	}
}

// leave gives a call up whose caller's context has ended.
func (x *callsConn) leave(ctx context.Context, p *pending) ([]byte, error) {
	x.mu.Lock()
	if x.calls[p.call.GetId()] != p {
		x.mu.Unlock()
		o := <-p.wait // it is being answered
		return o.result, o.err
	}
	sent, write := p.sent, p.call.GetKind() == v1.StorageCallKind_STORAGE_CALL_KIND_WRITE
	if sent {
		// The answer will find nobody.
		p.done = func([]byte, error) {}
		if !write {
			x.gone = append(x.gone, p.call.GetId())
		}
	} else {
		delete(x.calls, p.call.GetId())
		x.bytes -= int64(len(p.call.GetArgs()))
		for i, q := range x.queue {
			if q == p {
				x.queue = append(x.queue[:i], x.queue[i+1:]...)
				break
			}
		}
		x.restLocked()
	}
	x.mu.Unlock()
	if sent {
		select {
		case x.wake <- struct{}{}:
		default:
		}
		if write {
			return nil, &ConnError{Address: x.c.address, Sent: true, Err: ctx.Err()}
		}
		return nil, fmt.Errorf("%s has not answered yet: %w", x.c.address, ctx.Err())
	}
	return nil, &ConnError{Address: x.c.address, Err: ctx.Err()}
}

// run opens the stream and sends until it ends.
func (x *callsConn) run() {
	defer x.c.wg.Done()
	slow := fmt.Errorf("no connection within %v", x.c.opts.ConnectTimeout)
	connecting := time.AfterFunc(x.c.opts.ConnectTimeout, func() { x.cancel(slow) })
	stream, err := x.c.service().Calls(x.c.with(x.ctx))
	if err == nil {
		// The server welcomes the stream with a header. Without one, Recv has the reason.
		if head, herr := stream.Header(); herr != nil || head == nil {
			_, err = stream.Recv()
		}
	}
	late := !connecting.Stop()
	if late {
		x.cancel(slow)
	}
	if late || err != nil {
		x.end(context.Cause(x.ctx), err)
		return
	}
	sending := make(chan struct{})
	x.c.wg.Add(1)
	go x.receive(stream, sending)
	defer close(sending)
	for {
		select {
		case <-x.wake:
		case <-x.ctx.Done():
			return // receive tells
		}
		if err := x.send(stream); err != nil {
			return // receive has the status
		}
	}
}

// send sends what is queued.
func (x *callsConn) send(stream grpc.BidiStreamingClient[v1.CallsRequest, v1.CallsResponse]) error {
	var req v1.CallsRequest
	for {
		x.mu.Lock()
		if len(x.queue) == 0 && len(x.gone) == 0 {
			x.mu.Unlock()
			return nil
		}
		n, size := 0, 0
		for n < len(x.queue) && n < batchCalls {
			s := len(x.queue[n].call.GetArgs()) + callBytes
			if n > 0 && size+s > batchBytes {
				break
			}
			size += s
			x.queue[n].sent = true
			req.Calls = append(req.Calls, &x.queue[n].call)
			n++
		}
		// The rest goes into the other slice, so that none is copied twice in the usual case.
		rest := append(x.spare[:0], x.queue[n:]...)
		clear(x.queue)
		x.queue, x.spare = rest, x.queue[:0]
		req.Cancel = append(req.Cancel[:0], x.gone...)
		x.gone = x.gone[:0]
		x.mu.Unlock()
		if err := stream.Send(&req); err != nil {
			return err
		}
		req.Calls = req.Calls[:0]
	}
}

// receive hands results to their callers until the stream ends.
func (x *callsConn) receive(stream grpc.BidiStreamingClient[v1.CallsRequest, v1.CallsResponse], sending <-chan struct{}) {
	defer x.c.wg.Done()
	for {
		resp, err := stream.Recv()
		if err != nil {
			cause := context.Cause(x.ctx)
			x.cancel(err)
			<-sending // what it is sending must not be answered
			x.end(cause, err)
			return
		}
		for _, r := range resp.GetResults() {
			x.mu.Lock()
			p := x.calls[r.GetId()]
			delete(x.calls, r.GetId())
			if p != nil {
				x.bytes -= int64(len(p.call.GetArgs()))
			}
			x.restLocked()
			x.mu.Unlock()
			if p != nil {
				p.answer(r.GetResult(), DecodeError(r.GetError()))
			}
		}
	}
}

func (p *pending) answer(result []byte, err error) {
	if done := p.done; done != nil {
		p.done, p.call.Args = nil, nil
		done(result, err)
		pendings.Put(p)
		return
	}
	p.wait <- outcome{result, err}
}

// end answers all calls after the stream has ended with err. cause is why this side ended
// it, nil when it did not.
func (x *callsConn) end(cause, err error) {
	x.c.mu.Lock()
	if x.c.calls == x {
		x.c.calls = nil
	}
	x.c.mu.Unlock()
	// A server that refused the stream, or has stopped in peace, says so with an error of the
	// store, and has not taken what it did not answer.
	refused := false
	if cause != nil {
		err = cause
	} else if errors.Is(err, io.EOF) {
		err = errors.New("the member has ended the stream")
	} else {
		err = fromStatus(err)
		_, refused = errors.AsType[*shard.Error](err)
	}
	x.cancel(err)
	if c, ok := errors.AsType[*ConnError](err); ok {
		err = c.Err
	}
	x.mu.Lock()
	x.ended = err
	calls := x.calls
	x.calls, x.queue = nil, nil
	x.restLocked()
	x.mu.Unlock()
	for _, p := range calls {
		if refused {
			p.answer(nil, err)
		} else {
			p.answer(nil, &ConnError{Address: x.c.address, Sent: p.sent, Err: err})
		}
	}
}
