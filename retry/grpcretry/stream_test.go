package grpcretry

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/internal/grpctest"
	"github.com/switchyard-dev/switchyard/retry"
)

// watch reads a stream to its end and returns how many messages came.
func watch(ctx context.Context, conn *grpc.ClientConn, service string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		return 0, err
	}
	for n := 0; ; n++ {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

func TestStream_isOpenedAgainUntilSomethingWasReceived(t *testing.T) {
	for name, c := range map[string]struct {
		service  string // where it fails
		fails    int64
		attempts int64
		messages int
		code     codes.Code
	}{
		"no failure":                 {"first", 0, 1, 2, codes.OK},
		"before the first message":   {"first", 2, 3, 2, codes.OK},
		"after the first message":    {"second", 1, 1, 1, codes.Unavailable},
		"too often before the first": {"first", 99, 6, 0, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			var left atomic.Int64
			left.Store(c.fails)
			var numbers []int
			s := start(t, func(ctx context.Context, service string) error {
				if service != "second" {
					numbers = append(numbers, AttemptNumber(ctx))
				}
				if service == c.service && left.Add(-1) >= 0 {
					return retry.WithSignal(status.Error(codes.Unavailable, ""), retry.Nack)
				}
				return nil
			})
			client, rec := newClient(t, Method{}, nil)
			n, err := watch(t.Context(), dial(t, client, s), "first")
			if n != c.messages || status.Code(err) != c.code || s.Calls.Load() != c.attempts {
				t.Errorf("%d messages, %v, %d attempts; want %d, %v, %d", n, err, s.Calls.Load(), c.messages, c.code, c.attempts)
			}
			for i, number := range numbers {
				if i != number {
					t.Errorf("attempts are numbered %v", numbers)
					break
				}
			}
			if len(rec.logical) != 1 || int64(len(rec.attempt)) != c.attempts {
				t.Errorf("%d logical requests of %d attempts counted", len(rec.logical), len(rec.attempt))
			}
		})
	}
}

func TestStream_withoutReplayIsNotOpenedAgain(t *testing.T) {
	s := start(t, fail(codes.Unavailable, retry.Nack))
	for _, limit := range []int{-1, 2} { // the request is longer than 2 bytes
		client, rec := newClient(t, Method{ReplayBytes: limit}, nil)
		s.Calls.Store(0)
		if _, err := watch(t.Context(), dial(t, client, s), "long enough"); status.Code(err) != codes.Unavailable || s.Calls.Load() != 1 {
			t.Errorf("limit %d: %v after %d attempts", limit, err, s.Calls.Load())
		}
		if !slices.Equal(rec.logical, []retry.Class{retry.Failed}) {
			t.Errorf("limit %d: %v", limit, rec.logical)
		}
	}
}

func TestStream_serversThatVanishAreReplaced(t *testing.T) {
	// The first server ends in the middle of the first answer.
	var gone atomic.Pointer[grpctest.Server]
	asked := make(chan struct{}, 1)
	bad := start(t, func(ctx context.Context, _ string) error {
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	gone.Store(bad)
	good := start(t, nil)
	client, _ := newClient(t, Method{Idempotent: true}, nil)
	for range 20 {
		conn := dial(t, client, bad, good)
		type result struct {
			n   int
			err error
		}
		done := make(chan result, 1)
		go func() { n, err := watch(context.Background(), conn, ""); done <- result{n, err} }()
		select {
		case r := <-done: // it went to the good one
			if r.err != nil {
				t.Fatal(r.err)
			}
			continue
		case <-asked:
		}
		bad.Stop()
		if r := <-done; r.err != nil || r.n != 2 {
			t.Errorf("%d messages, %v", r.n, r.err)
		}
		return
	}
	t.Error("no stream went to the bad server")
}

func TestStream_headersBind(t *testing.T) {
	s := start(t, nil)
	client, _ := newClient(t, Method{}, nil)
	stream, err := healthpb.NewHealthClient(dial(t, client, s)).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if md, err := stream.Header(); err != nil || md == nil {
		t.Fatalf("%v, %v", md, err)
	}
	if stream.Context() == nil {
		t.Error("no context")
	}
	for {
		if _, err := stream.Recv(); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
	}
	if stream.Trailer() == nil {
		t.Error("no trailer at the end")
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestStream_noEndpoints(t *testing.T) {
	client, rec := newClient(t, Method{Idempotent: true}, nil)
	conn := grpctest.Dial(t, grpctest.Resolver(), leastLoaded, client.DialOptions()...)
	if _, err := watch(t.Context(), conn, ""); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	if rec.counts[retry.CountNoEndpoints] != 1 {
		t.Errorf("counts %v", rec.counts)
	}
}

func TestStream_aCallerWhoLeavesIsIgnored(t *testing.T) {
	s := start(t, hang)
	client, rec := newClient(t, Method{Idempotent: true}, nil)
	conn := dial(t, client, s)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	if _, err := watch(ctx, conn, ""); status.Code(err) != codes.Canceled || !slices.Equal(rec.logical, []retry.Class{retry.Ignored}) {
		t.Errorf("got %v, %v", err, rec.logical)
	}
}
