package matching

import (
	"fmt"
	"math"
	"time"
)

type endKind uint8

const (
	endComplete endKind = iota
	endFail
	endRelease
	endExtend
)

// endCall ends attempts, or extends their leases.
type endCall struct {
	call
	kind  endKind
	items []endItem
	one   [1]endItem // the items of most calls
}

// make makes room for n items.
func (e *endCall) make(n int) {
	if e.items = e.one[:]; n != 1 {
		e.items = make([]endItem, n)
	}
}

type endItem struct {
	seq, nonce uint64
	invalid    bool // the token is no token of this partition

	// For failures and extensions.
	errorText    string
	retryDelay   time.Duration
	hasDelay     bool
	notRetryable bool
	leaseTime    time.Duration

	// Results. lost: the token's lease is not the task's; the caller finds out
	// why. at: the new deadline, or the time of the next attempt. dead: no more.
	lost bool
	dead bool
	at   int64
}

func (c *core) end(e *endCall) {
	var completed, failed int
	for i := range e.items {
		it := &e.items[i]
		if it.invalid {
			continue
		}
		l := c.leases.bySeq[it.seq]
		if l == nil || l.nonce != it.nonce {
			it.lost = true
			continue
		}
		switch e.kind {
		case endComplete:
			c.complete(l)
			completed++
		case endFail:
			c.fail(l, it)
			failed++
		case endRelease:
			c.release(l)
		case endExtend:
			c.extend(l, it)
		}
	}
	c.stats.count(c.now, statCompleted, completed)
	c.stats.count(c.now, statFailed, failed)
	c.answer(e)
}

// endLease removes a lease from memory and from the store.
func (c *core) endLease(b *batch, l *heldLease) {
	c.touch(l.seq)
	c.leases.remove(l)
	b.deleteRow(spaceLeases, c.m.uid, l.seq)
	c.m.counts.leased--
	if !l.loc.parked && (len(c.ready.holed) > 0 || !l.loc.place(l.seq).before(c.win.readTo)) {
		c.leaveBacklog(l.seq, b)
	}
}

// park moves the body of a task out of the backlog, where only fresh and leased ones
// are.
func (c *core) park(b *batch, l *heldLease) {
	if !l.loc.parked {
		b.parkBody(l.loc, c.m.uid, l.seq)
		l.loc = location{parked: true}
	}
}

func (c *core) complete(l *heldLease) {
	b := c.open()
	c.endLease(b, l)
	c.erase(b, l.seq, l.id, l.addedAt, l.loc, endingNone)
}

func (c *core) fail(l *heldLease, it *endItem) {
	text := it.errorText
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	b := c.open()
	c.endLease(b, l)
	if it.notRetryable || l.attempt >= c.maxAttempts(l) {
		c.bury(b, l, text)
		it.dead = true
		return
	}
	delay := it.retryDelay
	if !it.hasDelay {
		delay = c.backoff(l)
	}
	it.at = c.wall + int64(delay)
	c.reschedule(b, l, l.attempt, it.at, text)
}

// bury makes a task dead.
func (c *core) bury(b *batch, l *heldLease, text string) {
	c.park(b, l)
	b.putRow(spaceDead, c.m.uid, l.seq, &deadRow{attempt: l.attempt, loc: l.loc, deadAt: c.wall, lastError: text})
	c.m.counts.dead++
	c.stats.count(c.now, statDead, 1)
}

func (c *core) reschedule(b *batch, l *heldLease, attempts int32, at int64, text string) {
	c.park(b, l)
	u := &upcomingTask{at: at, seq: l.seq, batch: b.number, scheduled: scheduled{attempt: attempts, loc: l.loc, lastError: text}}
	b.putSchedule(c.m.uid, at, l.seq, &u.scheduled)
	c.m.counts.scheduled++
	c.schedule.add(u)
}

// release puts a task back in its old place; the attempt does not count.
func (c *core) release(l *heldLease) {
	b := c.open()
	c.endLease(b, l)
	c.reschedule(b, l, l.attempt-1, min(l.readyAt, c.wall), l.lastError)
}

func (c *core) extend(l *heldLease, it *endItem) {
	if it.leaseTime > 0 {
		l.duration = int64(it.leaseTime)
	}
	l.deadline = c.now + l.duration
	c.leases.moved(l)
	c.open().putRow(spaceLeases, c.m.uid, l.seq, &l.lease)
	it.at = l.deadline
}

// expireLeases takes tasks back whose worker did not answer in time. The attempt
// counts: a task that kills its workers must not go round for ever.
func (c *core) expireLeases() {
	for {
		d, ok := c.leases.first()
		if !ok || d > c.now {
			return
		}
		l := c.leases.heap[0]
		text := fmt.Sprintf("lease ran out: worker %q did not answer within %v", l.identity, time.Duration(l.duration))
		b := c.open()
		c.endLease(b, l)
		c.stats.count(c.now, statLeaseExpired, 1)
		if l.attempt >= c.maxAttempts(l) {
			c.bury(b, l, text)
			continue
		}
		c.reschedule(b, l, l.attempt, c.wall, text)
	}
}

func (c *core) maxAttempts(l *heldLease) int32 {
	if l.policy.maxAttempts > 0 {
		return l.policy.maxAttempts
	}
	return c.queue.maxAttempts
}

// backoff is how long a failed task waits: exponential in its attempts, the last
// part of it random.
func (c *core) backoff(l *heldLease) time.Duration {
	p := c.queue.retry
	if r := l.policy.retry; r != nil {
		p = r.over(p)
	}
	d := float64(p.initial) * math.Pow(p.multiplier, float64(l.attempt-1))
	if !(d < float64(p.max)) { // also when it overflowed
		d = float64(p.max)
	}
	d -= d * p.jitter * c.rng.Float64()
	return time.Duration(d)
}

// over is p with the gaps filled from q.
func (p *retryPolicy) over(q retryPolicy) retryPolicy {
	if p.initial > 0 {
		q.initial = p.initial
	}
	if p.max > 0 {
		q.max = p.max
	}
	if p.multiplier > 0 {
		q.multiplier = p.multiplier
	}
	if p.jitter >= 0 {
		q.jitter = p.jitter
	}
	return q
}
