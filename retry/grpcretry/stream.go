package grpcretry

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-dev/switchyard/retry"
)

// Stream is the interceptor for streams.
func (c *Client) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, name string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	m := c.method(name)
	now := c.clock()
	s := &stream{
		c: c, m: m, ctx: ctx, call: m.retrier.Begin(now, deadlineOf(ctx, now)), serverStreams: desc.ServerStreams,
		open: func(ctx context.Context) (grpc.ClientStream, error) {
			return open(ctx, desc, cc, name, slices.Clip(opts)...)
		},
	}
	if err := c.admit(now); err != nil {
		s.end(now, retry.NotRetryable)
		return nil, err
	}
	s.committed.Store(m.config.ReplayBytes < 0)
	if err := s.begin(now); err != nil {
		return nil, err
	}
	return s, nil
}

// stream is a stream that is opened again until its caller has received something.
// As with every gRPC stream, one goroutine may send while one receives.
type stream struct {
	c             *Client
	m             *method
	ctx           context.Context
	open          func(context.Context) (grpc.ClientStream, error)
	serverStreams bool

	committed atomic.Bool // it will not be opened again
	ended     atomic.Bool

	// Of the receiving goroutine.
	call    retry.Call
	attempt *retry.Attempt
	avoid   []any

	mu     sync.Mutex
	now    grpc.ClientStream
	sent   []any // what is to be sent again
	bytes  int
	closed bool // CloseSend was called
}

// begin opens the stream, again and again if need be, and sends what was sent
// before. The error is final.
func (s *stream) begin(now time.Duration) error {
	for {
		s.attempt = &retry.Attempt{Number: s.call.Number(), Avoid: s.avoid}
		s.call.Attempt(now)
		next, err := s.open(numbered(s.ctx, s.attempt))
		if err == nil {
			s.replay(next)
			return nil
		}
		if err = s.again(err, nil); err != nil {
			return err
		}
		now = s.c.clock()
	}
}

// replay makes next the current stream. Errors of sending show when receiving.
func (s *stream) replay(next grpc.ClientStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = next
	for _, m := range s.sent {
		if next.SendMsg(m) != nil {
			return
		}
	}
	if s.closed {
		_ = next.CloseSend()
	}
}

// again takes the failure of an attempt. It returns nil when, after the wait, the
// stream should be opened again, else the error for the caller.
func (s *stream) again(err error, trailer metadata.MD) error {
	now := s.c.clock()
	class, wait := s.m.classify(s.ctx, err, trailer, s.attempt, false)
	s.c.answered(now, class)
	if s.committed.Load() && class > retry.NotRetryable {
		class = retry.Failed
	}
	d := s.call.Done(now, class, wait)
	if !d.Again() {
		if s.attempt.Nowhere() {
			s.m.retrier.Observer().Count(retry.CountNoEndpoints)
		}
		s.end(now, class)
		return finish(err, d)
	}
	s.avoid = s.attempt.AvoidToo(s.avoid)
	if err := pause(s.ctx, d.Wait); err != nil {
		class := retry.Failed
		if status.Code(err) == codes.Canceled {
			class = retry.Ignored
		}
		s.end(s.c.clock(), class)
		return err
	}
	return nil
}

// end ends the logical request, once.
func (s *stream) end(now time.Duration, class retry.Class) {
	if s.ended.CompareAndSwap(false, true) {
		s.call.End(now, class)
	}
}

// commit gives up the right to open the stream again.
func (s *stream) commit() {
	if s.committed.CompareAndSwap(false, true) {
		s.mu.Lock()
		s.sent, s.bytes = nil, 0
		s.mu.Unlock()
	}
}

func (s *stream) current() grpc.ClientStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// SendMsg implements grpc.ClientStream.
func (s *stream) SendMsg(m any) error {
	s.mu.Lock()
	if !s.committed.Load() {
		size := 1 << 10 // of a message that cannot be asked
		if p, ok := m.(proto.Message); ok {
			size = proto.Size(p)
		}
		if s.bytes+size > s.m.config.ReplayBytes {
			s.committed.Store(true)
			s.sent, s.bytes = nil, 0
		} else {
			s.sent = append(s.sent, m)
			s.bytes += size
		}
	}
	now := s.now
	s.mu.Unlock()
	// Not under the lock: it may wait until the other side reads.
	err := now.SendMsg(m)
	if err != nil && errors.Is(err, io.EOF) && !s.committed.Load() {
		return nil // the stream broke; it is opened again when the caller receives
	}
	return err
}

// CloseSend implements grpc.ClientStream.
func (s *stream) CloseSend() error {
	s.mu.Lock()
	s.closed = true
	now := s.now
	s.mu.Unlock()
	return now.CloseSend()
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	for {
		now := s.current()
		err := now.RecvMsg(m)
		switch {
		case err == nil:
			s.commit()
			if !s.serverStreams {
				s.success()
			}
			return nil
		case errors.Is(err, io.EOF):
			s.commit()
			s.success()
			return err
		}
		if s.ended.Load() {
			return err
		}
		if err := s.again(err, now.Trailer()); err != nil {
			return err
		}
		if err := s.begin(s.c.clock()); err != nil {
			return err
		}
	}
}

func (s *stream) success() {
	if s.ended.Load() {
		return
	}
	now := s.c.clock()
	class, _ := s.m.classify(s.ctx, nil, nil, s.attempt, false)
	s.c.answered(now, class)
	s.call.Done(now, class, 0)
	s.end(now, class)
}

// Header implements grpc.ClientStream. Headers that the caller has seen bind the
// stream to the server they came from.
func (s *stream) Header() (metadata.MD, error) {
	md, err := s.current().Header()
	if err == nil && md != nil {
		s.commit()
	}
	return md, err
}

// Trailer implements grpc.ClientStream.
func (s *stream) Trailer() metadata.MD { return s.current().Trailer() }

// Context implements grpc.ClientStream.
func (s *stream) Context() context.Context { return s.current().Context() }
