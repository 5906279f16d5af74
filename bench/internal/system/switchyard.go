package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/switchyard-dev/switchyard"
)

func init() { register("switchyard", func() System { return switchyardSystem{} }) }

// switchyardSystem is this project: the server as users run it and its Go SDK.
type switchyardSystem struct{}

const switchyardKind = "bench"

func (switchyardSystem) Name() string { return "switchyard" }

func (switchyardSystem) Settings(d Durability) []string {
	s := []string{"defaults of server and SDK", "one client for all adders", "batches: AddMany", "one worker of 64 handlers"}
	if d == Fsync {
		return append(s, "--durability fsync (default)")
	}
	return append(s, "--durability interval (every 100 ms)")
}

func (switchyardSystem) Start(ctx context.Context, env Env) (Server, error) {
	version, err := output(ctx, "switchyard", "version")
	if err != nil {
		return nil, err
	}
	durability := "fsync"
	if env.Durability == Relaxed {
		durability = "interval"
	}
	addressFile := filepath.Join(env.Dir, "address")
	p, err := startProcess(env, nil, nil, "switchyard", "dev", "--data", filepath.Join(env.Dir, "store"),
		"--listen", "127.0.0.1:0", "--address-file", addressFile, "--durability", durability)
	if err != nil {
		return nil, err
	}
	s := &switchyardServer{process: p, version: strings.TrimPrefix(version, "switchyard ")}
	var address []byte
	err = p.waitFor(ctx, env.StartTimeout, func(context.Context) (err error) {
		address, err = os.ReadFile(addressFile)
		return err
	})
	if err == nil {
		s.client, err = switchyard.Dial(strings.TrimSpace(string(address)))
	}
	if err != nil {
		_ = s.Stop()
		return nil, err
	}
	return s, nil
}

type switchyardServer struct {
	process *process
	version string
	client  *switchyard.Client
}

func (s *switchyardServer) Version() string { return s.version }

func (s *switchyardServer) Stop() error {
	var err error
	if s.client != nil {
		err = s.client.Close()
	}
	return errors.Join(err, s.process.stop(syscall.SIGTERM, 20*time.Second))
}

func (s *switchyardServer) Queue(ctx context.Context, name string) (Queue, error) {
	_, err := s.client.Queues().Create(ctx, name, switchyard.QueueConfig{})
	return &switchyardQueue{client: s.client, name: name}, err
}

type switchyardQueue struct {
	client *switchyard.Client
	name   string
}

func (q *switchyardQueue) Remaining(ctx context.Context) (int64, error) {
	d, err := q.client.Queues().Describe(ctx, q.name)
	if err != nil {
		return 0, err
	}
	if d.Counts.Dead > 0 {
		return 0, fmt.Errorf("switchyard: %d tasks are dead", d.Counts.Dead)
	}
	return d.Counts.Ready + d.Counts.Delayed + d.Counts.Leased, nil
}

func (q *switchyardQueue) Close(ctx context.Context) error {
	return q.client.Queues().Delete(ctx, q.name, true)
}

func (q *switchyardQueue) Adder(context.Context) (Adder, error) { return switchyardAdder{q}, nil }

type switchyardAdder struct{ q *switchyardQueue }

func (a switchyardAdder) Add(ctx context.Context, payload []byte) error {
	_, err := a.q.client.Add(ctx, a.q.name, switchyard.Task{Kind: switchyardKind, Payload: payload})
	return err
}

func (a switchyardAdder) AddBatch(ctx context.Context, payloads [][]byte) error {
	tasks := make([]switchyard.Task, len(payloads))
	for i, p := range payloads {
		tasks[i] = switchyard.Task{Kind: switchyardKind, Payload: p}
	}
	_, err := a.q.client.AddMany(ctx, a.q.name, tasks)
	return err
}

func (switchyardAdder) Close() error { return nil }

func (q *switchyardQueue) Work(ctx context.Context, workers int, handle func([]byte)) (Workers, error) {
	w := &switchyardWorkers{done: make(chan error, 1)}
	handler := switchyard.HandlerFunc(func(_ context.Context, job *switchyard.Job) error {
		handle(job.Payload)
		return nil
	})
	w.worker = switchyard.NewWorker(q.client, q.name, handler, switchyard.WorkerOptions{
		Concurrency: workers,
		OnError:     func(e switchyard.TaskError) { w.failed.CompareAndSwap(nil, &e) },
	})
	ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() { w.done <- w.worker.Run(ctx) }()
	return w, nil
}

type switchyardWorkers struct {
	worker *switchyard.Worker
	cancel context.CancelFunc
	done   chan error
	failed atomic.Pointer[switchyard.TaskError]
}

// Completed counts what the server has confirmed.
func (w *switchyardWorkers) Completed(context.Context) (int64, error) {
	if e := w.failed.Load(); e != nil {
		return 0, *e
	}
	return w.worker.Stats().Completed, nil
}

func (w *switchyardWorkers) Stop(ctx context.Context) error {
	w.cancel()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
