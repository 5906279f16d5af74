package server

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// startReal runs a whole node until the function that it returns is called.
func startReal(t testing.TB, change func(*Config)) (*Server, func() error) {
	t.Helper()
	c := DefaultConfig()
	c.Listen = "127.0.0.1:0"
	c.DataDir = filepath.Join(t.TempDir(), "data")
	if change != nil {
		change(&c)
	}
	s, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, func() error { cancel(); return <-done }
}

func TestNode_tasksSurviveARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	onDisk := func(c *Config) { c.DataDir = dir }
	s, stop := startReal(t, onDisk)
	req := &v1.AddTasksRequest{Queue: "q"}
	for i := range 100 {
		req.Tasks = append(req.Tasks, &v1.TaskSpec{Kind: "k", Payload: fmt.Appendf(nil, "%d", i)})
	}
	added, err := v1.NewTaskServiceClient(connect(t, s)).AddTasks(shortly(t), req)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range added.Results {
		if r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	if err := stop(); err != nil {
		t.Fatalf("stop: %v", err)
	}

	s, stop = startReal(t, onDisk)
	defer func() {
		if err := stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	}()
	if code, body := get(t, s, "/readyz"); code != http.StatusOK {
		t.Errorf("readyz %d %s", code, body)
	}
	tasks := v1.NewTaskServiceClient(connect(t, s))
	seen := map[string]bool{}
	for len(seen) < 100 {
		polled, err := tasks.PollTasks(shortly(t), &v1.PollTasksRequest{Queue: "q", MaxTasks: 1000, Wait: durationpb.New(5 * time.Second)})
		if err != nil || len(polled.Tasks) == 0 {
			t.Fatalf("after %d tasks: %v, %v", len(seen), polled, err)
		}
		var tokens [][]byte
		for _, task := range polled.Tasks {
			if seen[string(task.Payload)] {
				t.Errorf("task %s came twice", task.Payload)
			}
			seen[string(task.Payload)] = true
			tokens = append(tokens, task.LeaseToken)
		}
		done, err := tasks.CompleteTasks(shortly(t), &v1.CompleteTasksRequest{Queue: "q", LeaseTokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range done.Results {
			if r.Error != nil {
				t.Error(r.Error)
			}
		}
	}
}

func TestNode_stopsAtOnceWithWorkersWaiting(t *testing.T) {
	s, stop := startReal(t, func(c *Config) { c.Memory = true })
	tasks := v1.NewTaskServiceClient(connect(t, s))
	polls := make(chan error, 8)
	for range cap(polls) {
		go func() {
			_, err := tasks.PollTasks(context.Background(), &v1.PollTasksRequest{Queue: "q", Wait: durationpb.New(time.Minute)})
			polls <- err
		}()
	}
	waitFor(t, func() bool { return s.frontend.InFlight() == int64(cap(polls)) })
	begin := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 5*time.Second { // the aim is 2 s on a quiet machine
		t.Errorf("stopping took %v", took)
	}
	for range cap(polls) {
		if err := <-polls; reason.Of(err) != reason.ShuttingDown {
			t.Errorf("poll: %v", err)
		}
	}
}

func TestNode_unknownQueueIsAnErrorWithoutAutoCreation(t *testing.T) {
	s, stop := startReal(t, func(c *Config) { c.Memory = true; c.AutoCreateQueues = false })
	defer stop()
	tasks := v1.NewTaskServiceClient(connect(t, s))
	if _, err := tasks.AddTasks(shortly(t), someTask("")); reason.Of(err) != reason.QueueNotFound {
		t.Errorf("add: %v", err)
	}
	if _, err := tasks.PollTasks(shortly(t), &v1.PollTasksRequest{Queue: "q", Wait: durationpb.New(0)}); reason.Of(err) != reason.QueueNotFound {
		t.Errorf("poll: %v", err)
	}
	if _, err := v1.NewQueueServiceClient(connect(t, s)).CreateQueue(shortly(t), &v1.CreateQueueRequest{Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	if _, err := tasks.AddTasks(shortly(t), someTask("")); err != nil {
		t.Errorf("add: %v", err)
	}
}

func TestNode_vanishedClientTakesNoTaskWithIt(t *testing.T) {
	s, stop := startReal(t, func(c *Config) { c.Memory = true })
	defer stop()
	conn := connect(t, s)
	tasks := v1.NewTaskServiceClient(conn)
	for range 20 {
		ctx, cancel := context.WithCancel(shortly(t))
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			tasks.PollTasks(ctx, &v1.PollTasksRequest{Queue: "q", Wait: durationpb.New(time.Minute)})
		}()
		waitFor(t, func() bool { return s.frontend.InFlight() == 1 })
		cancel()
		<-gone
		waitFor(t, func() bool { return s.frontend.InFlight() == 0 })
	}
	if _, err := tasks.AddTasks(shortly(t), someTask("for the living")); err != nil {
		t.Fatal(err)
	}
	polled, err := tasks.PollTasks(shortly(t), &v1.PollTasksRequest{Queue: "q", Wait: durationpb.New(5 * time.Second)})
	if err != nil || len(polled.Tasks) != 1 {
		t.Errorf("%v, %v", polled, err)
	}
}

func TestNode_refusesAFolderThatItCannotUse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	_, stop := startReal(t, func(c *Config) { c.DataDir = dir; c.BucketCount = 100 })
	config := func(change func(*Config)) Config {
		c := DefaultConfig()
		c.Listen, c.DataDir, c.BucketCount = "127.0.0.1:0", dir, 100
		change(&c)
		return c
	}
	check := func(name string, c Config, parts ...string) {
		t.Helper()
		s, err := New(c, nil)
		if err == nil {
			s.Close()
			t.Errorf("%s: no error", name)
			return
		}
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is missing in: %v", name, part, err)
			}
		}
	}
	check("a file", config(func(c *Config) { c.DataDir = file }), file)
	check("in use", config(func(*Config) {}), dir)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	check("another bucket count", config(func(c *Config) { c.BucketCount = 200 }), "100", "200")
}
