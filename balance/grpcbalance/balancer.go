package grpcbalance

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/serviceconfig"

	"github.com/switchyard-dev/switchyard/balance"
)

func init() {
	for _, k := range kinds {
		balancer.Register(builder{k})
	}
}

// Names returns the names of the policies.
func Names() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}

type builder struct{ kind kind }

func (b builder) Name() string { return b.kind.name }

func (b builder) ParseConfig(raw json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	return b.kind.parse(raw)
}

func (b builder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	l := &lb{cc: cc, kind: b.kind, target: opts.Target.String(), entries: map[string]*entry{}}
	l.picker = &picker{lb: l}
	l.register()
	return l
}

// lb is the balancer of one gRPC connection.
type lb struct {
	cc     balancer.ClientConn
	kind   kind
	target string
	picker *picker

	core    atomic.Pointer[balance.Balancer]
	failing atomic.Pointer[error] // when nothing is connected: why
	ready   atomic.Int64          // endpoints with a connection
	kicking atomic.Bool

	aperture atomic.Bool // the policy connects only to a part

	mu      sync.Mutex
	options *Options
	ownPeer bool // the service config says the peer
	entries map[string]*entry
	lastErr error
	timer   *time.Timer
	closed  bool
}

// apply makes the core for the given options, unless it is there already.
func (b *lb) apply(options *Options) error {
	if options == nil {
		var err error
		if options, err = b.kind.parse(nil); err != nil {
			return err
		}
	}
	if b.options != nil && b.options.text == options.text {
		return nil
	}
	c := options.config
	if c.Name == "" {
		c.Name = b.target
	}
	c.Registry = Registry()
	c.OnAdd = func(n *balance.Node) { n.Value().(*entry).node.Store(n) }
	a, aperture := c.Policy.(balance.Aperture)
	if aperture {
		c.Connections = connections{}
		b.ownPeer = a.Peer != balance.Peer{}
		if !b.ownPeer {
			process.mu.Lock()
			a.Peer = process.peer
			process.mu.Unlock()
			c.Policy = a
		}
	}
	core, err := balance.New(c)
	if err != nil {
		return err
	}
	b.options = options
	b.aperture.Store(aperture)
	if old := b.core.Swap(core); old != nil {
		old.Close()
	}
	return nil
}

func (b *lb) setPeer(p balance.Peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if core := b.core.Load(); core != nil && !b.ownPeer {
		if err := core.SetPeer(p); err != nil {
			logger.Errorf("set peer: %v", err)
		}
	}
}

// UpdateClientConnState implements balancer.Balancer.
func (b *lb) UpdateClientConnState(s balancer.ClientConnState) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	options, _ := s.BalancerConfig.(*Options)
	if err := b.apply(options); err != nil {
		return err
	}
	core := b.core.Load()

	found := endpointsOf(s.ResolverState)
	list := make([]balance.Endpoint, 0, len(found))
	next := make(map[string]*entry, len(found))
	for _, e := range found {
		key := keyOf(e)
		x := b.entries[key]
		if x == nil {
			x = &entry{lb: b, endpoint: e}
			if err := x.renew(); err != nil {
				logger.Errorf("endpoint %s: %v", key, err)
				continue
			}
		}
		next[key] = x
		list = append(list, balance.Endpoint{Address: key, Weight: weightOf(e), Value: x})
	}
	if err := core.Update(list); err != nil {
		return err
	}
	for key, x := range b.entries {
		if next[key] != x {
			x.drop()
		}
	}
	old := b.entries
	b.entries = next
	for key, x := range next {
		x.setStatus()
		if !b.aperture.Load() && old[key] == nil {
			x.connect()
		}
	}
	if len(list) == 0 {
		b.lastErr = nil
	}
	b.publish()
	b.tick()
	if len(list) == 0 {
		return balancer.ErrBadResolverState
	}
	return nil
}

// tick plans the core's next Tick. b.mu must be held.
func (b *lb) tick() {
	if b.timer != nil || !b.aperture.Load() {
		return // other policies do what is due in Pick
	}
	b.timer = time.AfterFunc(b.core.Load().Tick(), func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.timer = nil
		if !b.closed {
			b.tick()
		}
	})
}

// ResolverError implements balancer.Balancer. The last good set stays.
func (b *lb) ResolverError(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.entries) > 0 {
		return
	}
	b.lastErr = fmt.Errorf("the name %s was not resolved: %w", b.target, err)
	b.publish()
}

// UpdateSubConnState implements balancer.Balancer; gRPC does not call it.
func (b *lb) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle implements balancer.Balancer.
func (b *lb) ExitIdle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.entries {
		if !b.aperture.Load() || x.wanted.Load() {
			x.connect()
		}
	}
}

// Close implements balancer.Balancer.
func (b *lb) Close() {
	b.unregister()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
	if core := b.core.Load(); core != nil {
		core.Close()
	}
	for _, x := range b.entries {
		x.drop()
	}
	b.entries = map[string]*entry{}
}

var errNoEndpoints = errors.New("the resolver found no endpoints")

// publish tells gRPC the state of the whole, and lets waiting requests pick again.
// b.mu must be held.
func (b *lb) publish() {
	var ready, connecting, idle, failed int
	for _, x := range b.entries {
		switch {
		case x.state == connectivity.Ready:
			ready++
		case x.failed:
			failed++
		case x.state == connectivity.Connecting:
			connecting++
		default:
			idle++
		}
	}
	b.ready.Store(int64(ready))
	state := connectivity.TransientFailure
	switch {
	case ready > 0:
		state = connectivity.Ready
	case connecting > 0:
		state = connectivity.Connecting
	case idle > 0 && failed == 0:
		state = connectivity.Idle
	}
	if state != connectivity.TransientFailure {
		b.failing.Store(nil)
	} else {
		err := b.lastErr
		if err == nil {
			err = fmt.Errorf("%w for %s", errNoEndpoints, b.target)
		}
		b.failing.Store(&err)
	}
	b.cc.UpdateState(balancer.State{ConnectivityState: state, Picker: b.picker})
}

// kickDelay gathers the requests of a moment into one new pick.
const kickDelay = 5 * time.Millisecond

// kick lets waiting requests pick again in a moment, for when a request found
// nothing that is connected though something is.
func (b *lb) kick() {
	if !b.kicking.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(kickDelay, func() {
		b.kicking.Store(false)
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.closed {
			b.publish()
		}
	})
}
