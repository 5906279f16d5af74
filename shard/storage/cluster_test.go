package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
)

// cluster is several replica sets of one in this process. Messages between them can be lost.
type cluster struct {
	t    testing.TB
	n    uint32
	dirs map[string]string // empty for memory

	mu   sync.Mutex
	sets map[string]*Storage
	// fault, if set, decides about a message: an error before it arrives, or after.
	fault func(req *v1.TransferRequest) (before, after error)
}

type clusterLink struct{ c *cluster }

var errCut = &shard.Error{Code: shard.UnreachableMaster, Reason: "cut off by the test"}

func (l clusterLink) Transfer(ctx context.Context, req *v1.TransferRequest) (*v1.TransferResponse, error) {
	l.c.mu.Lock()
	s, fault := l.c.sets[req.GetTo()], l.c.fault
	l.c.mu.Unlock()
	var before, after error
	if fault != nil {
		before, after = fault(req)
	}
	if before != nil {
		return nil, before
	}
	if s == nil {
		return nil, errCut
	}
	resp, err := s.Receive(ctx, req)
	if after != nil {
		return nil, after
	}
	return resp, err
}

func (l clusterLink) ReplicaSets() []string {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	names := make([]string, 0, len(l.c.dirs))
	for name := range l.c.dirs {
		names = append(names, name)
	}
	return names
}

func (c *cluster) setFault(f func(*v1.TransferRequest) (before, after error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

func (c *cluster) set(name string) *Storage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sets[name]
}

func (c *cluster) open(name string) *Storage {
	c.t.Helper()
	dir := c.dirs[name]
	s, err := Open(testContext(c.t), Options{
		Registry: NewRegistry(), BucketCount: c.n, ReplicaSet: name, Link: clusterLink{c}, PauseTime: 20 * time.Second,
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return raftengine.Open(ctx, raftengine.Options{Dir: dir, Memory: dir == "", Machine: m, BucketCount: c.n})
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.sets[name] = s
	c.mu.Unlock()
	return s
}

func (c *cluster) close(name string) {
	c.mu.Lock()
	s := c.sets[name]
	delete(c.sets, name)
	c.mu.Unlock()
	if s != nil {
		if err := s.Close(context.Background()); err != nil {
			c.t.Error(err)
		}
	}
}

// newCluster makes replica sets of which the first has all buckets.
func newCluster(t testing.TB, n uint32, onDisk bool, names ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, n: n, dirs: map[string]string{}, sets: map[string]*Storage{}}
	for _, name := range names {
		c.dirs[name] = ""
		if onDisk {
			c.dirs[name] = t.TempDir()
		}
	}
	t.Cleanup(func() {
		for _, name := range names {
			c.close(name)
		}
	})
	for i, name := range names {
		req := &v1.BootstrapStorageRequest{ClusterId: "test", BucketCount: n, ReplicaSet: name}
		if i == 0 {
			req.Buckets = []*v1.BucketRange{{First: 1, Last: n}}
		}
		if err := c.open(name).BootstrapReplicaSet(testContext(t), req); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// owner waits until exactly one set owns a bucket, nothing is under way, and returns it.
func (c *cluster) owner(b shard.BucketID) string {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		var owners []string
		quiet := true
		var rows []string
		for name := range c.dirs {
			s := c.set(name)
			if s == nil {
				continue
			}
			row := s.BucketRow(b)
			rows = append(rows, fmt.Sprintf("%s: %+v", name, row))
			if row.Owns() {
				owners = append(owners, name)
			}
			quiet = quiet && !row.Moving() && row.State != shard.Receiving
		}
		if quiet && len(owners) == 1 {
			return owners[0]
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("bucket %d: owners %v, rows %v", b, owners, rows)
		}
		time.Sleep(time.Millisecond)
	}
}

// write puts a value through whoever takes it.
func (c *cluster) write(ctx context.Context, b shard.BucketID, key, value string) error {
	for {
		var last error
		for name := range c.dirs {
			if s := c.set(name); s != nil {
				_, err := s.Write(ctx, b, KVPut, KVPutArgs(7, []byte(key), []byte(value)))
				if err == nil {
					return nil
				}
				last = err
				if !errors.Is(err, shard.WrongBucket) && !errors.Is(err, shard.TransferIsInProgress) {
					return err
				}
			}
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), last)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

func (c *cluster) read(b shard.BucketID, key string) (string, bool) {
	c.t.Helper()
	result, err := c.set(c.owner(b)).Read(testContext(c.t), b, KVGet, KVGetArgs([]byte(key)))
	if err != nil {
		c.t.Fatal(err)
	}
	value, ok, err := KVGetResult(result)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(value), ok
}

func (c *cluster) fill(b shard.BucketID, rows, size int) {
	c.t.Helper()
	value := make([]byte, size)
	var group sync.WaitGroup
	var bad atomic.Pointer[error]
	s := c.set(c.owner(b))
	for i := range rows {
		group.Add(1)
		s.WriteAsync(b, KVPut, KVPutArgs(uint32(i), fmt.Appendf(nil, "fill%08d", i), value), func(_ []byte, err error) {
			if err != nil {
				bad.Store(&err)
			}
			group.Done()
		})
		if i%1000 == 999 {
			group.Wait()
		}
	}
	group.Wait()
	if e := bad.Load(); e != nil {
		c.t.Fatal(*e)
	}
}

// rowsOf counts the rows of a bucket and adds up their hashes.
func (c *cluster) rowsOf(name string, b shard.BucketID) (rows, sum uint64) {
	c.t.Helper()
	_, err := c.set(name).CheckBuckets(testContext(c.t), []shard.BucketID{b}, func(r *v1.CheckBucketsResponse_Bucket) error {
		rows, sum = r.GetRows(), r.GetSum()
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return rows, sum
}

func (c *cluster) mustSend(from, to string, buckets ...shard.BucketID) {
	c.t.Helper()
	failed, err := c.set(from).SendBuckets(testContext(c.t), buckets, to)
	if err != nil || len(failed) > 0 {
		c.t.Fatalf("send from %s to %s: %v, %v", from, to, err, failed)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
