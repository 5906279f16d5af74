package balance

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// LoadMetric is what "least loaded" means.
type LoadMetric uint8

const (
	// LeastLoaded is the number of requests that an endpoint has from this
	// balancer and has not finished.
	LeastLoaded LoadMetric = iota
	// PeakEWMA is the endpoint's recent latency times its outstanding requests plus
	// one. The latency rises at once with a slow answer and decays with time. Not
	// for long polls, where a long wait is not slowness.
	PeakEWMA
)

func (m LoadMetric) String() string {
	if m == PeakEWMA {
		return "peak_ewma"
	}
	return "least_loaded"
}

// PanicMode is how many draws a Pick makes to find an open endpoint before it
// takes whatever the next draw gives, healthy or not. With two choices per draw
// and a share u of unhealthy endpoints, a pick panics with probability u^(2·mode).
type PanicMode int

const (
	// PanicDefault is PanicAt50Percent.
	PanicDefault PanicMode = 0
	// PanicAt10Percent and the following are named after the share of unhealthy
	// endpoints at which about one pick in a hundred panics.
	PanicAt10Percent PanicMode = 1
	PanicAt30Percent PanicMode = 2
	PanicAt40Percent PanicMode = 3
	PanicAt50Percent PanicMode = 4
	PanicAtMajority  PanicMode = 5
	// PanicAlways looks at no health at all.
	PanicAlways PanicMode = -1
)

// Config says how a Balancer chooses. The zero value is power of two choices
// over the least loaded, without health beyond what Node.SetStatus says.
type Config struct {
	// Name stands in metrics and in the Registry.
	Name string
	// Policy is P2C, Heap, RoundRobin or Aperture; nil means P2C.
	Policy Policy
	// Load is the load metric. RoundRobin has none, Heap knows only LeastLoaded.
	Load LoadMetric
	// Decay is the time in which PeakEWMA forgets a latency to 1/e; 0 means 10 s,
	// or under Aperture its Smooth. 1 ms to 1 h.
	Decay time.Duration
	// ReadsDecay makes PeakEWMA behave as in Finagle, where looking at an endpoint
	// counts as an observation and takes weight from the next answer. Off, an
	// answer weighs by the time since the last answer.
	ReadsDecay bool
	// SuccessBias weighs recent failures into the load, so that an endpoint that
	// fails fast does not look good: the load is multiplied by the expected number
	// of attempts until one succeeds, to this power. 0 is off; 1 suits LeastLoaded and
	// 2 PeakEWMA; up to 4.
	SuccessBias float64
	// Panic is the panic mode. RoundRobin always makes 5 draws; Heap needs none.
	Panic PanicMode
	// Accrual makes the failure policy of each endpoint; nil means none.
	// DefaultFailureAccrual is a good one.
	Accrual NewFailurePolicy
	// FailFast, if not nil, leaves an endpoint alone for a while after one
	// Unreachable outcome. It does nothing while the set has one endpoint.
	FailFast *FailFast
	// Connections, if not nil, is asked to open and give up connections.
	Connections Connections
	// Clock and Rand; nil means SystemClock and SystemRand.
	Clock Clock
	Rand  Rand
	// Registry, if not nil, lists the balancer until it is closed.
	Registry *Registry

	// Hooks; each may be nil. They are called one at a time, must be quick and must
	// not call the balancer. OnAdd and OnRemove run within Update. OnDrained runs
	// when a removed endpoint has finished its last request: now its connection
	// can be closed without harm.
	OnAdd, OnRemove, OnDrained func(*Node)
}

// Policy is how endpoints are chosen: P2C, Heap, RoundRobin or Aperture.
type Policy interface {
	// Name is the policy's name in metrics and configuration.
	Name() string
	check() error
}

// P2C takes two endpoints at random and chooses the one with the better status,
// then the lower load. Weights are respected. Constant cost at any size.
type P2C struct {
	// WeightClasses shares requests among groups of equal weight first and then
	// within the group, as Finagle does, instead of drawing by weight.
	WeightClasses bool
}

// Heap chooses the endpoint with the fewest outstanding requests of all, at
// random among equals. Unequal weights are respected by weight classes.
type Heap struct{}

// RoundRobin takes the open endpoints in turns. Unequal weights are respected by
// weight classes.
type RoundRobin struct{}

// Aperture uses only a part of the endpoints, so that many clients and many
// servers need not all be connected to each other. Within the part it is P2C.
//
// With Peer set, or given by SetPeer, it is deterministic: clients share out the
// ring of endpoints so that each endpoint is covered equally often. Without, it is
// random: a window of endpoints that grows and shrinks with the load.
type Aperture struct {
	// Min is the least number of endpoints. 0 means 1 for the random aperture and
	// 12 for the deterministic one. Fewer than 4 make two choices poor.
	Min int
	// Low and High bound the outstanding requests per endpoint of the aperture: at
	// Low it narrows, at High it widens. 0 means 0.875 and 1.125. 0 < Low < High.
	Low, High float64
	// Smooth is the time over which the load is averaged. 0 means 15 s; negative
	// means not at all.
	Smooth time.Duration
	// Peer is this client's place among all clients that use the same endpoints.
	Peer Peer
	// Fixed keeps the deterministic aperture from widening when this client has
	// more load than its part of the endpoints should take alone. Set, it is as in
	// Finagle.
	Fixed bool
	// ForgetSize lets the random aperture start again at Min whenever it is
	// rebuilt, as in Finagle, instead of keeping the size it learned.
	ForgetSize bool
	// KeepOrder uses the endpoints in the order given, which must then be the same
	// in every client. Otherwise they are ordered by a hash of their identity.
	KeepOrder bool
	// Idle is how long an endpoint outside the aperture keeps its connection
	// without a request. 0 means 150 s; negative means for ever.
	Idle time.Duration
	// Lazy leaves connecting to the first request, instead of asking Connections
	// for endpoints that come into the aperture.
	Lazy bool
}

// Peer is a client's coordinate: instance ID of Total, counted from 0. The zero
// value means unknown.
type Peer struct{ ID, Total int }

func (p Peer) known() bool { return p.Total > 0 }

func (p Peer) check() error {
	switch {
	case p == Peer{}:
		return nil
	case p.Total < 1:
		return fmt.Errorf("balance: peer total is %d; it must be at least 1", p.Total)
	case p.ID < 0 || p.ID >= p.Total:
		return fmt.Errorf("balance: peer id is %d; it must be between 0 and %d", p.ID, p.Total-1)
	}
	return nil
}

// Name implements Policy.
func (P2C) Name() string        { return "p2c" }
func (Heap) Name() string       { return "heap" }
func (RoundRobin) Name() string { return "round_robin" }
func (Aperture) Name() string   { return "aperture" }

func (P2C) check() error        { return nil }
func (Heap) check() error       { return nil }
func (RoundRobin) check() error { return nil }

func (a Aperture) check() error {
	a = a.withDefaults()
	switch {
	case a.Min < 0:
		return fmt.Errorf("balance: aperture min is %d; it must not be negative", a.Min)
	case !(a.Low > 0) || !(a.High > a.Low) || math.IsInf(a.High, 0):
		return fmt.Errorf("balance: aperture load band is %v to %v; it needs 0 < low < high", a.Low, a.High)
	case a.Smooth > time.Hour:
		return fmt.Errorf("balance: aperture smooth is %v; it must not be more than 1h", a.Smooth)
	}
	return a.Peer.check()
}

func (a Aperture) withDefaults() Aperture {
	if a.Low == 0 {
		a.Low = 0.875
	}
	if a.High == 0 {
		a.High = 1.125
	}
	if a.Smooth == 0 {
		a.Smooth = 15 * time.Second
	}
	a.Smooth = max(a.Smooth, 0)
	if a.Idle == 0 {
		a.Idle = 150 * time.Second
	}
	return a
}

// withDefaults fills what is not set.
func (c Config) withDefaults() Config {
	switch p := c.Policy.(type) {
	case nil:
		c.Policy = P2C{}
	case Aperture:
		p = p.withDefaults()
		c.Policy = p
		if c.Decay == 0 {
			c.Decay = max(p.Smooth, time.Millisecond)
		}
	}
	if c.Decay == 0 {
		c.Decay = 10 * time.Second
	}
	if c.Panic == PanicDefault {
		c.Panic = PanicAt50Percent
	}
	if c.FailFast != nil {
		f := c.FailFast.withDefaults()
		c.FailFast = &f
	}
	if c.Clock == nil {
		c.Clock = SystemClock
	}
	if c.Rand == nil {
		c.Rand = SystemRand
	}
	return c
}

// Check returns an error that names the first field out of range, nil when all
// are fine.
func (c Config) Check() error {
	c = c.withDefaults()
	switch c.Policy.(type) {
	case Heap:
		if c.Load != LeastLoaded {
			return errors.New("balance: the heap policy knows only the least loaded metric")
		}
	}
	if err := c.Policy.check(); err != nil {
		return err
	}
	switch {
	case c.Load > PeakEWMA:
		return fmt.Errorf("balance: load metric %d does not exist", c.Load)
	case c.Decay < time.Millisecond || c.Decay > time.Hour:
		return fmt.Errorf("balance: decay is %v; it must be between 1ms and 1h", c.Decay)
	case !(c.SuccessBias >= 0 && c.SuccessBias <= 4):
		return fmt.Errorf("balance: success bias is %v; it must be between 0 and 4", c.SuccessBias)
	case c.Panic < PanicAlways || c.Panic > PanicAtMajority:
		return fmt.Errorf("balance: panic mode is %d; it must be between %d and %d", c.Panic, PanicAlways, PanicAtMajority)
	}
	if c.FailFast != nil {
		if err := c.FailFast.check(); err != nil {
			return err
		}
	}
	return nil
}
