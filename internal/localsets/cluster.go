package localsets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// ClusterID is that of every cluster made here.
const ClusterID = "local"

// Options of Start. The zero value of a field is its default.
type Options struct {
	// Dir is where the members have their folders. Required, unless Engine.Memory is set.
	Dir string
	// Sets are the names of the replica sets (default a and b). The first has all buckets.
	Sets []string
	// Members is how many each has (default 1).
	Members int
	// Buckets is the bucket_count (default 16).
	Buckets uint32
	// Bare members are not made a group, and get no buckets: nothing is bootstrapped.
	Bare bool
	// Engine is what the members' engines have in common: the machine, the folder, the
	// transport and the bucket count are filled in.
	Engine raftengine.Options
	// Functions makes the functions of one member (default: kv alone).
	Functions func() *storage.Registry
	// Storage changes the options of a member's storage before it is opened.
	Storage func(*storage.Options)
	// Serve changes what a member's service is over: to look at calls. Default: its storage.
	Serve func(*storage.Storage) storagerpc.Storage
	// Logger takes what everybody has to say. Default: nothing.
	Logger *slog.Logger
}

// Cluster is a number of replica sets. Its methods are for one goroutine.
type Cluster struct {
	opts    Options
	members []*Member
	topology
}

// Start makes a cluster and waits until each set has a master.
func Start(ctx context.Context, opts Options) (_ *Cluster, err error) {
	if len(opts.Sets) == 0 {
		opts.Sets = []string{"a", "b"}
	}
	if opts.Members == 0 {
		opts.Members = 1
	}
	if opts.Buckets == 0 {
		opts.Buckets = 16
	}
	if opts.Functions == nil {
		opts.Functions = storage.NewRegistry
	}
	if opts.Serve == nil {
		opts.Serve = func(s *storage.Storage) storagerpc.Storage { return s }
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Cluster{opts: opts, topology: topology{changed: make(chan struct{})}}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	// All addresses first: every member knows all the others.
	for _, name := range opts.Sets {
		if err := c.place(name); err != nil {
			return nil, err
		}
	}
	for _, m := range c.members {
		if err := m.Start(ctx); err != nil {
			return nil, err
		}
	}
	for i, name := range opts.Sets {
		if opts.Bare {
			break
		}
		if err := c.bootstrap(ctx, name, i == 0); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// place gives a new set its members' addresses.
func (c *Cluster) place(name string) (err error) {
	set := router.Set{Name: name}
	for i := range c.opts.Members {
		m := &Member{c: c, Set: name, ID: fmt.Sprintf("%s%d", name, i+1)}
		m.dir = filepath.Join(c.opts.Dir, m.ID)
		if m.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		m.Address = m.listener.Addr().String()
		c.members = append(c.members, m)
		set.Members = append(set.Members, router.Member{ID: m.ID, Address: m.Address})
	}
	c.add(set)
	return nil
}

// AddSet adds a set without buckets, with as many members as the others have, and waits until it has a
// master.
func (c *Cluster) AddSet(ctx context.Context, name string) error {
	if err := c.place(name); err != nil {
		return err
	}
	for _, m := range c.Members(name) {
		if err := m.Start(ctx); err != nil {
			return err
		}
	}
	if c.opts.Bare {
		return nil
	}
	return c.bootstrap(ctx, name, false)
}

func (c *Cluster) bootstrap(ctx context.Context, set string, all bool) error {
	members := c.Members(set)
	group := make([]engine.Member, len(members))
	for i, m := range members {
		group[i] = engine.Member{ID: m.ID, Address: m.Address, Voter: true}
	}
	// On a slow machine the mastership may change while the others join; the new master goes on.
	for m := members[0]; ; {
		err := m.Engine.Bootstrap(ctx, group)
		if err == nil {
			break
		}
		if !errors.Is(err, shard.NonMaster) && !errors.Is(err, shard.OutcomeUnknown) {
			return err
		}
		if m, err = c.Master(ctx, set); err != nil {
			return err
		}
	}
	req := &v1.BootstrapStorageRequest{ClusterId: ClusterID, BucketCount: c.opts.Buckets, ReplicaSet: set}
	if all {
		req.Buckets = []*v1.BucketRange{{First: 1, Last: c.opts.Buckets}}
	}
	for {
		m, err := c.Master(ctx, set)
		if err != nil {
			return err
		}
		err = m.Storage.BootstrapReplicaSet(ctx, req)
		if !errors.Is(err, shard.NonMaster) && !errors.Is(err, shard.OutcomeUnknown) {
			return err
		}
	}
}

// Members returns the members of a set, alive or not.
func (c *Cluster) Members(set string) (out []*Member) {
	for _, m := range c.members {
		if m.Set == set {
			out = append(out, m)
		}
	}
	return out
}

// Master waits until a living member of a set is master.
func (c *Cluster) Master(ctx context.Context, set string) (*Member, error) {
	for {
		for _, m := range c.Members(set) {
			if m.Alive() && m.Storage.Status().State == engine.Master {
				return m, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("replica set %s has no master: %w", set, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Topology returns where everybody is, and will be.
func (c *Cluster) Topology() router.Topology { return &c.topology }

// Router makes a router of a process that has no storage. Close it before the cluster.
func (c *Cluster) Router() (*router.Router, error) {
	return router.New(router.Options{Topology: c.Topology(), ClusterID: ClusterID, BucketCount: c.opts.Buckets, Logger: c.opts.Logger})
}

// Close ends all members.
func (c *Cluster) Close() {
	for _, m := range c.members {
		m.Kill()
		if m.listener != nil {
			_ = m.listener.Close()
		}
	}
}
