package server

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// patience bounds every wait for a condition.
const patience = 60 * time.Second

// testCluster is a cluster of real nodes in this process.
type testCluster struct {
	t     *testing.T
	nodes map[string]*testNode
}

type testNode struct {
	*Server
	member *member
	config Config
	stop   func() error
}

// add starts a node of the roles; with storage it is of the replica set.
func (c *testCluster) add(name, set string, roles ...string) *testNode {
	c.t.Helper()
	config := DefaultConfig()
	config.Listen = "127.0.0.1:0"
	config.Node.Name = name
	config.DataDir = filepath.Join(c.t.TempDir(), "data")
	config.BucketCount = 32
	config.Roles = roles
	config.Cluster.ID = "test"
	config.Cluster.ReplicaSet = set
	config.Cluster.Listen, config.Cluster.Gossip = "127.0.0.1:0", "127.0.0.1:0"
	config.Cluster.AlignChanges = 0
	config.Cluster.Detection = time.Second
	for _, n := range c.nodes {
		config.Cluster.Seeds = append(config.Cluster.Seeds, n.member.members.Address())
	}
	return c.start(config)
}

func (c *testCluster) start(config Config) *testNode {
	c.t.Helper()
	s, err := New(config, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	n := &testNode{Server: s, member: s.core.(*member), config: config}
	n.stop = sync.OnceValue(func() error { cancel(); return <-done })
	c.t.Cleanup(func() {
		if err := n.stop(); err != nil {
			c.t.Errorf("node %s: %v", config.Node.Name, err)
		}
	})
	c.nodes[config.Node.Name] = n
	return n
}

// bootstrap makes replica sets of the nodes; the buckets go to the first.
func (c *testCluster) bootstrap(sets ...[]string) {
	c.t.Helper()
	for i, names := range sets {
		first := c.nodes[names[0]]
		req := &v1.BootstrapStorageRequest{ClusterId: "test", BucketCount: 32, ReplicaSet: first.config.Cluster.ReplicaSet}
		if i == 0 {
			req.Buckets = []*v1.BucketRange{{First: 1, Last: 32}}
		}
		for _, name := range names {
			req.Members = append(req.Members, &v1.StorageMember{Id: name, Address: c.nodes[name].member.address(), Voter: true})
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), patience)
		if err := first.member.storage.BootstrapReplicaSet(ctx, req); err != nil {
			c.t.Fatal(err)
		}
		cancel()
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func newTestCluster(t *testing.T) *testCluster {
	return &testCluster{t: t, nodes: map[string]*testNode{}}
}

// workOff adds n tasks at one node and takes them at another.
func workOff(t *testing.T, at, from *testNode, queue string, n int) {
	t.Helper()
	req := &v1.AddTasksRequest{Queue: queue}
	for i := range n {
		req.Tasks = append(req.Tasks, &v1.TaskSpec{Kind: "k", Payload: fmt.Appendf(nil, "%d", i)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	added, err := v1.NewTaskServiceClient(connect(t, at.Server)).AddTasks(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range added.Results {
		if r.Error != nil {
			t.Fatal(r.Error)
		}
	}
	tasks := v1.NewTaskServiceClient(connect(t, from.Server))
	seen := map[string]bool{}
	for len(seen) < n {
		polled, err := tasks.PollTasks(ctx, &v1.PollTasksRequest{Queue: queue, MaxTasks: 1000, Wait: durationpb.New(5 * time.Second)})
		if err != nil {
			t.Fatalf("after %d tasks: %v", len(seen), err)
		}
		var tokens [][]byte
		for _, task := range polled.Tasks {
			if seen[string(task.Payload)] {
				t.Errorf("task %s came twice", task.Payload)
			}
			seen[string(task.Payload)] = true
			tokens = append(tokens, task.LeaseToken)
		}
		if len(tokens) == 0 {
			continue
		}
		done, err := tasks.CompleteTasks(ctx, &v1.CompleteTasksRequest{Queue: queue, LeaseTokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range done.Results {
			if r.Error != nil {
				t.Error(r.Error)
			}
		}
	}
}

func TestCluster_anyNodeTakesTasksForAll(t *testing.T) {
	c := newTestCluster(t)
	all := []string{RoleFrontend, RoleMatching, RoleStorage}
	for _, name := range []string{"n1", "n2", "n3"} {
		c.add(name, "s1", all...)
	}
	c.bootstrap([]string{"n1", "n2", "n3"})
	for _, n := range c.nodes {
		eventually(t, n.config.Node.Name+" is ready", func() bool { return n.Ready() == nil })
	}
	workOff(t, c.nodes["n1"], c.nodes["n2"], "q", 200)
	workOff(t, c.nodes["n3"], c.nodes["n3"], "q", 200)
}

func TestCluster_rolesOnNodesOfTheirOwn(t *testing.T) {
	c := newTestCluster(t)
	c.add("store", "s1", RoleStorage)
	c.add("match1", "", RoleMatching)
	c.add("match2", "", RoleMatching)
	front := c.add("front", "", RoleFrontend)
	c.bootstrap([]string{"store"})
	eventually(t, "the frontend is ready", func() bool { return front.Ready() == nil })
	workOff(t, front, front, "q", 200)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually(t, "the node without frontend is well", func() bool { return c.nodes["match1"].Ready() == nil })
	_, err := v1.NewTaskServiceClient(connect(t, c.nodes["match1"].Server)).AddTasks(ctx, &v1.AddTasksRequest{Queue: "q", Tasks: []*v1.TaskSpec{{Kind: "k"}}})
	if err == nil {
		t.Error("a node without the role frontend took a task")
	}
}
