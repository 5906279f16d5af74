package storage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of how fast rows are copied.
const (
	// defaultCopyRate is the most that is sent in a second. It leaves room for
	// others even where nothing tells that they need it.
	defaultCopyRate = 90 << 20
	// slowWrite is how long a small write of this replica set may take, and slowMessage how
	// long a message with rows, before copying slows down. Where they always take long, it is
	// slowFactor times the least that one took.
	slowWrite   = 10 * time.Millisecond
	slowMessage = 30 * time.Millisecond
	slowFactor  = 3
	// probeEvery is how often a small write is timed, once probeAfter bytes were copied.
	probeEvery = 10 * time.Millisecond
	probeAfter = 4 << 20
	// maxPause is the longest pause between two messages: the least that is copied is
	// chunkBytes in that time.
	firstPause = time.Millisecond
	maxPause   = 50 * time.Millisecond
)

// pacer says how fast rows are copied to other replica sets, by all who copy at a time: as
// long as writes of the source, and messages to the destinations, are quick, up to a rate;
// when they become slow there are pauses. Its methods may be called from any goroutine.
type pacer struct {
	mu       sync.Mutex
	users    int
	copied   int                // since there was the first user, until it is probeAfter
	enough   chan struct{}      // closed then
	next     time.Time          // when the next message may go
	pause    time.Duration      // between two messages, at least
	leastMsg time.Duration      // that one took
	stop     context.CancelFunc // of the probing
	probing  sync.WaitGroup

	asked     atomic.Int64 // when the write that is timed began, 0 for none; ns
	took      atomic.Int64 // what the last one took, ns
	leastTook atomic.Int64 // and the least that one took
}

// begin adds a user, who calls wait before each message and arrived after it. write is a small
// write, which is timed once a good deal was copied. The returned function ends it; it may be
// called twice.
func (p *pacer) begin(write func(context.Context) error) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users++; p.users == 1 {
		p.copied, p.pause, p.leastMsg = 0, 0, 0
		p.leastTook.Store(0)
		p.took.Store(0)
		enough := make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		p.stop = cancel
		p.enough = enough
		p.probing.Go(func() { p.probe(ctx, enough, write) })
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.users--; p.users == 0 {
			p.stop()
			p.probing.Wait() // it takes no lock
		}
	})
}

// probe times small writes until ctx ends, once enough was copied.
func (p *pacer) probe(ctx context.Context, enough <-chan struct{}, write func(context.Context) error) {
	select {
	case <-enough:
	case <-ctx.Done():
		return
	}
	t := time.NewTicker(probeEvery)
	defer t.Stop()
	for {
		began := time.Now()
		p.asked.Store(began.UnixNano())
		err := write(ctx)
		p.asked.Store(0)
		if err == nil {
			took := int64(time.Since(began))
			if least := p.leastTook.Load(); least == 0 || took < least {
				p.leastTook.Store(took)
			}
			p.took.Store(took)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// writesAreSlow says whether a small write takes too long now.
func (p *pacer) writesAreSlow(now time.Time) bool {
	took := time.Duration(p.took.Load())
	if asked := p.asked.Load(); asked != 0 {
		took = max(took, time.Duration(now.UnixNano()-asked))
	}
	return took > max(slowWrite, slowFactor*time.Duration(p.leastTook.Load()))
}

// wait waits until a message of so many bytes may go, at a rate in bytes per second.
func (p *pacer) wait(ctx context.Context, size int, rate int64) {
	now := time.Now()
	p.mu.Lock()
	if p.copied < probeAfter {
		if p.copied += size; p.copied >= probeAfter {
			close(p.enough)
		}
	}
	at := p.next
	if at.Before(now) {
		at = now
	}
	p.next = at.Add(max(p.pause, time.Duration(size)*time.Second/time.Duration(rate)))
	p.mu.Unlock()
	if at == now {
		return
	}
	t := time.NewTimer(at.Sub(now))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// arrived notes what a message took.
func (p *pacer) arrived(now time.Time, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leastMsg == 0 || took < p.leastMsg {
		p.leastMsg = took
	}
	if p.writesAreSlow(now) || took > max(slowMessage, slowFactor*p.leastMsg) {
		p.pause = min(max(2*p.pause, firstPause), maxPause)
		return
	}
	if p.pause = p.pause * 3 / 4; p.pause < firstPause {
		p.pause = 0
	}
}
