package admin

import (
	"context"
	"errors"
	"maps"
	"slices"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// mapChunk bounds the bytes of the results in one message of MapFunction.
const mapChunk = 1 << 20

var modes = map[v1.CallMode]router.Mode{
	v1.CallMode_CALL_MODE_RW: router.CallRW, v1.CallMode_CALL_MODE_RO: router.CallRO, v1.CallMode_CALL_MODE_BRO: router.CallBRO,
	v1.CallMode_CALL_MODE_RE: router.CallRE, v1.CallMode_CALL_MODE_BRE: router.CallBRE, v1.CallMode_CALL_MODE_MR: router.CallMR,
}

// CallFunction implements v1.ClusterService.
func (s *Service) CallFunction(ctx context.Context, req *v1.CallFunctionRequest) (*v1.CallFunctionResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.CallFunctionResponse, error) {
		mode, ok := modes[req.GetMode()]
		if !ok {
			return nil, invalid("a mode is needed: rw, ro, bro, re, bre or mr")
		}
		bucket := req.GetBucket()
		if (bucket == 0) == (req.GetKey() == nil) {
			return nil, invalid("a bucket or a key is needed, one of the two")
		}
		if req.GetKey() != nil {
			hash, err := hashOf(req.GetKey())
			if err != nil {
				return nil, err
			}
			bucket = uint32(shard.BucketOf(hash, s.router.BucketCount()))
		}
		result, err := s.router.Call(ctx, shard.BucketID(bucket), mode, req.GetFunction(), req.GetArgs())
		if err != nil {
			return nil, err
		}
		set, _ := s.router.Route(shard.BucketID(bucket)) // it has just answered
		return &v1.CallFunctionResponse{Result: result, Bucket: bucket, ReplicaSet: set}, nil
	})
}

// MapFunction implements v1.ClusterService.
func (s *Service) MapFunction(req *v1.MapFunctionRequest, stream grpc.ServerStreamingServer[v1.MapFunctionResponse]) error {
	return userError(s.mapFunction(stream.Context(), req, stream.Send))
}

func (s *Service) mapFunction(ctx context.Context, req *v1.MapFunctionRequest, send func(*v1.MapFunctionResponse) error) error {
	ctx, cancel := within(ctx)
	defer cancel()
	var buckets []shard.BucketID
	if len(req.GetBuckets()) > 0 {
		var err error
		if buckets, err = list(req.GetBuckets(), s.router.BucketCount()); err != nil {
			return err
		}
	}
	var results map[shard.BucketID][]byte
	var err error
	switch req.GetMode() {
	case v1.CallMode_CALL_MODE_RW:
		results, err = s.router.MapCallRW(ctx, buckets, req.GetFunction(), req.GetArgs())
	case v1.CallMode_CALL_MODE_RO:
		results, err = s.router.MapCallRO(ctx, buckets, req.GetFunction(), req.GetArgs())
	default:
		return invalid("a map call has the mode rw or ro")
	}
	failed, partly := errors.AsType[*router.MapError](err)
	if err != nil && (!partly || len(results) == 0 && sameCode(failed.Failed)) {
		return err
	}
	resp, size := &v1.MapFunctionResponse{}, 0
	for _, b := range slices.Sorted(maps.Keys(results)) {
		if size > mapChunk {
			if err := send(resp); err != nil {
				return err
			}
			resp, size = &v1.MapFunctionResponse{}, 0
		}
		resp.Results = append(resp.Results, &v1.MapFunctionResponse_Result{Bucket: uint32(b), Result: results[b]})
		size += len(results[b]) + 16
	}
	if partly {
		for _, b := range slices.Sorted(maps.Keys(failed.Failed)) {
			resp.Failed = append(resp.Failed, failure(b, failed.Failed[b]))
		}
	}
	return send(resp)
}

// sameCode says that all errors are of the store and have one code.
func sameCode(failed map[shard.BucketID]error) bool {
	var code shard.Code
	for _, err := range failed {
		e, ok := errors.AsType[*shard.Error](err)
		if !ok || code != 0 && e.Code != code {
			return false
		}
		code = e.Code
	}
	return true
}
