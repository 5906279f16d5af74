package system

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

func init() { register("river", func() System { return riverPostgres{} }) }

// riverPostgres is River on a PostgreSQL server.
type riverPostgres struct{}

const (
	riverFetchCooldown = time.Millisecond
	riverFetchPoll     = 2 * time.Millisecond
	riverConns         = 80
	// Notifications serialise commits: at one per millisecond they halve River's
	// rates, and polling this often makes up for them.
	riverPollOnly = true
)

func (riverPostgres) Name() string { return "river" }

func (riverPostgres) Settings(d Durability) []string {
	s := []string{"PostgreSQL with shared_buffers 1 GB, max_wal_size 8 GB, " + strconv.Itoa(riverConns) + " connections",
		"FetchCooldown 1 ms, FetchPollInterval 2 ms, PollOnly", "batches: InsertManyFast (COPY)"}
	if d == Fsync {
		return append(s, "synchronous_commit on")
	}
	return append(s, "synchronous_commit off")
}

// postgresBinary finds a PostgreSQL program, which Debian keeps out of the path.
func postgresBinary(name string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err == nil && len(found) > 0 {
		return found[len(found)-1], nil
	}
	return exec.LookPath(name)
}

func (riverPostgres) Start(ctx context.Context, env Env) (Server, error) {
	postgres, err := postgresBinary("postgres")
	if err != nil {
		return nil, err
	}
	initdb, err := postgresBinary("initdb")
	if err != nil {
		return nil, err
	}
	version, err := output(ctx, postgres, "--version")
	if err != nil {
		return nil, err
	}
	var who *user.User // PostgreSQL refuses to run as root
	if os.Geteuid() == 0 {
		if who, err = user.Lookup("postgres"); err != nil {
			return nil, err
		}
		credential, err := credentialOf(who)
		if err != nil {
			return nil, err
		}
		if err := os.Chown(env.Dir, int(credential.Uid), int(credential.Gid)); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(env.Dir, "data")
	initEnv := env
	initEnv.Supervise = nil
	p, err := startProcess(initEnv, who, nil, initdb, "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-time.After(env.StartTimeout):
		_ = p.stop(syscall.SIGKILL, time.Second)
		return nil, fmt.Errorf("initdb took longer than %v", env.StartTimeout)
	}
	if p.err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", p.err, p.tail())
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	commit := "off"
	if env.Durability == Fsync {
		commit = "on"
	}
	args := []string{postgres, "-D", data, "-p", strconv.Itoa(ports[0]), "-h", "127.0.0.1"}
	for _, set := range []string{"unix_socket_directories=", "shared_buffers=1GB", "max_wal_size=8GB", "max_connections=200",
		"checkpoint_timeout=30min", "wal_buffers=64MB", "synchronous_commit=" + commit, "logging_collector=off"} {
		args = append(args, "-c", set)
	}
	p, err = startProcess(env, who, nil, args...)
	if err != nil {
		return nil, err
	}
	s := &riverServer{process: p, version: fmt.Sprintf("%s on %s", moduleVersion("github.com/riverqueue/river"), shortPostgresVersion(version))}
	s.url = fmt.Sprintf("postgres://bench@%s/postgres?sslmode=disable", loopback(ports[0]))
	err = p.waitFor(ctx, env.StartTimeout, func(ctx context.Context) error {
		c, err := pgx.Connect(ctx, s.url)
		if err != nil {
			return err
		}
		return c.Close(ctx)
	})
	if err == nil {
		err = s.connect(ctx)
	}
	if err != nil {
		_ = s.Stop()
		return nil, err
	}
	return s, nil
}

// shortPostgresVersion makes "PostgreSQL 15.14" of "postgres (PostgreSQL) 15.14 (Debian …)".
func shortPostgresVersion(line string) string {
	f := strings.Fields(line)
	if len(f) < 3 {
		return line
	}
	return "PostgreSQL " + f[2]
}

type riverServer struct {
	process *process
	version string
	url     string
	pool    *pgxpool.Pool
	insert  *river.Client[pgx.Tx]
}

func (s *riverServer) connect(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return err
	}
	config.MaxConns, config.MinConns = riverConns, riverConns
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	driver := riverpgxv5.New(s.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quietLogger()})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	s.insert, err = river.NewClient(driver, &river.Config{FetchCooldown: riverFetchCooldown, FetchPollInterval: riverFetchPoll, PollOnly: riverPollOnly, Logger: quietLogger()})
	return err
}

func quietLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1}))
}

func (s *riverServer) Version() string { return s.version }

func (s *riverServer) Stop() error {
	if s.pool != nil {
		s.pool.Close()
	}
	return s.process.stop(syscall.SIGINT, 30*time.Second) // fast shutdown
}

func (s *riverServer) Queue(_ context.Context, name string) (Queue, error) {
	return &riverQueue{server: s, name: name}, nil
}

type riverQueue struct {
	server *riverServer
	name   string
}

type riverArgs struct {
	Payload string `json:"p"`
}

func (riverArgs) Kind() string { return "bench" }

func (q *riverQueue) Adder(context.Context) (Adder, error) { return riverAdder{q}, nil }

type riverAdder struct{ q *riverQueue }

func (a riverAdder) Add(ctx context.Context, payload []byte) error {
	_, err := a.q.server.insert.Insert(ctx, riverArgs{string(payload)}, &river.InsertOpts{Queue: a.q.name})
	return err
}

func (a riverAdder) AddBatch(ctx context.Context, payloads [][]byte) error {
	opts := &river.InsertOpts{Queue: a.q.name}
	params := make([]river.InsertManyParams, len(payloads))
	for i, p := range payloads {
		params[i] = river.InsertManyParams{Args: riverArgs{string(p)}, InsertOpts: opts}
	}
	n, err := a.q.server.insert.InsertManyFast(ctx, params)
	if err == nil && n != len(payloads) {
		err = fmt.Errorf("river: %d of %d inserted", n, len(payloads))
	}
	return err
}

func (riverAdder) Close() error { return nil }

func (q *riverQueue) count(ctx context.Context, states string) (int64, error) {
	var n int64
	err := q.server.pool.QueryRow(ctx, "SELECT count(*) FROM river_job WHERE queue = $1 AND state IN ("+states+")", q.name).Scan(&n)
	return n, err
}

func (q *riverQueue) Remaining(ctx context.Context) (int64, error) {
	// Cheap when many are completed: the index that serves fetching leads with the state.
	return q.count(ctx, "'available', 'running', 'retryable', 'scheduled', 'pending'")
}

// Close empties the table, which is this queue's alone: one runs at a time.
func (q *riverQueue) Close(ctx context.Context) error {
	_, err := q.server.pool.Exec(ctx, "TRUNCATE river_job")
	return err
}

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	handle func([]byte)
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	w.handle([]byte(job.Args.Payload))
	return nil
}

func (q *riverQueue) Work(ctx context.Context, workers int, handle func([]byte)) (Workers, error) {
	set := river.NewWorkers()
	if err := river.AddWorkerSafely(set, &riverWorker{handle: handle}); err != nil {
		return nil, err
	}
	c, err := river.NewClient(riverpgxv5.New(q.server.pool), &river.Config{
		FetchCooldown:     riverFetchCooldown,
		FetchPollInterval: riverFetchPoll,
		PollOnly:          riverPollOnly,
		Queues:            map[string]river.QueueConfig{q.name: {MaxWorkers: workers}},
		Workers:           set,
		JobTimeout:        -1,
		Logger:            quietLogger(),
	})
	if err != nil {
		return nil, err
	}
	if err := c.Start(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	return &riverWorkers{q: q, client: c}, nil
}

type riverWorkers struct {
	q      *riverQueue
	client *river.Client[pgx.Tx]
}

// Completed asks the database: River completes in the background, in batches.
func (w *riverWorkers) Completed(ctx context.Context) (int64, error) {
	return w.q.count(ctx, "'completed'")
}

func (w *riverWorkers) Stop(ctx context.Context) error { return w.client.Stop(ctx) }

// SlowStart keeps one server for all scenarios; the table is emptied between them.
func (riverPostgres) SlowStart() bool { return true }
