package balance

import (
	"sync"
	"time"
)

// Connections does what a balancer wants done to connections. Its methods must
// return at once and must not call the balancer from within; they may call
// Node.Connected later, from another goroutine.
type Connections interface {
	// Connect asks for a connection to be opened, so that the next request need not
	// wait for it: the endpoint came into the aperture, or was unreachable and its
	// time is up. Node.Connected must be called with how it went.
	Connect(n *Node)
	// Release says that the endpoint is outside of the aperture and has been idle
	// for long; its connection can be closed. It stays in the set and may be picked
	// again.
	Release(n *Node)
}

// Connected is the answer to Connections.Connect. It may also be called for
// connections that nobody asked for.
func (n *Node) Connected(ok bool) {
	if !n.b.judges {
		return
	}
	o := Success
	if !ok {
		o = Unreachable
	}
	n.judge(o, n.b.config.Clock())
}

// warm asks for connections to what came into the aperture. b.mu must be held.
func (b *Balancer) warm(a Aperture) {
	if b.config.Connections == nil {
		return
	}
	before := b.inWindow
	list := (*b.dist.Load()).entries()
	b.inWindow = make(map[*Node]bool, len(list))
	for i := range list {
		n := list[i].node
		b.inWindow[n] = true
		if !a.Lazy && !before[n] {
			b.config.Connections.Connect(n)
		}
	}
}

// expire releases what is outside of the aperture and idle. b.mu must be held.
func (b *Balancer) expire(a Aperture, now time.Duration) {
	list := (*b.dist.Load()).entries()
	inside := make(map[*Node]bool, len(list))
	for i := range list {
		inside[list[i].node] = true
	}
	for _, n := range b.nodes {
		used := n.lastUsed.Load()
		if inside[n] || used == 0 || n.Load() > 0 || now-time.Duration(used) < a.Idle {
			continue
		}
		if n.lastUsed.CompareAndSwap(used, 0) {
			b.count.expired.Add(1)
			delete(b.inWindow, n)
			b.config.Connections.Release(n)
		}
	}
}

// Queue bounds how many things are under way at once. Share one in a process
// among all implementations of Connections, so that a rebuilt aperture does not
// open all its connections in the same moment.
type Queue struct {
	mu      sync.Mutex
	limit   int
	running int
	waiting []func(done func())
}

// NewQueue makes a queue with a limit; below 1 means 2.
func NewQueue(limit int) *Queue {
	if limit < 1 {
		limit = 2
	}
	return &Queue{limit: limit}
}

// Do calls start when there is room: at once, or within the done of another. start
// must return soon and see to it that done is called once, at the end of what it
// started.
func (q *Queue) Do(start func(done func())) {
	q.mu.Lock()
	if q.running >= q.limit {
		q.waiting = append(q.waiting, start)
		q.mu.Unlock()
		return
	}
	q.running++
	q.mu.Unlock()
	start(q.doneOnce())
}

func (q *Queue) doneOnce() func() {
	var once sync.Once
	return func() { once.Do(q.finished) }
}

func (q *Queue) finished() {
	q.mu.Lock()
	if len(q.waiting) == 0 {
		q.running--
		q.mu.Unlock()
		return
	}
	start := q.waiting[0]
	q.waiting = q.waiting[1:]
	q.mu.Unlock()
	start(q.doneOnce())
}

// Waiting returns how many have not been started.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}
