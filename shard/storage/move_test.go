package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

func TestSendBuckets_movesRowsWhileTheyAreWritten(t *testing.T) {
	c := newCluster(t, 10, false, "a", "b")
	const b = 3
	c.fill(b, 3000, 1000)
	ctx, stop := context.WithCancel(testContext(t))
	written := map[string]string{}
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			key, value := fmt.Sprintf("live%d", i%97), fmt.Sprint(i)
			if err := c.write(testContext(t), b, key, value); err != nil {
				t.Error(err)
				return
			}
			written[key] = value
			if i%10 == 9 {
				s := c.set("a")
				if s.BucketRow(b).State != shard.Active {
					s = c.set("b")
				}
				gone := fmt.Sprintf("fill%08d", i%3000)
				_, _ = s.Write(testContext(t), b, KVDelete, KVDeleteArgs([]byte(gone)))
			}
		}
	})
	for range 3 {
		c.mustSend("a", "b", b)
		if got := c.owner(b); got != "b" {
			t.Fatalf("after the move %s owns the bucket", got)
		}
		c.mustSend("b", "a", b)
	}
	stop()
	writer.Wait()
	if len(written) < 97 {
		t.Errorf("only %d keys were written meanwhile", len(written))
	}
	for key, want := range written {
		if got, _ := c.read(b, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	// What is left elsewhere goes away.
	eventually(t, "b deletes its rows", func() bool {
		rows, _ := c.rowsOf("b", b)
		return rows == 0 && c.set("b").BucketRow(b).State == shard.Absent
	})
}

// A write can fall between the taking of a round's changes and its view: it is in the view
// and not among the changes. The round after must send it all the same.
func TestSendBuckets_losesNoWriteBetweenTwoRounds(t *testing.T) {
	for range 40 {
		c := newCluster(t, 10, false, "a", "b")
		const b = 3
		c.fill(b, 300, 1000)
		ctx, stop := context.WithCancel(testContext(t))
		written := map[string]string{}
		var writer sync.WaitGroup
		writer.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key, value := fmt.Sprintf("live%d", i%97), fmt.Sprint(i)
				if err := c.write(testContext(t), b, key, value); err != nil {
					t.Error(err)
					return
				}
				written[key] = value
			}
		})
		c.mustSend("a", "b", b)
		stop()
		writer.Wait()
		for key, want := range written {
			if got, _ := c.read(b, key); got != want {
				t.Fatalf("%s is %q, want %q", key, got, want)
			}
		}
		c.close("a")
		c.close("b")
	}
}

func TestSendBuckets_manyEmptyOnesInAFewCommands(t *testing.T) {
	c := newCluster(t, 3000, false, "a", "b")
	var half []shard.BucketID
	for b := shard.BucketID(1); b <= 3000; b += 2 {
		half = append(half, b)
	}
	before := c.set("a").Status().Applied
	began := time.Now()
	c.mustSend("a", "b", half...)
	t.Logf("1500 empty buckets in %v", time.Since(began).Round(time.Millisecond))
	if n := c.set("a").Status().Applied - before; n > 20 {
		t.Errorf("it took %d commands at the source", n)
	}
	for _, name := range []string{"a", "b"} {
		if n := c.set(name).BucketCounts()[shard.Active]; n != 1500 {
			t.Errorf("%s has %d ACTIVE buckets", name, n)
		}
	}
	eventually(t, "the source forgets its rows", func() bool { return c.set("a").BucketCounts()[shard.Absent] == 1500 })
}

func TestSendBuckets_carriesReadOnlyAndRefusesPinned(t *testing.T) {
	c := newCluster(t, 10, false, "a", "b")
	ctx, a := testContext(t), c.set("a")
	if err := a.Pin(ctx, []shard.BucketID{1}); err != nil {
		t.Fatal(err)
	}
	if err := a.SetReadOnly(ctx, []shard.BucketID{2}, true); err != nil {
		t.Fatal(err)
	}
	failed, err := a.SendBuckets(ctx, []shard.BucketID{1, 2, 3}, "b")
	if err != nil || len(failed) != 1 || !errors.Is(failed[1], shard.BucketIsPinned) {
		t.Fatalf("%v, %v", failed, err)
	}
	for b, want := range map[shard.BucketID]shard.State{2: shard.ReadOnly, 3: shard.Active} {
		if got := c.set("b").BucketRow(b).State; got != want {
			t.Errorf("bucket %d is %v at the destination", b, got)
		}
	}
	if got := a.BucketRow(1).State; got != shard.Pinned {
		t.Errorf("the pinned bucket is %v", got)
	}
}

func TestSendBuckets_badInputChangesNothing(t *testing.T) {
	c := newCluster(t, 10, false, "a", "b")
	ctx, a := testContext(t), c.set("a")
	before := a.Status().Applied
	for _, bad := range []struct {
		buckets []shard.BucketID
		to      string
		want    shard.Code
	}{
		{[]shard.BucketID{1}, "a", shard.MoveToSelf},
		{[]shard.BucketID{1}, "nobody", shard.NoSuchReplicaSet},
		{[]shard.BucketID{0}, "b", shard.WrongBucket},
		{[]shard.BucketID{11}, "b", shard.WrongBucket},
		{[]shard.BucketID{1, 1}, "b", shard.InvalidArguments},
		{nil, "b", shard.InvalidArguments},
	} {
		if _, err := a.SendBuckets(ctx, bad.buckets, bad.to); !errors.Is(err, bad.want) {
			t.Errorf("%v to %s: %v, want %v", bad.buckets, bad.to, err, bad.want)
		}
	}
	if got := a.Status().Applied; got != before {
		t.Errorf("%d commands were logged", got-before)
	}
	if err := a.SetWeight(ctx, -1); !errors.Is(err, shard.InvalidConfig) {
		t.Errorf("a negative weight: %v", err)
	}
	for _, locked := range []string{"b", "a"} {
		if err := c.set(locked).SetLock(ctx, true); err != nil {
			t.Fatal(err)
		}
		failed, err := a.SendBuckets(ctx, []shard.BucketID{1}, "b")
		if e := errors.Join(err, failed[1]); !errors.Is(e, shard.ReplicaSetIsLocked) {
			t.Errorf("%s is locked: %v", locked, e)
		}
	}
	eventually(t, "bucket 1 is ACTIVE", func() bool {
		return a.BucketRow(1) == shard.Row{State: shard.Active, Transfer: a.BucketRow(1).Transfer}
	})
	if _, err := c.set("b").SendBuckets(ctx, []shard.BucketID{1}, "a"); !errors.Is(err, shard.ReplicaSetIsLocked) {
		t.Errorf("a locked set sends: %v", err)
	}
}

func TestSendBuckets_whateverMessageIsLostOneOwnerHasEverything(t *testing.T) {
	kinds := []v1.TransferKind{v1.TransferKind_TRANSFER_KIND_PREPARE, v1.TransferKind_TRANSFER_KIND_CHUNK, v1.TransferKind_TRANSFER_KIND_COMMIT}
	c := newCluster(t, 20, false, "a", "b")
	b := shard.BucketID(0)
	for _, kind := range kinds {
		for _, answered := range []bool{false, true} {
			b++
			t.Run(fmt.Sprintf("%v/arrives=%v", kind, answered), func(t *testing.T) {
				c.t = t
				c.fill(b, 500, 100)
				_, want := c.rowsOf("a", b)
				// An error that does not pass, for the first message and its repetitions.
				broken := &shard.Error{Code: shard.StoreFailed, Reason: "broken by the test"}
				var once atomic.Bool
				c.setFault(func(req *v1.TransferRequest) (before, after error) {
					if req.GetKind() != kind || once.Swap(true) {
						return nil, nil
					}
					if answered {
						return nil, broken
					}
					return broken, nil
				})
				failed, err := c.set("a").SendBuckets(testContext(t), []shard.BucketID{b}, "b")
				if err == nil && failed[b] == nil {
					t.Error("a message was lost and nobody noticed")
				}
				c.setFault(nil)
				owner := c.owner(b)
				if _, got := c.rowsOf(owner, b); got != want {
					t.Errorf("%s owns the bucket with other rows", owner)
				}
				wantOwner := "a"
				if kind == v1.TransferKind_TRANSFER_KIND_COMMIT {
					wantOwner = "b" // SENT was logged
				}
				if owner != wantOwner {
					t.Errorf("%s owns the bucket", owner)
				}
				if err := c.write(testContext(t), b, "after", "x"); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestSendBuckets_aDeadDestinationCostsNoWrites(t *testing.T) {
	c := newCluster(t, 10, false, "a", "b")
	const b = 4
	c.fill(b, 4000, 1000)
	var chunks atomic.Int32
	c.setFault(func(req *v1.TransferRequest) (before, after error) {
		if req.GetKind() == v1.TransferKind_TRANSFER_KIND_CHUNK && chunks.Add(1) == 2 {
			go c.close("b")
			return errCut, nil
		}
		return nil, nil
	})
	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan map[shard.BucketID]error, 1)
	go func() {
		failed, err := c.set("a").SendBuckets(ctx, []shard.BucketID{b}, "b")
		if err != nil {
			t.Error(err)
		}
		ended <- failed
	}()
	eventually(t, "the destination dies", func() bool { return c.set("b") == nil })
	// The bucket is still being copied, and takes writes.
	if _, err := c.set("a").Write(testContext(t), b, KVPut, KVPutArgs(1, []byte("k"), []byte("v"))); err != nil {
		t.Error(err)
	}
	cancel()
	if failed := <-ended; failed[b] == nil {
		t.Error("the move did not fail")
	}
	if got := c.set("a").BucketRow(b); got.State != shard.Active || got.Moving() {
		t.Errorf("the bucket is %+v", got)
	}
	if got, _ := c.read(b, "k"); got != "v" {
		t.Errorf("the write is gone: %q", got)
	}
}

func TestStorage_aMoveCutShortByARestartEnds(t *testing.T) {
	for _, dies := range []string{"a", "b"} {
		for _, at := range []v1.TransferKind{v1.TransferKind_TRANSFER_KIND_CHUNK, v1.TransferKind_TRANSFER_KIND_COMMIT} {
			t.Run(fmt.Sprintf("%s dies at %v", dies, at), func(t *testing.T) {
				c := newCluster(t, 4, true, "a", "b")
				const b = 2
				c.fill(b, 300, 100)
				_, want := c.rowsOf("a", b)
				reached, done := make(chan struct{}), make(chan struct{})
				var once sync.Once
				c.setFault(func(req *v1.TransferRequest) (before, after error) {
					if req.GetKind() == at {
						once.Do(func() { close(reached) })
						return errCut, nil
					}
					return nil, nil
				})
				ctx, cancel := context.WithCancel(testContext(t))
				go func() {
					defer close(done)
					_, _ = c.set("a").SendBuckets(ctx, []shard.BucketID{b}, "b")
				}()
				<-reached
				c.close(dies)
				cancel()
				<-done
				c.setFault(nil)
				c.open(dies)
				owner := c.owner(b)
				if _, got := c.rowsOf(owner, b); got != want {
					t.Errorf("%s owns the bucket with other rows", owner)
				}
			})
		}
	}
}

func TestSendBuckets_onwardsAndBack(t *testing.T) {
	c := newCluster(t, 6, false, "a", "b", "c")
	c.fill(5, 200, 50)
	_, want := c.rowsOf("a", 5)
	at := "a"
	for _, next := range []string{"b", "c", "a", "c", "b", "a", "b"} {
		c.mustSend(at, next, 5)
		at = next
		if _, got := c.rowsOf(at, 5); got != want {
			t.Fatalf("%s has other rows", at)
		}
	}
	if got := c.owner(5); got != at {
		t.Errorf("%s owns the bucket, want %s", got, at)
	}
}

func TestRef_holdsMovesBackUntilItIsOver(t *testing.T) {
	c := newCluster(t, 10, false, "a", "b")
	ctx, a := testContext(t), c.set("a")
	if err := a.Ref(ctx, "map", time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.SendBuckets(ctx, []shard.BucketID{1}, "b"); !errors.Is(err, shard.StorageIsReferenced) {
		t.Errorf("a move began: %v", err)
	}
	if err := a.CheckRef("map"); err != nil {
		t.Error(err)
	}
	if err := a.Unref(ctx, "map"); err != nil {
		t.Error(err)
	}
	if err := a.CheckRef("map"); !errors.Is(err, shard.StorageRefUse) {
		t.Error(err)
	}
	if err := a.Unref(ctx, "map"); !errors.Is(err, shard.StorageRefDelete) {
		t.Error(err)
	}
	// One whose deadline has passed holds nothing.
	if err := a.Ref(ctx, "late", time.Now().Add(50*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reference ends", func() bool { return a.CheckRef("late") != nil })
	c.mustSend("a", "b", 1)
}

func TestFacts_surviveARestart(t *testing.T) {
	c := newCluster(t, 4, true, "a")
	ctx, a := testContext(t), c.set("a")
	if err := errors.Join(a.SetWeight(ctx, 2.5), a.SetLock(ctx, true), a.RememberReplicaSet(ctx, "b"), a.RememberReplicaSet(ctx, "c"), a.ForgetReplicaSet(ctx, "b")); err != nil {
		t.Fatal(err)
	}
	c.close("a")
	a = c.open("a")
	if a.ClusterID() != "test" || a.Weight() != 2.5 || !a.Locked() || !slices.Equal(a.KnownReplicaSets(), []string{"a", "c"}) {
		t.Errorf("%q, %v, %v, %v", a.ClusterID(), a.Weight(), a.Locked(), a.KnownReplicaSets())
	}
	err := a.BootstrapReplicaSet(ctx, &v1.BootstrapStorageRequest{ClusterId: "other", BucketCount: 4, ReplicaSet: "a"})
	if !errors.Is(err, shard.NonEmpty) {
		t.Errorf("a second bootstrap: %v", err)
	}
}

func TestForce_createsAndDrops(t *testing.T) {
	c := newCluster(t, 4, false, "a", "b")
	ctx := testContext(t)
	if err := c.set("b").ForceCreate(ctx, []shard.BucketID{2}); err != nil {
		t.Fatal(err)
	}
	if err := c.set("a").ForceDrop(ctx, []shard.BucketID{2}); err != nil {
		t.Fatal(err)
	}
	if got := c.owner(2); got != "b" {
		t.Errorf("%s owns the bucket", got)
	}
	c.mustSend("b", "a", 2)
	if err := c.set("b").ForceCreate(ctx, []shard.BucketID{9}); !errors.Is(err, shard.WrongBucket) {
		t.Errorf("a bucket that cannot be: %v", err)
	}
}
