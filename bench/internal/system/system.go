package system

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"
)

// Durability says when an acknowledged task is on disk.
type Durability string

const (
	// Fsync: before it is acknowledged.
	Fsync Durability = "fsync"
	// Relaxed: some time later, in the system's usual way.
	Relaxed Durability = "relaxed"
)

// System is one of the systems under comparison.
type System interface {
	Name() string
	// Settings tells what was set apart from defaults, for the report.
	Settings(Durability) []string
	// Start starts a server with fresh data and waits until it serves.
	Start(ctx context.Context, env Env) (Server, error)
}

// Server is a running server and the client to it.
type Server interface {
	// Version of the server, and of the client library where that matters.
	Version() string
	// Queue makes an empty queue.
	Queue(ctx context.Context, name string) (Queue, error)
	// Stop ends the server and the client.
	Stop() error
}

// Queue is one queue of a server.
type Queue interface {
	// Adder returns a way to add tasks for use by one goroutine.
	Adder(ctx context.Context) (Adder, error)
	// Work starts so many workers that call handle, possibly at the same time,
	// and complete each task after handle returned.
	Work(ctx context.Context, workers int, handle func(payload []byte)) (Workers, error)
	// Remaining returns how many tasks are not completed.
	Remaining(ctx context.Context) (int64, error)
	// Close gives up the queue and what is in it.
	Close(ctx context.Context) error
}

// Adder adds tasks. An add is over when the server acknowledged it.
type Adder interface {
	Add(ctx context.Context, payload []byte) error
	// AddBatch adds many tasks in the fastest way that the system has for one
	// caller.
	AddBatch(ctx context.Context, payloads [][]byte) error
	Close() error
}

// Workers is a running set of workers.
type Workers interface {
	// Completed returns how many tasks were completed. Where a completion is
	// confirmed by the server, it counts from then on.
	Completed(ctx context.Context) (int64, error)
	// Stop ends the workers; what they hold goes back to the queue.
	Stop(ctx context.Context) error
}

// Env is what a server is started with.
type Env struct {
	// Dir is an empty folder on the disk that is measured.
	Dir        string
	Durability Durability
	// Supervise, when set, is put before the server's command, to slow its syncs.
	Supervise []string
	// StartTimeout bounds the start.
	StartTimeout time.Duration
}

var systems = map[string]func() System{}

func register(name string, make func() System) { systems[name] = make }

// Order of the tables: ours first.
var order = []string{"switchyard", "nats", "asynq", "river", "beanstalkd", "rabbitmq"}

// Names returns the names of all systems in the order of the tables.
func Names() []string {
	names := make([]string, 0, len(systems))
	for name := range systems {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool { return rank(names[i]) < rank(names[j]) })
	return names
}

func rank(name string) int {
	for i, n := range order {
		if n == name {
			return i
		}
	}
	return len(order)
}

// Get returns the system of that name.
func Get(name string) (System, error) {
	f := systems[name]
	if f == nil {
		return nil, fmt.Errorf("no system %q; there are: %s", name, strings.Join(Names(), ", "))
	}
	return f(), nil
}
