package peers

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/matching/matchingrpc"
	"github.com/switchyard-dev/switchyard/matching/routing"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/membership/ring"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

const patience = 60 * time.Second

// TestMain looks for goroutines that stay; those of gossip end a while after it.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		err := goleak.Find()
		for end := time.Now().Add(patience); err != nil && time.Now().Before(end); err = goleak.Find() {
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

var dial = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}

// counter is an engine that counts how often it is told.
type counter struct {
	v1.UnimplementedMatchingServiceServer
	told atomic.Int64
}

func (c *counter) OwnershipChanged() { c.told.Add(1) }

func node(name string, change ...func(*membership.Node)) membership.Node {
	n := membership.Node{Name: name, Roles: membership.Matching, InternalAddress: "127.0.0.1:1" + name}
	for _, c := range change {
		c(&n)
	}
	return n
}

func newPeers(t *testing.T, o Options, self membership.Node, others ...membership.Node) *Peers {
	m, err := membership.Static(self, others)
	require.NoError(t, err)
	o.Members, o.DialOptions = m, dial
	p, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.NoError(t, m.Close())
	})
	return p
}

func TestOwner_is_that_of_the_ring_of_matching_nodes(t *testing.T) {
	for _, batch := range []int{0, 4} {
		p := newPeers(t, Options{BatchSize: routing.Fixed(batch)}, node("1"), node("2"), node("3", func(n *membership.Node) { n.InternalAddress = "" }),
			node("4", func(n *membership.Node) { n.Roles = membership.Storage }))
		r := ring.New([]string{"1", "2", "3"})
		seen := map[string]int{}
		check := func() {
			for i := range 64 {
				id := matching.PartitionID{Namespace: "n", Queue: fmt.Sprint("q", i/8), Number: int32(i % 8)}
				want, err := routing.Owner(r, routing.Partition{Namespace: "n", Queue: id.Queue, Number: id.Number}, batch)
				require.NoError(t, err)
				seen[want]++
				service, local, err := p.Owner(id)
				require.Equal(t, want == "1", p.Owns(id))
				switch want {
				case "1":
					if p.here.Load() == nil {
						require.Equal(t, reason.NotReady, reason.Of(err), "no engine yet")
						continue
					}
					require.NoError(t, err)
					require.True(t, local)
					require.Same(t, *p.here.Load(), service)
				case "2":
					require.NoError(t, err)
					require.False(t, local)
					require.Same(t, p.now.Load().links["2"].client, service)
				case "3":
					require.Equal(t, reason.NotReady, reason.Of(err), "it has no address")
				}
			}
		}
		check()
		p.Attach(&counter{})
		check()
		require.Len(t, seen, 3)
	}
}

func TestOwner_is_not_known_without_matching_nodes(t *testing.T) {
	p := newPeers(t, Options{}, node("1", func(n *membership.Node) { n.Roles = membership.Storage }))
	_, _, err := p.Owner(matching.PartitionID{Queue: "q"})
	require.Equal(t, reason.NotReady, reason.Of(err))
	require.False(t, p.Owns(matching.PartitionID{Queue: "q"}))
}

func TestConnection_to_a_departed_node_is_closed_later_unless_it_comes_back(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().Unix()
		until := func(stop int64) func(*membership.Node) { return func(n *membership.Node) { n.Stop = now + stop } }
		// 2 goes for good, 3 comes back after 20 s under another name.
		p := newPeers(t, Options{}, node("1"), node("2", until(100)), node("3", until(100)),
			node("again", func(n *membership.Node) { n.Start, n.InternalAddress = now+120, node("3").InternalAddress }))
		e := &counter{}
		p.Attach(e)
		synctest.Wait()
		told := e.told.Load()
		two, three := p.now.Load().links["2"].conn, p.now.Load().links["3"].conn
		time.Sleep(100 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"1"}, p.now.Load().ring.Servers())
		require.Greater(t, e.told.Load(), told, "the engine is told")
		time.Sleep(29 * time.Second)
		synctest.Wait()
		require.NotEqual(t, connectivity.Shutdown, two.GetState())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, connectivity.Shutdown, two.GetState())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.NotEqual(t, connectivity.Shutdown, three.GetState())
		require.Contains(t, p.now.Load().links, "again")
		require.NoError(t, p.Close())
		require.Equal(t, connectivity.Shutdown, three.GetState())
	})
}

func TestEngine_is_told_while_the_batch_size_changes_and_after(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().Add(time.Minute)
		p := newPeers(t, Options{BatchSize: routing.Gradual[int]{Old: 0, New: 8, Start: start, End: start.Add(time.Minute)}}, node("1"), node("2"))
		e := &counter{}
		p.Attach(e)
		time.Sleep(time.Minute)
		synctest.Wait()
		before := e.told.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		during := e.told.Load()
		require.GreaterOrEqual(t, during-before, int64(50))
		time.Sleep(time.Hour)
		synctest.Wait()
		after := e.told.Load() - during
		require.GreaterOrEqual(t, after, int64(1), "the last change is told too")
		require.LessOrEqual(t, after, int64(5), "and then no more")
		require.NoError(t, p.Close())
	})
}

func TestNew_refuses_what_can_not_be(t *testing.T) {
	m, err := membership.Single(node("1"))
	require.NoError(t, err)
	for _, o := range []Options{
		{DialOptions: dial}, {Members: m},
		{Members: m, DialOptions: dial, BatchSize: routing.Fixed(-1)},
		{Members: m, DialOptions: dial, BatchSize: routing.Fixed(routing.MaxBatchSize + 1)},
	} {
		_, err := New(o)
		require.Error(t, err)
	}
	require.NoError(t, m.Close())
}

// member is one node of a real cluster.
type member struct {
	members *membership.Membership
	peers   *Peers
	engine  *matching.Engine
	end     func()
}

func newStore(t *testing.T, ctx context.Context) *router.Router {
	const buckets = 16
	reg := storage.NewRegistry()
	matching.RegisterFunctions(reg)
	s, err := storage.Open(ctx, storage.Options{
		Registry: reg, BucketCount: buckets, ReplicaSet: "main",
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return raftengine.Open(ctx, raftengine.Options{Memory: true, Machine: m, BucketCount: buckets})
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	require.NoError(t, s.Bootstrap(ctx))
	r, err := router.New(router.Options{ReplicaSets: []router.ReplicaSet{s}})
	require.NoError(t, err)
	return r
}

func startMember(t *testing.T, ctx context.Context, store *router.Router, name string, seeds ...string) *member {
	quiet := slog.New(slog.DiscardHandler)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m := &member{}
	m.members, err = membership.Start(ctx, membership.Options{
		Self:  node(name, func(n *membership.Node) { n.ClusterID, n.InternalAddress = "c", lis.Addr().String() }),
		Seeds: seeds, Detection: 20 * time.Second, // nobody crashes
		Logger: quiet,
	})
	require.NoError(t, err)
	m.peers, err = New(Options{Members: m.members, DialOptions: dial, BatchSize: routing.Fixed(4), CloseDelay: 10 * time.Millisecond, Logger: quiet})
	require.NoError(t, err)
	m.engine, err = matching.New(matching.Options{
		Router: store, AutoCreateQueues: true, Logger: quiet, OwnershipDelay: time.Millisecond, Peers: m.peers, Owns: m.peers.Owns,
	})
	require.NoError(t, err)
	m.peers.Attach(m.engine)
	server := grpc.NewServer()
	matchingrpc.Register(server, m.engine, quiet)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(lis)
	}()
	ended := false
	m.end = func() {
		if ended {
			return
		}
		ended = true
		require.NoError(t, m.engine.Stop(context.Background()))
		require.NoError(t, m.peers.Close())
		server.Stop()
		<-served
		require.NoError(t, m.members.Close())
	}
	t.Cleanup(m.end)
	return m
}

// sees waits until a member's ring has so many nodes.
func (m *member) sees(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return m.peers.now.Load().ring.Len() == n }, patience, 5*time.Millisecond)
}

func TestQueue_outlives_a_node_that_leaves(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	store := newStore(t, ctx)
	a := startMember(t, ctx, store, "a")
	b := startMember(t, ctx, store, "b", a.members.Address())
	c := startMember(t, ctx, store, "c", a.members.Address())
	for _, m := range []*member{a, b, c} {
		m.sees(t, 3)
	}
	_, err := a.engine.CreateQueue(ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: "q", Config: &v1.QueueConfig{Partitions: 4}})
	require.NoError(t, err)
	owned := 0
	for n := range int32(4) {
		if c.peers.Owns(matching.PartitionID{Namespace: "default", Queue: "q", Number: n}) {
			owned++
		}
	}
	require.NotZero(t, owned, "spread over three nodes, each has some of four")
	const tasks = 60
	for i := range tasks {
		_, err := []*member{a, b, c}[i%3].engine.AddTasks(ctx, &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: []*v1.TaskSpec{
			{Id: uuid.Must(uuid.NewV7()).String(), Kind: "k", Payload: []byte(fmt.Sprint(i))},
		}})
		require.NoError(t, err)
	}
	require.NoError(t, c.members.Leave(ctx))
	a.sees(t, 2)
	b.sees(t, 2)
	c.end()
	got := map[string]bool{}
	for i := 0; len(got) < tasks; i++ {
		require.NoError(t, ctx.Err(), "only %d tasks came", len(got))
		e := []*member{a, b}[i%2].engine
		resp, err := e.PollTasks(ctx, &v1.PollTasksRequest{Namespace: "default", Queue: "q", Identity: "w", MaxTasks: 10, Wait: durationpb.New(time.Second)})
		if r := reason.Of(err); r == reason.PartitionMoved || r == reason.NotReady {
			continue // the other one has not heard of it yet
		}
		require.NoError(t, err)
		done := &v1.CompleteTasksRequest{Namespace: "default", Queue: "q"}
		for _, task := range resp.GetTasks() {
			require.False(t, got[task.GetId()], "a task came twice")
			got[task.GetId()] = true
			done.LeaseTokens = append(done.LeaseTokens, task.GetLeaseToken())
		}
		if len(done.LeaseTokens) == 0 {
			continue
		}
		ended, err := e.CompleteTasks(ctx, done)
		require.NoError(t, err)
		for _, r := range ended.GetResults() {
			require.Nil(t, r.GetError())
		}
	}
}
