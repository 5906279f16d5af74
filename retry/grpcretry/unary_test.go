package grpcretry

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	_ "github.com/switchyard-dev/switchyard/balance/grpcbalance"
	"github.com/switchyard-dev/switchyard/internal/grpctest"
	"github.com/switchyard-dev/switchyard/retry"
)

const (
	leastLoaded = `{"loadBalancingConfig":[{"switchyard_p2c_least_loaded":{"failureAccrual":{"off":true}}}]}`
	checkMethod = "/grpc.health.v1.Health/Check"
)

// recorder is an Observer.
type recorder struct {
	mu      sync.Mutex
	counts  [retry.Counts]int
	attempt []retry.Class
	logical []retry.Class
	tries   []retry.Tries
}

func (r *recorder) Attempt(c retry.Class, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempt = append(r.attempt, c)
}

func (r *recorder) Logical(c retry.Class, _ time.Duration, t retry.Tries) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logical = append(r.logical, c)
	r.tries = append(r.tries, t)
}

func (r *recorder) Count(c retry.Count) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[c]++
}

func (r *recorder) count(c retry.Count) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[c]
}

// quick is the default policy without waits.
func quick() *retry.Policy {
	p := retry.DefaultPolicy()
	p.RequeueWait, p.RetryWait, p.ConnectWait = nil, nil, nil
	return &p
}

// newClient makes a client whose methods are all as given.
func newClient(t testing.TB, m Method, budget *retry.Budget) (*Client, *recorder) {
	t.Helper()
	if m.Policy == nil {
		m.Policy = quick()
	}
	if budget == nil {
		budget = retry.InfiniteBudget()
	}
	rec := &recorder{}
	c, err := New(Config{Budget: budget, Methods: map[string]Method{"": m}, Observe: func(name string) retry.Observer {
		if name == "" {
			return nil
		}
		return rec
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c, rec
}

// dial connects through a client to servers.
func dial(t testing.TB, c *Client, servers ...*grpctest.Server) *grpc.ClientConn {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return grpctest.Dial(t, grpctest.Resolver(addrs...), leastLoaded, c.DialOptions()...)
}

func start(t testing.TB, h grpctest.Handler) *grpctest.Server {
	return grpctest.Start(t, h, ServerOptions(ServerConfig{})...)
}

func fail(code codes.Code, signal retry.Signal) grpctest.Handler {
	return func(context.Context, string) error {
		err := status.Error(code, "as told")
		if signal != retry.NoSignal {
			return retry.WithSignal(err, signal)
		}
		return err
	}
}

func TestUnary_whatIsSentAgain(t *testing.T) {
	for _, c := range []struct {
		name       string
		idempotent bool
		code       codes.Code
		signal     retry.Signal
		attempts   int64
		never      bool // the caller's error says so
	}{
		{"refused: by all", false, codes.Unavailable, retry.Nack, 6, true},
		{"refused, idempotent", true, codes.Unavailable, retry.Nack, 6, true},
		{"unavailable", false, codes.Unavailable, retry.NoSignal, 1, false},
		{"unavailable, idempotent", true, codes.Unavailable, retry.NoSignal, 3, false},
		{"exhausted, idempotent", true, codes.ResourceExhausted, retry.NoSignal, 3, false},
		{"internal, idempotent", true, codes.Internal, retry.NoSignal, 1, false},
		{"not found, idempotent", true, codes.NotFound, retry.NoSignal, 1, false},
		{"deadline of the server's own", true, codes.DeadlineExceeded, retry.NoSignal, 1, false},
		{"marked never", true, codes.Unavailable, retry.Never, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, fail(c.code, c.signal))
			client, rec := newClient(t, Method{Idempotent: c.idempotent}, nil)
			err := grpctest.Check(t.Context(), dial(t, client, s), "")
			if got := s.Calls.Load(); got != c.attempts {
				t.Errorf("%d attempts, want %d", got, c.attempts)
			}
			if st := status.Convert(err); st.Code() != c.code || st.Message() != "as told" {
				t.Errorf("the caller's error is %v", err)
			}
			if never := retry.SignalOf(err) == retry.Never; never != c.never {
				t.Errorf("not retryable: %v, want %v", never, c.never)
			}
			if len(rec.logical) != 1 || int64(len(rec.attempt)) != c.attempts {
				t.Errorf("%d logical requests of %d attempts counted", len(rec.logical), len(rec.attempt))
			}
		})
	}
}

func TestUnary_aRefusedRequestGoesToAnotherServer(t *testing.T) {
	bad := start(t, fail(codes.ResourceExhausted, retry.Nack))
	good := start(t, nil)
	client, rec := newClient(t, Method{}, nil)
	conn := dial(t, client, bad, good)
	for good.Calls.Load() == 0 { // until both are connected
		_ = grpctest.Check(t.Context(), conn, "")
	}
	bad.Calls.Store(0)
	rec.counts = [retry.Counts]int{}
	for range 200 {
		if err := grpctest.Check(t.Context(), conn, ""); err != nil {
			t.Fatal(err)
		}
	}
	if n := rec.counts[retry.CountRequeues]; n == 0 || int64(n) != bad.Calls.Load() {
		t.Errorf("%d requeues after %d refusals: some went back to who had refused", n, bad.Calls.Load())
	}
}

func TestUnary_theServerSeesTheNumberOfTheAttempt(t *testing.T) {
	var numbers []int
	s := start(t, func(ctx context.Context, _ string) error {
		numbers = append(numbers, AttemptNumber(ctx))
		return retry.WithSignal(status.Error(codes.Unavailable, ""), retry.Nack)
	})
	client, _ := newClient(t, Method{}, nil)
	_ = grpctest.Check(t.Context(), dial(t, client, s), "")
	if !slices.Equal(numbers, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("numbers %v", numbers)
	}
}

func TestUnary_theCallerMayForbidRetries(t *testing.T) {
	s := start(t, fail(codes.Unavailable, retry.Nack))
	client, rec := newClient(t, Method{Idempotent: true}, nil)
	if err := grpctest.Check(retry.WithNoRetry(t.Context()), dial(t, client, s), ""); err == nil || s.Calls.Load() != 1 {
		t.Errorf("%d attempts, error %v", s.Calls.Load(), err)
	}
	if rec.counts[retry.CountNotRetryable] != 1 {
		t.Errorf("counts %v", rec.counts)
	}
}

func TestUnary_neverWinsOverAClassifier(t *testing.T) {
	s := start(t, fail(codes.Unavailable, retry.Never))
	client, _ := newClient(t, Method{Classify: func(Result) retry.Class { return retry.Retryable }}, nil)
	_ = grpctest.Check(t.Context(), dial(t, client, s), "")
	if s.Calls.Load() != 1 {
		t.Errorf("%d attempts, want 1", s.Calls.Load())
	}
	s.Calls.Store(0)
	s.Handle(fail(codes.NotFound, retry.NoSignal))
	_ = grpctest.Check(t.Context(), dial(t, client, s), "")
	if s.Calls.Load() != 3 {
		t.Errorf("%d attempts with a classifier that finds NotFound retryable, want 3", s.Calls.Load())
	}
}

func TestUnary_anExhaustedBudgetIsPassedOnUpwards(t *testing.T) {
	back := start(t, fail(codes.Unavailable, retry.NoSignal))
	budget := func() *retry.Budget {
		b, err := retry.NewBudget(retry.BudgetConfig{TTL: time.Minute, Share: 0.2})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	policy := quick()
	policy.MaxRetries = 4
	midClient, midRec := newClient(t, Method{Idempotent: true, Policy: policy}, budget())
	midConn := dial(t, midClient, back)
	mid := start(t, func(ctx context.Context, _ string) error { return grpctest.Check(ctx, midConn, "") })
	frontClient, frontRec := newClient(t, Method{Idempotent: true, Policy: policy}, budget())
	front := dial(t, frontClient, mid)
	for range 100 {
		_ = grpctest.Check(t.Context(), front, "")
	}
	if back.Calls.Load() != 120 || midRec.counts[retry.CountRetries] != 20 || frontRec.counts[retry.CountRetries] != 0 {
		t.Errorf("back sees %d of 100 requests, mid retries %d, front %d; want 120, 20, 0",
			back.Calls.Load(), midRec.counts[retry.CountRetries], frontRec.counts[retry.CountRetries])
	}
}

func TestUnary_waitsAsLongAsTheServerAsks(t *testing.T) {
	var times []time.Time
	s := start(t, func(ctx context.Context, service string) error {
		times = append(times, time.Now())
		if len(times)%2 == 0 {
			return nil
		}
		st := status.New(codes.Unavailable, "")
		if service == "pushback" {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "60"))
		} else {
			st, _ = st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(60 * time.Millisecond)})
		}
		return st.Err()
	})
	client, _ := newClient(t, Method{Idempotent: true}, nil)
	conn := dial(t, client, s)
	for _, service := range []string{"pushback", "info"} {
		times = nil
		if err := grpctest.Check(t.Context(), conn, service); err != nil {
			t.Fatal(err)
		}
		if wait := times[1].Sub(times[0]); wait < 60*time.Millisecond {
			t.Errorf("%s: came back after %v, want 60ms", service, wait)
		}
	}
	s.Handle(func(ctx context.Context, _ string) error {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "-1"))
		return status.Error(codes.Unavailable, "")
	})
	s.Calls.Store(0)
	if err := grpctest.Check(t.Context(), conn, ""); err == nil || s.Calls.Load() != 1 {
		t.Errorf("%d attempts though the server wants none", s.Calls.Load())
	}
}

// hang waits until the caller is gone.
func hang(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestUnary_timeoutsPerAttemptAndInAll(t *testing.T) {
	s := start(t, hang)
	policy := quick()
	policy.MaxRetries, policy.PerAttempt, policy.Total = 9, 50*time.Millisecond, 120*time.Millisecond
	client, rec := newClient(t, Method{Idempotent: true, Policy: policy}, nil)
	conn := dial(t, client, s)
	began := time.Now()
	err := grpctest.Check(t.Context(), conn, "")
	if took := time.Since(began); status.Code(err) != codes.DeadlineExceeded || took < 120*time.Millisecond || took > time.Second {
		t.Errorf("%v after %v", err, took)
	}
	if got := rec.tries[0].Retries; got < 1 || got > 2 {
		t.Errorf("%d retries, want 2", got)
	}
	if rec.logical[0] != retry.Failed {
		t.Errorf("logical request: %v", rec.logical[0])
	}
	// What is not idempotent may have been done.
	client, _ = newClient(t, Method{Policy: policy}, nil)
	s.Calls.Store(0)
	if err := grpctest.Check(t.Context(), dial(t, client, s), ""); status.Code(err) != codes.DeadlineExceeded || s.Calls.Load() != 1 {
		t.Errorf("%d attempts, %v", s.Calls.Load(), err)
	}
}

func TestUnary_aCallerWhoLeavesIsIgnored(t *testing.T) {
	s := start(t, hang)
	client, rec := newClient(t, Method{Idempotent: true}, nil)
	conn := dial(t, client, s)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	if err := grpctest.Check(ctx, conn, ""); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	if s.Calls.Load() != 1 || !slices.Equal(rec.logical, []retry.Class{retry.Ignored}) {
		t.Errorf("%d attempts, %v", s.Calls.Load(), rec.logical)
	}
	// Also while waiting for the next attempt.
	s.Handle(fail(codes.Unavailable, retry.Nack))
	policy := quick()
	policy.RequeueWait = retry.Constant(time.Hour)
	client, rec = newClient(t, Method{Policy: policy}, nil)
	conn = dial(t, client, s)
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if status.Code(err) != codes.Canceled || !slices.Equal(rec.logical, []retry.Class{retry.Ignored}) {
		t.Errorf("got %v, %v", err, rec.logical)
	}
}

func TestUnary_noEndpointsFailsAtOnce(t *testing.T) {
	client, rec := newClient(t, Method{Idempotent: true}, nil)
	err := grpctest.Check(t.Context(), grpctest.Dial(t, grpctest.Resolver(), leastLoaded, client.DialOptions()...), "")
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no endpoints") {
		t.Errorf("got %v", err)
	}
	if rec.counts[retry.CountNoEndpoints] != 1 || len(rec.attempt) != 1 {
		t.Errorf("%d attempts, counts %v", len(rec.attempt), rec.counts)
	}
}

func TestUnary_admissionDropsWhatWouldBeRefused(t *testing.T) {
	s := start(t, fail(codes.Unavailable, retry.Nack))
	var now time.Duration
	policy := retry.Policy{}
	admission := retry.DefaultAdmission()
	c, err := New(Config{Admission: &admission, Methods: map[string]Method{"": {Policy: &policy}},
		Clock: func() time.Duration { now += 20 * time.Millisecond; return now }, Rand: func() float64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, c, s)
	dropped := 0
	for range 5000 {
		err := grpctest.Check(t.Context(), conn, "")
		if strings.Contains(err.Error(), "not sent") {
			dropped++
			if retry.SignalOf(err) != retry.Never {
				t.Fatal("what is dropped must not be sent again")
			}
			break
		}
	}
	if dropped == 0 {
		t.Error("nothing was dropped though all is refused")
	}
}

func TestServer_refusesWhatIsTooMuch(t *testing.T) {
	release := make(chan struct{})
	s := grpctest.Start(t, func(context.Context, string) error { <-release; return nil }, ServerOptions(ServerConfig{MaxConcurrent: 2})...)
	client, rec := newClient(t, Method{Policy: &retry.Policy{}}, nil)
	conn := dial(t, client, s)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := grpctest.Check(context.Background(), conn, ""); err != nil {
				t.Error(err)
			}
		})
	}
	for end := time.Now().Add(10 * time.Second); s.Calls.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d calls reached the server within 10 s, want 2", s.Calls.Load())
		}
	}
	err := grpctest.Check(t.Context(), conn, "")
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "2 calls") {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(rec.attempt, []retry.Class{retry.Requeueable}) {
		t.Errorf("classes %v: a refusal is safe to send again", rec.attempt)
	}
	close(release)
	wg.Wait()
	if err := grpctest.Check(t.Context(), conn, ""); err != nil {
		t.Errorf("after the others ended: %v", err)
	}
}

func TestNew_errorsNameWhatIsWrong(t *testing.T) {
	bad := retry.DefaultPolicy()
	bad.MaxRetries = -1
	for want, c := range map[string]Config{
		`method "Check"`:                 {Methods: map[string]Method{"Check": {}}},
		`method "/a/b/c"`:                {Methods: map[string]Method{"/a/b/c": {}}},
		`method "/a/": retry: max retr`:  {Methods: map[string]Method{"/a/": {Policy: &bad}}},
		`hedging needs a method that is`: {Methods: map[string]Method{"": {Hedge: &retry.HedgeConfig{MaxExtraLoad: 0.1}}}},
		`hedge max extra load is 1`:      {Methods: map[string]Method{"": {Idempotent: true, Hedge: &retry.HedgeConfig{MaxExtraLoad: 1}}}},
		`admission window`:               {Admission: &retry.AdmissionConfig{}},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestMethods_theMostExactCounts(t *testing.T) {
	c, err := New(Config{Methods: map[string]Method{
		checkMethod: {ReplayBytes: 1}, "/grpc.health.v1.Health/": {ReplayBytes: 2}, "": {ReplayBytes: 3},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{checkMethod: 1, "/grpc.health.v1.Health/Watch": 2, "/other/Check": 3, "odd": 3, "": 3} {
		for range 2 {
			if got := c.method(name).config.ReplayBytes; got != want {
				t.Errorf("%q: %d, want %d", name, got, want)
			}
		}
	}
	c.count.Store(math.MaxInt64)
	if c.method("/one/more") != c.other {
		t.Error("methods are told apart without bound")
	}
}

func TestError_isTheStatusOfTheLastAttempt(t *testing.T) {
	inner := status.Error(codes.NotFound, "gone")
	err := finish(inner, retry.Decision{NotRetryable: true})
	if st, ok := status.FromError(err); !ok || st.Code() != codes.NotFound || st.Message() != "gone" || !errors.Is(err, inner) {
		t.Errorf("got %v", err)
	}
	if finish(nil, retry.Decision{NotRetryable: true}) != nil || finish(inner, retry.Decision{}) != inner {
		t.Error("errors are wrapped without need")
	}
}

// slowOnce makes every n-th call of a server slow.
func slowOnce(n int64, d time.Duration) grpctest.Handler {
	var calls atomic.Int64
	return func(ctx context.Context, _ string) error {
		if calls.Add(1)%n == 0 {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		}
		return nil
	}
}

func hedging(extra float64) Method {
	return Method{Idempotent: true, Hedge: &retry.HedgeConfig{MaxExtraLoad: extra, MinDelay: 2 * time.Millisecond, MinSamples: 20}}
}

func TestHedge_aSlowAnswerIsOvertaken(t *testing.T) {
	slow, fast := start(t, slowOnce(40, time.Second)), start(t, nil)
	client, rec := newClient(t, hedging(0.1), nil)
	conn := dial(t, client, slow, fast)
	for range 60 {
		if err := grpctest.Check(t.Context(), conn, ""); err != nil {
			t.Fatal(err)
		}
	}
	if d := client.BackupDelay(checkMethod); d < 2*time.Millisecond || d > time.Second {
		t.Fatalf("backup delay %v after 60 quick answers", d)
	}
	began := time.Now()
	for range 200 {
		var header, trailer metadata.MD
		if err := grpctest.Check(t.Context(), conn, "", grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
			t.Fatal(err)
		}
		if len(header["content-type"]) == 0 {
			t.Fatal("no header of the answer that counts")
		}
	}
	if took := time.Since(began); took > 900*time.Millisecond {
		t.Errorf("200 calls took %v: backups did not overtake", took)
	}
	sent, won := rec.count(retry.CountHedges), rec.count(retry.CountHedgesWon)
	if sent == 0 || won == 0 || won > sent {
		t.Errorf("%d backups sent, %d won", sent, won)
	}
}

func TestHedge_theFirstSuccessCounts(t *testing.T) {
	arrived := make(chan int64, 10)
	proceed := [2]chan error{make(chan error), make(chan error)}
	var calls atomic.Int64
	s := start(t, func(_ context.Context, service string) error {
		if service == "warm" {
			return nil
		}
		n := calls.Add(1) - 1
		arrived <- n
		return <-proceed[n%2]
	})
	for name, c := range map[string]struct {
		first  int // who ends first: 0 the original, 1 the backup
		errs   [2]error
		code   codes.Code
		won    int
		single bool // the other need not end
	}{
		"the backup wins":                 {1, [2]error{nil, nil}, codes.OK, 1, true},
		"the original wins":               {0, [2]error{nil, nil}, codes.OK, 0, true},
		"the backup fails, then original": {1, [2]error{nil, status.Error(codes.Internal, "")}, codes.OK, 0, false},
		"the original fails, then backup": {0, [2]error{status.Error(codes.Internal, ""), nil}, codes.OK, 1, false},
		"both fail":                       {0, [2]error{status.Error(codes.Internal, ""), status.Error(codes.NotFound, "")}, codes.Internal, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			calls.Store(0)
			client, rec := newClient(t, hedging(0.9), nil)
			conn := dial(t, client, s)
			for range 60 {
				if err := grpctest.Check(t.Context(), conn, "warm"); err != nil {
					t.Fatal(err)
				}
			}
			before := rec.count(retry.CountHedges)
			beforeWon := rec.count(retry.CountHedgesWon)
			done := make(chan error, 1)
			go func() { done <- grpctest.Check(context.Background(), conn, "") }()
			<-arrived
			<-arrived
			proceed[c.first] <- c.errs[c.first]
			if c.single {
				if err := <-done; status.Code(err) != c.code {
					t.Errorf("got %v", err)
				}
				proceed[1-c.first] <- c.errs[1-c.first]
			} else {
				proceed[1-c.first] <- c.errs[1-c.first]
				if err := <-done; status.Code(err) != c.code {
					t.Errorf("got %v", err)
				}
			}
			if sent, won := rec.count(retry.CountHedges)-before, rec.count(retry.CountHedgesWon)-beforeWon; sent != 1 || won != c.won {
				t.Errorf("%d sent, %d won, want 1, %d", sent, won, c.won)
			}
		})
	}
}

func TestHedge_theExtraLoadIsLimited(t *testing.T) {
	// Half of the answers take 40 ms, so backups are due all the time.
	s := start(t, slowOnce(2, 40*time.Millisecond))
	m := hedging(0.05)
	m.Hedge.MaxExtraLoad = 0.05
	client, rec := newClient(t, m, nil)
	conn := dial(t, client, s)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 20 {
				_ = grpctest.Check(context.Background(), conn, "")
			}
		})
	}
	wg.Wait()
	if sent := rec.count(retry.CountHedges); sent > 20 {
		t.Errorf("%d backups for 400 requests, want at most 20", sent)
	}
}

func BenchmarkUnary(b *testing.B) {
	client, _ := newClient(b, Method{Idempotent: true}, nil)
	ctx := context.Background()
	invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		_ = client.Unary(ctx, checkMethod, nil, nil, nil, invoke)
	}
}
