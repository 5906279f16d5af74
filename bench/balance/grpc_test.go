package balance

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"testing"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/experimental/stats"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	// The policies.
	_ "github.com/zeromicro/go-zero/zrpc"
	_ "google.golang.org/grpc/balancer/leastrequest"
	_ "google.golang.org/grpc/balancer/roundrobin"
	_ "google.golang.org/grpc/balancer/weightedroundrobin"
)

// clientConn stands for grpc-go's ClientConn: every connection is ready at once.
type clientConn struct {
	balancer.ClientConn
	mu     sync.Mutex
	todo   []func()
	picker balancer.Picker
	state  connectivity.State
}

type subConn struct {
	balancer.SubConn
	cc      *clientConn
	id      int
	address string
	listen  func(balancer.SubConnState)
}

func (c *clientConn) NewSubConn(a []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	id := 0
	if _, err := fmt.Sscanf(a[0].Addr, "server-%d:80", &id); err != nil {
		return nil, err
	}
	return &subConn{cc: c, id: id, address: a[0].Addr, listen: o.StateListener}, nil
}

func (c *clientConn) UpdateState(s balancer.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.picker, c.state = s.Picker, s.ConnectivityState
}

func (c *clientConn) ResolveNow(resolver.ResolveNowOptions)                {}
func (c *clientConn) RemoveSubConn(balancer.SubConn)                       {}
func (c *clientConn) UpdateAddresses(balancer.SubConn, []resolver.Address) {}
func (c *clientConn) Target() string                                       { return "test:///servers" }

// noMetrics drops what policies record.
type noMetrics struct {
	stats.UnimplementedMetricsRecorder
}

func (noMetrics) RecordInt64Count(*stats.Int64CountHandle, int64, ...string)             {}
func (noMetrics) RecordFloat64Count(*stats.Float64CountHandle, float64, ...string)       {}
func (noMetrics) RecordInt64Histo(*stats.Int64HistoHandle, int64, ...string)             {}
func (noMetrics) RecordFloat64Histo(*stats.Float64HistoHandle, float64, ...string)       {}
func (noMetrics) RecordInt64Gauge(*stats.Int64GaugeHandle, int64, ...string)             {}
func (noMetrics) RecordInt64UpDownCount(*stats.Int64UpDownCountHandle, int64, ...string) {}
func (noMetrics) RegisterAsyncReporter(stats.AsyncMetricReporter, ...stats.AsyncMetric) func() {
	return func() {}
}

func (c *clientConn) MetricsRecorder() stats.MetricsRecorder { return noMetrics{} }

func (c *clientConn) later(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.todo = append(c.todo, f)
}

// settle does what grpc-go does outside of the balancer's calls.
func (c *clientConn) settle() {
	for {
		c.mu.Lock()
		todo := c.todo
		c.todo = nil
		c.mu.Unlock()
		if len(todo) == 0 {
			return
		}
		for _, f := range todo {
			f()
		}
	}
}

func (s *subConn) Connect() {
	s.cc.later(func() {
		s.listen(balancer.SubConnState{ConnectivityState: connectivity.Connecting})
		s.listen(balancer.SubConnState{ConnectivityState: connectivity.Ready})
	})
}

func (s *subConn) RegisterHealthListener(f func(balancer.SubConnState)) {
	if f != nil {
		s.cc.later(func() { f(balancer.SubConnState{ConnectivityState: connectivity.Ready}) })
	}
}

func (s *subConn) Shutdown()                          {}
func (s *subConn) UpdateAddresses([]resolver.Address) {}

// setState tells the policy that a connection is up or lost.
func (s *subConn) setState(state connectivity.State) {
	s.listen(balancer.SubConnState{ConnectivityState: state})
	s.cc.settle()
}

// newGRPC builds one of grpc-go's registered policies over n servers.
func newGRPC(tb testing.TB, policy, config string, n int) (*clientConn, balancer.Balancer) {
	tb.Helper()
	builder := balancer.Get(policy)
	if builder == nil {
		tb.Fatalf("grpc-go knows no policy %q", policy)
	}
	cc := &clientConn{}
	b := builder.Build(cc, balancer.BuildOptions{Target: resolver.Target{URL: url.URL{Scheme: "test", Path: "/servers"}}})
	var parsed serviceconfig.LoadBalancingConfig
	if p, ok := builder.(balancer.ConfigParser); ok && config != "" {
		var err error
		if parsed, err = p.ParseConfig([]byte(config)); err != nil {
			tb.Fatal(err)
		}
	}
	var state resolver.State
	for i := range n {
		a := resolver.Address{Addr: fmt.Sprintf("server-%d:80", i)}
		state.Addresses = append(state.Addresses, a)
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
	}
	if err := b.UpdateClientConnState(balancer.ClientConnState{ResolverState: state, BalancerConfig: parsed}); err != nil {
		tb.Fatal(err)
	}
	cc.settle()
	if cc.state != connectivity.Ready {
		tb.Fatalf("%s is %v", policy, cc.state)
	}
	return cc, b
}

var pickInfo = balancer.PickInfo{FullMethodName: "/service/method", Ctx: context.Background()}

// grpcPolicies are the names by which grpc-go knows its own and go-zero's.
var grpcPolicies = []struct{ name, policy, config string }{
	{"grpc_round_robin", "round_robin", ""},
	{"grpc_least_request", "least_request_experimental", `{"choiceCount": 2}`},
	{"grpc_weighted_round_robin", "weighted_round_robin", `{"blackoutPeriod": "0s", "weightUpdatePeriod": "0.1s"}`},
	{"gozero_p2c", "p2c_ewma", ""},
}
