package storagerpc

import (
	"context"
	"fmt"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// Splitter doubles bucket_count, in its replica set.
type Splitter interface {
	HoldMoves(ctx context.Context, count uint32) error
	ReleaseMoves(ctx context.Context, count uint32) error
	BeginSplit(ctx context.Context, count uint32) error
	FinishSplit(ctx context.Context, count uint32, despite bool) error
	SplitProgress() storage.SplitProgress
}

// StartSplit implements StorageService.
func (s *Server) StartSplit(ctx context.Context, req *v1.StartSplitRequest) (*v1.StartSplitResponse, error) {
	return admin(ctx, s, s.storage, "double its bucket_count", func(ctx context.Context, x Splitter) (*v1.StartSplitResponse, error) {
		var err error
		switch req.GetStep() {
		case v1.SplitStep_SPLIT_STEP_HOLD:
			err = x.HoldMoves(ctx, req.GetBucketCount())
		case v1.SplitStep_SPLIT_STEP_RELEASE:
			err = x.ReleaseMoves(ctx, req.GetBucketCount())
		case v1.SplitStep_SPLIT_STEP_BEGIN:
			err = x.BeginSplit(ctx, req.GetBucketCount())
		default:
			err = &shard.Error{Code: shard.InvalidArguments, Reason: fmt.Sprintf("there is no step %v", req.GetStep())}
		}
		return &v1.StartSplitResponse{}, err
	})
}

// SplitStatus implements StorageService.
func (s *Server) SplitStatus(ctx context.Context, _ *v1.SplitStatusRequest) (*v1.SplitStatusResponse, error) {
	return admin(ctx, s, s.storage, "double its bucket_count", func(_ context.Context, x Splitter) (*v1.SplitStatusResponse, error) {
		p := x.SplitProgress()
		resp := &v1.SplitStatusResponse{
			Phase: p.Phase, BucketCount: p.BucketCount, Configured: p.Told,
			Buckets: uint32(p.Buckets), Done: uint32(p.Done), Moving: uint32(p.Moving),
			Rows: p.Rows, MovedRows: p.Moved, MovedBytes: p.Bytes, MisplacedRows: p.Misplaced,
		}
		if p.Splitting() {
			resp.OldCallers = uint32(s.Callers(p.BucketCount))
		}
		return resp, nil
	})
}

// FinishSplit implements StorageService.
func (s *Server) FinishSplit(ctx context.Context, req *v1.FinishSplitRequest) (*v1.FinishSplitResponse, error) {
	return admin(ctx, s, s.storage, "double its bucket_count", func(ctx context.Context, x Splitter) (*v1.FinishSplitResponse, error) {
		return &v1.FinishSplitResponse{}, x.FinishSplit(ctx, req.GetBucketCount(), req.GetDespiteMisplaced())
	})
}
