// Command hello adds a few tasks and works them off: the smallest complete
// program.
//
// Start a server first (switchyard dev), then:
//
//	go run ./examples/hello
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"sync"

	"github.com/switchyard-dev/switchyard"
)

func main() {
	log.SetFlags(0)
	address := flag.String("address", "127.0.0.1:7480", "where the server listens")
	flag.Parse()
	if err := run(*address); err != nil {
		log.Fatal(err)
	}
}

func run(address string) error {
	client, err := switchyard.Dial(address)
	if err != nil {
		return err
	}
	defer client.Close()

	names := []string{"Ann", "Ben", "Cleo"}
	for _, name := range names {
		result, err := client.Add(context.Background(), "hello", switchyard.Task{Kind: "greet", Payload: []byte(name)})
		if err != nil {
			return err
		}
		fmt.Printf("added %s for %s\n", result.ID, name)
	}

	// This worker ends when the three tasks are done. One of a real program runs
	// until the process is told to stop: see signal.NotifyContext.
	ctx, stop := context.WithCancel(context.Background())
	var greetings sync.WaitGroup
	greetings.Add(len(names))
	go func() {
		greetings.Wait()
		stop()
	}()

	mux := switchyard.NewMux()
	mux.HandleFunc("greet", func(ctx context.Context, job *switchyard.Job) error {
		fmt.Printf("hello, %s!\n", job.Payload)
		greetings.Done()
		return nil
	})
	return switchyard.NewWorker(client, "hello", mux, switchyard.WorkerOptions{Concurrency: 1}).Run(ctx)
}
