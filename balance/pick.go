package balance

import (
	"slices"
	"time"
)

// Pick is an endpoint chosen for one request.
type Pick struct {
	node  *Node
	start time.Duration
}

// Node returns what was chosen.
func (p Pick) Node() *Node { return p.node }

// Value returns the Value of the endpoint that was chosen.
func (p Pick) Value() any { return p.node.endpoint.Value }

// Address returns the address of the endpoint that was chosen.
func (p Pick) Address() string { return p.node.endpoint.Address }

// Pick chooses an endpoint for a request. The caller must call Done on the result
// exactly once, in whatever way the request ends. The error is ErrNoEndpoints or
// ErrClosed. Pick never waits.
func (b *Balancer) Pick() (Pick, error) {
	now := b.beforePick()
	for {
		d := *b.dist.Load()
		n := b.draw(d, now)
		if n == nil {
			return Pick{}, b.none()
		}
		if b.acquire(n, now, true) {
			return Pick{n, now}, nil
		}
	}
}

// PickAvoiding is Pick for a further try of a request: it takes an open endpoint
// that is not in avoid if there is one in reach, and otherwise does what Pick does.
func (b *Balancer) PickAvoiding(avoid []*Node) (Pick, error) {
	if len(avoid) == 0 {
		return b.Pick()
	}
	now := b.beforePick()
	d := *b.dist.Load()
	for range b.effort {
		if b.heaps != nil {
			break // its draws count already and would give the same again
		}
		n := d.draw(now)
		if n == nil {
			return Pick{}, b.none()
		}
		if wordOpen(n.word.Load()) && !slices.Contains(avoid, n) && b.acquire(n, now, false) {
			return Pick{n, now}, nil
		}
	}
	// Draws may meet the same few again and again; now look at all.
	entries := d.entries()
	if len(entries) > 0 {
		var best *entry
		var bestScore float64
		start := int(b.config.Rand()>>32) % len(entries)
		for i := range entries {
			e := &entries[(start+i)%len(entries)]
			w := e.node.word.Load()
			if !wordOpen(w) || slices.Contains(avoid, e.node) {
				continue
			}
			if s := b.score(e, w, now); best == nil || s < bestScore {
				best, bestScore = e, s
			}
		}
		if best != nil && b.acquire(best.node, now, false) {
			return Pick{best.node, now}, nil
		}
	}
	return b.Pick()
}

func (b *Balancer) none() error {
	if b.closed.Load() {
		return ErrClosed
	}
	return ErrNoEndpoints
}

// beforePick reads the clock if anything needs it, and ends sentences that are over.
func (b *Balancer) beforePick() time.Duration {
	wake := b.nextWake.Load()
	if wake == never && !b.timedPick {
		return 0
	}
	now := b.config.Clock()
	if int64(now) >= wake {
		b.wakeNodes(now)
	}
	return now
}

// draw makes up to effort draws for an open node. If there is none it panics: one
// more draw from a distributor that knows the newest statuses, whatever comes.
func (b *Balancer) draw(d distributor, now time.Duration) *Node {
	for range b.effort {
		n := d.draw(now)
		if n == nil {
			return nil
		}
		if wordOpen(n.word.Load()) {
			return n
		}
	}
	if b.heaps == nil {
		b.count.panicked.Add(1)
	}
	return (*b.dist.Load()).draw(now)
}

// acquire counts the request on the node. It is false, and nothing is counted,
// when the node has been removed meanwhile. drawn says that the node was just
// drawn, so that a heap has counted it.
func (b *Balancer) acquire(n *Node, now time.Duration, drawn bool) bool {
	if b.heaps != nil && !drawn {
		b.heaps.take(n)
	}
	w := n.word.Add(oneRequest)
	if w&(flagRemoved|flagProbe) != 0 {
		if w&flagRemoved != 0 {
			b.release(n)
			return false
		}
		n.begin()
	}
	if b.band != nil {
		n.lastUsed.Store(int64(max(now, 1)))
		b.band.sample(b, now, 0.5)
	}
	return true
}

// someLatency is the latency of some node. A quick failure says nothing about how
// quick a node would be with its work; with a success bias it counts as if the node
// were like any other, so that the bias alone decides.
func (b *Balancer) someLatency(now time.Duration) time.Duration {
	nodes := *b.all.Load()
	if len(nodes) == 0 {
		return 0
	}
	return nodes[(b.config.Rand()>>32)*uint64(len(nodes))>>32].latency(now, b.tau)
}

// release takes a request off the node.
func (b *Balancer) release(n *Node) {
	if b.heaps != nil {
		b.heaps.release(n)
	}
	w := n.word.Add(^uint64(oneRequest - 1))
	if w&(flagRemoved|loadMask) == flagRemoved {
		b.drained(n)
	}
}

// drained tells that a removed node has no more requests, once.
func (b *Balancer) drained(n *Node) {
	if n.drained.CompareAndSwap(false, true) {
		b.hook(b.config.OnDrained, n)
	}
}

// Done says how the request ended. It reads the clock once if the configuration
// needs time.
func (p Pick) Done(o Outcome) {
	n := p.node
	b := n.b
	judge := b.judges && (o != Success || !n.clean.Load())
	var now time.Duration
	if judge || b.timedDone {
		now = b.config.Clock()
	}
	if wordLoad(n.word.Load()) == 0 {
		return // Done was called twice; once more would count below zero.
	}
	o = min(o, Ignored)
	n.results[o].Add(1)
	if b.ewma && o != Unreachable {
		latency := now - p.start
		if b.bias > 0 && (o == Failure || o == Refused) {
			latency = max(latency, b.someLatency(now))
		}
		// Of a request that was given up it is known that it took at least so long.
		if o != Ignored || latency > n.latency(now, b.tau) {
			n.observeLatency(latency, now, b.tau)
		}
	}
	if b.bias > 0 && o != Ignored {
		n.observeResult(o != Success, now, b.tau)
	}
	if judge {
		n.judge(o, now)
	}
	b.release(n)
	if b.band != nil && b.band.window == 0 {
		b.band.sample(b, now, 0)
	}
}
