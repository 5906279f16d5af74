//go:build linux

package slowsync

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test program is also the supervisor and the supervised command.
func TestMain(m *testing.M) {
	if Main(os.Args) {
		return
	}
	if len(os.Args) == 4 && os.Args[1] == "sync-some" {
		syncSome(os.Args[2], os.Args[3])
		return
	}
	os.Exit(m.Run())
}

// syncSome syncs a file so many times, once through O_DSYNC, and prints how long
// that took.
func syncSome(path, count string) {
	n, _ := strconv.Atoi(count)
	f, err := os.Create(path)
	if err != nil {
		panic(err)
	}
	start := time.Now()
	for range n - 1 {
		f.WriteString("x")
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			panic(err)
		}
	}
	g, err := os.OpenFile(path, os.O_WRONLY|unix.O_DSYNC, 0)
	if err != nil {
		panic(err)
	}
	g.Close()
	fmt.Println(time.Since(start).Nanoseconds())
}

func run(t *testing.T, command ...string) time.Duration {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).Output()
	if err != nil {
		if e, ok := err.(*exec.ExitError); ok && strings.Contains(string(e.Stderr), "seccomp filter") {
			t.Skipf("no seccomp filter allowed here: %s", e.Stderr)
		}
		t.Fatal(err)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ns)
}

func TestSupervisor_slowsAndCountsSyncs(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	statePath := filepath.Join(dir, "state")
	state, err := OpenState(statePath)
	if err != nil {
		t.Fatal(err)
	}
	const syncs, delay = 50, 5 * time.Millisecond
	state.SetDelay(delay)
	took := run(t, self, SuperviseArg, statePath, self, "sync-some", filepath.Join(dir, "file"), strconv.Itoa(syncs))
	if took < syncs*delay {
		t.Errorf("%d syncs, each slower by %v, took only %v", syncs, delay, took)
	}
	if state.Syncs() != syncs || state.DsyncOpens() != 1 {
		t.Errorf("counted %d syncs and %d opens, want %d and 1", state.Syncs(), state.DsyncOpens(), syncs)
	}
	state.SetDelay(0)
	if again := run(t, self, SuperviseArg, statePath, self, "sync-some", filepath.Join(dir, "file"), strconv.Itoa(syncs)); again >= took {
		t.Errorf("without a delay it took %v, with one %v", again, took)
	}
}

func TestSupervisor_passesTheExitCodeOn(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	err = exec.CommandContext(t.Context(), self, SuperviseArg, filepath.Join(t.TempDir(), "state"), "sh", "-c", "exit 7").Run()
	exit, ok := err.(*exec.ExitError)
	if !ok {
		t.Fatalf("%v, want exit code 7", err)
	}
	if code := exit.ExitCode(); code != 7 && code != 1 {
		t.Fatalf("exit code %d, want 7", code)
	} else if code == 1 {
		t.Skip("no seccomp filter allowed here")
	}
}
