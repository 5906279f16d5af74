package routed

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/rebalancer"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// Options of New. The zero value of a field that is not required is its default.
type Options struct {
	// Router reaches the replica sets, this node's included, and its topology says which there are.
	// Required.
	Router *router.Router
	// Storage is this node's member of its replica set. Required.
	Storage *storage.Storage
	// Server answers others who ask what this node's rebalancer does; nil for nobody.
	Server *storagerpc.Server
	// Threshold, Limits and Idle are those of the rebalancer.
	Threshold float64
	Limits    rebalancer.Limits
	Idle      time.Duration
	// Logger takes what it does. Default: nothing.
	Logger *slog.Logger
	// Registerer takes the rebalancer's metrics; nil for none.
	Registerer prometheus.Registerer
}

// Node is a node's rebalancer. All methods may be called from any goroutine.
type Node struct {
	store      *store
	rebalancer *rebalancer.Rebalancer
}

// New returns a node's rebalancer, for Run.
func New(o Options) (*Node, error) {
	if o.Router == nil || o.Storage == nil {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: "the rebalancer of a node needs a router and a storage"}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{store: &store{router: o.Router, storage: o.Storage, log: o.Logger}}
	var err error
	n.rebalancer, err = rebalancer.New(rebalancer.Options{
		Store: n.store, ReplicaSet: o.Storage.ReplicaSet(), BucketCount: o.Storage.BucketCount,
		Threshold: o.Threshold, Limits: o.Limits, Idle: o.Idle, Logger: o.Logger, Registerer: o.Registerer,
	})
	if err != nil {
		return nil, err
	}
	if o.Server != nil {
		o.Server.Rebalances(n)
	}
	return n, nil
}

// Run notes replica sets and rebalances, whenever this node is the one to do so, until ctx ends, which is
// the error it returns. Moves under way are called off then.
func (n *Node) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { n.store.runRemember(ctx) })
	err := n.rebalancer.Run(ctx)
	wg.Wait()
	return err
}

// Wake makes it look now.
func (n *Node) Wake() { n.rebalancer.Wake() }

// Status returns what this node's rebalancer does.
func (n *Node) Status() rebalancer.Status {
	st := n.rebalancer.Status()
	if !st.Active {
		st.On, _ = n.store.storage.Rebalancing()
	}
	return st
}

// RebalancerStatus is Status for those in other processes.
func (n *Node) RebalancerStatus() *v1.RebalancerStatusResponse {
	st := n.Status()
	return &v1.RebalancerStatusResponse{
		On: st.On, Active: st.Active, Where: st.Where, Phase: string(st.Phase), Reason: st.Reason,
		Moved: uint64(st.Moved), ToMove: uint64(st.ToMove), Eta: durationpb.New(st.Left),
		Took: durationpb.New(st.Took), Rate: st.Rate(), Failed: uint64(st.Failed),
	}
}

// Waits of remembering.
const (
	// rememberSettle is the least time between two looks.
	rememberSettle = 20 * time.Millisecond
	// rememberAgain is when it is tried again to find out about a replica set, and rememberIdle how
	// often it is looked when nothing happens.
	rememberAgain = time.Second
	rememberIdle  = 30 * time.Second
)

// runRemember notes replica sets that the topology shows while this node is a master.
func (s *store) runRemember(ctx context.Context) {
	for {
		changed := s.router.Changed()
		wait := rememberIdle
		if !s.remember(ctx) {
			wait = rememberAgain
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-t.C:
		}
		t.Stop()
		select {
		case <-ctx.Done():
			return
		case <-time.After(rememberSettle):
		}
	}
}

// remember notes the replica sets that are of this cluster and not known yet. It reports whether there is
// none left.
func (s *store) remember(ctx context.Context) bool {
	cluster := s.storage.ClusterID()
	if cluster == "" || !s.Master() {
		return true
	}
	known := s.Known()
	var unknown []string
	for _, name := range s.router.RouteAll() {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	done := make([]bool, len(unknown))
	var wg sync.WaitGroup
	for i, name := range unknown {
		wg.Go(func() {
			info, err := ask(ctx, s.router, name)
			if err != nil || info.GetClusterId() != cluster {
				return // it may be made part of the cluster later
			}
			ctx, cancel := context.WithTimeout(ctx, askTime)
			defer cancel()
			if err := s.storage.RememberReplicaSet(ctx, name); err != nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "a replica set cannot be noted", slog.String("replicaset", name), slog.Any("err", err))
				return
			}
			done[i] = true
			s.log.LogAttrs(ctx, slog.LevelInfo, "there is another replica set in the cluster", slog.String("replicaset", name))
		})
	}
	wg.Wait()
	return !slices.Contains(done, false)
}
