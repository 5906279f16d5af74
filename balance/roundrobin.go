package balance

import (
	"sync/atomic"
	"time"
)

// roundRobin takes the open nodes in turns, or all if none is open. It is built
// again whenever a status changes.
type roundRobin struct {
	list []entry
	next atomic.Uint64
}

func (b *Balancer) newRoundRobin(nodes []*Node) distributor {
	open := make([]entry, 0, len(nodes))
	for _, n := range nodes {
		if n.Status() == Open {
			open = append(open, b.newEntry(n, n.weight))
		}
	}
	if len(open) == 0 {
		for _, n := range nodes {
			open = append(open, b.newEntry(n, n.weight))
		}
	}
	d := &roundRobin{list: open}
	// Neither clients that start at the same time nor rebuilds should all begin with
	// the same.
	d.next.Store(b.config.Rand() >> 16)
	return d
}

func (d *roundRobin) entries() []entry { return d.list }

func (d *roundRobin) draw(time.Duration) *Node {
	return d.list[d.next.Add(1)%uint64(len(d.list))].node
}
