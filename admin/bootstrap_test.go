package admin

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
)

// wantReason checks the name and the code of an error.
func wantReason(t *testing.T, err error, code codes.Code, name shard.Code, says ...string) {
	t.Helper()
	if reason.Of(err) != name.String() || status.Code(err) != code {
		t.Fatalf("the error is %v with reason %q and code %v, want %v and %v", err, reason.Of(err), status.Code(err), name, code)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q is not in: %v", s, err)
		}
	}
}

func TestBootstrap_makesEverySetWithItsMembersAndShare(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a", "b"}, Members: 3, Bare: true}})
	ctx := testContext(t)
	req := &v1.BootstrapClusterRequest{ReplicaSets: 2, Members: 3, Weights: map[string]float64{"b": 3}, DryRun: true}
	resp, err := c.client.BootstrapCluster(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.GetReplicaSets()) != 2 || len(resp.GetReplicaSets()[0].GetMembers()) != 3 || resp.GetReplicaSets()[1].GetBucketCount() != 18 {
		t.Fatalf("the plan is %v", resp)
	}
	if n := c.owners(t); len(n) != 0 {
		t.Fatalf("a dry run made buckets: %v", n)
	}
	req.DryRun = false
	if _, err := c.client.BootstrapCluster(ctx, req); err != nil {
		t.Fatal(err)
	}
	if n := c.owners(t); n["a"] != 6 || n["b"] != 18 {
		t.Errorf("the sets have %v buckets", n)
	}
	eventually(t, "all is well", func() bool {
		info, err := c.client.DescribeStore(ctx, &v1.DescribeStoreRequest{})
		return err == nil && info.GetLevel() == "green" && len(info.GetReplicaSets()) == 2 && info.GetReplicaSets()[0].GetMaster() != "" &&
			info.GetReplicaSets()[1].GetWeight() == 3 && info.GetReplicaSets()[1].GetPerfect() == 18
	})
	for _, set := range []string{"a", "b"} {
		m, err := c.Master(ctx, set)
		if err != nil {
			t.Fatal(err)
		}
		st := m.Storage.Status()
		if len(st.Members) != 3 || slices.ContainsFunc(st.Members, func(m engine.Member) bool { return !m.Voter }) || !slices.Equal(m.Storage.KnownReplicaSets(), []string{"a", "b"}) {
			t.Errorf("%s has members %v and knows %v", set, st.Members, m.Storage.KnownReplicaSets())
		}
	}
	for range 2 {
		_, err = c.client.BootstrapCluster(ctx, req)
		wantReason(t, err, codes.AlreadyExists, shard.NonEmpty)
	}
	c.checkUntil(t, "check", &v1.CheckStoreRequest{}, func(found []*v1.StoreFinding, sum *v1.CheckStoreSummary) bool {
		return clean(found, sum) && sum.GetMembers() == 6
	})
}

func TestBootstrap_goesOnWhereItWasCutShort(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a", "b", "c"}, Bare: true}})
	ctx := testContext(t)
	plans, err := c.service.plan(ctx, Wanted{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.service.make(ctx, plans[1], []string{"a", "b", "c"}); err != nil {
		t.Fatal(err)
	}
	// And another one up to its group.
	m := c.Members("c")[0]
	if err := m.Engine.Bootstrap(ctx, []engine.Member{{ID: m.ID, Address: m.Address, Voter: true}}); err != nil {
		t.Fatal(err)
	}
	resp, err := c.client.BootstrapCluster(ctx, &v1.BootstrapClusterRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !resp.GetReplicaSets()[1].GetDone() || resp.GetReplicaSets()[0].GetDone() {
		t.Errorf("it does not say what was done before: %v", resp)
	}
	if n := c.owners(t); n["a"] != 8 || n["b"] != 8 || n["c"] != 8 {
		t.Errorf("the sets have %v buckets", n)
	}
	c.checkUntil(t, "check", &v1.CheckStoreRequest{}, clean)
}

func TestBootstrap_refusesWhatIsNotExpected(t *testing.T) {
	o := clusterOptions{Options: localsets.Options{Sets: []string{"a", "b"}, Members: 2, Bare: true}, up: func(n string) bool { return n != "b2" }}
	c := newCluster(t, o)
	for name, x := range map[string]struct {
		req  *v1.BootstrapClusterRequest
		code codes.Code
		name shard.Code
		says string
	}{
		"a member is not up":      {&v1.BootstrapClusterRequest{Members: 2}, codes.InvalidArgument, shard.InvalidConfig, "b1"},
		"a set is not up":         {&v1.BootstrapClusterRequest{ReplicaSets: 3}, codes.InvalidArgument, shard.InvalidConfig, "a, b"},
		"a weight below zero":     {&v1.BootstrapClusterRequest{Weights: map[string]float64{"a": -1}}, codes.InvalidArgument, shard.InvalidConfig, "-1"},
		"no weight above zero":    {&v1.BootstrapClusterRequest{Weights: map[string]float64{"a": 0, "b": 0}}, codes.InvalidArgument, shard.InvalidConfig, "weights"},
		"a weight of no set":      {&v1.BootstrapClusterRequest{Weights: map[string]float64{"x": 1}}, codes.NotFound, shard.NoSuchReplicaSet, "a, b"},
		"a number that cannot be": {&v1.BootstrapClusterRequest{ReplicaSets: -1}, codes.InvalidArgument, shard.InvalidConfig, "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.client.BootstrapCluster(testContext(t), x.req)
			wantReason(t, err, x.code, x.name, x.says)
			if n := c.owners(t); len(n) != 0 {
				t.Errorf("it made buckets: %v", n)
			}
		})
	}
}

func TestBootstrap_everyMemberMustAnswer(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a", "b"}, Members: 2, Bare: true}})
	c.Members("b")[1].Kill()
	_, err := c.client.BootstrapCluster(testContext(t), &v1.BootstrapClusterRequest{})
	wantReason(t, err, codes.Unavailable, shard.UnreachableReplica, "b2")
	if n := c.owners(t); len(n) != 0 {
		t.Errorf("it made buckets: %v", n)
	}
}

func TestBootstrap_aNodeByItselfHasItsStore(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a"}}})
	s, err := New(Options{Router: c.Members("a")[0].Router})
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, s)
	_, err = client.BootstrapCluster(testContext(t), &v1.BootstrapClusterRequest{})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, "by itself")
	if resp, err := client.DescribeCluster(testContext(t), &v1.DescribeClusterRequest{}); err != nil || len(resp.GetNodes()) != 1 || resp.GetNodes()[0].GetMemberState() != "master" {
		t.Errorf("%v, %v", resp, err)
	}
}

func node(name, set string, roles membership.Role) membership.Node {
	return membership.Node{Name: name, ClusterID: "c", ReplicaSet: set, Roles: roles, InternalAddress: name + ":1"}
}

func TestGroup_namesWhatIsWrongWithANode(t *testing.T) {
	a, b := node("n1", "a", membership.Storage), node("n2", "b", membership.Storage)
	sets, err := group([]membership.Node{a, b, node("n3", "", membership.Frontend)})
	if err != nil || len(sets) != 2 {
		t.Fatalf("%v, %v", sets, err)
	}
	for name, change := range map[string]func(*membership.Node){
		"no replica set": func(n *membership.Node) { n.ReplicaSet = "" },
		"no address":     func(n *membership.Node) { n.InternalAddress = "" },
		"same address":   func(n *membership.Node) { n.InternalAddress = a.InternalAddress },
		"another member": func(n *membership.Node) { n.Member = "x" },
	} {
		bad := b
		change(&bad)
		if _, err := group([]membership.Node{a, bad}); !errors.Is(err, shard.InvalidConfig) || !strings.Contains(err.Error(), "n2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func buckets(first, last int) (out []shard.BucketID) {
	for b := first; b <= last; b++ {
		out = append(out, shard.BucketID(b))
	}
	return out
}

func TestPlan_dealsOutWhatNobodyHas(t *testing.T) {
	for name, x := range map[string]struct {
		found map[string]Found
		want  map[string]int
		code  shard.Code
		says  string
	}{
		"a new cluster": {map[string]Found{"a": {}, "b": {}, "c": {}}, map[string]int{"a": 34, "b": 33, "c": 33}, 0, ""},
		"cut short after one": {
			map[string]Found{"a": {ClusterID: "c", Known: []string{"a", "b", "c"}, Buckets: buckets(1, 33)}, "b": {}, "c": {}},
			map[string]int{"a": 33, "b": 34, "c": 33}, 0, "",
		},
		"cut short between the buckets and the id": {
			map[string]Found{"a": {ClusterID: "c", Known: []string{"a", "b", "c"}, Buckets: buckets(1, 33)}, "b": {Buckets: buckets(34, 66)}, "c": {}},
			map[string]int{"a": 33, "b": 33, "c": 34}, 0, "",
		},
		"only the last id is missing": {
			map[string]Found{"a": {ClusterID: "c", Known: []string{"a", "b"}, Buckets: buckets(1, 50)}, "b": {Buckets: buckets(51, 100)}},
			map[string]int{"a": 50, "b": 50}, 0, "",
		},
		"a node that ran by itself": {map[string]Found{"a": {Buckets: buckets(1, 100)}, "b": {}}, map[string]int{"a": 100, "b": 0}, 0, ""},
		"all is done": {
			map[string]Found{"a": {ClusterID: "c", Known: []string{"a"}, Buckets: buckets(1, 100)}}, nil, shard.NonEmpty, "all 1",
		},
		"one came later": {
			map[string]Found{"a": {ClusterID: "c", Known: []string{"a"}, Buckets: buckets(1, 100)}, "b": {}}, nil, shard.NonEmpty, "add-set b",
		},
		"one came in the middle": {
			map[string]Found{"a": {ClusterID: "c", Known: []string{"a", "b"}, Buckets: buckets(1, 50)}, "b": {}, "d": {}}, nil, shard.NonEmpty, "d",
		},
		"the owner of what is missing is not there": {
			map[string]Found{"a": {ClusterID: "c", Known: []string{"a", "b", "c"}, Buckets: buckets(1, 50)}, "c": {}}, nil, shard.NonEmpty, "replica set b",
		},
		"two nodes that ran by themselves": {
			map[string]Found{"a": {Buckets: buckets(1, 100)}, "b": {Buckets: buckets(1, 100)}}, nil, shard.NonEmpty, "has the bucket too",
		},
		"another cluster's": {map[string]Found{"a": {ClusterID: "x", Buckets: buckets(1, 100)}, "b": {}}, nil, shard.InvalidConfig, "cluster x"},
	} {
		plans, err := Plan("c", 100, Wanted{}, x.found)
		if x.code != 0 {
			if !errors.Is(err, x.code) || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		owner := map[shard.BucketID]string{}
		got := map[string]int{}
		for _, p := range plans {
			got[p.Name] = len(p.Buckets)
			for _, b := range p.Buckets {
				if owner[b] != "" {
					t.Errorf("%s: bucket %d is given to %s and %s", name, b, owner[b], p.Name)
				}
				owner[b] = p.Name
			}
			for _, b := range x.found[p.Name].Buckets {
				if owner[b] != p.Name {
					t.Errorf("%s: bucket %d is taken from %s", name, b, p.Name)
				}
			}
		}
		if len(owner) != 100 || !maps.Equal(got, x.want) {
			t.Errorf("%s: %v, %d in all", name, got, len(owner))
		}
	}
}
