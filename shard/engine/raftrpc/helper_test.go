package raftrpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sums is a state machine that keeps the lengths of all commands and a count.
type sums struct {
	mu    sync.Mutex
	count uint64
	bytes uint64
}

func (s *sums) Apply(l *raft.Log) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.bytes += uint64(len(l.Data))
	return s.count
}

func (s *sums) read() (uint64, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.bytes
}

// filler makes snapshots of several chunks.
const filler = 3*chunkBytes + 17

func (s *sums) Snapshot() (raft.FSMSnapshot, error) {
	n, b := s.read()
	return frozen{n, b}, nil
}

func (s *sums) Restore(r io.ReadCloser) error {
	all, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if len(all) != 16+filler || !bytes.Equal(all[16:], make([]byte, filler)) {
		return errors.New("the snapshot is not the one that was sent")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count, s.bytes = binary.BigEndian.Uint64(all), binary.BigEndian.Uint64(all[8:])
	return r.Close()
}

type frozen struct{ count, bytes uint64 }

func (f frozen) Persist(sink raft.SnapshotSink) error {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, f.count), f.bytes)
	if _, err := sink.Write(append(b, make([]byte, filler)...)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}
func (frozen) Release() {}

// notes keeps what a member logs, to be shown when its test fails.
type notes struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (n *notes) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.b.Len() > 64<<10 {
		n.b.Reset()
	}
	return n.b.Write(b)
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.b.String()
}

// node is a member of a group in a test, and the Host of its transport.
type node struct {
	id        string
	t         *Transport
	raft      atomic.Pointer[raft.Raft]
	fsm       *sums
	server    *grpc.Server
	mute      atomic.Bool
	hangs     atomic.Bool
	mu        sync.Mutex
	cluster   string
	installed atomic.Int64
}

func (n *node) ClusterID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cluster
}

func (n *node) Adopt(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cluster != "" && n.cluster != id {
		return fmt.Errorf("this member belongs to %s", n.cluster)
	}
	n.cluster = id
	return nil
}

func (n *node) Voice() bool { return !n.mute.Load() }

func (n *node) Applied() (uint64, uint64) {
	r := n.raft.Load()
	if r == nil {
		return 0, 0
	}
	return r.AppliedIndex(), r.CurrentTerm()
}

func (n *node) Floor(uint64) (uint64, uint64) { return 0, 0 }

func (n *node) Hangs() bool { return n.hangs.Load() }

func (n *node) Heard(uint64, uint64) {}

func (n *node) Keepalive(term uint64) bool {
	r := n.raft.Load()
	if r == nil || r.State() != raft.Follower || r.CurrentTerm() != term {
		return false
	}
	_, id := r.LeaderWithID()
	return id != ""
}

func (n *node) Installing(context.Context) (func(), error) {
	n.installed.Add(1)
	return func() {}, nil
}

// start starts a member at an address of its own.
func start(t *testing.T, id, cluster string, change func(*Options)) *node {
	t.Helper()
	n := bare(t, id, cluster, change)
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(id)
	said := &notes{}
	conf.Logger = hclog.New(&hclog.LoggerOptions{Name: id, Level: hclog.Debug, Output: said})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("member %s:\n%s", id, said)
		}
	})
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = time.Second, time.Second, time.Second
	conf.CommitTimeout = 10 * time.Millisecond
	conf.TrailingLogs = 1
	conf.ShutdownOnRemove = false
	conf.NoLegacyTelemetry = true
	store := raft.NewInmemStore()
	n.fsm = &sums{}
	r, err := raft.NewRaft(conf, n.fsm, store, store, raft.NewInmemSnapshotStore(), n.t)
	if err != nil {
		t.Fatal(err)
	}
	n.raft.Store(r)
	t.Cleanup(func() { n.stop(t) })
	return n
}

// bare is a member without Raft: its test answers instead.
func bare(t *testing.T, id, cluster string, change func(*Options)) *node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{ID: id, ReplicaSet: "set-1", Address: l.Addr().String(), HeartbeatTimeout: 10 * time.Second, VoteTimeout: 10 * time.Second}
	if change != nil {
		change(&o)
	}
	n := &node{id: id, cluster: cluster, server: grpc.NewServer()}
	if n.t, err = New(o); err != nil {
		t.Fatal(err)
	}
	n.t.Attach(n)
	n.t.Register(n.server)
	served := make(chan error, 1)
	go func() { served <- n.server.Serve(l) }()
	t.Cleanup(func() {
		_ = n.t.Close()
		n.server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) stop(t *testing.T) {
	down := n.raft.Load().Shutdown()
	_ = n.t.Close() // ends what Raft waits for
	if err := down.Error(); err != nil {
		t.Error(err)
	}
}

// lead makes n the master of a group of one and waits until it is.
func (n *node) lead(t *testing.T) {
	t.Helper()
	r := n.raft.Load()
	err := r.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(n.id), Address: n.t.LocalAddr()}}}).Error()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the member is the master", func() bool { return r.State() == raft.Leader })
}

// add makes m a voter.
func (n *node) add(t *testing.T, m *node) {
	t.Helper()
	if err := n.raft.Load().AddVoter(raft.ServerID(m.id), m.t.LocalAddr(), 0, 30*time.Second).Error(); err != nil {
		t.Fatal(err)
	}
}

func (n *node) apply(t *testing.T, data []byte) {
	t.Helper()
	if err := n.raft.Load().Apply(data, 30*time.Second).Error(); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
