package matching

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching/routing"
)

// queueName is a queue's key in memory.
type queueName struct{ namespace, queue string }

// queueEntry is what is remembered of a queue to choose partitions.
type queueEntry struct {
	counts    atomic.Pointer[v1.PartitionCounts] // nil when not known
	polls     pollCounts
	callPolls pollCounts
}

// queueTable remembers queues as long as they are used. An entry that is not used
// for one to two hours is forgotten.
type queueTable struct {
	mu      sync.Mutex
	now     map[queueName]*queueEntry // used in this turn
	before  map[queueName]*queueEntry // used in the one before
	turnsAt time.Time
}

const queueTurn = time.Hour

func (t *queueTable) get(n queueName) *queueEntry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.After(t.turnsAt) {
		t.before, t.now, t.turnsAt = t.now, map[queueName]*queueEntry{}, now.Add(queueTurn)
	}
	e := t.now[n]
	if e == nil {
		if e = t.before[n]; e == nil {
			e = &queueEntry{}
		}
		t.now[n] = e
	}
	return e
}

// partitionsOf returns a queue's entry with its counts, read from its row when they
// are not known. create makes the queue if it is not there and may be made.
func (q *Queues) partitionsOf(ctx context.Context, namespace, queue string, create bool) (*queueEntry, *v1.PartitionCounts, error) {
	e := q.table.get(queueName{namespace, queue})
	if c := e.counts.Load(); c != nil {
		return e, c, nil
	}
	row, err := q.getQueue(ctx, namespace, queue)
	if reason.Of(err) == reason.QueueNotFound && create && q.autoCreate {
		row, err = q.createQueue(ctx, namespace, queue, nil)
		if reason.Of(err) == reason.QueueAlreadyExists {
			row, err = q.getQueue(ctx, namespace, queue)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	c := rowCounts(row)
	e.counts.Store(c)
	return e, c, nil
}

// forgetCounts makes the next call look the counts up.
func (q *Queues) forgetCounts(namespace, queue string) {
	q.table.get(queueName{namespace, queue}).counts.Store(nil)
}

// learn takes over what an answer says about the counts.
func (e *queueEntry) learn(c *v1.PartitionCounts) {
	if c != nil && plausible(c) {
		e.counts.Store(c)
	}
}

// WritePartition is the partition, of n, to which a task goes.
func WritePartition(id [16]byte, n int32) int32 { return routing.Uniform(n, routing.TaskBits(id)) }

// pollCounts are the outstanding polls of this process by partition.
type pollCounts struct {
	mu   sync.Mutex
	n    []int32
	next int32 // of those with as few polls, the one whose turn it is
}

// begin chooses the partition, of n, with the fewest polls and counts a poll there until
// end. Those with as few take turns, so that all partitions are polled as often: with
// chance instead, the ages of their backlogs would drift apart.
func (c *pollCounts) begin(n int32) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.next = rand.Int32N(n) // processes start at different places
	}
	for len(c.n) < int(n) {
		c.n = append(c.n, 0)
	}
	best := routing.Fewest(c.n[:n], c.next%n)
	c.n[best]++
	c.next = (best + 1) % n
	return best
}

func (c *pollCounts) end(p int32) {
	c.mu.Lock()
	c.n[p]--
	c.mu.Unlock()
}
