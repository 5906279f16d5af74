package switchyard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"

	"github.com/switchyard-dev/switchyard"
)

// exampleServer runs a server in this process for an example. A real program
// dials the address of a server that runs elsewhere.
func exampleServer() (address string, stop func()) {
	address, end, err := startNode()
	if err != nil {
		log.Fatal(err)
	}
	return address, func() {
		if err := end(); err != nil {
			log.Fatal(err)
		}
	}
}

func Example() {
	address, stop := exampleServer()
	defer stop()
	client, err := switchyard.Dial(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	_, err = client.Add(context.Background(), "emails", switchyard.Task{Kind: "welcome", Payload: []byte("ann@example.com")})
	if err != nil {
		log.Fatal(err)
	}

	ctx, done := context.WithCancel(context.Background())
	mux := switchyard.NewMux()
	mux.HandleFunc("welcome", func(ctx context.Context, job *switchyard.Job) error {
		fmt.Printf("welcome, %s (attempt %d of %d)\n", job.Payload, job.Attempt, job.MaxAttempts)
		done() // a real worker runs until the process is told to stop
		return nil
	})
	if err := switchyard.NewWorker(client, "emails", mux, switchyard.WorkerOptions{}).Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: welcome, ann@example.com (attempt 1 of 25)
}

func ExampleClient_Add() {
	address, stop := exampleServer()
	defer stop()
	client, err := switchyard.Dial(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()

	// A task with an id of its own is added once, however often the call is made.
	task := switchyard.Task{ID: switchyard.NewID(), Kind: "invoice", Payload: []byte("4711"), MaxAttempts: 5}
	for range 2 {
		result, err := client.Add(ctx, "billing", task)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("added before:", result.AlreadyAdded)
	}
	info, err := client.Get(ctx, "billing", task.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Kind, "is", info.State)
	// Output:
	// added before: false
	// added before: true
	// invoice is ready
}

func ExampleClient_AddMany() {
	address, stop := exampleServer()
	defer stop()
	client, err := switchyard.Dial(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	results, err := client.AddMany(context.Background(), "thumbnails", []switchyard.Task{
		{Kind: "resize", Payload: []byte("a.png")},
		{Kind: "", Payload: []byte("b.png")}, // a mistake fails alone
		{Kind: "resize", Payload: []byte("c.png")},
	})
	var batch *switchyard.BatchError
	if errors.As(err, &batch) {
		fmt.Println(batch.Failed, "of", batch.Total, "failed")
	} else if err != nil {
		log.Fatal(err)
	}
	for i, result := range results {
		if result.Err != nil {
			fmt.Println("task", i, "was not added:", switchyard.Reason(result.Err))
		}
	}
	// Output:
	// 1 of 3 failed
	// task 1 was not added: INVALID_KIND
}

func ExampleWorker() {
	address, stop := exampleServer()
	defer stop()
	client, err := switchyard.Dial(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	for _, kind := range []string{"works", "fails once", "is hopeless"} {
		if _, err := client.Add(ctx, "jobs", switchyard.Task{Kind: kind}); err != nil {
			log.Fatal(err)
		}
	}

	var ends sync.WaitGroup
	ends.Add(3)
	mux := switchyard.NewMux()
	mux.HandleFunc("works", func(ctx context.Context, job *switchyard.Job) error {
		defer ends.Done()
		return nil
	})
	mux.HandleFunc("fails once", func(ctx context.Context, job *switchyard.Job) error {
		if job.Attempt == 1 {
			// Without RetryAfter the task waits for the backoff of its retry policy.
			return switchyard.RetryAfter(0, errors.New("the mail server is busy"))
		}
		fmt.Println("last time:", job.LastError)
		ends.Done()
		return nil
	})
	mux.HandleFunc("is hopeless", func(ctx context.Context, job *switchyard.Job) error {
		defer ends.Done()
		return switchyard.NotRetryable(errors.New("no such address"))
	})
	worker := switchyard.NewWorker(client, "jobs", mux, switchyard.WorkerOptions{Concurrency: 8})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		ends.Wait()
		cancel()
	}()
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}

	// After Run everything is acknowledged.
	stats := worker.Stats()
	fmt.Println("completed:", stats.Completed, "failed attempts:", stats.Failed)
	for task, err := range client.Queues().DeadTasks(context.Background(), "jobs") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("dead:", task.Kind, "-", task.LastError)
	}
	// Output:
	// last time: the mail server is busy
	// completed: 2 failed attempts: 2
	// dead: is hopeless - no such address
}

func ExampleHandle() {
	type Greeting struct {
		Name  string `json:"name"`
		Times int    `json:"times"`
	}
	address, stop := exampleServer()
	defer stop()
	client, err := switchyard.Dial(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, done := context.WithCancel(context.Background())
	defer done()

	if _, err := switchyard.AddJSON(ctx, client, "greetings", "greet", Greeting{"Ann", 2}); err != nil {
		log.Fatal(err)
	}
	mux := switchyard.NewMux()
	switchyard.Handle(mux, "greet", func(ctx context.Context, job *switchyard.Job, greeting Greeting) error {
		for range greeting.Times {
			fmt.Println("hello,", greeting.Name)
		}
		done()
		return nil
	})
	if err := switchyard.NewWorker(client, "greetings", mux, switchyard.WorkerOptions{}).Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// hello, Ann
	// hello, Ann
}

func ExampleMux_Use() {
	address, stop := exampleServer()
	defer stop()
	client, err := switchyard.Dial(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, done := context.WithCancel(context.Background())
	if _, err := client.Add(ctx, "jobs", switchyard.Task{Kind: "panics"}); err != nil {
		log.Fatal(err)
	}

	// Logs without times, so that this example's output is always the same.
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "took" || a.Key == "id" {
				return slog.Attr{}
			}
			if err, ok := a.Value.Any().(*switchyard.PanicError); ok {
				return slog.Any(a.Key, err.Value) // without the stack
			}
			return a
		},
	}))
	count := func(next switchyard.Handler) switchyard.Handler {
		return switchyard.HandlerFunc(func(ctx context.Context, job *switchyard.Job) error {
			fmt.Println("before", job.Kind)
			defer done()
			return next.HandleTask(ctx, job)
		})
	}
	mux := switchyard.NewMux()
	mux.Use(count, switchyard.Logging(logger), switchyard.Recover())
	mux.HandleFunc("panics", func(ctx context.Context, job *switchyard.Job) error { panic("oh no") })
	if err := switchyard.NewWorker(client, "jobs", mux, switchyard.WorkerOptions{}).Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// before panics
	// level=WARN msg="task failed" queue=jobs kind=panics attempt=1 error="oh no"
}

func ExampleQueues() {
	address, stop := exampleServer()
	defer stop()
	client, err := switchyard.Dial(address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	queues := client.Queues()

	if _, err := queues.Create(ctx, "emails", switchyard.QueueConfig{MaxAttempts: 10}); err != nil {
		log.Fatal(err)
	}
	_, err = queues.Create(ctx, "emails", switchyard.QueueConfig{})
	fmt.Println("exists:", errors.Is(err, switchyard.ErrQueueAlreadyExists))

	if _, err := client.Add(ctx, "emails", switchyard.Task{Kind: "welcome"}); err != nil {
		log.Fatal(err)
	}
	description, err := queues.Describe(ctx, "emails")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(description.Name, "has", description.Counts.Ready, "ready task and", description.Config.MaxAttempts, "attempts for each")
	// Output:
	// exists: true
	// emails has 1 ready task and 10 attempts for each
}
