package routed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/rebalancer"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

const (
	// askTime bounds one question to a replica set.
	askTime = 3 * time.Second
	// listTime bounds a list of all buckets, sendTime a list of moves.
	listTime = 30 * time.Second
	sendTime = 10 * time.Minute
)

// store is what a rebalancer asks and tells.
type store struct {
	router  *router.Router
	storage *storage.Storage
	log     *slog.Logger
}

var _ rebalancer.Store = (*store)(nil)

func (s *store) Master() bool { return s.storage.Status().State == engine.Master }

func (s *store) Known() []string { return s.storage.KnownReplicaSets() }

func (s *store) Changed() <-chan struct{} { return s.router.Changed() }

// ask asks a replica set's master for its condition.
func ask(ctx context.Context, r *router.Router, name string) (*v1.StorageInfoResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for {
		var info *v1.StorageInfoResponse
		err := r.OnMaster(ctx, name, func(ctx context.Context, c v1.StorageServiceClient) error {
			resp, err := c.StorageInfo(ctx, &v1.StorageInfoRequest{})
			if err != nil {
				return err
			}
			if engine.State(resp.GetEngineState()) != engine.Master {
				// It has answered, but somebody else is to be asked.
				return &shard.Error{Code: shard.NonMaster, ReplicaSet: name, Master: resp.GetMaster()}
			}
			info = resp
			return nil
		})
		if !errors.Is(err, shard.OutcomeUnknown) || ctx.Err() != nil {
			return info, err
		}
		// To ask twice does no harm.
	}
}

// answer is what a replica set's master said.
type answer struct {
	name string
	info *v1.StorageInfoResponse
	err  error
}

// askAll asks the masters of replica sets, all at once.
func askAll(ctx context.Context, r *router.Router, names []string) []answer {
	answers := make([]answer, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			info, err := ask(ctx, r, name)
			answers[i] = answer{name, info, err}
		})
	}
	wg.Wait()
	return answers
}

// newest returns what was said last about whether to rebalance, and the number of that.
func newest(answers []answer) (on bool, version uint64) {
	on = true
	for _, a := range answers {
		if v := a.info.GetRebalancingVersion(); v > version {
			on, version = !a.info.GetRebalancingOff(), v
		}
	}
	return on, version
}

func (s *store) Sets(ctx context.Context) ([]rebalancer.Set, error) {
	answers := askAll(ctx, s.router, s.Known())
	on, version := newest(answers)
	s.spread(ctx, answers, on, version)
	sets := make([]rebalancer.Set, len(answers))
	for i, a := range answers {
		if a.err != nil {
			sets[i] = rebalancer.Set{Name: a.name, Err: a.err}
			continue
		}
		sets[i] = setOf(a.info)
		sets[i].Name, sets[i].Off = a.name, !on
		if ours, theirs := s.storage.ClusterID(), a.info.GetClusterId(); ours != theirs {
			sets[i] = rebalancer.Set{Name: a.name, Err: &shard.Error{Code: shard.InvalidConfig, ReplicaSet: a.name,
				Reason: fmt.Sprintf("it belongs to cluster %q, not to %q", theirs, ours)}}
		}
	}
	return sets, nil
}

func setOf(info *v1.StorageInfoResponse) rebalancer.Set {
	set := rebalancer.Set{Weight: info.GetWeight(), Locked: info.GetLocked(), Bytes: info.GetStateBytes()}
	for state, n := range info.GetBuckets() {
		if int(state) < len(set.Counts) {
			set.Counts[state] = int(n)
		}
	}
	return set
}

// spread tells those that have not heard it whether to rebalance. If it fails, the next look tries again.
func (s *store) spread(ctx context.Context, answers []answer, on bool, version uint64) {
	var behind []answer
	for _, a := range answers {
		if a.err == nil && a.info.GetRebalancingVersion() < version {
			behind = append(behind, a)
		}
	}
	for name, err := range tell(ctx, s.router, behind, on, version) {
		s.log.LogAttrs(ctx, slog.LevelInfo, "a replica set was not told whether to rebalance yet", slog.String("replicaset", name), slog.Any("err", err))
	}
}

// tell tells replica sets whether to rebalance, and returns the errors of those that could not be told.
func tell(ctx context.Context, r *router.Router, to []answer, on bool, version uint64) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	errs := make([]error, len(to))
	var wg sync.WaitGroup
	for i, a := range to {
		wg.Go(func() {
			for {
				errs[i] = r.OnMaster(ctx, a.name, func(ctx context.Context, c v1.StorageServiceClient) error {
					_, err := c.SetRebalancer(ctx, &v1.SetRebalancerRequest{On: on, Version: version})
					return err
				})
				if !errors.Is(errs[i], shard.OutcomeUnknown) || ctx.Err() != nil {
					return
				}
				// The version makes it harmless to say it twice.
			}
		})
	}
	wg.Wait()
	failed := map[string]error{}
	for i, a := range to {
		if errs[i] != nil {
			failed[a.name] = errs[i]
		}
	}
	return failed
}

// movable are the states of buckets that can be sent.
var movable = []uint32{uint32(shard.Active), uint32(shard.ReadOnly)}

func (s *store) Movable(ctx context.Context, replicaSet string) ([]rebalancer.Bucket, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	var out []rebalancer.Bucket
	err := s.router.OnMaster(ctx, replicaSet, func(ctx context.Context, c v1.StorageServiceClient) error {
		out = nil
		stream, err := c.ListBuckets(ctx, &v1.ListBucketsRequest{States: movable, Resting: true})
		if err != nil {
			return err
		}
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			for _, b := range resp.GetBuckets() {
				out = append(out, rebalancer.Bucket{ID: shard.BucketID(b.GetBucket()), Bytes: b.GetBytes()})
			}
		}
	})
	return out, err
}

func (s *store) Send(ctx context.Context, source, destination string, buckets []shard.BucketID) (rebalancer.Sent, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	req := &v1.SendBucketsRequest{Destination: destination, Buckets: make([]uint32, len(buckets))}
	for i, b := range buckets {
		req.Buckets[i] = uint32(b)
	}
	var resp *v1.SendBucketsResponse
	err := s.router.OnMaster(ctx, source, func(ctx context.Context, c v1.StorageServiceClient) error {
		var err error
		resp, err = c.SendBuckets(ctx, req)
		return err
	})
	if err != nil {
		return rebalancer.Sent{}, err
	}
	sent := rebalancer.Sent{Moved: len(buckets) - len(resp.GetFailed()), Served: resp.GetServed()}
	// One error for each cause is enough.
	var errs []error
	var codes []shard.Code
	for _, f := range resp.GetFailed() {
		one := storagerpc.DecodeError(f.GetError())
		var e *shard.Error
		if errors.As(one, &e) {
			if slices.Contains(codes, e.Code) {
				continue
			}
			codes = append(codes, e.Code)
		} else if len(errs) > 0 {
			continue
		}
		errs = append(errs, one)
	}
	if n := len(resp.GetFailed()); n > 0 {
		return sent, fmt.Errorf("%d of %d buckets did not move: %w", n, len(buckets), errors.Join(errs...))
	}
	return sent, nil
}
