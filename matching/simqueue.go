package matching

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// SimOptions are those of a SimQueue.
type SimOptions struct {
	// Partitions is how many there are, 1 to MaxPartitions.
	Partitions int
	// Write is how long a write to the store takes, and Hop a call from one
	// partition to another, one way.
	Write, Hop time.Duration
	Forwarding Forwarding
	Seed       uint64
	// Now is the virtual time in unix nanoseconds, and After runs f once that much of
	// it has passed. Required.
	Now   func() int64
	After func(d time.Duration, f func())
}

// SimQueue is one queue in virtual time, for simulations: its partitions are the ones
// of an Engine, with the same cores; only the store, which is in memory, and the way
// between partitions are simulated. It belongs to one goroutine.
type SimQueue struct {
	o     SimOptions
	nodes []*simNode
	seq   uint64
}

// SimTask is a task that a poll was given.
type SimTask struct {
	Partition int32
	AddedAt   int64 // unix nanoseconds
	token     token
}

// simNode is one partition.
type simNode struct {
	q      *SimQueue
	id     PartitionID
	core   *core
	store  simStore
	waits  []func() bool // look for answers; true when there was one
	lent   map[*pollCall]*simLent
	wakeAt int64
}

// simLent is a poll at another partition.
type simLent struct {
	node      *simNode
	there     *pollCall
	cancelled bool // before it arrived
}

// NewSimQueue makes a queue without tasks.
func NewSimQueue(o SimOptions) (*SimQueue, error) {
	if err := checkPartitions(int32(o.Partitions)); err != nil || o.Partitions == 0 {
		return nil, fmt.Errorf("matching: a queue cannot have %d partitions", o.Partitions)
	}
	q := &SimQueue{o: o}
	st := settingsOf(&v1.StoredQueue{})
	st.leaseTime = time.Hour
	for i := range o.Partitions {
		n := &simNode{q: q, id: PartitionID{Namespace: "sim", Queue: "queue", Number: int32(i)}, lent: map[*pollCall]*simLent{}}
		m := newMeta(uint64(i) + 1)
		m.rangeID = 1
		rng := rand.New(rand.NewPCG(o.Seed, uint64(i)))
		n.core = newCore(o.Now(), o.Now(), n.id, st, Limits{}, rng, loaded{meta: m, scheduleEmpty: true})
		n.core.fwd.init(n.core, n.id, o.Forwarding)
		q.nodes = append(q.nodes, n)
	}
	return q, nil
}

// Add adds tasks to a partition, as one call.
func (q *SimQueue) Add(partition int32, tasks int) {
	a := &addCall{}
	a.init()
	now := q.o.Now()
	for range tasks {
		b := body{id: q.newID(now), addedAt: now, kind: "k"}
		a.items = append(a.items, addItem{id: b.id, addedAt: now, body: b.append(nil)})
	}
	n := q.nodes[partition]
	n.core.advance(now, now)
	n.core.add(a)
	n.step()
}

// newID makes ids in the order of time.
func (q *SimQueue) newID(now int64) (id taskID) {
	q.seq++
	binary.BigEndian.PutUint64(id[:], uint64(now))
	binary.BigEndian.PutUint64(id[8:], q.seq)
	return id
}

// Poll asks a partition for one task. done gets it, or nil when there was none within
// the wait.
func (q *SimQueue) Poll(partition int32, wait time.Duration, done func(*SimTask)) {
	n := q.nodes[partition]
	p := &pollCall{max: 1, identity: "sim"}
	p.init()
	p.until = q.o.Now() + int64(wait)
	n.take(p, func() { done(n.task(p)) })
	q.o.After(wait, func() {
		if !p.answeredSim() {
			n.core.cancelPoll(p)
			n.step()
		}
	})
}

func (p *pollCall) answeredSim() bool { return p.done == nil || len(p.done) > 0 }

// Complete ends a task.
func (q *SimQueue) Complete(t *SimTask) {
	n := q.nodes[t.token.partition]
	e := &endCall{kind: endComplete, items: []endItem{{seq: t.token.seq, nonce: t.token.nonce}}}
	e.init()
	now := q.o.Now()
	n.core.advance(now, now)
	n.core.end(e)
	n.step()
}

// Backlog is how many tasks of a partition wait.
func (q *SimQueue) Backlog(partition int32) int64 {
	return q.nodes[partition].core.queueCounts().ready
}

// Left is how many tasks a partition has, in workers' hands or not.
func (q *SimQueue) Left(partition int32) int64 { return q.nodes[partition].core.m.counts.tasks() }

// Age is how long a partition's oldest waiting task has waited; 0 for none.
func (q *SimQueue) Age(partition int32) time.Duration {
	oldest := q.nodes[partition].core.ready.oldest()
	if oldest == 0 {
		return 0
	}
	return time.Duration(q.o.Now() - oldest)
}

// take gives a poll to the core; answered runs when it was answered.
func (n *simNode) take(p *pollCall, answered func()) {
	now := n.q.o.Now()
	n.core.advance(now, now)
	n.core.fwd.polled(p, now)
	n.core.poll(p)
	n.waits = append(n.waits, func() bool {
		if len(p.done) == 0 {
			return false
		}
		p.done = nil
		answered()
		return true
	})
	n.step()
}

// task is what a poll was given, here or elsewhere.
func (n *simNode) task(p *pollCall) *SimTask {
	var tok token
	ok := false
	if leased := n.response(p).GetTasks(); len(leased) > 0 {
		tok, ok = parseToken(leased[0].GetLeaseToken())
	}
	if !ok {
		return nil
	}
	return &SimTask{Partition: tok.partition, AddedAt: int64(binary.BigEndian.Uint64(tok.id[:])), token: tok}
}

func (n *simNode) response(p *pollCall) *v1.PollTasksResponse {
	if p.answer != nil {
		return p.answer
	}
	resp := &v1.PollTasksResponse{}
	for _, g := range p.granted {
		id, err := bodyID(g.body)
		if err != nil {
			panic(err)
		}
		t := token{partition: n.id.Number, uid: n.core.m.uid, seq: g.seq, nonce: g.nonce, id: id}
		resp.Tasks = append(resp.Tasks, &v1.LeasedTask{Id: id.String(), LeaseToken: t.append(nil)})
	}
	return resp
}

// step lets the core follow up on events, as the shell does.
func (n *simNode) step() {
	c, o := n.core, &n.q.o
	now := o.Now()
	c.advance(now, now)
	c.tick()
	c.match()
	c.forward()
	for b := c.take(); b != nil; b = c.take() {
		o.After(o.Write, func() {
			n.store.apply(b.args)
			for _, r := range b.replies {
				r.reply(nil)
			}
			now := o.Now()
			c.advance(now, now)
			c.written(b)
			n.step()
		})
	}
	c.plan()
	for _, r := range c.reads {
		o.After(o.Write, func() { n.read(r) })
	}
	c.reads = c.reads[:0]
	hops := c.fwd.hops
	c.fwd.hops = nil
	for _, h := range hops {
		n.hop(h)
	}
	n.waits = slices.DeleteFunc(n.waits, func(answered func() bool) bool { return answered() })
	if w := now + int64(c.wake()); n.wakeAt <= now || w < n.wakeAt {
		n.wakeAt = w
		o.After(time.Duration(w-now), func() {
			if n.wakeAt == w {
				n.step()
			}
		})
	}
}

func (n *simNode) read(request any) {
	answer, err := answerRead(&n.store, n.core.m.uid, request)
	if err != nil {
		panic(err)
	}
	now := n.q.o.Now()
	n.core.advance(now, now)
	switch r := answer.(type) {
	case freshTasks:
		n.core.gotFresh(r)
	case scheduleRows:
		n.core.gotSchedule(r)
	case fetchedBodies:
		n.core.gotBodies(r)
	case sweptIDs:
		n.core.gotSweep(r)
	default:
		panic(fmt.Sprintf("matching: unknown answer %T", answer))
	}
	n.step()
}

// hop plays the shell's part between partitions.
func (n *simNode) hop(request any) {
	o := &n.q.o
	switch r := request.(type) {
	case lendPoll:
		l := &simLent{node: n.parent()}
		n.lent[r.p] = l
		n.pollAt(r.p, v1.Hop_HOP_LENT, l, func(resp *v1.PollTasksResponse) {
			delete(n.lent, r.p)
			n.core.back(polledAway{p: r.p, answer: resp})
			n.step()
		})
	case recallPoll:
		o.After(o.Hop, func() {
			l := n.lent[r.p]
			switch {
			case l == nil:
			case l.there == nil:
				l.cancelled = true
			default:
				l.node.core.cancelPoll(l.there)
				l.node.step()
			}
		})
	case pullTasks:
		l := &simLent{node: n.q.nodes[r.offer.source]}
		n.pollAt(r.p, v1.Hop_HOP_PULLED, l, func(resp *v1.PollTasksResponse) {
			n.core.back(polledAway{p: r.p, offer: r.offer, answer: resp})
			n.step()
		})
	case offerTasks:
		o.After(o.Hop, func() { n.offer(r) })
	default:
		panic(fmt.Sprintf("matching: unknown hop %T", request))
	}
}

func (n *simNode) parent() *simNode {
	p, _ := Parent(n.id.Number)
	return n.q.nodes[p]
}

// pollAt polls another partition in p's place.
func (n *simNode) pollAt(p *pollCall, hop v1.Hop, l *simLent, back func(*v1.PollTasksResponse)) {
	o := &n.q.o
	o.After(o.Hop, func() {
		q := &pollCall{max: p.max, identity: p.identity, noWait: hop == v1.Hop_HOP_PULLED || l.cancelled}
		q.hop, q.source, q.until = hop, n.id.Number, p.until
		q.init()
		l.there = q
		l.node.take(q, func() {
			resp := l.node.response(q)
			o.After(o.Hop, func() { back(resp) })
		})
		if hop == v1.Hop_HOP_LENT {
			o.After(time.Duration(max(p.until-o.Now(), 0)), func() {
				if !q.answeredSim() {
					l.node.core.cancelPoll(q)
					l.node.step()
				}
			})
		}
	})
}

// offer is an offer that has arrived at the parent.
func (n *simNode) offer(r offerTasks) {
	o, to := &n.q.o, n.parent()
	c := &offerCall{source: n.id.Number, oldest: r.oldest}
	c.init()
	now := o.Now()
	to.core.advance(now, now)
	to.core.offer(c)
	over := false
	to.waits = append(to.waits, func() bool {
		if len(c.done) == 0 {
			return false
		}
		over = true
		o.After(o.Hop, func() {
			n.core.offerEnded(offered{taken: c.taken})
			n.step()
		})
		return true
	})
	to.step()
	o.After(to.core.fwd.options.OfferHold, func() {
		if !over {
			to.core.withdraw(c)
			to.step()
		}
	})
}
