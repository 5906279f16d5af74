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

	amqp "github.com/rabbitmq/amqp091-go"
)

func init() { register("rabbitmq", func() System { return rabbitMQ{} }) }

// rabbitMQ is a RabbitMQ server with quorum queues.
type rabbitMQ struct{}

const (
	rabbitConns    = 8
	rabbitPrefetch = 256 // per channel, one channel per connection
)

func (rabbitMQ) Name() string { return "rabbitmq" }

func (rabbitMQ) Settings(d Durability) []string {
	s := []string{"quorum queue, publisher confirms", strconv.Itoa(rabbitConns) + " connections, a channel per adder",
		"batches: 1000 in flight", "workers: prefetch " + strconv.Itoa(rabbitConns*rabbitPrefetch) + ", acks are not awaited (the protocol has no answer to them)",
		"no busy waiting of the schedulers (+sbwt none)"}
	if d == Fsync {
		return append(s, "Raft log synced (default)")
	}
	return append(s, "wal_sync_method none")
}

func rabbitHome() (string, error) {
	found, err := filepath.Glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*")
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", errors.New("no RabbitMQ under /usr/lib/rabbitmq")
	}
	return found[len(found)-1], nil
}

func (rabbitMQ) Start(ctx context.Context, env Env) (Server, error) {
	home, err := rabbitHome()
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(env.Dir, "rabbitmq.conf")
	lines := []string{"listeners.tcp.1 = " + loopback(ports[0]), "log.file.level = error", "log.console = false", "disk_free_limit.absolute = 50MB"}
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	advanced := filepath.Join(env.Dir, "advanced.config")
	terms := "[]."
	if env.Durability == Relaxed {
		terms = "[{ra, [{wal_sync_method, none}]}]."
	}
	if err := os.WriteFile(advanced, []byte(terms+"\n"), 0o644); err != nil {
		return nil, err
	}
	environ := []string{
		"HOME=" + env.Dir,
		"RABBITMQ_NODENAME=bench@localhost",
		"RABBITMQ_BASE=" + env.Dir,
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(env.Dir, "mnesia"),
		"RABBITMQ_LOG_BASE=" + filepath.Join(env.Dir, "log"),
		"RABBITMQ_CONFIG_FILE=" + config,
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + advanced,
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(env.Dir, "plugins"),
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(env.Dir, "none"),
		"RABBITMQ_PID_FILE=" + filepath.Join(env.Dir, "pid"),
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(ports[1]),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}",
		"ERL_EPMD_PORT=" + strconv.Itoa(ports[2]),
		"ERL_EPMD_ADDRESS=127.0.0.1",
	}
	p, err := startProcess(env, nil, environ, filepath.Join(home, "sbin", "rabbitmq-server"))
	if err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(filepath.Base(home), "rabbitmq_server-")
	s := &rabbitServer{process: p, version: version, epmdPort: ports[2]}
	err = p.waitFor(ctx, env.StartTimeout, func(context.Context) error {
		c, err := amqp.Dial("amqp://guest:guest@" + loopback(ports[0]) + "/")
		if err == nil {
			s.conns = append(s.conns, c)
		}
		return err
	})
	for err == nil && len(s.conns) < rabbitConns {
		var c *amqp.Connection
		if c, err = amqp.Dial("amqp://guest:guest@" + loopback(ports[0]) + "/"); err == nil {
			s.conns = append(s.conns, c)
		}
	}
	if err != nil {
		_ = s.Stop()
		return nil, err
	}
	return s, nil
}

type rabbitServer struct {
	process  *process
	version  string
	epmdPort int
	conns    []*amqp.Connection
}

func (s *rabbitServer) Version() string { return s.version }

func (s *rabbitServer) Stop() error {
	for _, c := range s.conns {
		c.Close()
	}
	err := s.process.stop(syscall.SIGTERM, 30*time.Second)
	// The server started Erlang's port mapper, which outlives it.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, epmdErr := output(ctx, "epmd", "-port", strconv.Itoa(s.epmdPort), "-kill")
	return errors.Join(err, epmdErr)
}

func (s *rabbitServer) Queue(_ context.Context, name string) (Queue, error) {
	ch, err := s.conns[0].Channel()
	if err != nil {
		return nil, err
	}
	_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	if err != nil {
		return nil, err
	}
	return &rabbitQueue{server: s, name: name, control: ch}, nil
}

type rabbitQueue struct {
	server  *rabbitServer
	name    string
	control *amqp.Channel
	adders  atomic.Int64
}

func (q *rabbitQueue) Adder(context.Context) (Adder, error) {
	ch, err := q.server.conns[int(q.adders.Add(1))%rabbitConns].Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	return &rabbitAdder{ch: ch, queue: q.name}, nil
}

// Remaining does not see messages that a worker holds; they are ready again when
// the workers stopped.
func (q *rabbitQueue) Remaining(context.Context) (int64, error) {
	info, err := q.control.QueueDeclarePassive(q.name, true, false, false, false, nil)
	return int64(info.Messages), err
}

func (q *rabbitQueue) Close(context.Context) error {
	_, err := q.control.QueueDelete(q.name, false, false, false)
	return errors.Join(err, q.control.Close())
}

type rabbitAdder struct {
	ch    *amqp.Channel
	queue string
}

func (a *rabbitAdder) publish(ctx context.Context, payload []byte) (*amqp.DeferredConfirmation, error) {
	return a.ch.PublishWithDeferredConfirmWithContext(ctx, "", a.queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: payload})
}

func confirmed(ctx context.Context, c *amqp.DeferredConfirmation) error {
	ok, err := c.WaitContext(ctx)
	if err == nil && !ok {
		err = errors.New("rabbitmq: a publish was refused")
	}
	return err
}

func (a *rabbitAdder) Add(ctx context.Context, payload []byte) error {
	c, err := a.publish(ctx, payload)
	if err != nil {
		return err
	}
	return confirmed(ctx, c)
}

func (a *rabbitAdder) AddBatch(ctx context.Context, payloads [][]byte) error {
	confirmations := make([]*amqp.DeferredConfirmation, len(payloads))
	for i, p := range payloads {
		c, err := a.publish(ctx, p)
		if err != nil {
			return err
		}
		confirmations[i] = c
	}
	for _, c := range confirmations {
		if err := confirmed(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func (a *rabbitAdder) Close() error { return a.ch.Close() }

func (q *rabbitQueue) Work(_ context.Context, workers int, handle func([]byte)) (Workers, error) {
	w := &rabbitWorkers{errs: make(chan error, workers)}
	n := min(rabbitConns, workers)
	for i := range n {
		ch, err := q.server.conns[i].Channel()
		if err == nil {
			w.channels = append(w.channels, ch)
			err = ch.Qos(rabbitPrefetch, 0, false)
		}
		var deliveries <-chan amqp.Delivery
		if err == nil {
			deliveries, err = ch.Consume(q.name, fmt.Sprintf("worker-%d", i), false, false, false, false, nil)
		}
		if err != nil {
			_ = w.Stop(context.Background())
			return nil, err
		}
		share := workers / n
		if i < workers%n {
			share++
		}
		for range share {
			w.wg.Go(func() {
				for d := range deliveries {
					if w.stopping.Load() {
						continue
					}
					handle(d.Body)
					if err := d.Ack(false); err != nil {
						if !w.stopping.Load() {
							w.errs <- err
						}
						return
					}
					w.acked.Add(1)
				}
			})
		}
	}
	return w, nil
}

type rabbitWorkers struct {
	wg       sync.WaitGroup
	channels []*amqp.Channel
	stopping atomic.Bool
	acked    atomic.Int64
	errs     chan error
}

// Completed counts acks that were sent.
func (w *rabbitWorkers) Completed(context.Context) (int64, error) {
	select {
	case err := <-w.errs:
		return 0, err
	default:
		return w.acked.Load(), nil
	}
}

func (w *rabbitWorkers) Stop(context.Context) error {
	w.stopping.Store(true)
	var all error
	for _, ch := range w.channels {
		all = errors.Join(all, ch.Close())
	}
	w.wg.Wait()
	return all
}

// SlowStart keeps one server for all scenarios; queues are deleted between them.
func (rabbitMQ) SlowStart() bool { return true }
