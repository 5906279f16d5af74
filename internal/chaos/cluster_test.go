package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
	"github.com/switchyard-dev/switchyard/shard/storage/transferrpc"
)

const (
	clusterID = "chaos"
	buckets   = 30
)

// heartbeat is generous enough for a busy machine with the race detector, where nine members
// share two cores.
const heartbeat = 600 * time.Millisecond

// closeGrace is how long a member that is killed may take to let go of its folder.
const closeGrace = 30 * time.Second

// options of a cluster.
type options struct {
	dir           string
	sets, members int
	// wrap puts something between the storage and those who call it: the seeded bugs.
	wrap func(*storage.Storage) storagerpc.Storage
	logs io.Writer
}

// cluster is the store under test.
type cluster struct {
	opts    options
	net     *network
	nodes   []*node // of set 0, then of set 1, …
	names   []string
	clients []*router.Router // in no node

	// A process whose engine cannot go on ends, and is started again.
	supervising sync.WaitGroup
	mu          sync.Mutex
	closing     bool
	fatal       []error // why processes ended by themselves
	broken      error   // why one did not start again
}

// node is a member of a replica set: a folder and a name that outlive its process.
type node struct {
	c       *cluster
	id, set string
	dir     string

	mu  sync.Mutex
	run *process // nil while it is down
}

// process is what is gone when a node is killed.
type process struct {
	engine *raftengine.Engine
	store  *storage.Storage
	served storagerpc.Storage // store, or what is put before it
	server *storagerpc.Server
	grpc   *grpc.Server
	router *router.Router
	disk   *disk
	ended  chan struct{} // closed when grpc has
}

func newCluster(ctx context.Context, opts options) (*cluster, error) {
	c := &cluster{opts: opts, net: newNetwork()}
	for s := range opts.sets {
		set := string(rune('a' + s))
		c.names = append(c.names, set)
		for m := range opts.members {
			id := fmt.Sprintf("%s%d", set, m+1)
			c.nodes = append(c.nodes, &node{c: c, id: id, set: set, dir: filepath.Join(opts.dir, id)})
		}
	}
	if err := c.bootstrap(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *cluster) bootstrap(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := n.start(ctx); err != nil {
			return err
		}
	}
	for i := range 2 {
		r, err := router.New(router.Options{Topology: c.topology(), ClusterID: clusterID, BucketCount: buckets, Dial: c.net.dialOptions(clientName(i)), Secure: true})
		if err != nil {
			return err
		}
		c.clients = append(c.clients, r)
	}
	each := buckets / len(c.names)
	for i, set := range c.names {
		members := c.members(set)
		all := make([]engine.Member, len(members))
		for k, n := range members {
			all[k] = engine.Member{ID: n.id, Address: n.id + portSuffix, Voter: true}
		}
		if err := members[0].run.engine.Bootstrap(ctx, all); err != nil {
			return fmt.Errorf("bootstrap of %s: %w", set, err)
		}
		last := (i + 1) * each
		if i == len(c.names)-1 {
			last = buckets
		}
		err := c.clients[0].OnMaster(ctx, set, func(ctx context.Context, s v1.StorageServiceClient) error {
			_, err := s.BootstrapStorage(ctx, &v1.BootstrapStorageRequest{ClusterId: clusterID, BucketCount: buckets, ReplicaSet: set,
				Buckets: []*v1.BucketRange{{First: uint32(i*each + 1), Last: uint32(last)}}})
			return err
		})
		if err != nil {
			return fmt.Errorf("bootstrap of %s: %w", set, err)
		}
	}
	return nil
}

func clientName(i int) string { return fmt.Sprintf("client%d", i+1) }

func (c *cluster) topology() router.Topology {
	var sets []router.Set
	for _, name := range c.names {
		s := router.Set{Name: name}
		for _, n := range c.members(name) {
			s.Members = append(s.Members, router.Member{ID: n.id, Address: n.id + portSuffix})
		}
		sets = append(sets, s)
	}
	return router.Static(sets...)
}

func (c *cluster) members(set string) (members []*node) {
	for _, n := range c.nodes {
		if n.set == set {
			members = append(members, n)
		}
	}
	return members
}

// everybody are the names on the network.
func (c *cluster) everybody() (names []string) {
	for _, n := range c.nodes {
		names = append(names, n.id)
	}
	for i := range c.clients {
		names = append(names, clientName(i))
	}
	return names
}

// router returns one of the routers of nodes that are up, or of those that are in no node.
func (c *cluster) router(rnd *rand.Rand) *router.Router {
	if i := rnd.IntN(len(c.nodes) + 2*len(c.clients)); i < len(c.nodes) {
		if p := c.nodes[i].process(); p != nil {
			return p.router
		}
	}
	return c.clients[rnd.IntN(len(c.clients))]
}

func (c *cluster) close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.supervising.Wait()
	for _, r := range c.clients {
		r.Close()
	}
	for _, n := range c.nodes {
		_, _ = n.kill(nil)
	}
}

// ended is what an engine calls that cannot go on. A real process ends then, and whoever
// looks after it starts it again.
func (n *node) ended(p *process, why error) {
	if p.disk.isDead() {
		return // it is being killed
	}
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if n.c.closing {
		return
	}
	n.c.fatal = append(n.c.fatal, fmt.Errorf("%s: %w", n.id, why))
	n.c.supervising.Go(func() {
		if n.process() != p {
			return
		}
		_, err := n.kill(nil)
		ctx, cancel := context.WithTimeout(context.Background(), startTime)
		defer cancel()
		if err = errors.Join(err, n.start(ctx)); err != nil {
			n.c.mu.Lock()
			defer n.c.mu.Unlock()
			n.c.broken = errors.Join(n.c.broken, fmt.Errorf("restart of %s after %w: %w", n.id, why, err))
		}
	})
}

// endings returns why processes ended by themselves, and why one did not start again.
func (c *cluster) endings() (why []error, broken error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.fatal), c.broken
}

func (n *node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.run
}

// start starts the node on what is in its folder.
func (n *node) start(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.run != nil {
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	tr, err := raftrpc.New(raftrpc.Options{ID: n.id, ReplicaSet: n.set, Address: n.id + portSuffix, DialOptions: n.c.net.dialOptions(n.id)})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	p := &process{disk: newDisk(), ended: make(chan struct{})}
	log := n.logger()
	link := new(transferrpc.Link)
	p.store, err = storage.Open(ctx, storage.Options{
		Registry: storage.NewRegistry(), BucketCount: buckets, ReplicaSet: n.set, Link: link, Logger: log,
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			e, err := raftengine.Open(ctx, raftengine.Options{
				Dir: n.dir, Machine: m, BucketCount: buckets, ClusterID: clusterID, Transport: tr, Logger: log,
				HeartbeatTimeout: heartbeat, ElectionTimeout: heartbeat, OnFatal: func(err error) { n.ended(p, err) },
				// Small, so that snapshots are taken, and sent to those who were away.
				SnapshotBytes: 1 << 20, TrailingBytes: 256 << 10, CacheBytes: 4 << 20, MemTableBytes: 1 << 20,
			}.WithLogFS(p.disk).WithCloseGrace(closeGrace))
			p.engine = e
			return e, err
		},
	})
	if err != nil {
		return errors.Join(fmt.Errorf("start of %s: %w", n.id, err), l.Close())
	}
	p.served = p.store
	if n.c.opts.wrap != nil {
		p.served = n.c.opts.wrap(p.store)
	}
	// Nothing of this fails but for a mistake in the test.
	if p.server, err = storagerpc.NewServer(storagerpc.ServerOptions{Storage: p.served, Member: n.id}); err != nil {
		return err
	}
	p.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(storagerpc.MaxMessage), grpc.MaxSendMsgSize(storagerpc.MaxMessage))
	p.server.Register(p.grpc)
	tr.Register(p.grpc)
	transferrpc.Register(p.grpc, p.store, log)
	p.router, err = router.New(router.Options{Topology: n.c.topology(), Local: p.server, ClusterID: clusterID, Dial: n.c.net.dialOptions(n.id), Secure: true})
	if err != nil {
		return err
	}
	link.Attach(p.router)
	go func() {
		defer close(p.ended)
		_ = p.grpc.Serve(l) // ends with Stop
	}()
	n.c.net.up(n.id, l.Addr().String())
	n.run = p
	return nil
}

func (n *node) logger() *slog.Logger {
	if n.c.opts.logs == nil {
		return nil
	}
	return slog.New(slog.NewTextHandler(n.c.opts.logs, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", n.id)
}

// kill ends the node as a power cut does: from one moment on nobody hears of it and its log
// keeps nothing. With rnd, a part of what was not synced is lost; it returns how many sectors.
func (n *node) kill(rnd *rand.Rand) (torn int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.run
	if p == nil {
		return 0, nil
	}
	n.run = nil
	n.c.net.up(n.id, "")
	p.disk.die()
	p.grpc.Stop()
	<-p.ended
	p.router.Close()
	p.server.Close()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	began := time.Now()
	err = p.store.Close(ended) // it has no time and no disk, which is an error
	if took := time.Since(began); took >= closeGrace {
		// What cannot be released is not released, and the folder stays locked.
		stacks := make([]byte, 8<<20)
		return 0, fmt.Errorf("%s did not let go of its folder in %v: %w\n%s", n.id, took, err, stacks[:runtime.Stack(stacks, true)])
	}
	if rnd == nil {
		return 0, nil
	}
	return p.disk.tear(rnd)
}

// wipe deletes what is on the node's disk. It must be down.
func (n *node) wipe() error { return os.RemoveAll(n.dir) }
