package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// patience bounds every wait for a condition.
const patience = 60 * time.Second

// testCluster is a cluster of real nodes in this process.
type testCluster struct {
	t      *testing.T
	change func(*Config)
	nodes  map[string]*testNode
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
	if c.change != nil {
		c.change(&config)
	}
	return c.start(config)
}

// with says how the nodes that are added differ from the usual ones.
func (c *testCluster) with(change func(*Config)) *testCluster {
	c.change = change
	return c
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

// bootstrap makes the store of the nodes that there are.
func (c *testCluster) bootstrap(at *testNode) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	operators := v1.NewClusterServiceClient(connect(c.t, at.Server))
	eventually(c.t, "the nodes see each other", func() bool { return len(at.member.members.View().Nodes()) == len(c.nodes) })
	if _, err := operators.BootstrapCluster(ctx, &v1.BootstrapClusterRequest{}); err != nil {
		c.t.Fatal(err)
	}
	if _, err := operators.BootstrapCluster(ctx, &v1.BootstrapClusterRequest{}); err == nil {
		c.t.Error("the store was made a second time")
	}
	for _, n := range c.nodes {
		eventually(c.t, n.config.Node.Name+" is ready", func() bool { return n.Ready() == nil })
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

var allRoles = []string{RoleFrontend, RoleMatching, RoleStorage}

func TestCluster_anyNodeTakesTasksForAll(t *testing.T) {
	c := newTestCluster(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		c.add(name, "s1", allRoles...)
	}
	c.bootstrap(c.nodes["n2"])
	workOff(t, c.nodes["n1"], c.nodes["n2"], "q", 200)
	workOff(t, c.nodes["n3"], c.nodes["n3"], "q", 200)
}

func TestCluster_rolesOnNodesOfTheirOwn(t *testing.T) {
	c := newTestCluster(t)
	c.add("store", "s1", RoleStorage)
	c.add("match1", "", RoleMatching)
	c.add("match2", "", RoleMatching)
	front := c.add("front", "", RoleFrontend)
	c.bootstrap(front)
	workOff(t, front, front, "q", 200)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := v1.NewTaskServiceClient(connect(t, c.nodes["match1"].Server)).AddTasks(ctx, &v1.AddTasksRequest{Queue: "q", Tasks: []*v1.TaskSpec{{Kind: "k"}}})
	if reason.Of(err) != reason.NotReady {
		t.Errorf("a node without the role frontend answers %v", err)
	}
}

func TestCluster_anAddedReplicaSetFillsAndADrainedOneCanGo(t *testing.T) {
	c := newTestCluster(t)
	n1 := c.add("n1", "s1", allRoles...)
	c.bootstrap(n1)
	workOff(t, n1, n1, "q", 50)
	n2 := c.add("n2", "s2", allRoles...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	operators := v1.NewClusterServiceClient(connect(t, n1.Server))
	eventually(t, "the new node is seen", func() bool { return len(n1.member.members.View().Nodes()) == 2 })
	if _, err := operators.AddReplicaSet(ctx, &v1.AddReplicaSetRequest{Name: "s2"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "half of the buckets have moved", func() bool {
		return n2.member.storage.BucketCounts()[shard.Active] == 16 && n1.member.storage.BucketCounts()[shard.Active] == 16
	})
	eventually(t, "the new node is ready", func() bool { return n2.Ready() == nil })
	workOff(t, n1, n2, "q", 200)

	weight := 0.0
	if _, err := operators.UpdateReplicaSet(ctx, &v1.UpdateReplicaSetRequest{Name: "s1", Weight: &weight}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all buckets have moved", func() bool { return n2.member.storage.BucketCounts()[shard.Active] == 32 })
	workOff(t, n2, n1, "q", 200)
}

func TestCluster_aNodeLeavesAndComesBack(t *testing.T) {
	c := newTestCluster(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		c.add(name, "s1", allRoles...)
	}
	c.bootstrap(c.nodes["n1"])
	for _, name := range []string{"n1", "n2", "n3"} {
		n := c.nodes[name]
		config := n.config
		config.Listen, config.Cluster.Listen, config.Cluster.Gossip = n.Addr(), n.member.address(), n.member.members.Address()
		config.Cluster.Seeds = nil
		for other, o := range c.nodes {
			if other != name {
				config.Cluster.Seeds = append(config.Cluster.Seeds, o.member.members.Address())
			}
		}
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		delete(c.nodes, name)
		for _, o := range c.nodes {
			workOff(t, o, o, "q", 50)
		}
		back := c.start(config)
		eventually(t, name+" is ready again", func() bool { return back.Ready() == nil })
		workOff(t, back, back, "q", 50)
	}
}

func TestCluster_nodesSpeakMutualTLS(t *testing.T) {
	c := newTestCluster(t)
	files := newCertificates(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		c.with(func(config *Config) { config.Cluster.TLS = files }).add(name, "s1", allRoles...)
	}
	c.bootstrap(c.nodes["n1"])
	workOff(t, c.nodes["n2"], c.nodes["n3"], "q", 100)

	// Who has no certificate gets nothing.
	conn, err := grpc.NewClient(c.nodes["n1"].member.address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := v1.NewStorageServiceClient(conn).StorageInfo(ctx, &v1.StorageInfoRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a certificate: %v", err)
	}
}

func TestCluster_aNodeOfAnotherClusterIsRefused(t *testing.T) {
	c := newTestCluster(t)
	n1 := c.add("n1", "s1", allRoles...)
	for name, change := range map[string]func(*Config){
		"another cluster":      func(config *Config) { config.Cluster.ID = "other" },
		"another bucket_count": func(config *Config) { config.BucketCount = 64 },
	} {
		config := n1.config
		config.Node.Name = "n2"
		config.DataDir = filepath.Join(t.TempDir(), "data")
		config.Cluster.Seeds = []string{n1.member.members.Address()}
		change(&config)
		s, err := New(config, nil)
		if err == nil {
			t.Errorf("%s: it was let in", name)
			_ = s.Close()
			continue
		}
		var refused *membership.RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// newCertificates makes an authority and a certificate for the loopback address.
func newCertificates(t *testing.T) TLSConfig {
	t.Helper()
	dir := t.TempDir()
	files := TLSConfig{Cert: filepath.Join(dir, "node.pem"), Key: filepath.Join(dir, "node.key"), CA: filepath.Join(dir, "ca.pem")}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, kind string, der []byte) {
		check(os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	node := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "node"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	check(err)
	write(files.CA, "CERTIFICATE", der)
	der, err = x509.CreateCertificate(rand.Reader, node, ca, &key.PublicKey, caKey)
	check(err)
	write(files.Cert, "CERTIFICATE", der)
	der, err = x509.MarshalECPrivateKey(key)
	check(err)
	write(files.Key, "EC PRIVATE KEY", der)
	return files
}
