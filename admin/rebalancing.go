package admin

import (
	"context"
	"maps"
	"math"
	"slices"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard/rebalancer"
	"github.com/switchyard-dev/switchyard/shard/rebalancer/routed"
)

// SetRebalancing implements v1.ClusterService.
func (s *Service) SetRebalancing(ctx context.Context, req *v1.SetRebalancingRequest) (*v1.SetRebalancingResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.SetRebalancingResponse, error) {
		untold, err := routed.SetOn(ctx, s.router, req.GetOn())
		if err != nil {
			return nil, err
		}
		s.log.Info("rebalancing was set", "on", req.GetOn(), "untold", len(untold))
		return &v1.SetRebalancingResponse{Untold: slices.Sorted(maps.Keys(untold))}, nil
	})
}

// DescribeRebalancing implements v1.ClusterService.
func (s *Service) DescribeRebalancing(ctx context.Context, _ *v1.DescribeRebalancingRequest) (*v1.DescribeRebalancingResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.DescribeRebalancingResponse, error) {
		st, err := routed.Status(ctx, s.router)
		if err != nil {
			return nil, err
		}
		resp := &v1.DescribeRebalancingResponse{
			On: st.GetOn(), ReplicaSet: st.GetWhere(), Node: st.GetMember(), Phase: st.GetPhase(), Reason: st.GetReason(),
			Moved: st.GetMoved(), ToMove: st.GetToMove(), Eta: st.GetEta(), Took: st.GetTook(), Rate: st.GetRate(), Failed: st.GetFailed(),
			Imbalance: -1,
		}
		if sets, ok := weighed(s.router.Info(ctx)); ok {
			if perfect, err := rebalancer.Perfect(sets); err == nil {
				if resp.Imbalance = rebalancer.Imbalance(sets, perfect); math.IsInf(resp.GetImbalance(), 1) {
					resp.Imbalance = 100 // it has buckets and should have none
				}
			}
		}
		return resp, nil
	})
}
