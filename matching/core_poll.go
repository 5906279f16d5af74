package matching

import (
	"encoding/binary"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// pollCall leases tasks.
type pollCall struct {
	call
	max       int
	leaseTime time.Duration // 0: each task's own
	identity  string
	noWait    bool
	waiting   bool
	sync      bool // met a task that came after it
	prev      *pollCall
	next      *pollCall
	granted   []grant
	pollRoute
}

// grant is a task given to a poll.
type grant struct {
	seq       uint64
	nonce     uint64
	attempt   int32
	deadline  int64
	lastError string
	body      []byte

	maxAttempts int32
}

// pollList is a list of waiting polls, first come first served.
type pollList struct {
	first, last *pollCall
	n           int
}

// push adds a poll at the end; lent ones come after those of the partition's own.
func (l *pollList) push(p *pollCall) {
	after := l.last
	for p.hop != v1.Hop_HOP_LENT && after != nil && after.hop == v1.Hop_HOP_LENT {
		after = after.prev // there are no more of these than children
	}
	l.insert(p, after)
}

// insert adds a poll behind another, nil for the front.
func (l *pollList) insert(p, after *pollCall) {
	p.waiting = true
	p.prev, p.next = after, l.first
	if after != nil {
		p.next = after.next
		after.next = p
	} else {
		l.first = p
	}
	if p.next != nil {
		p.next.prev = p
	} else {
		l.last = p
	}
	l.n++
}

func (l *pollList) remove(p *pollCall) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	p.prev, p.next, p.waiting = nil, nil, false
	l.n--
}

// poll takes a poll; match serves it.
func (c *core) poll(p *pollCall) {
	if c.closing {
		p.reply(nil)
		return
	}
	if c.pollers.n >= c.limits.WaitingPolls {
		p.reply(errTooManyPolls(c.id, c.limits.WaitingPolls))
		return
	}
	c.pollBegan(p)
	c.pollers.push(p)
	if p.noWait {
		c.noWaits = append(c.noWaits, p)
	}
}

// cancelPoll ends a poll that may still wait. One that was served already is
// answered with its tasks as ever.
func (c *core) cancelPoll(p *pollCall) {
	if p.waiting {
		c.endPoll(p)
		p.reply(nil)
	} else if p.gone {
		c.cancelAway(p)
	}
}

// close ends all polls and lets no more tasks out.
func (c *core) close() {
	c.closing = true
	c.closeForwarding()
	for c.pollers.first != nil {
		c.cancelPoll(c.pollers.first)
	}
}

func (c *core) endPoll(p *pollCall) {
	c.pollers.remove(p)
	c.pollEnded(p)
}

// match gives ready tasks to waiting polls.
func (c *core) match() {
	c.pullOffers(true)
	for p := c.pollers.first; p != nil && !c.queue.paused && !c.closing; p = c.pollers.first {
		c.serve(p)
		if len(p.granted) == 0 {
			break
		}
		c.endPoll(p)
		c.stats.count(c.now, statDispatched, len(p.granted))
		if p.sync {
			c.stats.count(c.now, statSyncMatched, len(p.granted))
		}
		c.answer(p)
	}
	c.pullOffers(false)
	c.markWaiting()
	if len(c.noWaits) > 0 && (c.queue.paused || c.leases.len() >= c.limits.Leases || !c.loading()) {
		for _, p := range c.noWaits {
			c.cancelPoll(p)
		}
		clear(c.noWaits)
		c.noWaits = c.noWaits[:0]
	}
}

// markWaiting notes which polls wait, so that what they get counts as a sync
// match.
func (c *core) markWaiting() {
	for p := c.pollers.last; p != nil && (!p.sync || p.hop == v1.Hop_HOP_LENT); p = p.prev {
		p.sync = true
	}
}

func (c *core) serve(p *pollCall) {
	bytes := 0
	for len(p.granted) < p.max && c.leases.len() < c.limits.Leases {
		t := c.ready.peek()
		if t == nil {
			return
		}
		// A full batch must be closed while t still counts as ready: its meta row
		// may not tell of what only the next batch makes durable.
		c.open()
		if x := bodyExpiresAt(t.body); x != 0 && x <= c.wall {
			c.ready.pop(t, false)
			c.expire(t)
			continue
		}
		if bytes > 0 && bytes+len(t.body) > c.limits.PollBytes {
			return
		}
		bytes += len(t.body)
		c.stats.countLevel(c.now, t.queue.level, statDispatched, 1)
		if p.sync {
			c.stats.countLevel(c.now, t.queue.level, statSyncMatched, 1)
		}
		c.ready.pop(t, true)
		c.lease(t, p)
	}
}

func (c *core) lease(t *task, p *pollCall) {
	b := c.open()
	id, _ := bodyID(t.body)
	l := &heldLease{seq: t.seq, lease: lease{
		attempt: t.attempt + 1, readyAt: t.readyAt, id: id, addedAt: bodyAddedAt(t.body), loc: t.loc,
		identity: p.identity, lastError: t.lastError,
	}}
	d := p.leaseTime
	if t.body[1]&(bodyLeaseTime|bodyMaxAttempts|bodyRetry) != 0 {
		var full body
		if err := full.decode(t.body); err == nil {
			l.policy = attemptPolicy{full.maxAttempts, full.retry}
			if d == 0 {
				d = time.Duration(full.leaseTime)
			}
		}
	}
	if d == 0 {
		d = c.queue.leaseTime
	}
	c.nonce++
	l.nonce, l.duration, l.deadline = c.nonce, int64(d), c.now+int64(d)
	b.putRow(spaceLeases, c.m.uid, t.seq, &l.lease)
	c.leaveReady(b, t)
	c.m.counts.leased++
	c.leases.add(l)
	p.granted = append(p.granted, grant{seq: t.seq, nonce: l.nonce, attempt: l.attempt, deadline: l.deadline,
		lastError: t.lastError, body: t.body, maxAttempts: c.maxAttempts(l)})
}

// leaveReady removes the row that says why a task is ready.
func (c *core) leaveReady(b *batch, t *task) {
	c.touch(t.seq)
	if t.dueAt != 0 {
		if c.schedule.beyond(t.dueAt, t.seq) {
			c.leaveSchedule(t.dueAt, t.seq, b)
		}
		b.deleteSchedule(c.m.uid, t.dueAt, t.seq)
		c.m.counts.scheduled--
		return
	}
	c.m.count(t.loc.level, -1)
	c.lowAfter--
}

// expire drops a task whose time to live is over.
func (c *core) expire(t *task) {
	b := c.open()
	c.leaveReady(b, t)
	id, _ := bodyID(t.body)
	c.erase(b, t.seq, id, bodyAddedAt(t.body), t.loc, endingExpired)
	c.stats.count(c.now, statExpired, 1)
}

// erase removes a task's body. Its id stays known for a while, unless the task is
// old already.
func (c *core) erase(b *batch, seq uint64, id taskID, addedAt int64, loc location, how ending) {
	b.deleteBody(loc, c.m.uid, seq)
	if c.wall-addedAt >= dedupWindow {
		b.deleteID(c.m.uid, id)
		return
	}
	b.ended = append(b.ended, id[:]...)
	b.ended = binary.BigEndian.AppendUint64(b.ended, seq)
	if how != endingNone {
		b.putID(c.m.uid, id, &idRow{seq: seq, addedAt: addedAt, loc: loc, ending: how})
	}
}
