package balance

import (
	"sync"
	"time"
)

// heaps keep nodes sorted by load under one lock: one sorted array per weight
// class for the open nodes and one for the others. Loads change by one, so a node
// moves by one swap, and any node of the least load can be drawn at random; no
// sifting, whatever the size.
type heaps struct {
	b  *Balancer
	mu sync.Mutex
}

// heapPlace is where a node is.
type heapPlace struct {
	in   *sorted // nil: not in the set any more
	pos  int32
	load int32
	up   *heap
}

// heap is one class.
type heap struct {
	h        *heaps
	open     sorted
	notOpen  sorted
	allNodes []entry
}

// sorted holds nodes by load. below[l] is how many have a load of less than l.
type sorted struct {
	nodes []*Node
	below []int32
}

func newHeaps(b *Balancer) *heaps { return &heaps{b: b} }

// rebuild gives every node its place in new distributors and publishes them. The old
// ones are left empty, so that a draw that is late finds nothing.
func (h *heaps) rebuild() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range (*h.b.dist.Load()).entries() {
		e.node.heap.in = nil
		e.node.heap.up.open.nodes, e.node.heap.up.notOpen.nodes = nil, nil
	}
	if len(h.b.nodes) == 0 {
		h.b.store(empty{})
		return
	}
	h.b.store(h.b.byClass(h.distributor))
}

// distributor makes one class. h.mu must be held.
func (h *heaps) distributor(nodes []*Node) distributor {
	d := &heap{h: h, allNodes: make([]entry, len(nodes))}
	for i, n := range nodes {
		d.allNodes[i] = h.b.newEntry(n, n.weight)
		n.heap.up = d
		d.side(n).insert(n)
	}
	return d
}

func (d *heap) side(n *Node) *sorted {
	if n.Status() == Open {
		return &d.open
	}
	return &d.notOpen
}

func (d *heap) entries() []entry { return d.allNodes }

// draw also counts the request.
func (d *heap) draw(now time.Duration) *Node {
	bits := d.h.b.config.Rand()
	d.h.mu.Lock()
	s := &d.open
	if len(s.nodes) == 0 {
		s = &d.notOpen
	}
	if len(s.nodes) == 0 {
		d.h.mu.Unlock()
		return (*d.h.b.dist.Load()).draw(now)
	}
	least := s.nodes[0].heap.load
	n := s.nodes[uint64(uint32(bits>>32))*uint64(s.below[least+1])>>32]
	s.up(n)
	d.h.mu.Unlock()
	return n
}

func (h *heaps) take(n *Node) {
	h.mu.Lock()
	if n.heap.in != nil {
		n.heap.in.up(n)
	} else {
		n.heap.load++
	}
	h.mu.Unlock()
}

func (h *heaps) release(n *Node) {
	h.mu.Lock()
	if n.heap.in != nil {
		n.heap.in.down(n)
	} else {
		n.heap.load--
	}
	h.mu.Unlock()
}

func (h *heaps) statusChanged(n *Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n.heap.in == nil {
		return
	}
	if to := n.heap.up.side(n); to != n.heap.in {
		n.heap.in.remove(n)
		to.insert(n)
	}
}

// grow makes room for loads up to l.
func (s *sorted) grow(l int32) {
	for int32(len(s.below)) <= l+1 {
		s.below = append(s.below, int32(len(s.nodes)))
	}
}

func (s *sorted) swap(i, j int32) {
	a, b := s.nodes[i], s.nodes[j]
	s.nodes[i], s.nodes[j] = b, a
	a.heap.pos, b.heap.pos = j, i
}

// up counts one more request: the node becomes the last of its load, and then the
// first of the next.
func (s *sorted) up(n *Node) {
	l := n.heap.load
	if int32(len(s.below)) <= l+2 {
		s.grow(l + 1)
	}
	s.below[l+1]--
	if last := s.below[l+1]; last != n.heap.pos {
		s.swap(n.heap.pos, last)
	}
	n.heap.load++
}

func (s *sorted) down(n *Node) {
	l := n.heap.load
	if l == 0 {
		return
	}
	if first := s.below[l]; first != n.heap.pos {
		s.swap(n.heap.pos, first)
	}
	s.below[l]++
	n.heap.load--
}

// insert puts a node in by its load, with one swap per load class above it.
func (s *sorted) insert(n *Node) {
	load := n.heap.load
	s.grow(load)
	n.heap.in, n.heap.pos = s, int32(len(s.nodes))
	s.nodes = append(s.nodes, n)
	for l := int32(len(s.below)) - 1; l > load; l-- {
		// The first node of load l goes to the end; the new one takes its place.
		if first := s.below[l]; first != n.heap.pos {
			s.swap(n.heap.pos, first)
		}
		s.below[l]++
	}
}

// remove is insert backwards.
func (s *sorted) remove(n *Node) {
	for l := n.heap.load + 1; l < int32(len(s.below)); l++ {
		s.below[l]--
		if last := s.below[l]; last != n.heap.pos {
			s.swap(n.heap.pos, last)
		}
	}
	s.nodes = s.nodes[:len(s.nodes)-1]
	n.heap.in = nil
}
