package storage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// turnTime is how long a chunk waits for those before it.
const turnTime = 2 * time.Second

// arrivals lets the chunks of a bucket into the log in the order of their numbers, however
// their messages overtake each other. What it knows is in memory only: a new master begins
// with what has been taken.
type arrivals struct {
	mu      sync.Mutex
	buckets map[shard.BucketID]*arrival
}

// arrival is the place in line of one transfer.
type arrival struct {
	transfer uint64
	next     uint64        // chunk that is let in next
	moved    chan struct{} // closed when next changes; nil when nobody waits
}

func (a *arrival) advance(to uint64) {
	a.next = to
	if a.moved != nil {
		close(a.moved)
		a.moved = nil
	}
}

// enter waits until it is a chunk's turn and calls let, which must be quick. One that was let in
// before, or is of a transfer that is over, is let in at once: the log refuses it. taken is what
// has been applied.
func (as *arrivals) enter(ctx context.Context, b shard.BucketID, transfer, seq uint64, taken func() shard.Row, let func()) error {
	deadline := time.NewTimer(turnTime)
	defer deadline.Stop()
	as.mu.Lock()
	for {
		a := as.buckets[b]
		if a == nil || a.transfer < transfer {
			a = &arrival{transfer: transfer}
			if row := taken(); row.Transfer == transfer {
				a.next = row.Taken.Chunks
			}
			if as.buckets == nil {
				as.buckets = map[shard.BucketID]*arrival{}
			}
			if old := as.buckets[b]; old != nil {
				old.advance(old.next) // whoever waits there is over
			}
			as.buckets[b] = a
		}
		if a.transfer > transfer || seq <= a.next {
			let()
			if a.transfer == transfer && seq == a.next {
				a.advance(seq + 1)
			}
			as.mu.Unlock()
			return nil
		}
		if a.moved == nil {
			a.moved = make(chan struct{})
		}
		moved := a.moved
		as.mu.Unlock()
		select {
		case <-moved:
		case <-deadline.C:
			return early(b, transfer, seq)
		case <-ctx.Done():
			return ctx.Err()
		}
		as.mu.Lock()
	}
}

// early is the error of a chunk that came before those before it. It may be sent again.
func early(b shard.BucketID, transfer, seq uint64) error {
	return &shard.Error{Code: shard.Overloaded, Bucket: b, Reason: fmt.Sprintf("chunk %d of transfer %d came, and one before it did not", seq, transfer)}
}

// failed notes that a chunk that was let in is not in the log.
func (as *arrivals) failed(b shard.BucketID, transfer, seq uint64) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.buckets[b]; a != nil && a.transfer == transfer && a.next > seq {
		a.next = seq
	}
}

// forget drops those that keep says are not needed any more.
func (as *arrivals) forget(keep func(shard.BucketID) bool) {
	as.mu.Lock()
	defer as.mu.Unlock()
	for b, a := range as.buckets {
		if !keep(b) {
			a.advance(a.next)
			delete(as.buckets, b)
		}
	}
}
