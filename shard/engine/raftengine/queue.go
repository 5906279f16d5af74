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
}

var proposals = sync.Pool{New: func() any { return &proposal{head: make([]byte, 0, 64)} }}

// queue holds the proposals in flight, in the order of the log: first those with Raft,
// then those that wait.
type queue struct {
	mu   sync.Mutex
	send func(*proposal)
	// ring holds count proposals from head on; the first sent of them are with Raft.
	ring              []*proposal
	head, count, sent int
	// taken counts proposals that the fsm has and has not finished.
	taken    int
	bytes    int64
	maxCount int
	maxBytes int64
	// refuse is the answer to new proposals, nil while they are welcome.
	refuse error
	// idle is closed when nothing is in flight any more, for a Close that waits.
	idle chan struct{}
}

func newQueue(maxCount int, maxBytes int64, send func(*proposal)) *queue {
	return &queue{
		send: send, maxCount: maxCount, maxBytes: maxBytes, ring: make([]*proposal, 64),
		refuse: &shard.Error{Code: shard.MissingMaster, Reason: "the store is starting"},
	}
}

func (q *queue) at(i int) **proposal { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

// add queues a command, stamped with the time that clock gives. The command's order is
// that of the calls.
func (q *queue) add(cmd *engine.Command, clock *stamp, done func([]byte, error)) error {
	size := int64(len(cmd.Args))
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refuse != nil {
		return q.refuse
	}
	inFlight := q.count + q.taken
	if inFlight >= q.maxCount || (q.bytes+size > q.maxBytes && inFlight > 0) {
		return &shard.Error{Code: shard.Overloaded, Bucket: cmd.Bucket}
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

// pump hands waiting proposals to Raft while the window has room.
func (q *queue) pump() {
	for q.sent < q.count && q.sent+q.taken < window {
		q.send(*q.at(q.sent))
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
			// In a group of one no entry is lost in between, so it can only be the first.
			if first := *q.at(0); &first.head[0] == &l.Extensions[0] {
				p = first
				*q.at(0) = nil
				q.head = (q.head + 1) & (len(q.ring) - 1)
				q.count--
				q.sent--
				q.taken++
			}
		}
		out = append(out, p)
	}
	return out
}

// finish answers proposers, after making room for the next.
func (q *queue) finish(results []result) {
	q.mu.Lock()
	q.taken -= len(results)
	for i := range results {
		q.bytes -= int64(len(results[i].p.args))
	}
	q.pump()
	idle := q.idleLocked()
	q.mu.Unlock()
	for i := range results {
		r := &results[i]
		done := r.p.done
		r.p.args, r.p.done = nil, nil
		proposals.Put(r.p)
		done(r.value, r.err)
	}
	if idle != nil {
		close(idle)
	}
}

// idleLocked returns the channel to close when nothing is in flight any more.
func (q *queue) idleLocked() chan struct{} {
	if q.idle == nil || q.count+q.taken > 0 {
		return nil
	}
	idle := q.idle
	q.idle = nil
	return idle
}

// open welcomes proposals.
func (q *queue) open() {
	q.mu.Lock()
	q.refuse = nil
	q.mu.Unlock()
}

// close refuses new proposals with err and returns a channel that is closed when those
// in flight are done.
func (q *queue) close(err error) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refuse = err
	idle := make(chan struct{})
	if q.count+q.taken == 0 {
		close(idle)
	} else {
		q.idle = idle
	}
	return idle
}

// abort refuses new proposals and answers with err those that wait here and, with sent,
// those with Raft, which may or may not take effect. Raft must have stopped then: until
// it has, it may be reading their arguments, which belong to the proposers afterwards.
func (q *queue) abort(err error, sent bool) {
	q.mu.Lock()
	q.refuse = err
	from := q.sent
	if sent {
		from = 0
	}
	dropped := make([]*proposal, 0, q.count-from)
	for i := from; i < q.count; i++ {
		slot := q.at(i)
		dropped = append(dropped, *slot)
		q.bytes -= int64(len((*slot).args))
		*slot = nil
	}
	q.count, q.sent = from, from
	idle := q.idleLocked()
	q.mu.Unlock()
	for _, p := range dropped {
		p.done(nil, err)
	}
	if idle != nil {
		close(idle)
	}
}

func (q *queue) inFlight() (int, int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count + q.taken, q.bytes
}
