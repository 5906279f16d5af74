package frontend_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/frontend"
)

type frontendLimits = frontend.Limits

func addOne(f *frontend.Frontend, ctx context.Context) error {
	_, err := f.AddTasks(ctx, &v1.AddTasksRequest{Queue: "q", Tasks: []*v1.TaskSpec{{Kind: "k", Payload: make([]byte, 1000)}}})
	return err
}

func TestPoll_endsBeforeTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &recorder{}
		f := newFrontend(t, b, nil)
		for _, c := range []struct{ deadline, want time.Duration }{
			{0, 20 * time.Second},
			{time.Minute, 20 * time.Second},
			{10 * time.Second, 9500 * time.Millisecond},
			{time.Second, 900 * time.Millisecond},
		} {
			ctx := t.Context()
			if c.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
				defer cancel()
			}
			if _, err := f.PollTasks(ctx, &v1.PollTasksRequest{Queue: "q"}); err != nil {
				t.Fatal(err)
			}
			got := b.polls[len(b.polls)-1]
			if got.Wait.AsDuration() != c.want || got.MaxTasks != 1 {
				t.Errorf("deadline %v: wait %v, max %d", c.deadline, got.Wait.AsDuration(), got.MaxTasks)
			}
		}
		if _, err := f.PollTasks(t.Context(), &v1.PollTasksRequest{Queue: "q", Wait: ns(0)}); err != nil {
			t.Fatal(err)
		}
		if got := b.polls[len(b.polls)-1]; got.Wait == nil || got.Wait.AsDuration() != 0 {
			t.Errorf("no wait became %v", got.Wait)
		}
	})
}

func TestCalls_expiredDeadlineReachesNothing(t *testing.T) {
	b := &recorder{}
	f := newFrontend(t, b, nil)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := addOne(f, ctx); reason.Of(err) != reason.DeadlineExceeded {
		t.Errorf("add: %v", err)
	}
	if _, err := f.PollTasks(ctx, &v1.PollTasksRequest{Queue: "q"}); reason.Of(err) != reason.DeadlineExceeded {
		t.Errorf("poll: %v", err)
	}
	if len(b.adds)+len(b.polls) != 0 {
		t.Error("the backend was asked")
	}
}

func TestCalls_getADeadlineWhenTheyHaveNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &recorder{add: func(ctx context.Context, _ *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		begin := time.Now()
		if err := addOne(newFrontend(t, b, nil), t.Context()); reason.Of(err) != reason.DeadlineExceeded {
			t.Error(err)
		}
		if took := time.Since(begin); took != 60*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestPoll_vanishedClientEndsItAtOnceAndGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, late := range []bool{false, true} {
			b := &recorder{}
			b.poll = func(ctx context.Context, _ *v1.PollTasksRequest) (*v1.PollTasksResponse, error) {
				<-ctx.Done()
				if late { // the lease was written when the client vanished
					return &v1.PollTasksResponse{Tasks: []*v1.LeasedTask{{LeaseToken: []byte("t")}}}, nil
				}
				return nil, ctx.Err()
			}
			f := newFrontend(t, b, nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { _, err := f.PollTasks(ctx, &v1.PollTasksRequest{Queue: "q"}); done <- err }()
			synctest.Wait()
			begin := time.Now()
			cancel()
			if err := <-done; reason.Of(err) != reason.RequestCancelled {
				t.Error(err)
			}
			if time.Since(begin) != 0 {
				t.Errorf("it took %v", time.Since(begin))
			}
			if late != (len(b.releases) == 1) {
				t.Errorf("late %v: %d releases", late, len(b.releases))
			}
		}
	})
}

func TestDrain_endsPollsAndLeavesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &recorder{poll: func(ctx context.Context, _ *v1.PollTasksRequest) (*v1.PollTasksResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		f := newFrontend(t, b, nil)
		done := make(chan error)
		go func() { _, err := f.PollTasks(t.Context(), &v1.PollTasksRequest{Queue: "q"}); done <- err }()
		synctest.Wait()
		if f.InFlight() != 1 {
			t.Errorf("%d in flight", f.InFlight())
		}
		f.Drain()
		if err := <-done; reason.Of(err) != reason.ShuttingDown {
			t.Errorf("waiting poll: %v", err)
		}
		if _, err := f.PollTasks(t.Context(), &v1.PollTasksRequest{Queue: "q"}); reason.Of(err) != reason.ShuttingDown {
			t.Errorf("new poll: %v", err)
		}
		if err := addOne(f, t.Context()); err != nil {
			t.Errorf("add: %v", err)
		}
	})
}

func TestOverload_isRefusedAndPasses(t *testing.T) {
	for name, change := range map[string]func(*frontend.Limits){
		"requests": func(l *frontend.Limits) { l.InFlightRequests = 1 },
		"bytes": func(l *frontend.Limits) {
			l.PayloadBytes, l.RequestBytes, l.InFlightBytes = 1000, 1024, 1500
		},
	} {
		t.Run(name, func(t *testing.T) {
			entered, leave := make(chan struct{}), make(chan struct{})
			b := &recorder{}
			first := true
			b.add = func(_ context.Context, req *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
				if first {
					first = false
					close(entered)
					<-leave
				}
				return &v1.AddTasksResponse{Results: make([]*v1.AddTasksResponse_Result, len(req.Tasks))}, nil
			}
			f := newFrontend(t, b, change)
			done := make(chan error)
			go func() { done <- addOne(f, context.Background()) }()
			<-entered
			err := addOne(f, t.Context())
			if e := reason.From(err); e == nil || e.Reason() != reason.Overloaded || e.Code() != codes.ResourceExhausted || e.Meta()["setting"] == "" {
				t.Errorf("second add: %v", err)
			}
			close(leave)
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := addOne(f, t.Context()); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			if f.InFlight() != 0 {
				t.Errorf("%d in flight", f.InFlight())
			}
		})
	}
}

func TestOverload_pollsHaveTheirOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &recorder{poll: func(ctx context.Context, _ *v1.PollTasksRequest) (*v1.PollTasksResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		f := newFrontend(t, b, func(l *frontend.Limits) { l.InFlightPolls = 1; l.InFlightRequests = 1 })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { f.PollTasks(ctx, &v1.PollTasksRequest{Queue: "q"}); close(done) }()
		synctest.Wait()
		if _, err := f.PollTasks(t.Context(), &v1.PollTasksRequest{Queue: "q"}); reason.Of(err) != reason.Overloaded {
			t.Errorf("second poll: %v", err)
		}
		if err := addOne(f, t.Context()); err != nil {
			t.Errorf("a waiting poll is in the way of an add: %v", err)
		}
		cancel()
		<-done
	})
}

func TestSetUnavailable_refusesAndTakesAgain(t *testing.T) {
	b := &recorder{}
	f := newFrontend(t, b, nil)
	f.SetUnavailable(reason.New(codes.Unavailable, reason.StorageFailed, nil, "the disk is full"))
	err := addOne(f, t.Context())
	if reason.Of(err) != reason.StorageFailed || !strings.Contains(err.Error(), "the disk is full") {
		t.Error(err)
	}
	f.SetUnavailable(nil)
	if err := addOne(f, t.Context()); err != nil {
		t.Error(err)
	}
}

func TestBackendFaults_becomeErrorsWithAReason(t *testing.T) {
	for name, c := range map[string]struct {
		add  func(context.Context, *v1.AddTasksRequest) (*v1.AddTasksResponse, error)
		want string
	}{
		"panic": {func(context.Context, *v1.AddTasksRequest) (*v1.AddTasksResponse, error) { panic("boom") }, reason.Internal},
		"foreign error": {func(context.Context, *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
			return nil, errors.New("odd")
		}, reason.Internal},
		"too few results": {func(context.Context, *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
			return &v1.AddTasksResponse{}, nil
		}, reason.Internal},
		"its own": {func(context.Context, *v1.AddTasksRequest) (*v1.AddTasksResponse, error) {
			return nil, reason.New(codes.NotFound, reason.QueueNotFound, nil, "no")
		}, reason.QueueNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFrontend(t, &recorder{add: c.add}, nil)
			if err := addOne(f, t.Context()); reason.Of(err) != c.want {
				t.Error(err)
			}
			if f.InFlight() != 0 {
				t.Errorf("%d in flight", f.InFlight())
			}
		})
	}
}

func TestMetrics_countByMethodCodeAndReason(t *testing.T) {
	reg := prometheus.NewRegistry()
	f, err := frontend.New(frontend.Options{Backend: &recorder{}, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	if err := addOne(f, t.Context()); err != nil {
		t.Fatal(err)
	}
	f.AddTasks(t.Context(), &v1.AddTasksRequest{Queue: "q"})
	f.AddTasks(t.Context(), &v1.AddTasksRequest{Queue: "q", Tasks: []*v1.TaskSpec{{}}})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			key := family.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			switch {
			case m.Counter != nil:
				values[key] = m.Counter.GetValue()
			case m.Histogram != nil:
				values[key] = float64(m.Histogram.GetSampleCount())
			case m.Gauge != nil:
				values[key] = m.Gauge.GetValue()
			}
		}
	}
	for key, want := range map[string]float64{
		"switchyard_frontend_requests_total OK AddTasks ":                         2,
		"switchyard_frontend_requests_total InvalidArgument AddTasks BATCH_EMPTY": 1,
		"switchyard_frontend_requests_total OK PollTasks ":                        0,
		"switchyard_frontend_item_faults_total AddTasks":                          1,
		"switchyard_frontend_request_duration_seconds AddTasks":                   3,
		"switchyard_frontend_batch_items AddTasks":                                2,
		"switchyard_frontend_requests_in_flight":                                  0,
		"switchyard_frontend_bytes_in_flight":                                     0,
	} {
		if got, ok := values[key]; !ok || got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if _, err := frontend.New(frontend.Options{Backend: &recorder{}, Registerer: reg}); err == nil {
		t.Error("metrics were registered twice")
	}
}

func TestLimits_validateNamesTheSetting(t *testing.T) {
	for name, change := range map[string]func(*frontend.Limits){
		"payload_bytes":   func(l *frontend.Limits) { l.PayloadBytes = 0 },
		"poll_wait":       func(l *frontend.Limits) { l.PollWait = -1 },
		"request_timeout": func(l *frontend.Limits) { l.RequestTimeout = 0 },
		"request_bytes":   func(l *frontend.Limits) { l.RequestBytes = l.PayloadBytes - 1 },
		"in_flight_bytes": func(l *frontend.Limits) { l.InFlightBytes = 5 },
		"min_lease_time":  func(l *frontend.Limits) { l.MinLeaseTime = 13 * time.Hour },
	} {
		l := frontend.DefaultLimits()
		change(&l)
		if err := l.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := frontend.DefaultLimits().Validate(); err != nil {
		t.Error(err)
	}
}
