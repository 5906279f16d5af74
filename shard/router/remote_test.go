package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func TestRemote_modesGoToTheirMembers(t *testing.T) {
	groups := newCluster(t, 3, "a")
	g := groups[0]
	r := newRemoteRouter(t, Options{}, g)
	mustPut(t, r, 3, "k", "v")
	counts := func() (master, replicas int64) {
		return g.nodes[0].reads.Swap(0), g.nodes[1].reads.Swap(0) + g.nodes[2].reads.Swap(0)
	}
	const n = 60
	for _, c := range []struct {
		mode             Mode
		master, replicas bool
	}{{CallRO, true, false}, {CallMR, true, false}, {CallBRO, true, true}, {CallRE, false, true}, {CallBRE, false, true}} {
		for range n {
			mustGet(t, r, 3, c.mode, "k", "v")
		}
		if master, replicas := counts(); (master > 0) != c.master || (replicas > 0) != c.replicas || master+replicas != n {
			t.Errorf("%v: the master got %d reads, the replicas %d", c.mode, master, replicas)
		}
	}
	if w := g.nodes[1].writes.Load() + g.nodes[2].writes.Load(); w != 0 {
		t.Errorf("replicas got %d writes", w)
	}
}

func TestRemote_readsGoToWhoIsNear(t *testing.T) {
	groups := newCluster(t, 3, "a")
	g := groups[0]
	s := g.set()
	s.Members[0].Zone, s.Members[1].Zone, s.Members[2].Zone = "far", "far", "near"
	r := newRemoteRouter(t, Options{Topology: Static(s), Zone: "near"})
	mustPut(t, r, 3, "k", "v")
	for range 30 {
		mustGet(t, r, 3, CallRE, "k", "v")
	}
	if n := g.nodes[2].reads.Load(); n != 30 {
		t.Errorf("the near replica got %d of 30 reads", n)
	}
	// When it is lost, the others serve.
	g.nodes[2].proxy.set("cut")
	for range 30 {
		mustGet(t, r, 3, CallRE, "k", "v")
	}
	if n := g.nodes[1].reads.Load(); n == 0 {
		t.Error("the far replica got no read")
	}
	eventually(t, "an alert says so", func() bool {
		for _, a := range r.Info(testContext(t)).Alerts {
			if a.Code == shard.SuboptimalReplica {
				return true
			}
		}
		return false
	})
}

func TestRemote_theMasterIsLost(t *testing.T) {
	t.Parallel()
	g := newCluster(t, 3, "a")[0]
	r := newRemoteRouter(t, Options{}, g)
	mustPut(t, r, 3, "k", "v")
	g.nodes[0].proxy.set("cut")
	// Reads that allow it are answered by the others.
	for _, mode := range []Mode{CallRO, CallBRO, CallRE, CallBRE} {
		mustGet(t, r, 3, mode, "k", "v")
	}
	// Those of the master, and writes, wait.
	for _, mode := range []Mode{CallRW, CallMR} {
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		fn, args := storage.KVPut, putArgs("k", "w")
		if mode == CallMR {
			fn, args = storage.KVGet, storage.KVGetArgs([]byte("k"))
		}
		_, err := r.Call(short, 3, mode, fn, args)
		cancel()
		e := wantError(t, err, shard.UnreachableMaster)
		if !errors.Is(err, context.DeadlineExceeded) || e.ReplicaSet != "a" || e.Master != "a1" {
			t.Errorf("%v: %v", mode, err)
		}
	}
	// A new master is found without anybody doing anything, and by a call that waits too.
	waiting := make(chan error, 1)
	ctx := testContext(t)
	go func() {
		_, err := r.Call(ctx, 3, CallRW, storage.KVPut, putArgs("k", "w"))
		waiting <- err
	}()
	g.lead(g.nodes[1])
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	mustGet(t, r, 3, CallMR, "k", "w")
}

func TestRemote_masterMovesUnderWrites(t *testing.T) {
	g := newCluster(t, 3, "a")[0]
	r := newRemoteRouter(t, Options{}, g)
	ctx := testContext(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var done atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			for !stop.Load() {
				if _, err := r.Call(ctx, shard.BucketID(i+1), CallRW, storage.KVPut, putArgs("k", "v")); err != nil {
					t.Errorf("a call failed: %v", err)
					return
				}
				done.Add(1)
			}
		})
	}
	for i := range 12 {
		at := done.Load()
		g.lead(nil)
		g.lead(g.nodes[i%3])
		eventually(t, "writes go on", func() bool { return done.Load() > at+20 || t.Failed() })
	}
	stop.Store(true)
	wg.Wait()
}

func TestRemote_noMasterHasANameAndACause(t *testing.T) {
	t.Parallel()
	g := newCluster(t, 3, "a")[0]
	r := newRemoteRouter(t, Options{}, g)
	g.lead(nil)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := r.Call(short, 3, CallRW, storage.KVPut, putArgs("k", "w"))
	wantError(t, err, shard.MissingMaster)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the deadline is not in %v", err)
	}
	for _, n := range g.nodes {
		n.proxy.set("cut")
	}
	eventually(t, "the router knows that none answers", func() bool {
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = r.Call(short, 3, CallRW, storage.KVPut, putArgs("k", "w"))
		return errors.Is(err, shard.UnreachableReplicaSet)
	})
	short, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := r.Call(short, 3, CallBRO, storage.KVGet, storage.KVGetArgs([]byte("k"))); err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a read: %v", err)
	}
}

func TestRemote_aWriteOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	g := newCluster(t, 1, "a")[0]
	n := g.nodes[0]
	r := newRemoteRouter(t, Options{}, g)
	mustPut(t, r, 3, "k", "v")
	for _, idempotent := range []bool{false, true} {
		hold := make(chan struct{})
		n.hold.Store(&hold)
		before := n.writes.Load()
		ctx := testContext(t)
		outcome := make(chan error, 1)
		go func() {
			var err error
			if idempotent {
				_, err = r.CallIdempotent(ctx, 3, storage.KVPut, putArgs("k", "w"))
			} else {
				_, err = r.Call(ctx, 3, CallRW, storage.KVPut, putArgs("k", "w"))
			}
			outcome <- err
		}()
		eventually(t, "the server has the write", func() bool { return n.writes.Load() == before+1 })
		n.proxy.set("cut")
		if !idempotent {
			e := wantError(t, <-outcome, shard.OutcomeUnknown)
			if e.ReplicaSet != "a" || e.Master != "a1" || e.Bucket != 3 {
				t.Errorf("the error is %v", e)
			}
		}
		n.hold.Store(nil)
		n.proxy.set("")
		close(hold)
		if idempotent {
			if err := <-outcome; err != nil {
				t.Errorf("an idempotent write: %v", err)
			}
		}
		want := before + 1
		if idempotent {
			want++
		}
		if got := n.writes.Load(); got != want {
			t.Errorf("idempotent %v: %d writes came, want %d", idempotent, got-before, want-before)
		}
	}
}

func TestRemote_aReadIsRepeated(t *testing.T) {
	g := newCluster(t, 1, "a")[0]
	n := g.nodes[0]
	r := newRemoteRouter(t, Options{}, g)
	mustPut(t, r, 3, "k", "v")
	hold := make(chan struct{})
	n.hold.Store(&hold)
	got := make(chan struct{})
	go func() { defer close(got); mustGet(t, r, 3, CallMR, "k", "v") }()
	eventually(t, "the server has the read", func() bool { return n.reads.Load() == 1 })
	n.proxy.set("cut")
	n.hold.Store(nil)
	n.proxy.set("")
	close(hold)
	<-got
}

func TestRemote_aSilentMemberIsGivenUp(t *testing.T) {
	t.Parallel()
	g := newCluster(t, 3, "a")[0]
	r := newRemoteRouter(t, Options{Silence: 500 * time.Millisecond}, g)
	mustPut(t, r, 3, "k", "v")
	g.nodes[0].proxy.set("hang")
	// Nothing tells that the connection is dead, but nothing comes either.
	mustGet(t, r, 3, CallRO, "k", "v")
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := r.Call(short, 3, CallRW, storage.KVPut, putArgs("k", "w"))
	wantError(t, err, shard.UnreachableMaster)
	g.lead(g.nodes[2])
	mustPut(t, r, 3, "k", "x")
	mustGet(t, r, 3, CallMR, "k", "x")
}

func TestRemote_waitsOutAMoveWithoutSpinning(t *testing.T) {
	t.Parallel()
	groups := newCluster(t, 1, "a", "b")
	a, b := groups[0], groups[1]
	r := newRemoteRouter(t, Options{}, groups...)
	mustPut(t, r, 5, "k", "v")
	states(t, b.store, 5, "a", shard.Receiving)
	states(t, a.store, 5, "b", shard.Sending)
	// Reads go on where the data is, even when the destination is dead.
	b.nodes[0].proxy.set("cut")
	for _, mode := range []Mode{CallRO, CallMR, CallBRO} {
		mustGet(t, r, 5, mode, "k", "v")
	}
	b.nodes[0].proxy.set("")
	before := a.nodes[0].writes.Load() + b.nodes[0].writes.Load()
	const callers = 50
	outcomes := make(chan error, callers)
	ctx := testContext(t)
	for i := range callers {
		go func() {
			_, err := r.Call(ctx, 5, CallRW, storage.KVPut, putArgs(fmt.Sprint(i), "w"))
			outcomes <- err
		}()
	}
	eventually(t, "all wait", func() bool { return a.nodes[0].writes.Load() >= before+callers })
	start, began := a.nodes[0].writes.Load(), time.Now()
	time.Sleep(time.Second) // the time over which the rate is taken
	took := time.Since(began).Seconds()
	// One of them asks about 20 times a second, each of the others about once.
	if rate := float64(a.nodes[0].writes.Load()-start) / took; rate > 5*callers {
		t.Errorf("%d callers that wait make %.0f requests a second", callers, rate)
	} else {
		t.Logf("%d callers that wait make %.0f requests a second", callers, rate)
	}
	states(t, a.store, 5, "b", shard.Sent)
	states(t, b.store, 5, "", shard.Active)
	for range callers {
		if err := <-outcomes; err != nil {
			t.Error(err)
		}
	}
	if name, err := r.Route(5); err != nil || name != "b" {
		t.Errorf("routed to %q, %v", name, err)
	}
}

func TestRemote_theErrorOfAMoveThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	a := newCluster(t, 1, "a")[0]
	r := newRemoteRouter(t, Options{}, a)
	states(t, a.store, 5, "b", shard.Sending)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := r.Call(short, 5, CallRW, storage.KVPut, putArgs("k", "w"))
	// On a slow machine the time may end while the last try is under way.
	var e *shard.Error
	if !errors.As(err, &e) || !errors.Is(err, shard.TransferIsInProgress) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the error is %v", err)
	}
	if e.Code == shard.TransferIsInProgress && (e.Bucket != 5 || e.Destination != "b") {
		t.Errorf("the error is %v", err)
	}
}

func TestRemote_knowsANewMapByItself(t *testing.T) {
	groups := newCluster(t, 1, "a", "b")
	r := newRemoteRouter(t, Options{}, groups...)
	eventually(t, "it knows the old one", func() bool { name, err := r.Route(7); return err == nil && name == "a" })
	move(t, 7, groups[0], groups[1])
	eventually(t, "it knows the new one", func() bool { name, err := r.Route(7); return err == nil && name == "b" })
	states(t, groups[0].store, 7, "b", shard.Garbage, shard.Absent)
	move(t, 7, groups[1], groups[0])
	eventually(t, "and the next", func() bool { name, err := r.Route(7); return err == nil && name == "a" })
}

func TestRemote_asksEverybodyForAnUnknownBucket(t *testing.T) {
	groups := newCluster(t, 1, "a", "b", "c")
	// The router knows the sets and not yet their buckets.
	r, err := New(Options{Topology: Static(sets(groups)...), BucketCount: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			if _, err := r.Call(testContext(t), shard.BucketID(i%16+1), CallRW, storage.KVPut, putArgs("k", "v")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestRemote_aBucketThatIsNowhere(t *testing.T) {
	t.Parallel()
	groups := newCluster(t, 1, "a", "b")
	r := newRemoteRouter(t, Options{}, groups...)
	states(t, groups[0].store, 2, "", shard.Sending, shard.Sent, shard.Garbage, shard.Absent)
	_, err := r.Call(testContext(t), 2, CallRO, storage.KVGet, storage.KVGetArgs([]byte("k")))
	wantError(t, err, shard.NoRouteToBucket)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it took until the deadline to find out: %v", err)
	}
	// While one does not answer, the bucket may be there.
	groups[1].nodes[0].proxy.set("cut")
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	before := r.sweeping.n
	_, err = r.Call(short, 2, CallRO, storage.KVGet, storage.KVGetArgs([]byte("k")))
	wantError(t, err, shard.NoRouteToBucket)
	if n := r.sweeping.n - before; n > 100 {
		t.Errorf("it asked all replica sets %d times", n)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it was given up early: %v", err)
	}
}

func TestRemote_refusesAnotherCluster(t *testing.T) {
	g := newCluster(t, 1, "a")[0]
	g.nodes[0].cluster = "one"
	for name, c := range map[string]struct {
		opts Options
		set  string
		says []string
	}{
		"cluster id":   {Options{ClusterID: "two", BucketCount: 16}, "a", []string{"one", "two"}},
		"bucket_count": {Options{BucketCount: 32}, "a", []string{"16", "32"}},
		"replica set":  {Options{BucketCount: 16}, "z", []string{"z", "a"}},
	} {
		s := g.set()
		s.Name = c.set
		c.opts.Topology = Static(s)
		r, err := New(c.opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		r.routes[3].Store(r.set(c.set))
		_, err = r.Call(testContext(t), 3, CallRW, storage.KVPut, putArgs("k", "v"))
		e := wantError(t, err, shard.InvalidConfig)
		for _, s := range c.says {
			if !contains(e.Error(), s) {
				t.Errorf("%s: %q is not in %v", name, s, e)
			}
		}
		found := false
		for _, a := range r.Info(testContext(t)).Alerts {
			found = found || a.Code == shard.InvalidConfig && a.Level == Red
		}
		if !found {
			t.Errorf("%s: no alert", name)
		}
	}
}

func TestRemote_asyncKeepsTheOrderOfOneCaller(t *testing.T) {
	const n = 3000
	reg := storage.NewRegistry()
	var applied []string
	reg.Register("note", func(_ *storage.Tx, args []byte) ([]byte, error) {
		applied = append(applied, string(args))
		return nil, nil
	})
	g := newGroup(t, newStorage(t, "a", reg), 1)
	r := newRemoteRouter(t, Options{}, g)
	eventually(t, "the place is known", func() bool { _, err := r.Route(3); return err == nil })
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		r.CallRWAsync(3, "note", fmt.Append(nil, i), func(_ []byte, err error) {
			if err != nil {
				t.Error(err)
			}
			wg.Done()
		})
	}
	wg.Wait()
	for i := range n {
		if applied[i] != fmt.Sprint(i) {
			t.Fatalf("command %d was applied at place %d", i, i)
		}
	}
}

func TestRemote_asyncLearnsFromErrors(t *testing.T) {
	groups := newCluster(t, 3, "a")
	g := groups[0]
	r := newRemoteRouter(t, Options{}, g)
	try := func() error {
		outcome := make(chan error, 1)
		r.CallRWAsync(3, storage.KVPut, putArgs("k", "v"), func(_ []byte, err error) { outcome <- err })
		return <-outcome
	}
	eventually(t, "a write is done", func() bool { return try() == nil })
	g.lead(g.nodes[1])
	eventually(t, "a write is done by the new master", func() bool { return try() == nil })
	g.nodes[1].proxy.set("cut")
	eventually(t, "the loss of the master has a name", func() bool {
		err := try()
		return errors.Is(err, shard.UnreachableMaster) || errors.Is(err, shard.OutcomeUnknown) || errors.Is(err, shard.MissingMaster)
	})
}

func TestRemote_cancelledCallsLeaveNothingBehind(t *testing.T) {
	g := newCluster(t, 1, "a")[0]
	n := g.nodes[0]
	r := newRemoteRouter(t, Options{}, g)
	mustPut(t, r, 3, "k", "v")
	hold := make(chan struct{})
	n.hold.Store(&hold)
	for _, mode := range []Mode{CallRW, CallMR} {
		ctx, cancel := context.WithCancel(t.Context())
		outcome := make(chan error, 1)
		fn, args := storage.KVPut, putArgs("k", "w")
		if mode == CallMR {
			fn, args = storage.KVGet, storage.KVGetArgs([]byte("k"))
		}
		before := n.reads.Load() + n.writes.Load()
		go func() {
			_, err := r.Call(ctx, 3, mode, fn, args)
			outcome <- err
		}()
		eventually(t, "the server has it", func() bool { return n.reads.Load()+n.writes.Load() > before })
		cancel()
		if err := <-outcome; !errors.Is(err, context.Canceled) || mode == CallRW && !errors.Is(err, shard.OutcomeUnknown) {
			t.Errorf("%v: %v", mode, err)
		}
	}
	n.hold.Store(nil)
	close(hold)
	mustPut(t, r, 3, "k", "x")
}

func contains(s, part string) bool {
	for i := 0; i+len(part) <= len(s); i++ {
		if s[i:i+len(part)] == part {
			return true
		}
	}
	return false
}
