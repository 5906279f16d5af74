package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

func init() { register("nats", func() System { return natsJetStream{} }) }

// natsJetStream is a NATS server with JetStream.
type natsJetStream struct{}

const (
	natsConns    = 8
	natsBatchMax = 1000 // the server's default limit
	natsPull     = 512
	natsConsumer = "workers"
)

func (natsJetStream) Name() string { return "nats" }

func (natsJetStream) Settings(d Durability) []string {
	s := []string{"file storage, work queue retention, 1 replica", strconv.Itoa(natsConns) + " connections",
		"batches: atomic batch publish of 1000", "workers: pull consumer, " + strconv.Itoa(natsPull) + " messages ahead, double ack (awaited)"}
	if d == Fsync {
		return append(s, "sync_interval always")
	}
	return append(s, "sync_interval 2m (default)")
}

func (natsJetStream) Start(ctx context.Context, env Env) (Server, error) {
	binary, err := exec.LookPath("nats-server")
	if err != nil {
		return nil, err
	}
	version, err := output(ctx, binary, "--version")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	store := filepath.Join(env.Dir, "store")
	sync := ""
	if env.Durability == Fsync {
		sync = "sync_interval: always"
	}
	config := fmt.Sprintf("listen: \"%s\"\njetstream {\n store_dir: %q\n max_file_store: 20GB\n %s\n}\n", loopback(ports[0]), store, sync)
	configPath := filepath.Join(env.Dir, "nats.conf")
	if err := os.WriteFile(configPath, []byte(config), 0o644); err != nil {
		return nil, err
	}
	p, err := startProcess(env, nil, nil, binary, "-c", configPath)
	if err != nil {
		return nil, err
	}
	s := &natsServer{process: p, version: strings.TrimPrefix(version, "nats-server: ")}
	err = p.waitFor(ctx, env.StartTimeout, probeTCP(loopback(ports[0])))
	for i := 0; err == nil && i < natsConns; i++ {
		var c *nats.Conn
		if c, err = nats.Connect("nats://"+loopback(ports[0]), nats.MaxReconnects(0)); err == nil {
			s.conns = append(s.conns, c)
		}
	}
	if err != nil {
		_ = s.Stop()
		return nil, err
	}
	return s, nil
}

type natsServer struct {
	process *process
	version string
	conns   []*nats.Conn
}

func (s *natsServer) Version() string { return s.version }

func (s *natsServer) Stop() error {
	for _, c := range s.conns {
		c.Close()
	}
	return s.process.stop(syscall.SIGTERM, 20*time.Second)
}

func (s *natsServer) Queue(ctx context.Context, name string) (Queue, error) {
	q := &natsQueue{server: s, name: name}
	for _, c := range s.conns {
		js, err := jetstream.New(c)
		if err != nil {
			return nil, err
		}
		q.js = append(q.js, js)
	}
	_, err := q.js[0].CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
		Replicas: 1, AllowAtomicPublish: true, Discard: jetstream.DiscardNew,
	})
	return q, err
}

type natsQueue struct {
	server *natsServer
	name   string
	js     []jetstream.JetStream
	adders atomic.Int64
}

func (q *natsQueue) Adder(context.Context) (Adder, error) {
	i := int(q.adders.Add(1)) % natsConns
	return &natsAdder{q: q, conn: q.server.conns[i], js: q.js[i]}, nil
}

func (q *natsQueue) Remaining(ctx context.Context) (int64, error) {
	s, err := q.js[0].Stream(ctx, q.name)
	if err != nil {
		return 0, err
	}
	return int64(s.CachedInfo().State.Msgs), nil
}

func (q *natsQueue) Close(ctx context.Context) error { return q.js[0].DeleteStream(ctx, q.name) }

type natsAdder struct {
	q    *natsQueue
	conn *nats.Conn
	js   jetstream.JetStream
}

func (a *natsAdder) Add(ctx context.Context, payload []byte) error {
	_, err := a.js.Publish(ctx, a.q.name, payload)
	return err
}

func (a *natsAdder) AddBatch(ctx context.Context, payloads [][]byte) error {
	for len(payloads) > 0 {
		n := min(len(payloads), natsBatchMax)
		if err := a.publishAtomic(ctx, payloads[:n]); err != nil {
			return err
		}
		payloads = payloads[n:]
	}
	return nil
}

// publishAtomic publishes one atomic batch. Only the message that commits it is
// answered with the acknowledgement of all.
func (a *natsAdder) publishAtomic(ctx context.Context, payloads [][]byte) error {
	id := nuid.Next()
	for i, p := range payloads {
		m := &nats.Msg{Subject: a.q.name, Data: p, Header: nats.Header{
			"Nats-Batch-Id":       {id},
			"Nats-Batch-Sequence": {strconv.Itoa(i + 1)},
		}}
		if i < len(payloads)-1 {
			if err := a.conn.PublishMsg(m); err != nil {
				return err
			}
			continue
		}
		m.Header["Nats-Batch-Commit"] = []string{"1"}
		reply, err := a.conn.RequestMsgWithContext(ctx, m)
		if err != nil {
			return err
		}
		var ack struct {
			Count uint64              `json:"count"`
			Error *jetstream.APIError `json:"error"`
		}
		if err := json.Unmarshal(reply.Data, &ack); err != nil {
			return fmt.Errorf("nats: acknowledgement %q: %w", reply.Data, err)
		}
		if ack.Error != nil {
			return ack.Error
		}
		if int(ack.Count) != len(payloads) {
			return fmt.Errorf("nats: %d of %d acknowledged", ack.Count, len(payloads))
		}
	}
	return nil
}

func (*natsAdder) Close() error { return nil }

func (q *natsQueue) Work(ctx context.Context, workers int, handle func([]byte)) (Workers, error) {
	_, err := q.js[0].CreateOrUpdateConsumer(ctx, q.name, jetstream.ConsumerConfig{
		Durable: natsConsumer, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 100_000, AckWait: time.Minute,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &natsWorkers{cancel: cancel, errs: make(chan error, workers)}
	n := min(natsConns, workers)
	for i := range n {
		consumer, err := q.js[i].Consumer(ctx, q.name, natsConsumer)
		if err != nil {
			_ = w.Stop(ctx)
			return nil, err
		}
		// Unbuffered beyond the pull's own buffer: Consume's callback waits for a free worker.
		messages := make(chan jetstream.Msg)
		share := workers / n
		if i < workers%n {
			share++
		}
		for range share {
			w.wg.Go(func() { w.run(ctx, messages, handle) })
		}
		c, err := consumer.Consume(func(m jetstream.Msg) {
			select {
			case messages <- m:
			case <-ctx.Done():
			}
		}, jetstream.PullMaxMessages(natsPull/n))
		if err != nil {
			_ = w.Stop(ctx)
			return nil, err
		}
		w.consumes = append(w.consumes, c)
	}
	return w, nil
}

type natsWorkers struct {
	wg        sync.WaitGroup
	consumes  []jetstream.ConsumeContext
	cancel    context.CancelFunc
	completed atomic.Int64
	errs      chan error
}

func (w *natsWorkers) run(ctx context.Context, messages <-chan jetstream.Msg, handle func([]byte)) {
	for {
		select {
		case m := <-messages:
			handle(m.Data())
			if err := m.DoubleAck(ctx); err != nil {
				if !errors.Is(err, context.Canceled) {
					w.errs <- err
				}
				return
			}
			w.completed.Add(1)
		case <-ctx.Done():
			return
		}
	}
}

func (w *natsWorkers) Completed(context.Context) (int64, error) {
	select {
	case err := <-w.errs:
		return 0, err
	default:
		return w.completed.Load(), nil
	}
}

func (w *natsWorkers) Stop(context.Context) error {
	for _, c := range w.consumes {
		c.Stop()
	}
	w.cancel()
	w.wg.Wait()
	return nil
}
