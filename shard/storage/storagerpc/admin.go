package storagerpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// What a storage can do beyond calls. Each interface is looked for in the storage that is
// served; an operation that it has not is answered with UNIMPLEMENTED. All may be called from
// any goroutine, and on a member that is not master they answer NON_MASTER.

// Mover moves buckets to other replica sets.
type Mover interface {
	// SendBuckets moves buckets and returns when each has arrived or failed, with the errors of
	// those that failed. err says that nothing was begun.
	SendBuckets(ctx context.Context, buckets []shard.BucketID, destination string) (failed map[shard.BucketID]error, err error)
	// CancelSends calls off moves that are not SENT yet.
	CancelSends(ctx context.Context, buckets []shard.BucketID) error
	// Moves are those that this member looks after now.
	Moves() []*v1.BucketMove
}

// Changer changes buckets where they are, all of the list or none.
type Changer interface {
	Pin(ctx context.Context, buckets []shard.BucketID) error
	Unpin(ctx context.Context, buckets []shard.BucketID) error
	SetReadOnly(ctx context.Context, buckets []shard.BucketID, on bool) error
	ForceCreate(ctx context.Context, buckets []shard.BucketID) error
	ForceDrop(ctx context.Context, buckets []shard.BucketID) error
}

// Lister lists the buckets that are here, and checks them.
type Lister interface {
	ListBuckets(ctx context.Context, fn func(*v1.ListBucketsResponse_Bucket) error) error
	// CheckBuckets counts and sums up the rows of buckets, nil for all that are here. It
	// returns the last command whose rows it has seen.
	CheckBuckets(ctx context.Context, buckets []shard.BucketID, fn func(*v1.CheckBucketsResponse_Bucket) error) (applied uint64, err error)
}

// Referrer keeps buckets where they are for calls over many of them.
type Referrer interface {
	// Ref takes a reference, or prolongs it, until the deadline: no move begins. It waits until
	// those that have begun are over.
	Ref(ctx context.Context, id string, deadline time.Time) error
	// CheckRef returns nil while the reference holds, else STORAGE_REF_USE.
	CheckRef(id string) error
	// Unref gives it back; STORAGE_REF_DEL when there is none.
	Unref(ctx context.Context, id string) error
}

// Facts are what a replica set keeps about itself and the others.
type Facts interface {
	ClusterID() string
	Weight() float64
	Locked() bool
	KnownReplicaSets() []string
	SetWeight(ctx context.Context, weight float64) error
	SetLock(ctx context.Context, locked bool) error
	ForgetReplicaSet(ctx context.Context, name string) error
	// Rebalancing is what the replica set was told about it, and the number of the request.
	Rebalancing() (on bool, version uint64)
	SetRebalancing(ctx context.Context, on bool, version uint64) error
	BootstrapReplicaSet(ctx context.Context, req *v1.BootstrapStorageRequest) error
}

// Membership manages the members of the replica set.
type Membership interface {
	Members() []*v1.StorageMember
	AddMember(ctx context.Context, m *v1.StorageMember) error
	RemoveMember(ctx context.Context, id string) error
	HandOver(ctx context.Context, id string) error
}

// Rebalancer is what a server needs of its node's rebalancer.
type Rebalancer interface {
	RebalancerStatus() *v1.RebalancerStatusResponse
}

// can finds an ability of what is served.
func can[T any](of any, operation string) (T, error) {
	t, ok := of.(T)
	if !ok {
		return t, status.Errorf(codes.Unimplemented, "this storage cannot %s", operation)
	}
	return t, nil
}

// admin runs one operation.
func admin[T, Resp any](ctx context.Context, s *Server, of any, operation string, do func(context.Context, T) (*Resp, error)) (*Resp, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	t, err := can[T](of, operation)
	if err != nil {
		return nil, err
	}
	resp, err := do(ctx, t)
	if err != nil {
		return nil, statusOf(err)
	}
	return resp, nil
}

func bucketIDs(seen Storage, ids []uint32) ([]shard.BucketID, error) {
	n := seen.BucketCount()
	if len(ids) > int(n) {
		return nil, &shard.Error{Code: shard.InvalidArguments, Reason: fmt.Sprintf("%d buckets are named, there are %d", len(ids), n)}
	}
	out := make([]shard.BucketID, len(ids))
	for i, id := range ids {
		if id < 1 || id > n {
			return nil, &shard.Error{Code: shard.NoRouteToBucket, Bucket: shard.BucketID(id), Reason: fmt.Sprintf("buckets are numbered 1 to %d", n)}
		}
		out[i] = shard.BucketID(id)
	}
	return out, nil
}

// SendBuckets implements StorageService.
func (s *Server) SendBuckets(ctx context.Context, req *v1.SendBucketsRequest) (*v1.SendBucketsResponse, error) {
	return admin(ctx, s, s.storage, "move buckets", func(ctx context.Context, m Mover) (*v1.SendBucketsResponse, error) {
		buckets, err := s.bucketIDs(ctx, req.GetBuckets())
		if err != nil {
			return nil, err
		}
		counter, counts := s.storage.(interface{ Served() uint64 })
		var before uint64
		if counts {
			before = counter.Served()
		}
		failed, err := m.SendBuckets(ctx, buckets, req.GetDestination())
		if err != nil {
			return nil, err
		}
		resp := &v1.SendBucketsResponse{}
		if counts {
			resp.Served = counter.Served() - before
		}
		for b, err := range failed {
			resp.Failed = append(resp.Failed, &v1.StorageResult{Id: uint64(b), Error: EncodeError(err)})
		}
		return resp, nil
	})
}

// CancelSends implements StorageService.
func (s *Server) CancelSends(ctx context.Context, req *v1.CancelSendsRequest) (*v1.CancelSendsResponse, error) {
	return admin(ctx, s, s.storage, "move buckets", func(ctx context.Context, m Mover) (*v1.CancelSendsResponse, error) {
		buckets, err := s.bucketIDs(ctx, req.GetBuckets())
		if err != nil {
			return nil, err
		}
		return &v1.CancelSendsResponse{}, m.CancelSends(ctx, buckets)
	})
}

// ChangeBuckets implements StorageService.
func (s *Server) ChangeBuckets(ctx context.Context, req *v1.ChangeBucketsRequest) (*v1.ChangeBucketsResponse, error) {
	return admin(ctx, s, s.storage, "change buckets", func(ctx context.Context, c Changer) (*v1.ChangeBucketsResponse, error) {
		buckets, err := s.bucketIDs(ctx, req.GetBuckets())
		if err != nil {
			return nil, err
		}
		switch req.GetChange() {
		case v1.BucketChange_BUCKET_CHANGE_PIN:
			err = c.Pin(ctx, buckets)
		case v1.BucketChange_BUCKET_CHANGE_UNPIN:
			err = c.Unpin(ctx, buckets)
		case v1.BucketChange_BUCKET_CHANGE_READ_ONLY:
			err = c.SetReadOnly(ctx, buckets, true)
		case v1.BucketChange_BUCKET_CHANGE_READ_WRITE:
			err = c.SetReadOnly(ctx, buckets, false)
		case v1.BucketChange_BUCKET_CHANGE_FORCE_CREATE:
			err = c.ForceCreate(ctx, buckets)
		case v1.BucketChange_BUCKET_CHANGE_FORCE_DROP:
			err = c.ForceDrop(ctx, buckets)
		default:
			err = &shard.Error{Code: shard.InvalidArguments, Reason: fmt.Sprintf("there is no change %v", req.GetChange())}
		}
		return &v1.ChangeBucketsResponse{}, err
	})
}

// listChunk is how many buckets one message of a list has.
const listChunk = 1000

// ListBuckets implements StorageService.
func (s *Server) ListBuckets(req *v1.ListBucketsRequest, stream grpc.ServerStreamingServer[v1.ListBucketsResponse]) error {
	_, err := admin(stream.Context(), s, s.seenOr(stream.Context()), "list buckets", func(ctx context.Context, l Lister) (*v1.ListBucketsResponse, error) {
		resp := &v1.ListBucketsResponse{}
		err := l.ListBuckets(ctx, func(b *v1.ListBucketsResponse_Bucket) error {
			if !wanted(b.GetState(), req.GetStates()) || req.GetResting() && b.GetPeer() != "" {
				return nil
			}
			if resp.Buckets = append(resp.Buckets, b); len(resp.GetBuckets()) < listChunk {
				return nil
			}
			err := stream.Send(resp)
			resp = &v1.ListBucketsResponse{}
			return err
		})
		if err == nil && len(resp.GetBuckets()) > 0 {
			err = stream.Send(resp)
		}
		return nil, err
	})
	return err
}

func wanted(state uint32, states []uint32) bool {
	if len(states) == 0 {
		return shard.State(state) != shard.Absent
	}
	for _, s := range states {
		if s == state {
			return true
		}
	}
	return false
}

// CheckBuckets implements StorageService.
func (s *Server) CheckBuckets(req *v1.CheckBucketsRequest, stream grpc.ServerStreamingServer[v1.CheckBucketsResponse]) error {
	_, err := admin(stream.Context(), s, s.storage, "check buckets", func(ctx context.Context, l Lister) (*v1.CheckBucketsResponse, error) {
		buckets, err := s.bucketIDs(ctx, req.GetBuckets())
		if err != nil {
			return nil, err
		}
		if len(buckets) == 0 {
			buckets = nil
		}
		applied, err := l.CheckBuckets(ctx, buckets, func(b *v1.CheckBucketsResponse_Bucket) error {
			return stream.Send(&v1.CheckBucketsResponse{Buckets: []*v1.CheckBucketsResponse_Bucket{b}})
		})
		if err == nil {
			err = stream.Send(&v1.CheckBucketsResponse{Applied: applied})
		}
		return nil, err
	})
	return err
}

// BootstrapStorage implements StorageService.
func (s *Server) BootstrapStorage(ctx context.Context, req *v1.BootstrapStorageRequest) (*v1.BootstrapStorageResponse, error) {
	return admin(ctx, s, s.storage, "be bootstrapped from outside", func(ctx context.Context, f Facts) (*v1.BootstrapStorageResponse, error) {
		return &v1.BootstrapStorageResponse{}, f.BootstrapReplicaSet(ctx, req)
	})
}

// SetWeight implements StorageService.
func (s *Server) SetWeight(ctx context.Context, req *v1.SetWeightRequest) (*v1.SetWeightResponse, error) {
	return admin(ctx, s, s.storage, "have a weight", func(ctx context.Context, f Facts) (*v1.SetWeightResponse, error) {
		return &v1.SetWeightResponse{}, f.SetWeight(ctx, req.GetWeight())
	})
}

// SetLock implements StorageService.
func (s *Server) SetLock(ctx context.Context, req *v1.SetLockRequest) (*v1.SetLockResponse, error) {
	return admin(ctx, s, s.storage, "be locked", func(ctx context.Context, f Facts) (*v1.SetLockResponse, error) {
		return &v1.SetLockResponse{}, f.SetLock(ctx, req.GetLocked())
	})
}

// ForgetReplicaSet implements StorageService.
func (s *Server) ForgetReplicaSet(ctx context.Context, req *v1.ForgetReplicaSetRequest) (*v1.ForgetReplicaSetResponse, error) {
	return admin(ctx, s, s.storage, "forget a replica set", func(ctx context.Context, f Facts) (*v1.ForgetReplicaSetResponse, error) {
		return &v1.ForgetReplicaSetResponse{}, f.ForgetReplicaSet(ctx, req.GetReplicaSet())
	})
}

// AddMember implements StorageService.
func (s *Server) AddMember(ctx context.Context, req *v1.AddMemberRequest) (*v1.AddMemberResponse, error) {
	return admin(ctx, s, s.storage, "change its members", func(ctx context.Context, m Membership) (*v1.AddMemberResponse, error) {
		if req.GetMember().GetId() == "" || req.GetMember().GetAddress() == "" {
			return nil, &shard.Error{Code: shard.InvalidArguments, Reason: "a member has an id and an address"}
		}
		return &v1.AddMemberResponse{}, m.AddMember(ctx, req.GetMember())
	})
}

// RemoveMember implements StorageService.
func (s *Server) RemoveMember(ctx context.Context, req *v1.RemoveMemberRequest) (*v1.RemoveMemberResponse, error) {
	return admin(ctx, s, s.storage, "change its members", func(ctx context.Context, m Membership) (*v1.RemoveMemberResponse, error) {
		return &v1.RemoveMemberResponse{}, m.RemoveMember(ctx, req.GetId())
	})
}

// HandOver implements StorageService.
func (s *Server) HandOver(ctx context.Context, req *v1.HandOverRequest) (*v1.HandOverResponse, error) {
	return admin(ctx, s, s.storage, "hand over", func(ctx context.Context, m Membership) (*v1.HandOverResponse, error) {
		return &v1.HandOverResponse{}, m.HandOver(ctx, req.GetId())
	})
}

// RebalancerStatus implements StorageService.
func (s *Server) RebalancerStatus(ctx context.Context, _ *v1.RebalancerStatusRequest) (*v1.RebalancerStatusResponse, error) {
	var r any
	if p := s.rebalancer.Load(); p != nil {
		r = *p
	}
	return admin(ctx, s, r, "rebalance", func(_ context.Context, r Rebalancer) (*v1.RebalancerStatusResponse, error) {
		resp := r.RebalancerStatus()
		resp.Member = s.opts.Member
		return resp, nil
	})
}

// Rebalances lets r answer for the rebalancer of this node, from now on.
func (s *Server) Rebalances(r Rebalancer) { s.rebalancer.Store(&r) }

// SetRebalancer implements StorageService.
func (s *Server) SetRebalancer(ctx context.Context, req *v1.SetRebalancerRequest) (*v1.SetRebalancerResponse, error) {
	return admin(ctx, s, s.storage, "be told whether to rebalance", func(ctx context.Context, f Facts) (*v1.SetRebalancerResponse, error) {
		return &v1.SetRebalancerResponse{}, f.SetRebalancing(ctx, req.GetOn(), req.GetVersion())
	})
}
