package chaos

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	seedFlag     = flag.Uint64("seed", 1, "seed of the long form")
	durationFlag = flag.Duration("duration", 0, "how long the long form does harm; 0 leaves it out")
	keepFlag     = flag.String("keep", "", "folder for the logs, and the histories of a failure; empty: a temporary one, of failures alone")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStore_isRightUnderFaults is the short form.
func TestStore_isRightUnderFaults(t *testing.T) {
	runStore(t, 1, 8*time.Second)
}

// TestStore_long is the long form.
func TestStore_long(t *testing.T) {
	if *durationFlag == 0 {
		t.Skip("make chaos runs it")
	}
	runStore(t, *seedFlag, *durationFlag)
}

// settleTime is how long a cluster without faults may take to come to rest.
const settleTime = 2 * time.Minute

func runStore(t *testing.T, seed uint64, lasts time.Duration) {
	keep := *keepFlag
	if keep == "" {
		keep = filepath.Join(os.TempDir(), fmt.Sprintf("switchyard-chaos-%d", seed))
	}
	logs := &tail{}
	say := func(format string, args ...any) {
		fmt.Fprintf(logs, "time=%s level=CHAOS msg=%q\n", time.Now().Format("2006-01-02T15:04:05.000Z07:00"), fmt.Sprintf(format, args...))
	}
	defer func() {
		if t.Failed() || *keepFlag != "" {
			if err := logs.save(keep); err != nil {
				t.Error(err)
			}
			t.Logf("seed %d; what is known is in %s", seed, keep)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), lasts+10*time.Minute)
	defer cancel()
	c, err := newCluster(ctx, options{dir: t.TempDir(), sets: 3, members: 3, logs: logs})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := fill(ctx, c.clients[0], 1<<20); err != nil {
		t.Fatal(err)
	}
	h := newHistory()
	l := startLoad(c, h, seed, 20)
	n := startNemesis(c, seed, say)
	for began := time.Now(); time.Since(began) < lasts && !n.failedBadly(); {
		pause(ctx, 50*time.Millisecond)
	}
	if err := n.stop(); err != nil {
		t.Errorf("a repair failed: %v", err)
	}
	harmed := time.Since(h.start)
	say("all is repaired")
	// The clients go on for a moment: it works again.
	for at, began := h.successes(), time.Now(); h.successes() < at+100 && !t.Failed(); {
		pause(ctx, 10*time.Millisecond)
		if time.Since(began) > settleTime {
			t.Errorf("only %d operations succeeded in the %v after all was repaired", h.successes()-at, settleTime)
		}
	}
	l.stop()
	say("the clients have stopped")
	t.Logf("seed %d, %v\n%s\n%s", seed, harmed.Round(time.Second), n.report(), h.report())
	ended, err := c.endings()
	for _, e := range ended {
		t.Logf("a process ended by itself: %v", e)
	}
	if err != nil {
		t.Error(err)
	}
	if t.Failed() {
		return
	}
	rest, cancelRest := context.WithTimeout(ctx, settleTime)
	defer cancelRest()
	if err := c.settle(rest); err != nil {
		stacks := make([]byte, 4<<20)
		say("%s", stacks[:runtime.Stack(stacks, true)])
		t.Fatal(err)
	}
	if err := h.readAll(ctx, c.clients[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(keep, 0o700); err != nil {
		t.Fatal(err)
	}
	v, err := h.check(20*time.Second, keep)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d keys are checked, %d were too hard", v.keys, len(v.unclear))
	if len(v.bad) > 0 {
		t.Errorf("the histories of %d keys are not linearizable: %.200q", len(v.bad), v.bad)
	}
	if len(v.unclear) > v.keys/20 {
		t.Errorf("%d of %d histories could not be checked in time", len(v.unclear), v.keys)
	}
	if !t.Failed() {
		_ = os.Remove(keep) // it is empty
	}
}
