package admin

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// gate holds the messages of moves back while it is closed.
type gate struct {
	mu   sync.Mutex
	wait chan struct{} // nil while it is open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait != nil {
		close(g.wait)
		g.wait = nil
	}
}

// gatedLink is a link of a storage behind a gate.
type gatedLink struct {
	storage.Link
	gate *gate
}

func (l gatedLink) Transfer(ctx context.Context, req *v1.TransferRequest) (*v1.TransferResponse, error) {
	l.gate.mu.Lock()
	wait := l.gate.wait
	l.gate.mu.Unlock()
	if wait != nil && req.GetKind() != v1.TransferKind_TRANSFER_KIND_ASK {
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return l.Link.Transfer(ctx, req)
}

// newPair is a cluster of two sets of one, of which the first has all buckets.
func newPair(t *testing.T) (*testCluster, *gate) {
	t.Helper()
	g := &gate{}
	t.Cleanup(g.open)
	return newCluster(t, clusterOptions{Options: localsets.Options{
		Sets: []string{"a", "b"}, Storage: func(o *storage.Options) { o.Link = gatedLink{o.Link, g} },
	}}), g
}

func TestMove_movesAndCounts(t *testing.T) {
	c, _ := newPair(t)
	last, failed, err := c.send(t, "b", spans(1, 6), spans(20, 20))
	if err != nil || last.GetMoved() != 7 || last.GetTotal() != 7 || len(failed) != 0 {
		t.Fatalf("%v, %v, %v", last, failed, err)
	}
	if n := c.owners(t); n["a"] != testBuckets-7 || n["b"] != 7 {
		t.Errorf("the sets have %v", n)
	}
	last, _, err = c.send(t, "b", spans(1, 8))
	if err != nil || last.GetMoved() != 2 || last.GetAlready() != 6 {
		t.Errorf("%v, %v", last, err)
	}
	c.checkUntil(t, "check", &v1.CheckStoreRequest{}, clean)
}

func TestMove_refusesWhatCannotBe(t *testing.T) {
	c, _ := newPair(t)
	ctx := testContext(t)
	lock := func(set string, locked bool) {
		t.Helper()
		if _, err := c.client.UpdateReplicaSet(ctx, &v1.UpdateReplicaSetRequest{Name: set, Locked: &locked}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.client.UpdateBuckets(ctx, &v1.UpdateBucketsRequest{Buckets: []*v1.BucketSpan{spans(9, 10)}, Change: v1.BucketChange_BUCKET_CHANGE_PIN}); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		set   string
		first uint32
		last  uint32
		lock  string
		code  codes.Code
		want  shard.Code
	}{
		"bucket 0":            {"b", 0, 3, "", codes.InvalidArgument, shard.NoRouteToBucket},
		"a bucket beyond":     {"b", 3, testBuckets + 1, "", codes.InvalidArgument, shard.NoRouteToBucket},
		"the wrong way round": {"b", 3, 2, "", codes.InvalidArgument, shard.InvalidArguments},
		"to itself":           {"a", 1, 8, "", codes.FailedPrecondition, shard.MoveToSelf},
		"to nowhere":          {"x", 1, 8, "", codes.NotFound, shard.NoSuchReplicaSet},
		"to a locked set":     {"b", 1, 8, "b", codes.FailedPrecondition, shard.ReplicaSetIsLocked},
		"from a locked set":   {"b", 1, 8, "a", codes.FailedPrecondition, shard.ReplicaSetIsLocked},
		"pinned ones":         {"b", 9, 10, "", codes.FailedPrecondition, shard.BucketIsPinned},
	} {
		if x.lock != "" {
			lock(x.lock, true)
		}
		_, _, err := c.send(t, x.set, spans(x.first, x.last))
		if x.lock != "" {
			lock(x.lock, false)
		}
		t.Run(name, func(t *testing.T) { wantReason(t, err, x.code, x.want) })
		if n := c.owners(t); n["a"] != testBuckets {
			t.Fatalf("%s: something was moved: %v", name, n)
		}
	}
	// What can move moves, and the rest is told.
	last, failed, err := c.send(t, "b", spans(8, 11))
	if err != nil || last.GetMoved() != 2 || len(failed) != 2 || failed[0].GetCode() != shard.BucketIsPinned.String() {
		t.Errorf("%v, %v, %v", last, failed, err)
	}
}

func TestUpdateBuckets_allOrNone(t *testing.T) {
	c, g := newPair(t)
	ctx := testContext(t)
	if _, _, err := c.send(t, "b", spans(13, 24)); err != nil {
		t.Fatal(err)
	}
	change := func(change v1.BucketChange, first, last uint32) error {
		_, err := c.client.UpdateBuckets(ctx, &v1.UpdateBucketsRequest{Buckets: []*v1.BucketSpan{spans(first, last)}, Change: change})
		return err
	}
	states := func() map[string]int {
		resp, err := c.client.DescribeBuckets(ctx, &v1.DescribeBucketsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int{}
		for _, p := range resp.GetPlaces() {
			out[p.GetState()] += int(p.GetLast() - p.GetFirst() + 1)
		}
		return out
	}
	const pin, readOnly = v1.BucketChange_BUCKET_CHANGE_PIN, v1.BucketChange_BUCKET_CHANGE_READ_ONLY
	if err := change(pin, 11, 14); err != nil {
		t.Fatal(err)
	}
	wantReason(t, change(readOnly, 1, 24), codes.FailedPrecondition, shard.BucketIsPinned)
	wantReason(t, change(pin, 1, 25), codes.InvalidArgument, shard.NoRouteToBucket)
	wantReason(t, change(0, 1, 2), codes.InvalidArgument, shard.InvalidArguments)
	if s := states(); s["PINNED"] != 4 || s["READONLY"] != 0 {
		t.Errorf("states: %v", s)
	}
	if err := change(v1.BucketChange_BUCKET_CHANGE_UNPIN, 1, 24); err != nil {
		t.Fatal(err)
	}
	if err := change(readOnly, 5, 5); err != nil {
		t.Fatal(err)
	}
	wantReason(t, change(pin, 4, 5), codes.FailedPrecondition, shard.BucketInvalidUpdate)
	if s := states(); s["PINNED"] != 0 || s["READONLY"] != 1 {
		t.Errorf("states: %v", s)
	}

	// A bucket on its way is not pinned, and its move can be called off.
	g.close()
	sent := make(chan error, 1)
	go func() {
		_, _, err := c.send(t, "b", spans(3, 3))
		sent <- err
	}()
	eventually(t, "the move is under way", func() bool {
		p := c.service.look(ctx)
		at, err := p.owner(3)
		return err == nil && at.moving()
	})
	wantReason(t, change(pin, 2, 3), codes.FailedPrecondition, shard.TransferIsInProgress)
	if s := states(); s["PINNED"] != 0 {
		t.Errorf("states: %v", s)
	}
	info, err := c.client.DescribeStore(ctx, &v1.DescribeStoreRequest{})
	if err != nil || len(info.GetReplicaSets()[0].GetMoves()) != 1 {
		t.Errorf("the move is not shown: %v, %v", info, err)
	}
	resp, err := c.client.CancelMoves(ctx, &v1.CancelMovesRequest{Buckets: []*v1.BucketSpan{spans(1, 24)}})
	if err != nil || resp.GetCancelled() != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	g.open()
	if err := <-sent; err == nil {
		t.Error("a move that was called off has arrived")
	}
	if n := c.owners(t); n["a"] != 12 || n["b"] != 12 {
		t.Errorf("the sets have %v", n)
	}
}

func TestForce_makesAndDropsOwners(t *testing.T) {
	c, _ := newPair(t)
	ctx := testContext(t)
	force := func(change v1.BucketChange, b uint32, set string) {
		t.Helper()
		if _, err := c.client.UpdateBuckets(ctx, &v1.UpdateBucketsRequest{Buckets: []*v1.BucketSpan{spans(b, b)}, Change: change, ReplicaSet: set}); err != nil {
			t.Fatal(err)
		}
	}
	wantKind := func(what, kind string) {
		t.Helper()
		c.checkUntil(t, what, &v1.CheckStoreRequest{OwnersOnly: true}, func(found []*v1.StoreFinding, sum *v1.CheckStoreSummary) bool {
			if kind == "" {
				return clean(found, sum)
			}
			return !sum.GetOk() && len(found) == 1 && found[0].GetKind() == kind
		})
	}
	force(v1.BucketChange_BUCKET_CHANGE_FORCE_CREATE, 4, "b")
	wantKind("with two owners", kindTwoOwners)
	_, err := c.client.LocateKey(ctx, &v1.LocateKeyRequest{Bucket: 4})
	wantReason(t, err, codes.DataLoss, shard.BucketIsCorrupted)
	force(v1.BucketChange_BUCKET_CHANGE_FORCE_DROP, 4, "a")
	wantKind("after the repair", "")
	force(v1.BucketChange_BUCKET_CHANGE_FORCE_DROP, 4, "b")
	wantKind("with no owner", kindNoOwner)
	_, err = c.client.UpdateBuckets(ctx, &v1.UpdateBucketsRequest{Buckets: []*v1.BucketSpan{spans(4, 4)}, Change: v1.BucketChange_BUCKET_CHANGE_FORCE_CREATE, ReplicaSet: "x"})
	wantReason(t, err, codes.NotFound, shard.NoSuchReplicaSet)
	force(v1.BucketChange_BUCKET_CHANGE_FORCE_CREATE, 4, "a")
	wantKind("after the repair", "")
}

func TestUpdateReplicaSet_refusesWhatCannotBe(t *testing.T) {
	c, _ := newPair(t)
	ctx := testContext(t)
	weight := func(set string, w float64) error {
		_, err := c.client.UpdateReplicaSet(ctx, &v1.UpdateReplicaSetRequest{Name: set, Weight: &w})
		return err
	}
	if err := weight("b", 0.5); err != nil {
		t.Fatal(err)
	}
	wantReason(t, weight("b", -1), codes.InvalidArgument, shard.InvalidConfig, "-1")
	wantReason(t, weight("x", 1), codes.NotFound, shard.NoSuchReplicaSet, "a, b")
	_, err := c.client.UpdateReplicaSet(ctx, &v1.UpdateReplicaSetRequest{Name: "b"})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidArguments)
	info, err := c.client.DescribeStore(ctx, &v1.DescribeStoreRequest{})
	if err != nil || info.GetReplicaSets()[1].GetWeight() != 0.5 || info.GetReplicaSets()[1].GetPerfect() != 8 {
		t.Errorf("%v, %v", info, err)
	}
}
