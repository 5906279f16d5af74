package storagerpc

import (
	"context"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// NewStream implements grpc.ClientConnInterface, for streams of the server alone. The handler runs
// on a goroutine of its own until the stream or ctx ends; Do waits for it.
func (l loop) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	for _, d := range v1.StorageService_ServiceDesc.Streams {
		if method != "/"+v1.StorageService_ServiceDesc.ServiceName+"/"+d.StreamName || d.ClientStreams {
			continue
		}
		s := &localStream{ctx: ctx, request: make(chan proto.Message, 1), responses: make(chan proto.Message), ended: make(chan struct{})}
		l.running.Go(func() {
			defer close(s.ended)
			s.err = statusOf(d.Handler(l.s, serverSide{s}))
		})
		return clientSide{s}, nil
	}
	return nil, fmt.Errorf("storagerpc: %s is not a stream of the server alone; in one process there are no others", method)
}

// localStream is a stream from a server to a client in the same process.
type localStream struct {
	ctx       context.Context
	request   chan proto.Message
	responses chan proto.Message
	ended     chan struct{} // closed when the handler has returned
	err       error         // its error, after that
	closeOnce sync.Once
}

type clientSide struct{ *localStream }

func (clientSide) Header() (metadata.MD, error) { return nil, nil }
func (clientSide) Trailer() metadata.MD         { return nil }
func (c clientSide) Context() context.Context   { return c.ctx }

func (c clientSide) SendMsg(m any) error {
	req, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("storagerpc: %T is not a message", m)
	}
	select {
	case c.request <- proto.Clone(req):
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

func (c clientSide) CloseSend() error {
	c.closeOnce.Do(func() { close(c.request) })
	return nil
}

func (c clientSide) RecvMsg(m any) error {
	select {
	case resp := <-c.responses:
		return move(m, resp)
	case <-c.ended:
		if c.err != nil {
			return c.err
		}
		return io.EOF
	case <-c.ctx.Done():
		return statusOf(c.ctx.Err())
	}
}

type serverSide struct{ *localStream }

func (serverSide) SetHeader(metadata.MD) error  { return nil }
func (serverSide) SendHeader(metadata.MD) error { return nil }
func (serverSide) SetTrailer(metadata.MD)       {}
func (s serverSide) Context() context.Context   { return s.ctx }

func (s serverSide) RecvMsg(m any) error {
	select {
	case req, ok := <-s.request:
		if !ok {
			return io.EOF
		}
		return move(m, req)
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// SendMsg hands over a response. The server must not change it afterwards.
func (s serverSide) SendMsg(m any) error {
	resp, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("storagerpc: %T is not a message", m)
	}
	select {
	case s.responses <- resp:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}
