package router

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// testTime is how long a test waits for what must come.
const testTime = 30 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until f is true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(testTime); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in %v not: %s", testTime, what)
		}
	}
}

// seat is a member of a replica set as a test plays it: all members of a set are the same
// storage, and one of them says that it is master. Real replica sets differ in that a replica
// may be behind.
type seat struct {
	*storage.Storage
	*refs
	id string

	master        atomic.Pointer[string] // nil when there is none
	term          atomic.Uint64
	watchers      sync.Map // of *func(engine.Leadership)
	reads, writes atomic.Int64
	views         atomic.Int64
	// hold, if set, keeps reads and writes until the channel is closed.
	hold    atomic.Pointer[chan struct{}]
	cluster string
}

func (s *seat) isMaster() bool { m := s.master.Load(); return m != nil && *m == s.id }

func (s *seat) Status() engine.Status {
	st := s.Storage.Status()
	st.Member, st.Master, st.Term = s.id, "", s.term.Load()
	if m := s.master.Load(); m != nil {
		st.Master = *m
	}
	if st.State == engine.Master && !s.isMaster() {
		st.State = engine.Replica
	}
	return st
}

func (s *seat) WatchMaster(fn func(engine.Leadership)) (stop func()) {
	w := &fn
	s.watchers.Store(w, nil)
	return func() { s.watchers.Delete(w) }
}

// lead makes somebody master.
func (s *seat) lead(master *string, term uint64) {
	s.master.Store(master)
	s.term.Store(term)
	s.watchers.Range(func(w, _ any) bool {
		if fn, ok := w.(*func(engine.Leadership)); ok {
			(*fn)(engine.Leadership{})
		}
		return true
	})
}

func (s *seat) refuse(b shard.BucketID) error {
	if s.isMaster() {
		return nil
	}
	e := &shard.Error{Code: shard.NonMaster, Bucket: b, ReplicaSet: s.ReplicaSet()}
	if m := s.master.Load(); m != nil {
		e.Master = *m
	}
	return e
}

func (s *seat) wait() {
	if h := s.hold.Load(); h != nil {
		<-*h
	}
}

func (s *seat) WriteAsync(b shard.BucketID, fn string, args []byte, done func([]byte, error)) {
	s.writes.Add(1)
	if err := s.refuse(b); err != nil {
		go done(nil, err)
		return
	}
	if s.hold.Load() != nil {
		go func() { s.wait(); s.Storage.WriteAsync(b, fn, args, done) }()
		return
	}
	s.Storage.WriteAsync(b, fn, args, done)
}

func (s *seat) Write(ctx context.Context, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	s.writes.Add(1)
	if err := s.refuse(b); err != nil {
		return nil, err
	}
	return s.Storage.Write(ctx, b, fn, args)
}

func (s *seat) Read(ctx context.Context, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	s.reads.Add(1)
	s.wait()
	if err := s.refuse(b); err != nil {
		return nil, err
	}
	return s.Storage.Read(ctx, b, fn, args)
}

func (s *seat) ReadAny(ctx context.Context, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	s.reads.Add(1)
	s.wait()
	return s.Storage.Read(ctx, b, fn, args)
}

func (s *seat) View(ctx context.Context, b shard.BucketID, fn func(*storage.View) error) error {
	s.views.Add(1)
	if err := s.refuse(b); err != nil {
		return err
	}
	return s.Storage.View(ctx, b, fn)
}

func (s *seat) ViewAny(ctx context.Context, b shard.BucketID, fn func(*storage.View) error) error {
	s.views.Add(1)
	return s.Storage.View(ctx, b, fn)
}

// Of references a test wants to count them.

func (s *seat) Ref(ctx context.Context, id string, deadline time.Time) error {
	return s.refs.Ref(ctx, id, deadline)
}
func (s *seat) CheckRef(id string) error                   { return s.refs.CheckRef(id) }
func (s *seat) Unref(ctx context.Context, id string) error { return s.refs.Unref(ctx, id) }

func (s *seat) ClusterID() string { return s.cluster }

// proxy stands between a router and a member and can be cut.
type proxy struct {
	l      net.Listener
	target string

	mu     sync.Mutex
	conns  []net.Conn
	state  string // "", "cut": connections are refused, "hang": nothing gets through
	wake   *sync.Cond
	closed bool
	wg     sync.WaitGroup
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, target: target}
	p.wake = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) address() string { return p.l.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.closed || p.state == "cut"
		p.mu.Unlock()
		if refuse {
			_ = in.Close()
			continue
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(out, in) })
		p.wg.Go(func() { p.copy(in, out) })
	}
}

func (p *proxy) copy(to, from net.Conn) {
	defer func() { _ = to.Close(); _ = from.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		for p.state == "hang" && !p.closed {
			p.wake.Wait()
		}
		p.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// set changes what the proxy does; "cut" ends the connections there are.
func (p *proxy) set(state string) {
	p.mu.Lock()
	p.state = state
	conns := p.conns
	if state == "cut" {
		p.conns = nil
	}
	p.wake.Broadcast()
	p.mu.Unlock()
	if state == "cut" {
		for _, c := range conns {
			_ = c.Close()
		}
	}
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.l.Close()
	p.set("cut")
	p.wg.Wait()
}

// node is a member that is served on loopback.
type node struct {
	*seat
	server *storagerpc.Server
	proxy  *proxy
}

// group is a replica set.
type group struct {
	name  string
	store *storage.Storage
	nodes []*node
	term  uint64
}

func (g *group) set() Set {
	s := Set{Name: g.name}
	for _, n := range g.nodes {
		s.Members = append(s.Members, Member{ID: n.id, Address: n.proxy.address()})
	}
	return s
}

// lead makes a member master; nil for none.
func (g *group) lead(master *node) {
	var id *string
	if master != nil {
		id = &master.id
	}
	g.term++
	for _, n := range g.nodes {
		n.lead(id, g.term)
	}
}

// newGroup serves a storage as a replica set of so many members. The first is master.
func newGroup(t testing.TB, store *storage.Storage, size int) *group {
	t.Helper()
	return serveGroup(t, store, nil, size)
}

// serveGroup is newGroup of members that are as, when that is not nil.
func serveGroup(t testing.TB, store *storage.Storage, as storagerpc.Storage, size int) *group {
	t.Helper()
	g := &group{name: store.ReplicaSet(), store: store}
	for i := range size {
		st := &seat{Storage: store, refs: new(refs), id: g.name + string(rune('1'+i))}
		served := as
		if served == nil {
			served = st
		}
		srv, err := storagerpc.NewServer(storagerpc.ServerOptions{Storage: served, Member: st.id, Heartbeat: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		gs := grpc.NewServer(grpc.MaxRecvMsgSize(storagerpc.MaxMessage), grpc.MaxSendMsgSize(storagerpc.MaxMessage))
		srv.Register(gs)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = gs.Serve(l) // ends with Stop
		}()
		t.Cleanup(func() {
			if h := st.hold.Swap(nil); h != nil {
				select {
				case <-*h:
				default:
					close(*h)
				}
			}
			srv.Close()
			gs.Stop()
			<-done
		})
		g.nodes = append(g.nodes, &node{st, srv, newProxy(t, l.Addr().String())})
	}
	g.lead(g.nodes[0])
	return g
}

// newCluster serves replica sets of the names, with size members each; all buckets are on the
// first.
func newCluster(t testing.TB, size int, names ...string) []*group {
	t.Helper()
	var groups []*group
	for i, name := range names {
		s := newStorage(t, name, storage.NewRegistry())
		if i > 0 {
			for b := shard.BucketID(1); b <= 16; b++ {
				states(t, s, b, "", shard.Sending, shard.Sent, shard.Garbage, shard.Absent)
			}
		}
		groups = append(groups, newGroup(t, s, size))
	}
	return groups
}

// states takes a bucket through states.
func states(t testing.TB, s *storage.Storage, b shard.BucketID, destination string, all ...shard.State) {
	t.Helper()
	for _, state := range all {
		if err := s.SetBucketState(testContext(t), b, state, destination); err != nil {
			t.Fatal(err)
		}
	}
}

// move moves a bucket in one go. Its rows stay behind.
func move(t testing.TB, b shard.BucketID, from, to *group) {
	t.Helper()
	states(t, to.store, b, from.name, shard.Receiving)
	states(t, from.store, b, to.name, shard.Sending, shard.Sent)
	states(t, to.store, b, "", shard.Active)
}

func sets(groups []*group) []Set {
	var all []Set
	for _, g := range groups {
		all = append(all, g.set())
	}
	return all
}

// newRemoteRouter makes a router that reaches the groups over their proxies, and waits until
// it has heard from all members.
func newRemoteRouter(t testing.TB, opts Options, groups ...*group) *Router {
	t.Helper()
	if opts.Topology == nil {
		opts.Topology = Static(sets(groups)...)
	}
	if opts.BucketCount == 0 {
		opts.BucketCount = 16
	}
	r, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	eventually(t, "the router has heard from all", func() bool {
		for _, s := range r.all() {
			for _, m := range *s.members.Load() {
				if up, _ := m.isUp(); !up {
					return false
				}
			}
			if s.master.Load() == nil {
				return false
			}
		}
		return true
	})
	return r
}

func putArgs(key, value string) []byte {
	return storage.KVPutArgs(shard.MPCRC32Bytes([]byte(key)), []byte(key), []byte(value))
}

func mustPut(t testing.TB, r *Router, b shard.BucketID, key, value string) {
	t.Helper()
	if _, err := r.Call(testContext(t), b, CallRW, storage.KVPut, putArgs(key, value)); err != nil {
		t.Fatal(err)
	}
}

func mustGet(t testing.TB, r *Router, b shard.BucketID, mode Mode, key, want string) {
	t.Helper()
	result, err := r.Call(testContext(t), b, mode, storage.KVGet, storage.KVGetArgs([]byte(key)))
	if err != nil {
		t.Fatal(mode, err)
	}
	if v, ok, err := storage.KVGetResult(result); err != nil || !ok || string(v) != want {
		t.Fatalf("%v: %q %v %v, want %q", mode, v, ok, err, want)
	}
}

// wantError checks that err is one of the code.
func wantError(t testing.TB, err error, code shard.Code) *shard.Error {
	t.Helper()
	var e *shard.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want %v", err, code)
	}
	return e
}
