package crashtest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/internal/history"
)

// underKills puts load on a server for a while and kills it at random moments,
// at times once more before it is ready again. between runs while the server is
// dead. Then the queue is drained. It returns the history.
func underKills(t *testing.T, n *node, lasting time.Duration, kills int, between func(rnd *rand.Rand)) *history.Recorder {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	n.start()
	l := startLoad(t, n.addr, "crash", seed)
	end := time.Now().Add(lasting)
	var slowest time.Duration
	for i := range kills {
		// Spread over what is left, at random within each share.
		share := max(time.Until(end)/time.Duration(kills-i), time.Millisecond)
		pause(t.Context(), share/2+time.Duration(rnd.Int64N(int64(share))))
		n.kill()
		between(rnd)
		began := time.Now()
		if rnd.IntN(4) == 0 {
			n.launch()
			pause(t.Context(), time.Duration(rnd.Int64N(int64(200*time.Millisecond))))
			n.kill()
		}
		n.start()
		slowest = max(slowest, time.Since(began))
	}
	pause(t.Context(), time.Until(end))
	l.drain()
	t.Logf("slowest start, a second kill included in some: %s", slowest)
	return l.recorder
}

func TestKill_losesAndRepeatsNothing(t *testing.T) {
	processTest(t)
	const kills = 10
	n := newNode(t, t.TempDir())
	recorder := underKills(t, n, 20*time.Second, kills, func(*rand.Rand) {})
	wantSubstance(t, judge(t, recorder), 5_000, 100, kills)
}

// The same while the store is busy with itself: kills meet half-made snapshots,
// flushes and cuts of the log.
func TestKill_losesNothingDuringSnapshots(t *testing.T) {
	processTest(t)
	const kills = 8
	n := newNode(t, t.TempDir())
	n.env = busyStore
	recorder := underKills(t, n, 10*time.Second, kills, func(*rand.Rand) {})
	wantSubstance(t, judge(t, recorder), 2_000, 50, kills)
	n.kill()
	if first := logReport(t, n.data).FirstIndex; first < 100 {
		t.Errorf("the log still begins at entry %d: no snapshot has cut it", first)
	}
}

// The same while the log is only synced now and then: a killed process loses
// nothing of what it has handed to the operating system.
func TestKill_losesNothingWithIntervalDurability(t *testing.T) {
	processTest(t)
	const kills = 3
	n := newNode(t, t.TempDir(), "--durability", "interval", "--sync-interval", "10s")
	recorder := underKills(t, n, 6*time.Second, kills, func(*rand.Rand) {})
	wantSubstance(t, judge(t, recorder), 1_000, 10, kills)
}

// A server that forgets must be caught, or the tests above prove nothing.
func TestKill_catchesAForgetfulServer(t *testing.T) {
	processTest(t)
	n := newNode(t, t.TempDir(), "--memory")
	recorder := underKills(t, n, 3*time.Second, 1, func(*rand.Rand) {})
	report := history.Check(recorder.Records(), history.Options{ClockError: clockError})
	lost := 0
	for _, v := range report.Violations {
		if v.Kind == history.Lost {
			lost++
		}
	}
	t.Logf("%d tasks found to be lost", lost)
	if lost == 0 {
		t.Errorf("the server has forgotten everything, and nobody noticed: %s", report)
	}
}
