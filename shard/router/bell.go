package router

import "sync"

// bell wakes those who wait for news. Its zero value is ready.
type bell struct {
	mu sync.Mutex
	ch chan struct{} // nil when nobody waits
}

// wait returns a channel that is closed at the next ring.
func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// queue is the calls that wait for one bucket.
type queue struct {
	bell    bell
	waiting int // under the lock of queues
}

// queues is the calls that wait, by bucket.
type queues struct {
	mu sync.Mutex
	m  map[uint32]*queue
}

// enter joins a bucket's queue. It returns a channel that is closed at the next news, and whether
// the caller is the first: who comes first asks now and then on behalf of all.
func (q *queues) enter(bucket uint32) (news <-chan struct{}, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.m[bucket]
	if e == nil {
		if q.m == nil {
			q.m = map[uint32]*queue{}
		}
		e = new(queue)
		q.m[bucket] = e
	}
	e.waiting++
	return e.bell.wait(), e.waiting == 1
}

// leave leaves a bucket's queue.
func (q *queues) leave(bucket uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.m[bucket]
	if e.waiting--; e.waiting == 0 {
		delete(q.m, bucket)
	}
}

// ring wakes those who wait for a bucket between first and last.
func (q *queues) ring(first, last uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.m) == 0 {
		return
	}
	if int(last-first) < len(q.m) {
		for b := first; b <= last; b++ {
			if e := q.m[b]; e != nil {
				e.bell.ring()
			}
		}
		return
	}
	for b, e := range q.m {
		if b >= first && b <= last {
			e.bell.ring()
		}
	}
}
