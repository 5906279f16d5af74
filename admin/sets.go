package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"
)

// checkSet returns NO_SUCH_REPLICASET when the router does not know a replica set.
func (s *Service) checkSet(name string) error {
	if known := s.router.RouteAll(); !slices.Contains(known, name) {
		slices.Sort(known)
		return noSet(name, known)
	}
	return nil
}

// changeSet calls fn with the master of a replica set that there is.
func (s *Service) changeSet(ctx context.Context, name string, fn func(context.Context, v1.StorageServiceClient) error) error {
	if err := s.checkSet(name); err != nil {
		return err
	}
	return s.router.OnMaster(ctx, name, fn)
}

// insist repeats what may be done more than once, when it is not known whether it was done.
func insist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !errors.Is(err, shard.OutcomeUnknown) {
			return err
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return err
		}
	}
}

// UpdateReplicaSet implements v1.ClusterService.
func (s *Service) UpdateReplicaSet(ctx context.Context, req *v1.UpdateReplicaSetRequest) (*v1.UpdateReplicaSetResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.UpdateReplicaSetResponse, error) {
		if req.Weight == nil && req.Locked == nil {
			return nil, invalid("neither a weight nor a lock is given")
		}
		if req.Weight != nil {
			if err := checkWeight(req.GetName(), req.GetWeight()); err != nil {
				return nil, err
			}
		}
		set := func(ctx context.Context, c v1.StorageServiceClient) (err error) {
			if req.Weight != nil {
				_, err = c.SetWeight(ctx, &v1.SetWeightRequest{Weight: req.GetWeight()})
			}
			if err == nil && req.Locked != nil {
				_, err = c.SetLock(ctx, &v1.SetLockRequest{Locked: req.GetLocked()})
			}
			return err
		}
		err := insist(ctx, func() error { return s.changeSet(ctx, req.GetName(), set) })
		if err == nil {
			s.log.Info("a replica set was changed", "replica_set", req.GetName(), "change", req.String())
		}
		return &v1.UpdateReplicaSetResponse{}, err
	})
}

// RemoveReplicaSet implements v1.ClusterService.
func (s *Service) RemoveReplicaSet(ctx context.Context, req *v1.RemoveReplicaSetRequest) (*v1.RemoveReplicaSetResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.RemoveReplicaSetResponse, error) {
		if err := s.needsCluster(); err != nil {
			return nil, err
		}
		name := req.GetName()
		known, err := s.knownSets(ctx)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(known, name) {
			return nil, noSet(name, known)
		}
		others := slices.DeleteFunc(known, func(n string) bool { return n == name })
		if err := s.checkDrained(ctx, name, others); err != nil {
			return nil, err
		}
		for _, set := range others {
			err := s.onMaster(ctx, set, func(ctx context.Context, c v1.StorageServiceClient) error {
				_, err := c.ForgetReplicaSet(ctx, &v1.ForgetReplicaSetRequest{ReplicaSet: name})
				return err
			})
			// One that has not heard of it has nothing to forget.
			if err != nil && !errors.Is(err, shard.NoSuchReplicaSet) {
				return nil, fmt.Errorf("replica set %s has not forgotten it; the same command goes on from there: %w", set, err)
			}
		}
		// Other nodes have its nodes in mind too, because they may come back.
		if err := s.members.Publish(removedFact+name, []byte{1}, uint64(time.Now().UnixMilli())); err != nil {
			s.log.Warn("other nodes do not hear that a replica set was removed", "replica_set", name, "err", err)
		}
		s.forget(name)
		s.log.Info("a replica set was removed", "replica_set", name)
		return &v1.RemoveReplicaSetResponse{}, nil
	})
}

// removedFact and the name of a replica set are the key of the fact that it was removed.
const removedFact = "removed-set/"

// RemovedSet returns the replica set of which a fact says that it was removed. Whoever keeps nodes in
// mind that are gone forgets those of the set.
func RemovedSet(f membership.Fact) (set string, ok bool) {
	return strings.CutPrefix(f.Key, removedFact)
}

// checkDrained makes sure that a replica set owns no bucket: the others must answer and own all, and the
// nodes of the set must be stopped, because masters would remember it again.
func (s *Service) checkDrained(ctx context.Context, name string, others []string) error {
	p := s.look(ctx)
	for _, set := range others {
		if err := p.errs[set]; err != nil {
			return fmt.Errorf("every other replica set must answer before one can be forgotten: %w", err)
		}
		if !slices.Contains(s.router.RouteAll(), set) {
			return &shard.Error{Code: shard.UnreachableReplicaSet, ReplicaSet: set, Reason: "every other replica set must answer before one can be forgotten, and of this one no node was seen"}
		}
	}
	var there, left, nowhere []shard.BucketID
	for b := shard.BucketID(1); uint32(b) <= s.router.BucketCount(); b++ {
		elsewhere := false
		here := false
		for _, at := range p.at[b] {
			if at.set == name && (at.state == shard.Sent || at.state == shard.Garbage) {
				left = append(left, b)
			} else if at.set == name {
				here = true
			} else if at.state.CanRead() {
				elsewhere = true
			}
		}
		switch {
		case here:
			there = append(there, b)
		case !elsewhere:
			nowhere = append(nowhere, b)
		}
	}
	switch {
	case len(there) > 0:
		return &shard.Error{Code: shard.NonEmpty, ReplicaSet: name, Bucket: there[0], Reason: fmt.Sprintf(
			"%d buckets are on it; drain it with: switchyard shard weight %s 0, and wait until: switchyard shard info shows no bucket on it", len(there), name)}
	case len(left) > 0:
		return &plain{&shard.Error{Code: shard.TransferIsInProgress, ReplicaSet: name, Bucket: left[0]}, fmt.Sprintf(
			"replica set %s: the rows of %d buckets that have left it are not deleted yet; try again in some seconds", name, len(left))}
	case len(nowhere) > 0:
		return &shard.Error{Code: shard.NonEmpty, ReplicaSet: name, Bucket: nowhere[0], Reason: fmt.Sprintf(
			"%d buckets are on no other replica set, so they may be on this one, which does not answer; start its nodes and drain it first", len(nowhere))}
	}
	if up := s.nodesOf(name); len(up) > 0 {
		return misconfigured(name, "it owns no bucket and its nodes are still there; stop %s, and then remove it", strings.Join(nodeNames(up), ", "))
	}
	return nil
}

// nodesOf returns the nodes with storage of a replica set that are alive.
func (s *Service) nodesOf(set string) (out []membership.Node) {
	for _, n := range s.nodes() {
		if n.Roles.Has(membership.Storage) && n.ReplicaSet == set {
			out = append(out, n)
		}
	}
	return out
}
