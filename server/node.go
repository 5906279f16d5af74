package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/admin"
	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// loneReplicaSet is the name of the one replica set of a node by itself.
const loneReplicaSet = "main"

// openTimeout bounds the recovery of the store at start.
const openTimeout = 5 * time.Minute

// node is the core of a node by itself: the task queues over the router over the store.
type node struct {
	*matching.Engine
	storage *storage.Storage
	cluster v1.ClusterServiceServer
}

// openNode opens what the node runs.
func openNode(c Config, logger *slog.Logger, reg prometheus.Registerer, functions *storage.Registry) (core, error) {
	if c.clustered() {
		return openMember(c, logger, reg, functions)
	}
	return openLone(c, logger, reg, functions)
}

// openLone opens the store, or makes it, and starts the queues over it.
func openLone(c Config, logger *slog.Logger, reg prometheus.Registerer, functions *storage.Registry) (_ core, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	store, err := storage.Open(ctx, storage.Options{
		Registry:    functions,
		BucketCount: uint32(c.BucketCount),
		ReplicaSet:  loneReplicaSet,
		Logger:      logger,
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return openEngine(ctx, c, m, nil, logger, reg)
		},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, store.Close(ctx))
		}
	}()
	// Only the first start makes the buckets.
	if err := store.Bootstrap(ctx); err != nil && !errors.Is(err, shard.NonEmpty) {
		return nil, fmt.Errorf("cannot make the buckets: %w", err)
	}
	r, err := router.New(router.Options{ReplicaSets: []router.ReplicaSet{store}})
	if err != nil {
		return nil, err
	}
	o := matchingOptions(c, logger, reg)
	o.Router = r
	o.Partitions = max(o.Partitions, 1)
	queues, err := matching.New(o)
	if err != nil {
		return nil, err
	}
	operators, err := admin.New(admin.Options{Router: r, Logger: logger})
	if err != nil {
		return nil, errors.Join(err, queues.Stop(ctx))
	}
	return &node{Engine: queues, storage: store, cluster: operators}, nil
}

// functions are what can be called in the store of a node.
func functions(register []func(*storage.Registry)) *storage.Registry {
	r := storage.NewRegistry()
	matching.RegisterFunctions(r)
	for _, add := range register {
		add(r)
	}
	return r
}

// matchingOptions are the options of the queues that the configuration says.
func matchingOptions(c Config, logger *slog.Logger, reg prometheus.Registerer) matching.Options {
	return matching.Options{
		Logger:           logger,
		Registerer:       reg,
		AutoCreateQueues: c.AutoCreateQueues,
		Partitions:       c.Matching.Partitions,
		IdleTime:         c.Matching.IdleTime,
		MaxPartitions:    c.Matching.MaxPartitions,
		Limits: matching.Limits{
			Leases:       c.Matching.Leases,
			WaitingPolls: c.Matching.WaitingPolls,
			WindowTasks:  c.Matching.WindowTasks,
			WindowBytes:  c.Matching.WindowBytes,
			PendingCalls: c.Matching.PendingCalls,
			PendingBytes: c.Matching.PendingBytes,
			PollBytes:    c.Matching.PollBytes,
		},
	}
}

// openEngine opens the engine of the store and registers its metrics. tr leads to the other
// members of its group, nil for a group of one.
func openEngine(ctx context.Context, c Config, m engine.Machine, tr *raftrpc.Transport, logger *slog.Logger, reg prometheus.Registerer) (engine.Engine, error) {
	durability := raftengine.Fsync
	if c.Durability == DurabilityInterval {
		durability = raftengine.Interval
	}
	e, err := raftengine.Open(ctx, raftengine.Options{
		Dir:              c.DataDir,
		Memory:           c.Memory,
		Machine:          m,
		ClusterID:        c.Cluster.ID,
		Transport:        tr,
		BucketCount:      uint32(c.BucketCount),
		Durability:       durability,
		SyncInterval:     c.SyncInterval,
		MaxInFlight:      c.Storage.InFlightCommands,
		MaxInFlightBytes: c.Storage.InFlightBytes,
		SnapshotBytes:    c.Storage.SnapshotLogBytes,
		CacheBytes:       c.Storage.BlockCacheBytes,
		MemTableBytes:    uint64(c.Storage.MemtableBytes),
		Logger:           logger,
		// The node stays up so that people and probes can see what is wrong:
		// its status turns red with the engine's.
		OnFatal: func(err error) { logger.Error("the store has failed; the node takes no more calls", "err", err) },
	})
	if err != nil {
		return nil, err
	}
	if err := reg.Register(e); err != nil {
		return nil, errors.Join(fmt.Errorf("metrics of the store: %w", err), e.Close(ctx))
	}
	return e, nil
}

// Cluster implements core.
func (n *node) Cluster() v1.ClusterServiceServer { return n.cluster }

// Status implements core.
func (n *node) Status() error {
	s := n.storage.Status()
	switch s.State {
	case engine.Master:
		return nil
	case engine.Failed:
		return reason.New(codes.Unavailable, reason.StorageFailed, nil, "%v", s.Err)
	case engine.Closed:
		return reason.New(codes.Unavailable, reason.ShuttingDown, nil, "the store is closed")
	}
	return reason.New(codes.Unavailable, reason.NotReady, nil, "the store is %v and takes no writes yet", s.State)
}

// Stop implements core.
func (n *node) Stop(ctx context.Context) error {
	return errors.Join(n.Engine.Stop(ctx), n.storage.Close(ctx))
}
