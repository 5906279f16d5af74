package transferrpc_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// gate holds back messages of moves.
type gate struct {
	mu   sync.Mutex
	held func(*v1.TransferRequest) bool
	open chan struct{}
}

// hold holds back the messages that which names.
func (g *gate) hold(which func(*v1.TransferRequest) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held, g.open = which, make(chan struct{})
}

// release lets all messages pass.
func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held != nil {
		g.held = nil
		close(g.open)
	}
}

func (g *gate) pass(ctx context.Context, req *v1.TransferRequest) error {
	g.mu.Lock()
	held, open := g.held != nil && g.held(req), g.open
	g.mu.Unlock()
	if !held {
		return nil
	}
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gatedLink is a link with a gate.
type gatedLink struct {
	storage.Link
	g *gate
}

func (l gatedLink) Transfer(ctx context.Context, req *v1.TransferRequest) (*v1.TransferResponse, error) {
	if err := l.g.pass(ctx, req); err != nil {
		return nil, err
	}
	return l.Link.Transfer(ctx, req)
}

// chunksFrom names the chunks from a number on.
func chunksFrom(seq uint64) func(*v1.TransferRequest) bool {
	return func(req *v1.TransferRequest) bool {
		return req.GetKind() == v1.TransferKind_TRANSFER_KIND_CHUNK && req.GetItems()[0].GetSeq() >= seq
	}
}

// stuck is a cluster under load whose bucket is in the middle of its move from a to b.
type stuck struct {
	*testing.T
	c    *localsets.Cluster
	r    *router.Router
	load *load
	gate *gate
	sent chan error // what became of the move
}

func startStuck(t *testing.T, members int) *stuck {
	s := &stuck{T: t, gate: &gate{}, sent: make(chan error, 1)}
	s.c, s.r = start(t, members, func(o *localsets.Options) {
		o.Storage = func(so *storage.Options) { so.Link, so.PauseTime = gatedLink{so.Link, s.gate}, 20*time.Second }
	})
	t.Cleanup(s.gate.release)
	fill(t, s.r, 100, 40_000)
	s.load = startLoad(t, s.r)
	t.Cleanup(s.load.end)
	s.gate.hold(chunksFrom(3))
	go func() {
		failed, err := s.r.SendBuckets(testContext(t), []shard.BucketID{bucket}, "b")
		if err == nil {
			err = failed[bucket]
		}
		s.sent <- err
	}()
	eventually(t, "the bucket is half-way", func() bool {
		for _, m := range s.c.Members("b") {
			if m.Storage.Status().State == engine.Master && m.Storage.BucketRow(bucket).Taken.Chunks == 3 {
				return true
			}
		}
		return false
	})
	return s
}

func (s *stuck) master(set string) *localsets.Member {
	s.Helper()
	m, err := s.c.Master(testContext(s.T), set)
	if err != nil {
		s.Fatal(err)
	}
	return m
}

func (s *stuck) replica(set string) *localsets.Member {
	m := s.master(set)
	for _, other := range s.c.Members(set) {
		if other != m {
			return other
		}
	}
	s.Fatal("no replica")
	return nil
}

// wantAlert waits until the condition of the store says that something is wrong with a set.
func (s *stuck) wantAlert(set, member string) {
	s.Helper()
	eventually(s.T, "there is an alert of "+set, func() bool {
		for _, a := range s.r.Info(testContext(s.T)).Alerts {
			if a.Level >= router.Yellow && a.ReplicaSet == set && (member == "" || strings.Contains(a.Text, member)) {
				return true
			}
		}
		return false
	})
}

// wantEnd ends the load and checks where the bucket is, whole, and nothing under way.
func (s *stuck) wantEnd(owner string) {
	s.Helper()
	s.load.more(s.T, "it is written at the end")
	s.load.end()
	wantOneOwner(s.T, s.c)
	eventually(s.T, "the router knows that it is on "+owner, func() bool { at, err := s.r.Route(bucket); return err == nil && at == owner })
	if n := count(s.T, s.r); n != 101 {
		s.Errorf("%d rows are there, want 101", n)
	}
	other := map[string]string{"a": "b", "b": "a"}[owner]
	eventually(s.T, "nothing of it is left on "+other, func() bool {
		switch s.master(other).Storage.BucketRow(bucket).State {
		case shard.Absent, shard.Garbage, shard.Sent:
			return true
		}
		return false
	})
}

func (s *stuck) restart(m *localsets.Member) {
	s.Helper()
	if err := m.Start(testContext(s.T)); err != nil {
		s.Fatal(err)
	}
}

func TestTrouble_theDestinationDies(t *testing.T) {
	s := startStuck(t, 1)
	b := s.master("b")
	b.Kill()
	s.gate.release()
	eventually(t, "the move says what is wrong", func() bool {
		moves := s.master("a").Storage.Moves()
		return len(moves) == 0 || moves[0].GetError() != ""
	})
	s.load.more(t, "it is written while the destination is dead")
	s.wantAlert("b", "")
	s.load.more(t, "it is written still")
	s.restart(b)
	// It has what it took, and the move goes on; unless the source had given up.
	if err := <-s.sent; err != nil {
		t.Logf("the move was undone: %v", err)
		s.wantEnd("a")
		return
	}
	s.wantEnd("b")
}

func TestTrouble_theDestinationDiesInThePause(t *testing.T) {
	g := &gate{}
	c, r := start(t, 1, func(o *localsets.Options) {
		o.Storage = func(so *storage.Options) { so.Link, so.PauseTime = gatedLink{so.Link, g}, time.Second }
	})
	t.Cleanup(g.release)
	fill(t, r, 100, 1000)
	s := &stuck{T: t, c: c, r: r, gate: g, load: startLoad(t, r)}
	t.Cleanup(s.load.end)
	source := s.master("a").Storage
	paused := make(chan struct{}, 100)
	g.hold(func(req *v1.TransferRequest) bool {
		if req.GetFrom() != "a" || source.BucketRow(bucket).State != shard.Sending {
			return false
		}
		paused <- struct{}{}
		return true
	})
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		<-paused
		s.c.Members("b")[0].Kill()
	}()
	// A move of which nothing is left to be sent in the pause is over too quickly.
	for moves := 0; ; moves++ {
		failed, err := r.SendBuckets(testContext(t), []shard.BucketID{bucket}, "b")
		if err != nil {
			t.Fatal(err)
		}
		if failed[bucket] != nil {
			break
		}
		if moves > 50 {
			t.Skip("nothing was written in any of the pauses")
		}
		send(t, r, "a")
	}
	<-killed
	g.release()
	s.load.more(t, "it is written again after the pause was given up")
	s.wantAlert("b", "")
	s.restart(c.Members("b")[0])
	s.wantEnd("a")
}

func TestTrouble_theSourceDies(t *testing.T) {
	s := startStuck(t, 1)
	a := s.master("a")
	a.Kill()
	s.gate.release()
	if err := <-s.sent; err == nil {
		t.Error("the move ended well without its source")
	}
	s.wantAlert("a", "")
	s.restart(a)
	s.load.more(t, "it is written once the source is back")
	s.wantEnd("a")
}

func TestTrouble_theSourcesMasterDies(t *testing.T) {
	s := startStuck(t, 3)
	a := s.master("a")
	a.Kill()
	s.gate.release()
	if err := <-s.sent; err == nil {
		t.Error("the move ended well without who looked after it")
	}
	s.load.more(t, "it is written by a new master")
	s.wantAlert("a", a.ID)
	s.wantEnd("a")
}

func TestTrouble_theDestinationsMasterDies(t *testing.T) {
	s := startStuck(t, 3)
	b := s.master("b")
	b.Kill()
	s.gate.release()
	s.wantAlert("b", b.ID)
	if err := <-s.sent; err != nil {
		t.Errorf("the move does not go on with the new master: %v", err)
	}
	s.wantEnd("b")
}

func TestTrouble_aReplicaOfEachSideDies(t *testing.T) {
	s := startStuck(t, 3)
	ra, rb := s.replica("a"), s.replica("b")
	ra.Kill()
	rb.Kill()
	s.gate.release()
	if err := <-s.sent; err != nil {
		t.Errorf("the move does not go on: %v", err)
	}
	s.wantAlert("a", ra.ID)
	s.wantAlert("b", rb.ID)
	s.wantEnd("b")
}
