package admin

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testBuckets = 24

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until f is true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in 30 s not: %s", what)
		}
	}
}

// testCluster is a number of replica sets, and the service of one of the nodes over gRPC.
type testCluster struct {
	*localsets.Cluster
	service *Service
	client  v1.ClusterServiceClient
}

// clusterOptions say what a test wants besides.
type clusterOptions struct {
	localsets.Options
	// up are the nodes that the membership shows; nil for all.
	up func(node string) bool
	// more nodes that the membership shows.
	more []membership.Node
	// change changes a node that it shows.
	change func(*membership.Node)
}

// newCluster starts replica sets and serves the cluster from a node of the first.
func newCluster(t *testing.T, o clusterOptions) *testCluster {
	t.Helper()
	ctx := testContext(t)
	o.Engine = raftengine.Options{Memory: true, HeartbeatTimeout: 3 * time.Second, ElectionTimeout: 3 * time.Second, MaxArgs: o.Engine.MaxArgs}
	if o.Buckets == 0 {
		o.Buckets = testBuckets
	}
	c, err := localsets.Start(ctx, o.Options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return serve(t, c, o)
}

func serve(t *testing.T, c *localsets.Cluster, o clusterOptions) *testCluster {
	t.Helper()
	nodes := o.more
	for _, set := range o.Sets {
		for _, m := range c.Members(set) {
			n := membership.Node{
				Name: m.ID, ClusterID: localsets.ClusterID, BucketCount: o.Buckets, Roles: membership.Storage | membership.Frontend,
				InternalAddress: m.Address, ReplicaSet: set, Member: m.ID, Zone: "z" + m.ID[1:],
			}
			if o.change != nil {
				o.change(&n)
			}
			if o.up == nil || o.up(n.Name) {
				nodes = append(nodes, n)
			}
		}
	}
	members, err := membership.Static(nodes[0], nodes[1:])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = members.Close() })
	s, err := New(Options{Router: c.Members(o.Sets[0])[0].Router, Members: members, ClusterID: localsets.ClusterID})
	if err != nil {
		t.Fatal(err)
	}
	return &testCluster{Cluster: c, service: s, client: dial(t, s)}
}

// dial serves a service over loopback and returns a client of it.
func dial(t *testing.T, s *Service) v1.ClusterServiceClient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	s.Register(g)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(l) // ends with Stop
	}()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		<-served
	})
	return v1.NewClusterServiceClient(conn)
}

// owners counts the buckets of each set.
func (c *testCluster) owners(t *testing.T) map[string]int {
	t.Helper()
	resp, err := c.client.DescribeBuckets(testContext(t), &v1.DescribeBucketsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, p := range resp.GetPlaces() {
		switch p.GetState() {
		case "ACTIVE", "PINNED", "READONLY", "SENDING":
			out[p.GetReplicaSet()] += int(p.GetLast() - p.GetFirst() + 1)
		}
	}
	return out
}

// send moves buckets and returns the last response and all failures.
func (c *testCluster) send(t *testing.T, set string, spans ...*v1.BucketSpan) (last *v1.MoveBucketsResponse, failed []*v1.BucketFailure, err error) {
	t.Helper()
	stream, err := c.client.MoveBuckets(testContext(t), &v1.MoveBucketsRequest{Buckets: spans, ReplicaSet: set})
	if err != nil {
		return nil, nil, err
	}
	err = each(stream, func(resp *v1.MoveBucketsResponse) error {
		last = resp
		failed = append(failed, resp.GetFailed()...)
		return nil
	})
	return last, failed, err
}

// check checks the store and returns what was found.
func (c *testCluster) check(t *testing.T, req *v1.CheckStoreRequest) (found []*v1.StoreFinding, sum *v1.CheckStoreSummary) {
	t.Helper()
	stream, err := c.client.CheckStore(testContext(t), req)
	if err != nil {
		t.Fatal(err)
	}
	err = each(stream, func(resp *v1.CheckStoreResponse) error {
		found = append(found, resp.GetFindings()...)
		sum = resp.GetSummary()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sum == nil {
		t.Fatal("the check ended without a summary")
	}
	return found, sum
}

// checkUntil checks the store until what is found is as it should be: on a slow machine a member may
// not answer in time.
func (c *testCluster) checkUntil(t *testing.T, what string, req *v1.CheckStoreRequest, ok func([]*v1.StoreFinding, *v1.CheckStoreSummary) bool) {
	t.Helper()
	var found []*v1.StoreFinding
	var sum *v1.CheckStoreSummary
	for end := time.Now().Add(30 * time.Second); ; {
		if found, sum = c.check(t, req); ok(found, sum) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v, %v", what, sum, found)
		}
	}
}

// clean is a check that finds nothing.
func clean(found []*v1.StoreFinding, sum *v1.CheckStoreSummary) bool {
	return sum.GetOk() && len(found) == 0
}

func spans(first, last uint32) *v1.BucketSpan { return &v1.BucketSpan{First: first, Last: last} }
