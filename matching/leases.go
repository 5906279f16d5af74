package matching

import "container/heap"

// heldLease is a lease in memory.
type heldLease struct {
	seq uint64
	pos int // in the heap
	lease
}

// leaseTable holds all leases of a partition, by sequence number and by deadline.
type leaseTable struct {
	bySeq map[uint64]*heldLease
	heap  leaseHeap
}

func (t *leaseTable) init() { t.bySeq = map[uint64]*heldLease{} }

func (t *leaseTable) len() int { return len(t.heap) }

func (t *leaseTable) add(l *heldLease) {
	if _, dup := t.bySeq[l.seq]; dup {
		panic("matching: task leased twice")
	}
	t.bySeq[l.seq] = l
	heap.Push(&t.heap, l)
}

func (t *leaseTable) remove(l *heldLease) {
	delete(t.bySeq, l.seq)
	heap.Remove(&t.heap, l.pos)
}

// moved restores the order after l's deadline changed.
func (t *leaseTable) moved(l *heldLease) { heap.Fix(&t.heap, l.pos) }

// first is the earliest deadline.
func (t *leaseTable) first() (int64, bool) {
	if len(t.heap) == 0 {
		return 0, false
	}
	return t.heap[0].deadline, true
}
