package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"

	"github.com/switchyard-dev/switchyard/admin"
	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/frontend"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/matching/matchingrpc"
	"github.com/switchyard-dev/switchyard/matching/peers"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
	"github.com/switchyard-dev/switchyard/shard/rebalancer"
	"github.com/switchyard-dev/switchyard/shard/rebalancer/routed"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
	"github.com/switchyard-dev/switchyard/shard/storage/transferrpc"
)

// handOverTime bounds how long a stopping master tries to make another member the master.
const handOverTime = 3 * time.Second

// leaveTime bounds the goodbye.
const leaveTime = time.Second

// member is the core of a node of a cluster: the parts that its roles ask for, and the port
// on which other nodes reach them.
type member struct {
	frontend.Backend
	config Config
	logger *slog.Logger

	listener net.Listener // for other nodes
	grpc     *grpc.Server
	served   sync.WaitGroup

	members  *membership.Membership
	topology atomic.Pointer[topology]
	router   *router.Router
	peers    *peers.Peers

	// With the role storage.
	storage *storage.Storage
	server  *storagerpc.Server
	// Of the rebalancer.
	rebalancing     sync.WaitGroup
	stopRebalancing context.CancelFunc
	// With the role matching.
	engine *matching.Engine

	cluster v1.ClusterServiceServer
	ready   atomic.Bool // it has once seen a bucket
}

// openMember opens the parts of a node of a cluster. It does not wait for the cluster.
func openMember(c Config, logger *slog.Logger, reg prometheus.Registerer, functions *storage.Registry) (_ core, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	security, err := newTransport(c.Cluster.TLS)
	if err != nil {
		return nil, err
	}
	n := &member{config: c, logger: logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close(ctx))
		}
	}()
	if n.listener, err = net.Listen("tcp", c.Cluster.Listen); err != nil {
		return nil, fmt.Errorf("cannot listen for other nodes on %s: %w", c.Cluster.Listen, err)
	}
	n.grpc = grpc.NewServer(append([]grpc.ServerOption{
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.WriteBufferSize(writeBuffer),
		grpc.ReadBufferSize(readBuffer),
		grpc.MaxRecvMsgSize(storagerpc.MaxMessage),
		grpc.MaxSendMsgSize(storagerpc.MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(helloTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.StreamInterceptor(recoverStream(logger)),
	}, security.serve...)...)

	link := new(transferrpc.Link)
	if c.has(RoleStorage) {
		if err := n.openStorage(ctx, functions, link, security, reg); err != nil {
			return nil, err
		}
	}
	if err := n.join(ctx); err != nil {
		return nil, err
	}
	t := newTopology(n.members)
	n.topology.Store(t)
	if n.router, err = router.New(router.Options{
		Topology: t, Local: n.server, ClusterID: c.Cluster.ID, BucketCount: uint32(c.BucketCount),
		Zone: c.Node.Zone, Dial: security.dial, Secure: security.secure, Logger: logger,
	}); err != nil {
		return nil, err
	}
	link.Attach(n.router)
	if err := n.openQueues(security, reg); err != nil {
		return nil, err
	}
	n.cluster, err = admin.New(admin.Options{
		Router: n.router, Members: n.members, ClusterID: c.Cluster.ID, Forget: t.forget, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	v1.RegisterClusterServiceServer(n.grpc, n.cluster)
	if n.storage != nil {
		if err := n.rebalance(reg); err != nil {
			return nil, err
		}
	}
	n.served.Go(func() {
		if err := n.grpc.Serve(n.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			logger.Error("the port for other nodes is closed", "err", err)
		}
	})
	logger.Info("serving other nodes", "node", c.Node.Name, "cluster", c.Cluster.ID,
		"addr", n.listener.Addr().String(), "gossip", n.members.Address(), "roles", c.roles().String())
	return n, nil
}

// address is where other nodes reach this one.
func (n *member) address() string {
	if a := n.config.Cluster.Advertise; a != "" {
		return a
	}
	return n.listener.Addr().String()
}

// openStorage opens this node's member of its replica set.
func (n *member) openStorage(ctx context.Context, functions *storage.Registry, link storage.Link, security transport, reg prometheus.Registerer) error {
	c := n.config
	tr, err := raftrpc.New(raftrpc.Options{
		ID: c.Node.Name, ReplicaSet: c.Cluster.ReplicaSet, Address: n.address(), DialOptions: security.dial, Logger: n.logger,
		Resolve: func(id string) string {
			if t := n.topology.Load(); t != nil {
				return t.address(id)
			}
			return ""
		},
	})
	if err != nil {
		return err
	}
	n.storage, err = storage.Open(ctx, storage.Options{
		Registry:    functions,
		BucketCount: uint32(c.BucketCount),
		ReplicaSet:  c.Cluster.ReplicaSet,
		Logger:      n.logger,
		Link:        link,
		CopyRate:    c.Storage.CopyBytesPerSecond,
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return openEngine(ctx, c, m, tr, n.logger, reg)
		},
	})
	if err != nil {
		return errors.Join(err, tr.Close())
	}
	n.server, err = storagerpc.NewServer(storagerpc.ServerOptions{Storage: n.storage, Member: c.Node.Name, Logger: n.logger})
	if err != nil {
		return err
	}
	tr.Register(n.grpc)
	n.server.Register(n.grpc)
	transferrpc.Register(n.grpc, n.storage, n.logger)
	return nil
}

// join begins to gossip.
func (n *member) join(ctx context.Context) (err error) {
	c := n.config
	self := membership.Node{
		Name: c.Node.Name, ClusterID: c.Cluster.ID, BucketCount: uint32(c.BucketCount), Doubling: n.doubling(), Roles: c.roles(),
		PublicAddress: c.Advertise, InternalAddress: n.address(), Zone: c.Node.Zone,
	}
	if self.PublicAddress == "" {
		self.PublicAddress = c.Listen
	}
	if c.has(RoleStorage) {
		self.ReplicaSet, self.Member = c.Cluster.ReplicaSet, c.Node.Name
	}
	if c.Cluster.AlignChanges > 0 {
		self.Start = wholeSecond(time.Now().Add(c.Cluster.AlignChanges))
	}
	n.members, err = membership.Start(ctx, membership.Options{
		Self: self, Listen: c.Cluster.Gossip, Advertise: c.Cluster.GossipAdvertise, Seeds: c.Cluster.Seeds,
		Secret: c.Cluster.Secret, Detection: c.Cluster.Detection, Logger: n.logger,
	})
	if err != nil {
		return fmt.Errorf("cannot take part in cluster %q: %w", c.Cluster.ID, err)
	}
	return nil
}

// wholeSecond is the first whole second that is not before t.
func wholeSecond(t time.Time) int64 {
	if t.Nanosecond() > 0 {
		return t.Unix() + 1
	}
	return t.Unix()
}

// openQueues opens what stands behind the frontend, and this node's partitions.
func (n *member) openQueues(security transport, reg prometheus.Registerer) (err error) {
	batch, err := n.config.Matching.Spread.gradual()
	if err != nil {
		return err
	}
	n.peers, err = peers.New(peers.Options{Members: n.members, DialOptions: append([]grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(storagerpc.MaxMessage), grpc.MaxCallSendMsgSize(storagerpc.MaxMessage)),
	}, security.dial...), BatchSize: batch, Logger: n.logger})
	if err != nil {
		return err
	}
	o := matchingOptions(n.config, n.logger, reg)
	o.Router, o.Peers, o.Owns = n.router, n.peers, n.peers.Owns
	if !n.config.has(RoleMatching) {
		n.Backend, err = matching.NewQueues(matching.QueuesOptions{
			Router: o.Router, Peers: o.Peers, Logger: o.Logger, AutoCreateQueues: o.AutoCreateQueues, Partitions: o.Partitions,
		})
		return err
	}
	if n.engine, err = matching.New(o); err != nil {
		return err
	}
	n.Backend = n.engine
	n.peers.Attach(n.engine)
	matchingrpc.Register(n.grpc, n.engine, n.logger)
	return nil
}

// Cluster implements core.
func (n *member) Cluster() v1.ClusterServiceServer { return n.cluster }

// rebalance begins to spread the buckets, whenever this node is the one to do so.
func (n *member) rebalance(reg prometheus.Registerer) error {
	c := n.config.Rebalancer
	node, err := routed.New(routed.Options{
		Router: n.router, Storage: n.storage, Server: n.server, Threshold: c.Threshold,
		Limits: rebalancer.Limits{MaxSending: c.MaxSending, MaxReceiving: c.MaxReceiving, MaxSendingBytes: c.MaxSendingBytes, BusyShare: c.BusyShare},
		Logger: n.logger, Registerer: reg,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.stopRebalancing = cancel
	n.rebalancing.Go(func() { _ = node.Run(ctx) }) // its error is that of ctx
	n.rebalancing.Go(func() { n.tellDoubling(ctx) })
	return nil
}

// Status implements core. A node of a cluster takes calls when it knows the cluster and the
// store's buckets; that its own member of a replica set is down is the cluster's business.
func (n *member) Status() error {
	if !n.config.has(RoleFrontend) && !n.config.has(RoleMatching) {
		return n.storageStatus()
	}
	if n.ready.Load() {
		return nil
	}
	select {
	case <-n.members.Joined():
	default:
		if err := n.members.Refusal(); err != nil {
			return reason.New(codes.Unavailable, reason.NotReady, nil, "the node has not joined the cluster: %v", err)
		}
		return reason.New(codes.Unavailable, reason.NotReady, nil, "the node has not reached another node of the cluster yet; it asks the addresses in cluster.seeds")
	}
	for b := shard.BucketID(1); b <= shard.BucketID(n.router.BucketCount()); b++ {
		if _, err := n.router.Route(b); err == nil {
			n.ready.Store(true)
			return nil
		}
	}
	return reason.New(codes.Unavailable, reason.NotReady, nil,
		"no bucket of the store is known yet; a new cluster is made with: switchyard cluster bootstrap")
}

// storageStatus is the status of a node that is a member of a replica set and nothing else.
func (n *member) storageStatus() error {
	switch s := n.storage.Status(); s.State {
	case engine.Master, engine.Replica:
		return nil
	case engine.Failed:
		return reason.New(codes.Unavailable, reason.StorageFailed, nil, "%v", s.Err)
	default:
		return reason.New(codes.Unavailable, reason.NotReady, nil, "the member of replica set %s is %v", n.config.Cluster.ReplicaSet, s.State)
	}
}

// Stop implements core: the other nodes take over first.
func (n *member) Stop(ctx context.Context) error {
	var errs []error
	if a := n.config.Cluster.AlignChanges; a > 0 {
		errs = append(errs, n.members.Drain(ctx, time.Now().Add(a)))
	}
	return errors.Join(append(errs, n.close(ctx))...)
}

// close ends what there is, from the top to the ground.
func (n *member) close(ctx context.Context) error {
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	if n.engine != nil {
		add(n.engine.Stop(ctx))
	}
	if n.stopRebalancing != nil {
		n.stopRebalancing()
		n.rebalancing.Wait()
	}
	if n.server != nil {
		n.handOver(ctx)
		add(n.server.Drain(ctx))
	}
	if n.members != nil {
		// When all nodes stop at once, nobody is left to hear it.
		bounded, cancel := context.WithTimeout(ctx, leaveTime)
		err := n.members.Leave(bounded)
		cancel()
		if err != nil {
			n.logger.Warn("the other nodes may not have heard that this one leaves; they will find out", "err", err)
		}
	}
	if n.grpc != nil {
		n.grpc.Stop()
		n.served.Wait()
	}
	if n.listener != nil {
		_ = n.listener.Close() // the gRPC server may have done it
	}
	if n.server != nil {
		n.server.Close()
	}
	if n.router != nil {
		n.router.Close()
	}
	if n.storage != nil {
		add(n.storage.Close(ctx))
	}
	if n.peers != nil {
		add(n.peers.Close())
	}
	if t := n.topology.Load(); t != nil {
		t.close()
	}
	if n.members != nil {
		add(n.members.Close())
	}
	return errors.Join(errs...)
}

// handOver makes another member the master, so that nobody has to find out that this one is
// gone.
func (n *member) handOver(ctx context.Context) {
	s := n.storage.Status()
	if s.State != engine.Master || len(s.Members) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTime)
	defer cancel()
	if err := n.storage.HandOver(ctx, ""); err != nil {
		n.logger.Warn("mastership was not handed over; an election will find the next master", "replicaset", n.config.Cluster.ReplicaSet, "err", err)
	}
}
