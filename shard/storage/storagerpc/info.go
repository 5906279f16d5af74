package storagerpc

import (
	"context"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// StorageInfo implements StorageService.
func (s *Server) StorageInfo(ctx context.Context, _ *v1.StorageInfoRequest) (*v1.StorageInfoResponse, error) {
	_, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	seen, err := s.seen(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	return s.info(seen), nil
}

// Info returns the condition of this member and what it knows of its replica set.
func (s *Server) Info() *v1.StorageInfoResponse { return s.info(s.storage) }

func (s *Server) info(seen Storage) *v1.StorageInfoResponse {
	st := s.storage.Status()
	master, term := s.role()
	resp := &v1.StorageInfoResponse{
		ReplicaSet: s.storage.ReplicaSet(), ClusterId: s.clusterID(), BucketCount: seen.BucketCount(),
		Member: s.opts.Member, Master: master, Term: term,
		EngineState: uint32(st.State), Warning: st.Warning,
		Applied: st.Applied, Logged: st.Logged, SnapshotAt: st.SnapshotAt,
		LogBytes: st.LogBytes, StateBytes: st.StateBytes,
		InFlight: int64(st.InFlight), InFlightBytes: st.InFlightBytes,
		Weight: 1, Buckets: map[uint32]uint32{},
	}
	if st.Err != nil {
		resp.EngineError = st.Err.Error()
	}
	if f, ok := s.storage.(Facts); ok {
		resp.Weight, resp.Locked, resp.KnownReplicaSets = f.Weight(), f.Locked(), f.KnownReplicaSets()
		on, version := f.Rebalancing()
		resp.RebalancingOff, resp.RebalancingVersion = !on, version
	}
	if x, ok := s.storage.(Splitter); ok {
		if p := x.SplitProgress(); p.Phase != "steady" {
			resp.SplitPhase = p.Phase
		}
	}
	if m, ok := s.storage.(interface{ Size() int64 }); ok {
		resp.StateBytes = max(m.Size(), resp.GetStateBytes())
	}
	if m, ok := s.storage.(Membership); ok {
		resp.Members = m.Members()
	}
	if m, ok := s.storage.(Mover); ok {
		resp.Moves = m.Moves()
	}
	for state, n := range seen.BucketCounts() {
		resp.Buckets[uint32(state)] = uint32(n)
	}
	return resp
}
