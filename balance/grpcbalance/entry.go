package grpcbalance

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/switchyard-dev/switchyard/balance"
)

// patience is how long an endpoint of an aperture may be connecting before it
// counts as busy and another takes its place.
const patience = time.Second

// entry is one endpoint with its connection.
type entry struct {
	lb       *lb
	endpoint resolver.Endpoint
	node     atomic.Pointer[balance.Node]
	link     atomic.Pointer[link]
	wanted   atomic.Bool // an aperture asked for the connection

	// Under lb.mu.
	state  connectivity.State
	failed bool // the last attempt to connect failed; until one succeeds
	slow   bool // connecting for longer than patience
	gone   bool
}

// link is a connection of an endpoint. An endpoint that an aperture has released
// gets a new one.
type link struct {
	sc    balancer.SubConn
	ready atomic.Bool
	idle  atomic.Bool
}

// renew gives the entry a new, idle connection. lb.mu must be held.
func (e *entry) renew() error {
	l := &link{}
	l.idle.Store(true)
	//lint:ignore SA1019 Only its way to take several addresses will change; there is no other.
	sc, err := e.lb.cc.NewSubConn(e.endpoint.Addresses, balancer.NewSubConnOptions{
		HealthCheckEnabled: true,
		StateListener:      func(s balancer.SubConnState) { e.changed(l, s) },
	})
	if err != nil {
		return err
	}
	l.sc = sc
	e.state = connectivity.Idle
	if old := e.link.Swap(l); old != nil {
		old.ready.Store(false)
		old.sc.Shutdown()
	}
	return nil
}

// drop gives up the connection; what is under way on it may end. lb.mu must be
// held.
func (e *entry) drop() {
	e.gone = true
	l := e.link.Load()
	l.ready.Store(false)
	l.sc.Shutdown()
}

// connect starts connecting if the connection is idle.
func (e *entry) connect() {
	if l := e.link.Load(); l.idle.CompareAndSwap(true, false) {
		l.sc.Connect()
	}
}

// changed is called by gRPC, one call at a time, when the connection changes.
func (e *entry) changed(l *link, s balancer.SubConnState) {
	b := e.lb
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || e.gone || e.link.Load() != l || s.ConnectivityState == connectivity.Shutdown {
		return
	}
	e.state = s.ConnectivityState
	e.slow = false
	l.ready.Store(e.state == connectivity.Ready)
	l.idle.Store(e.state == connectivity.Idle)
	switch e.state {
	case connectivity.Ready:
		e.failed = false
	case connectivity.TransientFailure:
		e.failed = true
		b.lastErr = s.ConnectionError
		b.cc.ResolveNow(resolver.ResolveNowOptions{})
	case connectivity.Idle:
		if !e.failed {
			// The server went away: perhaps the resolver knows of others.
			b.cc.ResolveNow(resolver.ResolveNowOptions{})
		}
		if !b.aperture.Load() || e.wanted.Load() {
			e.connect()
		}
	case connectivity.Connecting:
		if b.aperture.Load() {
			time.AfterFunc(patience, func() { e.tooSlow(l) })
		}
	}
	e.setStatus()
	b.publish()
}

func (e *entry) tooSlow(l *link) {
	e.lb.mu.Lock()
	defer e.lb.mu.Unlock()
	if !e.lb.closed && !e.gone && e.link.Load() == l && e.state == connectivity.Connecting {
		e.slow = true
		e.setStatus()
	}
}

// setStatus tells the balancer what is known of the connection. An aperture takes
// endpoints without a connection as good until the contrary is shown: those
// outside of it are not connected on purpose. lb.mu must be held.
func (e *entry) setStatus() {
	n := e.node.Load()
	if n == nil {
		return
	}
	status := balance.Busy
	if e.state == connectivity.Ready || e.lb.aperture.Load() && !e.failed && !e.slow {
		status = balance.Open
	}
	n.SetStatus(status)
}

// connections does what an aperture wants done.
type connections struct{}

// Connect implements balance.Connections.
func (connections) Connect(n *balance.Node) {
	e := n.Value().(*entry)
	e.wanted.Store(true)
	e.connect()
}

// Release implements balance.Connections.
func (connections) Release(n *balance.Node) {
	e := n.Value().(*entry)
	e.wanted.Store(false)
	// The balancer must not be called from here, and lb.mu may be held.
	go e.release()
}

func (e *entry) release() {
	b := e.lb
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || e.gone || e.wanted.Load() || e.state == connectivity.Idle {
		return
	}
	if err := e.renew(); err != nil {
		logger.Errorf("endpoint %s: %v", keyOf(e.endpoint), err)
		return
	}
	e.setStatus()
	b.publish()
}
