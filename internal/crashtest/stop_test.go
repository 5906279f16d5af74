package crashtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	switchyardv1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/history"
)

// gather polls with several pollers until the context ends or want tasks came.
func gather(ctx context.Context, c *client, pollers, want int) map[string]*switchyardv1.LeasedTask {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var group sync.WaitGroup
	got := map[string]*switchyardv1.LeasedTask{}
	for range pollers {
		group.Go(func() {
			for ctx.Err() == nil {
				tasks, err := c.poll(ctx, 10, time.Second, 0)
				if err != nil && !pause(ctx, 20*time.Millisecond) {
					return
				}
				mu.Lock()
				for _, task := range tasks {
					got[task.Id] = task
				}
				if len(got) >= want {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return got
}

func TestStop_endsPollsAndHandsBack(t *testing.T) {
	processTest(t)
	n := newNode(t, t.TempDir())
	n.start()
	recorder := history.NewRecorder()
	conn := dial(t, n.addr)
	c := newClient(conn, recorder, "stop", "client")
	idle := newClient(conn, recorder, "idle", "idler")

	// Workers that wait on an empty queue, all of them attached.
	const waiting = 32
	ended := make(chan error, waiting)
	for range waiting {
		go func() {
			_, err := idle.poll(t.Context(), 1, 30*time.Second, 0)
			ended <- err
		}()
	}
	waitFor(t, "all idle workers to wait", func() error {
		response, err := idle.queues.DescribeQueue(t.Context(), &switchyardv1.DescribeQueueRequest{Queue: "idle"})
		if err != nil {
			return err
		}
		polls := 0
		for _, p := range response.Partitions {
			polls += int(p.WaitingPolls)
		}
		if polls != waiting {
			return fmt.Errorf("%d wait", polls)
		}
		return nil
	})

	// Tasks of which some are in workers' hands.
	const tasks, held = 500, 20
	var specs []*switchyardv1.TaskSpec
	for range tasks {
		specs = append(specs, newTask(200))
	}
	if _, err := c.add(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	before := map[string]bool{}
	for len(before) < held {
		got, err := c.poll(t.Context(), 1, 5*time.Second, 0)
		if err != nil || len(got) != 1 {
			t.Fatalf("poll: %d tasks, error %v", len(got), err)
		}
		before[got[0].Id] = true
	}
	// And workers that fetch as fast as they can while the server stops.
	fetching, stopFetching := context.WithCancel(t.Context())
	fetched := make(chan map[string]*switchyardv1.LeasedTask, 1)
	fetcher := newClient(dial(t, n.addr), recorder, "stop", "fetcher")
	go func() { fetched <- gather(fetching, fetcher, 4, 100) }()

	took := n.interrupt()
	t.Logf("stopped within %s", took)
	if n.err != nil {
		t.Errorf("the server ended with %v; it said:\n%s", n.err, n.output)
	}
	stopFetching()
	for id := range <-fetched {
		before[id] = true
	}
	for range waiting {
		select {
		case err := <-ended:
			if err != nil && status.Code(err) != codes.Unavailable {
				t.Errorf("a waiting poll ended with %v", err)
			}
		case <-time.After(stopTimeout):
			t.Fatal("a poll still waits for a server that has stopped")
		}
	}

	// What no worker has received is ready at once, not when a lease of 30 s is
	// over.
	n.start()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	after := gather(ctx, newClient(dial(t, n.addr), recorder, "stop", "second"), 2, tasks-len(before))
	if len(after) != tasks-len(before) {
		t.Errorf("%d tasks were never handed out; only %d of them came after the restart", tasks-len(before), len(after))
	}
	for id := range before {
		if after[id] != nil {
			t.Errorf("task %s came again although a worker has it", id)
		}
		at := recorder.Now()
		recorder.Record(history.Record{Op: history.Left, Outcome: history.OK, Task: id, Start: at, End: at, Note: "in a worker's hands"})
	}
	var rest []*switchyardv1.LeasedTask
	for _, task := range after {
		rest = append(rest, task)
	}
	if err := newClient(dial(t, n.addr), recorder, "stop", "second").complete(t.Context(), rest); err != nil {
		t.Error(err)
	}
	counts, err := newClient(dial(t, n.addr), recorder, "stop", "asker").counts(t.Context())
	if err != nil || counts.Leased != int64(len(before)) || counts.Ready+counts.Delayed != 0 {
		t.Errorf("%d tasks are in workers' hands, the queue counts %v (error: %v)", len(before), counts, err)
	}
	judge(t, recorder)
}

func TestSilentWorker_isReplacedWhenItsLeaseEnds(t *testing.T) {
	processTest(t)
	n := newNode(t, t.TempDir())
	n.start()
	recorder := history.NewRecorder()
	silent := newClient(dial(t, n.addr), recorder, "silent", "silent")
	next := newClient(dial(t, n.addr), recorder, "silent", "next")
	if _, err := silent.add(t.Context(), []*switchyardv1.TaskSpec{newTask(100)}); err != nil {
		t.Fatal(err)
	}
	const lease = 700 * time.Millisecond
	first, err := silent.poll(t.Context(), 1, 5*time.Second, lease)
	if err != nil || len(first) != 1 {
		t.Fatalf("first poll: %v, error %v", first, err)
	}
	// Across a crash: the lease is the server's memory of it on disk.
	n.kill()
	n.start()
	var second []*switchyardv1.LeasedTask
	waitFor(t, "the task to come again", func() (err error) {
		second, err = next.poll(t.Context(), 1, 5*time.Second, 0)
		if err == nil && len(second) != 1 {
			err = fmt.Errorf("%d tasks", len(second))
		}
		return err
	})
	if second[0].Id != first[0].Id || second[0].Attempt != 2 {
		t.Errorf("got %s attempt %d, want %s attempt 2", second[0].Id, second[0].Attempt, first[0].Id)
	}
	if err := silent.complete(t.Context(), first); err != nil {
		t.Errorf("the late completion failed as a call: %v", err)
	}
	if err := next.complete(t.Context(), second); err != nil {
		t.Error(err)
	}
	report := judge(t, recorder)
	if report.Completed != 1 || report.Redeliveries != 1 {
		t.Errorf("want one task completed after one redelivery: %s", report)
	}
}

func TestFrozenWorker_losesItsTaskAndGoesOn(t *testing.T) {
	processTest(t)
	n := newNode(t, t.TempDir())
	n.start()
	c := newClient(dial(t, n.addr), history.NewRecorder(), "frozen", "other")
	dir := t.TempDir()
	started, proceed := filepath.Join(dir, "started"), filepath.Join(dir, "proceed")
	script := `touch "$1"; until [ -e "$2" ]; do sleep 0.02; done`
	out := &tail{}
	worker := exec.Command(program, "work", "frozen", "--address", n.addr, "--concurrency", "1", "--lease-time", "1s",
		"--", "sh", "-c", script, "sh", started, proceed)
	worker.Stdout, worker.Stderr = out, out
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- worker.Wait() }()
	t.Cleanup(func() {
		_ = worker.Process.Signal(syscall.SIGCONT)
		_ = worker.Process.Kill()
		if t.Failed() {
			t.Logf("last words of the worker:\n%s", out)
		}
	})
	if _, err := c.add(t.Context(), []*switchyardv1.TaskSpec{newTask(100)}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the worker to begin", func() error { _, err := os.Stat(started); return err })

	if err := worker.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var got []*switchyardv1.LeasedTask
	waitFor(t, "the task to come to another worker", func() (err error) {
		got, err = c.poll(t.Context(), 1, 5*time.Second, 30*time.Second)
		if err == nil && len(got) != 1 {
			err = fmt.Errorf("%d tasks", len(got))
		}
		return err
	})
	if got[0].Attempt != 2 {
		t.Errorf("attempt %d, want 2", got[0].Attempt)
	}
	if err := worker.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(proceed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// The frozen worker's result must not count: the task is still the other's.
	if err := c.complete(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	if records := c.recorder.Records(); records[len(records)-1].Outcome != history.OK {
		t.Errorf("the worker that holds the task could not complete it: %+v", records[len(records)-1])
	}
	// It goes on with the next task.
	if _, err := c.add(t.Context(), []*switchyardv1.TaskSpec{newTask(100)}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the thawed worker to work", func() error {
		counts, err := c.counts(t.Context())
		if err == nil && counts.Ready+counts.Leased+counts.Delayed != 0 {
			err = fmt.Errorf("the queue has %v", counts)
		}
		return err
	})
	if err := worker.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-exited:
	case <-time.After(stopTimeout):
		t.Error("the worker does not stop")
	}
}

// waitFor waits until the condition holds, which it says with a nil error.
func waitFor(t *testing.T, what string, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return
		}
		if !pause(ctx, 20*time.Millisecond) {
			t.Fatalf("waited in vain for %s: %v", what, err)
		}
	}
}
