package switchyard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard"
)

// serveCalls runs a call worker until the test ends.
func serveCalls(t *testing.T, client *switchyard.Client, queue string, handler switchyard.CallHandler) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	worker := switchyard.NewCallWorker(client, queue, handler, switchyard.CallWorkerOptions{Identity: "answerer"})
	go func() { done <- worker.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("worker: %v", err)
		}
	})
}

func TestCall_bringsTheWorkersAnswerOrItsError(t *testing.T) {
	client := connect(t)
	ctx := within(t)
	serveCalls(t, client, "q", func(ctx context.Context, call *switchyard.IncomingCall) ([]byte, error) {
		switch call.Kind {
		case "upper":
			return []byte(strings.ToUpper(string(call.Payload)) + call.Headers["mark"]), nil
		case "panic":
			panic("oh")
		}
		return nil, fmt.Errorf("no %q here", call.Kind)
	})
	var callers sync.WaitGroup
	for i := range 50 {
		callers.Go(func() {
			answer, err := client.Call(ctx, "q", switchyard.Call{Kind: "upper", Payload: fmt.Appendf(nil, "text %d", i), Headers: map[string]string{"mark": "!"}})
			if err != nil || string(answer) != fmt.Sprintf("TEXT %d!", i) {
				t.Errorf("call %d: %q, %v", i, answer, err)
			}
		})
	}
	callers.Wait()
	_, err := client.Call(ctx, "q", switchyard.Call{Kind: "other"})
	var failed *switchyard.CallError
	if !errors.As(err, &failed) || failed.Text != `no "other" here` || failed.Identity != "answerer" {
		t.Errorf("an error of the worker became %v", err)
	}
	if _, err := client.Call(ctx, "q", switchyard.Call{Kind: "panic"}); !errors.As(err, &failed) {
		t.Errorf("a panic of the handler became %v", err)
	}
}

func TestCall_withoutAWorkerOrAnAnswerSaysWhich(t *testing.T) {
	client := connect(t)
	ctx := within(t)
	if _, err := client.Call(ctx, "q", switchyard.Call{Kind: "k", Timeout: 50 * time.Millisecond}); !errors.Is(err, switchyard.ErrNoPoller) {
		t.Errorf("without a worker: %v", err)
	}
	ended := make(chan error, 1)
	serveCalls(t, client, "slow", func(ctx context.Context, _ *switchyard.IncomingCall) ([]byte, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	if _, err := client.Call(ctx, "slow", switchyard.Call{Kind: "k", Timeout: 2 * time.Second}); !errors.Is(err, switchyard.ErrCallTimedOut) {
		t.Errorf("without an answer: %v", err)
	}
	select {
	case <-ended: // the handler's context ended with the caller's patience
	case <-ctx.Done():
		t.Error("the handler was not told that its caller left")
	}
}

func TestSticky_tasksGoToTheirWorker(t *testing.T) {
	client := connect(t)
	ctx := within(t)
	task := switchyard.Task{Kind: "k", Payload: []byte("x"), MaxAttempts: 3}
	if _, err := client.AddSticky(ctx, "q", "w1", task); !errors.Is(err, switchyard.ErrStickyWorkerUnavailable) {
		t.Fatalf("adding for a worker that is not there: %v", err)
	}
	workCtx, stop := context.WithCancel(ctx)
	got := make(chan string, 10)
	worker := switchyard.NewWorker(client, "q", switchyard.HandlerFunc(func(_ context.Context, job *switchyard.Job) error {
		got <- string(job.Payload)
		return nil
	}), switchyard.WorkerOptions{Sticky: "w1"})
	done := make(chan error, 1)
	go func() { done <- worker.Run(workCtx) }()
	for {
		results, err := client.AddSticky(ctx, "q", "w1", task, task)
		if err == nil {
			if len(results) != 2 || results[0].ID == "" || results[0].ID == results[1].ID {
				t.Fatalf("results %v", results)
			}
			break
		}
		if !errors.Is(err, switchyard.ErrStickyWorkerUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // until its first poll is there
	}
	for range 2 {
		select {
		case <-got:
		case <-ctx.Done():
			t.Fatal("the worker did not get its tasks")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
