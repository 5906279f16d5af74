package storage

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// WatchMaster calls fn with who is master, and with every change of that; see engine.Engine.
func (s *Storage) WatchMaster(fn func(engine.Leadership)) (stop func()) { return s.eng.Watch(fn) }

// Members returns the members of the replica set; on the master, with how far each is.
func (s *Storage) Members() []*v1.StorageMember {
	members := s.eng.Status().Members
	out := make([]*v1.StorageMember, len(members))
	for i, m := range members {
		out[i] = &v1.StorageMember{Id: m.ID, Address: m.Address, Voter: m.Voter, Acknowledged: m.Acknowledged}
		if m.Silent >= 0 {
			out[i].Silent = durationpb.New(m.Silent)
		}
	}
	return out
}

// group returns the engine's members, if it can have several.
func (s *Storage) group() (engine.Group, error) {
	g, ok := s.eng.(engine.Group)
	if !ok {
		return nil, &shard.Error{Code: shard.InvalidConfig, ReplicaSet: s.opts.ReplicaSet, Reason: "this engine has one member and no others"}
	}
	return g, nil
}

// AddMember adds a member to the replica set, on the master; see engine.Group.
func (s *Storage) AddMember(ctx context.Context, m *v1.StorageMember) error {
	g, err := s.group()
	if err != nil {
		return err
	}
	return g.AddMember(ctx, engine.Member{ID: m.GetId(), Address: m.GetAddress(), Voter: m.GetVoter()})
}

// RemoveMember removes a member from the replica set, on the master; see engine.Group.
func (s *Storage) RemoveMember(ctx context.Context, id string) error {
	g, err := s.group()
	if err != nil {
		return err
	}
	return g.RemoveMember(ctx, id)
}

// HandOver makes another member the master, any when id is empty; see engine.Group.
func (s *Storage) HandOver(ctx context.Context, id string) error {
	g, err := s.group()
	if err != nil {
		return err
	}
	return g.HandOver(ctx, id)
}
