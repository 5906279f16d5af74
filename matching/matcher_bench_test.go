package matching

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// The matcher alone: the engine with its partitions, goroutines and checks, without a
// network, over a store that answers at once. Of what is written the store keeps only
// what is read again, the tasks of the backlog, and only if it is asked to.

// benchStore is that store, for one partition.
type benchStore struct {
	mu   sync.Mutex
	keep bool
	keys [][]byte
	rows [][]byte
}

func (s *benchStore) write(args []byte) {
	if !s.keep {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var w writeArgs
	if err := w.decode(slices.Clone(args)); err != nil {
		panic(err)
	}
	for len(w.ops) > 0 {
		kind, space, key, value, err := w.next()
		if err != nil {
			panic(err)
		}
		if kind == opPut && space == spaceBacklog { // they come in order
			s.keys, s.rows = append(s.keys, key), append(s.rows, value)
		}
	}
}

// Get implements view.
func (s *benchStore) Get(storage.Space, []byte) ([]byte, bool, error) { return nil, false, nil }

// Scan implements view.
func (s *benchStore) Scan(space storage.Space, from, to []byte, _ bool, fn func(key, value []byte) bool) error {
	if space != spaceBacklog {
		return nil
	}
	s.mu.Lock()
	keys, rows := s.keys, s.rows
	s.mu.Unlock()
	i, _ := slices.BinarySearchFunc(keys, from, bytes.Compare)
	for ; i < len(keys) && bytes.Compare(keys[i], to) < 0; i++ {
		if !fn(keys[i], rows[i]) {
			break
		}
	}
	return nil
}

// benchQueue is a queue of an engine over such stores. The engine is called as matching
// clients call it, partition by partition.
type benchQueue struct {
	*fixture
	partitions int
	counts     *v1.PartitionCounts
	seq        atomic.Uint64
	ahead      chan struct{} // bounds tasks that were added and are not done, if not nil
}

func newBenchQueue(b testing.TB, n int, keep bool) *benchQueue {
	f := newFixture(b, newStore(b, ""), nil)
	stores := map[shard.BucketID]*benchStore{}
	for i := range n {
		stores[f.bucketOf(root("default", "q").sibling(int32(i)))] = &benchStore{keep: keep}
	}
	f.write = func(bucket shard.BucketID, args []byte, done func([]byte, error)) {
		stores[bucket].write(args)
		done(nil, nil)
	}
	f.readRows = func(_ context.Context, o *owner, request any) (any, error) {
		return answerRead(stores[o.bucket], o.uid, request)
	}
	f.makeQueue("q", n)
	for i := range n { // loads the partition
		_, err := f.PartitionPollTasks(f.ctx, &v1.PartitionPollTasksRequest{Header: &v1.PartitionHeader{Partition: int32(i)}, Request: pollRequest("q", 1, 0)})
		require.NoError(b, err)
	}
	return &benchQueue{fixture: f, partitions: n, counts: f.present(root("default", "q")).partitionCounts()}
}

// add adds tasks to a partition and waits for the answer.
func (q *benchQueue) add(ctx context.Context, partition, n int) {
	req := &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: make([]*v1.TaskSpec, n)}
	for i := range req.Tasks {
		req.Tasks[i] = &v1.TaskSpec{Id: q.newID(time.Now()), Kind: "kind", Payload: benchPayload}
	}
	if _, err := q.PartitionAddTasks(ctx, &v1.PartitionAddTasksRequest{Header: q.header(partition), Request: req}); err != nil {
		panic(err)
	}
}

// header aims a call at a partition, as matching clients do.
func (q *benchQueue) header(partition int) *v1.PartitionHeader {
	return &v1.PartitionHeader{Partition: int32(partition), Counts: q.counts}
}

var benchPayload = make([]byte, 64)

// newID makes an id in the order of time, which it tells.
func (q *benchQueue) newID(now time.Time) string {
	var id taskID
	binary.BigEndian.PutUint64(id[:], uint64(now.UnixNano()))
	binary.BigEndian.PutUint64(id[8:], q.seq.Add(1))
	return id.String()
}

// work polls a partition, and completes what it gets, until got returns false.
func (q *benchQueue) work(ctx context.Context, partition, n int, got func(*v1.LeasedTask) (more bool)) {
	ctx, stop := context.WithCancel(ctx) // of its own, as every caller's
	defer stop()
	req := &v1.PartitionPollTasksRequest{Header: q.header(partition), Request: pollRequest("q", n, 30*time.Second)}
	for more := true; more; {
		resp, err := q.PartitionPollTasks(ctx, req)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			panic(err)
		}
		tasks := resp.GetResponse().GetTasks()
		if len(tasks) == 0 {
			continue
		}
		end := &v1.CompleteTasksRequest{Namespace: "default", Queue: "q"}
		for _, t := range tasks {
			end.LeaseTokens = append(end.LeaseTokens, t.GetLeaseToken())
		}
		if _, err := q.PartitionCompleteTasks(q.ctx, &v1.PartitionCompleteTasksRequest{Header: q.header(partition), Request: end}); err != nil {
			panic(err)
		}
		for _, t := range tasks {
			more = got(t) && more
		}
	}
}

// BenchmarkMatcher measures the matcher alone; a task of "sync" is added, polled and
// completed, with 64 pollers that wait and 64 producers that each add one task after
// the other.
func BenchmarkMatcher(b *testing.B) {
	for _, partitions := range []int{1, 4} {
		b.Run(fmt.Sprintf("sync/partitions=%d", partitions), func(b *testing.B) { benchSync(b, partitions) })
	}
	b.Run("add", func(b *testing.B) {
		q := newBenchQueue(b, 1, false)
		b.ResetTimer()
		defer reportCPU(b)()
		q.addAll(b.N, 64)
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "adds/s")
	})
	b.Run("drain", func(b *testing.B) {
		q := newBenchQueue(b, 1, true)
		for n := b.N; n > 0; n -= 1000 {
			q.add(q.ctx, 0, min(n, 1000))
		}
		b.ResetTimer()
		defer reportCPU(b)()
		q.workAll(b.N, 64)
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
	})
	b.Run("latency/rate=5000", func(b *testing.B) { benchLatency(b, 5000) })
}

// addAll adds n tasks, one by one, from several goroutines.
func (q *benchQueue) addAll(n, producers int) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for i := range producers {
		wg.Go(func() {
			ctx, stop := context.WithCancel(q.ctx) // of its own, as every caller's
			defer stop()
			for left.Add(-1) >= 0 {
				if q.ahead != nil {
					q.ahead <- struct{}{}
				}
				q.add(ctx, i%q.partitions, 1)
			}
		})
	}
	wg.Wait()
}

// workAll works n tasks off.
func (q *benchQueue) workAll(n, pollers int) {
	var left atomic.Int64
	left.Store(int64(n))
	ctx, stop := context.WithCancel(q.ctx)
	var wg sync.WaitGroup
	for i := range pollers {
		wg.Go(func() {
			q.work(ctx, i%q.partitions, 1, func(*v1.LeasedTask) bool {
				if q.ahead != nil {
					<-q.ahead
				}
				if left.Add(-1) == 0 {
					stop()
				}
				return true
			})
		})
	}
	wg.Wait()
	stop()
}

func benchSync(b *testing.B, partitions int) {
	q := newBenchQueue(b, partitions, false)
	q.ahead = make(chan struct{}, 48) // so that polls wait for tasks
	b.ResetTimer()
	defer reportCPU(b)()
	var wg sync.WaitGroup
	wg.Go(func() { q.workAll(b.N, 64) })
	q.addAll(b.N, 64)
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "matches/s")
}

func benchLatency(b *testing.B, rate int) {
	q := newBenchQueue(b, 1, false)
	took := make([]time.Duration, 0, b.N)
	var mu sync.Mutex
	ctx, stop := context.WithCancel(q.ctx)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			q.work(ctx, 0, 1, func(t *v1.LeasedTask) bool {
				id, _ := parseUUID(t.GetId())
				d := time.Duration(time.Now().UnixNano() - int64(binary.BigEndian.Uint64(id[:8])))
				mu.Lock()
				defer mu.Unlock()
				if took = append(took, d); len(took) == b.N {
					stop()
				}
				return true
			})
		})
	}
	b.ResetTimer()
	begun := time.Now()
	for i := 0; i < b.N; {
		// A tick of the runtime may bring several.
		for due := int(time.Since(begun).Seconds() * float64(rate)); i <= due && i < b.N; i++ {
			go q.add(q.ctx, 0, 1)
		}
		time.Sleep(50 * time.Microsecond)
	}
	wg.Wait()
	stop()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
}

// BenchmarkMatch is the cost of one match, add, lease and completion, in the core
// alone, while many tasks wait, of one key or of as many keys, or many polls, or as many
// of both, which may not meet because the tasks' keys are stopped.
func BenchmarkMatch(b *testing.B) {
	for _, what := range []string{"tasks", "keys", "polls", "both"} {
		for _, n := range []int{10, 1000, 100_000} {
			b.Run(fmt.Sprintf("waiting=%s/n=%d", what, n), func(b *testing.B) { benchMatch(b, what, n) })
		}
	}
}

// reportCPU reports the processor time of an operation, all goroutines together, from now
// on: it depends less on what else the machine does.
func reportCPU(b *testing.B) func() {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	from := used()
	return func() { b.ReportMetric(float64((used()-from).Nanoseconds())/float64(b.N), "cpu-ns/op") }
}

func benchMatch(b *testing.B, what string, n int) {
	limits := Limits{WindowTasks: 300_000, WindowBytes: 1 << 30, WaitingPolls: 200_000, FairnessKeys: 200_000}
	meta := newMeta(1)
	now := time.Now().UnixNano()
	c := newCore(now, now, root("n", "q"), settingsOf(&v1.StoredQueue{}), limits, rand.New(rand.NewPCG(1, 1)), loaded{meta: meta, scheduleEmpty: true})
	c.fwd.init(c, c.id, Forwarding{Off: true})
	if what == "both" {
		c.configure(settings{leaseTime: time.Minute, maxAttempts: 1, fairness: fairness{keyLimit: ptr(0.0), keys: map[string]keySetting{"": {limit: ptr(1e9)}}}}, 1)
	}
	step := func() {
		c.tick()
		c.match()
		for w := c.take(); w != nil; w = c.take() {
			for _, r := range w.replies {
				r.reply(nil)
			}
			c.written(w)
		}
		c.plan()
	}
	seq := uint64(0)
	add := func(key string) {
		seq++
		now++
		c.advance(now, now)
		var id taskID
		binary.BigEndian.PutUint64(id[:], uint64(now))
		binary.BigEndian.PutUint64(id[8:], seq)
		t := body{id: id, addedAt: now, kind: "kind", payload: benchPayload, fairKey: key}
		a := &addCall{items: []addItem{{id: id, addedAt: now, body: t.append(make([]byte, 0, 160))}}}
		a.init()
		c.add(a)
	}
	var polls []*pollCall
	poll := func() {
		p := &pollCall{max: 1, identity: "w"}
		p.init()
		c.poll(p)
		polls = append(polls, p)
	}
	key := func() string {
		if what == "keys" {
			return fmt.Sprint(seq % uint64(n))
		}
		return ""
	}
	for i := range n {
		switch what {
		case "both":
			add(fmt.Sprint(i))
			poll()
		case "polls":
			poll()
		default:
			add(key())
		}
	}
	step()
	b.ResetTimer()
	defer reportCPU(b)()
	for range b.N {
		add(key())
		poll()
		step()
		p := polls[0]
		if polls = polls[1:]; len(p.granted) != 1 {
			b.Fatal("no match")
		}
		e := &endCall{kind: endComplete, items: []endItem{{seq: p.granted[0].seq, nonce: p.granted[0].nonce}}}
		e.init()
		c.end(e)
	}
}
