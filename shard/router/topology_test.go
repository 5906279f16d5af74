package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// changing is a topology that a test changes.
type changing struct {
	mu   sync.Mutex
	sets []Set
	ch   chan struct{}
}

func newChanging(sets ...Set) *changing { return &changing{sets: sets, ch: make(chan struct{})} }

func (c *changing) Sets() ([]Set, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sets, c.ch
}

func (c *changing) change(sets ...Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets = sets
	close(c.ch)
	c.ch = make(chan struct{})
}

func TestTopology_replicaSetsComeAndGo(t *testing.T) {
	groups := newCluster(t, 1, "a", "b")
	a, b := groups[0], groups[1]
	top := newChanging(a.set())
	r := newRemoteRouter(t, Options{Topology: top})
	mustPut(t, r, 7, "k", "v")
	top.change(a.set(), b.set())
	eventually(t, "both are known", func() bool { return len(r.RouteAll()) == 2 })
	move(t, 7, a, b)
	mustPut(t, r, 7, "k", "v")
	mustGet(t, r, 7, CallMR, "k", "v")
	top.change(b.set())
	eventually(t, "one is left", func() bool { return len(r.RouteAll()) == 1 })
	mustGet(t, r, 7, CallMR, "k", "v")
	if _, err := r.Route(8); !errors.Is(err, shard.NoRouteToBucket) {
		t.Errorf("a bucket of the replica set that is gone: %v", err)
	}
}

func TestTopology_membersChange(t *testing.T) {
	g := newCluster(t, 3, "a")[0]
	s := g.set()
	top := newChanging(Set{Name: "a", Members: s.Members[:1]})
	r := newRemoteRouter(t, Options{Topology: top})
	mustPut(t, r, 7, "k", "v")
	top.change(s)
	eventually(t, "replicas serve", func() bool {
		mustGet(t, r, 7, CallBRE, "k", "v")
		return g.nodes[1].reads.Load() > 0 && g.nodes[2].reads.Load() > 0
	})
	// The master's address changes, as when its node was moved.
	moved := newProxy(t, g.nodes[0].proxy.target)
	again := g.set()
	again.Members[0].Address = moved.address()
	top.change(again)
	eventually(t, "the new address is used", func() bool {
		m := r.set("a").master.Load()
		return m != nil && m.Address == moved.address()
	})
	g.nodes[0].proxy.set("cut")
	mustPut(t, r, 7, "k", "w")
	// It leaves, and another is master.
	g.lead(g.nodes[1])
	top.change(Set{Name: "a", Members: s.Members[1:]})
	mustPut(t, r, 7, "k", "x")
	mustGet(t, r, 7, CallMR, "k", "x")
}

func TestTopology_thatCannotBe(t *testing.T) {
	for name, sets := range map[string][]Set{
		"a name twice":   {{Name: "a"}, {Name: "a"}},
		"a member twice": {{Name: "a", Members: []Member{{ID: "1", Address: "x:1"}, {ID: "1", Address: "y:1"}}}},
		"no id":          {{Name: "a", Members: []Member{{Address: "x:1"}}}},
	} {
		r, err := New(Options{Topology: Static(sets...), BucketCount: 16})
		if !errors.Is(err, shard.InvalidConfig) {
			t.Errorf("%s: %v", name, err)
		}
		if r != nil {
			r.Close()
		}
	}
	if _, err := New(Options{Topology: Static()}); !errors.Is(err, shard.InvalidConfig) {
		t.Errorf("no bucket_count: %v", err)
	}
}

func TestTopology_theMemberInThisProcess(t *testing.T) {
	groups := newCluster(t, 3, "a", "b")
	g := groups[0]
	// Whatever is here is not reached over the network.
	g.nodes[1].proxy.set("cut")
	r := newRemoteRouter(t, Options{Local: g.nodes[1].server}, groups...)
	mustPut(t, r, 3, "k", "v")
	for range 20 {
		mustGet(t, r, 3, CallRE, "k", "v")
	}
	if n := g.nodes[1].reads.Load(); n != 20 {
		t.Errorf("the member here got %d of 20 reads", n)
	}
	g.lead(g.nodes[1])
	mustPut(t, r, 3, "k", "w")
	mustGet(t, r, 3, CallMR, "k", "w")
	outcome := make(chan error, 1)
	r.CallRWAsync(3, storage.KVPut, putArgs("k", "x"), func(_ []byte, err error) { outcome <- err })
	if err := <-outcome; err != nil {
		t.Error(err)
	}
	err := r.View(testContext(t), 3, CallRW, func(v *storage.View) error {
		got, _, err := v.Get(storage.SpaceKV, []byte("k"))
		if string(got) != "x" {
			t.Errorf("the view has %q", got)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	move(t, 3, groups[0], groups[1])
	mustPut(t, r, 3, "k", "y")
	g.lead(g.nodes[0])
	mustPut(t, r, 4, "k", "z")
}

func TestView_ofABucketElsewhere(t *testing.T) {
	groups := newCluster(t, 3, "a", "b")
	r := newRemoteRouter(t, Options{}, groups...)
	for i := range 200 {
		mustPut(t, r, 3, fmt.Sprintf("%03d", i), "v")
	}
	rows := func(mode Mode) (n int) {
		err := r.View(testContext(t), 3, mode, func(v *storage.View) error {
			n = 0
			return v.Scan(storage.SpaceKV, nil, nil, false, func(_, _ []byte) bool { n++; return true })
		})
		if err != nil {
			t.Errorf("%v: %v", mode, err)
		}
		return n
	}
	for _, mode := range []Mode{CallRW, CallRO, CallBRO, CallRE, CallBRE, CallMR} {
		if n := rows(mode); n != 200 {
			t.Errorf("%v: %d rows", mode, n)
		}
	}
	// The member is lost in the middle: the function runs again elsewhere.
	runs := 0
	err := r.View(testContext(t), 3, CallRO, func(v *storage.View) error {
		runs++
		if runs == 1 {
			if _, _, err := v.Get(storage.SpaceKV, []byte("001")); err != nil {
				return err
			}
			groups[0].nodes[0].proxy.set("cut")
		}
		_, ok, err := v.Get(storage.SpaceKV, []byte("001"))
		if err == nil && !ok {
			t.Error("the row is missing")
		}
		return err
	})
	if err != nil || runs < 2 {
		t.Errorf("%d runs, %v", runs, err)
	}
	mine := errors.New("mine")
	if err := r.View(testContext(t), 3, CallRO, func(*storage.View) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("the function's error: %v", err)
	}
}

func TestOnMaster_followsTheMaster(t *testing.T) {
	t.Parallel()
	g := newCluster(t, 3, "a")[0]
	r := newRemoteRouter(t, Options{}, g)
	who := func() (id string) {
		t.Helper()
		err := r.OnMaster(testContext(t), "a", func(ctx context.Context, c v1.StorageServiceClient) error {
			if _, err := c.Ref(ctx, &v1.RefRequest{}); err == nil {
				t.Error("a reference without an id")
			}
			info, err := c.StorageInfo(ctx, &v1.StorageInfoRequest{})
			id = info.GetMember()
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if id := who(); id != "a1" {
		t.Errorf("the master is %q", id)
	}
	g.lead(g.nodes[2])
	eventually(t, "the new master is asked", func() bool { return who() == "a3" })
	if err := r.OnMaster(t.Context(), "z", nil); !errors.Is(err, shard.NoSuchReplicaSet) {
		t.Errorf("no such replica set: %v", err)
	}
	err := r.OnMember(testContext(t), "a", "a2", func(ctx context.Context, c v1.StorageServiceClient) error {
		info, err := c.StorageInfo(ctx, &v1.StorageInfoRequest{})
		if info.GetMember() != "a2" {
			t.Errorf("the member is %q", info.GetMember())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := r.OnMember(t.Context(), "a", "z", nil); !errors.Is(err, shard.UnreachableReplica) {
		t.Errorf("no such member: %v", err)
	}
	g.lead(nil)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	eventually(t, "there is none", func() bool { return r.set("a").master.Load() == nil })
	err = r.OnMaster(short, "a", func(context.Context, v1.StorageServiceClient) error { return nil })
	wantError(t, err, shard.MissingMaster)
}

func TestInfo_saysWhatIsWrong(t *testing.T) {
	groups := newCluster(t, 3, "a", "b")
	a, b := groups[0], groups[1]
	r := newRemoteRouter(t, Options{}, groups...)
	eventually(t, "the places are known", func() bool { _, err := r.Route(16); return err == nil })
	has := func(info Info, level Level, code shard.Code, set string) bool {
		for _, a := range info.Alerts {
			if a.Level == level && a.Code == code && a.ReplicaSet == set {
				return true
			}
		}
		return false
	}
	info := r.Info(testContext(t))
	if info.Level != Green || len(info.Alerts) != 0 || info.Buckets != (BucketInfo{ReadWrite: 16}) || len(info.ReplicaSets) != 2 ||
		info.ReplicaSets[0].Master != "a1" || len(info.ReplicaSets[0].Members) != 3 {
		t.Errorf("healthy: %+v", info)
	}
	a.nodes[2].proxy.set("cut")
	if info = r.Info(testContext(t)); info.Level != Orange || !has(info, Yellow, shard.UnreachableReplica, "a") || !has(info, Orange, shard.LowRedundancy, "a") || info.Buckets.ReadWrite != 16 {
		t.Errorf("a replica is lost: %+v", info)
	}
	a.lead(nil)
	if info = r.Info(testContext(t)); !has(info, Orange, shard.MissingMaster, "a") || info.Buckets != (BucketInfo{Unreachable: 16}) {
		t.Errorf("no master: %+v", info)
	}
	for _, n := range a.nodes {
		n.proxy.set("cut")
	}
	if info = r.Info(testContext(t)); info.Level != Red || !has(info, Red, shard.UnreachableReplicaSet, "a") || info.Buckets != (BucketInfo{Unreachable: 16}) {
		t.Errorf("nobody answers: %+v", info)
	}
	for _, n := range a.nodes {
		n.proxy.set("")
	}
	a.lead(a.nodes[0])
	states(t, b.store, 5, "a", shard.Receiving, shard.Active)
	eventually(t, "a bucket on two replica sets is seen", func() bool {
		info = r.Info(testContext(t))
		return has(info, Red, shard.BucketIsCorrupted, "")
	})
}
