package raftengine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard/engine"
)

// victimEnv makes the test binary a process that writes until it is killed.
const victimEnv = "SWITCHYARD_TEST_VICTIM_DIR"

// victimOptions are small, so that flushes, snapshots and new log files happen all the
// time.
func victimOptions(dir string) Options {
	return Options{Dir: dir, Machine: &book{}, SnapshotBytes: 256 << 10, MemTableBytes: 256 << 10, segmentBytes: 64 << 10}
}

// victim writes rows from eight goroutines and prints the name of each when it is done.
func victim() {
	e, err := Open(context.Background(), victimOptions(os.Getenv(victimEnv)))
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	prefix := fmt.Sprintf("%d", time.Now().UnixNano())
	lines := make(chan string, 1024)
	for g := range 8 {
		go func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("%s-%d-%06d", prefix, g, i)
				done := make(chan error, 1)
				e.Propose(engine.Command{Function: "add", Bucket: 1, Args: []byte(name)}, func(_ []byte, err error) { done <- err })
				if err := <-done; err != nil {
					name = "failed: " + err.Error()
				}
				lines <- name
			}
		}()
	}
	for line := range lines {
		// One write per line: what was printed is whole, and unbuffered.
		if _, err := os.Stdout.WriteString(line + "\n"); err != nil {
			os.Exit(1)
		}
	}
}

func TestRestart_afterKill(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	acked := map[string]bool{}
	for round := range 6 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victimEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		kill := func() { once.Do(func() { _ = cmd.Process.Kill() }) }
		guard := time.AfterFunc(time.Minute, kill)
		target := 300 + rand.IntN(3000)
		n := 0
		for sc := bufio.NewScanner(out); sc.Scan(); {
			line := sc.Text()
			if strings.HasPrefix(line, "failed") {
				t.Error(line)
				kill()
				continue
			}
			acked[line] = true
			if n++; n == target {
				kill()
			}
		}
		guard.Stop()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) {
			t.Fatalf("the process ended by itself: %v", err)
		}
		start := time.Now()
		e, err := Open(testContext(t), victimOptions(dir))
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		count, names := contents(t, e)
		t.Logf("round %d: %d rows, opened in %v, snapshot at %d", round, count, took, e.Status().SnapshotAt)
		if count != uint64(len(names)) {
			t.Errorf("%d commands were applied, %d rows are there", count, len(names))
		}
		for name := range acked {
			if _, ok := slices.BinarySearch(names, name); !ok {
				t.Fatalf("round %d: row %s was acknowledged and is missing", round, name)
			}
		}
		if round%2 == 0 {
			mustClose(t, e)
		} else {
			crashed := crash(t, e)
			dir = crashed.Dir
		}
	}
}
