// Command grpcclient calls three gRPC servers, one of which refuses half of its
// requests and one of which is slow now and then, and shows that no call fails and
// few are slow. The servers are started by the program itself.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/balance/grpcbalance"
	"github.com/switchyard-dev/switchyard/retry"
	"github.com/switchyard-dev/switchyard/retry/grpcretry"
)

// server is the health service, which every gRPC installation has.
type server struct {
	healthpb.UnimplementedHealthServer
	calls  atomic.Int64
	handle func(n int64) error
}

func (s *server) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if err := s.handle(s.calls.Add(1)); err != nil {
		return nil, err
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// start runs a server and returns its address.
func start(s *server) (addr string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	// The option sends what retry.WithSignal says to the clients.
	g := grpc.NewServer(grpcretry.ServerOptions(grpcretry.ServerConfig{MaxConcurrent: 1000})...)
	healthpb.RegisterHealthServer(g, s)
	go func() {
		if err := g.Serve(l); err != nil {
			log.Print(err)
		}
	}()
	return l.Addr().String(), g.Stop
}

func main() {
	servers := []*server{
		{handle: func(int64) error { return nil }},
		{handle: func(n int64) error {
			if n%2 == 0 {
				return retry.WithSignal(status.Error(codes.ResourceExhausted, "full"), retry.Nack)
			}
			return nil
		}},
		{handle: func(n int64) error {
			if n%50 == 0 {
				time.Sleep(300 * time.Millisecond)
			}
			return nil
		}},
	}
	// Any resolver will do; "dns:///name:port" is the usual one.
	addresses := manual.NewBuilderWithScheme("example")
	var state resolver.State
	for _, s := range servers {
		addr, stop := start(s)
		defer stop()
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: addr}}})
	}
	addresses.InitialState(state)

	client, err := grpcretry.New(grpcretry.Config{Methods: map[string]grpcretry.Method{
		"/grpc.health.v1.Health/": {Idempotent: true, Hedge: &retry.HedgeConfig{MaxExtraLoad: 0.05}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	conn, err := grpc.NewClient("example:///health", append(client.DialOptions(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"switchyard_p2c_least_loaded":{}}]}`),
		grpc.WithResolvers(addresses),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	)...)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	const calls = 600
	health := healthpb.NewHealthClient(conn)
	failed := 0
	var took []time.Duration
	for range calls {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		began := time.Now()
		if _, err := health.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			failed++
			log.Print(err)
		}
		took = append(took, time.Since(began))
		cancel()
	}
	slices.Sort(took)
	fmt.Printf("%d calls, %d failed\n", calls, failed)
	fmt.Printf("half of them took less than %v, all but 1 %% less than %v\n", took[calls/2], took[calls*99/100])
	for i, s := range servers {
		fmt.Printf("server %d got %d requests\n", i, s.calls.Load())
	}
	for _, b := range grpcbalance.Registry().Balancers() {
		s := b.Stats()
		fmt.Printf("%s: %d endpoints, %d open, %d refusals\n", s.Policy, s.Size, s.Open, s.Results[balance.Refused])
	}
}
