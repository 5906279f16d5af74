package matching

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// simTask is what the simulation's people know of a task.
type simTask struct {
	id        taskID
	born      int64
	acked     bool
	addedOnce bool // somebody was told that it was not there before
	completed bool // acknowledged
	cancelled bool
	mayBeGone bool // a completion or cancellation went unanswered, or it may have expired
	leases    map[uint64]int64
	dead      bool
}

// sim drives one partition through random events, crashes included, and checks
// what its callers see.
type sim struct {
	t     *testing.T
	rng   *rand.Rand
	now   int64
	jump  int64
	store *memStore
	core  *core
	id    PartitionID
	limit Limits
	fairness

	flying []*batch // submitted, not applied
	reads  []any    // read requests not carried out, or their answers
	tasks  map[taskID]*simTask
	order  []taskID
	bySeq  map[uint64]taskID
	seq    uint32
	calls  []func() bool // look whether a call was answered; true when settled
	trace  []string
}

func (s *sim) logf(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
	if len(s.trace) > 400 {
		s.trace = s.trace[100:]
	}
}

func (s *sim) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\n\nlast events:\n%s", fmt.Sprintf(format, args...), strings.Join(s.trace, "\n"))
}

func (s *sim) load() {
	key := storeKey(spaceMeta, []byte(s.id.Key()))
	var from loaded
	if row, ok := s.store.rows[key]; ok {
		if err := from.meta.decode(row); err != nil {
			s.fatalf("meta: %v", err)
		}
	} else {
		from.meta = newMeta(7)
	}
	from.meta.rangeID++
	from.meta.batch = 0
	s.store.putRow(key, from.meta.append(nil))
	if err := from.read(s.store); err != nil {
		s.fatalf("load: %v", err)
	}
	q := settings{leaseTime: 10 * time.Second, maxAttempts: 3, retry: retryPolicy{time.Second, 20 * time.Second, 2, 0.25}}
	q.fairness = s.fairness
	s.core = newCore(s.now, s.wall(), s.id, q, s.limit, rand.New(rand.NewPCG(s.rng.Uint64(), 1)), from)
}

// crash loses the memory; some of what was under way arrived.
func (s *sim) crash() {
	n := s.rng.IntN(len(s.flying) + 1)
	s.logf("crash; %d of %d writes arrived", n, len(s.flying))
	for _, b := range s.flying[:n] {
		s.apply(b)
	}
	lost := errors.New("lost")
	var replies []replier
	for _, b := range s.flying {
		replies = append(replies, b.replies...)
	}
	for _, b := range s.core.pending {
		replies = append(replies, b.replies...)
	}
	for p := s.core.pollers.first; p != nil; p = p.next {
		replies = append(replies, p)
	}
	for _, r := range replies {
		r.reply(lost)
	}
	s.flying, s.reads = nil, nil
	s.settle()
	if len(s.calls) > 0 {
		s.fatalf("%d calls were never answered", len(s.calls))
	}
	s.load()
	s.step()
}

// wall is the wall clock; tests may make it jump.
func (s *sim) wall() int64 { return s.now + s.jump }

func (s *sim) apply(b *batch) {
	if err := s.store.apply(b.args); err != nil {
		s.fatalf("apply: %v", err)
	}
}

// step lets the core follow up on events, as the shell does.
func (s *sim) step() {
	c := s.core
	c.advance(s.now, s.wall())
	c.tick()
	c.match()
	c.forward()
	for !c.held() {
		b := c.take()
		if b == nil {
			break
		}
		s.flying = append(s.flying, b)
	}
	c.plan()
	s.reads = append(s.reads, c.reads...)
	c.reads = nil
	s.settle()
}

// settle looks at answered calls.
func (s *sim) settle() {
	s.calls = slices.DeleteFunc(s.calls, func(settled func() bool) bool { return settled() })
}

func answered(c *call) bool { return len(c.done) > 0 }

// land makes the oldest write durable.
func (s *sim) land() {
	if len(s.flying) == 0 {
		return
	}
	b := s.flying[0]
	s.flying = s.flying[1:]
	s.apply(b)
	for _, r := range b.replies {
		r.reply(nil)
	}
	s.settle()
	s.core.written(b)
	s.step()
}

// read carries out the oldest read; its answer may come later.
func (s *sim) read() {
	if len(s.reads) == 0 {
		return
	}
	i := s.rng.IntN(len(s.reads))
	switch r := s.reads[i].(type) {
	case freshTasks:
		s.core.gotFresh(r)
	case scheduleRows:
		s.core.gotSchedule(r)
	case fetchedBodies:
		s.core.gotBodies(r)
	case sweptIDs:
		s.core.gotSweep(r)
	default:
		answer, err := answerRead(s.store, s.core.m.uid, r)
		if err != nil {
			s.fatalf("read: %v", err)
		}
		s.reads[i] = answer
		return
	}
	s.reads = slices.Delete(s.reads, i, i+1)
	s.step()
}

func (s *sim) storedMeta() meta {
	var m meta
	if err := m.decode(s.store.rows[storeKey(spaceMeta, []byte(s.id.Key()))]); err != nil {
		s.fatalf("meta: %v", err)
	}
	return m
}

// quiesce lets everything under way finish.
func (s *sim) quiesce() {
	for i := 0; len(s.flying)+len(s.reads) > 0 || len(s.core.pending) > 0; i++ {
		if i > 10_000 {
			s.fatalf("it never comes to rest: %d writes, %d reads, %d pending", len(s.flying), len(s.reads), len(s.core.pending))
		}
		s.land()
		s.read()
		s.step()
	}
}

// checkStore compares the rows with the counts and with what people were told.
func (s *sim) checkStore() {
	s.t.Helper()
	m := s.storedMeta()
	n := map[storage.Space]int64{}
	for k := range s.store.rows {
		n[storage.Space(k[0])]++
	}
	bodies := n[spaceBacklog] + n[spaceParked]
	want := counts{fresh: bodies - n[spaceLeases] - n[spaceSchedule] - n[spaceDead], scheduled: n[spaceSchedule], leased: n[spaceLeases], dead: n[spaceDead]}
	if m.counts != want {
		s.fatalf("counts are %+v, the rows say %+v; core %+v", m.counts, want, s.core.m.counts)
	}
	if n[spaceWhen] != n[spaceSchedule] {
		s.fatalf("%d rows in when, %d in schedule", n[spaceWhen], n[spaceSchedule])
	}
	s.checkWindow()
	for id, st := range s.tasks {
		f, ok, err := findTask(s.store, 7, id)
		if err != nil {
			s.fatalf("find: %v", err)
		}
		there := ok && !f.gone
		switch {
		case st.acked && !there && !st.completed && !st.cancelled && !st.mayBeGone:
			s.fatalf("task %v was acknowledged and is lost", id)
		case st.completed && there && s.now-f.addedAt < dedupWindow/2 && !st.cancelled && s.now-st.born < dedupWindow/2:
			s.fatalf("task %v was completed and is still there", id)
		}
	}
}

// checkWindow compares, at rest, the fresh tasks in memory with those in the store.
func (s *sim) checkWindow() {
	s.t.Helper()
	c := s.core
	here := map[uint64]place{}
	for i := range c.ready.lanes {
		c.ready.lanes[i].each(func(k *keyQueue) {
			for n := range k.count {
				if t := k.at(n); !t.gone {
					here[t.seq] = t.place()
				}
			}
		})
	}
	if len(here) != c.ready.fresh {
		s.fatalf("%d fresh tasks are in memory, %d are counted", len(here), c.ready.fresh)
	}
	var lows [maxLevel + 1]uint64
	err := scanBacklog(s.store, 7, place{}, &lows, 1, func(p place, body []byte) bool {
		if c.leases.bySeq[p.seq] != nil {
			return true
		}
		if p.pass < c.m.levels[p.level].low {
			s.fatalf("a fresh task is at %+v, before the low mark %d", p, c.m.levels[p.level].low)
		}
		level, key, _ := bodyShare(body)
		k := c.ready.queueOf(level, key)
		_, inMemory := here[p.seq]
		if wanted := p.before(c.win.readTo) && !(k.holed && !p.before(k.hole)); wanted != inMemory {
			s.fatalf("the fresh task at %+v of key %q: in memory %v; read to %+v, hole %v %+v", p, key, inMemory, c.win.readTo, k.holed, k.hole)
		}
		delete(here, p.seq)
		return true
	})
	if err != nil {
		s.fatalf("scan: %v", err)
	}
	if len(here) > 0 {
		s.fatalf("fresh tasks are in memory and not in the store: %v", here)
	}
}

// reconfigure changes the limits of the queue and of its keys.
func (s *sim) reconfigure() {
	rate := func() *float64 { return ptr(float64(1+s.rng.IntN(8)) / 2) }
	s.fairness = fairness{}
	if s.rng.IntN(3) == 0 {
		s.fairness.limit = rate()
	}
	if s.rng.IntN(2) == 0 {
		s.fairness.keyLimit = rate()
	}
	if s.rng.IntN(2) == 0 {
		s.fairness.keys = map[string]keySetting{"a": {weight: 3}, "b": {limit: rate()}}
	}
	q := s.core.queue
	q.fairness = s.fairness
	s.core.configure(q, 1)
	s.step()
}

func (s *sim) count(space storage.Space) (n int64) {
	for k := range s.store.rows {
		if storage.Space(k[0]) == space {
			n++
		}
	}
	return n
}

// drain works everything off and checks that all that was acknowledged came.
func (s *sim) drain() {
	for round := 0; ; round++ {
		s.quiesce()
		m := s.core.m.counts
		if m.fresh+m.scheduled+m.leased == 0 {
			break
		}
		if round > 3000 {
			s.fatalf("it never drains: %+v, ready %d, readTo %v nextSeq %d durable %d fetching %d schedule %d whole %v horizon %d now %d", m, s.core.ready.len(), s.core.win.readTo, s.core.m.nextSeq, s.core.durable, len(s.core.fetching), s.core.schedule.live, s.core.schedule.whole, s.core.schedule.horizonAt, s.now)
		}
		p := &pollCall{max: 10, identity: "drain", noWait: true}
		p.init()
		s.core.poll(p)
		s.step()
		s.quiesce()
		if !answered(&p.call) {
			s.fatalf("a poll without wait was not answered at rest")
		}
		<-p.done
		if len(p.granted) == 0 {
			s.now += int64(time.Second)
			s.step()
			continue
		}
		e := &endCall{kind: endComplete}
		e.init()
		for _, g := range p.granted {
			id, _ := bodyID(g.body)
			if s.tasks[id].completed || s.tasks[id].cancelled {
				s.fatalf("task %v came back at the end", id)
			}
			e.items = append(e.items, endItem{seq: g.seq, nonce: g.nonce})
			s.tasks[id].mayBeGone = true
		}
		s.core.end(e)
		s.step()
		s.quiesce()
	}
	s.checkStore()
	// Later, nothing is left but what is dead.
	s.now += dedupWindow + 2*sweepEvery
	s.step()
	s.quiesce()
	for k := range s.store.rows {
		if sp := storage.Space(k[0]); sp == spaceEnded {
			s.fatalf("the list of ended tasks %x was never swept", k[1:])
		}
	}
	if ids := s.count(spaceIDs); ids != s.core.m.counts.dead {
		s.fatalf("%d ids are left of %d dead tasks", ids, s.core.m.counts.dead)
	}
	for k := range s.store.rows {
		if sp := storage.Space(k[0]); sp == spaceLeases || sp == spaceSchedule || sp == spaceWhen || sp == spaceBacklog || sp == spacePasses && s.core.passes.n == 0 {
			s.fatalf("a drained partition still has a row %q in space %x", k[1:], sp)
		}
	}
}

func runSim(t *testing.T, seed uint64, events int, crashes bool) {
	t.Helper()
	s := &sim{
		t: t, rng: rand.New(rand.NewPCG(seed, 2)), now: int64(1_700_000_000) * 1e9,
		store: &memStore{rows: map[string][]byte{}}, id: PartitionID{Namespace: "n", Queue: "q"},
		tasks: map[taskID]*simTask{}, bySeq: map[uint64]taskID{},
		limit: Limits{Leases: 12, WindowTasks: 6, WindowBytes: 4000, ScheduleWindow: 4, BatchBytes: 700, WritesInFlight: 3, RecentIDs: 16, FairnessKeys: 8},
	}
	s.load()
	for range events {
		switch n := s.rng.IntN(100); {
		case n < 14:
			s.add()
		case n < 34:
			s.poll()
		case n < 50:
			s.end()
		case n < 56:
			s.lookAndRemove()
		case n < 74:
			s.land()
		case n < 88:
			s.read()
		case n < 97:
			s.now += int64(s.rng.IntN(3000)) * int64(time.Millisecond)
			s.step()
		case n < 98 && s.rng.IntN(20) == 0:
			s.quiesce() // so that no add is decided so much later
			s.now += int64(s.rng.IntN(12)) * int64(time.Minute)
			s.step()
		case n == 98 && s.rng.IntN(3) == 0:
			s.reconfigure()
		case n == 99 && crashes && s.rng.IntN(4) == 0:
			s.crash()
		}
	}
	s.quiesce()
	s.checkStore()
	s.drain()
}

// simSeeds is how many histories are tried; raise it for a night.
var simSeeds = flag.Int("sim-seeds", 60, "histories of the simulation of a partition")

func TestCore_keeps_its_promises_under_random_events_and_crashes(t *testing.T) {
	n := *simSeeds
	if testing.Short() {
		n = min(n, 30)
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runSim(t, uint64(seed), 1500, seed%2 == 1) })
	}
}
