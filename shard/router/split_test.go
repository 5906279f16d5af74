package router_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// splitCluster is a cluster whose bucket_count is doubled.
type splitCluster struct {
	*localsets.Cluster
	dir        string
	configured atomic.Uint32 // what members that start are told
}

const oldCount = 12

func startSplit(t *testing.T, members int, sets []string) *splitCluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := &splitCluster{dir: t.TempDir()}
	c.configured.Store(oldCount)
	var err error
	c.Cluster, err = localsets.Start(ctx, localsets.Options{
		Dir: c.dir, Sets: sets, Members: members, Buckets: oldCount,
		// The machine may be slow, and a member that is slow is not dead.
		Engine: raftengine.Options{HeartbeatTimeout: 2 * time.Second, Durability: raftengine.Interval, SnapshotBytes: 1 << 20, TrailingBytes: 64 << 10},
		// Small steps, so that much happens between them.
		Storage: func(o *storage.Options) { o.BucketCount, o.SplitRows = c.configured.Load(), 15+3*members },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (c *splitCluster) router(t *testing.T, count uint32) *router.Router {
	t.Helper()
	// A stream that is slow is not lost: who is connected is part of the test.
	r, err := router.New(router.Options{Topology: c.Topology(), ClusterID: localsets.ClusterID, BucketCount: count, Silence: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// kvOp is a call on one key; a value of "" is no row.
type kvOp struct{ fn, key, expected, value string }

type kvOut struct {
	unknown, done bool
	found         string
}

var kvModel = porcupine.Model{
	Partition: func(h []porcupine.Operation) (parts [][]porcupine.Operation) {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range h {
			k := op.Input.(kvOp).key
			byKey[k] = append(byKey[k], op)
		}
		for _, p := range byKey {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		now, in, out := state.(string), input.(kvOp), output.(kvOut)
		switch in.fn {
		case storage.KVGet, storage.KVScan:
			return out.unknown || out.found == now, now
		case storage.KVPut:
			return true, in.value
		case storage.KVDelete:
			return out.unknown || out.done == (now != ""), ""
		}
		hit := now == in.expected
		if !out.unknown && (out.done != hit || out.found != now) {
			return false, now
		}
		if hit {
			return true, in.value
		}
		return true, now
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

func optional(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// runKV carries out a call as a router sees it: it alone knows the bucket.
func runKV(ctx context.Context, r *router.Router, op kvOp) (out kvOut, err error) {
	key := []byte(op.key)
	hash := shard.MPCRC32Bytes(key)
	b := shard.BucketOf(hash, r.BucketCount())
	var result, value []byte
	switch op.fn {
	case storage.KVGet:
		if result, err = r.Call(ctx, b, router.CallMR, op.fn, storage.KVGetArgs(key)); err == nil {
			value, _, err = storage.KVGetResult(result)
		}
	case storage.KVScan:
		// Through a view, so that rows go over the wire.
		err = r.View(ctx, b, router.CallMR, func(v *storage.View) error {
			value = nil
			return v.Scan(storage.SpaceKV, key, append(bytes.Clone(key), 0), rand.IntN(2) == 0, func(_, v []byte) bool {
				value = bytes.Clone(v)
				return true
			})
		})
	case storage.KVPut:
		_, err = r.Call(ctx, b, router.CallRW, op.fn, storage.KVPutArgs(hash, key, []byte(op.value)))
	case storage.KVDelete:
		if result, err = r.Call(ctx, b, router.CallRW, op.fn, storage.KVDeleteArgs(key)); err == nil {
			out.done, err = storage.KVDeleteResult(result)
		}
	default:
		if result, err = r.Call(ctx, b, router.CallRW, op.fn, storage.KVCASArgs(hash, key, optional(op.expected), optional(op.value))); err == nil {
			out.done, value, err = storage.KVCASResult(result)
		}
	}
	out.found = string(value)
	return out, err
}

// load is a number of clients on a few keys.
type load struct {
	t     *testing.T
	start time.Time

	mu      sync.Mutex
	history []porcupine.Operation
	clients int
}

func (l *load) since() int64 { return int64(time.Since(l.start)) }

func (l *load) note(op porcupine.Operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history = append(l.history, op)
}

// run starts clients of a router; stop ends and waits for them.
func (l *load) run(r *router.Router, clients, keys int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range clients {
		l.mu.Lock()
		l.clients++
		id := l.clients
		l.mu.Unlock()
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(id), 7))
			for n := 0; ctx.Err() == nil; n++ {
				fns := []string{storage.KVGet, storage.KVScan, storage.KVPut, storage.KVDelete, storage.KVCAS, storage.KVCAS}
				op := kvOp{fn: fns[rnd.IntN(len(fns))], key: fmt.Sprintf("key%03d", rnd.IntN(keys)), value: fmt.Sprintf("%d.%d", id, n)}
				if rnd.IntN(2) == 0 {
					op.value = fmt.Sprint(rnd.IntN(3)) // so that compare-and-set hits
				}
				if rnd.IntN(3) > 0 {
					op.expected = fmt.Sprint(rnd.IntN(3))
				}
				called := l.since()
				try, done := context.WithTimeout(context.Background(), 90*time.Second)
				out, err := runKV(try, r, op)
				done()
				returned := l.since()
				if err != nil {
					if !errors.Is(err, shard.OutcomeUnknown) {
						l.t.Errorf("%+v with %d buckets: %v", op, r.BucketCount(), err)
						return
					}
					out, returned = kvOut{unknown: true}, 1<<62
				}
				l.note(porcupine.Operation{ClientId: id, Input: op, Call: called, Output: out, Return: returned})
				time.Sleep(time.Duration(rnd.IntN(2000)) * time.Microsecond)
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

func (l *load) check() {
	l.t.Helper()
	unknown := 0
	for _, op := range l.history {
		if op.Output.(kvOut).unknown {
			unknown++
		}
	}
	l.t.Logf("%d operations, %d with unknown outcome", len(l.history), unknown)
	if result := porcupine.CheckOperationsTimeout(kvModel, l.history, 10*time.Second); result == porcupine.Illegal {
		l.t.Error("the history is not linearizable")
	} else if result == porcupine.Unknown {
		l.t.Log("the history was too hard to check in time")
	}
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, ctx context.Context, what string, ok func() bool) {
	t.Helper()
	defer func(began time.Time) { t.Logf("%v until %s", time.Since(began).Round(time.Millisecond), what) }(time.Now())
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("it does not become true that %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestSplit_bothCountsThroughout doubles bucket_count while routers of both counts read and
// write the same keys, and members are killed, handed over and restarted with the new count.
func TestSplit_bothCountsThroughout(t *testing.T) {
	for members, sets := range map[int][]string{1: {"a", "b"}, 3: {"a"}} {
		t.Run(fmt.Sprintf("sets of %d", members), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
			defer cancel()
			c := startSplit(t, members, sets)
			old := c.router(t, oldCount)
			// Half of the buckets are elsewhere, and rows enough for many steps.
			var odd []shard.BucketID
			for b := shard.BucketID(1); b <= oldCount; b += 2 {
				odd = append(odd, b)
			}
			waitFor(t, ctx, "half of the buckets are elsewhere", func() bool {
				if len(sets) == 1 {
					return true
				}
				failed, err := old.SendBuckets(ctx, odd, "b")
				for _, err := range failed {
					if !errors.Is(err, shard.MoveToSelf) {
						t.Log("a move:", err)
						return false
					}
				}
				return err == nil
			})
			const rows = 1500
			value := bytes.Repeat([]byte("x"), 700)
			fill := make(chan error, 64)
			for i := range rows {
				if i >= cap(fill) {
					if err := <-fill; err != nil {
						t.Fatal(err)
					}
				}
				key := fmt.Appendf(nil, "row%05d", i)
				hash := shard.MPCRC32Bytes(key)
				go func() {
					_, err := old.CallIdempotent(ctx, shard.BucketOf(hash, oldCount), storage.KVPut, storage.KVPutArgs(hash, key, value))
					fill <- err
				}()
			}
			for range cap(fill) {
				if err := <-fill; err != nil {
					t.Fatal(err)
				}
			}

			l := &load{t: t, start: time.Now()}
			stopOld := l.run(old, 3, 40)
			if err := old.FinishSplit(ctx, oldCount, false); !errors.Is(err, shard.SplitIsInProgress) {
				t.Errorf("finish before the start: %v", err)
			}
			waitFor(t, ctx, "the doubling has begun", func() bool {
				err := old.StartSplit(ctx, oldCount)
				if err != nil {
					t.Log("start:", err)
				}
				return err == nil
			})
			fresh := c.router(t, 2*oldCount)
			stopNew := l.run(fresh, 3, 40)
			waitFor(t, ctx, "a move is refused", func() bool {
				if len(sets) == 1 {
					return true
				}
				failed, err := old.SendBuckets(ctx, []shard.BucketID{2}, "b")
				if err != nil || failed[2] == nil {
					t.Fatalf("a move while buckets are split: %v, %v", failed, err)
				}
				return errors.Is(failed[2], shard.SplitIsInProgress) // else there was no master
			})
			c.configured.Store(2 * oldCount)
			for _, set := range sets {
				for _, m := range c.Members(set) {
					if members > 1 && m.Storage.Status().Master == m.ID && m.ID != "a3" {
						if err := m.Storage.HandOver(ctx, ""); err != nil {
							t.Log("hand-over:", err)
						}
					}
					t.Logf("%v: restarting %s", time.Since(l.start).Round(time.Millisecond), m.ID)
					m.Kill()
					if m.ID == "a3" {
						// It has lost its disk, and gets everything by a snapshot.
						if err := os.RemoveAll(filepath.Join(c.dir, m.ID)); err != nil {
							t.Fatal(err)
						}
					}
					if err := m.Start(ctx); err != nil {
						t.Fatalf("restart with the new count: %v", err)
					}
					if _, err := c.Master(ctx, set); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, st := range fresh.SplitStatus(ctx) {
				t.Logf("after the restarts: %s: %v %v", st.Member, st.Status, st.Err)
			}
			waitFor(t, ctx, "all buckets are split", func() bool {
				buckets, done := uint32(0), uint32(0)
				for _, st := range fresh.SplitStatus(ctx) {
					if st.Master && st.Status != nil {
						buckets += st.Status.GetBuckets()
						done += st.Status.GetDone()
					}
				}
				return buckets == oldCount && done == oldCount
			})
			for _, set := range sets {
				for _, m := range c.Members(set) {
					waitFor(t, ctx, m.ID+" knows it", func() bool { p := m.Storage.SplitProgress(); return p.Buckets > 0 && p.Done == p.Buckets })
				}
			}
			waitFor(t, ctx, "the clients have gone on", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.history) > 600 })
			stopOld()
			if err := fresh.FinishSplit(ctx, oldCount, false); err == nil {
				t.Error("finished although there was a router of the old count a moment ago")
			}
			old.Close()
			waitFor(t, ctx, "the doubling is finished", func() bool {
				err := fresh.FinishSplit(ctx, oldCount, false)
				if err != nil && !errors.Is(err, shard.SplitIsInProgress) { // it waits for the old router to be gone
					t.Log("finish:", err)
				}
				return err == nil
			})
			late := c.router(t, oldCount)
			try, done := context.WithTimeout(ctx, time.Second)
			if _, err := late.Call(try, 1, router.CallMR, storage.KVGet, storage.KVGetArgs([]byte("k"))); err == nil {
				t.Error("a router of the old count is served after the doubling")
			}
			done()
			waitFor(t, ctx, "both halves of a bucket have moved", func() bool {
				if len(sets) == 1 {
					return true
				}
				failed, err := fresh.SendBuckets(ctx, []shard.BucketID{2, 2 + oldCount}, "b")
				for b, err := range failed {
					if !errors.Is(err, shard.MoveToSelf) {
						t.Logf("a move of bucket %d: %v", b, err)
						return false
					}
				}
				return err == nil
			})
			stopNew()
			l.check()

			// Every row is in its bucket, and there are no others.
			args := storage.KVScanArgs([]byte("row"), []byte("rox"), false, storage.MaxKVScan)
			results, err := fresh.MapCallRO(ctx, nil, storage.KVScan, args)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for b, result := range results {
				found, _, err := storage.KVScanResult(result)
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range found {
					n++
					if want := shard.BucketOf(shard.MPCRC32Bytes(row.Key), 2*oldCount); want != b || !bytes.Equal(row.Value, value) {
						t.Fatalf("row %s is in bucket %d, want %d", row.Key, b, want)
					}
				}
			}
			if n != rows {
				t.Errorf("%d rows, want %d", n, rows)
			}
		})
	}
}
