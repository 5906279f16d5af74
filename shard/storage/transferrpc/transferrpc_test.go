package transferrpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
	"github.com/switchyard-dev/switchyard/shard/storage/transferrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not become true that %s", what)
		}
	}
}

// start makes a cluster of sets a and b, and a router.
func start(t testing.TB, members int, change func(*localsets.Options)) (*localsets.Cluster, *router.Router) {
	t.Helper()
	opts := localsets.Options{
		Dir: t.TempDir(), Members: members,
		// The machine may be slow, and a member that is slow is not dead.
		Engine:  raftengine.Options{HeartbeatTimeout: time.Second, Durability: raftengine.Interval},
		Storage: func(o *storage.Options) { o.PauseTime = 20 * time.Second },
	}
	if change != nil {
		change(&opts)
	}
	c, err := localsets.Start(testContext(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r, err := c.Router()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return c, r
}

const bucket = shard.BucketID(5)

// fill writes rows to the bucket. Each is written until that is certain.
func fill(t testing.TB, r *router.Router, rows, size int) {
	t.Helper()
	value := make([]byte, size)
	next := make(chan int, rows)
	for i := range rows {
		next <- i
	}
	close(next)
	ctx := testContext(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				if _, err := r.CallIdempotent(ctx, bucket, storage.KVPut, storage.KVPutArgs(1, fmt.Appendf(nil, "row %d", i), value)); err != nil {
					t.Errorf("row %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := count(t, r); n != rows {
		t.Fatalf("%d rows are there after %d were written", n, rows)
	}
}

// count is how many rows the bucket has.
func count(t testing.TB, r *router.Router) (n int) {
	t.Helper()
	err := r.View(testContext(t), bucket, router.CallMR, func(v *storage.View) error {
		n = 0
		return v.Scan(storage.SpaceKV, nil, nil, false, func(_, _ []byte) bool { n++; return true })
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// load writes a counter to the bucket, and reads it, until it is ended.
type load struct {
	stop    atomic.Bool
	wg      sync.WaitGroup
	written atomic.Int64
}

func startLoad(t testing.TB, r *router.Router) *load {
	l := &load{}
	ctx := testContext(t)
	l.wg.Go(func() {
		for i := int64(1); !l.stop.Load(); i++ {
			// The same value again does no harm, so what was under way is repeated.
			if _, err := r.CallIdempotent(ctx, bucket, storage.KVPut, storage.KVPutArgs(1, []byte("counter"), fmt.Append(nil, i))); err != nil {
				t.Errorf("write %d: %v", i, err)
				return
			}
			l.written.Store(i)
		}
	})
	l.wg.Go(func() {
		for !l.stop.Load() {
			least := l.written.Load()
			result, err := r.Call(ctx, bucket, router.CallMR, storage.KVGet, storage.KVGetArgs([]byte("counter")))
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			var got int64
			if v, ok, err := storage.KVGetResult(result); err != nil {
				t.Error(err)
			} else if ok {
				_, _ = fmt.Sscan(string(v), &got)
			}
			if got < least {
				t.Errorf("%d was read after %d was written", got, least)
				return
			}
		}
	})
	return l
}

// more waits until it is written again.
func (l *load) more(t testing.TB, what string) {
	t.Helper()
	at := l.written.Load()
	eventually(t, what, func() bool { return l.written.Load() > at+10 || t.Failed() })
}

func (l *load) end() {
	l.stop.Store(true)
	l.wg.Wait()
}

func send(t testing.TB, r *router.Router, to string) {
	t.Helper()
	failed, err := r.SendBuckets(testContext(t), []shard.BucketID{bucket}, to)
	if err != nil || len(failed) > 0 {
		t.Fatalf("the move to %s: %v %v", to, failed, err)
	}
}

func TestMove_betweenSetsOfOneUnderLoad(t *testing.T) {
	_, r := start(t, 1, nil)
	fill(t, r, 300, 10_000)
	l := startLoad(t, r)
	for _, to := range []string{"b", "a", "b"} {
		send(t, r, to)
		l.more(t, "it is written after the move")
	}
	l.end()
	if n := count(t, r); n != 301 {
		t.Errorf("%d rows are there, want 301", n)
	}
}

func TestMove_fromThreeToThreeWithMasterChanges(t *testing.T) {
	c, r := start(t, 3, nil)
	ctx := testContext(t)
	fill(t, r, 100, 40_000)
	l := startLoad(t, r)
	// The mastership of one side or the other changes while it moves; a move that the source's
	// new master has called off is begun again.
	for _, move := range []struct{ to, changes string }{{"b", "b"}, {"a", "b"}, {"b", "b"}, {"a", "a"}} {
		stop := make(chan struct{})
		var changed sync.WaitGroup
		changed.Go(func() { handOverDuringMove(t, c, r, move.to, move.changes, stop) })
		tries := 0
		eventually(t, "the bucket is at "+move.to, func() bool {
			tries++
			failed, err := r.SendBuckets(ctx, []shard.BucketID{bucket}, move.to)
			return err == nil && (len(failed) == 0 || errors.Is(failed[bucket], shard.MoveToSelf))
		})
		close(stop)
		changed.Wait()
		t.Logf("the move to %s took %d tries", move.to, tries)
		l.more(t, "it is written after the move")
		if n := count(t, r); n != 101 {
			t.Fatalf("%d rows are there, want 101", n)
		}
	}
	l.end()
	if n := count(t, r); n != 101 {
		t.Errorf("%d rows are there, want 101", n)
	}
	wantOneOwner(t, c)
}

// handOverDuringMove makes another member master of a set once the bucket is on its way, as
// soon as there is one that can be, until stop.
func handOverDuringMove(t testing.TB, c *localsets.Cluster, r *router.Router, to, set string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		on := false
		for _, m := range c.Members(to) {
			on = on || m.Alive() && m.Storage.BucketRow(bucket).State == shard.Receiving
		}
		if on {
			err := r.OnMaster(testContext(t), set, func(ctx context.Context, s v1.StorageServiceClient) error {
				_, err := s.HandOver(ctx, &v1.HandOverRequest{})
				return err
			})
			if err == nil {
				t.Logf("the mastership of %s changed while the bucket moved to %s", set, to)
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// wantOneOwner waits until nothing is under way and exactly one set has the bucket.
func wantOneOwner(t testing.TB, c *localsets.Cluster) {
	t.Helper()
	eventually(t, "one set has the bucket and nothing is under way", func() bool {
		owners := 0
		for _, set := range []string{"a", "b"} {
			m, err := c.Master(testContext(t), set)
			if err != nil {
				t.Fatal(err)
			}
			row := m.Storage.BucketRow(bucket)
			if row.Moving() || row.State == shard.Receiving {
				return false
			}
			if row.Owns() {
				owners++
			}
		}
		return owners == 1
	})
}

func TestLink_beforeItHasARouterMayBeAskedAgain(t *testing.T) {
	var l transferrpc.Link
	_, err := l.Transfer(testContext(t), &v1.TransferRequest{To: "b"})
	if !errors.Is(err, shard.UnreachableReplicaSet) {
		t.Errorf("%v, want UNREACHABLE_REPLICASET", err)
	}
	if names := l.ReplicaSets(); len(names) != 0 {
		t.Errorf("it knows %v", names)
	}
}

func TestLink_knowsTheReplicaSetsOfTheRouter(t *testing.T) {
	c, r := start(t, 1, nil)
	var l transferrpc.Link
	l.Attach(r)
	if names := l.ReplicaSets(); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("it knows %v", names)
	}
	_, err := l.Transfer(testContext(t), &v1.TransferRequest{To: "z"})
	if !errors.Is(err, shard.NoSuchReplicaSet) {
		t.Errorf("a message to nobody: %v", err)
	}
	// A refusal comes back as the error that it was.
	_, err = l.Transfer(testContext(t), &v1.TransferRequest{To: "b", From: "a", BucketCount: 99})
	if e, ok := errors.AsType[*shard.Error](err); !ok || e.Code != shard.InvalidConfig || e.ReplicaSet != "b" || !strings.Contains(e.Reason, "99") {
		t.Errorf("a message of another cluster: %v", err)
	}
	c.Members("b")[0].Kill()
	eventually(t, "a dead master is unreachable", func() bool {
		_, err := l.Transfer(testContext(t), &v1.TransferRequest{To: "b", From: "a", BucketCount: 16})
		return errors.Is(err, shard.UnreachableMaster) || errors.Is(err, shard.UnreachableReplicaSet)
	})
}

// receiver is a storage that does what its function says.
type receiver func(*v1.TransferRequest) (*v1.TransferResponse, error)

func (f receiver) Receive(_ context.Context, req *v1.TransferRequest) (*v1.TransferResponse, error) {
	return f(req)
}

func (receiver) ReplicaSet() string { return "b" }

func TestServer_survivesAPanicAndKeepsErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gs := grpc.NewServer()
	calls := 0
	transferrpc.Register(gs, receiver(func(*v1.TransferRequest) (*v1.TransferResponse, error) {
		if calls++; calls == 1 {
			panic("a fault")
		}
		return nil, &shard.Error{Code: shard.NonMaster, Master: "b2", ReplicaSet: "b"}
	}), nil)
	served := make(chan struct{})
	go func() { defer close(served); _ = gs.Serve(l) }()
	t.Cleanup(func() { gs.Stop(); <-served })
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for _, want := range []shard.Code{shard.StoreFailed, shard.NonMaster} {
		_, err := v1.NewTransferServiceClient(conn).Transfer(testContext(t), &v1.TransferRequest{})
		if got := storeError(t, err); got.Code != want || want == shard.NonMaster && got.Master != "b2" {
			t.Errorf("the error is %v, want %v", got, want)
		}
	}
}

func storeError(t testing.TB, err error) *shard.Error {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if e, ok := d.(*v1.StorageError); ok {
			out, ok := errors.AsType[*shard.Error](storagerpc.DecodeError(e))
			if ok {
				return out
			}
		}
	}
	t.Fatalf("%v has no error of the store", err)
	return nil
}
