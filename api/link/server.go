package link

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ServerOptions configure a Server.
type ServerOptions struct {
	// Codec reads requests and writes responses. Required.
	Codec encoding.CodecV2
	// MaxMessage is the largest request in bytes; a larger one ends the connection.
	// Required.
	MaxMessage int
	// Unknown makes the error for a method that no service has. Optional.
	Unknown func(method string) error
	// Logger takes what goes wrong on connections, at debug level, and panics.
	// Default: nothing.
	Logger *slog.Logger
}

// Server serves unary methods of gRPC services. Register services before Serve. It
// is safe for concurrent use.
type Server struct {
	opts    ServerOptions
	methods map[string]method

	mu       sync.Mutex
	conns    map[*serverConn]struct{}
	draining bool
	stopped  bool
	idle     chan struct{} // made by GracefulStop, closed when no call is left
	calls    int
	wg       sync.WaitGroup // connections
}

type method struct {
	name    string
	impl    any
	handler grpc.MethodHandler
}

// NewServer makes a server.
func NewServer(o ServerOptions) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Unknown == nil {
		o.Unknown = func(m string) error { return status.Errorf(codes.Unimplemented, "unknown method %s", m) }
	}
	return &Server{opts: o, methods: map[string]method{}, conns: map[*serverConn]struct{}{}}
}

// RegisterService implements grpc.ServiceRegistrar. Streaming methods are left out.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		name := "/" + desc.ServiceName + "/" + m.MethodName
		s.methods[name] = method{name, impl, m.Handler}
	}
}

// ErrStopped is what Serve returns after a stop.
var ErrStopped = errors.New("link: the server was stopped")

// Serve takes connections from l until it is closed or the server stops.
func (s *Server) Serve(l net.Listener) error {
	for {
		nc, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.draining || s.stopped {
				return ErrStopped
			}
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		c := &serverConn{conn: newConn(nc, s.opts.MaxMessage+requestHead+maxMethod), s: s, ctx: ctx, cancel: cancel, calls: map[uint64]context.CancelFunc{}}
		s.mu.Lock()
		if s.draining || s.stopped {
			s.mu.Unlock()
			cancel()
			nc.Close()
			continue
		}
		s.conns[c] = struct{}{}
		s.wg.Add(1)
		s.mu.Unlock()
		go c.serve()
	}
}

// GracefulStop takes no more connections, tells the clients to begin no more calls,
// and returns when those in progress have ended. A call that a client sent before it
// heard of it is still run.
func (s *Server) GracefulStop() {
	s.mu.Lock()
	s.draining = true
	if s.idle == nil {
		s.idle = make(chan struct{})
		if s.calls == 0 {
			close(s.idle)
		}
	}
	idle := s.idle
	conns := s.list()
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.send(kindGoaway, 0)
	}
	<-idle
	s.Stop()
}

// Stop closes all connections, which cancels the calls in progress, and returns when
// they have ended.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stopped = true
	conns := s.list()
	s.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	s.wg.Wait()
}

func (s *Server) list() []*serverConn {
	conns := make([]*serverConn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

func (s *Server) callBegins() {
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
}

func (s *Server) callEnds() {
	s.mu.Lock()
	s.calls--
	if s.calls == 0 && s.idle != nil {
		select {
		case <-s.idle:
		default:
			close(s.idle)
		}
	}
	s.mu.Unlock()
}

// serverConn is one connection of a server.
type serverConn struct {
	*conn
	s      *Server
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc

	cmu     sync.Mutex
	calls   map[uint64]context.CancelFunc
	running sync.WaitGroup
}

func (c *serverConn) serve() {
	preface := make([]byte, len(Preface))
	if err := c.SetReadDeadline(time.Now().Add(deadAfter)); err != nil {
		c.end(err)
		return
	}
	if _, err := io.ReadFull(c.in, preface); err != nil || string(preface) != Preface {
		c.end(errors.Join(errors.New("link: not the preface"), err))
		return
	}
	if _, err := c.Write(preface); err != nil {
		c.end(err)
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	c.running.Add(1)
	go c.watch()
	c.read()
}

// watch gives the connection up when the client is gone without a word.
func (c *serverConn) watch() {
	defer c.running.Done()
	t := time.NewTicker(deadAfter / 4)
	defer t.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case now := <-t.C:
			if now.UnixNano()-c.lastRead.Load() > int64(deadAfter) {
				c.Close()
				return
			}
		}
	}
}

// read reads frames until a request comes; then another goroutine goes on reading,
// and this one runs the request's handler: it is awake already.
func (c *serverConn) read() {
	for {
		f, err := c.readFrame()
		if err != nil {
			c.end(err)
			return
		}
		switch f.kind {
		case kindRequest:
			timeout, name, message, err := parseRequest(f.body.ReadOnlyData())
			if err != nil {
				f.body.Free()
				c.end(err)
				return
			}
			var ctx context.Context
			var cancel context.CancelFunc
			if timeout > 0 {
				ctx, cancel = context.WithTimeout(c.ctx, timeout)
			} else {
				ctx, cancel = context.WithCancel(c.ctx)
			}
			c.cmu.Lock()
			_, dup := c.calls[f.call]
			c.calls[f.call] = cancel
			c.cmu.Unlock()
			if dup {
				cancel()
				f.body.Free()
				c.end(errBadRequest)
				return
			}
			m, ok := c.s.methods[string(name)]
			if !ok {
				m.name = string(name)
			}
			c.running.Add(1)
			c.s.callBegins()
			go c.read()
			c.handle(ctx, cancel, f, m, message)
			return
		case kindCancel:
			c.cmu.Lock()
			if cancel := c.calls[f.call]; cancel != nil {
				cancel()
			}
			c.cmu.Unlock()
		case kindPing:
			_ = c.send(kindPong, f.call)
		case kindPong:
		default: // of a later version: nothing that must be understood
		}
		f.body.Free()
	}
}

func (c *serverConn) handle(ctx context.Context, cancel context.CancelFunc, f frame, m method, message []byte) {
	defer func() {
		c.cmu.Lock()
		delete(c.calls, f.call)
		c.cmu.Unlock()
		cancel()
		c.s.callEnds()
		c.running.Done()
	}()
	resp, err := c.call(ctx, f, m, message)
	if err == nil {
		var data mem.BufferSlice
		if data, err = c.s.opts.Codec.Marshal(resp); err == nil {
			parts := make([][]byte, 0, 4)
			for _, b := range data {
				parts = append(parts, b.ReadOnlyData())
			}
			_ = c.send(kindResponse, f.call, parts...)
			data.Free()
			return
		}
	}
	b, merr := proto.Marshal(status.Convert(statusOf(err)).Proto())
	if merr != nil {
		b = nil
	}
	_ = c.send(kindError, f.call, b)
}

// statusOf makes a status of a context's error, as gRPC does.
func statusOf(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}

func (c *serverConn) call(ctx context.Context, f frame, m method, message []byte) (resp any, err error) {
	freed := false
	free := func() {
		if !freed {
			freed = true
			f.body.Free()
		}
	}
	defer free()
	if m.handler == nil {
		return nil, c.s.opts.Unknown(m.name)
	}
	defer func() {
		if p := recover(); p != nil {
			c.s.opts.Logger.Error("call panicked", "method", m.name, "panic", p, "stack", string(debug.Stack()))
			resp, err = nil, status.Error(codes.Internal, "the server met a fault")
		}
	}()
	return m.handler(m.impl, ctx, func(v any) error {
		err := c.s.opts.Codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, v)
		free() // a decoded message keeps nothing of the frame
		return err
	}, nil)
}

// end closes the connection after its last frame was read and waits for its calls.
func (c *serverConn) end(err error) {
	c.cancel()
	c.Close()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.s.opts.Logger.Debug("connection ended", "err", err)
	}
	c.running.Wait()
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
	c.s.wg.Done()
}
