package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// retryPause is between two tries of what passes.
const retryPause = 50 * time.Millisecond

// needsCluster is the error on a node by itself.
func (s *Service) needsCluster() error {
	if s.members == nil || s.clusterID == "" {
		return misconfigured("", "this node runs by itself, and its store was made when it was first started; give it a cluster.id and others to run with")
	}
	return nil
}

// BootstrapCluster implements v1.ClusterService.
func (s *Service) BootstrapCluster(ctx context.Context, req *v1.BootstrapClusterRequest) (*v1.BootstrapClusterResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.BootstrapClusterResponse, error) {
		if err := s.needsCluster(); err != nil {
			return nil, err
		}
		wanted := Wanted{ReplicaSets: int(req.GetReplicaSets()), Members: int(req.GetMembers()), Weights: req.GetWeights()}
		plans, err := s.plan(ctx, wanted)
		if err != nil {
			return nil, err
		}
		resp := &v1.BootstrapClusterResponse{ClusterId: s.clusterID, BucketCount: s.router.BucketCount()}
		var names []string
		for _, p := range plans {
			resp.ReplicaSets = append(resp.ReplicaSets, p.message())
			names = append(names, p.Name)
		}
		if req.GetDryRun() {
			return resp, nil
		}
		for _, p := range plans {
			if p.Done {
				continue
			}
			if err := s.make(ctx, p, names); err != nil {
				return nil, fmt.Errorf("replica set %s was not made; the same command goes on from there: %w", p.Name, err)
			}
			s.log.Info("a replica set was made", "replica_set", p.Name, "members", len(p.Members), "buckets", len(p.Buckets), "weight", p.Weight)
		}
		return resp, nil
	})
}

// plan finds out what is to be made of the nodes that are there.
func (s *Service) plan(ctx context.Context, w Wanted) ([]Planned, error) {
	sets, err := group(s.nodes())
	if err == nil {
		err = checkWanted(w, sets)
	}
	if err != nil {
		return nil, err
	}
	found := map[string]Found{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for name, nodes := range sets {
		wg.Go(func() {
			f, e := s.find(ctx, name, nodes)
			mu.Lock()
			defer mu.Unlock()
			found[name] = f
			if e != nil && err == nil {
				err = e
			}
		})
	}
	wg.Wait()
	if err != nil {
		return nil, err
	}
	return Plan(s.clusterID, s.router.BucketCount(), w, found)
}

// find asks all nodes of a replica set. All must answer.
func (s *Service) find(ctx context.Context, name string, nodes []membership.Node) (Found, error) {
	f := Found{Members: nodes, Weight: 1}
	from := ""
	for _, n := range nodes {
		info, err := s.info(ctx, name, n.Name)
		if err != nil {
			return f, fmt.Errorf("node %s of replica set %s must answer before it can be made part of the store: %w", n.Name, name, err)
		}
		switch {
		case info.GetReplicaSet() != name:
			return f, misconfigured(name, "node %s serves replica set %s", n.Name, info.GetReplicaSet())
		case info.GetBucketCount() != s.router.BucketCount():
			return f, misconfigured(name, "node %s has a bucket_count of %d, this one of %d", n.Name, info.GetBucketCount(), s.router.BucketCount())
		case engine.State(info.GetEngineState()) == engine.Failed:
			return f, &shard.Error{Code: shard.StoreFailed, ReplicaSet: name, Reason: "node " + n.Name + ": " + info.GetEngineError()}
		}
		if from == "" || engine.State(info.GetEngineState()) == engine.Master {
			from = n.Name
		}
		if info.GetClusterId() != "" {
			f.ClusterID, f.Known, f.Weight = info.GetClusterId(), info.GetKnownReplicaSets(), info.GetWeight()
		}
	}
	err := s.onMember(ctx, name, from, func(ctx context.Context, c v1.StorageServiceClient) error {
		f.Buckets = nil
		stream, err := c.ListBuckets(ctx, &v1.ListBucketsRequest{})
		if err != nil {
			return err
		}
		return each(stream, func(resp *v1.ListBucketsResponse) error {
			for _, b := range resp.GetBuckets() {
				if b.GetBucket() < 1 || b.GetBucket() > s.router.BucketCount() {
					return misconfigured(name, "it has a bucket %d", b.GetBucket())
				}
				f.Buckets = append(f.Buckets, shard.BucketID(b.GetBucket()))
			}
			return nil
		})
	})
	return f, err
}

// onMember calls fn with one member. It gives the router time to hear of it.
func (s *Service) onMember(ctx context.Context, set, id string, fn func(context.Context, v1.StorageServiceClient) error) error {
	wait, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for {
		err := s.router.OnMember(wait, set, id, fn)
		if wait.Err() != nil && ctx.Err() == nil {
			err = unanswered(shard.UnreachableReplica, set, "member "+id, err)
		}
		if !errors.Is(err, shard.UnreachableReplica) && !errors.Is(err, shard.NoSuchReplicaSet) {
			return err
		}
		select {
		case <-time.After(retryPause):
		case <-wait.Done():
			return err
		}
	}
}

// info asks a member for its condition.
func (s *Service) info(ctx context.Context, set, id string) (info *v1.StorageInfoResponse, err error) {
	err = s.onMember(ctx, set, id, func(ctx context.Context, c v1.StorageServiceClient) (err error) {
		info, err = c.StorageInfo(ctx, &v1.StorageInfoRequest{})
		return err
	})
	return info, err
}

// make makes a replica set, with all that is known of the others.
func (s *Service) make(ctx context.Context, p Planned, all []string) error {
	req := &v1.BootstrapStorageRequest{
		ClusterId: s.clusterID, BucketCount: s.router.BucketCount(), ReplicaSet: p.Name, Weight: p.Weight, Drained: p.Weight == 0,
		Buckets: rangesOf(spansOf(slices.Clone(p.Buckets))), Members: p.message().GetMembers(), ReplicaSets: all,
	}
	for {
		// One that has begun already has a master; else any member will do, and it is always the same.
		at := p.Members[0].ID
		for _, m := range p.Members {
			info, err := s.info(ctx, p.Name, m.ID)
			if err == nil && engine.State(info.GetEngineState()) == engine.Master {
				at = m.ID
			}
		}
		err := s.router.OnMember(ctx, p.Name, at, func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.BootstrapStorage(ctx, req)
			return err
		})
		if !errors.Is(err, shard.NonMaster) && !errors.Is(err, shard.OutcomeUnknown) {
			return err
		}
		// Somebody else has become master meanwhile.
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return err
		}
	}
}

// AddReplicaSet implements v1.ClusterService.
func (s *Service) AddReplicaSet(ctx context.Context, req *v1.AddReplicaSetRequest) (*v1.AddReplicaSetResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.AddReplicaSetResponse, error) {
		if err := s.needsCluster(); err != nil {
			return nil, err
		}
		weight := 1.0
		if req.Weight != nil {
			weight = req.GetWeight()
		}
		if err := checkWeight(req.GetName(), weight); err != nil {
			return nil, err
		}
		sets, err := group(s.nodes())
		if err != nil {
			return nil, err
		}
		nodes, ok := sets[req.GetName()]
		if !ok {
			return nil, noSet(req.GetName(), slices.Sorted(maps.Keys(sets)))
		}
		if err := checkMembers(req.GetName(), nodes, int(req.GetMembers())); err != nil {
			return nil, err
		}
		known, err := s.knownSets(ctx)
		if err != nil {
			return nil, err
		}
		f, err := s.find(ctx, req.GetName(), nodes)
		switch {
		case err != nil:
			return nil, err
		case f.ClusterID != "":
			return nil, &shard.Error{Code: shard.NonEmpty, ReplicaSet: req.GetName(), Reason: "it is part of cluster " + f.ClusterID + " already"}
		case len(f.Buckets) > 0:
			return nil, &shard.Error{Code: shard.NonEmpty, ReplicaSet: req.GetName(), Bucket: f.Buckets[0], Reason: "it has buckets of its own; a replica set that is added must be empty"}
		}
		p := Planned{Name: req.GetName(), Members: newMembers(nodes), Weight: weight}
		if err := s.make(ctx, p, append(known, req.GetName())); err != nil {
			return nil, err
		}
		s.log.Info("a replica set was added", "replica_set", p.Name, "members", len(p.Members), "weight", weight)
		return &v1.AddReplicaSetResponse{ReplicaSet: p.message()}, nil
	})
}

// knownSets returns the names of the replica sets that are part of the store, which must exist.
func (s *Service) knownSets(ctx context.Context) ([]string, error) {
	known := map[string]bool{}
	info := s.router.Info(ctx)
	for i := range info.ReplicaSets {
		if f := &info.ReplicaSets[i]; part(f) {
			known[f.Name] = true
			for _, name := range f.Known {
				known[name] = true
			}
		}
	}
	if len(known) == 0 {
		return nil, misconfigured("", "the store does not exist yet, or none of its replica sets answers; make it with: switchyard cluster bootstrap")
	}
	return slices.Sorted(maps.Keys(known)), nil
}
