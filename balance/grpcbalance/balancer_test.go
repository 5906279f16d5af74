package grpcbalance

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/internal/grpctest"
	"github.com/switchyard-dev/switchyard/retry"
)

func config(policy, options string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{%q:%s}]}`, policy, options)
}

// servers starts n servers.
func servers(t *testing.T, n int, h grpctest.Handler) (list []*grpctest.Server, addrs []string) {
	for range n {
		s := grpctest.Start(t, h)
		list = append(list, s)
		addrs = append(addrs, s.Addr)
	}
	return list, addrs
}

// eventually waits up to 10 s for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// stats finds the only balancer.
func stats(t *testing.T) balance.Stats {
	t.Helper()
	list := Registry().Balancers()
	if len(list) != 1 {
		t.Fatalf("%d balancers are registered, want 1", len(list))
	}
	return list[0].Stats()
}

func check(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	if err := grpctest.Check(t.Context(), conn, ""); err != nil {
		t.Fatal(err)
	}
}

func allConnected(t *testing.T, conn *grpc.ClientConn, n int) {
	t.Helper()
	check(t, conn)
	eventually(t, fmt.Sprintf("%d endpoints are connected", n), func() bool {
		process.mu.Lock()
		defer process.mu.Unlock()
		for b := range process.lbs {
			if b.ready.Load() == int64(n) {
				return len(process.lbs) == 1
			}
		}
		return false
	})
}

func TestPolicies_useAllServers(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			list, addrs := servers(t, 3, nil)
			options := `{}`
			if strings.Contains(k.name, "aperture") {
				options = `{"min": 3}`
			}
			conn := grpctest.Dial(t, grpctest.Resolver(addrs...), config(k.name, options))
			allConnected(t, conn, 3)
			for range 300 {
				check(t, conn)
			}
			for i, s := range list {
				least := int64(30)
				if strings.Contains(k.name, "ewma") {
					least = 1 // which are equally fast only in theory
				}
				if n := s.Calls.Load(); n < least {
					t.Errorf("server %d got %d of 300 calls", i, n)
				}
			}
			if got := stats(t).Results[balance.Success]; got != 301 {
				t.Errorf("%d successes counted, want 301", got)
			}
			if got := stats(t).Outstanding; got != 0 {
				t.Errorf("%d requests outstanding", got)
			}
		})
	}
}

func TestPolicies_surviveChangesUnderLoad(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			_, addrs := servers(t, 4, func(ctx context.Context, _ string) error {
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
				}
				return nil
			})
			r := grpctest.Resolver(addrs...)
			conn := grpctest.Dial(t, r, config(k.name, `{}`))
			check(t, conn)
			stop := make(chan struct{})
			var calls atomic.Int64
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := grpctest.Check(context.Background(), conn, ""); err != nil {
							t.Error(err)
							return
						}
						calls.Add(1)
					}
				})
			}
			for i := range 60 {
				// Always at least one server in common, and the order changes.
				set := append([]string{addrs[i%4]}, addrs[(i+1)%4])
				if i%3 == 0 {
					set = append(set, addrs[(i+2)%4], addrs[i%4]) // and one twice
				}
				r.UpdateState(grpctest.State(set...))
				before := calls.Load()
				eventually(t, "calls go on", func() bool { return calls.Load() > before+5 || t.Failed() })
			}
			close(stop)
			wg.Wait()
			if s := stats(t); s.Outstanding != 0 {
				t.Errorf("%d requests outstanding", s.Outstanding)
			}
		})
	}
}

func TestRemovedEndpoint_finishesItsRequests(t *testing.T) {
	release := make(chan struct{})
	_, addrs := servers(t, 2, func(_ context.Context, service string) error {
		if service == "slow" {
			<-release
		}
		return nil
	})
	r := grpctest.Resolver(addrs[0])
	conn := grpctest.Dial(t, r, config("switchyard_p2c_least_loaded", `{}`))
	check(t, conn)
	done := make(chan error, 1)
	go func() { done <- grpctest.Check(context.Background(), conn, "slow") }()
	eventually(t, "the slow call is under way", func() bool { return stats(t).Outstanding == 1 })
	r.UpdateState(grpctest.State(addrs[1]))
	eventually(t, "the old server is gone", func() bool { s := stats(t); return s.Size == 1 && s.Removes == 1 && s.Open == 1 })
	check(t, conn)
	close(release)
	if err := <-done; err != nil {
		t.Errorf("the call on the removed server: %v", err)
	}
}

func TestKilledServer_isLeftAloneAndComesBack(t *testing.T) {
	list, addrs := servers(t, 3, nil)
	conn := grpctest.Dial(t, grpctest.Resolver(addrs...), config("switchyard_p2c_least_loaded", `{}`))
	allConnected(t, conn, 3)
	list[0].Stop()
	eventually(t, "it is busy", func() bool { return stats(t).Busy == 1 })
	for range 100 {
		check(t, conn)
	}
	again := grpctest.StartAt(t, addrs[0], nil)
	eventually(t, "it is back", func() bool { return stats(t).Open == 3 })
	eventually(t, "it gets requests", func() bool { check(t, conn); return again.Calls.Load() > 0 })
}

func TestFailingServer_isConvicted(t *testing.T) {
	list, addrs := servers(t, 3, nil)
	list[0].Handle(func(context.Context, string) error { return status.Error(codes.Internal, "broken") })
	conn := grpctest.Dial(t, grpctest.Resolver(addrs...), config("switchyard_p2c_least_loaded", `{"failureAccrual":{"sentence":"1m"}}`))
	check1 := func() { _ = grpctest.Check(t.Context(), conn, "") }
	check1()
	eventually(t, "all connected", func() bool { return stats(t).Open == 3 })
	for range 200 {
		check1()
	}
	if s := stats(t); s.Busy != 1 || s.Removals != 1 || list[0].Calls.Load() > 6 {
		t.Errorf("busy %d, removals %d, calls of the broken server %d", s.Busy, s.Removals, list[0].Calls.Load())
	}
}

func TestOutcomes(t *testing.T) {
	next := make(chan error, 1)
	s := grpctest.Start(t, func(ctx context.Context, service string) error {
		if service == "nack" {
			_ = grpc.SetTrailer(ctx, metadata.Pairs(retry.SignalKey, retry.Nack.Value()))
		}
		return <-next
	})
	conn := grpctest.Dial(t, grpctest.Resolver(s.Addr), config("switchyard_heap", `{"failureAccrual":{"off":true}}`))
	want := [5]uint64{}
	for code, outcome := range map[codes.Code]balance.Outcome{
		codes.OK: balance.Success, codes.NotFound: balance.Success, codes.InvalidArgument: balance.Success, codes.FailedPrecondition: balance.Success,
		codes.Internal: balance.Failure, codes.Unknown: balance.Failure, codes.Unavailable: balance.Failure, codes.DeadlineExceeded: balance.Failure,
		codes.ResourceExhausted: balance.Refused, codes.Canceled: balance.Ignored,
	} {
		next <- status.Error(code, "")
		_ = grpctest.Check(t.Context(), conn, "")
		want[outcome]++
		if got := stats(t).Results; got != want {
			t.Fatalf("after %v: %v, want %v", code, got, want)
		}
	}
	next <- status.Error(codes.Unavailable, "full")
	_ = grpctest.Check(t.Context(), conn, "nack")
	want[balance.Refused]++
	if got := stats(t).Results; got != want {
		t.Errorf("after a NACK: %v, want %v", got, want)
	}
}

func TestNoEndpoints_isAClearErrorAtOnceOrWaits(t *testing.T) {
	s := grpctest.Start(t, nil)
	r := manual.NewBuilderWithScheme("test")
	r.InitialState(resolver.State{Endpoints: []resolver.Endpoint{}})
	conn := grpctest.Dial(t, r, config("switchyard_p2c_least_loaded", `{}`))
	err := grpctest.Check(t.Context(), conn, "")
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no endpoints for test:///servers") {
		t.Errorf("got %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- grpctest.Check(context.Background(), conn, "", grpc.WaitForReady(true)) }()
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	r.UpdateState(grpctest.State(s.Addr))
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.UpdateState(resolver.State{Endpoints: []resolver.Endpoint{}})
	if err := grpctest.Check(t.Context(), conn, ""); status.Code(err) != codes.Unavailable {
		t.Errorf("after the set became empty: %v", err)
	}
}

func TestUnresolved_isAClearError(t *testing.T) {
	r := manual.NewBuilderWithScheme("test")
	r.BuildCallback = func(resolver.Target, resolver.ClientConn, resolver.BuildOptions) {
		go func() { r.CC().ReportError(fmt.Errorf("name unknown")) }()
	}
	conn := grpctest.Dial(t, r, config("switchyard_p2c_least_loaded", `{}`))
	err := grpctest.Check(t.Context(), conn, "")
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "name unknown") {
		t.Errorf("got %v", err)
	}
}

func TestNobodyListens_isAClearError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	for _, k := range kinds {
		conn := grpctest.Dial(t, grpctest.Resolver(addr), config(k.name, `{}`))
		err := grpctest.Check(t.Context(), conn, "")
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", k.name, err)
		}
		conn.Close()
	}
}

func TestRetriedRequest_goesElsewhere(t *testing.T) {
	_, addrs := servers(t, 3, nil)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			options := `{}`
			if strings.Contains(k.name, "aperture") {
				options = `{"min": 3}`
			}
			conn := grpctest.Dial(t, grpctest.Resolver(addrs...), config(k.name, options))
			allConnected(t, conn, 3)
			for range 50 {
				var avoid []any
				for n := range 3 {
					a := &retry.Attempt{Number: n, Avoid: avoid}
					if err := grpctest.Check(retry.WithAttempt(t.Context(), a), conn, ""); err != nil {
						t.Fatal(err)
					}
					avoid = a.AvoidToo(avoid)
				}
				if len(avoid) != 3 {
					t.Fatalf("3 attempts went to %d servers", len(avoid))
				}
			}
		})
	}
}

func TestUnsent_isKnown(t *testing.T) {
	s := grpctest.Start(t, func(context.Context, string) error { return status.Error(codes.Unavailable, "") })
	conn := grpctest.Dial(t, grpctest.Resolver(s.Addr), config("switchyard_heap", `{}`))
	a := &retry.Attempt{}
	if err := grpctest.Check(retry.WithAttempt(t.Context(), a), conn, ""); err == nil || a.Unsent() || a.Endpoint() == nil {
		t.Errorf("error %v, unsent %v: the server had it", err, a.Unsent())
	}
}

func TestAperture_connectsOnlyWhatItUses(t *testing.T) {
	list, addrs := servers(t, 12, nil)
	conn := grpctest.Dial(t, grpctest.Resolver(addrs...), config("switchyard_aperture", `{"min": 2}`))
	for range 200 {
		check(t, conn)
	}
	used := 0
	for _, s := range list {
		if s.Calls.Load() > 0 {
			used++
		}
	}
	if s := stats(t); used != 2 || s.PhysicalAperture != 2 {
		t.Errorf("%d servers were used, aperture %d, want 2", used, s.PhysicalAperture)
	}
	// One in use dies: another takes its place.
	for _, s := range list {
		if s.Calls.Load() > 0 {
			s.Stop()
			break
		}
	}
	eventually(t, "calls succeed again", func() bool { return grpctest.Check(t.Context(), conn, "") == nil })
	for range 100 {
		check(t, conn)
	}
}

func TestAperture_withPeersIsDeterministic(t *testing.T) {
	_, addrs := servers(t, 24, nil)
	if err := SetPeer(balance.Peer{ID: 5, Total: 3}); err == nil {
		t.Error("a peer beyond the total is accepted")
	}
	if err := SetPeer(balance.Peer{ID: 0, Total: 12}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := SetPeer(balance.Peer{}); err != nil {
			t.Error(err)
		}
	})
	conn := grpctest.Dial(t, grpctest.Resolver(addrs...), config("switchyard_aperture", `{}`))
	check(t, conn)
	if s := stats(t); !s.Deterministic || s.PhysicalAperture != 12 {
		t.Errorf("deterministic %v, aperture %d, want 12", s.Deterministic, s.PhysicalAperture)
	}
	if err := SetPeer(balance.Peer{ID: 1, Total: 1}); err == nil {
		t.Error("bad peer accepted")
	}
	if err := SetPeer(balance.Peer{}); err != nil {
		t.Fatal(err)
	}
	if stats(t).Deterministic {
		t.Error("still deterministic without peers")
	}
	conn.Close()
	own := grpctest.Dial(t, grpctest.Resolver(addrs...), config("switchyard_aperture", `{"peer":{"id":1,"total":12}}`))
	check(t, own)
	if err := SetPeer(balance.Peer{ID: 3, Total: 7}); err != nil {
		t.Fatal(err)
	}
	if got := stats(t).Peer; got != (balance.Peer{ID: 1, Total: 12}) {
		t.Errorf("peer %v; the service config's goes before", got)
	}
}

func TestAperture_releasesIdleConnections(t *testing.T) {
	list, addrs := servers(t, 6, nil)
	conn := grpctest.Dial(t, grpctest.Resolver(addrs...), config("switchyard_aperture", `{"min": 1, "smooth": "1ms", "idle": "100ms"}`))
	check(t, conn)
	var wg sync.WaitGroup
	release := make(chan struct{})
	for _, s := range list {
		s.Handle(func(context.Context, string) error { <-release; return nil })
	}
	call := func() { wg.Go(func() { _ = grpctest.Check(context.Background(), conn, "") }) }
	for range 30 {
		call()
	}
	eventually(t, "the aperture widens under load", func() bool { return stats(t).PhysicalAperture > 3 })
	eventually(t, "others get requests", func() bool {
		call()
		used := 0
		for _, s := range list {
			if s.Calls.Load() > 0 {
				used++
			}
		}
		return used > 1
	})
	close(release)
	wg.Wait()
	eventually(t, "idle connections are given up", func() bool { return stats(t).Expired > 0 })
	for range 50 {
		check(t, conn)
	}
}

func TestWeights(t *testing.T) {
	list, addrs := servers(t, 3, nil)
	var state resolver.State
	for i, a := range addrs {
		e := resolver.Endpoint{Addresses: []resolver.Address{{Addr: a}}}
		switch i {
		case 0:
			e = WithWeight(e, 4)
		case 1:
			e = WithWeight(e, -7) // counts as 1
		}
		state.Endpoints = append(state.Endpoints, e)
	}
	r := manual.NewBuilderWithScheme("test")
	r.InitialState(state)
	conn := grpctest.Dial(t, r, config("switchyard_round_robin", `{}`))
	allConnected(t, conn, 3)
	for _, s := range list {
		s.Calls.Store(0)
	}
	for range 600 {
		check(t, conn)
	}
	for i, want := range []int64{400, 100, 100} {
		if got := list[i].Calls.Load(); got < want*7/10 || got > want*13/10 {
			t.Errorf("server %d got %d of 600 calls, want about %d", i, got, want)
		}
	}
}

func TestConfig_mayChange(t *testing.T) {
	_, addrs := servers(t, 3, nil)
	r := grpctest.Resolver(addrs...)
	conn := grpctest.Dial(t, r, config("switchyard_aperture", `{"name": "one"}`))
	check(t, conn)
	for _, name := range []string{"two", "two", "three"} {
		state := grpctest.State(addrs...)
		state.ServiceConfig = r.CC().ParseServiceConfig(config("switchyard_aperture", fmt.Sprintf(`{"name": %q}`, name)))
		r.UpdateState(state)
		eventually(t, "the balancer is called "+name, func() bool { check(t, conn); return stats(t).Name == name })
	}
}

func TestEndpointsOf_identity(t *testing.T) {
	a := resolver.Address{Addr: "a"}
	named := resolver.Address{Addr: "a", ServerName: "n"}
	b := resolver.Address{Addr: "b"}
	got := endpointsOf(resolver.State{Endpoints: []resolver.Endpoint{
		{Addresses: []resolver.Address{a}}, {Addresses: []resolver.Address{a}}, {Addresses: []resolver.Address{named}},
		{Addresses: []resolver.Address{a, b}}, {},
	}})
	var keys []string
	for _, e := range got {
		keys = append(keys, keyOf(e))
	}
	if strings.Join(keys, " ") != "a a@n a,b" {
		t.Errorf("got %q", keys)
	}
	if got := endpointsOf(resolver.State{Addresses: []resolver.Address{a, b, a}}); len(got) != 2 {
		t.Errorf("%d endpoints, want 2", len(got))
	}
}
