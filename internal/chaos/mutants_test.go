package chaos

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// The tests of this file seed a bug and look whether the checker sees it. Each has a control:
// the same story without the bug must be right. On a busy machine a story can go another way,
// such as by an election that nobody wanted, and the bug does no harm; then it is told again.

// storyTries is how often a story with a bug is told.
const storyTries = 10

// seen tells a story with a bug until the checker sees it.
func seen(t *testing.T, wrap func(*storage.Storage) storagerpc.Storage, tell func(t *testing.T, s *stage)) bool {
	t.Helper()
	for range storyTries {
		if !story(t, wrap, tell) {
			return true
		}
	}
	return false
}

// story runs a fixed sequence against one replica set of three, and says whether its history is
// linearizable.
func story(t *testing.T, wrap func(*storage.Storage) storagerpc.Storage, tell func(t *testing.T, s *stage)) (right bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c, err := newCluster(ctx, options{dir: t.TempDir(), sets: 1, members: 3, wrap: wrap})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	s := &stage{t: t, ctx: ctx, c: c, l: &load{c: c, h: newHistory(), mode: router.CallMR}}
	tell(t, s)
	v, err := s.l.h.check(30*time.Second, "")
	if err != nil || len(v.unclear) > 0 {
		t.Fatalf("%+v, %v", v, err)
	}
	return len(v.bad) == 0
}

// stage is where a story is told.
type stage struct {
	t   *testing.T
	ctx context.Context
	c   *cluster
	l   *load
	n   int
}

// do carries out an operation through a router until it succeeds.
func (s *stage) do(r *router.Router, op operation) operation {
	s.t.Helper()
	op.Key = "k"
	for {
		s.n++
		op.Client = s.n
		try, cancel := context.WithTimeout(s.ctx, 10*time.Second)
		out := s.l.run(try, r, op)
		cancel()
		if out.Err == "" {
			return out
		}
		if s.ctx.Err() != nil {
			s.t.Fatalf("%s: %s", op.Func, out.Err)
		}
	}
}

func (s *stage) put(r *router.Router, value string) {
	s.t.Helper()
	s.do(r, operation{Func: storage.KVPut, Value: value})
}

func (s *stage) get(r *router.Router) string {
	s.t.Helper()
	return s.do(r, operation{Func: storage.KVGet}).Found
}

// master waits for a master other than those named.
func (s *stage) master(but ...string) *node {
	s.t.Helper()
	var found *node
	s.eventually("there is a master", func() bool {
		for _, n := range s.c.nodes {
			if p := n.process(); p != nil && p.store.Status().State == engine.Master {
				found = n
				for _, id := range but {
					if n.id == id {
						found = nil
					}
				}
				if found != nil {
					return true
				}
			}
		}
		return false
	})
	return found
}

func (s *stage) eventually(what string, ok func() bool) {
	s.t.Helper()
	for !ok() {
		if !pause(s.ctx, 5*time.Millisecond) {
			s.t.Fatalf("timed out waiting: %s", what)
		}
	}
}

func (s *stage) rest(of *node) (ids []string) {
	for _, n := range s.c.nodes {
		if n != of {
			ids = append(ids, n.id)
		}
	}
	return ids
}

// TestChecker_seesReadsFromReplicas: reads go to replicas instead of the master.
func TestChecker_seesReadsFromReplicas(t *testing.T) {
	tell := func(mode router.Mode) func(*testing.T, *stage) {
		return func(t *testing.T, s *stage) {
			s.l.mode = mode
			client := s.c.clients[0]
			s.put(client, "old")
			m := s.master()
			// One replica hears nothing of its master, and the client reads there.
			far := s.rest(m)[0]
			for _, n := range s.c.nodes {
				if n.id == far {
					s.eventually("the replica has the first value", func() bool {
						return n.process().store.Status().Applied == m.process().store.Status().Applied
					})
				}
			}
			heal := s.c.net.stall([][2]string{{m.id, far}})
			defer heal()
			s.put(client, "new")
			for range 40 {
				s.get(client)
			}
		}
	}
	if !story(t, nil, tell(router.CallMR)) {
		t.Error("reads of the master are said to be wrong")
	}
	if !seen(t, nil, tell(router.CallBRE)) {
		t.Error("stale reads of a replica were not seen")
	}
}

// noBarrier answers reads of the master without asking the others whether it still is.
type noBarrier struct{ *storage.Storage }

func (s noBarrier) Read(ctx context.Context, b shard.BucketID, fn string, args []byte) ([]byte, error) {
	return s.ReadAny(ctx, b, fn, args)
}

// TestChecker_seesReadsOfAFormerMaster: a master that is cut off goes on answering reads.
func TestChecker_seesReadsOfAFormerMaster(t *testing.T) {
	tell := func(t *testing.T, s *stage) {
		client := s.c.clients[0]
		s.put(client, "old")
		m := s.master()
		heal := s.c.net.stall(between([]string{m.id}, append(s.rest(m), clientName(0))))
		defer heal()
		s.master(m.id)
		s.put(client, "new")
		// Somebody on the node that is cut off, who has not heard of the change, asks it.
		try, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		op := operation{Client: 1000, Key: "k", Func: storage.KVGet, Call: s.l.h.now()}
		result, err := m.process().served.Read(try, bucketOf(op.Key), op.Func, storage.KVGetArgs([]byte(op.Key)))
		if err == nil {
			var v []byte
			if v, _, err = storage.KVGetResult(result); err != nil {
				t.Fatal(err)
			}
			op.Found, op.End = string(v), s.l.h.now()
			s.l.h.add(op)
		}
		s.get(client)
	}
	if !story(t, nil, tell) {
		t.Error("reads behind a barrier are said to be wrong")
	}
	if !seen(t, func(s *storage.Storage) storagerpc.Storage { return noBarrier{s} }, tell) {
		t.Error("a stale read of a former master was not seen")
	}
}

// early acknowledges writes before a majority has them.
type early struct {
	*storage.Storage
	on *atomic.Bool
}

func (s early) WriteAsync(b shard.BucketID, fn string, args []byte, done func([]byte, error)) {
	if s.on.Load() && fn == storage.KVPut && s.Status().State == engine.Master {
		s.Storage.WriteAsync(b, fn, args, func([]byte, error) {})
		go done(nil, nil)
		return
	}
	s.Storage.WriteAsync(b, fn, args, done)
}

// TestChecker_seesEarlyAcknowledgement: a master acknowledges a write, and is killed before
// anybody else has it.
func TestChecker_seesEarlyAcknowledgement(t *testing.T) {
	var on atomic.Bool
	tell := func(bug bool, patience time.Duration) func(*testing.T, *stage) {
		return func(t *testing.T, s *stage) {
			on.Store(false)
			client := s.c.clients[0]
			s.put(client, "old")
			m := s.master()
			on.Store(bug)
			// What it says to the others does not reach them.
			var ways [][2]string
			for _, id := range s.rest(m) {
				ways = append(ways, [2]string{m.id, id})
			}
			heal := s.c.net.stall(ways)
			try, cancel := context.WithTimeout(s.ctx, patience)
			s.l.run(try, client, operation{Client: 1000, Key: "k", Func: storage.KVPut, Value: "new"})
			cancel()
			if _, err := m.kill(nil); err != nil {
				t.Fatal(err)
			}
			heal()
			s.master(m.id)
			on.Store(false)
			s.get(client)
		}
	}
	wrap := func(s *storage.Storage) storagerpc.Storage { return early{s, &on} }
	if !story(t, wrap, tell(false, 200*time.Millisecond)) {
		t.Error("without the bug the history is said to be wrong")
	}
	if !seen(t, wrap, tell(true, 10*time.Second)) {
		t.Error("a write that was acknowledged too early was not missed")
	}
}

// TestChecker_seesFaultsInHistories: the model refuses small histories that cannot be, and
// takes what may be when an outcome is unknown.
func TestChecker_seesFaultsInHistories(t *testing.T) {
	put := func(v string) operation { return operation{Func: storage.KVPut, Value: v} }
	get := func(v string) operation { return operation{Func: storage.KVGet, Found: v} }
	cas := func(from, to string, done bool, found string) operation {
		return operation{Func: storage.KVCAS, Expected: from, Value: to, Done: done, Found: found}
	}
	unknown := func(op operation) operation { op.Unknown = true; return op }
	for i, c := range []struct {
		ops   []operation
		right bool
	}{
		{[]operation{put("1"), get("1")}, true},
		{[]operation{put("1"), get("")}, false},
		{[]operation{put("1"), put("2"), get("1")}, false},
		{[]operation{put("1"), unknown(put("2")), get("1"), get("2")}, true},
		{[]operation{put("1"), unknown(put("2")), get("2"), get("1")}, false},
		{[]operation{put("1"), unknown(put("2")), get("1"), get("1")}, true},
		{[]operation{put("1"), cas("1", "2", true, "1"), cas("1", "3", true, "1")}, false},
		{[]operation{put("1"), unknown(cas("1", "2", false, "")), cas("1", "3", false, "2")}, true},
		{[]operation{put("1"), {Func: storage.KVDelete, Done: true}, get("")}, true},
		{[]operation{put("1"), {Func: storage.KVDelete, Done: false}}, false},
		{[]operation{get("from nowhere")}, false},
	} {
		h := newHistory()
		for n, op := range c.ops {
			op.Key, op.Call, op.End, op.Client = "k", int64(10*n), int64(10*n+5), n
			h.add(op)
		}
		if v, err := h.check(10*time.Second, ""); err != nil || (len(v.bad) == 0) != c.right {
			t.Errorf("history %d: %+v, %v; right is %v", i, v, err, c.right)
		}
	}
}

// TestChecker_writesDownWhatIsWrong: a history that cannot be is kept with a picture.
func TestChecker_writesDownWhatIsWrong(t *testing.T) {
	h, dir := newHistory(), t.TempDir()
	h.add(operation{Key: "k", Func: storage.KVGet, Found: "1", Call: 1, End: 2})
	if _, err := h.check(10*time.Second, dir); err != nil {
		t.Fatal(err)
	}
	for _, ext := range []string{".json", ".html"} {
		if b := mustRead(t, fmt.Sprintf("%s/key-%x%s", dir, "k", ext)); len(b) == 0 {
			t.Errorf("nothing in the %s", ext)
		}
	}
}
