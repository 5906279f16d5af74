package server

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func waitFor(t testing.TB, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come true in time")
		}
	}
}

func connect(t testing.TB, s *Server) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func shortly(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func someTask(payload string) *v1.AddTasksRequest {
	return &v1.AddTasksRequest{Queue: "q", Tasks: []*v1.TaskSpec{{Kind: "k", Payload: []byte(payload)}}}
}

func TestGRPC_wayOfATask(t *testing.T) {
	s := start(t, newTinyCore(), nil)
	tasks := v1.NewTaskServiceClient(connect(t, s))
	ctx := shortly(t)
	added, err := tasks.AddTasks(ctx, someTask("hello"))
	if err != nil {
		t.Fatal(err)
	}
	polled, err := tasks.PollTasks(ctx, &v1.PollTasksRequest{Queue: "q"})
	if err != nil || len(polled.Tasks) != 1 || polled.Tasks[0].Id != added.Results[0].Id || string(polled.Tasks[0].Payload) != "hello" {
		t.Fatalf("%v, %v", polled, err)
	}
	token := polled.Tasks[0].LeaseToken
	done, err := tasks.CompleteTasks(ctx, &v1.CompleteTasksRequest{Queue: "q", LeaseTokens: [][]byte{token, {}}})
	if err != nil || done.Results[0].Error != nil || done.Results[1].Error.GetReason() != reason.InvalidLeaseToken {
		t.Fatalf("%v, %v", done, err)
	}
}

func TestGRPC_errorsCarryReasonsOverTheWire(t *testing.T) {
	s := start(t, newTinyCore(), func(c *Config) { c.Limits.PayloadBytes = 1000; c.Limits.RequestBytes = 100_000 })
	conn := connect(t, s)
	tasks, queues := v1.NewTaskServiceClient(conn), v1.NewQueueServiceClient(conn)
	ctx := shortly(t)
	for name, c := range map[string]struct {
		call func() error
		code codes.Code
		want string
	}{
		"unknown queue": {func() error {
			_, err := queues.DescribeQueue(ctx, &v1.DescribeQueueRequest{Queue: "nope"})
			return err
		}, codes.NotFound, reason.QueueNotFound},
		"empty name": {func() error { _, err := tasks.AddTasks(ctx, &v1.AddTasksRequest{}); return err }, codes.InvalidArgument, reason.InvalidQueueName},
		"message too large": {func() error { _, err := tasks.AddTasks(ctx, someTask(strings.Repeat("x", 200_000))); return err },
			codes.InvalidArgument, reason.RequestTooLarge},
		"wrong UTF-8": {func() error {
			// A queue name that is not UTF-8: the client's own check is passed by.
			return conn.Invoke(ctx, v1.TaskService_AddTasks_FullMethodName, []byte{0x12, 2, 'a', 0xff}, &v1.AddTasksResponse{}, grpc.ForceCodecV2(rawCodec{}))
		}, codes.InvalidArgument, reason.InvalidRequest},
		"not protobuf": {func() error {
			return conn.Invoke(ctx, v1.TaskService_AddTasks_FullMethodName, []byte{0x12, 200, 1}, &v1.AddTasksResponse{}, grpc.ForceCodecV2(rawCodec{}))
		}, codes.InvalidArgument, reason.InvalidRequest},
		"unknown method": {func() error {
			return conn.Invoke(ctx, "/switchyard.v1.TaskService/Juggle", &v1.AddTasksRequest{}, &v1.AddTasksResponse{})
		}, codes.Unimplemented, reason.UnknownMethod},
		"expired deadline": {func() error {
			ctx, cancel := context.WithTimeout(ctx, 0)
			defer cancel()
			_, err := tasks.AddTasks(ctx, someTask(""))
			return err
		}, codes.DeadlineExceeded, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.call()
			if status.Code(err) != c.code || reason.Of(err) != c.want {
				t.Errorf("%v: reason %q", err, reason.Of(err))
			}
		})
	}
}

// rawCodec sends bytes as they are, under protobuf's name.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

func TestGRPC_panicIsAnErrorAndTheNodeLives(t *testing.T) {
	core := newTinyCore()
	core.onAdd = func(context.Context) error { panic("boom") }
	s := start(t, core, nil)
	tasks := v1.NewTaskServiceClient(connect(t, s))
	for range 2 {
		if _, err := tasks.AddTasks(shortly(t), someTask("")); reason.Of(err) != reason.Internal {
			t.Error(err)
		}
	}
}

func TestGRPC_vanishedClientEndsItsPoll(t *testing.T) {
	core := newTinyCore()
	s := start(t, core, nil)
	for name, vanish := range map[string]func(cancel context.CancelFunc, conn *grpc.ClientConn){
		"cancels":     func(cancel context.CancelFunc, _ *grpc.ClientConn) { cancel() },
		"disconnects": func(_ context.CancelFunc, conn *grpc.ClientConn) { conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, s)
			ctx, cancel := context.WithCancel(shortly(t))
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				v1.NewTaskServiceClient(conn).PollTasks(ctx, &v1.PollTasksRequest{Queue: "q", Wait: durationpb.New(time.Minute)})
			}()
			<-core.polling
			vanish(cancel, conn)
			<-done
			waitFor(t, func() bool { return s.frontend.InFlight() == 0 })
		})
	}
}

func TestGRPC_healthAndReflection(t *testing.T) {
	core := newTinyCore()
	s := start(t, core, nil)
	conn := connect(t, s)
	ctx := shortly(t)
	check := func() healthpb.HealthCheckResponse_ServingStatus {
		resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Status
	}
	if got := check(); got != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("status %v", got)
	}
	core.setStatus(reason.New(codes.Unavailable, reason.StorageFailed, nil, "no space left"))
	waitFor(t, func() bool { return check() == healthpb.HealthCheckResponse_NOT_SERVING })

	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if list := resp.String(); !strings.Contains(list, "switchyard.v1.TaskService") || !strings.Contains(list, "switchyard.v1.QueueService") {
		t.Error(list)
	}
	stream.CloseSend()
}

func TestStoreFailure_turnsTheNodeRedAndBack(t *testing.T) {
	core := newTinyCore()
	s := start(t, core, nil)
	tasks := v1.NewTaskServiceClient(connect(t, s))
	core.setStatus(reason.New(codes.Unavailable, reason.StorageFailed, nil, "no space left on device"))
	var err error
	waitFor(t, func() bool { _, err = tasks.AddTasks(shortly(t), someTask("")); return err != nil })
	if status.Code(err) != codes.Unavailable || reason.Of(err) != reason.StorageFailed || !strings.Contains(err.Error(), "no space left") {
		t.Error(err)
	}
	if code, body := get(t, s, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "no space left") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := get(t, s, "/healthz"); code != http.StatusOK {
		t.Errorf("healthz %d", code)
	}
	core.setStatus(nil)
	waitFor(t, func() bool { _, err = tasks.AddTasks(shortly(t), someTask("")); return err == nil })
}

func TestStop_endsPollsAndLetsCallsFinish(t *testing.T) {
	core := newTinyCore()
	entered, leave := make(chan struct{}), make(chan struct{})
	core.onAdd = func(context.Context) error { close(entered); <-leave; return nil }
	s, stop := startUntil(t, core, nil)
	tasks := v1.NewTaskServiceClient(connect(t, s))
	polled, added, stopped := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := tasks.PollTasks(context.Background(), &v1.PollTasksRequest{Queue: "q", Wait: durationpb.New(time.Minute)})
		polled <- err
	}()
	go func() { _, err := tasks.AddTasks(context.Background(), someTask("")); added <- err }()
	<-core.polling
	<-entered
	go func() { stopped <- stop() }()
	if err := <-polled; reason.Of(err) != reason.ShuttingDown {
		t.Errorf("poll: %v", err)
	}
	select {
	case err := <-stopped:
		t.Fatalf("it stopped with a call in progress: %v", err)
	case err := <-added:
		t.Fatalf("the call was cut off: %v", err)
	case <-time.After(50 * time.Millisecond): // stopping waits; nothing to observe
	}
	close(leave)
	if err := <-added; err != nil {
		t.Errorf("add: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
	if core.stopped != 1 {
		t.Errorf("the core was stopped %d times", core.stopped)
	}
}

func TestStop_cutsOffCallsAfterTheTimeout(t *testing.T) {
	core := newTinyCore()
	entered := make(chan struct{})
	var cancelled atomic.Bool
	core.onAdd = func(ctx context.Context) error { close(entered); <-ctx.Done(); cancelled.Store(true); return ctx.Err() }
	s, stop := startUntil(t, core, func(c *Config) { c.ShutdownTimeout = 100 * time.Millisecond })
	tasks := v1.NewTaskServiceClient(connect(t, s))
	added := make(chan error, 1)
	go func() { _, err := tasks.AddTasks(context.Background(), someTask("")); added <- err }()
	<-entered
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := <-added; err == nil {
		t.Error("the call succeeded")
	}
	if !cancelled.Load() || core.stopped != 1 {
		t.Errorf("cancelled %v, stopped %d times", cancelled.Load(), core.stopped)
	}
}

func TestNew_badConfigurations(t *testing.T) {
	s := start(t, newTinyCore(), nil)
	for name, change := range map[string]func(*Config){
		"address already in use": func(c *Config) { c.Listen = s.Addr() },
		"bucket_count":           func(c *Config) { c.BucketCount = 0 },
	} {
		c := DefaultConfig()
		c.Memory = true
		change(&c)
		if _, err := New(c, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
