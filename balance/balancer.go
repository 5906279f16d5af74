package balance

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// never is a wake-up that is not planned.
const never = math.MaxInt64

// Balancer hands out the endpoints of a set. Make one with New.
type Balancer struct {
	config Config

	// What Pick and Done need of the configuration.
	effort     int
	ewma       bool
	readsDecay bool
	bias, tau  float64
	timedPick  bool // every Pick needs the time
	timedDone  bool // every Done needs the time
	judges     bool // outcomes matter for health
	heaps      *heaps
	band       *band

	dist     atomic.Pointer[distributor]
	all      atomic.Pointer[[]*Node]
	nextWake atomic.Int64 // the earliest end of a sentence
	closed   atomic.Bool

	pending atomic.Pointer[[]Endpoint] // the newest set not applied yet
	dirty   atomic.Bool                // statuses changed since the last rebuild

	mu         sync.Mutex // serialises changes of what follows and of dist
	nodes      []*Node    // in the order given
	byID       map[identity]*Node
	peer       Peer
	inWindow   map[*Node]bool
	ordered    []*Node // in the common order
	vectorHash uint64
	past       struct { // of endpoints that were removed
		idle    uint64
		results [outcomes]uint64
	}

	hookMu                               sync.Mutex
	count                                healthCounters
	adds, removes, updates, peersChanged atomic.Uint64
}

// distributor is an immutable choice among nodes.
type distributor interface {
	// draw chooses a node, of whatever status; nil if there is none. It reads
	// randomness from the balancer.
	draw(now time.Duration) *Node
	// entries are the nodes that draw may return. Not to be changed.
	entries() []entry
}

// New makes a balancer without endpoints. The error names the field of the
// configuration that is out of range.
func New(config Config) (*Balancer, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}
	c := config.withDefaults()
	b := &Balancer{
		config: c,
		effort: int(max(c.Panic, 0)),
		ewma:   c.Load == PeakEWMA,
		bias:   c.SuccessBias,
		tau:    float64(c.Decay),
		judges: c.Accrual != nil || c.FailFast != nil,
		byID:   map[identity]*Node{},
	}
	b.readsDecay = b.ewma && c.ReadsDecay
	b.nextWake.Store(never)
	switch p := c.Policy.(type) {
	case Heap:
		b.effort = 0
		b.heaps = newHeaps(b)
	case RoundRobin:
		b.effort = 5
		b.ewma = false
	case Aperture:
		b.peer = p.Peer
		b.band = newBand(p)
	}
	b.timedDone = b.ewma || b.bias > 0 || b.band != nil && b.band.window == 0
	b.timedPick = b.ewma || b.bias > 0 || b.band != nil
	b.all.Store(&[]*Node{})
	b.store(empty{})
	if c.Registry != nil {
		c.Registry.add(b)
	}
	return b, nil
}

type empty struct{}

func (empty) draw(time.Duration) *Node { return nil }
func (empty) entries() []entry         { return nil }

func (b *Balancer) store(d distributor) { b.dist.Store(&d) }

func (b *Balancer) size() int { return len(*b.all.Load()) }

// Name returns the configuration's Name.
func (b *Balancer) Name() string { return b.config.Name }

// Update replaces the set of endpoints. Endpoints that are in the old set too keep
// their nodes; requests on those that are not may end in peace. An error, which
// names the endpoint at fault, leaves the set as it was.
//
// Updates are applied one at a time. When several wait, only the newest is
// applied, and the others return when it is.
func (b *Balancer) Update(endpoints []Endpoint) error {
	if err := checkEndpoints(endpoints); err != nil {
		return err
	}
	endpoints = slices.Clone(endpoints)
	b.pending.Store(&endpoints)
	b.locked(func() {
		if next := b.pending.Swap(nil); next != nil && !b.closed.Load() {
			b.apply(*next)
		}
	})
	if b.closed.Load() {
		return ErrClosed
	}
	return nil
}

// locked runs f under the lock, and then what others could not do meanwhile.
func (b *Balancer) locked(f func()) {
	func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		f()
	}()
	b.settle()
}

func (b *Balancer) apply(endpoints []Endpoint) {
	b.updates.Add(1)
	next := make([]*Node, 0, len(endpoints))
	byID := make(map[identity]*Node, len(endpoints))
	var added []*Node
	changed := false
	for _, e := range endpoints {
		if e.Weight == 0 {
			e.Weight = 1
		}
		n := b.byID[e.id()]
		if n == nil {
			n = b.newNode(e)
			added = append(added, n)
		} else if n.weight != e.Weight {
			n.weight = e.Weight
			changed = true
		}
		byID[e.id()] = n
		next = append(next, n)
	}
	var removed []*Node
	for _, n := range b.nodes {
		if byID[n.endpoint.id()] == nil {
			removed = append(removed, n)
		}
	}
	if len(added) == 0 && len(removed) == 0 && !changed {
		return
	}
	b.nodes, b.byID = next, byID
	b.orderNodes()
	b.all.Store(&next)
	b.adds.Add(uint64(len(added)))
	b.removes.Add(uint64(len(removed)))
	for _, n := range added {
		b.hook(b.config.OnAdd, n)
	}
	b.rebuild()
	for _, n := range removed {
		old := n.word.Or(flagRemoved)
		b.past.idle += n.zero.Load()
		for i := range n.results {
			b.past.results[i] += n.results[i].Load()
		}
		b.hook(b.config.OnRemove, n)
		if old&loadMask == 0 {
			b.drained(n)
		}
	}
}

func (b *Balancer) newNode(e Endpoint) *Node {
	n := &Node{b: b, endpoint: e, weight: e.Weight, token: uint32(b.config.Rand() >> 32)}
	n.health.link = Open
	if b.judges {
		now := b.config.Clock()
		if b.config.Accrual != nil {
			n.health.policy = b.config.Accrual(b.config.Rand)
			n.health.policy.Revived(now)
		}
		n.tidy(now)
	}
	return n
}

// orderNodes finds the order that all clients agree on.
func (b *Balancer) orderNodes() {
	b.ordered = slices.Clone(b.nodes)
	if a, ok := b.config.Policy.(Aperture); ok && !a.KeepOrder {
		slices.SortFunc(b.ordered, func(x, y *Node) int { return compareIdentity(x.endpoint.id(), y.endpoint.id()) })
	}
	hash := uint64(14695981039346656037)
	for i, n := range b.ordered {
		n.order = i
		hash = (hash ^ addressHash(n.endpoint.Address)) * 1099511628211
	}
	b.vectorHash = hash
}

// rebuild makes a new distributor. b.mu must be held.
func (b *Balancer) rebuild() {
	b.dirty.Store(false)
	b.count.rebuilds.Add(1)
	if b.heaps != nil {
		b.heaps.rebuild()
		return
	}
	if len(b.nodes) == 0 {
		b.store(empty{})
		return
	}
	switch p := b.config.Policy.(type) {
	case P2C:
		if p.WeightClasses {
			b.store(b.byClass(b.newP2C))
		} else {
			b.store(b.newP2C(b.nodes))
		}
	case RoundRobin:
		b.store(b.byClass(b.newRoundRobin))
	case Aperture:
		if b.peer.known() {
			b.store(b.newRing(p))
		} else {
			b.store(b.newWindow(p))
		}
		b.warm(p)
	}
}

// statusChanged is called after a node's status has changed, without locks.
func (b *Balancer) statusChanged(n *Node) {
	switch b.config.Policy.(type) {
	case P2C:
		return
	case Heap:
		b.heaps.statusChanged(n)
		return
	case Aperture:
		// The deterministic aperture does not depend on statuses.
		if _, ok := (*b.dist.Load()).(*ring); ok {
			return
		}
	}
	b.dirty.Store(true)
	b.settle()
}

// settle rebuilds if statuses have changed. If somebody else holds the lock, they
// will do it.
func (b *Balancer) settle() {
	for b.dirty.Load() {
		if !b.mu.TryLock() {
			return
		}
		func() {
			defer b.mu.Unlock()
			if b.dirty.Load() && !b.closed.Load() {
				b.rebuild()
			}
			b.dirty.Store(false)
		}()
	}
}

// hook calls one of the caller's functions.
func (b *Balancer) hook(f func(*Node), n *Node) {
	if f == nil {
		return
	}
	b.hookMu.Lock()
	defer b.hookMu.Unlock()
	f(n)
}

// wakeAt plans a wake-up.
func (b *Balancer) wakeAt(t time.Duration) {
	for {
		old := b.nextWake.Load()
		if old <= int64(t) || b.nextWake.CompareAndSwap(old, int64(t)) {
			return
		}
	}
}

// wakeNodes ends the sentences that are over.
func (b *Balancer) wakeNodes(now time.Duration) {
	b.nextWake.Store(never) // what is still to come is planned again below
	for _, n := range *b.all.Load() {
		until, connect := n.wake(now)
		if until >= 0 {
			b.wakeAt(until)
		}
		if connect {
			b.config.Connections.Connect(n)
		}
	}
}

// Tick does what is due by now: sentences that are over, connections that have
// been idle for too long. It returns how long from now the next Tick should come,
// at most a minute. Balancers with a Connections need it; for others it is enough
// that requests come.
func (b *Balancer) Tick() time.Duration {
	now := b.config.Clock()
	if int64(now) >= b.nextWake.Load() {
		b.wakeNodes(now)
	}
	next := time.Minute
	if a, ok := b.config.Policy.(Aperture); ok && !b.closed.Load() {
		b.band.sample(b, now, 0)
		next = min(next, max(b.band.window/4, 100*time.Millisecond))
		if a.Idle > 0 && b.config.Connections != nil {
			b.locked(func() { b.expire(a, now) })
			next = min(next, max(a.Idle/2, time.Millisecond))
		}
	}
	if wake := b.nextWake.Load(); wake != never {
		next = min(next, max(time.Duration(wake)-now, 0))
	}
	return next
}

// SetPeer tells an Aperture balancer this client's place among the clients of the
// same endpoints; the zero Peer means that it is unknown. Other policies ignore it.
func (b *Balancer) SetPeer(p Peer) error {
	if err := p.check(); err != nil {
		return err
	}
	b.locked(func() {
		if _, ok := b.config.Policy.(Aperture); !ok || b.peer == p || b.closed.Load() {
			return
		}
		b.peer = p
		b.peersChanged.Add(1)
		b.band.extra.Store(0)
		b.rebuild()
	})
	return nil
}

// Status is the best status of the endpoints that a Pick may choose; Closed when
// there is none.
func (b *Balancer) Status() Status {
	best := Closed
	look := func(n *Node) { best = max(best, n.Status()) }
	if d, ok := (*b.dist.Load()).(*ring); ok {
		for i := range d.list {
			look(d.list[i].node)
		}
		return best
	}
	for _, n := range *b.all.Load() {
		look(n)
	}
	return best
}

// Nodes returns the set's nodes, in the order given to Update.
func (b *Balancer) Nodes() []*Node { return slices.Clone(*b.all.Load()) }

// Close empties the balancer for good. Requests that are under way may end in
// peace.
func (b *Balancer) Close() {
	b.locked(func() {
		if b.closed.Swap(true) {
			return
		}
		if b.config.Registry != nil {
			b.config.Registry.remove(b)
		}
		if len(b.nodes) > 0 {
			b.apply(nil)
		}
	})
}
