package admin

import (
	"context"
	"slices"
	"strings"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// AddReplica implements v1.ClusterService.
func (s *Service) AddReplica(ctx context.Context, req *v1.AddReplicaRequest) (*v1.AddReplicaResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.AddReplicaResponse, error) {
		if err := s.needsCluster(); err != nil {
			return nil, err
		}
		if err := s.checkSet(req.GetReplicaSet()); err != nil {
			return nil, err
		}
		n, ok := s.members.View().Node(req.GetNode())
		switch {
		case !ok:
			return nil, misconfigured(req.GetReplicaSet(), "there is no node %s; see: switchyard cluster members", req.GetNode())
		case !n.Roles.Has(membership.Storage):
			return nil, misconfigured(req.GetReplicaSet(), "node %s does not have the role storage", n.Name)
		case n.ReplicaSet != req.GetReplicaSet():
			return nil, misconfigured(req.GetReplicaSet(), "node %s is set up for replica set %s", n.Name, n.ReplicaSet)
		case n.InternalAddress == "":
			return nil, misconfigured(req.GetReplicaSet(), "node %s does not say where other nodes reach it", n.Name)
		}
		master, err := s.masterInfo(ctx, req.GetReplicaSet())
		if err != nil {
			return nil, err
		}
		if master.GetClusterId() == "" {
			return nil, misconfigured(req.GetReplicaSet(), "it is not part of the store yet; see: switchyard cluster bootstrap --help and cluster add-set --help")
		}
		info, err := s.info(ctx, req.GetReplicaSet(), n.Name)
		if err != nil {
			return nil, err
		}
		switch {
		case info.GetBucketCount() != s.router.BucketCount():
			return nil, misconfigured(req.GetReplicaSet(), "node %s has a bucket_count of %d, the cluster of %d", n.Name, info.GetBucketCount(), s.router.BucketCount())
		case info.GetClusterId() != "" && info.GetClusterId() != master.GetClusterId():
			return nil, misconfigured(req.GetReplicaSet(), "node %s has the data of cluster %s, and this is cluster %s", n.Name, info.GetClusterId(), master.GetClusterId())
		case len(info.GetMembers()) > 0 && !slices.ContainsFunc(info.GetMembers(), func(m *v1.StorageMember) bool { return m.GetId() == master.GetMember() }):
			return nil, misconfigured(req.GetReplicaSet(), "node %s is a member of another group; start it with an empty data folder", n.Name)
		}
		err = s.router.OnMaster(ctx, req.GetReplicaSet(), func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.AddMember(ctx, &v1.AddMemberRequest{Member: &v1.StorageMember{Id: n.Name, Address: n.InternalAddress, Voter: !req.GetWithoutVote()}})
			return err
		})
		if err == nil {
			s.log.Info("a member was added", "replica_set", req.GetReplicaSet(), "node", n.Name, "voter", !req.GetWithoutVote())
		}
		return &v1.AddReplicaResponse{}, err
	})
}

// masterInfo asks the master of a set for its condition.
func (s *Service) masterInfo(ctx context.Context, set string) (info *v1.StorageInfoResponse, err error) {
	err = s.onMaster(ctx, set, func(ctx context.Context, c v1.StorageServiceClient) (err error) {
		if info, err = c.StorageInfo(ctx, &v1.StorageInfoRequest{}); err != nil {
			return err
		}
		if engine.State(info.GetEngineState()) != engine.Master && len(info.GetMembers()) > 1 {
			return &shard.Error{Code: shard.NonMaster, ReplicaSet: set, Master: info.GetMaster()}
		}
		return nil
	})
	return info, err
}

// checkMember returns an error when a replica set has no such member.
func (s *Service) checkMember(ctx context.Context, set, id string) (*v1.StorageInfoResponse, error) {
	if err := s.checkSet(set); err != nil {
		return nil, err
	}
	info, err := s.masterInfo(ctx, set)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range info.GetMembers() {
		if m.GetId() == id {
			return info, nil
		}
		names = append(names, m.GetId())
	}
	return nil, misconfigured(set, "it has no member %s; it has %s", id, strings.Join(names, ", "))
}

// RemoveReplica implements v1.ClusterService.
func (s *Service) RemoveReplica(ctx context.Context, req *v1.RemoveReplicaRequest) (*v1.RemoveReplicaResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.RemoveReplicaResponse, error) {
		if _, err := s.checkMember(ctx, req.GetReplicaSet(), req.GetNode()); err != nil {
			return nil, err
		}
		err := s.router.OnMaster(ctx, req.GetReplicaSet(), func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.RemoveMember(ctx, &v1.RemoveMemberRequest{Id: req.GetNode()})
			return err
		})
		if err == nil {
			s.log.Info("a member was removed", "replica_set", req.GetReplicaSet(), "node", req.GetNode())
		}
		return &v1.RemoveReplicaResponse{}, err
	})
}

// ChangeMaster implements v1.ClusterService.
func (s *Service) ChangeMaster(ctx context.Context, req *v1.ChangeMasterRequest) (*v1.ChangeMasterResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.ChangeMasterResponse, error) {
		set := req.GetReplicaSet()
		if req.GetNode() != "" {
			if _, err := s.checkMember(ctx, set, req.GetNode()); err != nil {
				return nil, err
			}
		}
		was := ""
		err := s.changeSet(ctx, set, func(ctx context.Context, c v1.StorageServiceClient) error {
			info, err := c.StorageInfo(ctx, &v1.StorageInfoRequest{})
			if err != nil {
				return err
			}
			if was == "" {
				was = info.GetMember()
			}
			_, err = c.HandOver(ctx, &v1.HandOverRequest{Id: req.GetNode()})
			return err
		})
		if err != nil {
			return nil, err
		}
		resp := &v1.ChangeMasterResponse{}
		for {
			info, err := s.masterInfo(ctx, set)
			if err == nil && (info.GetMember() != was || req.GetNode() == was) {
				resp.Master = info.GetMember()
			}
			if resp.Master != "" {
				break
			}
			select {
			case <-time.After(retryPause):
			case <-ctx.Done():
				return resp, nil // it was handed over; who has it is not known in time
			}
		}
		s.log.Info("a master handed over", "replica_set", set, "from", was, "to", resp.GetMaster())
		return resp, nil
	})
}
