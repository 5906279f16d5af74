package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/matching/matchingrpc"
	"github.com/switchyard-dev/switchyard/matching/routing"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/membership/ring"
)

const (
	defaultCloseDelay = 30 * time.Second
	// settleEvery is how often the engine is told while the batch size changes.
	settleEvery = time.Second
)

// Options configure Peers.
type Options struct {
	// Members are the nodes of the cluster. Required. Close Peers before it.
	Members *membership.Membership
	// DialOptions are for connections to other nodes. Required: they say at least which
	// credentials are used. Connecting is tried again at most 5 s apart.
	DialOptions []grpc.DialOption
	// BatchSize of spread routing: how many partitions of a queue are laid on successive
	// nodes; 0 for basic routing. All nodes must have the same.
	BatchSize routing.Gradual[int]
	// CloseDelay is how long a connection outlives the departure of its node. Default 30 s.
	CloseDelay time.Duration
	// Logger; default slog.Default().
	Logger *slog.Logger
}

// Engine is this node's own engine: a *matching.Engine.
type Engine interface {
	v1.MatchingServiceServer
	OwnershipChanged()
}

// Peers finds the owners of partitions in a cluster. All methods may be called from any
// goroutine.
type Peers struct {
	o    Options
	self string
	log  *slog.Logger
	now  atomic.Pointer[snapshot]
	here atomic.Pointer[Engine]

	links map[string]*link // by address; of the goroutine only
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
}

var _ matching.Peers = (*Peers)(nil)

// snapshot is what an owner is found with. It never changes.
type snapshot struct {
	ready bool // this node knows the cluster
	ring  *ring.Ring
	links map[string]*link // by the names of nodes; not of this one
}

// link is a connection to a node.
type link struct {
	conn   *grpc.ClientConn
	client *matchingrpc.Client
	gone   time.Time // when its node went, zero while it is there; of the goroutine only
}

// New begins to follow the membership. This node owns nothing, and no owner is found,
// before the membership has joined the cluster; call Attach before the node takes calls.
func New(o Options) (*Peers, error) {
	if o.Members == nil {
		return nil, errors.New("peers: Options.Members is missing")
	}
	if len(o.DialOptions) == 0 {
		return nil, errors.New("peers: Options.DialOptions are missing")
	}
	for _, size := range [...]int{o.BatchSize.Old, o.BatchSize.New} {
		if size < 0 || size > routing.MaxBatchSize {
			return nil, fmt.Errorf("peers: a batch size of %d; 0 to %d are possible", size, routing.MaxBatchSize)
		}
	}
	if o.CloseDelay <= 0 {
		o.CloseDelay = defaultCloseDelay
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	p := &Peers{
		o: o, self: o.Members.Self().Name, log: o.Logger,
		links: map[string]*link{}, stop: make(chan struct{}), done: make(chan struct{}),
	}
	sub := o.Members.Subscribe(membership.Matching)
	<-sub.C() // for what is seen now
	p.refresh(time.Now())
	go p.run(sub)
	return p, nil
}

// Attach says which engine owns this node's partitions. The engine's options take Peers,
// so it is made after New.
func (p *Peers) Attach(e Engine) {
	p.here.Store(&e)
	e.OwnershipChanged()
}

// Close ends all connections; calls under way fail. Stop the engine before.
func (p *Peers) Close() error {
	p.once.Do(func() { close(p.stop) })
	<-p.done
	return nil
}

// Owner implements matching.Peers.
func (p *Peers) Owner(id matching.PartitionID) (v1.MatchingServiceServer, bool, error) {
	s := p.now.Load()
	name, err := p.owner(s, id)
	if err != nil {
		return nil, false, err
	}
	if name == p.self {
		if e := p.here.Load(); e != nil {
			return *e, true, nil
		}
		return nil, false, notReady(id, "this node, which owns it, is starting")
	}
	if l, ok := s.links[name]; ok {
		return l.client, false, nil
	}
	return nil, false, notReady(id, fmt.Sprintf("its owner %q has no address for other nodes", name))
}

// Owns says whether a partition belongs to this node; it is for matching.Options.
func (p *Peers) Owns(id matching.PartitionID) bool {
	name, err := p.owner(p.now.Load(), id)
	return err == nil && name == p.self
}

// owner is the name of the node that owns a partition.
func (p *Peers) owner(s *snapshot, id matching.PartitionID) (string, error) {
	if !s.ready {
		return "", notReady(id, "this node has not reached the cluster yet")
	}
	at := placeOf(id)
	batch := p.o.BatchSize.New
	if p.o.BatchSize.Old != batch {
		batch = routing.BatchSize(p.o.BatchSize, at, time.Now())
	}
	name, err := routing.Owner(s.ring, at, batch)
	if err != nil {
		return "", notReady(id, err.Error())
	}
	return name, nil
}

func notReady(id matching.PartitionID, why string) error {
	return reason.New(codes.Unavailable, reason.NotReady, map[string]string{"queue": id.Queue},
		"nobody can be asked for partition %v: %s", id, why)
}

// run follows the membership.
func (p *Peers) run(sub *membership.Subscription) {
	defer close(p.done)
	defer p.closeAll()
	defer sub.Close()
	joined := p.o.Members.Joined()
	closing, settling := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	defer closing.Stop()
	defer settling.Stop()
	for {
		closing.Reset(p.closeGone(time.Now()))
		settling.Reset(p.untilSettling(time.Now()))
		select {
		case <-p.stop:
			return
		case <-sub.C():
			p.refresh(time.Now())
		case <-joined:
			joined = nil
			p.refresh(time.Now())
		case <-closing.C:
			continue
		case <-settling.C:
		}
		if e := p.here.Load(); e != nil {
			(*e).OwnershipChanged()
		}
	}
}

// untilSettling is how long until the engine should be told of keys that have changed
// their batch size.
func (p *Peers) untilSettling(now time.Time) time.Duration {
	g := p.o.BatchSize
	switch {
	case g.Old == g.New || now.After(g.End.Add(settleEvery)): // the last time was after its end
		return 24 * time.Hour
	case now.Before(g.Start):
		return g.Start.Sub(now) + settleEvery
	}
	return settleEvery
}

// refresh makes the snapshot anew.
func (p *Peers) refresh(now time.Time) {
	nodes := p.o.Members.View().Acting(membership.Matching)
	s := &snapshot{links: make(map[string]*link, len(nodes))}
	select {
	case <-p.o.Members.Joined():
		s.ready = true
	default:
	}
	names := make([]string, 0, len(nodes))
	here := map[string]bool{}
	for _, n := range nodes {
		names = append(names, n.Name)
		if n.Name == p.self || n.InternalAddress == "" {
			continue
		}
		l, err := p.link(n.InternalAddress)
		if err != nil {
			p.log.Error("matching node can't be reached", "node", n.Name, "address", n.InternalAddress, "err", err)
			continue
		}
		here[n.InternalAddress] = true
		s.links[n.Name] = l
	}
	for address, l := range p.links {
		switch {
		case here[address]:
			l.gone = time.Time{}
		case l.gone.IsZero():
			l.gone = now
		}
	}
	s.ring = ring.New(names)
	p.now.Store(s)
}

// link returns the connection to an address. It connects when it is first used.
func (p *Peers) link(address string) (*link, error) {
	if l, ok := p.links[address]; ok {
		return l, nil
	}
	l, err := connect(address, p.o.DialOptions)
	if err == nil {
		p.links[address] = l
	}
	return l, err
}

func connect(address string, dialOptions []grpc.DialOption) (*link, error) {
	pace := backoff.DefaultConfig
	pace.BaseDelay, pace.MaxDelay = 100*time.Millisecond, 5*time.Second
	options := append([]grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pace, MinConnectTimeout: 5 * time.Second}),
	}, dialOptions...)
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	return &link{conn: conn, client: matchingrpc.NewClient(conn)}, nil
}

// closeGone closes the connections whose time has come and returns how long until the
// next.
func (p *Peers) closeGone(now time.Time) time.Duration {
	wait := 24 * time.Hour
	for address, l := range p.links {
		if l.gone.IsZero() {
			continue
		}
		if left := l.gone.Add(p.o.CloseDelay).Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		p.close(address, l)
	}
	return wait
}

func (p *Peers) closeAll() {
	for address, l := range p.links {
		p.close(address, l)
	}
}

func (p *Peers) close(address string, l *link) {
	delete(p.links, address)
	if err := l.conn.Close(); err != nil {
		p.log.Warn("connection to a matching node was not closed well", "address", address, "err", err)
	}
}
