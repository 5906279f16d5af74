package crashtest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// program is the path of the built switchyard program.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if testing.Short() {
		return m.Run() // every test says that it was left out
	}
	if program = os.Getenv("CRASHTEST_PROGRAM"); program == "" {
		dir, err := os.MkdirTemp("", "crashtest")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "switchyard")
		build := exec.Command("go", "build", "-o", program, "../../cmd/switchyard")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "building the program:", err)
			return 1
		}
		os.Setenv("CRASHTEST_PROGRAM", program) // for a test that runs itself again
	}
	return m.Run()
}

// processTest leaves a test out under -short and says so.
func processTest(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out by -short: starts real processes")
	}
}

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 10 * time.Second
)

// node is a server that can be started again and again on the same data and
// the same address.
type node struct {
	t    *testing.T
	data string
	addr string
	args []string
	env  []string // besides the test's own

	cmd    *exec.Cmd
	output *tail
	exited chan struct{} // closed when cmd has been waited for
	err    error         // what Wait returned, after exited
}

// newNode prepares a server with its data in the folder. It is killed when the
// test ends.
func newNode(t *testing.T, data string, args ...string) *node {
	t.Helper()
	n := &node{t: t, data: data, addr: freeAddress(t), args: args}
	t.Cleanup(func() {
		n.kill()
		if t.Failed() && n.output != nil {
			t.Logf("last words of the server:\n%s", n.output)
		}
	})
	return n
}

// freeAddress finds a loopback port outside the range that the kernel gives to
// outgoing connections, so that it stays free between two runs of a server.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(10000))
		l, err := net.Listen("tcp", addr)
		if err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no free port found between 20000 and 30000")
	return ""
}

// launch starts the server and does not wait for it.
func (n *node) launch() {
	n.t.Helper()
	n.launchIn("", append([]string{"dev", "--data", n.data, "--listen", n.addr}, n.args...)...)
}

// launchIn starts the program in a folder with the given arguments.
func (n *node) launchIn(dir string, args ...string) {
	n.t.Helper()
	n.cmd = exec.Command(program, args...)
	n.cmd.Dir = dir
	n.cmd.Env = append(os.Environ(), n.env...)
	n.output = &tail{}
	n.cmd.Stdout, n.cmd.Stderr = n.output, n.output
	if err := n.cmd.Start(); err != nil {
		n.t.Fatalf("starting the server: %v", err)
	}
	n.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		n.err = cmd.Wait()
		close(exited)
	}(n.cmd, n.exited)
}

// start launches the server and waits until it says that it is ready.
func (n *node) start() {
	n.t.Helper()
	n.launch()
	if err := n.waitReady(startTimeout); err != nil {
		n.t.Fatalf("%v; it said:\n%s", err, n.output)
	}
}

func (n *node) waitReady(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if code := n.ready(ctx); code == http.StatusOK {
			return nil
		}
		select {
		case <-n.exited:
			return fmt.Errorf("the server ended before it was ready: %v", n.err)
		case <-ctx.Done():
			return fmt.Errorf("the server was not ready within %s", limit)
		case <-tick.C:
		}
	}
}

// ready returns the status of /readyz, 0 when nobody answers.
func (n *node) ready(ctx context.Context) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.addr+"/readyz", nil)
	if err != nil {
		n.t.Error(err)
		return 0
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}

// kill ends the server without a warning. It does nothing when the server does
// not run.
func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill() // an error means that it has ended already
	<-n.exited
}

// busyStore are settings under which tables are flushed, snapshots taken and the
// log cut every few moments instead of every few minutes.
var busyStore = []string{"SWITCHYARD_STORAGE_MEMTABLE_BYTES=1048576", "SWITCHYARD_STORAGE_SNAPSHOT_LOG_BYTES=2097152"}

// interrupt asks the server to stop and returns how long that took.
func (n *node) interrupt() time.Duration {
	n.t.Helper()
	began := time.Now()
	if err := n.cmd.Process.Signal(syscall.SIGINT); err != nil {
		n.t.Fatalf("interrupting the server: %v", err)
	}
	select {
	case <-n.exited:
	case <-time.After(stopTimeout):
		n.t.Fatalf("the server did not stop within %s of an interrupt; it said:\n%s", stopTimeout, n.output)
	}
	return time.Since(began)
}

// said tells whether the server has printed the text.
func (n *node) said(text string) error {
	if !strings.Contains(n.output.String(), text) {
		return fmt.Errorf("the server has not said %q", text)
	}
	return nil
}

// exitCode waits until the server has ended by itself.
func (n *node) exitCode(limit time.Duration) (int, error) {
	select {
	case <-n.exited:
	case <-time.After(limit):
		return 0, fmt.Errorf("the server still runs after %s", limit)
	}
	var exit *exec.ExitError
	if errors.As(n.err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, n.err
}

// tail keeps the last part of what a process prints.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 16 << 10

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, p...)
	if len(w.buf) > 2*tailBytes {
		w.buf = append(w.buf[:0], w.buf[len(w.buf)-tailBytes:]...)
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(bytes.TrimSpace(w.buf))
}
