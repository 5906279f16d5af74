package routed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/rebalancer"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

const testTime = 60 * time.Second

// eventually waits until f returns "" and fails with what it returned last.
func eventually(t testing.TB, what string, f func() string) {
	t.Helper()
	for end := time.Now().Add(testTime); ; time.Sleep(10 * time.Millisecond) {
		why := f()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("in %v not: %s: %s", testTime, what, why)
		}
	}
}

// cluster is replica sets whose members all have a rebalancer.
type cluster struct {
	*localsets.Cluster
	t      testing.TB
	ctx    context.Context
	router *router.Router // of a process without a storage
	nodes  map[*localsets.Member]*Node
	stops  map[*localsets.Member]func()
}

const buckets = 64

// start makes a cluster in memory, or on disk if its members are to be started again. The first set has
// all buckets.
func start(t testing.TB, disk bool, members int, sets ...string) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*testTime)
	t.Cleanup(cancel)
	o := localsets.Options{Sets: sets, Members: members, Buckets: buckets, Engine: raftengine.Options{Memory: !disk}}
	if disk {
		o.Dir = t.TempDir()
	}
	local, err := localsets.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(local.Close)
	c := &cluster{Cluster: local, t: t, ctx: ctx, nodes: map[*localsets.Member]*Node{}, stops: map[*localsets.Member]func(){}}
	if c.router, err = local.Router(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.router.Close)
	for _, s := range sets {
		c.rebalance(s)
	}
	return c
}

// rebalance starts the rebalancers of a set's members.
func (c *cluster) rebalance(set string) {
	c.t.Helper()
	for _, m := range c.Members(set) {
		c.run(m)
	}
}

func (c *cluster) run(m *localsets.Member) {
	c.t.Helper()
	n, err := New(Options{Router: m.Router, Storage: m.Storage, Server: m.Server})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.Run(ctx)
	}()
	stop := func() { cancel(); <-done }
	c.t.Cleanup(stop)
	c.nodes[m], c.stops[m] = n, stop
}

// kill ends a member and its rebalancer.
func (c *cluster) kill(m *localsets.Member) {
	c.stops[m]()
	m.Kill()
}

func (c *cluster) master(set string) *localsets.Member {
	c.t.Helper()
	m, err := c.Master(c.ctx, set)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// counts says how many buckets each set owns, as its master has it.
func (c *cluster) counts(sets ...string) string {
	c.t.Helper()
	var all []string
	for _, s := range sets {
		counts := c.master(s).Storage.BucketCounts()
		all = append(all, fmt.Sprintf("%s %d", s, counts[shard.Active]+counts[shard.Pinned]+counts[shard.ReadOnly]+counts[shard.Sending]))
	}
	return strings.Join(all, ", ")
}

// becomes waits until the sets own so many buckets.
func (c *cluster) becomes(want string) {
	c.t.Helper()
	var sets []string
	for _, one := range strings.Split(want, ", ") {
		name, _, _ := strings.Cut(one, " ")
		sets = append(sets, name)
	}
	eventually(c.t, "the buckets are "+want, func() string {
		if got := c.counts(sets...); got != want {
			return got
		}
		return ""
	})
}

// says waits until the rebalancer that works says something.
func (c *cluster) says(reason string) {
	c.t.Helper()
	eventually(c.t, "the rebalancer says "+reason, func() string {
		st, err := Status(c.ctx, c.router)
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(st.GetReason(), reason) || strings.Contains(st.GetReason(), "\n") {
			return st.String()
		}
		return ""
	})
}

func (c *cluster) setOn(on bool) {
	c.t.Helper()
	eventually(c.t, "all are told", func() string {
		if untold, err := SetOn(c.ctx, c.router, on); err != nil || len(untold) != 0 {
			return fmt.Sprint(untold, err)
		}
		return ""
	})
}

// tell tells a set's master something that may be said twice.
func (c *cluster) tell(set string, say func(*storage.Storage) error) {
	c.t.Helper()
	eventually(c.t, set+" is told", func() string {
		err := say(c.master(set).Storage)
		if errors.Is(err, shard.NonMaster) || errors.Is(err, shard.OutcomeUnknown) {
			return err.Error()
		}
		c.do(err)
		return ""
	})
}

// do fails the test on an error.
func (c *cluster) do(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func TestNode_fillsAReplicaSetThatIsAdded(t *testing.T) {
	c := start(t, false, 1, "b")
	put := func(b shard.BucketID, key, value string) {
		t.Helper()
		_, err := c.router.Call(c.ctx, b, router.CallRW, storage.KVPut, storage.KVPutArgs(shard.MPCRC32Bytes([]byte(key)), []byte(key), []byte(value)))
		c.do(err)
	}
	for b := shard.BucketID(1); b <= buckets; b++ {
		put(b, fmt.Sprint("key ", b), fmt.Sprint("value ", b))
	}
	c.says("the buckets are where they should be")
	c.do(c.AddSet(c.ctx, "c"))
	c.rebalance("c")
	c.becomes("b 32, c 32")
	// A set whose name comes first takes over the work.
	c.do(c.AddSet(c.ctx, "a"))
	c.rebalance("a")
	c.becomes("a 21, b 22, c 21")
	eventually(t, "a works", func() string {
		st, err := Status(c.ctx, c.router)
		if err != nil || st.GetWhere() != "a" || !st.GetActive() || st.GetMember() != "a1" || st.GetPhase() != string(rebalancer.Idle) {
			return fmt.Sprint(st, err)
		}
		return ""
	})
	for b := shard.BucketID(1); b <= buckets; b++ {
		key := []byte(fmt.Sprint("key ", b))
		result, err := c.router.Call(c.ctx, b, router.CallMR, storage.KVGet, storage.KVGetArgs(key))
		c.do(err)
		if v, ok, err := storage.KVGetResult(result); err != nil || !ok || string(v) != fmt.Sprint("value ", b) {
			t.Errorf("%s is %q, %v, %v", key, v, ok, err)
		}
	}
}

func TestNode_drainsAndLeavesLockedSetsAlone(t *testing.T) {
	c := start(t, false, 1, "a", "b", "c")
	c.becomes("a 22, b 21, c 21")
	c.tell("b", func(s *storage.Storage) error { return s.SetLock(c.ctx, true) })
	c.tell("c", func(s *storage.Storage) error { return s.SetWeight(c.ctx, 0) })
	c.becomes("a 43, b 21, c 0")
	c.tell("b", func(s *storage.Storage) error { return s.SetLock(c.ctx, false) })
	c.becomes("a 32, b 32, c 0")
	c.tell("a", func(s *storage.Storage) error { return s.SetWeight(c.ctx, 3) })
	c.becomes("a 48, b 16, c 0")
	// All weights 0: nobody knows where to put them.
	c.setOn(false)
	c.tell("a", func(s *storage.Storage) error { return s.SetWeight(c.ctx, 0) })
	c.tell("b", func(s *storage.Storage) error { return s.SetWeight(c.ctx, 0) })
	c.setOn(true)
	c.says("INVALID_CFG")
	// Pins are told at once too.
	var on []shard.BucketID
	a := c.master("a").Storage
	for b := shard.BucketID(1); b <= buckets; b++ {
		if state, _ := a.BucketState(b); state == shard.Active {
			on = append(on, b)
		}
	}
	c.setOn(false)
	c.do(a.Pin(c.ctx, on[:5]))
	c.tell("b", func(s *storage.Storage) error { return s.SetWeight(c.ctx, 1) })
	c.setOn(true)
	c.becomes("a 5, b 59, c 0")
	c.do(a.Unpin(c.ctx, on[:5]))
	c.becomes("a 0, b 64, c 0")
}

func TestNode_doesNothingUnlessAllAnswer(t *testing.T) {
	c := start(t, true, 1, "a", "b", "c")
	c.becomes("a 22, b 21, c 21")
	eventually(t, "all know each other", func() string {
		for _, s := range []string{"a", "b", "c"} {
			if known := c.master(s).Storage.KnownReplicaSets(); len(known) != 3 {
				return s + " knows " + strings.Join(known, " ")
			}
		}
		return ""
	})
	gone := c.Members("c")[0]
	c.kill(gone)
	c.tell("b", func(s *storage.Storage) error { return s.SetWeight(c.ctx, 5) })
	c.says("replica set c does not answer")
	c.becomes("a 22, b 21")
	c.do(gone.Start(c.ctx))
	c.run(gone)
	c.becomes("a 10, b 45, c 9")
}

func TestNode_offIsKeptAndTheNewestCounts(t *testing.T) {
	c := start(t, true, 1, "a", "b")
	c.becomes("a 32, b 32")
	b := c.Members("b")[0]
	eventually(t, "b knows a", func() string {
		if known := b.Storage.KnownReplicaSets(); len(known) != 2 {
			return fmt.Sprint(known)
		}
		return ""
	})
	c.setOn(false)
	c.says("it was turned off")
	// It is the same after a restart of all.
	for _, m := range []*localsets.Member{b, c.Members("a")[0]} {
		c.kill(m)
		c.do(m.Start(c.ctx))
		c.run(m)
	}
	c.tell("b", func(s *storage.Storage) error { return s.SetWeight(c.ctx, 0) })
	c.says("it was turned off")
	c.becomes("a 32, b 32")
	// Who was away when it was turned on again has no say, and hears of it.
	c.kill(b)
	eventually(t, "one is told", func() string {
		untold, err := SetOn(c.ctx, c.router, true)
		if err != nil || len(untold) != 1 || untold["b"] == nil {
			return fmt.Sprint(untold, err)
		}
		return ""
	})
	c.do(b.Start(c.ctx))
	c.run(b)
	c.becomes("a 64, b 0")
	eventually(t, "b has heard it", func() string {
		if on, _ := c.master("b").Storage.Rebalancing(); !on {
			return "off"
		}
		return ""
	})
	// An older request changes nothing.
	_, version := c.master("b").Storage.Rebalancing()
	c.do(c.master("b").Storage.SetRebalancing(c.ctx, false, version))
	if on, v := c.master("b").Storage.Rebalancing(); !on || v != version {
		t.Errorf("after a request that is not newer: %v %d", on, v)
	}
}

func TestNode_setsOfThreeGoOnWithANewMaster(t *testing.T) {
	c := start(t, true, 3, "a", "b")
	c.becomes("a 32, b 32")
	old := c.master("a")
	c.kill(old)
	c.tell("a", func(s *storage.Storage) error { return s.SetWeight(c.ctx, 3) })
	c.becomes("a 48, b 16")
	eventually(t, "the new master works", func() string {
		st, err := Status(c.ctx, c.router)
		if err != nil || st.GetMember() == old.ID || !st.GetActive() {
			return fmt.Sprint(st, err)
		}
		return ""
	})
	eventually(t, "it alone works", func() string {
		for m, n := range c.nodes {
			if m.Alive() && m != c.master("a") && n.Status().Active {
				return m.ID + " works too"
			}
		}
		return ""
	})
}

func TestStatus_ofClustersThatDoNotAnswer(t *testing.T) {
	c := start(t, false, 1, "a", "b")
	c.becomes("a 32, b 32")
	c.kill(c.Members("a")[0])
	c.says("the master of replica set a is the one to rebalance, and cannot be asked")
	c.kill(c.Members("b")[0])
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	if st, err := Status(ctx, c.router); err == nil {
		t.Errorf("nobody answers, and the status is %v", st)
	}
	if untold, err := SetOn(ctx, c.router, true); err == nil {
		t.Errorf("nobody answers, and who was not told is %v", slices.Collect(maps.Keys(untold)))
	}
}

func TestNew_needsARouterAndAStorage(t *testing.T) {
	if _, err := New(Options{}); !errors.Is(err, shard.InvalidConfig) {
		t.Errorf("no router: %v", err)
	}
}
