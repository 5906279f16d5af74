package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/taskcmd"
)

// maxConcurrency bounds the commands that run at once.
const maxConcurrency = 10_000

type workFlags struct {
	concurrency, deadExitCode           int
	exitWhenEmpty, waitForRetries       bool
	leaseTime, taskTimeout, stopTimeout time.Duration
	progress                            bool
}

func newWorkCommand(a *app) *cobra.Command {
	var f workFlags
	c := &cobra.Command{
		Use:   "work QUEUE [flags] -- CMD ARGS...",
		Short: "Run a program for every task of a queue",
		Long: fmt.Sprintf(`Run CMD for every task of a queue, several at a time. The payload is on its
standard input; SWITCHYARD_TASK_ID, SWITCHYARD_TASK_KIND,
SWITCHYARD_TASK_ATTEMPT, SWITCHYARD_TASK_MAX_ATTEMPTS, SWITCHYARD_QUEUE,
SWITCHYARD_NAMESPACE, SWITCHYARD_ADDRESS and one SWITCHYARD_HEADER_NAME per
header are in its environment.

When CMD exits with 0 the task is completed. With anything else the task is
retried after its backoff, and dead after its last attempt; with %d (EX_DATAERR,
see --dead-exit-code) it is dead at once. The last lines of CMD's standard error
are kept as the reason. The standard output of each CMD is passed on in one
piece when it has ended.

Ctrl-C once takes no more tasks and lets running commands end; twice ends them
and hands their tasks back. A command is ended with its whole process group:
SIGTERM, %v later SIGKILL.`, taskcmd.DefaultDeadExitCode, taskcmd.DefaultKillDelay),
		Example: `  switchyard work thumbnails -- ./thumbnail.sh
  switchyard work words --exit-when-empty -- sh -c 'wc -w "$(cat)"'
  switchyard work mails --concurrency 50 --task-timeout 30s -- ./send-mail
  switchyard work jobs -o json -- ./job | jq -r 'select(.outcome == "dead").error'`,
		Args: func(c *cobra.Command, args []string) error {
			at := c.ArgsLenAtDash()
			switch {
			case len(args) == 0 || at == 0:
				return usageOf(c, errors.New("missing argument QUEUE"))
			case at < 0 && len(args) > 1:
				return usageOf(c, fmt.Errorf("put -- between the queue and the command: switchyard work %s -- %s", args[0], args[1]))
			case at > 1:
				return usageOf(c, fmt.Errorf("unexpected argument %q", args[1]))
			case len(args) == 1:
				return usageOf(c, errors.New("missing command after --"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(c); err != nil {
				return usageOf(c, err)
			}
			if _, err := exec.LookPath(args[1]); err != nil {
				return usageOf(c, fmt.Errorf("cannot run the command: %w", err))
			}
			return a.work(c.Context(), args[0], args[1:], f)
		},
	}
	fs := c.Flags()
	fs.IntVarP(&f.concurrency, "concurrency", "c", runtime.NumCPU(), "commands at once")
	fs.BoolVar(&f.exitWhenEmpty, "exit-when-empty", false, "end when no task is ready and none is in the hands of a worker")
	fs.BoolVar(&f.waitForRetries, "wait-for-retries", false, "with --exit-when-empty: wait for delayed tasks and retries too")
	fs.DurationVar(&f.leaseTime, "lease-time", 0, "lease of a task, extended while its command runs (default: the task's own)")
	fs.DurationVar(&f.taskTimeout, "task-timeout", 0, "end a command that runs longer, and fail the attempt (default: never)")
	fs.DurationVar(&f.stopTimeout, "stop-timeout", 30*time.Second, "how long running commands may go on after Ctrl-C")
	fs.IntVar(&f.deadExitCode, "dead-exit-code", taskcmd.DefaultDeadExitCode, "exit code of a command whose task must not be tried again; -1 for none")
	fs.BoolVar(&f.progress, "progress", false, "show progress even when standard error is not a terminal")
	return c
}

func (f *workFlags) check(c *cobra.Command) error {
	given := c.Flags().Changed
	switch {
	case f.concurrency < 1 || f.concurrency > maxConcurrency:
		return fmt.Errorf("--concurrency must be 1 to %d, not %d", maxConcurrency, f.concurrency)
	case f.deadExitCode == 0 || f.deadExitCode < -1 || f.deadExitCode > 255:
		return fmt.Errorf("--dead-exit-code must be 1 to 255, or -1 for none, not %d", f.deadExitCode)
	case f.waitForRetries && !f.exitWhenEmpty:
		return errors.New("--wait-for-retries goes with --exit-when-empty")
	case given("lease-time") && f.leaseTime <= 0, given("task-timeout") && f.taskTimeout <= 0, f.stopTimeout < 0:
		return errors.New("--lease-time and --task-timeout must be more than 0, --stop-timeout must not be negative")
	}
	return nil
}

// work runs the command for every task until it is interrupted, or until the
// queue is empty if it is to end then.
func (a *app) work(parent context.Context, queue string, command []string, f workFlags) error {
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, now, stop := interrupts(parent)
	defer stop()
	if err := a.reach(ctx, client); err != nil {
		return err
	}
	ctx, finish := context.WithCancel(ctx)
	defer finish()

	h := &commandHandler{namespace: a.namespace, start: time.Now(), json: a.json()}
	p := a.newProgress(f.progress, time.Second, 200*time.Millisecond, func() string { return h.line(queue) })
	h.stdout = p.beside(a.stdout)
	h.runner = &taskcmd.Runner{
		Args: command, Env: append(os.Environ(), "SWITCHYARD_ADDRESS="+a.address),
		Stderr: p.beside(a.stderr), Timeout: f.taskTimeout, DeadExitCode: f.deadExitCode,
	}
	worker := switchyard.NewWorker(client, queue, h, switchyard.WorkerOptions{
		Concurrency: f.concurrency, LeaseTime: f.leaseTime,
		StopTimeout:   max(f.stopTimeout, 1), // 0 would be the default
		CancelTimeout: taskcmd.DefaultKillDelay + 5*time.Second,
		OnError:       h.onError(p.beside(a.stderr)),
		Logger:        slog.New(slog.NewTextHandler(p.beside(a.stderr), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	h.stats = worker.Stats
	defer context.AfterFunc(now, func() {
		h.runner.KillNow()
		worker.StopNow()
	})()
	p.start()
	watch := &queueWatch{client: client, queue: queue, timeout: a.timeout, retries: f.waitForRetries, handler: h}
	var left *v1.QueueCounts
	watched := make(chan error, 1)
	go func() {
		var err error
		switch {
		case f.exitWhenEmpty:
			left, err = watch.untilEmpty(ctx)
			finish()
		case !p.silent:
			watch.untilDone(ctx)
		}
		watched <- err
	}()
	err = worker.Run(ctx)
	finish()
	watchErr := <-watched
	p.end()
	err = cmp.Or(err, watchErr, h.summary(a, queue, left))
	switch {
	case err != nil:
		return err
	case now.Err() != nil && parent.Err() == nil:
		return &exitError{code: exitInterrupted}
	case h.dead.Load() > 0:
		return &exitError{code: exitPartly, err: fmt.Errorf("%s dead; see: switchyard queue dead %s", became(h.dead.Load()), queue)}
	}
	return nil
}

func became(n int64) string { return plural(n, "task") + " became" }
