package matching

import (
	"container/heap"
	"math/bits"
	"slices"
)

// task is a ready task in memory.
type task struct {
	seq uint64
	loc location
	// readyAt is its place in line among those of its key.
	readyAt int64
	// dueAt is the time under which it is in the schedule; 0 for a fresh task.
	dueAt     int64
	attempt   int32 // attempts so far
	gone      bool  // removed while waiting
	inc       uint32
	lastError string
	body      []byte
	batch     uint64 // the one that adds it; 0 if it was read
	queue     *keyQueue
}

func (t *task) place() place { return t.loc.place(t.seq) }

// taskOverhead is about what a task costs in memory besides its body.
const taskOverhead = 192

func (t *task) size() int { return len(t.body) + taskOverhead }

// readyQueue holds ready tasks: for each priority the fairness keys that have some, in
// order of virtual time, and for each key its tasks in order. Taking the next one
// costs the logarithm of the number of keys.
//
// Fairness is self-clocked fair queueing (Golestani, 1994): each task has a finish
// tag, its pass, that is one increment behind the later of its key's last one and the
// virtual time; the smallest goes next, and the virtual time is the pass of the task
// that went last.
//
// A key whose rate is used up is set aside until it has a token, so that nothing is
// looked at twice while it waits.
type readyQueue struct {
	lanes   [maxLevel + 1]lane
	busy    uint8 // levels with keys that are not set aside
	blocked blockedHeap
	rates   rates
	limit   *bucket            // of the queue; nil for none
	buckets map[string]*bucket // of keys, over all levels
	due     map[uint64]*task
	// holed are the keys of which some tasks are only in the store, and hungry those
	// of them that could use more than are here.
	holed, hungry map[*keyQueue]struct{}

	now, since int64
	fresh      int
	bytes      int // of fresh tasks
	dueBytes   int
	last       place // no fresh task here stands behind it
	keys       int   // key queues
	pruneAt    int
}

// lane is one priority.
type lane struct {
	base  uint64 // virtual time
	plain *keyQueue
	keys  map[string]*keyQueue
	heap  laneHeap
	due   int
}

func (q *readyQueue) init(now int64) {
	q.now, q.since = now, now
	q.due = map[uint64]*task{}
	q.pruneAt = 1024
	q.rates.version = 1
}

// len is how many tasks are here.
func (q *readyQueue) len() int { return q.fresh + len(q.due) }

func (q *readyQueue) dueCount() int { return len(q.due) }

// queueOf finds or makes the queue of a key.
func (q *readyQueue) queueOf(level uint8, key []byte) *keyQueue {
	l := &q.lanes[level]
	if len(key) == 0 {
		if l.plain == nil {
			l.plain = &keyQueue{level: level, pos: -1, bpos: -1}
			q.keys++
		}
		return l.plain
	}
	k := l.keys[string(key)]
	if k == nil {
		if q.keys >= q.pruneAt {
			q.prune()
		}
		if l.keys == nil {
			l.keys = map[string]*keyQueue{}
		}
		k = &keyQueue{key: string(key), level: level, pos: -1, bpos: -1}
		l.keys[k.key] = k
		q.keys++
	}
	return k
}

// each runs fn for all key queues of a level.
func (l *lane) each(fn func(*keyQueue)) {
	if l.plain != nil {
		fn(l.plain)
	}
	for _, k := range l.keys {
		fn(k)
	}
}

// prune drops queues and buckets that hold nothing that matters.
func (q *readyQueue) prune() {
	for i := range q.lanes {
		l := &q.lanes[i]
		for key, k := range l.keys {
			if k.pos < 0 && k.bpos < 0 && !k.holed && k.served <= l.base && (k.bucket == nil || k.bucket.full(q.now)) {
				delete(l.keys, key)
				q.keys--
			}
		}
	}
	for key, b := range q.buckets {
		used := false
		for i := range q.lanes {
			l := &q.lanes[i]
			used = used || l.keys[key] != nil || key == "" && l.plain != nil
		}
		if !used && b.full(q.now) {
			delete(q.buckets, key)
		}
	}
	q.pruneAt = max(1024, 2*q.keys)
}

// pushFresh takes a fresh task that share has seen.
func (q *readyQueue) pushFresh(t *task) {
	k := t.queue
	k.insert(t)
	k.fresh++
	q.fresh++
	q.bytes += t.size()
	if k.holed {
		q.hunger(k)
	}
	if p := t.place(); q.last.before(p) {
		q.last = p
	}
	q.refresh(k)
}

// pushDue takes a task that came due.
func (q *readyQueue) pushDue(t *task) {
	level, key, weight := bodyShare(t.body)
	k := q.share(t, level, key, weight)
	heap.Push(&k.due, t)
	q.due[t.seq] = t
	q.lanes[k.level].due++
	q.dueBytes += t.size()
	q.refresh(k)
}

// share says to what key a task belongs and what it costs.
func (q *readyQueue) share(t *task, level uint8, key []byte, weight float32) *keyQueue {
	k := q.queueOf(level, key)
	w := float64(weight)
	if w != 1 || len(q.rates.keys) > 0 {
		w = q.rates.weight(k.key, weight)
	}
	if w != k.weight {
		k.weight, k.rated = w, 0
	}
	t.queue, t.inc = k, unitPass
	if w != 1 {
		t.inc = uint32(increment(w))
	}
	return k
}

// refresh puts a key where its next task belongs.
func (q *readyQueue) refresh(k *keyQueue) {
	t := k.peek()
	l := &q.lanes[k.level]
	switch {
	case t == nil:
		if k.pos >= 0 {
			heap.Remove(&l.heap, k.pos)
			q.noteBusy(k.level)
		}
		if k.bpos >= 0 {
			heap.Remove(&q.blocked, k.bpos)
		}
		return
	case k.bpos >= 0:
		return
	case t.dueAt != 0:
		k.next = max(k.served, l.base) + uint64(t.inc)
	default:
		k.next = max(t.loc.pass, k.served+uint64(t.inc))
	}
	k.nextSeq = t.seq
	switch {
	case k.pos >= 0 && len(l.heap) == 1:
		return
	case k.pos >= 0:
		heap.Fix(&l.heap, k.pos)
		return
	}
	heap.Push(&l.heap, k)
	q.busy |= 1 << k.level
}

func (q *readyQueue) noteBusy(level uint8) {
	if len(q.lanes[level].heap) == 0 {
		q.busy &^= 1 << level
	}
}

// peek returns the next task that may go, or nil.
func (q *readyQueue) peek() *task {
	if q.limit != nil {
		if ok, _ := q.limit.ready(q.now); !ok {
			return nil
		}
	}
	for len(q.blocked) > 0 && q.blocked[0].until <= q.now {
		q.unblock(q.blocked[0])
	}
	for q.busy != 0 {
		level := uint8(bits.TrailingZeros8(q.busy))
		k := q.lanes[level].heap[0]
		if b := q.bucketOf(k); b != nil {
			if ok, at := b.ready(q.now); !ok {
				k.until = at
				heap.Remove(&q.lanes[level].heap, k.pos)
				q.noteBusy(level)
				heap.Push(&q.blocked, k)
				continue
			}
		}
		return k.peek()
	}
	return nil
}

// unblock lets a key take part again, from the virtual time of now on: what it
// could not use while it was set aside is not made up for.
func (q *readyQueue) unblock(k *keyQueue) {
	heap.Remove(&q.blocked, k.bpos)
	k.served = max(k.served, q.lanes[k.level].base)
	q.refresh(k)
}

// limitedUntil is when rates let out more than now; ok is false when they don't stand
// in the way.
func (q *readyQueue) limitedUntil() (at int64, ok bool) {
	if q.len() == 0 {
		return 0, false
	}
	if q.limit != nil {
		if ready, at := q.limit.ready(q.now); !ready {
			return at, true
		}
	}
	if len(q.blocked) > 0 {
		return q.blocked[0].until, true
	}
	return 0, false
}

// pop removes t, which peek has returned just now, and with served charges its key.
func (q *readyQueue) pop(t *task, served bool) {
	k := t.queue
	if served {
		l := &q.lanes[k.level]
		l.base = max(l.base, k.next)
		k.served = k.next
		if q.limit != nil {
			q.limit.take()
		}
		if k.bucket != nil {
			k.bucket.take()
		}
	}
	if t.dueAt != 0 {
		heap.Pop(&k.due)
		q.leftDue(t)
	} else {
		k.dropFirst()
		q.leftFresh(t)
	}
	q.refresh(k)
}

func (q *readyQueue) leftDue(t *task) {
	delete(q.due, t.seq)
	q.lanes[t.queue.level].due--
	q.dueBytes -= t.size()
}

func (q *readyQueue) leftFresh(t *task) {
	t.queue.fresh--
	q.fresh--
	q.bytes -= t.size()
	if t.queue.holed {
		q.hunger(t.queue)
	}
}

// setHole says that from a place on a key's tasks are only in the store.
func (q *readyQueue) setHole(k *keyQueue, p place) {
	if q.holed == nil {
		q.holed, q.hungry = map[*keyQueue]struct{}{}, map[*keyQueue]struct{}{}
	}
	k.holed, k.hole = true, p
	q.holed[k] = struct{}{}
	q.hunger(k)
}

func (q *readyQueue) noHole(k *keyQueue) {
	k.holed = false
	delete(q.holed, k)
	delete(q.hungry, k)
}

// hunger finds out whether a key with a hole could use more tasks.
func (q *readyQueue) hunger(k *keyQueue) {
	if k.fresh < (min(q.room(k), holeRoom)+1)/2 {
		q.hungry[k] = struct{}{}
	} else {
		delete(q.hungry, k)
	}
}

// removeFresh takes a fresh task out; nil if it isn't here.
func (q *readyQueue) removeFresh(p place, key string) *task {
	l := &q.lanes[p.level]
	k := l.plain
	if key != "" {
		k = l.keys[key]
	}
	if k == nil {
		return nil
	}
	lo, hi := 0, k.count
	for lo < hi {
		if mid := (lo + hi) / 2; k.at(mid).place().before(p) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == k.count {
		return nil
	}
	t := k.at(lo)
	if t.seq != p.seq || t.gone {
		return nil
	}
	t.gone = true
	q.leftFresh(t)
	q.refresh(k)
	return t
}

// removeDue takes a task that came due out; nil if it isn't here.
func (q *readyQueue) removeDue(seq uint64) *task {
	t := q.due[seq]
	if t == nil {
		return nil
	}
	t.gone = true
	q.leftDue(t)
	q.refresh(t.queue)
	return t
}

// evict removes the fresh tasks at the end until at most so many of so many bytes are
// left, and returns them.
func (q *readyQueue) evict(tasks, bytes int) []*task {
	all := make([]*task, 0, q.fresh)
	for i := range q.lanes {
		q.lanes[i].each(func(k *keyQueue) {
			for n := range k.count {
				if t := k.at(n); !t.gone {
					all = append(all, t)
				}
			}
		})
	}
	slices.SortFunc(all, func(a, b *task) int { return a.place().compare(b.place()) })
	n := len(all)
	for sum := q.bytes; n > 1 && (n > tasks || sum > bytes); n-- {
		sum -= all[n-1].size()
	}
	for _, t := range slices.Backward(all[n:]) {
		q.dropTail(t)
	}
	q.last = place{}
	if n > 0 {
		q.last = all[n-1].place()
	}
	return all[n:]
}

// dropTail removes a task that is the last one of its key.
func (q *readyQueue) dropTail(t *task) {
	k := t.queue
	for k.at(k.count-1) != t { // gone ones
		k.dropLast()
	}
	k.dropLast()
	q.leftFresh(t)
	q.refresh(k)
}

// oldest is the readyAt of the next task that may go; 0 for none.
func (q *readyQueue) oldest() int64 {
	if t := q.peek(); t != nil {
		return t.readyAt
	}
	return 0
}

// waitingSince is the readyAt of the task of a level that has been here longest,
// whether it may go or not; 0 for none.
func (l *lane) waitingSince() (at int64) {
	l.each(func(k *keyQueue) {
		if t := k.peek(); t != nil && (at == 0 || t.readyAt < at) {
			at = t.readyAt
		}
	})
	return at
}
