package admin

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/internal/localsets"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func TestMembers_comeGoAndHandOver(t *testing.T) {
	o := clusterOptions{Options: localsets.Options{Sets: []string{"a"}, Members: 3, Bare: true}, up: func(n string) bool { return n != "a3" }}
	c := newCluster(t, o)
	ctx := testContext(t)
	if _, err := c.client.BootstrapCluster(ctx, &v1.BootstrapClusterRequest{ReplicaSets: 1, Members: 2}); err != nil {
		t.Fatal(err)
	}
	_, err := c.client.AddReplica(ctx, &v1.AddReplicaRequest{ReplicaSet: "a", Node: "a3"})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, "no node a3")
	// Its node is up now, and two others that cannot be members.
	o.up = nil
	o.Buckets = testBuckets
	o.more = []membership.Node{
		{Name: "f1", ClusterID: localsets.ClusterID, Roles: membership.Frontend},
		{Name: "z1", ClusterID: localsets.ClusterID, Roles: membership.Storage, ReplicaSet: "z", InternalAddress: "127.0.0.1:1"},
	}
	c = serve(t, c.Cluster, o)
	for node, says := range map[string]string{"f1": "role storage", "z1": "replica set z"} {
		_, err := c.client.AddReplica(ctx, &v1.AddReplicaRequest{ReplicaSet: "a", Node: node})
		wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, says)
	}
	_, err = c.client.AddReplica(ctx, &v1.AddReplicaRequest{ReplicaSet: "x", Node: "a3"})
	wantReason(t, err, codes.NotFound, shard.NoSuchReplicaSet)
	c.checkUntil(t, "a node that is no member yet", &v1.CheckStoreRequest{OwnersOnly: true}, func(found []*v1.StoreFinding, _ *v1.CheckStoreSummary) bool {
		return len(found) == 1 && found[0].GetKind() == kindStranger && found[0].GetMember() == "a3"
	})
	if _, err := c.client.AddReplica(ctx, &v1.AddReplicaRequest{ReplicaSet: "a", Node: "a3"}); err != nil {
		t.Fatal(err)
	}
	members := func() map[string]string {
		info, err := c.client.DescribeStore(ctx, &v1.DescribeStoreRequest{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, m := range info.GetReplicaSets()[0].GetMembers() {
			if m.GetVoter() {
				out[m.GetId()] = m.GetState()
			}
		}
		return out
	}
	eventually(t, "there are three", func() bool { m := members(); return len(m) == 3 && m["a3"] == "replica" })
	resp, err := c.client.ChangeMaster(ctx, &v1.ChangeMasterRequest{ReplicaSet: "a", Node: "a3"})
	if err != nil || resp.GetMaster() != "a3" {
		t.Fatalf("%v, %v", resp, err)
	}
	_, err = c.client.ChangeMaster(ctx, &v1.ChangeMasterRequest{ReplicaSet: "a", Node: "x"})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, "no member x")
	if resp, err := c.client.ChangeMaster(ctx, &v1.ChangeMasterRequest{ReplicaSet: "a"}); err != nil || resp.GetMaster() == "" || resp.GetMaster() == "a3" {
		t.Errorf("to anybody: %v, %v", resp, err)
	}
	_, err = c.client.RemoveReplica(ctx, &v1.RemoveReplicaRequest{ReplicaSet: "a", Node: "x"})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, "a1, a2, a3")
	if _, err := c.client.RemoveReplica(ctx, &v1.RemoveReplicaRequest{ReplicaSet: "a", Node: "a3"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there are two", func() bool { m := members(); return len(m) == 2 && m["a3"] == "" })
}

func TestSets_comeAndGo(t *testing.T) {
	o := clusterOptions{Options: localsets.Options{Sets: []string{"a", "b"}, Bare: true}, up: func(n string) bool { return n == "a1" }}
	c := newCluster(t, o)
	ctx := testContext(t)
	o.up, o.Buckets = nil, testBuckets
	both := serve(t, c.Cluster, o)
	_, err := both.client.AddReplicaSet(ctx, &v1.AddReplicaSetRequest{Name: "b"})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, "cluster bootstrap")
	if _, err := c.client.BootstrapCluster(ctx, &v1.BootstrapClusterRequest{ReplicaSets: 1, Members: 1}); err != nil {
		t.Fatal(err)
	}
	// The other one came later: it is added, and not bootstrapped.
	_, err = both.client.BootstrapCluster(ctx, &v1.BootstrapClusterRequest{})
	wantReason(t, err, codes.AlreadyExists, shard.NonEmpty, "add-set b")
	weight := -1.0
	_, err = both.client.AddReplicaSet(ctx, &v1.AddReplicaSetRequest{Name: "b", Weight: &weight})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, "-1")
	_, err = both.client.AddReplicaSet(ctx, &v1.AddReplicaSetRequest{Name: "b", Members: 3})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, "b1")
	weight = 0
	if _, err := both.client.AddReplicaSet(ctx, &v1.AddReplicaSetRequest{Name: "b", Weight: &weight}); err != nil {
		t.Fatal(err)
	}
	_, err = both.client.AddReplicaSet(ctx, &v1.AddReplicaSetRequest{Name: "b"})
	wantReason(t, err, codes.AlreadyExists, shard.NonEmpty)
	if w := c.Members("b")[0].Storage.Weight(); w != 0 {
		t.Errorf("its weight is %v", w)
	}
	a := c.Members("a")[0].Storage
	if err := a.RememberReplicaSet(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := both.send(t, "b", spans(1, 2)); err != nil {
		t.Fatal(err)
	}
	_, err = both.client.RemoveReplicaSet(ctx, &v1.RemoveReplicaSetRequest{Name: "b"})
	wantReason(t, err, codes.AlreadyExists, shard.NonEmpty, "weight b 0")
	if _, _, err := both.send(t, "a", spans(1, 2)); err != nil {
		t.Fatal(err)
	}
	// Empty, it must be stopped: else it would be remembered again.
	eventually(t, "what was moved is collected", func() bool { n := c.service.look(ctx); return len(n.at[1]) == 1 && len(n.at[2]) == 1 })
	_, err = both.client.RemoveReplicaSet(ctx, &v1.RemoveReplicaSetRequest{Name: "b"})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, "stop b1")
	c.Members("b")[0].Kill()
	if _, err := c.client.RemoveReplicaSet(ctx, &v1.RemoveReplicaSetRequest{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	if known := a.KnownReplicaSets(); len(known) != 1 {
		t.Errorf("the other one knows %v", known)
	}
	_, err = c.client.RemoveReplicaSet(ctx, &v1.RemoveReplicaSetRequest{Name: "b"})
	wantReason(t, err, codes.NotFound, shard.NoSuchReplicaSet)
	_, err = c.client.RemoveReplicaSet(ctx, &v1.RemoveReplicaSetRequest{Name: "a"})
	wantReason(t, err, codes.AlreadyExists, shard.NonEmpty)
}

func TestErrors_haveANameBeforeTheCallersTimeIsOver(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a", "b"}}})
	c.Members("b")[0].Kill()
	// Not over the network, where the end of the time could come before the answer.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := c.service.UpdateReplicaSet(ctx, &v1.UpdateReplicaSetRequest{Name: "b", Locked: new(true)})
	wantReason(t, err, codes.Unavailable, shard.UnreachableMaster)
}

func TestAnotherCluster_isNamed(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a"}}})
	r, err := router.New(router.Options{Topology: c.Topology(), ClusterID: "other", BucketCount: testBuckets})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	m := c.Members("a")[0]
	members, err := membership.Single(membership.Node{Name: "a1", ClusterID: "other", Roles: membership.Storage, ReplicaSet: "a", InternalAddress: m.Address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = members.Close() })
	s, err := New(Options{Router: r, Members: members, ClusterID: "other"})
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, s)
	_, err = client.BootstrapCluster(testContext(t), &v1.BootstrapClusterRequest{})
	wantReason(t, err, codes.InvalidArgument, shard.InvalidConfig, "other", localsets.ClusterID)
	info, err := client.DescribeStore(testContext(t), &v1.DescribeStoreRequest{})
	if err != nil || info.GetLevel() != "red" {
		t.Fatalf("%v, %v", info, err)
	}
	said := false
	for _, a := range info.GetAlerts() {
		said = said || a.GetCode() == shard.InvalidConfig.String() && strings.Contains(a.GetText(), "other")
	}
	if !said {
		t.Errorf("no alert says so: %v", info.GetAlerts())
	}
}

func TestMembers_oneThatWasTakenOutIsNotMissed(t *testing.T) {
	c := newCluster(t, clusterOptions{Options: localsets.Options{Sets: []string{"a"}, Members: 3}})
	ctx := testContext(t)
	master, err := c.Master(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	var lost *localsets.Member
	for _, m := range c.Members("a") {
		// The first one's router is the one that is asked.
		if m != master && m != c.Members("a")[0] {
			lost = m
		}
	}
	lost.Kill()
	level := func() string {
		info, err := c.client.DescribeStore(ctx, &v1.DescribeStoreRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return info.GetLevel()
	}
	eventually(t, "it is missed", func() bool { return level() == "orange" })
	if _, err := c.client.RemoveReplica(ctx, &v1.RemoveReplicaRequest{ReplicaSet: "a", Node: lost.ID}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is not missed any more", func() bool { return level() == "green" })
	info, err := c.client.DescribeStore(ctx, &v1.DescribeStoreRequest{})
	if err != nil || len(info.GetReplicaSets()[0].GetMembers()) != 2 {
		t.Errorf("%v, %v", info, err)
	}
	c.checkUntil(t, "check", &v1.CheckStoreRequest{}, clean)
}

func TestMove_goesOnWhenTheSourceGetsANewMaster(t *testing.T) {
	g := &gate{}
	t.Cleanup(g.open)
	c := newCluster(t, clusterOptions{Options: localsets.Options{
		Sets: []string{"a", "b"}, Members: 3, Storage: func(o *storage.Options) { o.Link = gatedLink{o.Link, g} },
	}})
	ctx := testContext(t)
	g.close()
	type outcome struct {
		last   *v1.MoveBucketsResponse
		failed []*v1.BucketFailure
		err    error
	}
	sent := make(chan outcome, 1)
	go func() {
		last, failed, err := c.send(t, "b", spans(1, 10))
		sent <- outcome{last, failed, err}
	}()
	eventually(t, "the moves are under way", func() bool {
		at, err := c.service.look(ctx).owner(10)
		return err == nil && at.moving()
	})
	if _, err := c.client.ChangeMaster(ctx, &v1.ChangeMasterRequest{ReplicaSet: "a"}); err != nil {
		t.Fatal(err)
	}
	g.open()
	if o := <-sent; o.err != nil || int(o.last.GetMoved())+len(o.failed) != 10 {
		t.Errorf("%v, %v, %v", o.last, o.failed, o.err)
	}
	// On a slow machine a step may have taken too long; then those are sent again.
	eventually(t, "all have arrived", func() bool {
		_, _, err := c.send(t, "b", spans(1, 10))
		return c.owners(t)["b"] == 10 && (err == nil || reason.Of(err) == shard.MoveToSelf.String())
	})
}
