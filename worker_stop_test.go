package switchyard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func TestWorker_stopWaitsForRunningJobsAndReleasesTheOthers(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	ids := addTasks(t, client, 10)
	proceed := make(chan struct{})
	w := startWorker(t, client, HandlerFunc(func(ctx context.Context, job *Job) error {
		<-proceed
		return ctx.Err()
	}), WorkerOptions{Concurrency: 2, Prefetch: 4})
	eventually(t, "two run and four wait", func() bool { s := w.Stats(); return s.Running == 2 && s.Waiting == 4 })
	w.stop()
	eventually(t, "those that wait are released", func() bool { return w.Stats().Released == 4 })
	select {
	case err := <-w.done:
		t.Fatalf("Run returned %v with jobs running", err)
	default:
	}
	close(proceed)
	if err := w.wait(); err != nil {
		t.Fatal(err)
	}
	states := map[TaskState]int{}
	for _, id := range ids {
		info := state(t, client, id)
		states[info.State]++
		if info.State == TaskReady && info.Attempt != 0 {
			t.Errorf("a task that did not run has attempt %d", info.Attempt)
		}
	}
	if states[TaskCompleted] != 2 || states[TaskReady] != 8 {
		t.Errorf("states %v", states)
	}
}

func TestWorker_stopCancelsJobsAfterTheTimeoutAndReleasesThem(t *testing.T) {
	for name, stop := range map[string]func(*running){
		"stop timeout": func(w *running) { w.stop() },
		"stop now":     func(w *running) { w.StopNow() },
		"both":         func(w *running) { w.stop(); w.StopNow() },
	} {
		t.Run(name, func(t *testing.T) {
			client := dialFake(t, startFake(t))
			ids := addTasks(t, client, 2)
			w := startWorker(t, client, HandlerFunc(func(ctx context.Context, job *Job) error {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), ErrWorkerStopped) {
					t.Errorf("cause %v", context.Cause(ctx))
				}
				return fmt.Errorf("interrupted: %w", ctx.Err())
			}), WorkerOptions{Concurrency: 2, StopTimeout: map[string]time.Duration{"stop timeout": 50 * time.Millisecond}[name]})
			eventually(t, "both run", func() bool { return w.Stats().Running == 2 })
			stop(w)
			if err := w.wait(); err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				if info := state(t, client, id); info.State != TaskReady || info.Attempt != 0 {
					t.Errorf("%+v", info)
				}
			}
		})
	}
}

func TestWorker_stopDoesNotWaitForeverForAJob(t *testing.T) {
	client := dialFake(t, startFake(t))
	addTasks(t, client, 1)
	proceed := make(chan struct{})
	returned := make(chan struct{})
	w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error {
		defer close(returned)
		<-proceed
		return nil
	}), WorkerOptions{Concurrency: 1, StopTimeout: time.Millisecond, CancelTimeout: time.Millisecond})
	eventually(t, "it runs", func() bool { return w.Stats().Running == 1 })
	if err := w.end(); err == nil || !strings.Contains(err.Error(), "1 handlers are still running") {
		t.Errorf("error %v", err)
	}
	close(proceed)
	<-returned
}

func TestWorker_stopGivesUpWhenTheServerTakesNoResults(t *testing.T) {
	f := startFake(t, func(f *fakeServer) {
		f.before = failFirst(1<<40, "CompleteTasks", status.Error(codes.Unavailable, "gone"))
	})
	client := dialFake(t, f)
	addTasks(t, client, 3)
	w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { return nil }),
		WorkerOptions{FlushTimeout: 50 * time.Millisecond})
	eventually(t, "all have run", func() bool { return w.Stats().Unacknowledged == 3 })
	if err := w.end(); err == nil || !strings.Contains(err.Error(), "3 results did not reach the server") {
		t.Errorf("error %v", err)
	}
	if s := w.Stats(); s.Errors != 3 || s.Unacknowledged != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWorker_unknownQueueEndsRun(t *testing.T) {
	client := dialFake(t, startFake(t))
	err := startWorker(t, client, NewMux(), WorkerOptions{}).wait()
	if !errors.Is(err, ErrQueueNotFound) || !strings.Contains(err.Error(), `poll queue "q"`) {
		t.Errorf("error %v", err)
	}
}

func TestWorker_pollsAgainAfterErrors(t *testing.T) {
	f := startFake(t, func(f *fakeServer) { f.before = failFirst(3, "PollTasks", status.Error(codes.Unavailable, "gone")) })
	client := dialFake(t, f)
	addTasks(t, client, 1)
	var logged bytes.Buffer
	w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { return nil }), WorkerOptions{
		Logger: slog.New(slog.NewTextHandler(&logged, nil)), Polls: 1})
	eventually(t, "completed", func() bool { return w.Stats().Completed == 1 })
	if err := w.end(); err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.PollErrors != 3 {
		t.Errorf("%+v", s)
	}
	if n := strings.Count(logged.String(), "cannot poll"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, logged.String())
	}
}

func TestWorker_doesNotStormAServerThatDoesNotWait(t *testing.T) {
	f := startFake(t, func(f *fakeServer) {
		f.before = func(_ string, r any) error {
			if r, ok := r.(*v1.PollTasksRequest); ok {
				r.Wait = nil
			}
			return nil
		}
	})
	client := dialFake(t, f)
	addTasks(t, client, 1)
	w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { return nil }), WorkerOptions{})
	eventually(t, "completed", func() bool { return w.Stats().Completed == 1 })
	time.Sleep(300 * time.Millisecond)
	if n := f.count("PollTasks"); n > 40 {
		t.Errorf("%d polls in 0.3 s", n)
	}
}

func TestWorker_closedClientEndsRun(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	addTasks(t, client, 1)
	w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { return nil }), WorkerOptions{FlushTimeout: 100 * time.Millisecond})
	eventually(t, "completed", func() bool { return w.Stats().Completed == 1 })
	client.Close()
	if err := w.wait(); !errors.Is(err, ErrClientClosed) {
		t.Errorf("error %v", err)
	}
}

func TestWorker_optionsThatMakeNoSense(t *testing.T) {
	client := dialFake(t, startFake(t))
	for _, opts := range []WorkerOptions{
		{Concurrency: -1}, {LeaseTime: -1}, {Polls: -1}, {PollWait: -1}, {MaxUnacknowledged: -1},
		{StopTimeout: -1}, {CancelTimeout: -1}, {FlushTimeout: -1},
	} {
		if err := NewWorker(client, "q", NewMux(), opts).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "WorkerOptions.") {
			t.Errorf("%+v: error %v", opts, err)
		}
	}
	w := startWorker(t, client, NewMux(), WorkerOptions{})
	w.wait()
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("second Run: %v", err)
	}
}

func TestWorker_singleResultsAreRepeatedToo(t *testing.T) {
	f := startFake(t)
	client := dialFake(t, f)
	addTasks(t, client, 20)
	f.item = failItems("CompleteTasks", 5)
	w := startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { return nil }), WorkerOptions{})
	eventually(t, "all are completed", func() bool { return w.Stats().Completed == 20 })
	if s := w.Stats(); s.Errors != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWorker_resultsOlderThanTheLeaseAreGivenUp(t *testing.T) {
	f := startFake(t, func(f *fakeServer) {
		f.before = failFirst(1<<40, "CompleteTasks", status.Error(codes.Unavailable, "gone"))
	})
	client := dialFake(t, f)
	addTasks(t, client, 1)
	reported := make(chan TaskError, 100)
	startWorker(t, client, HandlerFunc(func(context.Context, *Job) error { return nil }),
		WorkerOptions{LeaseTime: 200 * time.Millisecond, FlushTimeout: 10 * time.Millisecond, OnError: func(e TaskError) { reported <- e }})
	select {
	case e := <-reported:
		if e.Op != "complete" || status.Code(e.Err) != codes.Unavailable {
			t.Errorf("reported %v", e)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("tried for ever")
	}
}
