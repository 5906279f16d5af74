package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	gstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ClientOptions configure a Client.
type ClientOptions struct {
	// Dial connects to the server. Required.
	Dial func(context.Context) (net.Conn, error)
	// Codec writes requests and reads responses. Required.
	Codec encoding.CodecV2
	// MaxMessage is the largest message in bytes, either way. Required.
	MaxMessage int
	// DialTimeout bounds connecting. Default 5 s.
	DialTimeout time.Duration
}

// Client makes unary calls over one connection, which it makes when it is needed and
// again when it was lost. It implements grpc.ClientConnInterface. It is safe for
// concurrent use.
type Client struct {
	opts ClientOptions
	live atomic.Pointer[clientConn] // the connection that takes calls, or nil

	mu      sync.Mutex
	dialing chan struct{} // closed when the dial under way is over
	failed  error         // why the last dial failed
	conns   map[*clientConn]struct{}
	closed  bool
	wg      sync.WaitGroup
}

// ErrNotSpoken says that whoever answers at the server's address does not know this
// protocol. Calls go over gRPC then.
var ErrNotSpoken = errors.New("link: the server does not speak this protocol")

// ErrCannotConnect says that nobody answers at the server's address. The error is an
// Unavailable status as well.
var ErrCannotConnect = errors.New("link: cannot connect")

type connectError struct{ cause error }

func (e *connectError) Error() string               { return ErrCannotConnect.Error() + ": " + e.cause.Error() }
func (e *connectError) Unwrap() error               { return e.cause }
func (e *connectError) Is(target error) bool        { return target == ErrCannotConnect }
func (e *connectError) GRPCStatus() *gstatus.Status { return gstatus.New(codes.Unavailable, e.Error()) }

// NewClient makes a client. It does not connect yet.
func NewClient(o ClientOptions) *Client {
	if o.DialTimeout <= 0 {
		o.DialTimeout = 5 * time.Second
	}
	return &Client{opts: o, conns: map[*clientConn]struct{}{}}
}

// Close ends the connection. Calls in progress fail.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	conns := make([]*clientConn, 0, len(c.conns))
	for x := range c.conns {
		conns = append(conns, x)
	}
	c.mu.Unlock()
	for _, x := range conns {
		x.Close()
	}
	c.wg.Wait()
	return nil
}

var errClosed = gstatus.Error(codes.Canceled, "link: the client was closed")

// connection returns a connection that takes calls.
func (c *Client) connection(ctx context.Context) (*clientConn, error) {
	for {
		if x := c.live.Load(); x != nil {
			return x, nil
		}
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errClosed
		}
		if x := c.live.Load(); x != nil {
			c.mu.Unlock()
			return x, nil
		}
		if c.dialing == nil {
			c.dialing = make(chan struct{})
			c.wg.Add(1)
			go c.dial()
		}
		wait := c.dialing
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, gstatus.FromContextError(ctx.Err()).Err()
		}
		c.mu.Lock()
		err := c.failed
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// dial connects on behalf of everyone who waits.
func (c *Client) dial() {
	defer c.wg.Done()
	ctx, cancel := context.WithTimeout(context.Background(), c.opts.DialTimeout)
	defer cancel()
	x, err := c.connect(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
	if err == nil && c.closed {
		x.Close()
		c.failed = errClosed
	} else if err == nil {
		c.conns[x] = struct{}{}
		c.live.Store(x)
		c.wg.Add(2)
		go x.read()
		go x.watch()
	}
	close(c.dialing)
	c.dialing = nil
}

func (c *Client) connect(ctx context.Context) (*clientConn, error) {
	nc, err := c.opts.Dial(ctx)
	if err != nil {
		return nil, &connectError{err}
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	x := &clientConn{conn: newConn(nc, c.opts.MaxMessage), c: c, calls: map[uint64]*pendingCall{}, ended: make(chan struct{})}
	answer := make([]byte, len(Preface))
	_, err = io.WriteString(nc, Preface)
	if err == nil {
		_, err = io.ReadFull(x.in, answer)
	}
	if !stop() {
		return nil, gstatus.Error(codes.Unavailable, "link: the server did not answer in time")
	}
	if err != nil || string(answer) != Preface {
		nc.Close()
		return nil, ErrNotSpoken
	}
	return x, nil
}

// clientConn is one connection of a client.
type clientConn struct {
	*conn
	c     *Client
	ended chan struct{}

	cmu   sync.Mutex
	next  uint64
	calls map[uint64]*pendingCall
	err   error // why it ended
}

// pendingCall is a call that waits for its answer. done receives once.
type pendingCall struct {
	reply any
	done  chan error
}

// Invoke implements grpc.ClientConnInterface. Options are not looked at.
func (c *Client) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	if len(method) > maxMethod {
		return gstatus.Errorf(codes.Internal, "link: the method's name has %d bytes", len(method))
	}
	if err := ctx.Err(); err != nil {
		return gstatus.FromContextError(err).Err()
	}
	x, err := c.connection(ctx)
	if err != nil {
		return err
	}
	data, err := c.opts.Codec.Marshal(args)
	if err != nil {
		return gstatus.Errorf(codes.Internal, "link: the request cannot be encoded: %v", err)
	}
	if n := data.Len(); n > c.opts.MaxMessage {
		data.Free()
		return gstatus.Errorf(codes.ResourceExhausted, "link: the request has %d bytes; the limit is %d", n, c.opts.MaxMessage)
	}
	var timeout time.Duration
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(deadline), time.Millisecond)
	}
	p := &pendingCall{reply: reply, done: make(chan error, 1)}
	id, err := x.begin(p)
	if err != nil {
		data.Free()
		return err
	}
	var headSpace [requestHead + maxMethod]byte
	var partSpace [4][]byte
	parts := append(partSpace[:0], appendRequestHead(headSpace[:0], timeout, method))
	for _, b := range data {
		parts = append(parts, b.ReadOnlyData())
	}
	// A failure to send ends the connection, which answers all its calls.
	_ = x.send(kindRequest, id, parts...)
	data.Free()
	select {
	case err = <-p.done:
	case <-ctx.Done():
		if x.take(id) != nil {
			_ = x.send(kindCancel, id)
			err = gstatus.FromContextError(ctx.Err()).Err()
		} else {
			err = <-p.done // it is being answered
		}
	}
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (c *Client) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, gstatus.Error(codes.Unimplemented, "link: no streams here")
}

func (x *clientConn) begin(p *pendingCall) (uint64, error) {
	x.cmu.Lock()
	defer x.cmu.Unlock()
	if x.err != nil {
		return 0, x.err
	}
	x.next++
	x.calls[x.next] = p
	return x.next, nil
}

// take ends the wait of a call; nil if its answer is on its way to the caller, or
// nobody waits for it.
func (x *clientConn) take(id uint64) *pendingCall {
	x.cmu.Lock()
	defer x.cmu.Unlock()
	p := x.calls[id]
	delete(x.calls, id)
	return p
}

// read hands answers to their callers.
func (x *clientConn) read() {
	defer x.c.wg.Done()
	for {
		f, err := x.readFrame()
		if err != nil {
			x.end(err)
			return
		}
		switch f.kind {
		case kindResponse:
			if p := x.take(f.call); p != nil {
				err := x.c.opts.Codec.Unmarshal(mem.BufferSlice{f.body}, p.reply)
				if err != nil {
					err = gstatus.Errorf(codes.Internal, "link: the answer cannot be read: %v", err)
				}
				p.done <- err
			}
		case kindError:
			if p := x.take(f.call); p != nil {
				p.done <- decodeError(f.body.ReadOnlyData())
			}
		case kindPing:
			_ = x.send(kindPong, f.call)
		case kindGoaway:
			x.drain()
		case kindPong:
		default: // of a later version
		}
		f.body.Free()
	}
}

func decodeError(b []byte) error {
	var s status.Status
	if err := proto.Unmarshal(b, &s); err != nil {
		return gstatus.Errorf(codes.Internal, "link: the error cannot be read: %v", err)
	}
	if codes.Code(s.GetCode()) == codes.OK {
		return gstatus.Error(codes.Internal, "link: an error without a code")
	}
	return gstatus.FromProto(&s).Err()
}

// drain lets no more calls begin here.
func (x *clientConn) drain() {
	x.c.live.CompareAndSwap(x, nil)
}

// end answers all calls after the connection was lost.
func (x *clientConn) end(err error) {
	x.Close()
	x.drain()
	x.c.mu.Lock()
	delete(x.c.conns, x)
	closed := x.c.closed
	x.c.mu.Unlock()
	lost := errClosed
	if !closed {
		if err == io.EOF {
			err = errors.New("the server closed it")
		}
		lost = gstatus.Error(codes.Unavailable, fmt.Sprintf("link: the connection was lost: %v", err))
	}
	x.cmu.Lock()
	x.err = lost
	calls := x.calls
	x.calls = map[uint64]*pendingCall{}
	x.cmu.Unlock()
	for _, p := range calls {
		p.done <- lost
	}
	close(x.ended)
}

// watch pings a silent server, and gives up one that does not answer.
func (x *clientConn) watch() {
	defer x.c.wg.Done()
	t := time.NewTicker(pingAfter / 2)
	defer t.Stop()
	for {
		select {
		case <-x.ended:
			return
		case now := <-t.C:
			if now.UnixNano()-x.lastRead.Load() > int64(deadAfter) {
				x.Close()
				return
			}
			if now.UnixNano()-x.lastWrite.Load() > int64(pingAfter) || now.UnixNano()-x.lastRead.Load() > int64(pingAfter) {
				_ = x.send(kindPing, 0)
			}
		}
	}
}
