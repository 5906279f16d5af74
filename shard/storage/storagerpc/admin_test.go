package storagerpc

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// able is a storage that can do everything, and writes down what it was asked.
type able struct {
	*storage.Storage
	mu    sync.Mutex
	asked []string
	err   error
}

func (a *able) note(format string, args ...any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, fmt.Sprintf(format, args...))
	return a.err
}

func (a *able) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := a.asked
	a.asked = nil
	return asked
}

func (a *able) SendBuckets(_ context.Context, b []shard.BucketID, to string) (map[shard.BucketID]error, error) {
	return map[shard.BucketID]error{b[0]: theError}, a.note("send %v to %s", b, to)
}
func (a *able) CancelSends(_ context.Context, b []shard.BucketID) error {
	return a.note("cancel %v", b)
}
func (a *able) Moves() []*v1.BucketMove { return []*v1.BucketMove{{Bucket: 4, Destination: "b"}} }

func (a *able) Pin(_ context.Context, b []shard.BucketID) error   { return a.note("pin %v", b) }
func (a *able) Unpin(_ context.Context, b []shard.BucketID) error { return a.note("unpin %v", b) }
func (a *able) SetReadOnly(_ context.Context, b []shard.BucketID, on bool) error {
	return a.note("read-only %v %v", b, on)
}
func (a *able) ForceCreate(_ context.Context, b []shard.BucketID) error {
	return a.note("create %v", b)
}
func (a *able) ForceDrop(_ context.Context, b []shard.BucketID) error { return a.note("drop %v", b) }

func (a *able) ListBuckets(_ context.Context, fn func(*v1.ListBucketsResponse_Bucket) error) error {
	for b := uint32(1); b <= 3*listChunk/2; b++ {
		peer := ""
		if b == 2 {
			peer = "b"
		}
		if err := fn(&v1.ListBucketsResponse_Bucket{Bucket: b, State: b % 2, Peer: peer}); err != nil {
			return err
		}
	}
	return a.note("list")
}

func (a *able) CheckBuckets(_ context.Context, b []shard.BucketID, fn func(*v1.CheckBucketsResponse_Bucket) error) (uint64, error) {
	for _, id := range b {
		if err := fn(&v1.CheckBucketsResponse_Bucket{Bucket: uint32(id), Rows: 7}); err != nil {
			return 0, err
		}
	}
	return 99, a.note("check %v %v", b, b == nil)
}

func (a *able) Ref(_ context.Context, id string, deadline time.Time) error {
	return a.note("ref %s %v", id, time.Until(deadline) > 0)
}
func (a *able) CheckRef(id string) error                     { return a.note("check ref %s", id) }
func (a *able) Unref(_ context.Context, id string) error     { return a.note("unref %s", id) }
func (a *able) ClusterID() string                            { return "c" }
func (a *able) Weight() float64                              { return 2.5 }
func (a *able) Locked() bool                                 { return true }
func (a *able) KnownReplicaSets() []string                   { return []string{"a", "b"} }
func (a *able) SetWeight(_ context.Context, w float64) error { return a.note("weight %v", w) }
func (a *able) SetLock(_ context.Context, on bool) error     { return a.note("lock %v", on) }
func (a *able) ForgetReplicaSet(_ context.Context, n string) error {
	return a.note("forget %s", n)
}
func (a *able) BootstrapReplicaSet(_ context.Context, req *v1.BootstrapStorageRequest) error {
	return a.note("bootstrap %s", req.GetReplicaSet())
}
func (a *able) Members() []*v1.StorageMember { return []*v1.StorageMember{{Id: "a1"}} }
func (a *able) AddMember(_ context.Context, m *v1.StorageMember) error {
	return a.note("add %s at %s", m.GetId(), m.GetAddress())
}
func (a *able) RemoveMember(_ context.Context, id string) error { return a.note("remove %s", id) }
func (a *able) HandOver(_ context.Context, id string) error     { return a.note("hand over to %s", id) }

func (a *able) RebalancerStatus() *v1.RebalancerStatusResponse {
	return &v1.RebalancerStatusResponse{Phase: "idle"}
}
func (a *able) SetRebalancing(_ context.Context, on bool, version uint64) error {
	return a.note("rebalance %v %d", on, version)
}
func (a *able) Rebalancing() (bool, uint64) { return false, 5 }

func TestAdmin_operationsReachTheStorage(t *testing.T) {
	ctx := testContext(t)
	a := &able{Storage: newStorage(t, "", storage.NewRegistry())}
	srv, address := serve(t, ServerOptions{Storage: a})
	srv.Rebalances(a)
	c := dial(t, address, ClientOptions{})
	change := func(ch v1.BucketChange) func(context.Context, v1.StorageServiceClient) error {
		return func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.ChangeBuckets(ctx, &v1.ChangeBucketsRequest{Buckets: []uint32{1, 2}, Change: ch})
			return err
		}
	}
	operations := map[string]func(context.Context, v1.StorageServiceClient) error{
		"send [1 2] to b": func(ctx context.Context, c v1.StorageServiceClient) error {
			resp, err := c.SendBuckets(ctx, &v1.SendBucketsRequest{Buckets: []uint32{1, 2}, Destination: "b"})
			if err == nil && (len(resp.GetFailed()) != 1 || resp.GetFailed()[0].GetId() != 1 || !reflect.DeepEqual(DecodeError(resp.GetFailed()[0].GetError()).Error(), theError.Error())) {
				t.Errorf("failed: %v", resp)
			}
			return err
		},
		"cancel [3]": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.CancelSends(ctx, &v1.CancelSendsRequest{Buckets: []uint32{3}})
			return err
		},
		"pin [1 2]":             change(v1.BucketChange_BUCKET_CHANGE_PIN),
		"unpin [1 2]":           change(v1.BucketChange_BUCKET_CHANGE_UNPIN),
		"read-only [1 2] true":  change(v1.BucketChange_BUCKET_CHANGE_READ_ONLY),
		"read-only [1 2] false": change(v1.BucketChange_BUCKET_CHANGE_READ_WRITE),
		"create [1 2]":          change(v1.BucketChange_BUCKET_CHANGE_FORCE_CREATE),
		"drop [1 2]":            change(v1.BucketChange_BUCKET_CHANGE_FORCE_DROP),
		"ref r true": func(ctx context.Context, c v1.StorageServiceClient) error {
			resp, err := c.Ref(ctx, &v1.RefRequest{Id: "r", Timeout: durationpb.New(time.Minute), Buckets: []uint32{2, 3, 5}})
			if err == nil && len(resp.GetBuckets()) != 2 {
				t.Errorf("ref: %v", resp)
			}
			return err
		},
		"unref r": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.Unref(ctx, &v1.UnrefRequest{Id: "r"})
			return err
		},
		"weight 1.5": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.SetWeight(ctx, &v1.SetWeightRequest{Weight: 1.5})
			return err
		},
		"lock true": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.SetLock(ctx, &v1.SetLockRequest{Locked: true})
			return err
		},
		"forget b": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.ForgetReplicaSet(ctx, &v1.ForgetReplicaSetRequest{ReplicaSet: "b"})
			return err
		},
		"bootstrap a": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.BootstrapStorage(ctx, &v1.BootstrapStorageRequest{ReplicaSet: "a"})
			return err
		},
		"add a2 at x:1": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.AddMember(ctx, &v1.AddMemberRequest{Member: &v1.StorageMember{Id: "a2", Address: "x:1"}})
			return err
		},
		"remove a2": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.RemoveMember(ctx, &v1.RemoveMemberRequest{Id: "a2"})
			return err
		},
		"hand over to a2": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.HandOver(ctx, &v1.HandOverRequest{Id: "a2"})
			return err
		},
		"rebalance true 0": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.SetRebalancer(ctx, &v1.SetRebalancerRequest{On: true})
			return err
		},
	}
	for _, way := range []struct {
		name string
		do   func(context.Context, func(context.Context, v1.StorageServiceClient) error) error
	}{{"over the network", c.Do}, {"in the process", srv.Do}} {
		for want, do := range operations {
			a.err = nil
			if err := way.do(ctx, do); err != nil {
				t.Errorf("%s, %s: %v", want, way.name, err)
			}
			if got := a.take(); !slices.Equal(got, []string{want}) {
				t.Errorf("%s became %q", want, got)
			}
			a.err = theError
			err := way.do(ctx, do)
			if e := new(shard.Error); !errors.As(err, &e) || e.Error() != theError.Error() {
				t.Errorf("the error of %s, %s, is %v", want, way.name, err)
			}
			a.take()
		}
	}
	a.err = nil
	info, err := c.service().StorageInfo(ctx, &v1.StorageInfoRequest{})
	if err != nil || info.GetWeight() != 2.5 || !info.GetLocked() || len(info.GetKnownReplicaSets()) != 2 || len(info.GetMembers()) != 1 ||
		len(info.GetMoves()) != 1 || !info.GetRebalancingOff() || info.GetClusterId() != "c" || info.GetBuckets()[uint32(shard.Active)] != buckets {
		t.Errorf("info: %v %v", info, err)
	}
	if st, err := c.service().RebalancerStatus(ctx, &v1.RebalancerStatusRequest{}); err != nil || st.GetPhase() != "idle" {
		t.Errorf("rebalancer: %v %v", st, err)
	}
}

func TestAdmin_streams(t *testing.T) {
	ctx := testContext(t)
	a := &able{Storage: newStorage(t, "", storage.NewRegistry())}
	_, address := serve(t, ServerOptions{Storage: a})
	c := dial(t, address, ClientOptions{})
	list := func(req *v1.ListBucketsRequest) (n int) {
		t.Helper()
		stream, err := c.service().ListBuckets(ctx, req)
		for err == nil {
			var resp *v1.ListBucketsResponse
			if resp, err = stream.Recv(); err == nil {
				n += len(resp.GetBuckets())
			}
		}
		return n
	}
	for want, req := range map[int]*v1.ListBucketsRequest{
		3 * listChunk / 4: {},
		3 * listChunk / 2: {States: []uint32{0, 1}},
		3*listChunk/2 - 1: {States: []uint32{0, 1}, Resting: true},
		0:                 {States: []uint32{5}},
	} {
		if n := list(req); n != want {
			t.Errorf("%v: %d buckets, want %d", req, n, want)
		}
	}
	stream, err := c.service().CheckBuckets(ctx, &v1.CheckBucketsRequest{Buckets: []uint32{1, 2}})
	n, applied := 0, uint64(0)
	for err == nil {
		var resp *v1.CheckBucketsResponse
		if resp, err = stream.Recv(); err == nil {
			n += len(resp.GetBuckets())
			applied = max(applied, resp.GetApplied())
		}
	}
	if n != 2 || applied != 99 {
		t.Errorf("%d buckets were checked, up to %d", n, applied)
	}
}

func TestAdmin_refuses(t *testing.T) {
	ctx := testContext(t)
	a := &able{Storage: newStorage(t, "", storage.NewRegistry())}
	_, address := serve(t, ServerOptions{Storage: a})
	c := dial(t, address, ClientOptions{})
	for name, do := range map[string]func(context.Context, v1.StorageServiceClient) error{
		"no such bucket": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.SendBuckets(ctx, &v1.SendBucketsRequest{Buckets: []uint32{buckets + 1}, Destination: "b"})
			return err
		},
		"too many buckets": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.CancelSends(ctx, &v1.CancelSendsRequest{Buckets: make([]uint32, buckets+1)})
			return err
		},
		"no change": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.ChangeBuckets(ctx, &v1.ChangeBucketsRequest{Buckets: []uint32{1}})
			return err
		},
		"a member without address": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.AddMember(ctx, &v1.AddMemberRequest{Member: &v1.StorageMember{Id: "a2"}})
			return err
		},
		"a reference without end": func(ctx context.Context, c v1.StorageServiceClient) error {
			_, err := c.Ref(ctx, &v1.RefRequest{Id: "r"})
			return err
		},
		"calls of no bucket": func(ctx context.Context, cl v1.StorageServiceClient) error {
			return c.MapCall(ctx, &v1.MapCallRequest{Kind: write, Buckets: []*v1.BucketRange{{First: 0, Last: 3}}}, func(shard.BucketID, []byte, error) {})
		},
		"calls of no kind": func(ctx context.Context, cl v1.StorageServiceClient) error {
			return c.MapCall(ctx, &v1.MapCallRequest{}, func(shard.BucketID, []byte, error) {})
		},
	} {
		err := c.Do(ctx, do)
		if _, ok := errors.AsType[*shard.Error](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
		if asked := a.take(); len(asked) != 0 {
			t.Errorf("%s: the storage was asked to %q", name, asked)
		}
	}
	// A node without a rebalancer.
	if _, err := c.service().RebalancerStatus(ctx, &v1.RebalancerStatusRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("no rebalancer: %v", err)
	}
}

func TestServer_refusesAnotherCluster(t *testing.T) {
	a := &able{Storage: newStorage(t, "", storage.NewRegistry())}
	_, address := serve(t, ServerOptions{Storage: a})
	for name, opts := range map[string]ClientOptions{
		"cluster id":   {ClusterID: "another"},
		"bucket_count": {BucketCount: buckets + 1},
		"replica set":  {ReplicaSet: "z"},
	} {
		c := dial(t, address, opts)
		for way, err := range map[string]error{
			"call": func() error {
				_, err := c.Call(testContext(t), write, 1, storage.KVPut, nil)
				return err
			}(),
			"view":  c.View(testContext(t), reads, 1, func(*storage.View) error { return nil }),
			"watch": c.Watch(testContext(t), func(*v1.DiscoverResponse) error { return nil }),
			"admin": c.Do(testContext(t), func(ctx context.Context, c v1.StorageServiceClient) error {
				_, err := c.StorageInfo(ctx, &v1.StorageInfoRequest{})
				return err
			}),
		} {
			if !errors.Is(err, shard.InvalidConfig) {
				t.Errorf("%s, by a %s: %v", name, way, err)
			}
		}
	}
	c := dial(t, address, ClientOptions{ClusterID: "c", BucketCount: buckets, ReplicaSet: "a"})
	if _, err := c.Call(testContext(t), write, 1, storage.KVDelete, storage.KVDeleteArgs([]byte("k"))); err != nil {
		t.Errorf("the right one: %v", err)
	}
}

func TestNew_refusesBadLimits(t *testing.T) {
	if _, err := NewServer(ServerOptions{}); !errors.Is(err, shard.InvalidConfig) {
		t.Errorf("no storage: %v", err)
	}
	if _, err := NewServer(ServerOptions{Storage: &able{}, MaxCalls: -1}); !errors.Is(err, shard.InvalidConfig) {
		t.Errorf("a bad limit: %v", err)
	}
	if _, err := NewClient("x:1", ClientOptions{MaxBytes: -1}); !errors.Is(err, shard.InvalidConfig) {
		t.Errorf("a client's bad limit: %v", err)
	}
}
