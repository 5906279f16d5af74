package matchingrpc_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/matching/matchingrpc"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const buckets = 16

func newStore(t *testing.T, ctx context.Context) *router.Router {
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

// peers spreads partitions over two nodes by their numbers.
type peers struct {
	self  int
	nodes *[2]v1.MatchingServiceServer // what the node itself, or a client of it
	local *[2]*matching.Engine
}

func home(id matching.PartitionID) int { return int(id.Number) % 2 }

func (p peers) Owner(id matching.PartitionID) (v1.MatchingServiceServer, bool, error) {
	if n := home(id); n != p.self {
		return p.nodes[n], false, nil
	}
	return p.local[p.self], true, nil
}

// twoNodes starts two engines over one store that reach each other over gRPC.
func twoNodes(t *testing.T, ctx context.Context) [2]*matching.Engine {
	store := newStore(t, ctx)
	var engines [2]*matching.Engine
	var clients [2]v1.MatchingServiceServer
	for i := range engines {
		e, err := matching.New(matching.Options{Router: store, AutoCreateQueues: true, Peers: peers{i, &clients, &engines},
			Owns: func(id matching.PartitionID) bool { return home(id) == i }})
		require.NoError(t, err)
		engines[i] = e
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		server := grpc.NewServer()
		matchingrpc.Register(server, e, slog.Default())
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(lis)
		}()
		conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		clients[i] = matchingrpc.NewClient(conn)
		t.Cleanup(func() {
			require.NoError(t, e.Stop(context.Background()))
			require.NoError(t, conn.Close())
			server.Stop()
			<-served
		})
	}
	return engines
}

func spec(payload string) *v1.TaskSpec {
	return &v1.TaskSpec{Id: uuid.Must(uuid.NewV7()).String(), Kind: "k", Payload: []byte(payload)}
}

func TestQueue_over_two_nodes_hands_out_what_either_took(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nodes := twoNodes(t, ctx)
	_, err := nodes[0].CreateQueue(ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: "q", Config: &v1.QueueConfig{Partitions: 5}})
	require.NoError(t, err)
	const n = 200
	for i := range n {
		_, err := nodes[i%2].AddTasks(ctx, &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: []*v1.TaskSpec{spec(fmt.Sprint(i))}})
		require.NoError(t, err)
	}
	got := map[string]bool{}
	for i := 0; len(got) < n; i++ {
		node := nodes[i%2]
		resp, err := node.PollTasks(ctx, &v1.PollTasksRequest{Namespace: "default", Queue: "q", Identity: "w", MaxTasks: 7, Wait: durationpb.New(10 * time.Second)})
		require.NoError(t, err)
		require.NotEmpty(t, resp.GetTasks())
		done := &v1.CompleteTasksRequest{Namespace: "default", Queue: "q"}
		for _, task := range resp.GetTasks() {
			require.False(t, got[task.GetId()], "task %s came twice", task.GetId())
			got[task.GetId()] = true
			done.LeaseTokens = append(done.LeaseTokens, task.GetLeaseToken())
		}
		ended, err := node.CompleteTasks(ctx, done)
		require.NoError(t, err)
		for _, r := range ended.GetResults() {
			require.Nil(t, r.GetError())
		}
	}
	d, err := nodes[1].DescribeQueue(ctx, &v1.DescribeQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	require.Len(t, d.GetPartitions(), 5)
	require.Zero(t, d.GetCounts().GetReady()+d.GetCounts().GetLeased())
}

func TestClient_keeps_the_reason_of_an_error(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nodes := twoNodes(t, ctx)
	there, local, err := peers{0, clientsOf(t, nodes), nil}.Owner(matching.PartitionID{Number: 1})
	require.NoError(t, err)
	require.False(t, local)
	_, err = there.PartitionAddTasks(ctx, &v1.PartitionAddTasksRequest{
		Header:  &v1.PartitionHeader{Partition: 2}, // node 1 has the odd ones
		Request: &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: []*v1.TaskSpec{spec("x")}},
	})
	require.Equal(t, reason.PartitionMoved, reason.Of(err))
	_, err = there.PartitionPollTasks(ctx, &v1.PartitionPollTasksRequest{Header: &v1.PartitionHeader{Partition: 1}})
	require.Equal(t, reason.InvalidRequest, reason.Of(err), "a poll without a request is refused")
	_, err = there.PartitionPollTasks(ctx, &v1.PartitionPollTasksRequest{
		Header: &v1.PartitionHeader{Partition: 1, Hop: v1.Hop_HOP_LENT, Source: 0}, Request: &v1.PollTasksRequest{Namespace: "default", Queue: "q", MaxTasks: 1},
	})
	require.Equal(t, reason.InvalidForward, reason.Of(err), "the root lends to nobody")
}

// clientsOf makes the second node look like a remote one, without a wire between.
func clientsOf(t *testing.T, nodes [2]*matching.Engine) *[2]v1.MatchingServiceServer {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	matchingrpc.Register(server, nodes[1], slog.Default())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(lis)
	}()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.Stop()
		<-served
	})
	return &[2]v1.MatchingServiceServer{nil, matchingrpc.NewClient(conn)}
}
