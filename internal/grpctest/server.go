package grpctest

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// Handler answers a call. service is what the caller sent.
type Handler func(ctx context.Context, service string) error

// Server is a gRPC server.
type Server struct {
	healthpb.UnimplementedHealthServer

	// Addr is where it listens.
	Addr string
	// Calls counts the calls that it got.
	Calls atomic.Int64

	handler atomic.Pointer[Handler]
	grpc    *grpc.Server
	done    chan struct{}
}

// Check implements the health service: OK, or the handler's error.
func (s *Server) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s.Calls.Add(1)
	if h := s.handler.Load(); h != nil {
		if err := (*h)(ctx, r.GetService()); err != nil {
			return nil, err
		}
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// Watch implements the health service: two messages, with the handler asked
// before the first (with the service) and before the second (with "second").
func (s *Server) Watch(r *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	s.Calls.Add(1)
	for _, service := range []string{r.GetService(), "second"} {
		if h := s.handler.Load(); h != nil {
			if err := (*h)(stream.Context(), service); err != nil {
				return err
			}
		}
		if err := stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}); err != nil {
			return err
		}
	}
	return nil
}

// Handle changes how calls are answered; nil answers all with OK.
func (s *Server) Handle(h Handler) {
	if h == nil {
		s.handler.Store(nil)
		return
	}
	s.handler.Store(&h)
}

// Stop ends the server at once, with all that is under way.
func (s *Server) Stop() {
	s.grpc.Stop()
	<-s.done
}

// Start runs a server until the end of the test.
func Start(t testing.TB, h Handler, options ...grpc.ServerOption) *Server {
	return StartAt(t, "127.0.0.1:0", h, options...)
}

// StartAt is Start on a given address.
func StartAt(t testing.TB, addr string, h Handler, options ...grpc.ServerOption) *Server {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: l.Addr().String(), grpc: grpc.NewServer(options...), done: make(chan struct{})}
	s.Handle(h)
	healthpb.RegisterHealthServer(s.grpc, s)
	go func() {
		defer close(s.done)
		_ = s.grpc.Serve(l) // ends with Stop
	}()
	t.Cleanup(s.Stop)
	return s
}

// Resolver returns a resolver whose addresses the test sets.
func Resolver(addrs ...string) *manual.Resolver {
	r := manual.NewBuilderWithScheme("test")
	r.InitialState(State(addrs...))
	return r
}

// State is what a resolver says about addresses.
func State(addrs ...string) resolver.State {
	var s resolver.State
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a}}})
	}
	return s
}

// Dial connects to what the resolver says, with a service config, until the end of
// the test.
func Dial(t testing.TB, r *manual.Resolver, serviceConfig string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("test:///servers", append([]grpc.DialOption{
		grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(serviceConfig),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Check makes a call, with 5 s to end.
func Check(ctx context.Context, conn grpc.ClientConnInterface, service string, options ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service}, options...)
	return err
}
