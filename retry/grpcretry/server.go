package grpcretry

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/retry"
)

// ServerConfig says what a server refuses by itself.
type ServerConfig struct {
	// MaxConcurrent bounds the calls that are handled at once; what is beyond is
	// refused with RESOURCE_EXHAUSTED and a NACK, so that clients send it elsewhere. 0
	// means no bound.
	MaxConcurrent int
}

// ServerOptions are the options for a server that sends the signals of its
// handlers' errors to its clients: those of retry.WithSignal, and those of errors
// that come from a Client of this package.
//
// A handler may return a NACK only if it has done nothing for the request.
func ServerOptions(c ServerConfig) []grpc.ServerOption {
	s := &server{limit: int64(c.MaxConcurrent)}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.stream)}
}

type server struct {
	limit   int64
	current atomic.Int64
}

// enter counts a call in.
func (s *server) enter() error {
	if s.limit <= 0 {
		return nil
	}
	if s.current.Add(1) > s.limit {
		s.current.Add(-1)
		return retry.WithSignal(status.Errorf(codes.ResourceExhausted,
			"the server handles %d calls already, which is its limit", s.limit), retry.Nack)
	}
	return nil
}

func (s *server) leave() {
	if s.limit > 0 {
		s.current.Add(-1)
	}
}

// signal splits an error into the trailer for its signal and the bare error.
func signal(err error) (metadata.MD, error) {
	value := retry.SignalOf(err).Value()
	if value == "" {
		return nil, err
	}
	return metadata.Pairs(retry.SignalKey, value), retry.Bare(err)
}

func (s *server) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	err := s.enter()
	var resp any
	if err == nil {
		defer s.leave()
		resp, err = handle(ctx, req)
	}
	if err != nil {
		var trailer metadata.MD
		if trailer, err = signal(err); trailer != nil {
			// It fails only when the call has ended, and then nobody listens.
			_ = grpc.SetTrailer(ctx, trailer)
		}
	}
	return resp, err
}

func (s *server) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	err := s.enter()
	if err == nil {
		defer s.leave()
		err = handle(srv, stream)
	}
	if err != nil {
		var trailer metadata.MD
		if trailer, err = signal(err); trailer != nil {
			stream.SetTrailer(trailer)
		}
	}
	return err
}

// AttemptNumber returns the number of the attempt that a handler sees: 0 for the
// first, 1 for the first retry.
func AttemptNumber(ctx context.Context) int {
	md, _ := metadata.FromIncomingContext(ctx)
	v := md[retry.AttemptKey]
	if len(v) == 0 || len(v[0]) == 0 || len(v[0]) > 6 {
		return 0
	}
	n := 0
	for _, c := range v[0] {
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return n
}
