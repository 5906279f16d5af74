package crashtest

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	switchyardv1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/history"
)

const insideNamespace = "CRASHTEST_INSIDE_NAMESPACE"

// inNamespace runs the calling test once more, in a process with mounts of its
// own, and returns true there. Those mounts vanish with the process, whatever
// happens. Needs root or user namespaces.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideNamespace) != "" {
		if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatalf("making mounts private: %v", err)
		}
		return true
	}
	again := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "3m")
	again.Env = append(os.Environ(), insideNamespace+"=1")
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	again.SysProcAttr = attributes
	out, err := again.CombinedOutput()
	t.Logf("inside a namespace:\n%s", out)
	if err != nil {
		t.Fatalf("%v (this test needs root or user namespaces to mount a small file system)", err)
	}
	if !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatal("the test did not run inside the namespace")
	}
	return false
}

// smallDisk mounts a file system of the given size.
func smallDisk(t *testing.T, megabytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("small", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
		t.Fatalf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill writes a file until the disk is full and returns its name.
func fill(t *testing.T, dir string) string {
	t.Helper()
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer ballast.Close()
	for size := 1 << 20; size >= 512; {
		_, err := ballast.Write(make([]byte, size))
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			t.Fatal(err)
		}
	}
	return ballast.Name()
}

func TestFullDisk_refusesClearlyAndLosesNothing(t *testing.T) {
	processTest(t)
	if !inNamespace(t) {
		return
	}
	disk := smallDisk(t, 400)
	n := newNode(t, filepath.Join(disk, "data"))
	n.start()
	recorder := history.NewRecorder()
	c := newClient(dial(t, n.addr), recorder, "full", "producer")

	batch := func(size int) (tasks []*switchyardv1.TaskSpec) {
		for range 100 {
			tasks = append(tasks, newTask(size))
		}
		return tasks
	}
	for range 10 {
		if _, err := c.add(t.Context(), batch(300)); err != nil {
			t.Fatal(err)
		}
	}
	ballast := fill(t, disk)

	// Preallocated space keeps it going for a while; then it must refuse.
	var refused error
	for i := 0; i < 200 && refused == nil; i++ {
		_, refused = c.add(t.Context(), batch(20<<10))
	}
	if refused == nil {
		t.Fatal("400 MB were acknowledged on a disk that has no room for them")
	}
	t.Logf("refused with: %v", status.Convert(refused).Message())
	what := refused.Error() + "\n" + n.output.String()
	if !strings.Contains(what, "no space left on device") {
		t.Errorf("nothing says that the disk is full:\n%s", what)
	}
	select {
	case <-n.exited:
		t.Logf("the server gave up: %v", n.err)
		if n.err == nil {
			t.Error("the server failed and its exit code says that all is well")
		}
	default:
		if code := n.ready(t.Context()); code != http.StatusServiceUnavailable {
			t.Errorf("/readyz says %d", code)
		}
		took := n.interrupt()
		t.Logf("stopped within %s", took)
	}

	// With room again, everything that was acknowledged is there.
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	n.start()
	worker := newClient(dial(t, n.addr), recorder, "full", "worker")
	for {
		tasks, err := worker.poll(t.Context(), 200, 500*time.Millisecond, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(tasks) == 0 {
			break
		}
		if err := worker.complete(t.Context(), tasks); err != nil {
			t.Fatal(err)
		}
	}
	report := judge(t, recorder)
	wantSubstance(t, report, 1000, 0, 0)
	if report.Completed < report.Acknowledged {
		t.Errorf("only %d of %d acknowledged tasks came back", report.Completed, report.Acknowledged)
	}
}
