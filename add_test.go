package switchyard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// failFirst returns a hook that fails the first n requests of a method.
func failFirst(n int64, method string, err error) func(string, any) error {
	var left atomic.Int64
	left.Store(n)
	return func(m string, _ any) error {
		if m == method && left.Add(-1) >= 0 {
			return err
		}
		return nil
	}
}

// failItems returns a hook that refuses the first n items of a method.
func failItems(method string, n int64) func(string) *v1.ItemError {
	var left atomic.Int64
	left.Store(n)
	return func(m string) *v1.ItemError {
		if m == method && left.Add(-1) >= 0 {
			return reason.Item(overloaded())
		}
		return nil
	}
}

func overloaded() error {
	return reason.New(codes.ResourceExhausted, reason.Overloaded, nil, "too much at once")
}

func TestAdd_storesWhatWasGiven(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	task := Task{Kind: "welcome", Payload: []byte("ann"), Headers: map[string]string{"lang": "en"}, MaxAttempts: 3}
	result, err := client.Add(t.Context(), "emails", task)
	if err != nil || result.ID == "" || result.AlreadyAdded || result.Err != nil {
		t.Fatalf("Add: %+v, %v", result, err)
	}
	info, err := client.Get(t.Context(), "emails", result.ID)
	if err != nil {
		t.Fatal(err)
	}
	if info.Kind != "welcome" || string(info.Payload) != "ann" || info.Headers["lang"] != "en" || info.MaxAttempts != 3 || info.State != TaskReady {
		t.Errorf("stored %+v", info)
	}
	again, err := client.Add(t.Context(), "emails", Task{ID: result.ID, Kind: "welcome"})
	if err != nil || !again.AlreadyAdded || again.ID != result.ID {
		t.Errorf("the same id again: %+v, %v", again, err)
	}
}

func TestAdd_repeatsAfterTransientErrors(t *testing.T) {
	for name, err := range map[string]error{
		"unavailable":     status.Error(codes.Unavailable, "gone for a moment"),
		"overloaded":      overloaded(),
		"partition moved": reason.New(codes.Unavailable, reason.PartitionMoved, nil, "moved"),
	} {
		for _, side := range []string{"before", "after"} {
			t.Run(name+" "+side, func(t *testing.T) {
				f := startFake(t, func(f *fakeServer) {
					hook := failFirst(2, "AddTasks", err)
					if side == "before" {
						f.before = hook
					} else {
						f.after = hook
					}
				})
				client := dialFake(t, f)
				result, err := client.Add(t.Context(), "q", Task{Kind: "k"})
				if err != nil || result.AlreadyAdded {
					t.Fatalf("Add: %+v, %v", result, err)
				}
				if n := f.count("AddTasks"); n != 3 {
					t.Errorf("%d requests, want 3", n)
				}
				if n := len(f.queues["q"].tasks); n != 1 {
					t.Errorf("%d tasks, want 1", n)
				}
			})
		}
	}
}

func TestAdd_doesNotRepeatWhatCannotSucceed(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"invalid":        {reason.New(codes.InvalidArgument, reason.InvalidQueueName, nil, "the name is wrong"), reason.InvalidQueueName},
		"storage failed": {reason.New(codes.Unavailable, reason.StorageFailed, nil, "the disk is full"), reason.StorageFailed},
		"not found":      {reason.New(codes.NotFound, reason.QueueNotFound, nil, "no such queue"), reason.QueueNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, func(f *fakeServer) { f.before = failFirst(100, "AddTasks", c.err) })
			client := dialFake(t, f)
			_, err := client.Add(t.Context(), "q", Task{Kind: "k"})
			if Reason(err) != c.want || !strings.Contains(err.Error(), `add to queue "q"`) {
				t.Errorf("error %v, want %s", err, c.want)
			}
			var e *Error
			if !errors.As(err, &e) || e.Code() == codes.OK {
				t.Errorf("%v is no *Error", err)
			}
			if n := f.count("AddTasks"); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

func TestAdd_refusedTaskHasTheServersReason(t *testing.T) {
	client := dialFake(t, startFake(t))
	if _, err := client.Add(t.Context(), "q", Task{Kind: "bad"}); Reason(err) != reason.InvalidKind {
		t.Errorf("error %v", err)
	}
	if _, err := client.Add(t.Context(), "", Task{Kind: "k"}); Reason(err) != reason.InvalidQueueName {
		t.Errorf("no queue: error %v", err)
	}
	if _, err := client.Add(t.Context(), "q", Task{Kind: "\xff"}); Reason(err) != reason.InvalidKind {
		t.Errorf("wrong UTF-8: error %v", err)
	}
}

func TestAdd_endsWithItsContext(t *testing.T) {
	hold := make(chan struct{})
	f := startFake(t, func(f *fakeServer) {
		f.before = func(method string, r any) error {
			if r, ok := r.(*v1.AddTasksRequest); ok && r.Queue == "held" {
				<-hold
			}
			return nil
		}
	})
	client := dialFake(t, f)
	const callers = 8
	var wg sync.WaitGroup
	var left atomic.Int64
	errs := make([]error, callers)
	ctx, cancel := context.WithCancel(t.Context())
	for i := range callers {
		wg.Go(func() {
			ctx := ctx
			if i%2 == 1 { // these stay
				ctx = context.Background()
			}
			_, errs[i] = client.Add(ctx, "held", Task{Kind: "k"})
			left.Add(1)
		})
	}
	eventually(t, "requests are on their way", func() bool { return f.count("AddTasks") >= 1 })
	adder, err := client.adder("held")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the others wait", func() bool {
		adder.share.mu.Lock()
		defer adder.share.mu.Unlock()
		return adder.share.flyingTasks+len(adder.share.waiting) == callers
	})
	cancel()
	eventually(t, "those whose context ended have left", func() bool { return left.Load() == callers/2 })
	close(hold)
	wg.Wait()
	for i, err := range errs {
		if i%2 == 0 && !errors.Is(err, context.Canceled) {
			t.Errorf("caller %d, cancelled: error %v", i, err)
		}
		if i%2 == 1 && err != nil {
			t.Errorf("caller %d: error %v", i, err)
		}
	}
}

func TestAdd_waitsForTheServerUntilItsDeadline(t *testing.T) {
	client, err := Dial("127.0.0.1:1") // nothing listens there
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = client.Add(ctx, "q", Task{Kind: "k"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the end of the deadline", err)
	}
	if !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("error %q does not say why", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestAdd_withoutADeadlineTakesTheClientsTimeout(t *testing.T) {
	client, err := Dial("127.0.0.1:1", WithTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Add(context.Background(), "q", Task{Kind: "k"}); Reason(err) != reason.DeadlineExceeded {
		t.Errorf("Add: error %v", err)
	}
	if _, err := client.AddMany(context.Background(), "q", []Task{{Kind: "k"}}); Reason(err) != reason.DeadlineExceeded {
		t.Errorf("AddMany: error %v", err)
	}
	if _, err := client.Get(context.Background(), "q", "id"); Reason(err) != reason.DeadlineExceeded {
		t.Errorf("Get: error %v", err)
	}
}

func TestAdd_goesOnAfterTheServerCameBack(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	if _, err := client.Add(t.Context(), "q", Task{Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	f.server.Stop()
	done := make(chan error)
	go func() {
		_, err := client.Add(context.Background(), "q", Task{Kind: "k"})
		done <- err
	}()
	f.listen(t, f.address)
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Add did not end")
	}
}

func TestClose_endsCalls(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	f := startFake(t, func(f *fakeServer) {
		f.before = func(string, any) error { <-hold; return nil }
	})
	client := dialFake(t, f)
	errs := make(chan error)
	for range 5 {
		go func() {
			_, err := client.Add(context.Background(), "q", Task{Kind: "k"})
			errs <- err
		}()
	}
	eventually(t, "a request is on its way", func() bool { return f.count("AddTasks") > 0 })
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := <-errs; !errors.Is(err, ErrClientClosed) {
			t.Errorf("error %v", err)
		}
	}
	if _, err := client.Add(t.Context(), "q", Task{Kind: "k"}); !errors.Is(err, ErrClientClosed) {
		t.Errorf("Add after Close: %v", err)
	}
	if _, err := client.AddMany(t.Context(), "q", []Task{{Kind: "k"}}); !errors.Is(err, ErrClientClosed) {
		t.Errorf("AddMany after Close: %v", err)
	}
	if _, err := client.Get(t.Context(), "q", "id"); !errors.Is(err, ErrClientClosed) {
		t.Errorf("Get after Close: %v", err)
	}
	if err := client.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestAddMany_resultsAreInOrder(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f, WithAddSharing(AddSharing{MaxTasks: 7}))
	tasks := make([]Task, 100)
	for i := range tasks {
		tasks[i] = Task{Kind: "k", Payload: fmt.Append(nil, i)}
	}
	results, err := client.AddMany(t.Context(), "q", tasks)
	if err != nil || len(results) != 100 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for i, r := range results {
		if stored := f.queues["q"].tasks[r.ID]; stored == nil || string(stored.spec.Payload) != fmt.Sprint(i) {
			t.Errorf("task %d: result %+v does not fit %v", i, r, stored)
		}
	}
	for _, n := range f.batches["AddTasks"] {
		if n > 7 {
			t.Errorf("a request had %d tasks", n)
		}
	}
	again, err := client.AddMany(t.Context(), "q", []Task{{ID: results[3].ID, Kind: "k"}, {Kind: "k"}})
	if err != nil || !again[0].AlreadyAdded || again[1].AlreadyAdded {
		t.Errorf("added again: %+v, %v", again, err)
	}
	if none, err := client.AddMany(t.Context(), "q", nil); none != nil || err != nil {
		t.Errorf("nothing: %v, %v", none, err)
	}
}

func TestAddMany_badTasksFailAlone(t *testing.T) {
	client := dialFake(t, startFake(t))
	results, err := client.AddMany(t.Context(), "q", []Task{{Kind: "a"}, {Kind: "bad"}, {Kind: "\xff"}, {Kind: "b"}})
	var batch *BatchError
	if !errors.As(err, &batch) || batch.Failed != 2 || batch.Total != 4 || Reason(batch.First) != reason.InvalidKind {
		t.Fatalf("error %v", err)
	}
	for i, wrong := range []bool{false, true, true, false} {
		if r := results[i]; (r.Err != nil) != wrong || (r.ID == "") != wrong {
			t.Errorf("task %d: %+v", i, r)
		}
	}
	results, err = client.AddMany(t.Context(), "q", []Task{{Kind: "\xff"}, {Kind: "\xfe"}})
	if !errors.As(err, &batch) || batch.Failed != 2 || results[0].Err == nil {
		t.Errorf("only unsendable ones: %+v, %v", results, err)
	}
}

func TestAddMany_repeatsWhatFailedForAMoment(t *testing.T) {
	f := startFake(t, func(f *fakeServer) { f.after = failFirst(1, "AddTasks", status.Error(codes.Unavailable, "gone")) })
	client := dialFake(t, f)
	results, err := client.AddMany(t.Context(), "q", []Task{{Kind: "a"}, {Kind: "b"}})
	if err != nil || results[0].AlreadyAdded || results[0].ID == "" {
		t.Fatalf("%+v, %v", results, err)
	}
	if n := len(f.queues["q"].tasks); n != 2 {
		t.Errorf("%d tasks, want 2", n)
	}
}

func TestAddMany_repeatsSingleTasksThatFailedForAMoment(t *testing.T) {
	f := startFake(t, func(f *fakeServer) { f.item = failItems("AddTasks", 4) })
	client := dialFake(t, f)
	if _, err := client.Add(t.Context(), "q", Task{Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	results, err := client.AddMany(t.Context(), "q", []Task{{Kind: "bad"}, {Kind: "a"}, {Kind: "b"}, {Kind: "c"}, {Kind: "d"}})
	var batch *BatchError
	if !errors.As(err, &batch) || batch.Failed != 1 || !strings.Contains(err.Error(), "1 of 5 tasks were not added; the first: the kind is bad") {
		t.Fatalf("%+v, %v", results, err)
	}
	for i, r := range results {
		if stored := f.queues["q"].tasks[r.ID]; i > 0 && (r.Err != nil || stored == nil || stored.spec.Kind != string("abcd"[i-1])) {
			t.Errorf("task %d: %+v, %v", i, r, stored)
		}
	}
	if n := len(f.queues["q"].tasks); n != 5 {
		t.Errorf("%d tasks, want 5", n)
	}
}

func TestTask_runAt(t *testing.T) {
	soon, later := time.Now().Add(time.Minute), time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		task Task
		want time.Time
	}{
		"neither":          {Task{}, time.Time{}},
		"run-at":           {Task{RunAt: soon}, soon},
		"delay":            {Task{Delay: time.Minute}, soon},
		"run-at is later":  {Task{RunAt: later, Delay: time.Minute}, later},
		"delay is later":   {Task{RunAt: soon, Delay: time.Hour}, later},
		"a negative delay": {Task{Delay: -time.Hour}, time.Time{}},
	} {
		if got := c.task.runAt(); got.Sub(c.want).Abs() > 10*time.Second {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestAddMany_aFailedRequestLeavesItsTasksUnknown(t *testing.T) {
	f := startFake(t, func(f *fakeServer) {
		f.before = func(_ string, r any) error {
			for _, task := range r.(*v1.AddTasksRequest).Tasks {
				if task.Kind == "poison" {
					return status.Error(codes.Internal, "broken")
				}
			}
			return nil
		}
	})
	client := dialFake(t, f, WithAddSharing(AddSharing{MaxTasks: 1}))
	results, err := client.AddMany(t.Context(), "q", []Task{{Kind: "a"}, {Kind: "poison"}})
	if err == nil || len(results) != 2 {
		t.Fatalf("%+v, %v", results, err)
	}
	if results[0].ID == "" || results[1] != (AddResult{}) {
		t.Errorf("results %+v", results)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.AddMany(ctx, "q", []Task{{Kind: "a"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func TestAdd_severalQueuesAndManyOfThem(t *testing.T) {
	client := dialFake(t, startFake(t))
	for i := range maxIdleAdders + 10 {
		if _, err := client.adder(fmt.Sprint("q", i)); err != nil {
			t.Fatal(err)
		}
	}
	client.mu.RLock()
	n := len(client.adders)
	client.mu.RUnlock()
	if n > maxIdleAdders {
		t.Errorf("%d adders are kept, at most %d should", n, maxIdleAdders)
	}
	if _, err := client.Add(t.Context(), "q0", Task{Kind: "k"}); err != nil {
		t.Error(err)
	}
}

func BenchmarkAdd(b *testing.B) {
	f := startFake(b)
	client := dialFake(b, f)
	task := Task{Kind: "k", Payload: make([]byte, 256)}
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := client.Add(context.Background(), "q", task); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("64 callers", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := client.Add(context.Background(), "q", task); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("1000 at once", func(b *testing.B) {
		b.ReportAllocs()
		tasks := make([]Task, 1000)
		for i := range tasks {
			tasks[i] = task
		}
		for b.Loop() {
			if _, err := client.AddMany(context.Background(), "q", tasks); err != nil {
				b.Fatal(err)
			}
		}
	})
}
