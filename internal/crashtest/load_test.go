package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	switchyardv1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/history"
)

const (
	producers = 16
	workers   = 16

	// Short, so that leases run out during the test.
	loadLease = 2 * time.Second
	// Producers slow down while more tasks than this are unfinished: the test
	// must drain in the end.
	maxUnfinished = 20_000
	drainTimeout  = 2 * time.Minute
	// The server's clock and the recorder's are the same clock of one machine,
	// read at different moments by different means.
	clockError = 5 * time.Millisecond
)

// load is producers and workers on one queue, with their history.
type load struct {
	t        *testing.T
	recorder *history.Recorder
	clients  []*client // producers, then workers

	adding  context.Context // ends: producers stop
	working context.Context // ends: workers stop

	stopAdding, stopWorking context.CancelFunc

	producing, consuming sync.WaitGroup

	added, finished atomic.Int64 // by acknowledgement
}

// startLoad starts 16 producers and 16 workers, each with a connection of its
// own. Everything random comes from the seed.
func startLoad(t *testing.T, addr, queue string, seed uint64) *load {
	t.Helper()
	return startLoadWith(t, func() *grpc.ClientConn { return dial(t, addr) }, queue, seed, producers, workers)
}

// startLoadWith starts producers and workers that connect by means of connect.
func startLoadWith(t *testing.T, connect func() *grpc.ClientConn, queue string, seed uint64, producers, workers int) *load {
	t.Helper()
	l := &load{t: t, recorder: history.NewRecorder()}
	l.adding, l.stopAdding = context.WithCancel(t.Context())
	l.working, l.stopWorking = context.WithCancel(t.Context())
	for i := range producers {
		c := newClient(connect(), l.recorder, queue, fmt.Sprintf("producer-%d", i))
		l.clients = append(l.clients, c)
		l.producing.Go(func() { l.produce(c, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	for i := range workers {
		c := newClient(connect(), l.recorder, queue, fmt.Sprintf("worker-%d", i))
		l.clients = append(l.clients, c)
		l.consuming.Go(func() { l.work(c, rand.New(rand.NewPCG(seed, uint64(producers+i)))) })
	}
	t.Cleanup(func() {
		l.stopAdding()
		l.stopWorking()
		l.producing.Wait()
		l.consuming.Wait()
	})
	return l
}

// pause waits between two tries. It returns false when the context has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// produce adds batches of 1 to 20 tasks, most of them small. What got no answer
// is added again with the same ids, for a while.
func (l *load) produce(c *client, rnd *rand.Rand) {
	for l.adding.Err() == nil {
		most := 20
		if l.added.Load()-l.finished.Load() > maxUnfinished {
			most = 1
			if !pause(l.adding, 5*time.Millisecond) {
				return
			}
		}
		tasks := make([]*switchyardv1.TaskSpec, 1+rnd.IntN(most))
		for i := range tasks {
			size := 64 + rnd.IntN(400)
			if rnd.IntN(200) == 0 {
				size = 64 << 10
			}
			tasks[i] = newTask(size)
		}
		total := len(tasks)
		for len(tasks) > 0 {
			// Not under l.adding: an add that is under way is answered.
			tasks, _ = c.add(l.working, tasks)
			if len(tasks) > 0 && !pause(l.adding, 20*time.Millisecond) {
				break
			}
		}
		l.added.Add(int64(total - len(tasks)))
	}
}

// work polls and does with the tasks what workers do: most complete them, some
// fail, give back, extend, dawdle until the lease is over, or vanish.
func (l *load) work(c *client, rnd *rand.Rand) {
	for l.working.Err() == nil {
		tasks, err := c.poll(l.working, 1+rnd.IntN(64), time.Second, loadLease)
		if err != nil {
			pause(l.working, 20*time.Millisecond)
			continue
		}
		var done, failed, dead, back, longer []*switchyardv1.LeasedTask
		dawdles := rnd.IntN(100) == 0
		for _, task := range tasks {
			switch p := rnd.IntN(1000); {
			case p < 10:
				dead = append(dead, task)
			case p < 40:
				failed = append(failed, task)
			case p < 70:
				back = append(back, task)
			case p < 100:
				longer = append(longer, task)
			case p < 108:
				// Vanishes.
			default:
				done = append(done, task)
			}
		}
		// Errors are in the history: an unanswered request is an outcome there.
		ctx := l.working
		if dawdles && !pause(ctx, loadLease+time.Duration(rnd.IntN(200))*time.Millisecond) {
			return
		}
		if c.complete(ctx, done) == nil {
			l.finished.Add(int64(len(done)))
		}
		_ = c.fail(ctx, failed, time.Duration(rnd.IntN(300))*time.Millisecond, false)
		if c.fail(ctx, dead, 0, true) == nil {
			l.finished.Add(int64(len(dead)))
		}
		_ = c.release(ctx, back)
		if c.extend(ctx, longer, loadLease) == nil && c.complete(ctx, longer) == nil {
			l.finished.Add(int64(len(longer)))
		}
	}
}

// drain stops the producers and waits until the queue has nothing but dead
// tasks.
func (l *load) drain() {
	l.t.Helper()
	l.stopAdding()
	l.producing.Wait()
	ctx, cancel := context.WithTimeout(l.t.Context(), drainTimeout)
	defer cancel()
	asker := l.clients[0]
	for {
		counts, err := asker.counts(ctx)
		if err == nil && counts.GetReady()+counts.GetDelayed()+counts.GetLeased() == 0 {
			break
		}
		if !pause(ctx, 50*time.Millisecond) {
			l.t.Fatalf("the queue was not empty after %s: %v (error: %v)", drainTimeout, counts, err)
		}
	}
	l.stopWorking()
	l.consuming.Wait()
	counts, err := asker.counts(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	if n, err := asker.recordDead(l.t.Context()); err != nil || int64(n) != counts.Dead {
		l.t.Errorf("%d dead tasks listed (error: %v), %d counted", n, err, counts.Dead)
	}
}

// judge checks the history. On a violation the history is kept as a test
// artifact (go test -artifacts).
func judge(t *testing.T, recorder *history.Recorder) history.Report {
	t.Helper()
	return judgeBy(t, recorder, history.Options{ClockError: clockError})
}

func judgeBy(t *testing.T, recorder *history.Recorder, options history.Options) history.Report {
	t.Helper()
	records := recorder.Records()
	report := history.Check(records, options)
	t.Log(report)
	if len(report.Violations) == 0 {
		return report
	}
	t.Errorf("%d violations", len(report.Violations))
	file, err := os.Create(filepath.Join(t.ArtifactDir(), "history.jsonl"))
	if err != nil {
		t.Error(err)
		return report
	}
	defer file.Close()
	if err := history.Write(file, records); err != nil {
		t.Error(err)
	}
	t.Logf("history: %s", file.Name())
	return report
}

// wantSubstance fails when a history proves little because little happened.
func wantSubstance(t *testing.T, report history.Report, tasks, redeliveries, unanswered int) {
	t.Helper()
	if report.Acknowledged < tasks || report.Redeliveries < redeliveries || report.Unknown < unanswered {
		t.Errorf("too little happened to prove anything: want at least %d acknowledged tasks, %d redeliveries, %d unanswered requests", tasks, redeliveries, unanswered)
	}
}
