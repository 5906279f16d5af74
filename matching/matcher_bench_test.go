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
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// The matcher alone: partitions with their goroutines, without a network, over a store
// that answers at once. Of what is written the store keeps only what is read again,
// the tasks of the backlog, and only if it is asked to.

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

// benchPartitions are partitions of one queue.
type benchPartitions struct {
	testing.TB
	engine *Engine
	owners []*owner
	stores []*benchStore
	seq    atomic.Uint64
	ahead  chan struct{} // bounds tasks that were added and are not done, if not nil
}

func newBenchPartitions(b testing.TB, n int, keep bool, limits Limits) *benchPartitions {
	m, err := newMetrics(nil)
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	e := &Engine{metrics: m, steady: func() int64 { return began.UnixNano() + int64(time.Since(began)) }}
	e.Queues = &Queues{now: func() int64 { return time.Now().UnixNano() }}
	p := &benchPartitions{TB: b, engine: e}
	e.write = func(bucket shard.BucketID, args []byte, done func([]byte, error)) {
		p.stores[bucket].write(args)
		done(nil, nil)
	}
	e.readRows = func(_ context.Context, o *owner, request any) (any, error) {
		return answerRead(p.stores[o.bucket], o.uid, request)
	}
	for i := range n {
		o := &owner{engine: e, id: PartitionID{Namespace: "n", Queue: "q", Number: int32(i)}, bucket: shard.BucketID(i), limits: limits.withDefaults(),
			signal: make(chan struct{}, 1), exited: make(chan struct{}), uid: uint64(i) + 1, rangeID: 1}
		o.hops, o.endHops = context.WithCancel(context.Background())
		o.offers, o.endOffers = context.WithCancel(o.hops)
		e.metrics.loaded(o)
		meta := newMeta(o.uid)
		meta.rangeID = 1
		c := newCore(e.steady(), e.now(), o.id, settingsOf(&v1.Queue{}), o.limits, rand.New(rand.NewPCG(1, 1)), loaded{meta: meta, scheduleEmpty: true})
		c.fwd.init(c, o.id, Forwarding{Off: true})
		p.stores = append(p.stores, &benchStore{keep: keep})
		p.owners = append(p.owners, o)
		go o.run(c)
	}
	b.Cleanup(func() {
		for _, o := range p.owners {
			o.stop()
			<-o.exited
			o.endHops()
		}
	})
	return p
}

// add adds tasks to a partition and waits for the answer.
func (p *benchPartitions) add(o *owner, n int) {
	a := &addCall{items: make([]addItem, n)}
	a.init()
	now := p.engine.now()
	for i := range a.items {
		it := &a.items[i]
		it.id, it.addedAt = p.newID(now), now
		b := body{id: it.id, addedAt: now, kind: "kind", payload: benchPayload}
		it.body = b.append(make([]byte, 0, 160))
	}
	for again := true; again; {
		if err := o.submit(a, true); err != nil {
			panic(err)
		}
		if <-a.done; a.err != nil {
			panic(a.err)
		}
		again = false
		for i := range a.items {
			if it := &a.items[i]; it.result == addLookUp { // the store does not have it
				again, it.looked = true, true
			}
		}
	}
}

var benchPayload = make([]byte, 64)

func (p *benchPartitions) newID(now int64) (id taskID) {
	binary.BigEndian.PutUint64(id[:], uint64(now))
	binary.BigEndian.PutUint64(id[8:], p.seq.Add(1))
	return id
}

// work polls a partition and completes what it gets until stop returns true.
func (p *benchPartitions) work(o *owner, n int, got func(grant) (more bool)) {
	for more := true; more; {
		c := &pollCall{max: n, identity: "worker"}
		c.init()
		if o.submit(c, true) != nil {
			return
		}
		<-c.done
		if len(c.granted) == 0 {
			return
		}
		e := &endCall{kind: endComplete, items: make([]endItem, len(c.granted))}
		e.init()
		for i, g := range c.granted {
			e.items[i] = endItem{seq: g.seq, nonce: g.nonce}
		}
		if o.submit(e, true) != nil {
			return
		}
		<-e.done
		for _, g := range c.granted {
			more = got(g) && more
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
		p := newBenchPartitions(b, 1, false, Limits{})
		b.ResetTimer()
		p.addAll(b.N, 64)
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "adds/s")
	})
	b.Run("drain", func(b *testing.B) {
		p := newBenchPartitions(b, 1, true, Limits{})
		for n := b.N; n > 0; n -= 1000 {
			p.add(p.owners[0], min(n, 1000))
		}
		b.ResetTimer()
		p.workAll(b.N, 64)
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
	})
	b.Run("latency/rate=5000", func(b *testing.B) { benchLatency(b, 5000) })
}

// addAll adds n tasks, one by one, from several goroutines over all partitions.
func (p *benchPartitions) addAll(n, producers int) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for i := range producers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if p.ahead != nil {
					p.ahead <- struct{}{}
				}
				p.add(p.owners[i%len(p.owners)], 1)
			}
		})
	}
	wg.Wait()
}

// workAll works n tasks off.
func (p *benchPartitions) workAll(n, pollers int) {
	var left atomic.Int64
	left.Store(int64(n))
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range pollers {
		wg.Go(func() {
			p.work(p.owners[i%len(p.owners)], 1, func(grant) bool {
				if p.ahead != nil {
					<-p.ahead
				}
				if left.Add(-1) == 0 {
					close(done)
				}
				return true
			})
		})
	}
	<-done
	for _, o := range p.owners {
		o.stop()
	}
	wg.Wait()
}

func benchSync(b *testing.B, partitions int) {
	p := newBenchPartitions(b, partitions, false, Limits{})
	p.ahead = make(chan struct{}, 48) // so that polls wait for tasks
	b.ResetTimer()
	var wg sync.WaitGroup
	wg.Go(func() { p.workAll(b.N, 64) })
	p.addAll(b.N, 64)
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "matches/s")
}

func benchLatency(b *testing.B, rate int) {
	p := newBenchPartitions(b, 1, false, Limits{})
	took := make([]time.Duration, 0, b.N)
	var mu sync.Mutex
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan struct{})
	for range 64 {
		go p.work(p.owners[0], 1, func(g grant) bool {
			id, _ := bodyID(g.body)
			d := time.Duration(p.engine.now() - int64(binary.BigEndian.Uint64(id[:])))
			mu.Lock()
			took = append(took, d)
			mu.Unlock()
			if left.Add(-1) == 0 {
				close(done)
			}
			return true
		})
	}
	b.ResetTimer()
	begun := time.Now()
	for i := 0; i < b.N; {
		// A tick of the runtime may bring several.
		for due := int(time.Since(begun).Seconds() * float64(rate)); i <= due && i < b.N; i++ {
			go p.add(p.owners[0], 1)
		}
		time.Sleep(50 * time.Microsecond)
	}
	<-done
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
	for _, o := range p.owners {
		o.stop()
	}
}

// BenchmarkMatch is the cost of one match, add, lease and completion, in the core
// alone, while many tasks of many keys wait, or many polls.
func BenchmarkMatch(b *testing.B) {
	for _, what := range []string{"tasks", "keys", "polls"} {
		for _, n := range []int{10, 1000, 100_000} {
			b.Run(fmt.Sprintf("waiting=%s/n=%d", what, n), func(b *testing.B) { benchMatch(b, what, n) })
		}
	}
}

func benchMatch(b *testing.B, what string, n int) {
	limits := Limits{WindowTasks: 300_000, WindowBytes: 1 << 30, WaitingPolls: 200_000, FairnessKeys: 200_000}
	meta := newMeta(1)
	now := time.Now().UnixNano()
	c := newCore(now, now, root("n", "q"), settingsOf(&v1.Queue{}), limits, rand.New(rand.NewPCG(1, 1)), loaded{meta: meta, scheduleEmpty: true})
	c.fwd.init(c, c.id, Forwarding{Off: true})
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
	add := func() {
		seq++
		now++
		c.advance(now, now)
		var id taskID
		binary.BigEndian.PutUint64(id[:], uint64(now))
		binary.BigEndian.PutUint64(id[8:], seq)
		t := body{id: id, addedAt: now, kind: "kind", payload: benchPayload}
		if what == "keys" {
			t.fairKey = fmt.Sprint(seq % uint64(n))
		}
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
	for range n {
		if what == "polls" {
			poll()
		} else {
			add()
		}
	}
	step()
	b.ResetTimer()
	for range b.N {
		add()
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
