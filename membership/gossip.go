package membership

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Options configure gossip.
type Options struct {
	// Self is this node. Required: its name and its cluster.
	Self Node
	// Listen is the address for gossip, over UDP and TCP; host:port. With port 0 the system
	// chooses one. The host must be an IP address. Default 127.0.0.1:0.
	Listen string
	// Advertise is the address at which others reach it, if it is another; host:port, the
	// host an IP address.
	Advertise string
	// Seeds are addresses for gossip of nodes that are asked for the others; host:port.
	// This node may be among them. Without seeds it waits to be found.
	Seeds []string
	// Secret, if not empty, encrypts and authenticates all gossip; all nodes must have the
	// same. At least MinSecret bytes.
	Secret string
	// Detection is about how long it takes until a node that vanished is known to be dead.
	// Less means more false alarms on busy machines. Default 2 s, at least 100 ms.
	Detection time.Duration
	// Rejoin is how often seeds and vanished nodes are looked for that are not in view.
	// Default 10 s.
	Rejoin time.Duration
	// Logger; default slog.Default().
	Logger *slog.Logger

	// wrap changes how packets travel, in tests.
	wrap func(*memberlist.NetTransport) memberlist.Transport
}

// MinSecret is the length of the shortest secret.
const MinSecret = 16

// Bounds of Options.
const (
	defaultDetection = 2 * time.Second
	minDetection     = 100 * time.Millisecond
	defaultRejoin    = 10 * time.Second
	// tellTimeout bounds how long news of this node, and goodbye, wait to be sent.
	tellTimeout = 10 * time.Second
	// maxSeeds bounds the list.
	maxSeeds = 1000
)

// gossip is the part of a Membership that talks to other nodes.
type gossip struct {
	m      *Membership
	list   *memberlist.Memberlist
	self   string // own address
	rejoin time.Duration
	queue  memberlist.TransmitLimitedQueue
	stop   context.CancelFunc
	done   chan struct{} // the joining has ended

	mu       sync.Mutex
	seeds    []string
	address  map[string]string   // of nodes alive, by name
	vanished map[string]vanished // nodes that went without goodbye, by name
	refusal  *RefusedError       // the last one
	left     bool
}

// Start begins to gossip and asks the seeds once. That none is reached is no error: it
// asks on until Close. It returns a *RefusedError when the others refuse this node because
// of its cluster or its number of buckets.
func Start(ctx context.Context, o Options) (*Membership, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := o.Self.check(); err != nil {
		return nil, err
	}
	if o.Self.ClusterID == "" {
		return nil, errors.New("membership: a node of a cluster needs a cluster id")
	}
	if len(o.Seeds) > maxSeeds {
		return nil, fmt.Errorf("membership: %d seeds, at most %d are allowed", len(o.Seeds), maxSeeds)
	}
	m := newMembership(o.Self, o.Logger)
	g := &gossip{
		m: m, done: make(chan struct{}), seeds: o.Seeds, rejoin: o.Rejoin,
		address: map[string]string{}, vanished: map[string]vanished{},
	}
	if g.rejoin <= 0 {
		g.rejoin = defaultRejoin
	}
	m.gossip = g
	conf, err := o.config(g)
	if err != nil {
		return nil, err
	}
	g.queue = memberlist.TransmitLimitedQueue{RetransmitMult: conf.RetransmitMult, NumNodes: func() int { return max(len(m.View().Nodes()), 1) }}
	ip, port, err := conf.Transport.FinalAdvertiseAddr(conf.AdvertiseAddr, conf.AdvertisePort)
	if err == nil {
		g.self = net.JoinHostPort(ip.String(), strconv.Itoa(port))
		g.list, err = memberlist.Create(conf)
	}
	if err != nil {
		_ = conf.Transport.Shutdown() // the error above says more
		return nil, fmt.Errorf("membership: gossip at %s: %w", o.Listen, err)
	}
	var loop context.Context
	loop, g.stop = context.WithCancel(context.Background())
	first := make(chan error, 1)
	go g.keepJoining(loop, first)
	select {
	case err = <-first:
	case <-ctx.Done():
		err = fmt.Errorf("membership: asking the seeds: %w", ctx.Err())
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// config is that of memberlist.
func (o Options) config(g *gossip) (*memberlist.Config, error) {
	listen := o.Listen
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	host, port, err := splitAddress(listen)
	if err != nil {
		return nil, err
	}
	d := o.Detection
	if d <= 0 {
		d = defaultDetection
	}
	d = max(d, minDetection)
	c := memberlist.DefaultLANConfig()
	c.Name = o.Self.Name
	c.Logger = log.New(logWriter{o.Logger}, "", 0)
	// A probe each quarter, and three quarters of suspicion: one probe that fails and time
	// for the suspect to object.
	c.ProbeInterval = d / 4
	c.ProbeTimeout = d / 8
	c.SuspicionMult = 3
	c.SuspicionMaxTimeoutMult = 2
	c.AwarenessMaxMultiplier = 4
	c.GossipInterval = min(d/10, 200*time.Millisecond)
	c.PushPullInterval = min(5*d, 30*time.Second)
	c.TCPTimeout = min(max(d, 2*time.Second), 10*time.Second)
	c.GossipToTheDeadTime = 15 * d
	c.DeadNodeReclaimTime = time.Nanosecond // a node may come back elsewhere once it is dead
	c.Delegate, c.Events, c.Alive, c.Merge, c.Conflict = g, g, g, g, g
	c.RequireNodeNames = false
	if o.Secret != "" {
		if len(o.Secret) < MinSecret {
			return nil, fmt.Errorf("membership: the secret has %d bytes, at least %d are needed", len(o.Secret), MinSecret)
		}
		key := sha256.Sum256([]byte(o.Secret))
		c.SecretKey = key[:]
	}
	nc := &memberlist.NetTransportConfig{BindAddrs: []string{host}, BindPort: port, Logger: c.Logger}
	tries := 1
	if port == 0 {
		tries = 20 // the port must be free for UDP and TCP
	}
	var t *memberlist.NetTransport
	for range tries {
		if t, err = memberlist.NewNetTransport(nc); err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("membership: gossip at %s: %w", listen, err)
	}
	c.BindAddr, c.BindPort = host, t.GetAutoBindPort()
	c.AdvertisePort = c.BindPort
	if o.Advertise != "" {
		if c.AdvertiseAddr, c.AdvertisePort, err = splitAddress(o.Advertise); err != nil {
			_ = t.Shutdown()
			return nil, err
		}
		if c.AdvertisePort == 0 {
			c.AdvertisePort = c.BindPort
		}
	}
	c.Transport = t
	if o.wrap != nil {
		c.Transport = o.wrap(t)
	}
	return c, nil
}

func splitAddress(a string) (ip string, port int, err error) {
	host, p, err := net.SplitHostPort(a)
	if err != nil {
		return "", 0, fmt.Errorf("membership: %q is no address of the form host:port: %w", a, err)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("membership: address %q has a port that is no number from 0 to 65535", a)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	if net.ParseIP(host) == nil {
		return "", 0, fmt.Errorf("membership: the host of address %q must be an IP address", a)
	}
	return host, int(n), nil
}

// Address returns the address of this node's gossip, for the seeds of others; empty
// without gossip.
func (m *Membership) Address() string {
	if m.gossip == nil {
		return ""
	}
	return m.gossip.self
}

// Refusal returns the last error with which nodes were refused on joining, nil for none.
func (m *Membership) Refusal() error {
	if m.gossip == nil {
		return nil
	}
	m.gossip.mu.Lock()
	defer m.gossip.mu.Unlock()
	if m.gossip.refusal == nil {
		return nil
	}
	return m.gossip.refusal
}

// tell spreads what this node tells of itself.
func (g *gossip) tell(ctx context.Context) error {
	return within(ctx, "telling the others", g.list.UpdateNode)
}

func (g *gossip) leave(ctx context.Context) error {
	g.mu.Lock()
	first := !g.left
	g.left = true
	g.mu.Unlock()
	g.m.mu.Lock()
	closed := g.m.closed
	g.m.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case !first:
		return nil
	}
	g.stop()
	<-g.done
	now := time.Now().Unix()
	err := g.m.Update(ctx, func(n *Node) {
		if n.Stop == 0 || n.Stop > now {
			n.Stop = now
		}
	})
	if err != nil {
		g.m.log.Warn("cluster: the others may look for this node for a while", "err", err)
	}
	return within(ctx, "saying goodbye", g.list.Leave)
}

func (g *gossip) close() error {
	g.stop()
	<-g.done
	if err := g.list.Shutdown(); err != nil {
		return fmt.Errorf("membership: %w", err)
	}
	return nil
}

// within runs what takes a timeout for as long as ctx allows.
func within(ctx context.Context, what string, fn func(time.Duration) error) error {
	timeout := tellTimeout
	if at, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(at))
	}
	if ctx.Err() != nil || timeout <= 0 {
		return fmt.Errorf("membership: %s: %w", what, context.Cause(ctx))
	}
	if err := fn(timeout); err != nil {
		return fmt.Errorf("membership: %s: %w", what, err)
	}
	return nil
}
