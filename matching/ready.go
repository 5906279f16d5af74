package matching

import "container/heap"

// task is a ready task in memory.
type task struct {
	seq uint64
	loc location
	// readyAt is its place in line.
	readyAt int64
	// dueAt is the time under which it is in the schedule; 0 for a fresh task.
	dueAt     int64
	attempt   int32 // attempts so far
	lastError string
	body      []byte
	gone      bool // removed while waiting
}

// readyQueue holds ready tasks in order of readyAt. Fresh tasks come in order
// and wait in a ring; tasks that came due wait in a heap. Taking the next one
// looks at the head of both.
type readyQueue struct {
	ring  []*task
	head  int
	count int
	due   dueHeap
	bytes int
	live  int
}

// taskOverhead is about what a task costs in memory besides its body.
const taskOverhead = 160

func (q *readyQueue) len() int { return q.live }

func (q *readyQueue) pushFresh(t *task) {
	if q.count == len(q.ring) {
		grown := make([]*task, max(64, 2*len(q.ring)))
		for i := range q.count {
			grown[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.count)%len(q.ring)] = t
	q.count++
	q.bytes += len(t.body) + taskOverhead
	q.live++
}

func (q *readyQueue) pushDue(t *task) {
	heap.Push(&q.due, t)
	q.bytes += len(t.body) + taskOverhead
	q.live++
}

// dueCount is how many of them came due; removed ones may still count.
func (q *readyQueue) dueCount() int { return len(q.due) }

// trim drops removed tasks from both heads.
func (q *readyQueue) trim() {
	for q.count > 0 && q.ring[q.head].gone {
		q.dropHead()
	}
	for len(q.due) > 0 && q.due[0].gone {
		heap.Pop(&q.due)
	}
}

func (q *readyQueue) dropHead() {
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.count--
}

// peek returns the next task, or nil.
func (q *readyQueue) peek() *task {
	q.trim()
	switch {
	case q.count == 0 && len(q.due) == 0:
		return nil
	case q.count == 0:
		return q.due[0]
	case len(q.due) == 0:
		return q.ring[q.head]
	}
	if d := q.due[0]; d.readyAt < q.ring[q.head].readyAt {
		return d
	}
	return q.ring[q.head]
}

// pop removes t, which peek has returned just now.
func (q *readyQueue) pop(t *task) {
	if t.dueAt != 0 {
		heap.Pop(&q.due)
	} else {
		q.dropHead()
	}
	q.bytes -= len(t.body) + taskOverhead
	q.live--
}

// remove takes the task with this sequence number out; nil if it isn't here.
func (q *readyQueue) remove(seq uint64) *task {
	t := q.find(seq)
	if t == nil {
		return nil
	}
	t.gone = true
	q.bytes -= len(t.body) + taskOverhead
	q.live--
	return t
}

func (q *readyQueue) find(seq uint64) *task {
	// The ring is in order of sequence numbers.
	lo, hi := 0, q.count
	for lo < hi {
		mid := (lo + hi) / 2
		if q.ring[(q.head+mid)%len(q.ring)].seq < seq {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < q.count {
		if t := q.ring[(q.head+lo)%len(q.ring)]; t.seq == seq && !t.gone {
			return t
		}
	}
	for _, t := range q.due {
		if t.seq == seq && !t.gone {
			return t
		}
	}
	return nil
}

// firstFresh is the lowest sequence number of a fresh task.
func (q *readyQueue) firstFresh() (uint64, bool) {
	q.trim()
	if q.count == 0 {
		return 0, false
	}
	return q.ring[q.head].seq, true
}

// oldest is the readyAt of the next task; 0 for none.
func (q *readyQueue) oldest() int64 {
	if t := q.peek(); t != nil {
		return t.readyAt
	}
	return 0
}

type dueHeap []*task

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	if h[i].readyAt != h[j].readyAt {
		return h[i].readyAt < h[j].readyAt
	}
	return h[i].seq < h[j].seq
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)   { *h = append(*h, x.(*task)) }
func (h *dueHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}
