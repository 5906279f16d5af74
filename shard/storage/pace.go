package storage

import (
	"context"
	"sync/atomic"
	"time"
)

// Limits of how fast rows are copied.
const (
	// defaultCopyRate is the most that one list of buckets sends in a second. It leaves room for
	// others even where nothing tells that they need it.
	defaultCopyRate = 160 << 20
	// slowWrite is how long a small write of this replica set may take, and slowMessage how
	// long a message with rows, before copying slows down. Where they always take long, it is
	// slowFactor times what they took at the beginning.
	slowWrite   = 8 * time.Millisecond
	slowMessage = 40 * time.Millisecond
	slowFactor  = 3
	// probeEvery is how often a small write is timed, once probeAfter bytes were copied.
	probeEvery = 10 * time.Millisecond
	probeAfter = 4 << 20
	// maxPause is the longest pause between two messages: the least that is copied is
	// chunkBytes in that time.
	firstPause = time.Millisecond
	maxPause   = 25 * time.Millisecond
)

// pacer says how fast a list of buckets is copied: as long as writes of the source, and
// messages to the destination, are quick, up to a rate; when they become slow there
// are pauses. It is for one goroutine, but for the probing.
type pacer struct {
	rate     int64 // bytes per second
	pause    time.Duration
	started  chan struct{} // closed once so much was copied that it matters
	copied   int
	hurry    bool      // no pauses any more
	next     time.Time // when the next message may go
	firstMsg time.Duration

	asked     atomic.Int64 // when the write that is timed began, 0 for none; ns
	took      atomic.Int64 // what the last one took, ns
	firstTook atomic.Int64 // and the first
}

func newPacer(rate int64) pacer { return pacer{rate: rate, started: make(chan struct{})} }

// probe times small writes until ctx ends, once a good deal was copied.
func (p *pacer) probe(ctx context.Context, write func(context.Context) error) {
	select {
	case <-p.started:
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
			p.firstTook.CompareAndSwap(0, took)
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
	return took > max(slowWrite, slowFactor*time.Duration(p.firstTook.Load()))
}

// wait waits until a message of so many bytes may go.
func (p *pacer) wait(ctx context.Context, size int) {
	if p.hurry {
		return
	}
	now := time.Now()
	if d := p.next.Sub(now); d > 0 {
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		now = time.Now()
	}
	if p.copied < probeAfter {
		if p.copied += size; p.copied >= probeAfter {
			close(p.started)
		}
	}
	p.next = now.Add(max(p.pause, time.Duration(size)*time.Second/time.Duration(p.rate)))
}

// arrived notes what a message took.
func (p *pacer) arrived(now time.Time, took time.Duration) {
	if p.firstMsg == 0 {
		p.firstMsg = took
	}
	if p.writesAreSlow(now) || took > max(slowMessage, slowFactor*p.firstMsg) {
		p.pause = min(max(2*p.pause, firstPause), maxPause)
		return
	}
	if p.pause = p.pause * 3 / 4; p.pause < firstPause {
		p.pause = 0
	}
}
