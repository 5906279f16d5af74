package admin

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// place is what a replica set's master says of a bucket.
type place struct {
	set      string
	state    shard.State
	peer     string
	transfer uint64
}

func (p place) moving() bool {
	return p.state == shard.Sending || p.state == shard.Receiving || p.peer != "" && p.state.CanMove()
}

// places are those of all buckets, by bucket. A bucket on its way has several.
type places struct {
	at     [][]place
	silent []string // replica sets that did not answer
	errs   map[string]error
}

// owners returns the places at which a bucket can be read: its owners.
func (p *places) owners(b shard.BucketID) (out []place) {
	for _, at := range p.at[b] {
		if at.state.CanRead() {
			out = append(out, at)
		}
	}
	return out
}

// owner returns the one owner of a bucket.
func (p *places) owner(b shard.BucketID) (place, error) {
	switch o := p.owners(b); {
	case len(o) == 1:
		return o[0], nil
	case len(o) > 1:
		return place{}, &shard.Error{Code: shard.BucketIsCorrupted, Bucket: b, Reason: "replica sets " + o[0].set + " and " + o[1].set + " both have it; see: switchyard shard check"}
	case len(p.silent) > 0:
		return place{}, &shard.Error{Code: shard.UnreachableReplicaSet, Bucket: b, ReplicaSet: p.silent[0], Reason: "no replica set that answers has the bucket", Err: p.errs[p.silent[0]]}
	}
	for _, at := range p.at[b] {
		if at.state == shard.Receiving {
			return place{}, &shard.Error{Code: shard.TransferIsInProgress, Bucket: b, ReplicaSet: at.set}
		}
	}
	return place{}, &shard.Error{Code: shard.NoRouteToBucket, Bucket: b, Reason: "no replica set has it"}
}

// look asks all masters which buckets they have.
func (s *Service) look(ctx context.Context) *places {
	p := &places{at: make([][]place, s.router.BucketCount()+1), errs: map[string]error{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, set := range s.router.RouteAll() {
		wg.Go(func() {
			listed, err := s.listBuckets(ctx, set)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				p.silent = append(p.silent, set)
				p.errs[set] = err
				return
			}
			for _, b := range listed {
				if id := b.GetBucket(); int(id) < len(p.at) {
					p.at[id] = append(p.at[id], place{set: set, state: shard.State(b.GetState()), peer: b.GetPeer(), transfer: b.GetTransfer()})
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(p.silent)
	for _, at := range p.at {
		slices.SortFunc(at, func(a, b place) int { return cmp.Compare(a.set, b.set) })
	}
	return p
}

// bareTime is after what wait for a master it is looked whether there can be one.
const bareTime = 100 * time.Millisecond

// bare says that a replica set was not made yet, as far as its members say: then it has no master, and
// nothing.
func (s *Service) bare(ctx context.Context, set string) bool {
	info := s.router.Info(ctx)
	for i := range info.ReplicaSets {
		if f := &info.ReplicaSets[i]; f.Name == set {
			return answers(f) && f.Master == "" && !part(f) && len(f.Group) == 0
		}
	}
	return false
}

// listBuckets asks a set's master which buckets it has: none when the set was not made yet.
func (s *Service) listBuckets(ctx context.Context, set string) (out []*v1.ListBucketsResponse_Bucket, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var isBare atomic.Bool
	looked := make(chan struct{})
	timer := time.AfterFunc(bareTime, func() {
		defer close(looked)
		if s.bare(ctx, set) {
			isBare.Store(true)
			cancel()
		}
	})
	defer func() {
		if !timer.Stop() {
			cancel()
			<-looked
		}
		if isBare.Load() && err != nil {
			out, err = nil, nil
		}
	}()
	err = s.onMaster(ctx, set, func(ctx context.Context, c v1.StorageServiceClient) error {
		out = nil
		stream, err := c.ListBuckets(ctx, &v1.ListBucketsRequest{})
		if err != nil {
			return err
		}
		return each(stream, func(resp *v1.ListBucketsResponse) error {
			out = append(out, resp.GetBuckets()...)
			return nil
		})
	})
	return out, err
}

// each calls fn with what comes on a stream, until its end.
func each[T any](stream grpc.ServerStreamingClient[T], fn func(*T) error) error {
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = fn(resp)
		}
		if err != nil {
			return err
		}
	}
}

// DescribeBuckets implements v1.ClusterService.
func (s *Service) DescribeBuckets(ctx context.Context, req *v1.DescribeBucketsRequest) (*v1.DescribeBucketsResponse, error) {
	return unary(ctx, func(ctx context.Context) (*v1.DescribeBucketsResponse, error) {
		buckets, err := listOrAll(req.GetBuckets(), s.router.BucketCount())
		if err != nil {
			return nil, err
		}
		p := s.look(ctx)
		return &v1.DescribeBucketsResponse{BucketCount: s.router.BucketCount(), Places: p.ranges(buckets), Silent: p.silent}, nil
	})
}

// ranges puts neighbouring buckets that are the same together. A bucket that is nowhere has no place.
func (p *places) ranges(buckets []shard.BucketID) (out []*v1.BucketPlace) {
	open := map[string]*v1.BucketPlace{} // the last of each set
	for _, b := range buckets {
		for _, at := range p.at[b] {
			if o := open[at.set]; o != nil && o.GetLast() == uint32(b)-1 && o.GetState() == at.state.String() && o.GetPeer() == at.peer && o.GetTransfer() == at.transfer {
				o.Last = uint32(b)
				continue
			}
			o := &v1.BucketPlace{First: uint32(b), Last: uint32(b), ReplicaSet: at.set, State: at.state.String(), Peer: at.peer, Transfer: at.transfer}
			open[at.set] = o
			out = append(out, o)
		}
	}
	return out
}
