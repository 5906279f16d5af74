package admin

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/rebalancer"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// States of a member, besides those of its engine.
const (
	memberNone        = "none"        // its node is there, and no group has it
	memberUnreachable = "unreachable" // it does not answer
)

// memberState names the state of a member.
func memberState(set *router.ReplicaSetInfo, m *router.MemberInfo) string {
	switch {
	case m.Err != nil:
		return memberUnreachable
	case inGroup(set, m.ID):
	case m.State == engine.Starting, m.State == engine.Replica && set.Master != "" && len(set.Group) > 0: // or it was removed
		return memberNone
	}
	return m.State.String()
}

// groupOf returns the members of a replica set as it knows them. A node by itself has another name in
// its group of one than in the router.
func groupOf(set *router.ReplicaSetInfo) []*v1.StorageMember {
	if len(set.Group) == 1 && len(set.Members) == 1 && set.Master != "" {
		return []*v1.StorageMember{{Id: set.Master, Address: set.Members[0].Address, Voter: true}}
	}
	return set.Group
}

func inGroup(set *router.ReplicaSetInfo, id string) bool {
	return slices.ContainsFunc(groupOf(set), func(m *v1.StorageMember) bool { return m.GetId() == id })
}

// part says that a replica set is part of the store. One in this process that runs by itself has
// no cluster id.
func part(set *router.ReplicaSetInfo) bool {
	if set.ClusterID != "" {
		return true
	}
	for state, n := range set.Buckets {
		if state != shard.Absent && n > 0 {
			return true
		}
	}
	return false
}

// DescribeStore implements v1.ClusterService.
func (s *Service) DescribeStore(ctx context.Context, _ *v1.DescribeStoreRequest) (*v1.DescribeStoreResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.DescribeStoreResponse, error) {
		return s.describeStore(s.router.Info(ctx)), nil
	})
}

func (s *Service) describeStore(info router.Info) *v1.DescribeStoreResponse {
	resp := &v1.DescribeStoreResponse{
		Level: info.Level.String(), ClusterId: s.clusterID, BucketCount: s.router.BucketCount(),
		ReadWrite: uint32(info.Buckets.ReadWrite), ReadOnly: uint32(info.Buckets.ReadOnly),
		Unreachable: uint32(info.Buckets.Unreachable), Unknown: uint32(info.Buckets.Unknown),
	}
	for _, a := range info.Alerts {
		resp.Alerts = append(resp.Alerts, &v1.StoreAlert{Level: a.Level.String(), Code: a.Code.String(), ReplicaSet: a.ReplicaSet, Text: a.Text})
	}
	perfect := perfectCounts(info)
	for i := range info.ReplicaSets {
		set := replicaSetStatus(&info.ReplicaSets[i])
		if n, ok := perfect[set.GetName()]; ok {
			set.Perfect = new(uint32(n))
		}
		resp.ReplicaSets = append(resp.ReplicaSets, set)
	}
	return resp
}

func replicaSetStatus(f *router.ReplicaSetInfo) *v1.ReplicaSetStatus {
	set := &v1.ReplicaSetStatus{
		Name: f.Name, Master: f.Master, Weight: f.Weight, Locked: f.Locked, Buckets: map[string]uint32{}, Moves: f.Moves,
		Applied: f.Status.Applied, StateBytes: f.Status.StateBytes, Bootstrapped: part(f),
	}
	slices.SortFunc(set.Moves, func(a, b *v1.BucketMove) int { return cmp.Compare(a.GetBucket(), b.GetBucket()) })
	for state, n := range f.Buckets {
		if state != shard.Absent && n > 0 {
			set.Buckets[state.String()] = uint32(n)
		}
	}
	for i := range f.Members {
		m := &f.Members[i]
		if m.Err != nil && !f.Belongs(m.ID) {
			continue // it was taken out, or never was a member
		}
		r := &v1.ReplicaStatus{
			Id: m.ID, Address: m.Address, Zone: m.Zone, State: memberState(f, m), Warning: m.Warning, Applied: m.Applied, Lag: m.Lag,
		}
		if m.Err != nil {
			r.Error = m.Err.Error()
		}
		for _, g := range groupOf(f) {
			if g.GetId() == m.ID {
				r.Voter = new(g.GetVoter())
			}
		}
		set.Members = append(set.Members, r)
	}
	// Those of the group whose nodes nobody has seen.
	for _, g := range groupOf(f) {
		if !slices.ContainsFunc(f.Members, func(m router.MemberInfo) bool { return m.ID == g.GetId() }) {
			set.Members = append(set.Members, &v1.ReplicaStatus{
				Id: g.GetId(), Address: g.GetAddress(), State: memberUnreachable, Voter: new(g.GetVoter()),
				Error: "its node was not seen since this one was started",
			})
		}
	}
	return set
}

// weighed are the replica sets as the rebalancer sees them; false when one does not answer.
func weighed(info router.Info) (sets []rebalancer.Set, ok bool) {
	for i := range info.ReplicaSets {
		f := &info.ReplicaSets[i]
		if f.Master == "" {
			if part(f) || !answers(f) {
				return nil, false
			}
			continue // not part of the store yet
		}
		if !part(f) {
			continue
		}
		set := rebalancer.Set{Name: f.Name, Weight: f.Weight, Locked: f.Locked}
		for state, n := range f.Buckets {
			if state.Valid() {
				set.Counts[state] = n
			}
		}
		sets = append(sets, set)
	}
	return sets, true
}

func answers(f *router.ReplicaSetInfo) bool {
	return slices.ContainsFunc(f.Members, func(m router.MemberInfo) bool { return m.Err == nil })
}

// perfectCounts are how many buckets each set should have; nothing when that cannot be told.
func perfectCounts(info router.Info) map[string]int {
	sets, ok := weighed(info)
	if !ok {
		return nil
	}
	perfect, err := rebalancer.Perfect(sets)
	if err != nil {
		return nil
	}
	out := map[string]int{}
	for i := range sets {
		out[sets[i].Name] = perfect[i]
	}
	return out
}

// DescribeCluster implements v1.ClusterService.
func (s *Service) DescribeCluster(ctx context.Context, _ *v1.DescribeClusterRequest) (*v1.DescribeClusterResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.DescribeClusterResponse, error) {
		resp := &v1.DescribeClusterResponse{ClusterId: s.clusterID, BucketCount: s.router.BucketCount()}
		if s.members != nil {
			resp.Self = s.members.Self().Name
		}
		byName := map[string]*v1.ClusterNode{}
		for _, n := range s.nodes() {
			byName[n.Name] = clusterNode(n, time.Now())
		}
		for _, set := range s.describeStore(s.router.Info(ctx)).GetReplicaSets() {
			for _, m := range set.GetMembers() {
				node := byName[m.GetId()]
				if node == nil {
					node = &v1.ClusterNode{Name: m.GetId(), Roles: []string{"storage"}, Zone: m.GetZone(), InternalAddress: m.GetAddress(), ReplicaSet: set.GetName(), State: "gone"}
					if s.members == nil {
						node.State = "acting" // there is no other node than this one
					}
					byName[m.GetId()] = node
				}
				if node.GetReplicaSet() == set.GetName() {
					node.MemberState = m.GetState()
				}
			}
		}
		for _, n := range byName {
			resp.Nodes = append(resp.Nodes, n)
		}
		slices.SortFunc(resp.Nodes, func(a, b *v1.ClusterNode) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return resp, nil
	})
}

func clusterNode(n membership.Node, now time.Time) *v1.ClusterNode {
	out := &v1.ClusterNode{
		Name: n.Name, Zone: n.Zone, PublicAddress: n.PublicAddress, InternalAddress: n.InternalAddress, ReplicaSet: n.ReplicaSet,
		State: "acting",
	}
	if n.Roles != 0 {
		out.Roles = strings.Split(n.Roles.String(), ",")
	}
	if n.Start > 0 {
		out.Start = timestamppb.New(time.Unix(n.Start, 0))
	}
	if n.Stop > 0 {
		out.Stop = timestamppb.New(time.Unix(n.Stop, 0))
	}
	switch {
	case n.Acts(now) && n.Stop == 0:
	case now.Unix() < n.Start:
		out.State = "starting"
	default:
		out.State = "draining"
	}
	return out
}

// LocateKey implements v1.ClusterService.
func (s *Service) LocateKey(ctx context.Context, req *v1.LocateKeyRequest) (*v1.LocateKeyResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.LocateKeyResponse, error) {
		resp := &v1.LocateKeyResponse{Bucket: req.GetBucket()}
		if req.GetBucket() == 0 {
			hash, err := hashOf(req.GetKey())
			if err != nil {
				return nil, err
			}
			resp.Hash, resp.Bucket = hash, uint32(shard.BucketOf(hash, s.router.BucketCount()))
		}
		b, err := list([]*v1.BucketSpan{{First: resp.GetBucket(), Last: resp.GetBucket()}}, s.router.BucketCount())
		if err != nil {
			return nil, err
		}
		at, err := s.look(ctx).owner(b[0])
		if err != nil {
			return nil, err
		}
		resp.ReplicaSet, resp.State = at.set, at.state.String()
		// Who answers as the master; that it does not, is no reason to say nothing.
		_ = s.onMaster(ctx, at.set, func(ctx context.Context, c v1.StorageServiceClient) error {
			info, err := c.StorageInfo(ctx, &v1.StorageInfoRequest{})
			resp.Master = info.GetMember()
			return err
		})
		return resp, nil
	})
}

// hashOf is the hash of a key.
func hashOf(k *v1.ShardingKey) (uint32, error) {
	parts := make([]any, 0, len(k.GetParts()))
	for _, p := range k.GetParts() {
		switch v := p.GetValue().(type) {
		case *v1.ShardingKey_Part_Text:
			parts = append(parts, v.Text)
		case *v1.ShardingKey_Part_Number:
			parts = append(parts, int(v.Number))
		case *v1.ShardingKey_Part_Bytes:
			parts = append(parts, v.Bytes)
		default:
			return 0, invalid("a part of the key has no value")
		}
	}
	if len(parts) == 0 {
		return 0, invalid("a key or a bucket is needed")
	}
	hash := shard.MPCRC32
	switch k.GetHash() {
	case v1.KeyHash_KEY_HASH_UNSPECIFIED, v1.KeyHash_KEY_HASH_MPCRC32:
	case v1.KeyHash_KEY_HASH_STRCRC32:
		hash = shard.STRCRC32
	default:
		return 0, invalid("there is no hash %v", k.GetHash())
	}
	h, err := hash(parts...)
	if err != nil {
		return 0, invalid("%v", err)
	}
	return h, nil
}
