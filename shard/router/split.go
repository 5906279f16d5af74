package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// splitPoll is how often StartSplit asks whether moves are over.
const splitPoll = 100 * time.Millisecond

// StartSplit begins to double bucket_count: no bucket moves any more, and when those that were
// on their way have arrived, every replica set begins to split its buckets, in the background. From
// then on routers with the double are served beside those with the old one. It returns when all
// replica sets have begun; when one cannot, everything is as it was, unless others have begun,
// which cannot be undone: then it is to be called again. count is bucket_count before it is
// doubled. When all have begun before, it does nothing.
func (r *Router) StartSplit(ctx context.Context, count uint32) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.opts.CallTimeout)
		defer cancel()
	}
	if err := r.checkAllKnown(ctx); err != nil {
		return err
	}
	step := func(step v1.SplitStep) func(context.Context, v1.StorageServiceClient) error {
		return func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.StartSplit(ctx, &v1.StartSplitRequest{BucketCount: count, Step: step})
			return err
		}
	}
	hold := step(v1.SplitStep_SPLIT_STEP_HOLD)
	begin := step(v1.SplitStep_SPLIT_STEP_BEGIN)
	var begun sync.Map
	err := r.onAll(ctx, func(ctx context.Context, s *replicaSet) error { return r.onMaster(ctx, s, true, hold) })
	if err == nil {
		err = r.onAll(ctx, func(ctx context.Context, s *replicaSet) error {
			for {
				err := r.onMaster(ctx, s, true, begin)
				if err == nil || errors.Is(err, shard.OutcomeUnknown) {
					begun.Store(s.name, true)
				}
				if !errors.Is(err, shard.TransferIsInProgress) {
					return err
				}
				// A move is not over. It ends, or is called off, by itself.
				t := time.NewTimer(splitPoll)
				select {
				case <-t.C:
				case <-ctx.Done():
					t.Stop()
					return err
				}
			}
		})
	}
	if err == nil {
		return nil
	}
	some := false
	begun.Range(func(any, any) bool { some = true; return false })
	if some {
		return fmt.Errorf("some replica sets have begun to split their buckets and others could not; start again when this is put right: %w", err)
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), splitRelease)
	defer cancel()
	undone := r.onAll(release, func(ctx context.Context, s *replicaSet) error {
		return r.onMaster(ctx, s, true, step(v1.SplitStep_SPLIT_STEP_RELEASE))
	})
	if undone != nil && !errors.Is(undone, shard.InvalidConfig) {
		return fmt.Errorf("%w; and moves are still held back in a replica set: %w", err, undone)
	}
	return err
}

// splitRelease bounds the undoing of a start that failed.
const splitRelease = 5 * time.Second

// checkAllKnown checks that every replica set that one of them has ever seen is known here.
func (r *Router) checkAllKnown(ctx context.Context) error {
	sets := r.RouteAll()
	if len(sets) == 0 {
		return &shard.Error{Code: shard.NoRouteToBucket, Reason: "no replica set is known"}
	}
	return r.onAll(ctx, func(ctx context.Context, s *replicaSet) error {
		return r.onMaster(ctx, s, true, func(ctx context.Context, c v1.StorageServiceClient) error {
			info, err := c.StorageInfo(ctx, &v1.StorageInfoRequest{})
			if err != nil {
				return err
			}
			for _, name := range info.GetKnownReplicaSets() {
				if !slices.Contains(sets, name) {
					return &shard.Error{Code: shard.UnreachableReplicaSet, ReplicaSet: name, Reason: "replica set " + s.name + " has seen it, and none of its nodes is known here; start its nodes, or forget it"}
				}
			}
			return nil
		})
	})
}

// onAll calls fn for every replica set at once and returns the first error.
func (r *Router) onAll(ctx context.Context, fn func(context.Context, *replicaSet) error) error {
	sets := r.all()
	errs := make([]error, len(sets))
	var wg sync.WaitGroup
	for i, s := range sets {
		wg.Go(func() { errs[i] = fn(ctx, s) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// SplitStatus is how far the doubling of bucket_count is on one member of a replica set.
type SplitStatus struct {
	ReplicaSet, Member string
	// Master: it is the replica set's master, who splits.
	Master bool
	// Status is what it says, nil when it does not answer; then Err says why.
	Status *v1.SplitStatusResponse
	Err    error
}

// SplitStatus asks every member how far the doubling is.
func (r *Router) SplitStatus(ctx context.Context) []SplitStatus {
	var all []SplitStatus
	for _, s := range r.all() {
		for _, m := range *s.members.Load() {
			all = append(all, SplitStatus{ReplicaSet: s.name, Member: m.ID, Master: s.master.Load() == m})
		}
	}
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, sweepTime)
			defer cancel()
			all[i].Err = r.OnMember(ctx, all[i].ReplicaSet, all[i].Member, func(ctx context.Context, c v1.StorageServiceClient) (err error) {
				all[i].Status, err = c.SplitStatus(ctx, &v1.SplitStatusRequest{})
				return err
			})
		})
	}
	wg.Wait()
	return all
}

// FinishSplit ends the doubling: bucket_count is the double, and moves begin again. Before it
// does, it checks that every bucket of every replica set is split, and that everybody knows the
// new bucket_count: every member answers and is configured with it, and no router with the
// old one is connected. despite says to leave out the second check, and whether rows are where
// they should be: then members and routers that do not know it are refused from now on. count is
// bucket_count before it is doubled. Again: nothing.
func (r *Router) FinishSplit(ctx context.Context, count uint32, despite bool) error {
	if err := r.checkAllKnown(ctx); err != nil {
		return err
	}
	for _, st := range r.SplitStatus(ctx) {
		if err := st.Ready(count, despite); err != nil {
			return err
		}
	}
	return r.onAll(ctx, func(ctx context.Context, s *replicaSet) error {
		return r.onMaster(ctx, s, true, func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.FinishSplit(ctx, &v1.FinishSplitRequest{BucketCount: count, DespiteMisplaced: despite})
			return err
		})
	})
}

// Ready returns why the doubling cannot be finished as far as a member goes.
func (st SplitStatus) Ready(count uint32, despite bool) error {
	bad := func(format string, args ...any) error {
		return &shard.Error{Code: shard.SplitIsInProgress, ReplicaSet: st.ReplicaSet, Reason: fmt.Sprintf("member "+st.Member+" "+format, args...)}
	}
	p := st.Status
	switch {
	case st.Err != nil && despite:
		return nil
	case st.Err != nil:
		return fmt.Errorf("member %s of %s must answer: %w", st.Member, st.ReplicaSet, st.Err)
	case p.GetPhase() == "steady" && p.GetBucketCount() == 2*count:
		return nil
	case st.Master && (p.GetPhase() != "splitting" || p.GetBucketCount() != count):
		return bad("is %s with bucket_count %d", p.GetPhase(), p.GetBucketCount())
	case st.Master && p.GetDone() < p.GetBuckets():
		return bad("has split %d of %d buckets", p.GetDone(), p.GetBuckets())
	case despite:
		return nil
	case p.GetConfigured() != 2*count:
		return bad("is configured with bucket_count %d; set %d and restart it", p.GetConfigured(), 2*count)
	case p.GetOldCallers() > 0:
		return bad("has %d connections of nodes with bucket_count %d; set %d there and restart them", p.GetOldCallers(), count, 2*count)
	}
	return nil
}
