// Command typed shows typed payloads, middleware, retries and dead tasks: orders
// are charged, one of them only at the second attempt and one never.
//
// Start a server first (switchyard dev), then:
//
//	go run ./examples/typed
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard"
)

const queue = "orders"

// Order is the payload of a task of kind "charge", as JSON.
type Order struct {
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

func main() {
	log.SetFlags(0)
	address := flag.String("address", "127.0.0.1:7480", "where the server listens")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *address); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string) error {
	client, err := switchyard.Dial(address)
	if err != nil {
		return err
	}
	defer client.Close()

	orders := []Order{{"Ann", 1250}, {"Ben", 300}, {"Cleo", -5}}
	tasks := make([]switchyard.Task, len(orders))
	for i, order := range orders {
		if tasks[i], err = switchyard.NewTask("charge", order); err != nil {
			return err
		}
		tasks[i].MaxAttempts = 3
		tasks[i].Retry = &switchyard.RetryPolicy{InitialBackoff: 50 * time.Millisecond}
	}
	if _, err := client.AddMany(ctx, queue, tasks); err != nil {
		return err
	}

	ctx, done := context.WithCancel(ctx)
	defer done()
	var open atomic.Int64
	open.Store(int64(len(orders)))
	end := func() {
		if open.Add(-1) == 0 {
			done()
		}
	}

	mux := switchyard.NewMux()
	mux.Use(switchyard.Logging(slog.Default()), switchyard.Timeout(10*time.Second))
	switchyard.Handle(mux, "charge", func(ctx context.Context, job *switchyard.Job, order Order) error {
		switch {
		case order.Cents <= 0:
			// No further attempt will help: the task is dead at once.
			end()
			return switchyard.NotRetryable(fmt.Errorf("cannot charge %d cents", order.Cents))
		case order.Customer == "Ben" && job.Attempt == 1:
			return errors.New("the bank does not answer") // tried again in 50 ms
		}
		fmt.Printf("charged %s %d cents at attempt %d\n", order.Customer, order.Cents, job.Attempt)
		end()
		return nil
	})
	if err := switchyard.NewWorker(client, queue, mux, switchyard.WorkerOptions{}).Run(ctx); err != nil {
		return err
	}

	for task, err := range client.Queues().DeadTasks(context.Background(), queue) {
		if err != nil {
			return err
		}
		fmt.Printf("dead: %s: %s\n", task.Payload, task.LastError)
	}
	return nil
}
