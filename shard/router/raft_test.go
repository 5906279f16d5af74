package router

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// raftNode is a member of a real replica set: a folder and an address that outlive its process.
type raftNode struct {
	t           testing.TB
	id, dir     string
	address     string
	engine      *raftengine.Engine
	store       *storage.Storage
	server      *storagerpc.Server
	grpc        *grpc.Server
	served      chan struct{}
	heartbeat   time.Duration
	functions   func() *storage.Registry
	bucketCount uint32
}

func (n *raftNode) start() {
	n.t.Helper()
	at := n.address
	if at == "" {
		at = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		n.t.Fatal(err)
	}
	n.address = l.Addr().String()
	tr, err := raftrpc.New(raftrpc.Options{ID: n.id, ReplicaSet: "a", Address: n.address})
	if err != nil {
		n.t.Fatal(err)
	}
	n.store, err = storage.Open(testContext(n.t), storage.Options{
		Registry: n.functions(), BucketCount: n.bucketCount, ReplicaSet: "a",
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			e, err := raftengine.Open(ctx, raftengine.Options{Dir: n.dir, Machine: m, BucketCount: n.bucketCount, Transport: tr, HeartbeatTimeout: n.heartbeat, ElectionTimeout: n.heartbeat})
			n.engine = e
			return e, err
		},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.server, err = storagerpc.NewServer(storagerpc.ServerOptions{Storage: n.store, Member: n.id})
	if err != nil {
		n.t.Fatal(err)
	}
	n.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(storagerpc.MaxMessage), grpc.MaxSendMsgSize(storagerpc.MaxMessage))
	n.server.Register(n.grpc)
	tr.Register(n.grpc)
	n.served = make(chan struct{})
	server, served := n.grpc, n.served
	go func() {
		defer close(served)
		_ = server.Serve(l) // ends with Stop
	}()
}

// kill ends the member without a goodbye.
func (n *raftNode) kill() {
	if n.store == nil {
		return
	}
	n.grpc.Stop()
	<-n.served
	n.server.Close()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = n.store.Close(ended) // it has no time, which is an error
	n.store = nil
}

// newRaft makes a replica set of three whose master is the first.
func newRaft(t testing.TB, size int) (nodes []*raftNode, set Set) {
	t.Helper()
	var members []engine.Member
	set.Name = "a"
	for i := range size {
		n := &raftNode{t: t, id: fmt.Sprintf("a%d", i+1), dir: filepath.Join(t.TempDir(), "data"), heartbeat: 500 * time.Millisecond, functions: storage.NewRegistry, bucketCount: 16}
		n.start()
		t.Cleanup(n.kill)
		nodes = append(nodes, n)
		members = append(members, engine.Member{ID: n.id, Address: n.address, Voter: true})
		set.Members = append(set.Members, Member{ID: n.id, Address: n.address})
	}
	if err := nodes[0].engine.Bootstrap(testContext(t), members); err != nil {
		t.Fatal(err)
	}
	err := nodes[0].store.BootstrapReplicaSet(testContext(t), &v1.BootstrapStorageRequest{
		ClusterId: "c", BucketCount: 16, ReplicaSet: "a", Buckets: []*v1.BucketRange{{First: 1, Last: 16}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return nodes, set
}

// TestRaft_noAcknowledgedWriteIsLost writes while the master is handed over and killed.
func TestRaft_noAcknowledgedWriteIsLost(t *testing.T) {
	nodes, set := newRaft(t, 3)
	r := newRemoteRouter(t, Options{Topology: Static(set), ClusterID: "c"})
	ctx := testContext(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var done atomic.Int64
	const writers = 4
	var written [writers]int
	for w := range writers {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				// Writing a value again does no harm, so what was under way is repeated.
				key := fmt.Sprintf("%d/%d", w, i)
				if _, err := r.CallIdempotent(ctx, shard.BucketID(w+1), storage.KVPut, putArgs(key, key)); err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				written[w] = i + 1
				done.Add(1)
				// What was acknowledged can be read at once.
				result, err := r.Call(ctx, shard.BucketID(w+1), CallMR, storage.KVGet, storage.KVGetArgs([]byte(key)))
				if v, ok, _ := storage.KVGetResult(result); err != nil || !ok || string(v) != key {
					t.Errorf("%s is %q, %v", key, v, err)
					return
				}
			}
		})
	}
	more := func(what string) {
		t.Helper()
		at := done.Load()
		eventually(t, what, func() bool { return done.Load() > at+40 || t.Failed() })
	}
	master := func() *raftNode {
		t.Helper()
		var found *raftNode
		eventually(t, "there is a master", func() bool {
			for _, n := range nodes {
				if n.store != nil && n.store.Status().State == engine.Master {
					found = n
				}
			}
			return found != nil
		})
		return found
	}
	more("it is written")
	for range 2 {
		eventually(t, "the mastership is handed over", func() bool {
			err := r.OnMaster(ctx, "a", func(ctx context.Context, c v1.StorageServiceClient) error {
				_, err := c.HandOver(ctx, &v1.HandOverRequest{})
				return err
			})
			return err == nil
		})
		more("it is written after a hand-over")
	}
	m := master()
	m.kill()
	more("it is written after the master was killed")
	m.start()
	more("it is written after it has come back")
	stop.Store(true)
	wg.Wait()
	for w := range writers {
		for i := range written[w] {
			key := fmt.Sprintf("%d/%d", w, i)
			mustGet(t, r, shard.BucketID(w+1), CallMR, key, key)
		}
	}
	// Replicas serve reads that allow it, and catch up.
	eventually(t, "all members are well", func() bool { return r.Info(ctx).Level == Green })
	key := "0/0"
	eventually(t, "replicas answer", func() bool {
		result, err := r.Call(ctx, 1, CallBRE, storage.KVGet, storage.KVGetArgs([]byte(key)))
		v, ok, _ := storage.KVGetResult(result)
		return err == nil && ok && string(v) == key
	})
	t.Logf("%d writes", done.Load())
}

func TestRaft_infoKnowsTheMembers(t *testing.T) {
	nodes, set := newRaft(t, 3)
	r := newRemoteRouter(t, Options{Topology: Static(set), ClusterID: "c"})
	ctx := testContext(t)
	var info Info
	eventually(t, "all is well", func() bool { info = r.Info(ctx); return info.Level == Green })
	s := info.ReplicaSets[0]
	if s.Master == "" || len(s.Members) != 3 || s.Buckets[shard.Active] != 16 || s.Weight != 1 {
		t.Errorf("info: %+v", s)
	}
	for _, n := range nodes {
		if n.id != s.Master {
			n.kill()
			break
		}
	}
	info = r.Info(ctx)
	found := map[shard.Code]bool{}
	for _, a := range info.Alerts {
		found[a.Code] = true
	}
	if info.Level != Orange || !found[shard.LowRedundancy] || !found[shard.UnreachableReplica] || info.Buckets.ReadWrite != 16 {
		t.Errorf("with a member down: %+v", info)
	}
	mustPut(t, r, 1, "k", "v")
}
