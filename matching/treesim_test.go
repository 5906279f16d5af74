package matching

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// treeSim drives several partitions of one queue, with the messages between them
// delayed, reordered and lost, and the partitions crashing, and checks what producers
// and workers see.
type treeSim struct {
	t     *testing.T
	rng   *rand.Rand
	now   int64
	store *memStore
	nodes map[int32]*treeNode
	order []int32

	messages []func() // between partitions and clients, under way
	lossy    bool
	mixed    bool // neighbours are in the same process or not, by chance; else never
	tasks    map[taskID]*simTask
	polls    int // client polls that wait for an answer
	trace    []string
	seq      uint32
}

type treeNode struct {
	*treeSim
	id     PartitionID
	uid    uint64
	core   *core
	limits *Limits // nil for tight ones
	store  *memStore
	life   int // counts crashes
	flying []*batch
	reads  []any
	waits  []func() bool // look for answers; true when settled
	lent   map[*pollCall]*lentPoll
	pulled map[*offerCall]bool
}

// lentPoll is a poll at another partition, as both sides see it.
type lentPoll struct {
	there     *pollCall
	node      *treeNode
	life      int
	cancelled bool // before it arrived
}

func (s *treeSim) logf(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%.3f ", float64(s.now%1e12)/1e9)+fmt.Sprintf(format, args...))
	if len(s.trace) > 300 {
		s.trace = s.trace[100:]
	}
}

func (s *treeSim) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\n\nlast events:\n%s", fmt.Sprintf(format, args...), strings.Join(s.trace, "\n"))
}

func (n *treeNode) load() {
	key := storeKey(spaceMeta, []byte(n.id.Key()))
	var from loaded
	if row, ok := n.store.rows[key]; ok {
		if err := from.meta.decode(row); err != nil {
			n.fatalf("meta: %v", err)
		}
	} else {
		from.meta = newMeta(n.uid)
	}
	from.meta.rangeID++
	from.meta.batch = 0
	n.store.putRow(key, from.meta.append(nil))
	if err := from.read(n.store); err != nil {
		n.fatalf("load: %v", err)
	}
	q := settings{leaseTime: 20 * time.Second, maxAttempts: 100, retry: retryPolicy{time.Second, 5 * time.Second, 2, 0.25}}
	limits := Limits{Leases: 1000, WindowTasks: 8, WindowBytes: 8000, ScheduleWindow: 4, BatchBytes: 900, WritesInFlight: 3, RecentIDs: 64}
	if n.limits != nil {
		limits = *n.limits
	}
	n.core = newCore(n.now, n.now, n.id, q, limits, rand.New(rand.NewPCG(n.rng.Uint64(), 1)), from)
	n.core.fwd.init(n.core, n.id, Forwarding{})
	n.lent, n.pulled = map[*pollCall]*lentPoll{}, map[*offerCall]bool{}
}

// crash loses a partition's memory; some of what was under way arrived.
func (n *treeNode) crash() {
	k := n.rng.IntN(len(n.flying) + 1)
	n.logf("partition %d crashes; %d of %d writes arrived", n.id.Number, k, len(n.flying))
	for _, b := range n.flying[:k] {
		n.apply(b)
	}
	lost := errors.New("lost")
	var replies []replier
	for _, b := range n.flying {
		replies = append(replies, b.replies...)
	}
	for _, b := range n.core.pending {
		replies = append(replies, b.replies...)
	}
	for p := n.core.pollers.first; p != nil; p = p.next {
		replies = append(replies, p)
	}
	for p := range n.lent { // away
		replies = append(replies, p)
	}
	for o := range n.pulled {
		n.core.fwd.offers = append(n.core.fwd.offers, o)
	}
	for _, o := range n.core.fwd.offers {
		o.over = true
		replies = append(replies, o)
	}
	for _, r := range replies {
		r.reply(lost)
	}
	n.flying, n.reads = nil, nil
	n.settle()
	n.life++
	n.load()
	n.step()
}

func (n *treeNode) apply(b *batch) {
	if err := n.store.apply(b.args); err != nil {
		n.fatalf("apply: %v", err)
	}
}

func (n *treeNode) step() {
	c := n.core
	c.advance(n.now, n.now)
	c.tick()
	c.match()
	c.forward()
	for !c.held() {
		b := c.take()
		if b == nil {
			break
		}
		n.flying = append(n.flying, b)
	}
	c.plan()
	n.reads = append(n.reads, c.reads...)
	c.reads = nil
	hops := c.fwd.hops
	c.fwd.hops = nil
	for _, h := range hops {
		n.hop(h)
	}
	n.settle()
}

func (n *treeNode) settle() {
	n.waits = slices.DeleteFunc(n.waits, func(settled func() bool) bool { return settled() })
}

// send puts a message on its way; when it may be lost, lost is what happens then.
func (s *treeSim) send(deliver, lost func()) {
	if s.lossy && lost != nil && s.rng.IntN(12) == 0 {
		deliver = lost
	}
	s.messages = append(s.messages, deliver)
}

// hop plays the shell.
func (n *treeNode) hop(request any) {
	life := n.life
	alive := func() bool { return n.life == life }
	failed := errors.New("lost on the way")
	parent, _ := Parent(n.id.Number)
	switch r := request.(type) {
	case lendPoll:
		l := &lentPoll{node: n.nodes[parent]}
		n.lent[r.p] = l
		n.pollAt(l.node, r.p, v1.Hop_HOP_LENT, l, func(resp *v1.PollTasksResponse, err error) {
			if alive() {
				delete(n.lent, r.p)
				n.core.back(polledAway{p: r.p, local: n.near(), answer: resp, err: err})
				n.step()
			}
		})
	case recallPoll:
		l := n.lent[r.p]
		if l == nil {
			return
		}
		cancel := func() {
			switch {
			case l.there == nil:
				l.cancelled = true
			case l.node.life == l.life:
				l.node.core.cancelPoll(l.there)
				l.node.step()
			}
		}
		n.send(cancel, nil) // a lost one breaks the call off; see recall
	case pullTasks:
		l := &lentPoll{node: n.nodes[r.offer.source]}
		n.lent[r.p], n.pulled[r.offer] = l, true
		n.pollAt(l.node, r.p, v1.Hop_HOP_PULLED, l, func(resp *v1.PollTasksResponse, err error) {
			if alive() {
				delete(n.lent, r.p)
				delete(n.pulled, r.offer)
				n.core.back(polledAway{p: r.p, offer: r.offer, answer: resp, err: err})
				n.step()
			}
		})
	case offerTasks:
		to := n.nodes[parent]
		answer := func(taken bool, err error) {
			n.send(func() {
				if alive() {
					n.core.offerEnded(offered{taken: taken, local: n.near(), err: err})
					n.step()
				}
			}, nil)
		}
		n.send(func() {
			o := &offerCall{source: n.id.Number, oldest: r.oldest}
			o.init()
			to.core.offer(o)
			to.waits = append(to.waits, func() bool {
				if answered(&o.call) {
					answer(o.taken, o.err)
				}
				return answered(&o.call)
			})
			to.step()
		}, func() { answer(false, failed) })
	default:
		n.fatalf("unknown hop %T", request)
	}
}

// pollAt polls another partition in p's place.
func (n *treeNode) pollAt(to *treeNode, p *pollCall, hop v1.Hop, l *lentPoll, back func(*v1.PollTasksResponse, error)) {
	failed := errors.New("lost on the way")
	n.send(func() {
		q := &pollCall{max: p.max, identity: p.identity, noWait: hop == v1.Hop_HOP_PULLED || l.cancelled}
		q.hop, q.source, q.until = hop, n.id.Number, p.until
		q.init()
		l.there, l.life = q, to.life
		to.core.advance(to.now, to.now)
		to.core.fwd.polled(q, to.core.now)
		to.core.poll(q)
		to.waits = append(to.waits, func() bool {
			if !answered(&q.call) {
				return false
			}
			var resp *v1.PollTasksResponse
			if q.err == nil {
				resp = to.response(q)
			}
			n.send(func() { back(resp, q.err) }, func() { back(nil, failed) })
			return true
		})
		to.step()
	}, func() { back(nil, failed) })
}

// response is what a poll was given, here or elsewhere.
func (n *treeNode) response(p *pollCall) *v1.PollTasksResponse {
	if p.answer != nil {
		return p.answer
	}
	resp := &v1.PollTasksResponse{}
	for _, g := range p.granted {
		id, err := bodyID(g.body)
		if err != nil {
			n.fatalf("body: %v", err)
		}
		n.logf("partition %d leases %v", n.id.Number, id)
		resp.Tasks = append(resp.Tasks, &v1.LeasedTask{Id: id.String(), LeaseDeadline: timestamp(g.deadline),
			LeaseToken: token{partition: n.id.Number, uid: n.uid, seq: g.seq, nonce: g.nonce, id: id}.append(nil)})
	}
	return resp
}

func (s *treeSim) add(n *treeNode) {
	a := &addCall{}
	a.init()
	var mine []*simTask
	for range 1 + s.rng.IntN(3) {
		s.seq++
		var id taskID
		for i := range 8 {
			id[i] = byte(uint64(s.now/1e6) >> (56 - 8*i))
		}
		id[12], id[13], id[14], id[15] = byte(s.seq>>24), byte(s.seq>>16), byte(s.seq>>8), byte(s.seq)
		st := &simTask{id: id, born: s.now, leases: map[uint64]int64{}}
		s.tasks[id] = st
		b := body{id: id, addedAt: s.now, kind: "k", payload: make([]byte, s.rng.IntN(80))}
		a.items = append(a.items, addItem{id: id, addedAt: s.now, body: b.append(nil)})
		mine = append(mine, st)
	}
	n.core.advance(s.now, s.now)
	n.core.add(a)
	n.waits = append(n.waits, func() bool {
		if !answered(&a.call) {
			return false
		}
		<-a.done
		for i, st := range mine {
			if a.err != nil {
				st.mayBeGone = true // never acknowledged: it may or may not be there
			} else if a.items[i].result == added {
				st.acked = true
			}
		}
		return true
	})
	n.step()
}

// poll is a worker's poll; it completes what it gets.
func (s *treeSim) poll(n *treeNode, wait time.Duration) {
	p := &pollCall{max: 1 + s.rng.IntN(3), identity: "w", noWait: wait == 0}
	p.until = s.now + int64(wait)
	p.init()
	s.polls++
	n.core.advance(s.now, s.now)
	n.core.fwd.polled(p, n.core.now)
	n.core.poll(p)
	life, over := n.life, false
	n.waits = append(n.waits, func() bool {
		if !answered(&p.call) {
			if s.now >= p.until && !over && n.life == life && wait > 0 {
				over = true
				n.core.cancelPoll(p)
			}
			if !answered(&p.call) {
				return false
			}
		}
		s.polls--
		if p.err == nil {
			for _, t := range n.response(p).GetTasks() {
				s.deliver(t)
			}
		}
		return true
	})
	n.step()
}

func (s *treeSim) deliver(t *v1.LeasedTask) {
	tok, ok := parseToken(t.GetLeaseToken())
	if !ok {
		s.fatalf("a token cannot be read")
	}
	st := s.tasks[tok.id]
	s.logf("deliver %v of partition %d", tok.id, tok.partition)
	if st.completed {
		s.fatalf("task %v came back after its completion was acknowledged", tok.id)
	}
	deadline := t.GetLeaseDeadline().AsTime().UnixNano()
	for nonce, until := range st.leases {
		if until > s.now && deadline > s.now && nonce != tok.nonce {
			s.fatalf("task %v was delivered under a live lease", tok.id)
		}
	}
	st.leases[tok.nonce] = deadline
	if s.rng.IntN(10) == 0 {
		return // its worker dies: the lease runs out
	}
	n := s.nodes[tok.partition]
	s.send(func() {
		e := &endCall{kind: endComplete, items: []endItem{{seq: tok.seq, nonce: tok.nonce}}}
		e.init()
		st.mayBeGone = true
		n.core.advance(s.now, s.now)
		n.core.end(e)
		n.waits = append(n.waits, func() bool {
			if !answered(&e.call) {
				return false
			}
			if e.err == nil && !e.items[0].lost {
				st.completed = true
			}
			delete(st.leases, tok.nonce)
			return true
		})
		n.step()
	}, nil)
}

func (n *treeNode) land() {
	if len(n.flying) == 0 {
		return
	}
	b := n.flying[0]
	n.flying = n.flying[1:]
	n.apply(b)
	for _, r := range b.replies {
		r.reply(nil)
	}
	n.settle()
	n.core.written(b)
	n.step()
}

func (n *treeNode) read() {
	if len(n.reads) == 0 {
		return
	}
	i := n.rng.IntN(len(n.reads))
	request := n.reads[i]
	n.reads = slices.Delete(n.reads, i, i+1)
	answer, err := answerRead(n.store, n.core.m.uid, request)
	if err != nil {
		n.fatalf("read: %v", err)
	}
	switch r := answer.(type) {
	case freshTasks:
		n.core.gotFresh(r)
	case scheduleRows:
		n.core.gotSchedule(r)
	case fetchedBodies:
		n.core.gotBodies(r)
	case sweptIDs:
		n.core.gotSweep(r)
	}
	n.step()
}

func (s *treeSim) message() {
	if len(s.messages) == 0 {
		return
	}
	i := s.rng.IntN(len(s.messages))
	m := s.messages[i]
	s.messages = slices.Delete(s.messages, i, i+1)
	m()
}

// rest lets everything under way finish.
func (s *treeSim) rest() {
	for i := 0; ; i++ {
		busy := len(s.messages) > 0
		s.message()
		for _, k := range s.order {
			n := s.nodes[k]
			busy = busy || len(n.flying)+len(n.reads) > 0 || n.core.held()
			if n.core.held() {
				s.pass(time.Millisecond)
			}
			n.land()
			n.read()
		}
		if !busy {
			return
		}
		if i > 20_000 {
			s.fatalf("it never comes to rest: %d messages", len(s.messages))
		}
	}
}

func (s *treeSim) near() bool { return s.mixed && s.rng.IntN(2) == 0 }

func (s *treeSim) some() *treeNode { return s.nodes[s.order[s.rng.IntN(len(s.order))]] }

func (s *treeSim) pass(d time.Duration) {
	s.now += int64(d)
	for _, k := range s.order {
		s.nodes[k].step()
	}
}

func newTreeSim(t *testing.T, seed uint64, numbers ...int32) *treeSim {
	s := &treeSim{t: t, rng: rand.New(rand.NewPCG(seed, 3)), now: int64(1_700_000_000) * 1e9,
		store: &memStore{rows: map[string][]byte{}}, nodes: map[int32]*treeNode{}, order: numbers, tasks: map[taskID]*simTask{}}
	for _, k := range numbers {
		n := &treeNode{treeSim: s, store: s.store, id: PartitionID{Namespace: "n", Queue: "q", Number: k}, uid: uint64(100 + k)}
		s.nodes[k] = n
		n.load()
	}
	return s
}

func runTreeSim(t *testing.T, seed uint64, events int, rough bool) {
	s := newTreeSim(t, seed, 0, 1, 2, 21, 22) // 21 and 22 are children of 1
	s.lossy, s.mixed = rough, true
	for range events {
		switch n := s.rng.IntN(100); {
		case n < 10:
			s.add(s.some())
		case n < 22:
			s.poll(s.some(), time.Duration(s.rng.IntN(8))*time.Second)
		case n < 55:
			s.message()
		case n < 75:
			s.some().land()
		case n < 88:
			s.some().read()
		case n < 99:
			s.pass(time.Duration(s.rng.IntN(300)) * time.Millisecond)
		case rough && s.rng.IntN(3) == 0:
			s.some().crash()
		}
	}
	// A single worker, whose polls all go to one leaf, gets all that is left.
	s.lossy = false
	leaf := s.nodes[22]
	for round := 0; ; round++ {
		s.rest()
		var left int64
		for _, k := range s.order {
			c := s.nodes[k].core.m.counts
			left += c.fresh + c.scheduled + c.leased
		}
		if left == 0 && s.polls == 0 {
			break
		}
		if round > 4000 {
			for _, k := range s.order {
				c := s.nodes[k].core
				s.logf("partition %d: %+v ready %d polls %d away %d lent %v recalled %v offering %v offers %d lendAt %v offerAt %v", k, c.m.counts, c.ready.len(),
					c.pollers.n, c.fwd.away, c.fwd.lent != nil, c.fwd.recalled, c.fwd.offering, len(c.fwd.offers), c.fwd.lendAt-s.now, c.fwd.offerAt-s.now)
			}
			s.fatalf("%d tasks and %d polls are left", left, s.polls)
		}
		if s.polls == 0 {
			s.poll(leaf, 10*time.Second)
			s.rest()
		}
		s.pass(time.Duration(50+s.rng.IntN(200)) * time.Millisecond)
	}
	for id, st := range s.tasks {
		if st.acked && !st.completed && !st.mayBeGone {
			s.fatalf("task %v was acknowledged and is lost", id)
		}
	}
	for _, k := range s.order {
		f := &s.nodes[k].core.fwd
		if f.away != 0 || f.lent != nil {
			s.fatalf("partition %d still has %d polls away, lent %v", k, f.away, f.lent != nil)
		}
	}
}

func TestTree_keeps_its_promises_with_messages_lost_and_partitions_crashing(t *testing.T) {
	n := *simSeeds
	if testing.Short() {
		n = min(n, 30)
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runTreeSim(t, uint64(seed), 1500, seed%2 == 1) })
	}
}
