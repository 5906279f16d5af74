package admin

import (
	"context"
	"fmt"
	"strings"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// Phases of a doubling as a whole.
const (
	phaseSteady    = "steady"
	phaseHeld      = "held"
	phaseSplitting = "splitting"
	phaseSplit     = "split"
)

// doublingCount returns the bucket_count before the doubling, by what the masters say.
func doublingCount(all []router.SplitStatus) (uint32, error) {
	count := uint32(0)
	for _, st := range all {
		if n := st.Status.GetBucketCount(); st.Master && st.Err == nil && (count == 0 || n < count) {
			count = n
		}
	}
	if count == 0 {
		return 0, &shard.Error{Code: shard.MissingMaster, Reason: "no master answers"}
	}
	return count, nil
}

// StartDoubling implements v1.ClusterService.
func (s *Service) StartDoubling(ctx context.Context, _ *v1.StartDoublingRequest) (*v1.StartDoublingResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.StartDoublingResponse, error) {
		count, err := doublingCount(s.router.SplitStatus(ctx))
		if err != nil {
			return nil, err
		}
		if err := s.router.StartSplit(ctx, count); err != nil {
			return nil, err
		}
		s.log.Info("bucket_count is being doubled", "bucket_count", count, "doubled", 2*count)
		return &v1.StartDoublingResponse{BucketCount: count, Doubled: 2 * count}, nil
	})
}

// DescribeDoubling implements v1.ClusterService.
func (s *Service) DescribeDoubling(ctx context.Context, _ *v1.DescribeDoublingRequest) (*v1.DescribeDoublingResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.DescribeDoublingResponse, error) { return s.describeDoubling(ctx) })
}

func (s *Service) describeDoubling(ctx context.Context) (*v1.DescribeDoublingResponse, error) {
	all := s.router.SplitStatus(ctx)
	count, err := doublingCount(all)
	if err != nil {
		return nil, err
	}
	resp := &v1.DescribeDoublingResponse{BucketCount: count, Phase: phaseSteady}
	var waits string
	for _, st := range all {
		p := st.Status
		m := &v1.DescribeDoublingResponse_Member{Node: st.Member, ReplicaSet: st.ReplicaSet, Master: st.Master, Phase: p.GetPhase(), Configured: p.GetConfigured(), OldCallers: p.GetOldCallers()}
		if st.Err != nil {
			m.Error = st.Err.Error()
		}
		resp.Members = append(resp.Members, m)
		if err := st.Ready(count, false); err != nil && waits == "" {
			waits = err.Error()
		}
		if !st.Master {
			continue
		}
		resp.Buckets += p.GetBuckets()
		resp.Done += p.GetDone()
		resp.Rows += p.GetRows()
		resp.MovedRows += p.GetMovedRows()
		resp.MovedBytes += p.GetMovedBytes()
		resp.MisplacedRows += p.GetMisplacedRows()
		switch p.GetPhase() {
		case phaseHeld:
			if resp.GetPhase() == phaseSteady {
				resp.Phase = phaseHeld
			}
		case phaseSplitting:
			resp.Phase = phaseSplitting
		}
	}
	if resp.GetPhase() == phaseSteady {
		return resp, nil
	}
	for _, n := range s.nodes() {
		if n.BucketCount == count {
			resp.OldNodes = append(resp.OldNodes, n.Name)
		}
	}
	if resp.GetPhase() == phaseSplitting && resp.GetDone() == resp.GetBuckets() && resp.GetDone() > 0 {
		resp.Phase = phaseSplit
	}
	switch {
	case resp.GetPhase() == phaseSplit && len(resp.GetOldNodes()) > 0:
		waits = fmt.Sprintf("nodes with bucket_count %d: %s; set %d there and restart them, one after the other", count, strings.Join(resp.GetOldNodes(), ", "), 2*count)
	case waits == "" && resp.GetMisplacedRows() > 0:
		waits = fmt.Sprintf("%d rows have hashes that are not of their buckets", resp.GetMisplacedRows())
	}
	resp.WaitsFor = waits
	return resp, nil
}

// FinishDoubling implements v1.ClusterService.
func (s *Service) FinishDoubling(ctx context.Context, req *v1.FinishDoublingRequest) (*v1.FinishDoublingResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.FinishDoublingResponse, error) {
		d, err := s.describeDoubling(ctx)
		if err != nil {
			return nil, err
		}
		count := d.GetBucketCount()
		switch {
		case d.GetPhase() == phaseSteady:
			return nil, misconfigured("", "bucket_count is %d and is not being doubled", count)
		case len(d.GetOldNodes()) > 0 && !req.GetForce():
			return nil, &shard.Error{Code: shard.SplitIsInProgress, Reason: "there are " + d.GetWaitsFor()}
		}
		if err := s.router.FinishSplit(ctx, count, req.GetForce()); err != nil {
			return nil, err
		}
		s.log.Info("bucket_count was doubled", "bucket_count", 2*count)
		return &v1.FinishDoublingResponse{BucketCount: 2 * count}, nil
	})
}
