package direct_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/switchyard-dev/switchyard"
	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/direct"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/matching/matchingrpc"
	"github.com/switchyard-dev/switchyard/matching/peers"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var plain = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}

// matchingNode is a matching node of a cluster whose nodes are given.
type matchingNode struct {
	engine *matching.Engine
	owners *peers.Static
	calls  atomic.Int64
}

// cluster starts matching nodes over one store, with an internal port each.
func cluster(t *testing.T, names ...string) ([]*matchingNode, []direct.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	reg := storage.NewRegistry()
	matching.RegisterFunctions(reg)
	s, err := storage.Open(ctx, storage.Options{
		Registry: reg, BucketCount: 16, ReplicaSet: "main",
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return raftengine.Open(ctx, raftengine.Options{Memory: true, Machine: m, BucketCount: 16})
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	require.NoError(t, s.Bootstrap(ctx))
	store, err := router.New(router.Options{ReplicaSets: []router.ReplicaSet{s}})
	require.NoError(t, err)
	t.Cleanup(store.Close)

	listeners := make([]net.Listener, len(names))
	nodes := make([]direct.Node, len(names))
	for i, name := range names {
		listeners[i], err = net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		nodes[i] = direct.Node{Name: name, Address: listeners[i].Addr().String()}
	}
	all := make([]*matchingNode, len(names))
	for i := range names {
		n := &matchingNode{}
		n.owners, err = peers.NewStatic(peers.StaticOptions{Nodes: nodes, DialOptions: plain})
		require.NoError(t, err)
		n.engine, err = matching.New(matching.Options{Router: store, Peers: n.owners, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			n.calls.Add(1)
			return next(ctx, req)
		}))
		matchingrpc.Register(server, n.engine, slog.New(slog.DiscardHandler))
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Serve(listeners[i]) }) // ends with Stop
		t.Cleanup(func() {
			require.NoError(t, n.engine.Stop(context.Background()))
			server.Stop()
			wg.Wait()
			require.NoError(t, n.owners.Close())
		})
		all[i] = n
	}
	return all, nodes
}

// client is an SDK client whose tasks go directly; nobody is at the address that it dials.
func client(t *testing.T, nodes []direct.Node) (*switchyard.Client, *direct.Conn) {
	t.Helper()
	conn, err := direct.New(direct.Options{Nodes: nodes, DialOptions: plain, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	c, err := switchyard.Dial("127.0.0.1:1", switchyard.WithDirect(conn), switchyard.WithLogger(nil))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		require.NoError(t, conn.Close())
	})
	return c, conn
}

func TestDirect_tasks_go_to_the_nodes_that_own_the_partitions_without_a_frontend(t *testing.T) {
	nodes, addresses := cluster(t, "a", "b")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := nodes[0].engine.CreateQueue(ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: "q", Config: &v1.QueueConfig{Partitions: 8}})
	require.NoError(t, err)
	c, _ := client(t, addresses)

	const tasks = 300
	var mu sync.Mutex
	done := map[string]int{}
	workCtx, stop := context.WithCancel(ctx)
	worker := switchyard.NewWorker(c, "q", switchyard.HandlerFunc(func(_ context.Context, job *switchyard.Job) error {
		mu.Lock()
		defer mu.Unlock()
		if done[string(job.Payload)]++; len(done) == tasks {
			stop()
		}
		return nil
	}), switchyard.WorkerOptions{})
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(workCtx) }()
	var again switchyard.Task
	for i := range tasks {
		task := switchyard.Task{ID: switchyard.NewID(), Kind: "k", Payload: []byte(fmt.Sprint(i))}
		_, err := c.Add(ctx, "q", task)
		require.NoError(t, err)
		again = task
	}
	result, err := c.Add(ctx, "q", again)
	require.NoError(t, err)
	require.True(t, result.AlreadyAdded, "the same id goes to the same partition")
	require.NoError(t, <-ended)
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, done, tasks)
	for payload, n := range done {
		require.Equal(t, 1, n, payload)
	}
	for i, n := range nodes {
		require.Greater(t, n.calls.Load(), int64(10), "node %d", i)
	}
}

func TestDirect_requests_are_checked_and_queues_are_for_frontends(t *testing.T) {
	nodes, addresses := cluster(t, "a")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := nodes[0].engine.CreateQueue(ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	c, conn := client(t, addresses)
	_, err = c.Add(ctx, "q", switchyard.Task{Kind: ""})
	require.Equal(t, reason.InvalidKind, switchyard.Reason(err))
	_, err = c.Add(ctx, "no spaces", switchyard.Task{Kind: "k"})
	require.Equal(t, reason.InvalidQueueName, switchyard.Reason(err))
	_, err = c.Add(ctx, "nothing", switchyard.Task{Kind: "k"})
	require.True(t, errors.Is(err, switchyard.ErrQueueNotFound), "%v", err)
	_, err = v1.NewQueueServiceClient(conn).ListQueues(ctx, &v1.ListQueuesRequest{})
	require.Equal(t, reason.InvalidRequest, reason.Of(err))
	result, err := c.Add(ctx, "q", switchyard.Task{Kind: "k"})
	require.NoError(t, err)
	info, err := c.TaskService().GetTask(ctx, &v1.GetTaskRequest{Queue: "q", Id: result.ID})
	require.NoError(t, err)
	require.Equal(t, v1.TaskState_TASK_STATE_READY, info.GetTask().GetState())
}

func TestDirect_a_list_without_nodes_is_refused_and_a_new_one_is_followed(t *testing.T) {
	nodes, addresses := cluster(t, "a")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, bad := range [][]direct.Node{nil, {{Name: "", Address: "127.0.0.1:1"}}, {{Name: "a"}}, {{Name: "a", Address: "x:1"}, {Name: "a", Address: "y:1"}}} {
		_, err := direct.New(direct.Options{Nodes: bad, DialOptions: plain})
		require.Error(t, err, "%v", bad)
	}
	_, err := nodes[0].engine.CreateQueue(ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	c, conn := client(t, []direct.Node{{Name: "gone", Address: "127.0.0.1:1"}})
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	_, err = c.Add(short, "q", switchyard.Task{Kind: "k"})
	require.Error(t, err)
	require.Error(t, conn.SetNodes(nil))
	require.NoError(t, conn.SetNodes(addresses))
	_, err = c.Add(ctx, "q", switchyard.Task{Kind: "k"})
	require.NoError(t, err)
}
