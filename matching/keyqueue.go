package matching

import "container/heap"

// keyQueue holds the tasks of one fairness key at one priority. Fresh ones are in a
// ring in the order of their places; those that came due are in a heap. The next is
// the one that has been ready longer.
type keyQueue struct {
	key    string
	level  uint8
	ring   []*task
	head   int
	count  int
	due    dueHeap
	fresh  int // live ones
	served uint64
	// In the lane's heap at pos, by next and nextSeq; or set aside at bpos, until then.
	pos, bpos int
	next      uint64
	nextSeq   uint64
	until     int64
	weight    float64
	bucket    *bucket
	rated     uint64 // the rates that bucket goes by
	// Fresh tasks of the key from hole on are not here though their places have
	// been read.
	holed bool
	hole  place
}

// insert puts a fresh task in its place in the ring, nearly always the last.
func (k *keyQueue) insert(t *task) {
	if k.count == len(k.ring) {
		grown := make([]*task, max(4, 2*len(k.ring)))
		for i := range k.count {
			grown[i] = k.at(i)
		}
		k.ring, k.head = grown, 0
	}
	i, p := k.count, t.place()
	for k.count++; i > 0 && p.before(k.at(i-1).place()); i-- {
		k.set(i, k.at(i-1))
	}
	k.set(i, t)
}

// at and set use that the ring's length is a power of two.
func (k *keyQueue) at(i int) *task     { return k.ring[(k.head+i)&(len(k.ring)-1)] }
func (k *keyQueue) set(i int, t *task) { k.ring[(k.head+i)&(len(k.ring)-1)] = t }

func (k *keyQueue) dropFirst() {
	k.ring[k.head] = nil
	k.head = (k.head + 1) & (len(k.ring) - 1)
	if k.count--; k.count == 0 && len(k.ring) > 64 {
		k.ring, k.head = nil, 0
	}
}

func (k *keyQueue) dropLast() {
	k.count--
	k.set(k.count, nil)
}

// first is the fresh task at the head of the ring, or nil.
func (k *keyQueue) first() *task {
	if k.count == 0 {
		return nil
	}
	if t := k.ring[k.head]; !t.gone {
		return t
	}
	return k.firstLive()
}

func (k *keyQueue) firstLive() *task {
	for k.count > 0 && k.at(0).gone {
		k.dropFirst()
	}
	if k.count == 0 {
		return nil
	}
	return k.at(0)
}

// peek is the key's next task, or nil.
func (k *keyQueue) peek() *task {
	f := k.first()
	if len(k.due) == 0 {
		return f
	}
	return k.earlier(f)
}

// earlier is the one of f and the first task that came due which has been ready longer.
func (k *keyQueue) earlier(f *task) *task {
	for len(k.due) > 0 && k.due[0].gone {
		heap.Pop(&k.due)
	}
	if len(k.due) == 0 {
		return f
	}
	d := k.due[0]
	if f == nil || d.readyAt < f.readyAt || d.readyAt == f.readyAt && d.seq < f.seq {
		return d
	}
	return f
}

// lastOf is the last fresh task of a key, nil for none.
func (k *keyQueue) lastOf() *task {
	for k.count > 0 && k.at(k.count-1).gone {
		k.dropLast()
	}
	if k.count == 0 {
		return nil
	}
	return k.at(k.count - 1)
}
