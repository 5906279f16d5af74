package router

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

const (
	// mapReads bounds the reads of one MapCallRO that run at once.
	mapReads = 32
	// unrefTime bounds the giving back of a reference; it ends by itself too.
	unrefTime = 2 * time.Second
)

// MapCallRO runs a read function on each of the buckets, nil for all, and returns the
// results by bucket. Each bucket is read at a moment of its own. The first error ends
// it and is returned.
func (r *Router) MapCallRO(ctx context.Context, buckets []shard.BucketID, fn string, args []byte) (map[shard.BucketID][]byte, error) {
	buckets, err := r.buckets(buckets)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	results := make(map[shard.BucketID][]byte, len(buckets))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(mapReads)
	for _, b := range buckets {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			result, err := r.Call(ctx, b, CallRO, fn, args)
			if err != nil {
				return err
			}
			mu.Lock()
			results[b] = result
			mu.Unlock()
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil && len(results) < len(buckets) {
		return nil, err
	}
	return results, nil
}

// buckets returns a list without repetitions, in order; nil means all.
func (r *Router) buckets(buckets []shard.BucketID) ([]shard.BucketID, error) {
	if buckets == nil {
		buckets = make([]shard.BucketID, r.count)
		for i := range buckets {
			buckets[i] = shard.BucketID(i + 1)
		}
		return buckets, nil
	}
	buckets = slices.Compact(slices.Sorted(slices.Values(buckets)))
	for _, b := range buckets {
		if err := r.check(b); err != nil {
			return nil, err
		}
	}
	return buckets, nil
}

// MapError says on which buckets a call over many of them failed.
type MapError struct {
	// Failed has the error of each bucket that failed. OUTCOME_UNKNOWN says that the function
	// may or may not have taken effect there; with any other it has not.
	Failed map[shard.BucketID]error
	// Of is how many buckets there were.
	Of int
}

// Error names the number of failures, and one of them.
func (e *MapError) Error() string {
	b := slices.Min(slices.Collect(maps.Keys(e.Failed)))
	return fmt.Sprintf("the call failed on %d of %d buckets, such as bucket %d: %v", len(e.Failed), e.Of, b, e.Failed[b])
}

// Unwrap returns the different kinds of errors: of each code one.
func (e *MapError) Unwrap() []error {
	var all []error
	seen := map[shard.Code]bool{}
	for _, b := range slices.Sorted(maps.Keys(e.Failed)) {
		var s *shard.Error
		if errors.As(e.Failed[b], &s) {
			if seen[s.Code] {
				continue
			}
			seen[s.Code] = true
		} else if len(all) > len(seen)+8 {
			continue
		}
		all = append(all, e.Failed[b])
	}
	return all
}

// MapCallRW runs a write function on each of the buckets, nil for all, and returns the results by
// bucket. While it runs no bucket moves: it refers to the replica sets first, which waits for
// moves that have begun, and holds back others, until it is over or its deadline has passed.
//
// Nothing has run when the error is not a *MapError: a replica set could not be referred to. A
// *MapError comes with the results of the buckets on which the function has run; nothing is
// undone there.
func (r *Router) MapCallRW(ctx context.Context, buckets []shard.BucketID, fn string, args []byte) (map[shard.BucketID][]byte, error) {
	buckets, err := r.buckets(buckets)
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.opts.CallTimeout)
		defer cancel()
	}
	m := mapCall{r: r, id: rand.Text(), fn: fn, args: args, buckets: buckets, owner: map[shard.BucketID]*replicaSet{}, referred: map[*replicaSet]bool{}}
	defer m.unref(ctx)
	if err := m.refer(ctx); err != nil {
		return nil, err
	}
	return m.run(ctx)
}

// mapCall is one MapCallRW.
type mapCall struct {
	r       *Router
	id      string
	fn      string
	args    []byte
	buckets []shard.BucketID

	mu       sync.Mutex
	owner    map[shard.BucketID]*replicaSet
	referred map[*replicaSet]bool // that have been asked for a reference
}

// refer takes references until the owner of every bucket is known, and none of them can move.
func (m *mapCall) refer(ctx context.Context) error {
	start := time.Now()
	pause := m.r.opts.RetryPause
	for {
		if err := m.referOnce(ctx); err != nil {
			return err
		}
		var missing shard.BucketID
		for _, b := range m.buckets {
			if m.owner[b] == nil {
				missing = b
				break
			}
		}
		if missing == 0 {
			return nil
		}
		// It was between two replica sets when they were asked, or is nowhere.
		err := &shard.Error{Code: shard.NoRouteToBucket, Bucket: missing, Reason: "no replica set that was referred to has it"}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return m.r.late(ctx, &try{err: err}, start)
		}
		pause = min(2*pause, maxPauses*m.r.opts.RetryPause)
	}
}

// referOnce refers to all replica sets that may have one of the buckets: those that are thought
// to have them and, when that is not known of all, everybody.
func (m *mapCall) referOnce(ctx context.Context) error {
	m.owner = map[shard.BucketID]*replicaSet{}
	sets := map[*replicaSet]bool{}
	all := len(m.referred) > 0 // not the first time: somebody had not what was thought
	for _, b := range m.buckets {
		if s := m.r.routes[b].Load(); s != nil {
			sets[s] = true
		} else {
			all = true
		}
	}
	if all {
		for _, s := range m.r.all() {
			sets[s] = true
		}
	}
	if len(sets) == 0 {
		return &shard.Error{Code: shard.NoRouteToBucket, Reason: "no replica set is known"}
	}
	var ids []uint32 // stays empty for all
	if len(m.buckets) < int(m.r.count) {
		for _, b := range m.buckets {
			ids = append(ids, uint32(b))
		}
	}
	deadline, _ := ctx.Deadline()
	g, ctx := errgroup.WithContext(ctx)
	for s := range sets {
		m.referred[s] = true
		g.Go(func() error {
			var resp *v1.RefResponse
			err := m.r.onMaster(ctx, s, true, func(ctx context.Context, c v1.StorageServiceClient) (err error) {
				resp, err = c.Ref(ctx, &v1.RefRequest{Id: m.id, Timeout: durationpb.New(time.Until(deadline)), Buckets: ids})
				return err
			})
			if err != nil {
				return err
			}
			return m.own(s, resp.GetBuckets())
		})
	}
	return g.Wait()
}

// own notes which buckets a replica set has.
func (m *mapCall) own(s *replicaSet, ranges []*v1.BucketRange) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range ranges {
		for b := shard.BucketID(g.GetFirst()); b <= shard.BucketID(g.GetLast()) && uint32(b) <= m.r.count; b++ {
			if other := m.owner[b]; other != nil {
				return &shard.Error{Code: shard.BucketIsCorrupted, Bucket: b, Reason: fmt.Sprintf("%s and %s both have it", other.name, s.name)}
			}
			m.owner[b] = s
		}
	}
	return nil
}

// unref gives the references back, also when ctx has ended.
func (m *mapCall) unref(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unrefTime)
	defer cancel()
	var wg sync.WaitGroup
	for s := range m.referred {
		wg.Go(func() {
			// An error means that it is over already, or will be.
			_ = m.r.onMaster(ctx, s, false, func(ctx context.Context, c v1.StorageServiceClient) error {
				_, err := c.Unref(ctx, &v1.UnrefRequest{Id: m.id})
				return err
			})
		})
	}
	wg.Wait()
}

// run calls the function on all buckets.
func (m *mapCall) run(ctx context.Context) (map[shard.BucketID][]byte, error) {
	ranges := map[*replicaSet][]*v1.BucketRange{}
	for _, b := range m.buckets {
		s := m.owner[b]
		ranges[s] = appendBucket(ranges[s], b)
	}
	var mu sync.Mutex
	results := make(map[shard.BucketID][]byte, len(m.buckets))
	failed := map[shard.BucketID]error{}
	var wg sync.WaitGroup
	for s, g := range ranges {
		wg.Go(func() {
			req := &v1.MapCallRequest{Ref: m.id, Function: m.fn, Args: m.args, Kind: v1.StorageCallKind_STORAGE_CALL_KIND_WRITE, Buckets: g}
			member := s.master.Load()
			var err error
			if member == nil {
				err = s.noMaster(0)
			} else {
				err = member.link.mapCall(ctx, req, func(b shard.BucketID, result []byte, err error) {
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						failed[b] = err
					} else {
						results[b] = result
					}
				})
			}
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, x := range g {
				for b := shard.BucketID(x.GetFirst()); b <= shard.BucketID(x.GetLast()); b++ {
					if _, ok := results[b]; !ok && failed[b] == nil {
						failed[b] = m.broken(s, member, b, err)
					}
				}
			}
		})
	}
	wg.Wait()
	if len(failed) > 0 {
		return results, &MapError{Failed: failed, Of: len(m.buckets)}
	}
	return results, nil
}

// broken is the error of a bucket whose result did not come.
func (m *mapCall) broken(s *replicaSet, member *member, b shard.BucketID, err error) error {
	if _, ok := errors.AsType[*shard.Error](err); ok {
		return err // it was refused
	}
	if gone, sent := unreachable(err); gone && !sent {
		return s.unreachableMaster(b, member, err)
	}
	return s.unknown(b, member, err)
}

func appendBucket(ranges []*v1.BucketRange, b shard.BucketID) []*v1.BucketRange {
	if k := len(ranges); k > 0 && ranges[k-1].GetLast() == uint32(b)-1 {
		ranges[k-1].Last++
		return ranges
	}
	return append(ranges, &v1.BucketRange{First: uint32(b), Last: uint32(b)})
}
