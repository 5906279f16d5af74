// Package switchyard is the Go client of Switchyard, a durable task queue.
//
// A [Client] adds tasks to queues and manages the queues. A [Worker] polls one
// queue and runs a [Handler] for each task; a [Mux] chooses the handler by the
// task's kind. Delivery is at least once: a task whose worker dies is handed to
// another one when its lease runs out, so handlers should be idempotent.
//
//	client, err := switchyard.Dial("127.0.0.1:7480")
//	...
//	_, err = client.Add(ctx, "emails", switchyard.Task{Kind: "welcome", Payload: []byte("ann@example.com")})
//
//	mux := switchyard.NewMux()
//	mux.HandleFunc("welcome", func(ctx context.Context, job *switchyard.Job) error { ... })
//	err = switchyard.NewWorker(client, "emails", mux, switchyard.WorkerOptions{}).Run(ctx)
//
// Concurrent calls share requests by themselves: tasks that are added while a
// request is on its way travel together in the next one. So adding from many
// goroutines is fast without any batching of your own, and a lone call is not
// delayed.
//
// Errors carry a machine-readable reason; see [Reason] and the Err variables.
package switchyard
