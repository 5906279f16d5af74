package bulkadd

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// Defaults.
const (
	DefaultBatchItems = 1000
	DefaultBatchBytes = 1 << 20
	DefaultInFlight   = 4
)

// Outcome is what became of one item of a batch.
type Outcome struct {
	// AlreadyAdded: an earlier batch had it.
	AlreadyAdded bool
	// Err says why it was refused.
	Err error
}

// Adder sends a stream. Its fields are set before Run; one Adder runs once.
type Adder struct {
	// Send sends one batch and returns an outcome per item, or an error when it
	// is not known what became of the batch. It bounds its own time.
	Send func(ctx context.Context, items []Item) ([]Outcome, error)
	// OnRefused is told of each item that was refused. It may be called by
	// several goroutines at once. Nil is fine.
	OnRefused func(Item, error)
	// BatchItems and BatchBytes limit a batch; an item larger than BatchBytes
	// travels alone. 0 means the default.
	BatchItems, BatchBytes int
	// InFlight is how many batches may be on their way. 1 keeps the order. 0
	// means the default.
	InFlight int

	added, already, refused, unknown, read atomic.Int64

	mu      sync.Mutex
	changed *sync.Cond
	pending []Item
	bytes   int
	ended   bool // nothing more will be read
	stopped bool // nothing more will be sent
	err     error
}

// Summary counts items by what became of them.
type Summary struct {
	// Read counts what was taken from the source, Added what was added now,
	// AlreadyAdded what an earlier batch had added, Refused what was refused,
	// Unknown what was in batches that ended with an error.
	Read, Added, AlreadyAdded, Refused, Unknown int64
}

// Summary returns the counts so far. It may be called at any time.
func (a *Adder) Summary() Summary {
	return Summary{
		Added: a.added.Load(), AlreadyAdded: a.already.Load(), Refused: a.refused.Load(), Unknown: a.unknown.Load(),
		Read: a.read.Load(),
	}
}

// Run sends the whole source and returns when every batch has been answered.
// It ends early, after the batches in flight, with the first error of the
// source or of a batch, or with ctx's error when ctx ends; then a read of the
// source may still be going on in a goroutine that ends with it.
func (a *Adder) Run(ctx context.Context, src Source) error {
	a.changed = sync.NewCond(&a.mu)
	if a.BatchItems <= 0 {
		a.BatchItems = DefaultBatchItems
	}
	if a.BatchBytes <= 0 {
		a.BatchBytes = DefaultBatchBytes
	}
	if a.InFlight <= 0 {
		a.InFlight = DefaultInFlight
	}
	defer context.AfterFunc(ctx, func() { a.stop(ctx.Err()) })()
	go a.fill(src)
	var senders sync.WaitGroup
	for range a.InFlight {
		senders.Go(func() { a.drain(context.WithoutCancel(ctx)) })
	}
	senders.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true // the reader, if it still waits for room, leaves too
	a.changed.Broadcast()
	return a.err
}

// stop ends the run: the first error stays.
func (a *Adder) stop(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
	}
	a.stopped = true
	a.changed.Broadcast()
}

// fill reads the source into pending, never more than two batches ahead.
func (a *Adder) fill(src Source) {
	for {
		item, err := src.Next()
		a.mu.Lock()
		if err != nil {
			// What was read before the error is still sent.
			if a.err == nil && !errors.Is(err, io.EOF) {
				a.err = err
			}
			a.ended = true
			a.changed.Broadcast()
			a.mu.Unlock()
			return
		}
		for !a.stopped && (len(a.pending) >= 2*a.BatchItems || a.bytes >= 2*a.BatchBytes) {
			a.changed.Wait()
		}
		if a.stopped {
			a.mu.Unlock()
			return
		}
		a.pending = append(a.pending, item)
		a.bytes += len(item.Data)
		a.read.Add(1)
		if len(a.pending) == 1 || len(a.pending) == a.BatchItems {
			a.changed.Broadcast()
		}
		a.mu.Unlock()
	}
}

// take waits for pending items and cuts a batch; nil means there are no more.
func (a *Adder) take() []Item {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.stopped && len(a.pending) == 0 && !a.ended {
		a.changed.Wait()
	}
	if a.stopped || len(a.pending) == 0 {
		return nil
	}
	n, size := 0, 0
	for n < len(a.pending) && n < a.BatchItems && (n == 0 || size+len(a.pending[n].Data) <= a.BatchBytes) {
		size += len(a.pending[n].Data)
		n++
	}
	batch := make([]Item, n)
	copy(batch, a.pending)
	rest := copy(a.pending, a.pending[n:])
	clear(a.pending[rest:])
	a.pending = a.pending[:rest]
	a.bytes -= size
	a.changed.Broadcast()
	return batch
}

func (a *Adder) drain(ctx context.Context) {
	for batch := a.take(); batch != nil; batch = a.take() {
		outcomes, err := a.Send(ctx, batch)
		if err == nil && len(outcomes) != len(batch) {
			err = errors.New("the answer does not fit the batch")
		}
		if err != nil {
			a.unknown.Add(int64(len(batch)))
			a.stop(err)
			return
		}
		for i, o := range outcomes {
			switch {
			case o.Err != nil:
				a.refused.Add(1)
				if a.OnRefused != nil {
					a.OnRefused(batch[i], o.Err)
				}
			case o.AlreadyAdded:
				a.already.Add(1)
			default:
				a.added.Add(1)
			}
		}
	}
}
