package router

import (
	"sync"

	"github.com/switchyard-dev/switchyard/shard"
)

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
	waiting int  // under the lock of queues, as
	led     bool // somebody asks now and then on behalf of all
}

// queues is the calls that wait, by bucket.
type queues struct {
	mu sync.Mutex
	m  map[shard.BucketID]*queue
}

// place is a call's place in a queue. Its zero value is none.
type place struct {
	q     *queue
	leads bool
}

// enter joins a bucket's queue, or stays in it, and returns a channel that is closed at the next
// news. Whoever finds nobody leading leads.
func (q *queues) enter(p *place, b shard.BucketID) (news <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.q == nil {
		if p.q = q.m[b]; p.q == nil {
			if q.m == nil {
				q.m = map[shard.BucketID]*queue{}
			}
			p.q = new(queue)
			q.m[b] = p.q
		}
		p.q.waiting++
	}
	if !p.q.led {
		p.q.led, p.leads = true, true
	}
	return p.q.bell.wait()
}

// leave leaves a bucket's queue. When the one who led leaves, all try, and another leads.
func (q *queues) leave(p *place, b shard.BucketID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.q == nil {
		return
	}
	if p.q.waiting--; p.q.waiting == 0 {
		delete(q.m, b)
	}
	if p.leads {
		p.q.led = false
		p.q.bell.ring()
	}
	*p = place{}
}

// ring wakes those who wait for a bucket.
func (q *queues) ring(b shard.BucketID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.m[b]; e != nil {
		e.bell.ring()
	}
}
