package matching

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// memStore is the store of the simulation: sorted rows in memory, and what the
// function matching.write does to them.
type memStore struct {
	rows map[string][]byte
	keys []string // sorted; nil when out of date
}

func storeKey(space storage.Space, key []byte) string {
	return string(append([]byte{byte(space)}, key...))
}

func (s *memStore) Get(space storage.Space, key []byte) ([]byte, bool, error) {
	v, ok := s.rows[storeKey(space, key)]
	return v, ok, nil
}

func (s *memStore) Scan(space storage.Space, from, to []byte, reverse bool, fn func(key, value []byte) bool) error {
	if s.keys == nil {
		for k := range s.rows {
			s.keys = append(s.keys, k)
		}
		sort.Strings(s.keys)
	}
	lo, hi := storeKey(space, from), storeKey(space, to)
	i, _ := slices.BinarySearch(s.keys, lo)
	j, _ := slices.BinarySearch(s.keys, hi)
	in := s.keys[i:j]
	for n := range in {
		k := in[n]
		if reverse {
			k = in[len(in)-1-n]
		}
		if !fn([]byte(k[1:]), s.rows[k]) {
			break
		}
	}
	return nil
}

func (s *memStore) apply(args []byte) error {
	var w writeArgs
	if err := w.decode(args); err != nil {
		return err
	}
	s.keys = nil
	s.rows[storeKey(spaceMeta, w.key)] = bytes.Clone(w.meta)
	for len(w.ops) > 0 {
		kind, space, key, value, err := w.next()
		if err != nil {
			return err
		}
		switch kind {
		case opPut:
			s.rows[storeKey(space, key)] = bytes.Clone(value)
		case opDelete:
			delete(s.rows, storeKey(space, key))
		case opDeleteRange:
			lo, hi := storeKey(space, key), storeKey(space, value)
			for k := range s.rows {
				if lo <= k && k < hi {
					delete(s.rows, k)
				}
			}
		}
	}
	return nil
}

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
		from.meta = meta{uid: 7, nextSeq: 1, freshFrom: 1}
	}
	from.meta.rangeID++
	s.store.keys = nil
	s.store.rows[key] = from.meta.append(nil)
	if err := from.read(s.store); err != nil {
		s.fatalf("load: %v", err)
	}
	q := settings{leaseTime: 10 * time.Second, maxAttempts: 3, retry: retryPolicy{time.Second, 20 * time.Second, 2, 0.25}}
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
	for b := c.take(); b != nil; b = c.take() {
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

func (s *sim) newID() taskID {
	var id taskID
	s.seq++
	ms := uint64(s.now/1e6) - uint64(s.rng.IntN(3000)) // clients' clocks differ
	binary.BigEndian.PutUint64(id[:], ms<<16|0x7000)
	binary.BigEndian.PutUint32(id[12:], s.seq)
	if s.rng.IntN(5) == 0 { // ids need not be ordered by time
		binary.BigEndian.PutUint64(id[:], s.rng.Uint64())
	}
	return id
}

func (s *sim) add() {
	a := &addCall{}
	a.init()
	var mine []*simTask
	for range 1 + s.rng.IntN(4) {
		var st *simTask
		if len(s.order) > 0 && s.rng.IntN(6) == 0 { // a repeated add
			st = s.tasks[s.order[max(0, len(s.order)-1-s.rng.IntN(30))]]
		}
		if st == nil || s.now-st.born > dedupWindow*9/10 { // later, it is a new task

			st = &simTask{id: s.newID(), born: s.now, leases: map[uint64]int64{}}
			s.tasks[st.id] = st
			s.order = append(s.order, st.id)
		}
		it := addItem{id: st.id, addedAt: s.now}
		b := body{id: st.id, addedAt: s.now, kind: "k", payload: make([]byte, s.rng.IntN(100))}
		switch s.rng.IntN(8) {
		case 0:
			b.runAt = s.now + int64(s.rng.IntN(30))*int64(time.Second)
			it.runAt = b.runAt
		case 1:
			b.expiresAt = s.now + int64(s.rng.IntN(30))*int64(time.Second)
			st.mayBeGone = true
		case 2:
			b.maxAttempts = 2
			b.retry = &retryPolicy{initial: time.Millisecond, jitter: -1}
		}
		it.body = b.append(nil)
		a.items = append(a.items, it)
		mine = append(mine, st)
	}
	s.logf("%d add %d", s.now/1e9, len(a.items))
	s.core.advance(s.now, s.wall())
	s.core.add(a)
	counted := make([]bool, len(a.items))
	s.calls = append(s.calls, func() bool {
		if !answered(&a.call) {
			return false
		}
		<-a.done
		if a.err != nil {
			return true
		}
		undecided := false
		for i := range a.items {
			switch it := &a.items[i]; it.result {
			case addLookUp:
				undecided = true
				v, ok, _ := s.store.Get(spaceIDs, appendIDKey(nil, 7, it.id))
				it.looked, it.known = true, false
				if ok {
					var row idRow
					if err := row.decode(v); err != nil {
						s.fatalf("id row: %v", err)
					}
					if it.known = s.now-row.addedAt < dedupWindow; !it.known && row.ending == endingNone {
						_, it.known, _ = s.store.Get(row.loc.space(), row.loc.appendBodyKey(nil, 7, row.seq))
					}
				}
			case added:
				if counted[i] {
					continue
				}
				counted[i] = true
				if st := mine[i]; st.addedOnce && s.now-st.born < dedupWindow*9/10 {
					s.fatalf("task %v was added twice", st.id)
				}
				mine[i].acked, mine[i].addedOnce = true, true
			case alreadyAdded:
				mine[i].acked = true
			}
		}
		if undecided {
			s.core.add(a)
			return false
		}
		return true
	})
	s.step()
}

func (s *sim) poll() {
	p := &pollCall{max: 1 + s.rng.IntN(3), identity: "w", noWait: s.rng.IntN(2) == 0}
	p.init()
	s.core.advance(s.now, s.wall())
	s.core.poll(p)
	s.calls = append(s.calls, func() bool {
		if !answered(&p.call) {
			return false
		}
		<-p.done
		if p.err != nil {
			return true
		}
		for _, g := range p.granted {
			id, err := bodyID(g.body)
			if err != nil {
				s.fatalf("body: %v", err)
			}
			st := s.tasks[id]
			if st == nil {
				s.fatalf("task %v was never added", id)
			}
			s.logf("%d deliver %v seq %d nonce %x until %d", s.now/1e9, id, g.seq, g.nonce, g.deadline/1e9)
			if st.completed {
				s.fatalf("task %v came back after its completion was acknowledged", id)
			}
			if st.cancelled {
				s.fatalf("task %v came back after it was cancelled", id)
			}
			for nonce, until := range st.leases {
				if until > s.now && nonce != g.nonce {
					s.fatalf("task %v was delivered under the live lease %x, until %d, now %d", id, nonce, until, s.now)
				}
			}
			st.leases[g.nonce] = g.deadline
			s.bySeq[g.seq] = id
		}
		return true
	})
	s.step()
}

// end ends some lease that was given out, in some way, even if it is old.
func (s *sim) end() {
	var held []endItem
	var who []*simTask
	for _, id := range s.order[max(0, len(s.order)-60):] {
		st := s.tasks[id]
		for nonce := range st.leases {
			for seq, of := range s.bySeq {
				if of == id {
					held = append(held, endItem{seq: seq, nonce: nonce})
					who = append(who, st)
				}
			}
		}
	}
	if len(held) == 0 {
		return
	}
	sort.Sort(bySeqNonce{held, who})
	i := s.rng.IntN(len(held))
	it, st := held[i], who[i]
	kind := endKind(s.rng.IntN(4))
	if s.rng.IntN(3) == 0 {
		kind = endComplete
	}
	it.notRetryable = s.rng.IntN(10) == 0
	e := &endCall{kind: kind, items: []endItem{it}}
	e.init()
	if kind == endComplete {
		st.mayBeGone = true
	}
	s.core.advance(s.now, s.wall())
	s.core.end(e)
	s.calls = append(s.calls, func() bool {
		if !answered(&e.call) {
			return false
		}
		<-e.done
		it := &e.items[0]
		if e.err != nil {
			// What happened to the lease is unknown: it may have ended.
			delete(st.leases, it.nonce)
			return true
		}
		s.logf("%d end kind %d %v nonce %x lost %v", s.now/1e9, kind, st.id, it.nonce, it.lost)
		switch {
		case it.lost:
			delete(st.leases, it.nonce)
		case kind == endComplete:
			st.completed = true
			delete(st.leases, it.nonce)
		case kind == endExtend:
			st.leases[it.nonce] = it.at
		default:
			delete(st.leases, it.nonce)
			st.dead = it.dead
		}
		return true
	})
	// From here on another delivery may overtake this answer.
	if kind != endExtend {
		delete(st.leases, it.nonce)
	}
	s.step()
}

type bySeqNonce struct {
	items []endItem
	who   []*simTask
}

func (b bySeqNonce) Len() int { return len(b.items) }
func (b bySeqNonce) Less(i, j int) bool {
	if b.items[i].seq != b.items[j].seq {
		return b.items[i].seq < b.items[j].seq
	}
	return b.items[i].nonce < b.items[j].nonce
}
func (b bySeqNonce) Swap(i, j int) {
	b.items[i], b.items[j] = b.items[j], b.items[i]
	b.who[i], b.who[j] = b.who[j], b.who[i]
}

// lookAndRemove cancels a task, purges, or redrives.
func (s *sim) lookAndRemove() {
	l := &lookupCall{}
	l.init()
	core := s.core
	core.advance(s.now, s.wall())
	core.beginLookup(l)
	what := s.rng.IntN(10)
	var r *removeCall
	var v *reviveCall
	s.calls = append(s.calls, func() bool {
		switch {
		case r == nil && v == nil:
			if !answered(&l.call) {
				return false
			}
			<-l.done
			if l.err != nil {
				return true
			}
			var tasks []storedTask
			switch {
			case what < 6 && len(s.order) > 0: // cancel one
				id := s.order[max(0, len(s.order)-1-s.rng.IntN(40))]
				f, ok, err := findTask(s.store, 7, id)
				if err != nil {
					s.fatalf("find: %v", err)
				}
				if ok && !f.gone {
					tasks = []storedTask{f.storedTask}
				}
			case what < 7: // purge a chunk
				var err error
				if tasks, err = waitingTasks(s.store, 7, s.storedMeta().freshFrom, 1<<60, 5); err != nil {
					s.fatalf("waiting: %v", err)
				}
			default: // redrive
				dead, _, err := deadTasks(s.store, 7, 0, 5)
				if err != nil {
					s.fatalf("dead: %v", err)
				}
				v = &reviveCall{}
				v.init()
				for _, d := range dead {
					v.tasks = append(v.tasks, d.storedTask)
					s.tasks[d.id].dead = false
				}
				core.revive(v)
				return false
			}
			r = &removeCall{tasks: tasks}
			r.init()
			for _, t := range tasks {
				s.tasks[t.id].mayBeGone = true
			}
			core.remove(r)
			return false
		case r != nil:
			if !answered(&r.call) {
				return false
			}
			<-r.done
			if r.err == nil {
				for _, t := range r.tasks {
					if !t.changed {
						s.logf("%d cancelled %v", s.now/1e9, t.id)
						s.tasks[t.id].cancelled = true
					}
				}
			}
			return true
		default:
			if answered(&v.call) {
				<-v.done
				return true
			}
			return false
		}
	})
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
		s.fatalf("counts are %+v, the rows say %+v", m.counts, want)
	}
	if n[spaceWhen] != n[spaceSchedule] {
		s.fatalf("%d rows in when, %d in schedule", n[spaceWhen], n[spaceSchedule])
	}
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
			s.fatalf("it never drains: %+v, ready %d, readTo %d nextSeq %d durable %d fetching %d schedule %d whole %v horizon %d now %d", m, s.core.ready.len(), s.core.readTo, s.core.m.nextSeq, s.core.durableTo, len(s.core.fetching), s.core.schedule.live, s.core.schedule.whole, s.core.schedule.horizonAt, s.now)
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
		if sp := storage.Space(k[0]); sp == spaceLeases || sp == spaceSchedule || sp == spaceWhen || sp == spaceBacklog && s.core.m.counts.dead == 0 {
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
		limit: Limits{Leases: 12, WindowTasks: 6, WindowBytes: 4000, ScheduleWindow: 4, BatchBytes: 700, WritesInFlight: 3, RecentIDs: 16},
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
		case n == 99 && crashes && s.rng.IntN(4) == 0:
			s.crash()
		}
	}
	s.quiesce()
	s.checkStore()
	s.drain()
}

// simSeeds is how many histories are tried; raise it for a night.
var simSeeds = flag.Int("sim-seeds", 100, "histories of the simulation of a partition")

func TestCore_keeps_its_promises_under_random_events_and_crashes(t *testing.T) {
	n := *simSeeds
	if testing.Short() {
		n = min(n, 30)
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runSim(t, uint64(seed), 1500, seed%2 == 1) })
	}
}
