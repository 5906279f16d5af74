package balance

import (
	"slices"
	"sync"
	"time"
)

// Stats is what a balancer is like at one moment. Counters count from New.
type Stats struct {
	Name   string
	Policy string
	Load   LoadMetric

	// Gauges.
	Size, Open, Busy, Closed int // endpoints, and by status
	Outstanding              int // requests
	Status                   Status
	Panic                    PanicMode
	MeanWeight               float64
	WeightClasses            int
	Convicted                int // endpoints left alone by failure accrual or fail-fast now

	// Counters.
	Adds, Removes, Updates, Rebuilds       uint64
	Panicked                               uint64 // picks that took what came
	Idle                                   uint64 // draws in which the metric could not tell: no load at all
	BusyClasses                            uint64 // picks that left a weight class because nothing in it was open
	Results                                [outcomes]uint64
	Removals, Revivals, Probes             uint64 // failure accrual: convictions of healthy endpoints; their ends; probes
	RemovedFor                             time.Duration
	MarkedUnreachable, MarkedReachable     uint64 // fail-fast
	Expired, Widened, Narrowed, PeerChange uint64 // aperture

	// Aperture; zero for other policies.
	Deterministic    bool
	LogicalAperture  int     // endpoints of average weight in the aperture
	PhysicalAperture int     // endpoints that it touches
	SmoothedLoad     float64 // outstanding requests, averaged
	Laps             int     // deterministic: units of 1/Peer.Total covered
	VectorHash       uint64  // the same in all clients that see the same endpoints
	Peer             Peer
}

// NodeStats is what an endpoint is like at one moment.
type NodeStats struct {
	Address     string
	Replica     int
	Weight      float64
	Status      Status
	Outstanding int
	Latency     time.Duration // PeakEWMA's; 0 without history or with another metric
	Failing     float64       // SuccessBias's recent share of failures
	InAperture  bool          // true for policies that use all endpoints
	Results     [outcomes]uint64
}

// Stats looks at all nodes.
func (b *Balancer) Stats() Stats {
	c := &b.count
	s := Stats{
		Name: b.config.Name, Policy: b.config.Policy.Name(), Load: b.config.Load, Status: b.Status(), Panic: b.config.Panic,
		Adds: b.adds.Load(), Removes: b.removes.Load(), Updates: b.updates.Load(), Rebuilds: c.rebuilds.Load(),
		Panicked: c.panicked.Load(), BusyClasses: c.busyClasses.Load(),
		Removals: c.removals.Load(), Revivals: c.revivals.Load(), Probes: c.probes.Load(), RemovedFor: time.Duration(c.removedFor.Load()),
		MarkedUnreachable: c.markedDead.Load(), MarkedReachable: c.markedAvailable.Load(),
		Expired: c.expired.Load(), Widened: c.widened.Load(), Narrowed: c.narrowed.Load(), PeerChange: b.peersChanged.Load(),
	}
	b.mu.Lock()
	nodes := b.nodes
	s.Idle, s.Results = b.past.idle, b.past.results
	s.VectorHash, s.Peer = b.vectorHash, b.peer
	classes := map[float64]bool{}
	for _, n := range nodes {
		s.MeanWeight += n.weight / float64(len(nodes))
		classes[n.weight] = true
	}
	b.mu.Unlock()
	s.WeightClasses = len(classes)
	for _, n := range nodes {
		s.Size++
		switch n.Status() {
		case Open:
			s.Open++
		case Busy:
			s.Busy++
		default:
			s.Closed++
		}
		s.Outstanding += n.Load()
		s.Idle += n.zero.Load()
		for i := range n.results {
			s.Results[i] += n.results[i].Load()
		}
		n.mu.Lock()
		if n.health.life != alive {
			s.Convicted++
		}
		n.mu.Unlock()
	}
	if b.band != nil {
		s.SmoothedLoad = b.band.average()
	}
	switch d := (*b.dist.Load()).(type) {
	case *window:
		s.LogicalAperture, s.PhysicalAperture = d.logical(), d.physical()
	case *ring:
		s.Deterministic, s.Laps = true, d.laps
		s.LogicalAperture, s.PhysicalAperture = int(d.width*float64(d.n)+0.5), len(d.list)
	}
	return s
}

// NodeStats returns one for each endpoint, in the order given to Update.
func (b *Balancer) NodeStats() []NodeStats {
	now := b.config.Clock()
	b.mu.Lock()
	nodes := b.nodes
	weights := make([]float64, len(nodes))
	for i, n := range nodes {
		weights[i] = n.weight
	}
	b.mu.Unlock()
	inside := map[*Node]bool{}
	for _, e := range (*b.dist.Load()).entries() {
		inside[e.node] = true
	}
	_, aperture := b.config.Policy.(Aperture)
	out := make([]NodeStats, len(nodes))
	for i, n := range nodes {
		out[i] = NodeStats{
			Address: n.endpoint.Address, Replica: n.endpoint.Replica, Weight: weights[i], Status: n.Status(), Outstanding: n.Load(),
			Latency: n.latency(now, b.tau), Failing: n.failures(now, b.tau), InAperture: !aperture || inside[n],
		}
		for o := range n.results {
			out[i].Results[o] = n.results[o].Load()
		}
	}
	return out
}

// Registry lists balancers, for metrics and for pages that show them.
type Registry struct {
	mu   sync.Mutex
	list []*Balancer
}

func (r *Registry) add(b *Balancer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, b)
}

func (r *Registry) remove(b *Balancer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.DeleteFunc(r.list, func(x *Balancer) bool { return x == b })
}

// Balancers returns those that are not closed, oldest first.
func (r *Registry) Balancers() []*Balancer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}
