package taskcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// Defaults and limits.
const (
	// DefaultDeadExitCode is EX_DATAERR of sysexits.h: the input is wrong, so
	// trying again is of no use.
	DefaultDeadExitCode = 65
	// DefaultKillDelay is the time between the request to end and the kill.
	DefaultKillDelay = 5 * time.Second
	// MaxErrorText is how much of a command's standard error is kept, in bytes.
	MaxErrorText = 2048
)

// Runner runs one command line for every task. Its fields are set before the
// first Run; Run may be called by many goroutines.
type Runner struct {
	// Args is the program and its arguments.
	Args []string
	// Env is the environment that the task's variables are added to.
	Env []string
	// Stderr gets whole lines while commands run. Nil drops them.
	Stderr io.Writer
	// Timeout ends a command that runs longer; 0 means never.
	Timeout time.Duration
	// DeadExitCode is the exit code that says that the task must not be tried
	// again; negative means there is none.
	DeadExitCode int
	// KillDelay is how long a command that is to end is given between SIGTERM
	// and SIGKILL; 0 means DefaultKillDelay.
	KillDelay time.Duration
	// TempDir holds outputs too large for memory; empty means the system's.
	TempDir string

	outMu, errMu sync.Mutex
	killOnce     sync.Once
	killInit     sync.Once
	killed       chan struct{}
}

// Failure is a command that did not end with exit code 0.
type Failure struct {
	// Text says how it ended, followed by the last lines of its standard error.
	Text string
	// Permanent: it ended with DeadExitCode.
	Permanent bool
}

func (f *Failure) Error() string { return f.Text }

// Run runs the command for t. After it ended its whole standard output is
// written to stdout in one piece; no two commands are written at once, and nil
// drops it. Run returns nil when it ended with exit code 0, a
// *Failure when it did not, and the context's error when ctx ended first. In
// that case, and after a timeout, the command's whole process group was ended.
func (r *Runner) Run(ctx context.Context, t Task, stdout io.Writer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	run := ctx
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		run, cancel = context.WithTimeoutCause(ctx, r.Timeout, errTimeout)
		defer cancel()
	}
	delay := r.KillDelay
	if delay <= 0 {
		delay = DefaultKillDelay
	}

	out := &spill{dir: r.TempDir}
	defer out.close()
	tail := &tailWriter{limit: MaxErrorText, lines: r.Stderr, mu: &r.errMu}

	cmd := exec.CommandContext(run, r.Args[0], r.Args[1:]...)
	cmd.Env = append(slices.Clone(r.Env), t.environment()...)
	cmd.Stdin = bytes.NewReader(t.Payload)
	cmd.Stdout, cmd.Stderr = out, tail
	newGroup(cmd)
	ended := make(chan struct{})
	var killer sync.WaitGroup
	cmd.Cancel = func() error {
		endGroup(cmd.Process)
		killer.Go(func() {
			timer := time.NewTimer(delay)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-r.killChan():
			case <-ended:
			}
			// The program may be gone and have left children behind.
			killGroup(cmd.Process)
		})
		return nil
	}
	// Children that outlive the program may hold its outputs open; they are not
	// waited for longer than this.
	cmd.WaitDelay = delay + time.Second

	err := cmd.Run()
	close(ended)
	killer.Wait()
	tail.flush()
	if stdout != nil {
		if copyErr := r.copyOut(out, stdout); copyErr != nil && err == nil {
			return &Failure{Text: fmt.Sprintf("writing the command's output: %v", copyErr)}
		}
	}
	switch {
	case errors.Is(context.Cause(run), errTimeout):
		return &Failure{Text: withTail(fmt.Sprintf("timed out after %v", r.Timeout), tail)}
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	}
	if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState != nil && cmd.ProcessState.Success() {
		return nil // a child that it left behind held the output open
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		text := exit.ProcessState.String() // "exit status 3", "signal: killed"
		return &Failure{Text: withTail(text, tail), Permanent: r.DeadExitCode >= 0 && exit.ExitCode() == r.DeadExitCode}
	}
	if cmd.ProcessState != nil { // it ran: no room for its output, say
		return &Failure{Text: withTail(fmt.Sprintf("passing on the input or output of %s: %v", r.Args[0], err), tail)}
	}
	return &Failure{Text: withTail(fmt.Sprintf("cannot run %s: %v", r.Args[0], err), tail)}
}

var errTimeout = errors.New("timed out")

// KillNow ends the grace of commands that are being ended, now and later.
func (r *Runner) KillNow() {
	ch := r.killChan()
	r.killOnce.Do(func() { close(ch) })
}

func (r *Runner) killChan() chan struct{} {
	r.killInit.Do(func() { r.killed = make(chan struct{}) })
	return r.killed
}

func (r *Runner) copyOut(out *spill, stdout io.Writer) error {
	r.outMu.Lock()
	defer r.outMu.Unlock()
	return out.writeTo(stdout)
}

// withTail adds what the command said last.
func withTail(text string, tail *tailWriter) string {
	if last := tail.text(); last != "" {
		return text + ": " + last
	}
	return text
}

// Task is what a command is told of a task.
type Task struct {
	ID, Kind, Queue, Namespace string
	Attempt, MaxAttempts       int
	Headers                    map[string]string
	Payload                    []byte
}

// environment returns the variables of a task. Characters that a variable
// cannot hold are dropped; of headers whose names become equal the last in
// alphabetical order wins.
func (t Task) environment() []string {
	env := []string{
		"SWITCHYARD_TASK_ID=" + clean(t.ID),
		"SWITCHYARD_TASK_KIND=" + clean(t.Kind),
		fmt.Sprintf("SWITCHYARD_TASK_ATTEMPT=%d", t.Attempt),
		fmt.Sprintf("SWITCHYARD_TASK_MAX_ATTEMPTS=%d", t.MaxAttempts),
		"SWITCHYARD_QUEUE=" + clean(t.Queue),
		"SWITCHYARD_NAMESPACE=" + clean(t.Namespace),
	}
	for _, name := range slices.Sorted(maps.Keys(t.Headers)) {
		env = append(env, "SWITCHYARD_HEADER_"+variable(name)+"="+clean(t.Headers[name]))
	}
	return env
}

func clean(s string) string { return strings.ReplaceAll(s, "\x00", "") }

// variable turns a header's name into a part of a variable's name.
func variable(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z':
			return c - 'a' + 'A'
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			return c
		}
		return '_'
	}, name)
}
