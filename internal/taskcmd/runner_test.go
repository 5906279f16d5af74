package taskcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(script string) *Runner {
	return &Runner{Args: []string{"sh", "-c", script}, Env: os.Environ(), DeadExitCode: DefaultDeadExitCode, KillDelay: 100 * time.Millisecond}
}

func TestRun_givesThePayloadAndTheTask(t *testing.T) {
	r := shell(`cat; env | grep ^SWITCHYARD_ | sort`)
	var out bytes.Buffer
	err := r.Run(context.Background(), Task{
		ID: "the-id", Kind: "resize", Queue: "images", Namespace: "shop", Attempt: 2, MaxAttempts: 5,
		Headers: map[string]string{"trace-id": "abc", "x": "1\x002"}, Payload: []byte("hello\n"),
	}, &out)
	require.NoError(t, err)
	require.Equal(t, `hello
SWITCHYARD_HEADER_TRACE_ID=abc
SWITCHYARD_HEADER_X=12
SWITCHYARD_NAMESPACE=shop
SWITCHYARD_QUEUE=images
SWITCHYARD_TASK_ATTEMPT=2
SWITCHYARD_TASK_ID=the-id
SWITCHYARD_TASK_KIND=resize
SWITCHYARD_TASK_MAX_ATTEMPTS=5
`, out.String())
}

func TestRun_reportsHowACommandFailed(t *testing.T) {
	long := strings.Repeat("x", 99)
	for _, test := range []struct {
		name, script, text string
		permanent          bool
	}{
		{"exit code", "exit 3", "exit status 3", false},
		{"last words", "echo no such image >&2; exit 1", "exit status 1: no such image", false},
		{"dead exit code", "echo not a picture >&2; exit 65", "exit status 65: not a picture", true},
		{"signal", "kill -9 $$", "signal: killed", false},
		{"wrong UTF-8", `printf '\377bad' >&2; exit 1`, "exit status 1: \uFFFDbad", false},
		{"only the last whole lines", fmt.Sprintf("for i in $(seq 100); do echo %s >&2; done; exit 1", long),
			"exit status 1: " + strings.TrimSpace(strings.Repeat(long+"\n", MaxErrorText/100)), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := shell(test.script).Run(context.Background(), Task{}, nil)
			var failure *Failure
			require.ErrorAs(t, err, &failure)
			require.Equal(t, test.text, failure.Text)
			require.Equal(t, test.permanent, failure.Permanent)
		})
	}
}

func TestRun_saysThatAProgramCannotBeStarted(t *testing.T) {
	r := &Runner{Args: []string{filepath.Join(t.TempDir(), "nothing")}}
	var failure *Failure
	require.ErrorAs(t, r.Run(context.Background(), Task{}, nil), &failure)
	require.Contains(t, failure.Text, "cannot run")
}

func TestRun_doesNotMindUnreadInput(t *testing.T) {
	require.NoError(t, shell("exit 0").Run(context.Background(), Task{Payload: bytes.Repeat([]byte("x"), 1<<20)}, nil))
}

func TestRun_writesOutputsWhole(t *testing.T) {
	var out bytes.Buffer
	r := shell(`for i in 1 2 3 4 5; do echo "$SWITCHYARD_TASK_ID"; sleep 0.01; done`)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := r.Run(context.Background(), Task{ID: strconv.Itoa(i)}, &out); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	lines := strings.Fields(out.String())
	require.Len(t, lines, 40)
	for i := 0; i < 40; i += 5 {
		require.Equal(t, strings.Repeat(lines[i]+" ", 5), strings.Join(lines[i:i+5], " ")+" ")
	}
}

func TestRun_spillsLargeOutputsAndLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	r := shell("head -c 3000000 /dev/zero; echo end")
	r.TempDir = dir
	require.NoError(t, r.Run(context.Background(), Task{}, &out))
	require.Equal(t, 3000004, out.Len())
	require.True(t, strings.HasSuffix(out.String(), "\x00end\n"))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestRun_saysThatAnOutputCouldNotBeKept(t *testing.T) {
	r := shell("head -c 3000000 /dev/zero || true")
	r.TempDir = filepath.Join(t.TempDir(), "nothing")
	var failure *Failure
	require.ErrorAs(t, r.Run(context.Background(), Task{}, nil), &failure)
	require.Contains(t, failure.Text, "input or output of sh: ")
}

func TestRun_passesStandardErrorInWholeLines(t *testing.T) {
	var lines bytes.Buffer
	r := shell(`printf 'one\ntw' >&2; sleep 0.05; printf 'o\nthree' >&2`)
	r.Stderr = &lines
	require.NoError(t, r.Run(context.Background(), Task{}, nil))
	require.Equal(t, "one\ntwo\nthree\n", lines.String())
}

// gone waits until the process whose id a command wrote to file has ended.
func gone(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return ended(pid) }, 5*time.Second, 5*time.Millisecond, "process %d still runs", pid)
}

// ended reports whether a process is gone or only waits to be reaped.
func ended(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist) && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z")
}

func TestRun_endsTheWholeGroupAtTheTimeout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	// The child and the program itself both ignore SIGTERM.
	r := shell(fmt.Sprintf(`trap '' TERM; sh -c 'trap "" TERM; echo $$ >%s; while :; do sleep 1; done' & echo working >&2; wait; wait`, file))
	r.Timeout = 300 * time.Millisecond
	start := time.Now()
	err := r.Run(context.Background(), Task{}, nil)
	var failure *Failure
	require.ErrorAs(t, err, &failure)
	require.Equal(t, "timed out after 300ms: working", failure.Text)
	require.Less(t, time.Since(start), 5*time.Second)
	gone(t, file)
}

func TestRun_endsTheGroupWithItsContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	r := shell(fmt.Sprintf(`trap '' TERM; echo $$ >%s.tmp; mv %s.tmp %s; while :; do sleep 1; done`, file, file, file))
	r.KillDelay = time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx, Task{}, nil) }()
	require.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, 5*time.Second, 5*time.Millisecond)
	cancel()
	select {
	case err := <-result:
		t.Fatalf("ended before the kill: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	r.KillNow()
	require.ErrorIs(t, <-result, context.Canceled)
	gone(t, file)
}

func TestRun_doesNotWaitForChildrenLeftBehind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	r := shell(fmt.Sprintf(`sleep 60 & echo $! >%s; exit 0`, file))
	start := time.Now()
	require.NoError(t, r.Run(context.Background(), Task{}, nil))
	require.Less(t, time.Since(start), 30*time.Second)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}
