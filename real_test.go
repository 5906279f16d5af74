package switchyard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard"
	"github.com/switchyard-dev/switchyard/api/reason"
	"github.com/switchyard-dev/switchyard/server"
)

// startNode runs a node with its data in memory and returns its address and the
// function that stops it.
func startNode(change ...func(*server.Config)) (address string, stop func() error, err error) {
	config := server.DefaultConfig()
	config.Listen = "127.0.0.1:0"
	config.Memory = true
	for _, c := range change {
		c(&config)
	}
	node, err := server.New(config, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	return node.Addr(), func() error { cancel(); return <-done }, nil
}

// connect returns a client of a new node. The node stops after the client.
func connect(t testing.TB, change ...func(*server.Config)) *switchyard.Client {
	t.Helper()
	address, stop, err := startNode(change...)
	if err != nil {
		t.Fatal(err)
	}
	client, err := switchyard.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return client
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func work(t testing.TB, client *switchyard.Client, handler switchyard.Handler, opts switchyard.WorkerOptions) (w *switchyard.Worker, stop func() error) {
	t.Helper()
	w = switchyard.NewWorker(client, "q", handler, opts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { stop() })
	return w, stop
}

func TestReal_fromAddToCompletion(t *testing.T) {
	client := connect(t)
	const callers, each = 32, 100
	var mu sync.Mutex
	added, ran := map[string]bool{}, map[string]int{}
	w, stop := work(t, client, switchyard.HandlerFunc(func(_ context.Context, job *switchyard.Job) error {
		if string(job.Payload) != "payload" || job.Headers["name"] != "value" || job.Attempt != 1 || job.MaxAttempts != 25 {
			t.Errorf("job %+v", job)
		}
		mu.Lock()
		defer mu.Unlock()
		ran[job.ID]++
		return nil
	}), switchyard.WorkerOptions{})
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				result, err := client.Add(within(t), "q", switchyard.Task{
					Kind: "k", Payload: []byte("payload"), Headers: map[string]string{"name": "value"}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				added[result.ID] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	eventually(t, "all are completed", func() bool { return w.Stats().Completed == callers*each })
	if err := stop(); err != nil {
		t.Error(err)
	}
	for id := range added {
		if ran[id] != 1 {
			t.Errorf("task %s ran %d times", id, ran[id])
		}
	}
	if s := w.Stats(); s.Errors != 0 || s.LeasesLost != 0 || s.Fetched != callers*each {
		t.Errorf("%+v", s)
	}
}

func TestReal_addingTwiceAddsOnce(t *testing.T) {
	client := connect(t)
	id := switchyard.NewID()
	for i := range 2 {
		result, err := client.Add(within(t), "q", switchyard.Task{ID: id, Kind: "k"})
		if err != nil || result.AlreadyAdded != (i == 1) || result.ID != id {
			t.Errorf("%+v, %v", result, err)
		}
	}
	results, err := client.AddMany(within(t), "q", []switchyard.Task{{Kind: "k"}, {Kind: ""}, {ID: id, Kind: "k"}, {ID: "x", Kind: "k"}})
	var batch *switchyard.BatchError
	if !errors.As(err, &batch) || batch.Failed != 2 || results[0].Err != nil || !results[2].AlreadyAdded {
		t.Fatalf("%+v, %v", results, err)
	}
	if switchyard.Reason(results[1].Err) != "INVALID_KIND" || switchyard.Reason(results[3].Err) != "INVALID_TASK_ID" {
		t.Errorf("%+v", results)
	}
}

func TestReal_endings(t *testing.T) {
	client := connect(t)
	boom := errors.New("boom")
	mux := switchyard.NewMux()
	mux.HandleFunc("completes", func(context.Context, *switchyard.Job) error { return nil })
	mux.HandleFunc("fails", func(context.Context, *switchyard.Job) error { return boom })
	mux.HandleFunc("is hopeless", func(context.Context, *switchyard.Job) error { return switchyard.NotRetryable(boom) })
	mux.HandleFunc("panics", func(context.Context, *switchyard.Job) error { panic("oh no") })
	mux.HandleFunc("succeeds later", func(_ context.Context, job *switchyard.Job) error {
		if job.Attempt < 3 {
			return switchyard.RetryAfter(10*time.Millisecond, boom)
		}
		if job.LastError != "boom" {
			t.Errorf("last error %q", job.LastError)
		}
		return nil
	})
	var releases atomic.Int64
	mux.HandleFunc("is released", func(_ context.Context, job *switchyard.Job) error {
		if job.Attempt != 1 {
			t.Errorf("attempt %d after a release", job.Attempt)
		}
		if releases.Add(1) < 3 {
			return switchyard.ErrRelease
		}
		return nil
	})
	ids := map[string]string{}
	for kind := range map[string]bool{"completes": true, "fails": true, "is hopeless": true, "panics": true, "succeeds later": true, "is released": true, "nobody knows": true} {
		result, err := client.Add(within(t), "q", switchyard.Task{Kind: kind, Retry: &switchyard.RetryPolicy{InitialBackoff: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		ids[kind] = result.ID
	}
	_, stop := work(t, client, mux, switchyard.WorkerOptions{})
	for kind, want := range map[string]switchyard.TaskState{
		"completes": switchyard.TaskCompleted, "fails": switchyard.TaskRetrying, "is hopeless": switchyard.TaskDead,
		"panics": switchyard.TaskRetrying, "succeeds later": switchyard.TaskCompleted, "is released": switchyard.TaskCompleted,
		"nobody knows": switchyard.TaskRetrying,
	} {
		var info *switchyard.TaskInfo
		eventually(t, kind+": "+want.String(), func() bool {
			var err error
			if info, err = client.Get(within(t), "q", ids[kind]); err != nil {
				t.Fatal(err)
			}
			return info.State == want
		})
		if wait := time.Until(info.RunAt); want == switchyard.TaskRetrying && (wait < 30*time.Second || wait > time.Minute) {
			t.Errorf("%s: next attempt in %v", kind, wait)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestReal_delayedTasksWait(t *testing.T) {
	client := connect(t)
	start := time.Now()
	if _, err := client.Add(within(t), "q", switchyard.Task{Kind: "k", Delay: 300 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	at := make(chan time.Time, 1)
	work(t, client, switchyard.HandlerFunc(func(context.Context, *switchyard.Job) error { at <- time.Now(); return nil }), switchyard.WorkerOptions{})
	select {
	case ran := <-at:
		if d := ran.Sub(start); d < 290*time.Millisecond {
			t.Errorf("ran after %v", d)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("did not run")
	}
}

func TestReal_longJobsKeepTheirLeaseAndCancelledOnesEnd(t *testing.T) {
	client := connect(t)
	result, err := client.Add(within(t), "q", switchyard.Task{Kind: "k", LeaseTime: 900 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	started, cause := make(chan struct{}, 10), make(chan error, 10)
	w, stop := work(t, client, switchyard.HandlerFunc(func(ctx context.Context, _ *switchyard.Job) error {
		started <- struct{}{}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	}), switchyard.WorkerOptions{OnError: func(e switchyard.TaskError) {
		if e.Op != "extend" || e.Job.ID != result.ID {
			t.Error(e)
		}
	}})
	<-started
	time.Sleep(2500 * time.Millisecond) // more than two leases
	if n := len(started) + len(cause); n != 0 || w.Stats().Running != 1 {
		t.Fatalf("the lease was lost: %+v", w.Stats())
	}
	if was, err := client.Cancel(within(t), "q", result.ID); err != nil || was != switchyard.TaskLeased {
		t.Fatalf("%v, %v", was, err)
	}
	select {
	case err := <-cause:
		if !errors.Is(err, switchyard.ErrLeaseLost) || !errors.Is(err, switchyard.ErrTaskCancelled) {
			t.Errorf("cause %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the job was not cancelled")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := client.Cancel(within(t), "q", result.ID); !errors.Is(err, switchyard.ErrTaskCancelled) {
		t.Errorf("cancelled again: %v", err)
	}
	if _, err := client.Get(within(t), "q", switchyard.NewID()); !errors.Is(err, switchyard.ErrTaskNotFound) {
		t.Errorf("unknown task: %v", err)
	}
}

func TestReal_stopHandsBackAtOnce(t *testing.T) {
	client := connect(t)
	tasks := make([]switchyard.Task, 50)
	for i := range tasks {
		tasks[i].Kind = "k"
	}
	if _, err := client.AddMany(within(t), "q", tasks); err != nil {
		t.Fatal(err)
	}
	w, stop := work(t, client, switchyard.HandlerFunc(func(ctx context.Context, _ *switchyard.Job) error {
		<-ctx.Done()
		return ctx.Err()
	}), switchyard.WorkerOptions{Concurrency: 4, Prefetch: 10, StopTimeout: time.Millisecond})
	eventually(t, "tasks run and wait", func() bool { s := w.Stats(); return s.Running == 4 && s.Waiting == 10 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	var total atomic.Int64
	work(t, client, switchyard.HandlerFunc(func(_ context.Context, job *switchyard.Job) error {
		if job.Attempt != 1 {
			t.Errorf("attempt %d", job.Attempt)
		}
		total.Add(1)
		return nil
	}), switchyard.WorkerOptions{})
	eventually(t, "another worker gets all", func() bool { return total.Load() == 50 })
}

func TestReal_queues(t *testing.T) {
	client := connect(t, func(c *server.Config) { c.AutoCreateQueues = false })
	ctx := within(t)
	queues := client.Queues()

	if _, err := client.Add(ctx, "q", switchyard.Task{Kind: "k"}); !errors.Is(err, switchyard.ErrQueueNotFound) {
		t.Errorf("add to no queue: %v", err)
	}
	if err := switchyard.NewWorker(client, "q", switchyard.NewMux(), switchyard.WorkerOptions{}).Run(ctx); !errors.Is(err, switchyard.ErrQueueNotFound) {
		t.Errorf("work on no queue: %v", err)
	}
	config := switchyard.QueueConfig{
		LeaseTime: time.Minute, MaxAttempts: 2, TTL: time.Hour,
		Retry: &switchyard.RetryPolicy{InitialBackoff: time.Millisecond, MaxBackoff: time.Second, Multiplier: 1.5, Jitter: switchyard.NoJitter},
	}
	made, err := queues.Create(ctx, "q", config)
	if err != nil || made.Name != "q" || made.Namespace != "default" || made.Paused || made.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", made, err)
	}
	if got := made.Config; got.LeaseTime != time.Minute || got.MaxAttempts != 2 || got.TTL != time.Hour || *got.Retry != *config.Retry {
		t.Errorf("configuration %+v, %+v", got, got.Retry)
	}
	if _, err := queues.Create(ctx, "q", config); !errors.Is(err, switchyard.ErrQueueAlreadyExists) {
		t.Errorf("create again: %v", err)
	}
	updated, err := queues.Update(ctx, "q", switchyard.QueueConfig{MaxAttempts: 3}, "max_attempts")
	if err != nil || updated.Config.MaxAttempts != 3 || updated.Config.LeaseTime != time.Minute {
		t.Errorf("%+v, %v", updated, err)
	}

	for i := range 250 {
		if _, err := queues.Create(ctx, fmt.Sprintf("other-%03d", i), switchyard.QueueConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for q, err := range queues.List(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, q.Name)
	}
	if len(names) != 251 || !slices.IsSorted(names) {
		t.Errorf("%d queues", len(names))
	}
	for range queues.List(ctx) {
		break // leaving early is fine
	}

	scaling := switchyard.Scaling{Mode: switchyard.ScalingShadow, MinPartitions: 2, MaxPartitions: 8, BacklogCap: 1000,
		Up: []switchyard.ScalingRule{{Window: time.Minute, Rate: 100}}}
	updated, err = queues.Update(ctx, "q", switchyard.QueueConfig{Scaling: &scaling}, "scaling")
	if err != nil || !reflect.DeepEqual(updated.Config.Scaling, &scaling) {
		t.Errorf("%+v, %v", updated.Config.Scaling, err)
	}
	if _, err := queues.Update(ctx, "q", switchyard.QueueConfig{Scaling: &switchyard.Scaling{Mode: 7}}, "scaling"); switchyard.Reason(err) != reason.InvalidScaling {
		t.Errorf("a mode that there is not: %v", err)
	}
	if _, err := queues.Update(ctx, "q", switchyard.QueueConfig{}, "scaling"); err != nil {
		t.Error(err)
	}
	if n, err := queues.EndPolls(ctx, "q", "nobody"); err != nil || n != 0 {
		t.Errorf("ended %d polls, %v", n, err)
	}
	if _, err := queues.Pause(ctx, "q"); err != nil {
		t.Fatal(err)
	}
	tasks := make([]switchyard.Task, 120)
	for i := range tasks {
		tasks[i].Kind = "k"
	}
	if _, err := client.AddMany(ctx, "q", tasks); err != nil {
		t.Fatal(err)
	}
	w, stop := work(t, client, switchyard.HandlerFunc(func(context.Context, *switchyard.Job) error {
		return switchyard.NotRetryable(errors.New("no"))
	}), switchyard.WorkerOptions{Identity: "somebody"})
	eventually(t, "the worker polls", func() bool { return w.Stats().Polls > 0 })
	described, err := queues.Describe(ctx, "q")
	if err != nil || !described.Paused || described.Counts.Ready != 120 || len(described.Partitions) == 0 {
		t.Errorf("%+v, %v", described, err)
	}
	if resumed, err := queues.Resume(ctx, "q"); err != nil || resumed.Paused {
		t.Errorf("%+v, %v", resumed, err)
	}
	eventually(t, "all are dead", func() bool {
		d, err := queues.Describe(ctx, "q")
		return err == nil && d.Counts.Dead == 120
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	eventually(t, "its polls are over at the server too", func() bool {
		described, err = queues.Describe(ctx, "q")
		return err == nil && len(described.Pollers) == 1 && described.Pollers[0].Identity == "somebody" && described.Pollers[0].Waiting == 0
	})
	dead := 0
	for task, err := range queues.DeadTasks(ctx, "q") {
		if err != nil {
			t.Fatal(err)
		}
		if dead++; task.State != switchyard.TaskDead || task.LastError != "no" || task.DeadAt.IsZero() {
			t.Errorf("%+v", task)
		}
	}
	if dead != 120 {
		t.Errorf("%d dead tasks listed", dead)
	}
	if n, err := queues.RedriveDead(ctx, "q", switchyard.Redrive{Limit: 20}); err != nil || n != 20 {
		t.Errorf("redriven %d, %v", n, err)
	}
	if err := queues.Delete(ctx, "q", false); !errors.Is(err, switchyard.ErrQueueNotEmpty) {
		t.Errorf("delete with tasks: %v", err)
	}
	if n, err := queues.Purge(ctx, "q", true); err != nil || n != 120 {
		t.Errorf("purged %d, %v", n, err)
	}
	if err := queues.Delete(ctx, "q", false); err != nil {
		t.Error(err)
	}
	if _, err := queues.Describe(ctx, "q"); !errors.Is(err, switchyard.ErrQueueNotFound) {
		t.Errorf("describe after delete: %v", err)
	}
	ends := 0
	for _, err := range queues.DeadTasks(ctx, "q") {
		if ends++; !errors.Is(err, switchyard.ErrQueueNotFound) {
			t.Errorf("dead tasks after delete: %v", err)
		}
	}
	if ends != 1 {
		t.Errorf("dead tasks after delete: %d errors, want one", ends)
	}
}
