package matching

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching/routing"
	"github.com/switchyard-dev/switchyard/matching/scaling"
)

// queueName is a queue's key in memory.
type queueName struct{ namespace, queue string }

// queueEntry is what is remembered of a queue to choose partitions.
type queueEntry struct {
	known     atomic.Pointer[known] // nil when nothing is
	polls     pollCounts
	callPolls pollCounts
	random    *routing.Sequence // for polls by backlog
}

// known is what this process knows of a queue's partitions. It does not change.
type known struct {
	counts *v1.PartitionCounts
	header *v1.PartitionCounts // as requests carry it
	// backlogs are those of the partitions that are polled, nil when they are not known;
	// polls and room are the weights that follow from them.
	backlogs           []int64
	polls, bare, room  routing.Weights
	byBacklog, hasRoom bool
}

func knownCounts(c *v1.PartitionCounts) *known {
	k := &known{counts: c, header: &v1.PartitionCounts{
		Read: c.GetRead(), Write: c.GetWrite(), Version: c.GetVersion(), BacklogCap: c.GetBacklogCap(), BacklogVersion: c.GetBacklogVersion(),
	}}
	if c.GetBacklogCap() <= 0 || len(c.GetBacklog()) < int(c.GetRead()) {
		return k
	}
	k.backlogs = make([]int64, c.GetRead())
	for p := range k.backlogs {
		k.backlogs[p] = scaling.Backlog(c.GetBacklog()[p])
	}
	k.polls, k.bare, k.byBacklog = routing.PollWeights(c.GetRead(), k.backlogs, c.GetBacklogCap())
	k.room, k.hasRoom = routing.RoomWeights(c.GetWrite(), k.backlogs, c.GetBacklogCap())
	return k
}

// asHeader is what requests carry; nothing for those that are not about counts.
func (k *known) asHeader() *v1.PartitionCounts {
	if k == nil {
		return nil
	}
	return k.header
}

// writeTo is the partition to which a task goes.
func (k *known) writeTo(id taskID) int32 {
	if k.hasRoom {
		return k.room.Choose(routing.TaskBits(id))
	}
	return WritePartition(id, k.counts.GetWrite())
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
			e = &queueEntry{random: routing.NewSequence(rand.Uint64())}
		}
		t.now[n] = e
	}
	return e
}

// partitionsOf returns a queue's entry with its counts, read from its row when they
// are not known. create makes the queue if it is not there and may be made.
func (q *Queues) partitionsOf(ctx context.Context, namespace, queue string, create bool) (*queueEntry, *known, error) {
	e := q.table.get(queueName{namespace, queue})
	if k := e.known.Load(); k != nil {
		return e, k, nil
	}
	if q.router == nil {
		c, err := q.rootCounts(ctx, namespace, queue, true)
		if err != nil {
			return nil, nil, err
		}
		k := knownCounts(c)
		e.known.Store(k)
		return e, k, nil
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
	if c.GetBacklogCap() > 0 { // the row's backlogs are those of the last change
		if newer, err := q.rootCounts(ctx, namespace, queue, false); err == nil && plausible(newer) && !olderCounts(newer, c) {
			c = newer
		}
	}
	k := knownCounts(c)
	e.known.Store(k)
	return e, k, nil
}

// rootTime bounds the question for a root's counts when they are only to be newer.
const rootTime = 2 * time.Second

// rootCounts asks a queue's root for the counts: if it is in memory, or else having it
// loaded.
func (q *Queues) rootCounts(ctx context.Context, namespace, queue string, load bool) (c *v1.PartitionCounts, err error) {
	id := root(namespace, queue)
	ask := func(peer v1.MatchingServiceServer) error {
		resp, err := peer.DescribePartition(ctx, &v1.DescribePartitionRequest{Namespace: namespace, Queue: queue, OnlyIfLoaded: !load})
		c = resp.GetCounts()
		return err
	}
	if load {
		err = q.at(ctx, id, ask)
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rootTime)
		defer cancel()
		var peer v1.MatchingServiceServer
		if peer, _, err = q.peers.Owner(id); err == nil {
			err = ask(peer)
		}
	}
	if err == nil && (!plausible(c) || c.GetRead() > MaxPartitions) {
		err = reason.New(codes.Unavailable, reason.NotReady, map[string]string{"queue": queue}, "the root of queue %q does not know how many partitions there are", queue)
	}
	return c, err
}

// forgetCounts makes the next call look the counts up.
func (q *Queues) forgetCounts(namespace, queue string) {
	q.table.get(queueName{namespace, queue}).known.Store(nil)
}

// learn takes over what an answer says about the counts, unless something newer is known.
func (e *queueEntry) learn(c *v1.PartitionCounts) {
	if !plausible(c) || c.GetRead() > MaxPartitions {
		return
	}
	var fresh *known
	for {
		old := e.known.Load()
		if old != nil && (olderCounts(c, old.counts) || sameCounts(c, old.counts)) {
			return
		}
		if fresh == nil {
			fresh = knownCounts(c)
		}
		if e.known.CompareAndSwap(old, fresh) {
			return
		}
	}
}

// choosePoll chooses where a poll waits next, and for how long: by the backlogs, if they
// are known, else where this process has the fewest polls. The poll counts there until
// e.polls.end.
func (e *queueEntry) choosePoll(k *known, t *pollTurns, left time.Duration) (int32, time.Duration) {
	switch {
	case k.byBacklog:
		by, turn := k.polls, &t.empty
		if t.wasEmpty {
			by = k.bare
		}
		p := by.Choose(e.random.Next())
		e.polls.beginAt(p)
		if t.wasEmpty = k.backlogs[p] == 0; !t.wasEmpty {
			turn = &t.backlog
		}
		*turn++
		return p, routing.PollTurn(k.backlogs[p], *turn-1, left)
	case k.backlogs != nil:
		left = min(left, routing.ChooseAgain) // there may be a backlog by then
	}
	return e.polls.begin(k.counts.GetRead()), left
}

// pollTurns counts how often a poll has waited at partitions with backlog and without.
type pollTurns struct {
	empty, backlog int
	wasEmpty       bool // the last one
}

// WritePartition is the partition, of n, to which a task goes.
func WritePartition(id [16]byte, n int32) int32 { return routing.Uniform(n, routing.TaskBits(id)) }

// pollCounts are the outstanding polls of this process by partition.
type pollCounts struct {
	mu    sync.Mutex
	n     []int32
	begun bool
	next  int32 // of those with as few polls, the one whose turn it is
}

// begin chooses the partition, of n, with the fewest polls and counts a poll there until
// end. Those with as few take turns, so that all partitions are polled as often: with
// chance instead, the ages of their backlogs would drift apart.
func (c *pollCounts) begin(n int32) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		c.begun, c.next = true, rand.Int32N(n) // processes start at different places
	}
	for len(c.n) < int(n) {
		c.n = append(c.n, 0)
	}
	best := routing.Fewest(c.n[:n], c.next%n)
	c.n[best]++
	c.next = (best + 1) % n
	return best
}

// beginAt counts a poll at partition p until end.
func (c *pollCounts) beginAt(p int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.n) <= int(p) {
		c.n = append(c.n, 0)
	}
	c.n[p]++
}

func (c *pollCounts) end(p int32) {
	c.mu.Lock()
	c.n[p]--
	c.mu.Unlock()
}
