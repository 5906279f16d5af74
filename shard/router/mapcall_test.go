package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// refs is what a storage that moves buckets keeps of references.
type refs struct {
	mu   sync.Mutex
	held map[string]time.Time
	// taken and given count.
	taken, given int
	// onRef, if set, is called when a reference is taken.
	onRef func()
}

func (r *refs) Ref(_ context.Context, id string, deadline time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil {
		r.held = map[string]time.Time{}
	}
	r.held[id] = deadline
	r.taken++
	if f := r.onRef; f != nil {
		r.onRef = nil
		f()
	}
	return nil
}

func (r *refs) CheckRef(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.held[id]) {
		return nil
	}
	return &shard.Error{Code: shard.StorageRefUse}
}

func (r *refs) Unref(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.held[id]; !ok {
		return &shard.Error{Code: shard.StorageRefDelete}
	}
	delete(r.held, id)
	r.given++
	return nil
}

func (r *refs) count() (held, taken, given int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held), r.taken, r.given
}

// bucketRegistry has "bucket", which writes and returns its bucket's number, and "odd", which
// fails on odd buckets.
func bucketRegistry() *storage.Registry {
	reg := storage.NewRegistry()
	reg.Register("bucket", func(tx *storage.Tx, args []byte) ([]byte, error) {
		return fmt.Append(nil, tx.Bucket()), tx.Put(storage.SpaceKV, 0, []byte("here"), args)
	})
	reg.Register("odd", func(tx *storage.Tx, _ []byte) ([]byte, error) {
		if tx.Bucket()%2 == 1 {
			return nil, &shard.Error{Code: shard.InvalidArguments, Bucket: tx.Bucket()}
		}
		return nil, nil
	})
	return reg
}

// newHalves serves two replica sets, the first with buckets 1 to 8, the second with 9 to 16.
func newHalves(t *testing.T, size int) (a, b *group, held [2]*refs) {
	t.Helper()
	var groups []*group
	for i, name := range []string{"a", "b"} {
		s := newStorage(t, name, bucketRegistry())
		for k := shard.BucketID(1); k <= 8; k++ {
			states(t, s, k+shard.BucketID(8*(1-i)), "", shard.Sending, shard.Sent, shard.Garbage, shard.Absent)
		}
		g := newGroup(t, s, size)
		held[i] = new(refs)
		for _, n := range g.nodes {
			n.refs = held[i]
		}
		groups = append(groups, g)
	}
	return groups[0], groups[1], held
}

func TestMapCallRW_runsOnEveryBucketOnce(t *testing.T) {
	a, b, held := newHalves(t, 1)
	r := newRemoteRouter(t, Options{}, a, b)
	for _, buckets := range [][]shard.BucketID{nil, {2, 3, 12}, {5}, {9, 9, 9}} {
		results, err := r.MapCallRW(testContext(t), buckets, "bucket", []byte("v"))
		if err != nil {
			t.Fatal(err)
		}
		want := len(buckets)
		switch {
		case buckets == nil:
			want = 16
		case len(buckets) == 3 && buckets[0] == 9:
			want = 1
		}
		if len(results) != want {
			t.Errorf("%v: %d results", buckets, len(results))
		}
		for bucket, result := range results {
			if string(result) != fmt.Sprint(bucket) {
				t.Errorf("bucket %d has the result %q", bucket, result)
			}
		}
	}
	for i, h := range held {
		if n, taken, given := h.count(); n != 0 || taken == 0 || taken != given {
			t.Errorf("replica set %d: %d references are left, %d were taken and %d given back", i, n, taken, given)
		}
	}
	if _, taken, _ := held[1].count(); taken != 3 {
		t.Errorf("the second replica set was referred to %d times; one of four calls was none of its business", taken)
	}
}

func TestMapCallRW_findsBucketsThatMovedBeforeItsReferences(t *testing.T) {
	a, b, held := newHalves(t, 1)
	r := newRemoteRouter(t, Options{}, a, b)
	eventually(t, "the place is known", func() bool { name, _ := r.Route(3); return name == "a" })
	held[0].onRef = func() { move(t, 3, a, b) }
	results, err := r.MapCallRW(testContext(t), []shard.BucketID{3}, "bucket", nil)
	if err != nil || string(results[3]) != "3" {
		t.Errorf("%v, %v", results, err)
	}
	if n, _, _ := held[0].count(); n != 0 {
		t.Error("a reference is left")
	}
}

func TestMapCallRW_saysWhereItFailed(t *testing.T) {
	a, b, _ := newHalves(t, 1)
	r := newRemoteRouter(t, Options{}, a, b)
	results, err := r.MapCallRW(testContext(t), nil, "odd", nil)
	var m *MapError
	if !errors.As(err, &m) || len(m.Failed) != 8 || m.Of != 16 || len(results) != 8 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for bucket, err := range m.Failed {
		if bucket%2 != 1 || !errors.Is(err, shard.InvalidArguments) {
			t.Errorf("bucket %d: %v", bucket, err)
		}
	}
	if !errors.Is(err, shard.InvalidArguments) || !strings.Contains(err.Error(), "8 of 16") {
		t.Errorf("the error is %v", err)
	}
	// A replica set that cannot be referred to: nothing has run.
	b.nodes[0].proxy.set("cut")
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	results, err = r.MapCallRW(short, nil, "bucket", nil)
	if err == nil || errors.As(err, &m) || len(results) != 0 {
		t.Errorf("%d results, %v", len(results), err)
	}
}

func TestMapCallRW_aReplicaSetThatIsLostMeanwhile(t *testing.T) {
	a, b, _ := newHalves(t, 1)
	r := newRemoteRouter(t, Options{}, a, b)
	hold := make(chan struct{})
	b.nodes[0].hold.Store(&hold)
	type outcome struct {
		results map[shard.BucketID][]byte
		err     error
	}
	got := make(chan outcome, 1)
	ctx := testContext(t)
	go func() {
		results, err := r.MapCallRW(ctx, nil, "bucket", nil)
		got <- outcome{results, err}
	}()
	eventually(t, "it has the calls", func() bool { return b.nodes[0].writes.Load() == 8 })
	b.nodes[0].proxy.set("cut")
	o := <-got
	var m *MapError
	if !errors.As(o.err, &m) || len(m.Failed) != 8 || len(o.results) != 8 {
		t.Fatalf("%d results, %v", len(o.results), o.err)
	}
	for bucket, err := range m.Failed {
		if bucket <= 8 || !errors.Is(err, shard.OutcomeUnknown) {
			t.Errorf("bucket %d: %v", bucket, err)
		}
	}
}

func TestMapCallRW_inOneProcess(t *testing.T) {
	r, err := New(Options{ReplicaSets: []ReplicaSet{newStorage(t, "a", bucketRegistry())}})
	if err != nil {
		t.Fatal(err)
	}
	results, err := r.MapCallRW(testContext(t), nil, "bucket", nil)
	if err != nil || len(results) != 16 {
		t.Errorf("%d results, %v", len(results), err)
	}
	if _, err := r.MapCallRW(testContext(t), []shard.BucketID{17}, "bucket", nil); !errors.Is(err, shard.NoRouteToBucket) {
		t.Errorf("no such bucket: %v", err)
	}
}

func TestMapCallRO_overReplicaSets(t *testing.T) {
	a, b, _ := newHalves(t, 1)
	r := newRemoteRouter(t, Options{}, a, b)
	if _, err := r.MapCallRW(testContext(t), nil, "bucket", []byte("v")); err != nil {
		t.Fatal(err)
	}
	results, err := r.MapCallRO(testContext(t), nil, storage.KVGet, storage.KVGetArgs([]byte("here")))
	if err != nil || len(results) != 16 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for bucket, result := range results {
		if v, ok, err := storage.KVGetResult(result); string(v) != "v" || !ok || err != nil {
			t.Errorf("bucket %d: %q %v %v", bucket, v, ok, err)
		}
	}
}
