package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

func init() { register("asynq", func() System { return asynqRedis{} }) }

// asynqRedis is asynq on a Redis server.
type asynqRedis struct{}

const (
	asynqServers       = 8
	asynqCheckInterval = 2 * time.Millisecond
	asynqFanOut        = 64
)

func (asynqRedis) Name() string { return "asynq" }

func (asynqRedis) Settings(d Durability) []string {
	s := []string{"Redis with appendonly yes, save \"\"", "workers: 8 asynq servers of 8", "TaskCheckInterval 2 ms",
		"batches: no batch call, so 64 goroutines of the one caller"}
	if d == Fsync {
		return append(s, "appendfsync always")
	}
	return append(s, "appendfsync everysec (default)")
}

func (asynqRedis) Start(ctx context.Context, env Env) (Server, error) {
	version, err := output(ctx, "redis-server", "--version")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	policy := "everysec"
	if env.Durability == Fsync {
		policy = "always"
	}
	config := filepath.Join(env.Dir, "redis.conf")
	lines := []string{"bind 127.0.0.1", "port " + strconv.Itoa(ports[0]), "dir " + env.Dir, "appendonly yes", "appendfsync " + policy, `save ""`}
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	p, err := startProcess(env, nil, nil, "redis-server", config)
	if err != nil {
		return nil, err
	}
	redisVersion := version
	for _, f := range strings.Fields(version) {
		if v, ok := strings.CutPrefix(f, "v="); ok {
			redisVersion = v
		}
	}
	s := &asynqServer{process: p, version: fmt.Sprintf("%s on Redis %s", moduleVersion("github.com/hibiken/asynq"), redisVersion)}
	s.redis = redis.NewClient(&redis.Options{Addr: loopback(ports[0]), PoolSize: 2 * asynqFanOut, MinIdleConns: asynqFanOut})
	s.client = asynq.NewClientFromRedisClient(s.redis)
	s.inspector = asynq.NewInspectorFromRedisClient(s.redis)
	if err := p.waitFor(ctx, env.StartTimeout, func(ctx context.Context) error { return s.redis.Ping(ctx).Err() }); err != nil {
		_ = s.Stop()
		return nil, err
	}
	return s, nil
}

type asynqServer struct {
	process   *process
	version   string
	redis     *redis.Client
	client    *asynq.Client
	inspector *asynq.Inspector
}

func (s *asynqServer) Version() string { return s.version }

func (s *asynqServer) Stop() error {
	s.redis.Close()
	return s.process.stop(syscall.SIGTERM, 20*time.Second)
}

func (s *asynqServer) Queue(_ context.Context, name string) (Queue, error) {
	return &asynqQueue{server: s, name: name}, nil
}

type asynqQueue struct {
	server *asynqServer
	name   string
}

func (q *asynqQueue) Adder(context.Context) (Adder, error) { return asynqAdder{q}, nil }

func (q *asynqQueue) Remaining(context.Context) (int64, error) {
	info, err := q.server.inspector.GetQueueInfo(q.name)
	if errors.Is(err, asynq.ErrQueueNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return int64(info.Size), nil
}

func (q *asynqQueue) Close(context.Context) error {
	err := q.server.inspector.DeleteQueue(q.name, true)
	if errors.Is(err, asynq.ErrQueueNotFound) {
		return nil
	}
	return err
}

type asynqAdder struct{ q *asynqQueue }

const asynqKind = "bench"

func (a asynqAdder) Add(ctx context.Context, payload []byte) error {
	_, err := a.q.server.client.EnqueueContext(ctx, asynq.NewTask(asynqKind, payload), asynq.Queue(a.q.name))
	return err
}

func (a asynqAdder) AddBatch(ctx context.Context, payloads [][]byte) error {
	var next atomic.Int64
	errs := make(chan error, asynqFanOut)
	for range asynqFanOut {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(payloads) {
					errs <- nil
					return
				}
				if err := a.Add(ctx, payloads[i]); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	var all error
	for range asynqFanOut {
		all = errors.Join(all, <-errs)
	}
	return all
}

func (asynqAdder) Close() error { return nil }

func (q *asynqQueue) Work(_ context.Context, workers int, handle func([]byte)) (Workers, error) {
	w := &asynqWorkers{}
	handler := asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		handle(t.Payload())
		w.handled.Add(1)
		return nil
	})
	for i := range min(asynqServers, workers) {
		n := workers / asynqServers
		if i < workers%asynqServers {
			n++
		}
		s := asynq.NewServerFromRedisClient(q.server.redis, asynq.Config{
			Concurrency:       n,
			Queues:            map[string]int{q.name: 1},
			TaskCheckInterval: asynqCheckInterval,
			LogLevel:          asynq.FatalLevel,
			ShutdownTimeout:   5 * time.Second,
		})
		if err := s.Start(handler); err != nil {
			_ = w.Stop(context.Background())
			return nil, err
		}
		w.servers = append(w.servers, s)
	}
	return w, nil
}

type asynqWorkers struct {
	servers []*asynq.Server
	handled atomic.Int64
}

// Completed counts handled tasks: a worker does not take its next task before
// the completion of the last is confirmed, so it is ahead by one per worker at
// most.
func (w *asynqWorkers) Completed(context.Context) (int64, error) { return w.handled.Load(), nil }

func (w *asynqWorkers) Stop(context.Context) error {
	var wg sync.WaitGroup
	for _, s := range w.servers {
		wg.Go(s.Shutdown)
	}
	wg.Wait()
	return nil
}
