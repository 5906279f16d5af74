package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// replicaSet is the name of the one replica set that a node has for now.
const replicaSet = "main"

// openTimeout bounds the recovery of the store at start.
const openTimeout = 5 * time.Minute

// node is the core of a node: the task queues over the router over the store.
type node struct {
	*matching.Engine
	storage *storage.Storage
}

// openNode opens the store, or makes it, and starts the queues over it.
func openNode(c Config, logger *slog.Logger, reg prometheus.Registerer) (_ core, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	functions := storage.NewRegistry()
	matching.RegisterFunctions(functions)
	store, err := storage.Open(ctx, storage.Options{
		Registry:    functions,
		BucketCount: uint32(c.BucketCount),
		ReplicaSet:  replicaSet,
		Logger:      logger,
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return openEngine(ctx, c, m, logger, reg)
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
	queues, err := matching.New(matching.Options{
		Router:           r,
		Logger:           logger,
		Registerer:       reg,
		AutoCreateQueues: c.AutoCreateQueues,
		Partitions:       max(c.Matching.Partitions, 1),
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
	})
	if err != nil {
		return nil, err
	}
	return &node{Engine: queues, storage: store}, nil
}

// openEngine opens the engine of the store and registers its metrics.
func openEngine(ctx context.Context, c Config, m engine.Machine, logger *slog.Logger, reg prometheus.Registerer) (engine.Engine, error) {
	durability := raftengine.Fsync
	if c.Durability == DurabilityInterval {
		durability = raftengine.Interval
	}
	e, err := raftengine.Open(ctx, raftengine.Options{
		Dir:              c.DataDir,
		Memory:           c.Memory,
		Machine:          m,
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
