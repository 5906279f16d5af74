package switchyard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/api/reason"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// running is a worker that runs.
type running struct {
	*Worker
	t    testing.TB
	stop context.CancelFunc
	done chan error
}

func startWorker(t testing.TB, client *Client, handler Handler, opts WorkerOptions) *running {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet()
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{NewWorker(client, "q", handler, opts), t, cancel, make(chan error, 1)}
	go func() { r.done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		r.StopNow()
		select {
		case err := <-r.done:
			r.done <- err
		case <-time.After(20 * time.Second):
			t.Error("the worker did not stop")
		}
	})
	return r
}

// end stops the worker and returns what Run returned.
func (r *running) end() error {
	r.t.Helper()
	r.stop()
	return r.wait()
}

func (r *running) wait() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(20 * time.Second):
		r.t.Fatal("the worker did not stop")
		return nil
	}
}

// addTasks adds n tasks of a kind and returns their ids.
func addTasks(t testing.TB, client *Client, n int, change ...func(*Task)) []string {
	t.Helper()
	tasks := make([]Task, n)
	for i := range tasks {
		tasks[i] = Task{Kind: "k", Payload: fmt.Append(nil, i)}
		for _, c := range change {
			c(&tasks[i])
		}
	}
	results, err := client.AddMany(t.Context(), "q", tasks)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, n)
	for i, r := range results {
		ids[i] = r.ID
	}
	return ids
}

func state(t testing.TB, client *Client, id string) *TaskInfo {
	t.Helper()
	info, err := client.Get(t.Context(), "q", id)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestWorker_runsEachTaskOnceAndCompletesIt(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	const n = 3000
	ids := addTasks(t, client, n)
	var mu sync.Mutex
	seen := map[string]int{}
	w := startWorker(t, client, HandlerFunc(func(ctx context.Context, job *Job) error {
		if job.Queue != "q" || job.Kind != "k" || job.Attempt != 1 || job.MaxAttempts != 25 || job.AddedAt.IsZero() {
			t.Errorf("job %+v", job)
		}
		mu.Lock()
		defer mu.Unlock()
		seen[job.ID]++
		return nil
	}), WorkerOptions{Concurrency: 16})
	eventually(t, "all are completed", func() bool { return w.Stats().Completed == n })
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if seen[id] != 1 {
			t.Errorf("task %s ran %d times", id, seen[id])
		}
	}
	if s := w.Stats(); s.Running+s.Waiting+s.Polls+s.Unacknowledged != 0 || s.Fetched != n || s.Errors != 0 {
		t.Errorf("at the end: %+v", s)
	}
	if state(t, client, ids[0]).State != TaskCompleted {
		t.Error("not completed at the server")
	}
	polls, completes := f.count("PollTasks"), f.count("CompleteTasks")
	t.Logf("%d tasks: %d polls, %d completions", n, polls, completes)
	if polls > n/5 || completes > n/5 {
		t.Errorf("%d polls and %d completions for %d tasks", polls, completes, n)
	}
}

func TestWorker_endings(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		handler func(ctx context.Context, job *Job) error
		task    func(*Task)
		state   TaskState
		err     string
		attempt int
	}{
		"nil completes":            {func(context.Context, *Job) error { return nil }, nil, TaskCompleted, "", 1},
		"an error is retried":      {func(context.Context, *Job) error { return boom }, nil, TaskRetrying, "boom", 1},
		"the last attempt is dead": {func(context.Context, *Job) error { return boom }, func(t *Task) { t.MaxAttempts = 1 }, TaskDead, "boom", 1},
		"not retryable":            {func(context.Context, *Job) error { return NotRetryable(boom) }, nil, TaskDead, "boom", 1},
		"not retryable, wrapped": {func(context.Context, *Job) error {
			return fmt.Errorf("outer: %w", RetryAfter(time.Hour, NotRetryable(boom)))
		}, nil, TaskDead, "outer: boom", 1},
		"retried after a time of its own": {func(_ context.Context, job *Job) error {
			if job.Attempt == 1 {
				return RetryAfter(0, boom)
			}
			if job.LastError != "boom" {
				return NotRetryable(fmt.Errorf("last error %q", job.LastError))
			}
			return nil
		}, nil, TaskCompleted, "boom", 2},
		"a panic": {func(context.Context, *Job) error { panic("oh no") }, nil, TaskRetrying, "panic: oh no\n\ngoroutine", 1},
		"Goexit":  {func(context.Context, *Job) error { runtime.Goexit(); return nil }, nil, TaskRetrying, "runtime.Goexit", 1},
		"a long error is cut": {func(context.Context, *Job) error { return errors.New("é" + strings.Repeat("xé", 4000)) },
			nil, TaskRetrying, "éxé", 1},
	} {
		t.Run(name, func(t *testing.T) {
			client := dialFake(t, startFake(t))
			id := addTasks(t, client, 1, func(task *Task) {
				if c.task != nil {
					c.task(task)
				}
			})[0]
			w := startWorker(t, client, HandlerFunc(c.handler), WorkerOptions{Concurrency: 2})
			eventually(t, "the task is "+c.state.String(), func() bool { return state(t, client, id).State == c.state })
			info := state(t, client, id)
			if !strings.Contains(info.LastError, c.err) || len(info.LastError) > maxErrorText || info.Attempt != c.attempt {
				t.Errorf("attempt %d, error %q", info.Attempt, info.LastError)
			}
			eventually(t, "the result is acknowledged", func() bool { return w.Stats().Unacknowledged == 0 })
			s := w.Stats()
			if wantPanics := int64(strings.Count(c.err, "panic:")); s.Panics != wantPanics {
				t.Errorf("%d panics, want %d", s.Panics, wantPanics)
			}
			// A seat whose goroutine ended works on.
			next := addTasks(t, client, 8, func(task *Task) { task.MaxAttempts = 1 })
			eventually(t, "later tasks run", func() bool {
				return !slices.ContainsFunc(next, func(id string) bool { s := state(t, client, id).State; return s == TaskReady || s == TaskLeased })
			})
			if err := w.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWorker_releasedTasksDoNotCountAnAttempt(t *testing.T) {
	client := dialFake(t, startFake(t))
	addTasks(t, client, 1)
	var runs atomic.Int64
	w := startWorker(t, client, HandlerFunc(func(_ context.Context, job *Job) error {
		if job.Attempt != 1 {
			t.Errorf("attempt %d", job.Attempt)
		}
		if runs.Add(1) < 3 {
			return fmt.Errorf("not now: %w", ErrRelease)
		}
		return nil
	}), WorkerOptions{})
	eventually(t, "completed", func() bool { return w.Stats().Completed == 1 })
	if s := w.Stats(); s.Released != 2 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWorker_longJobsKeepTheirLease(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	for name, opts := range map[string]WorkerOptions{
		"the worker's lease time": {LeaseTime: 900 * time.Millisecond},
		"the task's lease time":   {},
	} {
		t.Run(name, func(t *testing.T) {
			addTasks(t, client, 1, func(task *Task) { task.LeaseTime = 900 * time.Millisecond })
			var runs atomic.Int64
			w := startWorker(t, client, HandlerFunc(func(ctx context.Context, job *Job) error {
				runs.Add(1)
				select {
				case <-ctx.Done():
					t.Errorf("cancelled: %v", context.Cause(ctx))
				case <-time.After(2 * time.Second):
				}
				return nil
			}), opts)
			eventually(t, "completed", func() bool { return w.Stats().Completed == 1 })
			if err := w.end(); err != nil || runs.Load() != 1 || w.Stats().LeasesLost != 0 {
				t.Errorf("%d runs, %+v, %v", runs.Load(), w.Stats(), err)
			}
		})
	}
}

func TestWorker_aLostLeaseCancelsTheJob(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	id := addTasks(t, client, 1)[0]
	started, cause := make(chan struct{}), make(chan error, 1)
	var hooked atomic.Int64
	w := startWorker(t, client, HandlerFunc(func(ctx context.Context, job *Job) error {
		close(started)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	}), WorkerOptions{LeaseTime: 2 * time.Second, OnError: func(e TaskError) {
		hooked.Add(1)
		if e.Op != "extend" || e.Job.ID != id || !errors.Is(e, ErrTaskCancelled) || !strings.Contains(e.Error(), id) {
			t.Errorf("hook: %v", e)
		}
	}})
	<-started
	if was, err := client.Cancel(t.Context(), "q", id); err != nil || was != TaskLeased {
		t.Fatalf("%v, %v", was, err)
	}
	select {
	case err := <-cause:
		if !errors.Is(err, ErrLeaseLost) || !errors.Is(err, ErrTaskCancelled) {
			t.Errorf("cause %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the job was not cancelled")
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.LeasesLost != 1 || hooked.Load() != 1 || s.Failed+s.Completed+s.Errors != 0 || f.count("FailTasks") != 0 {
		t.Errorf("%+v, hook called %d times", s, hooked.Load())
	}
}

func TestWorker_anUnreachableServerCancelsTheJobWhenTheLeaseIsOver(t *testing.T) {
	f := startFake(t, func(f *fakeServer) {
		f.before = failFirst(1<<40, "ExtendLeases", status.Error(codes.Unavailable, "gone"))
	})
	client := dialFake(t, f)
	addTasks(t, client, 1, func(task *Task) { task.MaxAttempts = 1 })
	cause := make(chan error, 10)
	startWorker(t, client, HandlerFunc(func(ctx context.Context, job *Job) error {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil
	}), WorkerOptions{LeaseTime: time.Second, Concurrency: 1})
	select {
	case err := <-cause:
		if !errors.Is(err, ErrLeaseLost) {
			t.Errorf("cause %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the job was not cancelled")
	}
	if f.count("ExtendLeases") < 2 {
		t.Error("the extension was not tried again")
	}
}

func TestWorker_aRepeatedCompletionCountsAsSuccess(t *testing.T) {
	for _, side := range []string{"before", "after"} {
		t.Run("error "+side, func(t *testing.T) {
			f := startFake(t, func(f *fakeServer) {
				hook := failFirst(2, "CompleteTasks", status.Error(codes.Unavailable, "gone"))
				if side == "before" {
					f.before = hook
				} else {
					f.after = hook
				}
			})
			client := dialFake(t, f)
			id := addTasks(t, client, 1)[0]
			w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { return nil }), WorkerOptions{})
			eventually(t, "completed", func() bool { return w.Stats().Completed == 1 })
			if err := w.end(); err != nil {
				t.Error(err)
			}
			if s := w.Stats(); s.Errors != 0 || state(t, client, id).State != TaskCompleted {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestWorker_aRepeatedFailureCountsAsSuccess(t *testing.T) {
	f := startFake(t, func(f *fakeServer) { f.after = failFirst(1, "FailTasks", status.Error(codes.Unavailable, "gone")) })
	client := dialFake(t, f)
	addTasks(t, client, 1)
	w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { return errors.New("no") }), WorkerOptions{})
	eventually(t, "failed", func() bool { return w.Stats().Failed == 1 })
	if s := w.Stats(); s.Errors != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWorker_resultsThatTheServerRefusesAreReported(t *testing.T) {
	f := startFake(t, func(f *fakeServer) {
		f.before = failFirst(1<<40, "CompleteTasks", reason.New(codes.Internal, reason.Internal, nil, "broken"))
	})
	client := dialFake(t, f)
	id := addTasks(t, client, 1)[0]
	reported := make(chan TaskError, 10)
	w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { return nil }), WorkerOptions{
		OnError: func(e TaskError) { reported <- e }})
	select {
	case e := <-reported:
		if e.Op != "complete" || e.Job.ID != id || Reason(e.Err) != reason.Internal {
			t.Errorf("reported %v", e)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was reported")
	}
	if s := w.Stats(); s.Errors != 1 || s.Completed != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWorker_boundsUnacknowledgedResults(t *testing.T) {
	hold := make(chan struct{})
	f := startFake(t, func(f *fakeServer) {
		f.before = func(method string, _ any) error {
			if method == "CompleteTasks" {
				<-hold
			}
			return nil
		}
	})
	client := dialFake(t, f)
	addTasks(t, client, 200)
	var runs atomic.Int64
	w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { runs.Add(1); return nil }),
		WorkerOptions{Concurrency: 4, MaxUnacknowledged: 10})
	eventually(t, "the bound is reached", func() bool { return w.Stats().Unacknowledged == 10 && runs.Load() == 14 })
	for range 20 {
		time.Sleep(time.Millisecond)
		if n := runs.Load(); n != 14 {
			t.Fatalf("%d ran", n)
		}
	}
	close(hold)
	eventually(t, "all are completed", func() bool { return w.Stats().Completed == 200 })
}

func TestWorker_keepsNothingFromOthersWhenItIsSlow(t *testing.T) {
	client := dialFake(t, startFake(t))
	addTasks(t, client, 100)
	proceed := make(chan struct{})
	defer close(proceed)
	w := startWorker(t, client, HandlerFunc(func(ctx context.Context, job *Job) error {
		select {
		case <-proceed:
		case <-ctx.Done():
		}
		return ctx.Err()
	}), WorkerOptions{Concurrency: 3})
	eventually(t, "three run", func() bool { return w.Stats().Running == 3 })
	for range 20 {
		time.Sleep(time.Millisecond)
		if s := w.Stats(); s.Waiting > 0 || s.Fetched > 3 {
			t.Fatalf("%+v", s)
		}
	}
}

func TestWorker_handsBackWhatWaitsTooLong(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	addTasks(t, client, 5, func(task *Task) { task.LeaseTime = 900 * time.Millisecond })
	proceed := make(chan struct{})
	var once sync.Once
	w := startWorker(t, client, HandlerFunc(func(ctx context.Context, job *Job) error {
		<-proceed
		return nil
	}), WorkerOptions{Concurrency: 1, Prefetch: 4})
	t.Cleanup(func() { once.Do(func() { close(proceed) }) })
	eventually(t, "four were handed back", func() bool { return w.Stats().Released >= 4 })
	if s := w.Stats(); s.Running != 1 {
		t.Errorf("%+v", s)
	}
	once.Do(func() { close(proceed) })
	eventually(t, "all are completed in the end", func() bool { return w.Stats().Completed == 5 })
}

func BenchmarkWorker(b *testing.B) {
	f := startFake(b)
	client := dialFake(b, f)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const batch = 20_000
	task := Task{Kind: "k", Payload: make([]byte, 256)}
	tasks := make([]Task, batch)
	for i := range tasks {
		tasks[i] = task
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		if _, err := client.AddMany(ctx, "q", tasks); err != nil {
			b.Fatal(err)
		}
		w := NewWorker(client, "q", HandlerFunc(func(context.Context, *Job) error { return nil }), WorkerOptions{Concurrency: 64, Logger: quiet()})
		stop, end := context.WithCancel(ctx)
		done := make(chan error)
		b.StartTimer()
		go func() { done <- w.Run(stop) }()
		for w.Stats().Completed < batch {
			time.Sleep(100 * time.Microsecond)
		}
		b.StopTimer()
		end()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds(), "tasks/s")
}
