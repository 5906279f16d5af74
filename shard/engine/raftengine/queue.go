package raftengine

import (
	"sync"

	"github.com/hashicorp/raft"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// window is how many proposals are with Raft at once: the capacity of Raft's own
// queue, so that handing one over never waits. More wait here, which loses nothing,
// because a full window is one sync anyway.
const window = 256

// proposal is a command on its way.
type proposal struct {
	// head is the command's head in the log. Its address also tells which entry is
	// which proposal's: Raft hands entries of this member to the fsm as they came.
	head []byte
	args []byte
	done func([]byte, error)
	// future is answered when Raft lets go of head and args.
	future raft.ApplyFuture
}

var proposals = sync.Pool{New: func() any { return &proposal{head: make([]byte, 0, 64)} }}

// recycle makes a proposal that was answered ready for another command.
func (p *proposal) recycle() {
	p.args, p.done, p.future = nil, nil, nil
	proposals.Put(p)
}

// queue holds the proposals in flight, in the order of the log: first those with Raft,
// then those that wait.
type queue struct {
	mu   sync.Mutex
	send func(*proposal) raft.ApplyFuture
	// ring holds count slots from head on; the first sent of them are with Raft. A slot of
	// these is nil, a hole, when its proposal was answered before the one in front; the
	// first one never is.
	ring                     []*proposal
	head, count, sent, holes int
	// taken counts proposals that the fsm has and has not finished.
	taken    int
	bytes    int64
	maxCount int
	maxBytes int64
	// refuse makes the answer to new proposals, nil while they are welcome.
	refuse func() error
	// closed makes refuse final.
	closed bool
	// paused keeps what comes here instead of handing it to Raft. settled is closed when
	// nothing is with Raft any more.
	paused  bool
	settled chan struct{}
	// idle is closed when nothing is in flight any more, for a Close that waits.
	idle chan struct{}
}

func newQueue(maxCount int, maxBytes int64, send func(*proposal) raft.ApplyFuture) *queue {
	return &queue{
		send: send, maxCount: maxCount, maxBytes: maxBytes, ring: make([]*proposal, 64),
		refuse: always(&shard.Error{Code: shard.MissingMaster, Reason: "the store is starting"}),
	}
}

func always(err error) func() error { return func() error { return err } }

func (q *queue) at(i int) **proposal { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

// add queues a command, stamped with the time that clock gives. The command's order is
// that of the calls. first lets it in although others are refused.
func (q *queue) add(cmd *engine.Command, clock *stamp, first bool, done func([]byte, error)) error {
	size := int64(len(cmd.Args))
	q.mu.Lock()
	defer q.mu.Unlock()
	if !first {
		if q.refuse != nil {
			return q.refuse()
		}
		inFlight := q.live()
		if inFlight >= q.maxCount || (q.bytes+size > q.maxBytes && inFlight > 0) {
			return &shard.Error{Code: shard.Overloaded, Bucket: cmd.Bucket}
		}
	}
	p := proposals.Get().(*proposal)
	cmd.Time = clock.next()
	p.head = engine.AppendHead(p.head[:0], cmd)
	p.args, p.done = cmd.Args, done
	if q.count == len(q.ring) {
		q.grow()
	}
	*q.at(q.count) = p
	q.count++
	q.bytes += size
	q.pump()
	return nil
}

func (q *queue) grow() {
	ring := make([]*proposal, 2*len(q.ring))
	for i := range q.count {
		ring[i] = *q.at(i)
	}
	q.ring, q.head = ring, 0
}

// live counts the proposals in flight.
func (q *queue) live() int { return q.count - q.holes + q.taken }

// pump hands waiting proposals to Raft while the window has room.
func (q *queue) pump() {
	if q.paused {
		return
	}
	for q.sent < q.count && q.sent-q.holes+q.taken < window {
		p := *q.at(q.sent)
		p.future = q.send(p)
		q.sent++
	}
}

// match takes out the proposals of log entries and appends them to out, nil for an
// entry that is nobody's here.
func (q *queue) match(logs []*raft.Log, out []*proposal) []*proposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range logs {
		var p *proposal
		if q.sent > 0 && l.Type == raft.LogCommand && len(l.Extensions) > 0 {
			// Nearly always the first. Those before it are lost when it is another one, and
			// will be answered when their futures are.
			for i := range q.sent {
				if slot := *q.at(i); slot != nil && &slot.head[0] == &l.Extensions[0] {
					p = slot
					q.punch(i)
					q.taken++
					break
				}
			}
		}
		out = append(out, p)
	}
	return out
}

// punch empties the slot i of the sent ones.
func (q *queue) punch(i int) {
	*q.at(i) = nil
	q.holes++
	for q.sent > 0 && *q.at(0) == nil {
		q.head = (q.head + 1) & (len(q.ring) - 1)
		q.count--
		q.sent--
		q.holes--
	}
}

// finish answers proposers, after making room for the next.
func (q *queue) finish(results []result) {
	q.mu.Lock()
	q.taken -= len(results)
	for i := range results {
		q.bytes -= int64(len(results[i].p.args))
	}
	q.pump()
	wake := q.wakeLocked()
	q.mu.Unlock()
	for i := range results {
		r := &results[i]
		done := r.p.done
		r.p.recycle()
		done(r.value, r.err)
	}
	wake.wake()
}

// wakeups are channels to be closed once the lock is free and the proposers answered.
type wakeups [2]chan struct{}

func (w wakeups) wake() {
	for _, c := range w {
		if c != nil {
			close(c)
		}
	}
}

// wakeLocked takes the channels of those whose wait is over.
func (q *queue) wakeLocked() (w wakeups) {
	if q.idle != nil && q.live() == 0 {
		w[0], q.idle = q.idle, nil
	}
	if q.settled != nil && q.sent-q.holes+q.taken == 0 {
		w[1], q.settled = q.settled, nil
	}
	return w
}

// open welcomes proposals, which are stamped with times behind at.
func (q *queue) open(clock *stamp, at int64) {
	q.mu.Lock()
	clock.catchUp(at)
	if !q.closed {
		q.refuse = nil
	}
	q.mu.Unlock()
}

// close refuses new proposals with err and returns a channel that is closed when those
// in flight are done.
func (q *queue) close(err error) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refuse, q.closed = always(err), true
	idle := make(chan struct{})
	if q.live() == 0 {
		close(idle)
	} else {
		q.idle = idle
	}
	return idle
}

// pause keeps proposals from Raft and returns a channel that is closed when it has none
// any more. resume ends that.
func (q *queue) pause() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.paused = true
	settled := make(chan struct{})
	if q.sent-q.holes+q.taken == 0 {
		close(settled)
	} else {
		q.settled = settled
	}
	return settled
}

func (q *queue) resume() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.paused = false
	q.pump()
}

// sentProposal is a proposal that was with Raft when mastership was lost.
type sentProposal struct {
	p *proposal
	f raft.ApplyFuture
}

// demote refuses new proposals, answers those that wait here the same, and returns those
// that are with Raft.
func (q *queue) demote(refuse func() error) []sentProposal {
	q.mu.Lock()
	q.paused = false
	if !q.closed {
		q.refuse = refuse
	}
	sent := make([]sentProposal, 0, q.sent-q.holes)
	for i := range q.sent {
		if p := *q.at(i); p != nil {
			sent = append(sent, sentProposal{p, p.future})
		}
	}
	waiting := q.cutLocked(q.sent)
	wake := q.wakeLocked()
	q.mu.Unlock()
	for _, p := range waiting {
		done := p.done
		p.recycle()
		done(nil, refuse())
	}
	wake.wake()
	return sent
}

// cutLocked takes out the proposals from slot from on.
func (q *queue) cutLocked(from int) []*proposal {
	cut := make([]*proposal, 0, q.count-from)
	for i := from; i < q.count; i++ {
		slot := q.at(i)
		if *slot == nil {
			q.holes--
			continue
		}
		cut = append(cut, *slot)
		q.bytes -= int64(len((*slot).args))
		*slot = nil
	}
	q.count, q.sent = from, min(from, q.sent)
	return cut
}

// lose answers a proposal that Raft has let go of without applying it here, unless it
// was answered in another way.
func (q *queue) lose(s sentProposal, err error) {
	q.mu.Lock()
	found := false
	for i := range q.sent {
		if p := *q.at(i); p == s.p && p.future == s.f {
			found = true
			q.bytes -= int64(len(p.args))
			q.punch(i)
			break
		}
	}
	wake := q.wakeLocked()
	q.mu.Unlock()
	if found {
		done := s.p.done
		s.p.recycle()
		done(nil, err)
	}
	wake.wake()
}

// abort refuses new proposals and answers with err those that wait here and, with sent,
// those with Raft, which may or may not take effect. Raft must have stopped then: until
// it has, it may be reading their arguments, which belong to the proposers afterwards.
func (q *queue) abort(err error, sent bool) {
	q.mu.Lock()
	q.refuse, q.closed = always(err), true
	from := q.sent
	if sent {
		from = 0
	}
	dropped := q.cutLocked(from)
	wake := q.wakeLocked()
	q.mu.Unlock()
	for _, p := range dropped {
		p.done(nil, err)
	}
	wake.wake()
}

func (q *queue) inFlight() (int, int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.live(), q.bytes
}
