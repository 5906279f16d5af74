package frontend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Options is what a Frontend is made of.
type Options struct {
	// Backend does the work. Required.
	Backend Backend
	// Limits; the zero value means DefaultLimits.
	Limits Limits
	// Logger gets faults of the server; nil discards them.
	Logger *slog.Logger
	// Registerer gets the metrics; nil means a registry of the frontend's own.
	Registerer prometheus.Registerer
}

// Frontend implements the services of the API. It is safe for concurrent use.
type Frontend struct {
	v1.UnimplementedTaskServiceServer
	v1.UnimplementedQueueServiceServer
	v1.UnimplementedCallServiceServer

	backend Backend
	limits  Limits
	logger  *slog.Logger
	metrics *metrics

	requests atomic.Int64
	polls    atomic.Int64
	bytes    atomic.Int64

	// unavailable is why no call is taken, nil when calls are taken.
	unavailable atomic.Pointer[reason.Error]
	draining    context.Context
	drain       context.CancelFunc
}

// New makes a frontend. It needs no stopping.
func New(o Options) (*Frontend, error) {
	if o.Backend == nil {
		return nil, errors.New("frontend: no backend")
	}
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	if err := o.Limits.Validate(); err != nil {
		return nil, fmt.Errorf("frontend: limits: %w", err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	f := &Frontend{backend: o.Backend, limits: o.Limits, logger: o.Logger}
	f.draining, f.drain = context.WithCancel(context.Background())
	m, err := newMetrics(o.Registerer, f)
	if err != nil {
		return nil, fmt.Errorf("frontend: metrics: %w", err)
	}
	f.metrics = m
	return f, nil
}

// Limits returns the limits in force.
func (f *Frontend) Limits() Limits { return f.limits }

// SetUnavailable makes every later call fail with err, nil takes calls again.
// Calls in progress are not touched.
func (f *Frontend) SetUnavailable(err error) { f.unavailable.Store(reason.From(err)) }

// Drain ends all polls, now and later, with SHUTTING_DOWN. Other calls go on,
// so that workers can still hand in what they have done.
func (f *Frontend) Drain() { f.drain() }

// InFlight returns the number of calls in progress, polls included.
func (f *Frontend) InFlight() int64 { return f.requests.Load() + f.polls.Load() }

// call is one call in progress.
type call struct {
	f       *Frontend
	method  method
	counter *atomic.Int64 // the one that counts it; nil when it was not admitted
	start   time.Time
	bytes   int64
	cancel  context.CancelFunc
}

// begin admits a call or returns why not. Its caller defers end in either case.
// The context that it returns has a deadline, except for polls, which end with
// their wait.
func (f *Frontend) begin(ctx context.Context, m method) (context.Context, call, error) {
	c := call{f: f, method: m, start: time.Now()}
	if e := f.unavailable.Load(); e != nil {
		return ctx, c, e
	}
	if err := ctx.Err(); err != nil {
		return ctx, c, ended(err)
	}
	counter, limit, what := &f.requests, int64(f.limits.InFlightRequests), "requests"
	waits := m == mPollTasks || m == mPollCalls || m == mCall
	if waits {
		counter, limit, what = &f.polls, int64(f.limits.InFlightPolls), "polls"
	}
	if counter.Add(1) > limit {
		counter.Add(-1)
		return ctx, c, overloaded("in_flight_"+what, limit, "the node has %d %s in progress and takes no more; retry later", limit, what)
	}
	c.counter = counter
	if !waits {
		if _, ok := ctx.Deadline(); !ok {
			ctx, c.cancel = context.WithTimeout(ctx, f.limits.RequestTimeout)
		}
	}
	return ctx, c, nil
}

// hold counts bytes as in progress until the call ends.
func (c *call) hold(n int64) error {
	limit := c.f.limits.InFlightBytes
	if c.f.bytes.Add(n) > limit {
		c.f.bytes.Add(-n)
		return overloaded("in_flight_bytes", limit, "the node has %d bytes of tasks on their way into the store and takes no more; retry later", limit)
	}
	c.bytes = n
	return nil
}

// end closes a call: it is deferred with the address of the call's error. A
// panic in the call becomes an INTERNAL error.
func (c *call) end(err *error) {
	if p := recover(); p != nil {
		c.f.logger.Error("call panicked", "method", methodNames[c.method], "panic", p, "stack", string(debug.Stack()))
		*err = reason.New(codes.Internal, reason.Internal, nil, "the server met a fault in %s; its log has more", methodNames[c.method])
	}
	if c.cancel != nil {
		c.cancel()
	}
	if c.bytes != 0 {
		c.f.bytes.Add(-c.bytes)
	}
	if c.counter != nil {
		c.counter.Add(-1)
	}
	took := time.Since(c.start)
	if *err == nil {
		c.f.metrics.observe(c.method, took, codes.OK, "")
		return
	}
	e := reason.From(*err)
	if e.Code() == codes.Internal || e.Code() == codes.Unknown {
		c.f.logger.Error("call failed", "method", methodNames[c.method], "err", *err)
	}
	c.f.metrics.observe(c.method, took, e.Code(), e.Reason())
	*err = e
}

// serve runs a call that hands its request on as it is once it is checked, as
// all do but polls and batches.
func serve[Req, Resp any](ctx context.Context, f *Frontend, m method, req *Req,
	backend func(context.Context, *Req) (*Resp, error), check func() error,
) (resp *Resp, err error) {
	ctx, c, err := f.begin(ctx, m)
	defer c.end(&err)
	if err != nil {
		return nil, err
	}
	if err := check(); err != nil {
		return nil, err
	}
	return backend(ctx, req)
}

// items records the size of a batch.
func (c *call) items(n int) { c.f.metrics.items[c.method].Observe(float64(n)) }

func overloaded(setting string, limit int64, format string, args ...any) error {
	return reason.New(codes.ResourceExhausted, reason.Overloaded,
		map[string]string{"setting": setting, "limit": strconv.FormatInt(limit, 10)}, format, args...)
}

// ended is the error of a call whose context is over.
func ended(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return reason.New(codes.DeadlineExceeded, reason.DeadlineExceeded, nil, "the request's deadline has passed")
	}
	return reason.New(codes.Canceled, reason.RequestCancelled, nil, "the caller cancelled the request")
}
