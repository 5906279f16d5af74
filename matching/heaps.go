package matching

// The heaps of container/heap that a partition keeps. Those whose elements leave from the
// middle note in each where it stands.

type laneHeap []*keyQueue

func (h laneHeap) Len() int { return len(h) }
func (h laneHeap) Less(i, j int) bool {
	if h[i].next != h[j].next {
		return h[i].next < h[j].next
	}
	return h[i].nextSeq < h[j].nextSeq
}
func (h laneHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}
func (h *laneHeap) Push(x any) {
	k := x.(*keyQueue)
	k.pos = len(*h)
	*h = append(*h, k)
}
func (h *laneHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	k.pos = -1
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return k
}

type blockedHeap []*keyQueue

func (h blockedHeap) Len() int           { return len(h) }
func (h blockedHeap) Less(i, j int) bool { return h[i].until < h[j].until }
func (h blockedHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].bpos, h[j].bpos = i, j
}
func (h *blockedHeap) Push(x any) {
	k := x.(*keyQueue)
	k.bpos = len(*h)
	*h = append(*h, k)
}
func (h *blockedHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	k.bpos = -1
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return k
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

type leaseHeap []*heldLease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].deadline < h[j].deadline }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}
func (h *leaseHeap) Push(x any) {
	l := x.(*heldLease)
	l.pos = len(*h)
	*h = append(*h, l)
}
func (h *leaseHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}
