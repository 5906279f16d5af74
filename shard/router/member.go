package router

import (
	"context"
	"slices"
	"sync"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// link is the way to a member.
type link interface {
	write(ctx context.Context, b shard.BucketID, fn string, args []byte) ([]byte, error)
	writeAsync(b shard.BucketID, fn string, args []byte, done func([]byte, error))
	read(ctx context.Context, stale bool, b shard.BucketID, fn string, args []byte) ([]byte, error)
	view(ctx context.Context, stale bool, b shard.BucketID, fn func(*storage.View) error) error
	// watch and discover are as those of storagerpc.Client.
	watch(ctx context.Context, fn func(*v1.DiscoverResponse) error) error
	discover(ctx context.Context) (*v1.DiscoverResponse, error)
	admin(ctx context.Context, call func(context.Context, v1.StorageServiceClient) error) error
	mapCall(ctx context.Context, req *v1.MapCallRequest, fn func(shard.BucketID, []byte, error)) error
	// retire closes the link when its calls in flight have ended, or ctx has.
	retire(ctx context.Context) error
	close() error
}

// kind is the kind of a read.
func kind(stale bool) v1.StorageCallKind {
	if stale {
		return v1.StorageCallKind_STORAGE_CALL_KIND_READ_ANY
	}
	return v1.StorageCallKind_STORAGE_CALL_KIND_READ
}

// remote is a member in another process.
type remote struct{ c *storagerpc.Client }

func (l remote) write(ctx context.Context, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	return l.c.Call(ctx, v1.StorageCallKind_STORAGE_CALL_KIND_WRITE, b, fn, args)
}

func (l remote) writeAsync(b shard.BucketID, fn string, args []byte, done func([]byte, error)) {
	l.c.WriteAsync(b, fn, args, done)
}

func (l remote) read(ctx context.Context, stale bool, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	return l.c.Call(ctx, kind(stale), b, fn, args)
}

func (l remote) view(ctx context.Context, stale bool, b shard.BucketID, fn func(*storage.View) error) error {
	return l.c.View(ctx, kind(stale), b, fn)
}

func (l remote) watch(ctx context.Context, fn func(*v1.DiscoverResponse) error) error {
	return l.c.Watch(ctx, fn)
}

func (l remote) discover(ctx context.Context) (*v1.DiscoverResponse, error) { return l.c.Discover(ctx) }

func (l remote) admin(ctx context.Context, call func(context.Context, v1.StorageServiceClient) error) error {
	return l.c.Do(ctx, call)
}

func (l remote) mapCall(ctx context.Context, req *v1.MapCallRequest, fn func(shard.BucketID, []byte, error)) error {
	return l.c.MapCall(ctx, req, fn)
}

func (l remote) retire(ctx context.Context) error { return l.c.Retire(ctx) }

func (l remote) close() error { return l.c.Close() }

// direct is a member in this process.
type direct struct{ s *storagerpc.Server }

func (l direct) write(ctx context.Context, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	return l.s.Storage().Write(ctx, b, fn, args)
}

func (l direct) writeAsync(b shard.BucketID, fn string, args []byte, done func([]byte, error)) {
	l.s.Storage().WriteAsync(b, fn, args, done)
}

func (l direct) read(ctx context.Context, stale bool, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	return l.s.Read(ctx, kind(stale), b, fn, args)
}

func (l direct) view(ctx context.Context, stale bool, b shard.BucketID, fn func(*storage.View) error) error {
	return l.s.ViewRows(ctx, kind(stale), b, fn)
}

func (l direct) watch(ctx context.Context, fn func(*v1.DiscoverResponse) error) error {
	return l.s.Watch(ctx, false, fn)
}

func (l direct) discover(ctx context.Context) (resp *v1.DiscoverResponse, err error) {
	err = l.s.Watch(ctx, true, func(r *v1.DiscoverResponse) error { resp = r; return nil })
	return resp, err
}

func (l direct) admin(ctx context.Context, call func(context.Context, v1.StorageServiceClient) error) error {
	return l.s.Do(ctx, call)
}

func (l direct) mapCall(ctx context.Context, req *v1.MapCallRequest, fn func(shard.BucketID, []byte, error)) error {
	return l.s.RunMapCall(ctx, req, func(resp *v1.MapCallResponse) error {
		for _, r := range resp.GetResults() {
			fn(shard.BucketID(r.GetId()), r.GetResult(), storagerpc.DecodeError(r.GetError()))
		}
		return nil
	})
}

func (direct) retire(context.Context) error { return nil }

func (direct) close() error { return nil }

// member is a member of a replica set, and what is known of it.
type member struct {
	Member
	link link
	// local is the storage itself when it is in this process, else nil.
	local storagerpc.Storage

	mu    sync.Mutex
	up    bool  // its discovery stream lives
	down  error // why not
	nodes []*balance.Node
}

// setUp notes whether the member answers, and reports whether that is new.
func (m *member) setUp(up bool, why error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.up
	m.up, m.down = up, why
	if was == up {
		return false
	}
	for _, n := range m.nodes {
		n.SetStatus(statusOf(up))
	}
	return true
}

func statusOf(up bool) balance.Status {
	if up {
		return balance.Open
	}
	return balance.Busy
}

func (m *member) addNode(n *balance.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes = append(m.nodes, n)
}

// showNodes tells the balancers what is known.
func (m *member) showNodes() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		n.SetStatus(statusOf(m.up))
	}
}

func (m *member) removeNode(n *balance.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes = slices.DeleteFunc(m.nodes, func(x *balance.Node) bool { return x == n })
}

func (m *member) isUp() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up, m.down
}

// unreachable reports whether err says that the member could not be asked or did not answer,
// and whether the call may have reached it.
func unreachable(err error) (yes, sent bool) {
	// Not one that another error wraps: that has been judged already.
	if c, ok := err.(*storagerpc.ConnError); ok {
		return true, c.Sent
	}
	return false, false
}
