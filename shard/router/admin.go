package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// OnMaster calls fn with the service of a replica set's master: for operations that are not
// calls of functions. It waits for a master until ctx ends, 30 s if it has no end, and goes to
// the new one when the one that it asked is not master any more. When the connection is lost
// after fn has begun, its error is OUTCOME_UNKNOWN. NO_SUCH_REPLICASET: no such set is known
// here.
//
// With a member in this process the streams of the client do not work.
func (r *Router) OnMaster(ctx context.Context, replicaSet string, fn func(context.Context, v1.StorageServiceClient) error) error {
	s := r.set(replicaSet)
	if s == nil {
		return &shard.Error{Code: shard.NoSuchReplicaSet, ReplicaSet: replicaSet}
	}
	return r.onMaster(ctx, s, false, fn)
}

// MasterConn calls fn with a connection to the port for nodes of a replica set's master, for
// services other than the storage's, once: NON_MASTER, MISSING_MASTER and UNREACHABLE_MASTER say
// that it may be called again. The master must be in another process.
func (r *Router) MasterConn(ctx context.Context, replicaSet string, fn func(context.Context, grpc.ClientConnInterface) error) error {
	s := r.set(replicaSet)
	if s == nil {
		return &shard.Error{Code: shard.NoSuchReplicaSet, ReplicaSet: replicaSet}
	}
	m := s.master.Load()
	if m == nil {
		return s.noMaster(0)
	}
	l, ok := m.link.(remote)
	if !ok {
		return &shard.Error{Code: shard.InvalidArguments, ReplicaSet: replicaSet, Reason: "its master is in this process"}
	}
	err := l.c.DoConn(ctx, fn)
	if gone, sent := unreachable(err); gone {
		return &shard.Error{Code: shard.UnreachableMaster, ReplicaSet: s.name, Master: m.ID, Reason: reached[sent], Err: err}
	}
	if e, ok := errors.AsType[*shard.Error](err); ok && e.Code == shard.NonMaster {
		s.hint(m, e.Master)
	}
	return err
}

// reached says of a connection that was lost what is known.
var reached = map[bool]string{true: "it is not known what was done", false: "nothing was done"}

// OnMember calls fn with the service of one member, master or not.
func (r *Router) OnMember(ctx context.Context, replicaSet, id string, fn func(context.Context, v1.StorageServiceClient) error) error {
	s := r.set(replicaSet)
	if s == nil {
		return &shard.Error{Code: shard.NoSuchReplicaSet, ReplicaSet: replicaSet}
	}
	m := s.member(id)
	if m == nil {
		return &shard.Error{Code: shard.UnreachableReplica, ReplicaSet: replicaSet, Reason: "it has no member " + id + " as far as is known here"}
	}
	err := m.link.admin(ctx, fn)
	if gone, _ := unreachable(err); gone {
		return &shard.Error{Code: shard.UnreachableReplica, ReplicaSet: replicaSet, Reason: "member " + id, Err: err}
	}
	return err
}

// onMaster is OnMaster; again says that fn may be repeated though its outcome is unknown.
func (r *Router) onMaster(ctx context.Context, s *replicaSet, again bool, fn func(context.Context, v1.StorageServiceClient) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.opts.CallTimeout)
		defer cancel()
	}
	start := time.Now()
	pause := r.opts.RetryPause
	var t try
	for n := 1; ; n++ {
		seq := s.seq.Load()
		m := s.master.Load()
		if m == nil {
			t.err = s.noMaster(0)
		} else if t.err = m.link.admin(ctx, fn); t.err == nil {
			return nil
		}
		var e *shard.Error
		switch gone, sent := unreachable(t.err); {
		case gone && sent && !again:
			return s.unknown(0, m, t.err)
		case gone:
			t.err = s.unreachableMaster(0, m, t.err)
		case !errors.As(t.err, &e):
			return t.err
		case e.Code == shard.NonMaster:
			s.hint(m, e.Master)
		case e.Code == shard.MissingMaster, e.Code == shard.MasterNotSynced, e.Code == shard.UnreachableReplicaSet, e.Code == shard.StorageIsDisabled:
		default:
			return t.err
		}
		if n >= r.opts.MaxTries {
			return t.err
		}
		if news := s.news.wait(); s.seq.Load() == seq {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-news:
			case <-ctx.Done():
			}
			timer.Stop()
		}
		if ctx.Err() != nil {
			return r.late(ctx, &t, start)
		}
		pause = min(2*pause, maxPauses*r.opts.RetryPause)
	}
}

// SendBuckets moves buckets, wherever they are, to a replica set and returns when each has
// arrived or failed. The errors are those of the buckets that failed; a bucket that is there
// already fails with MOVE_TO_SELF.
func (r *Router) SendBuckets(ctx context.Context, buckets []shard.BucketID, destination string) (failed map[shard.BucketID]error, err error) {
	if buckets, err = r.buckets(buckets); err != nil {
		return nil, err
	}
	if r.set(destination) == nil {
		return nil, &shard.Error{Code: shard.NoSuchReplicaSet, ReplicaSet: destination}
	}
	failed = map[shard.BucketID]error{}
	// A bucket that somebody moves at the same time is followed, but not for ever.
	for range followMoves {
		var again []shard.BucketID
		for b, err := range r.sendOnce(ctx, buckets, destination) {
			if errors.Is(err, shard.WrongBucket) {
				again = append(again, b)
			}
			failed[b] = err
		}
		if buckets = again; len(buckets) == 0 || ctx.Err() != nil {
			break
		}
		for _, b := range buckets {
			delete(failed, b)
		}
	}
	for _, b := range buckets {
		if failed[b] == nil {
			failed[b] = &shard.Error{Code: shard.TransferIsInProgress, Bucket: b, Reason: "it is moved by somebody else all the time"}
		}
	}
	return failed, nil
}

// followMoves is how often SendBuckets goes after a bucket that is not where it was.
const followMoves = 5

// sendOnce sends buckets from where they are thought to be.
func (r *Router) sendOnce(ctx context.Context, buckets []shard.BucketID, destination string) map[shard.BucketID]error {
	failed := map[shard.BucketID]error{}
	from := map[*replicaSet][]uint32{}
	for _, b := range buckets {
		t := try{set: r.routes[b].Load()}
		if t.set == nil {
			r.locate(ctx, &t, b)
			if t.set = r.routes[b].Load(); t.set == nil {
				failed[b] = t.err
				continue
			}
		}
		from[t.set] = append(from[t.set], uint32(b))
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for s, list := range from {
		wg.Go(func() {
			var resp *v1.SendBucketsResponse
			err := r.onMaster(ctx, s, false, func(ctx context.Context, c v1.StorageServiceClient) (err error) {
				resp, err = c.SendBuckets(ctx, &v1.SendBucketsRequest{Buckets: list, Destination: destination})
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				for _, b := range list {
					failed[shard.BucketID(b)] = err
				}
				return
			}
			for _, f := range resp.GetFailed() {
				b, err := shard.BucketID(f.GetId()), storagerpc.DecodeError(f.GetError())
				if e, ok := errors.AsType[*shard.Error](err); ok && e.Code == shard.WrongBucket && r.check(b) == nil {
					r.moved(b, s, e.Destination)
				}
				failed[b] = err
			}
		})
	}
	wg.Wait()
	return failed
}
