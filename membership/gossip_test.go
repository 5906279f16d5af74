package membership

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func list(nodes ...*Membership) []*Membership { return nodes }

func TestNodes_find_each_other_through_one_seed(t *testing.T) {
	a := mustStart(t, "a", nil)
	b := mustStart(t, "b", list(a))
	c := mustStart(t, "c", list(a), func(o *Options) { o.Self.Roles = Storage; o.Self.ReplicaSet = "main" })
	for _, m := range list(a, b, c) {
		sees(t, m, "a", "b", "c")
		require.True(t, isClosed(m.Joined()))
		require.Equal(t, []string{"a", "b"}, names(m.View().Acting(Matching)))
		n, ok := m.View().Node("c")
		require.True(t, ok)
		require.Equal(t, c.Self(), n, "a node is seen as it is")
	}
}

func TestNode_waits_for_a_seed_that_comes_later(t *testing.T) {
	probe := mustStart(t, "probe", nil)
	address := probe.Address()
	require.NoError(t, probe.Close())
	a := mustStart(t, "a", nil, func(o *Options) { o.Seeds = []string{address} })
	require.False(t, isClosed(a.Joined()), "nobody was reached")
	b := mustStart(t, "b", nil, func(o *Options) { o.Listen = address })
	sees(t, a, "a", "b")
	sees(t, b, "a", "b")
	<-a.Joined()
}

func TestNode_that_leaves_is_gone_and_not_looked_for(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a := mustStart(t, "a", nil)
	b := mustStart(t, "b", list(a))
	sees(t, a, "a", "b")
	require.NoError(t, b.Leave(ctx))
	require.NoError(t, b.Leave(ctx), "a second goodbye does nothing")
	sees(t, a, "a")
	require.Empty(t, a.gossip.missing())
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Leave(ctx), ErrClosed)
	require.ErrorIs(t, b.Publish("k", nil, 1), ErrClosed)

	again := mustStart(t, "b", list(a))
	sees(t, a, "a", "b")
	sees(t, again, "a", "b")
}

func TestNode_that_crashes_is_found_dead_and_may_come_back_elsewhere(t *testing.T) {
	a := mustStart(t, "a", nil, quickly)
	b := mustStart(t, "b", list(a), quickly)
	c := mustStart(t, "c", list(a), quickly)
	sees(t, a, "a", "b", "c")
	sees(t, c, "a", "b", "c")
	require.NoError(t, b.Close())
	sees(t, a, "a", "c")
	sees(t, c, "a", "c")
	back := mustStart(t, "b", list(a), quickly, func(o *Options) { o.Self.Zone = "z" })
	require.NotEqual(t, b.Address(), back.Address())
	for _, m := range list(a, c, back) {
		seesZone(t, m, "b", "z")
	}
}

// seesZone waits until m's view has a node with this zone.
func seesZone(t *testing.T, m *Membership, name, zone string) {
	t.Helper()
	sub := m.Subscribe(0)
	defer sub.Close()
	waitFor(t, sub, func() error {
		if n, _ := m.View().Node(name); n.Zone != zone {
			return fmt.Errorf("%s sees %+v", m.Self().Name, n)
		}
		return nil
	})
}

func TestNode_of_a_foreign_cluster_is_refused_on_both_sides(t *testing.T) {
	a := mustStart(t, "a", nil)
	for name, tc := range map[string]struct {
		change func(*Options)
		cause  Cause
	}{
		"another cluster":          {func(o *Options) { o.Self.ClusterID = "other" }, WrongCluster},
		"another number of bucket": {func(o *Options) { o.Self.BucketCount = 32 }, WrongBucketCount},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := start(t, "x", list(a), tc.change)
			var refused *RefusedError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, tc.cause, refused.Cause)
			require.Contains(t, err.Error(), `"a"`, "the error names both sides")
			require.Contains(t, err.Error(), `"x"`)
			sees(t, a, "a")
		})
	}
	b := mustStart(t, "b", list(a), func(o *Options) { o.Self.BucketCount = 0 })
	sees(t, a, "a", "b")
	_, err := start(t, "x", list(b), func(o *Options) { o.Self.BucketCount = 32 })
	require.Error(t, err, "who does not know the number itself knows that of others")
	require.Error(t, b.Update(t.Context(), func(n *Node) { n.BucketCount = 32 }))
	require.NoError(t, b.Update(t.Context(), func(n *Node) { n.BucketCount = 16 }))
}

// TestBucketCount_that_is_doubled: nodes of both counts are in one cluster, once a store says that
// it doubles, and no node of a third.
func TestBucketCount_that_is_doubled(t *testing.T) {
	a := mustStart(t, "a", nil)
	b := mustStart(t, "b", list(a), func(o *Options) { o.Self.BucketCount = 16 })
	_, err := start(t, "c", list(b), func(o *Options) { o.Self.BucketCount = 32 })
	require.Error(t, err)
	require.Error(t, a.Update(t.Context(), func(n *Node) { n.Doubling = 4 }), "it is neither of the two")
	require.NoError(t, a.Update(t.Context(), func(n *Node) { n.Doubling = 16 }))
	// b hears of it, and brings others in who do not know it.
	require.Eventually(t, func() bool {
		for _, n := range b.View().Nodes() {
			if n.Name == "a" && n.Doubling == 16 {
				return true
			}
		}
		return false
	}, 30*time.Second, time.Millisecond)
	c := mustStart(t, "c", list(b), func(o *Options) { o.Self.BucketCount = 32 })
	sees(t, b, "a", "b", "c")
	sees(t, c, "a", "b", "c")
	require.NoError(t, b.Update(t.Context(), func(n *Node) { n.BucketCount = 32 }))
	_, err = start(t, "d", list(b), func(o *Options) { o.Self.BucketCount = 64 })
	require.Error(t, err)
	_, err = start(t, "d", list(b), func(o *Options) { o.Self.BucketCount = 8 })
	require.Error(t, err)
	mustStart(t, "d", list(c), func(o *Options) { o.Self.BucketCount = 16 })
	sees(t, c, "a", "b", "c", "d")
}

func TestCluster_does_not_take_over_a_foreign_one_that_is_told_of_it(t *testing.T) {
	foreign := mustStart(t, "f", nil, func(o *Options) { o.Self.ClusterID = "other" })
	a := mustStart(t, "a", nil)
	require.NoError(t, foreign.Publish("fact", []byte("x"), 1))
	_, err := a.gossip.list.Join([]string{foreign.Address()})
	require.ErrorContains(t, err, "refused")
	require.Error(t, a.Refusal())
	sees(t, a, "a")
	sees(t, foreign, "f")
	require.Empty(t, a.Facts())
}

func TestNamesake_is_not_let_in_while_the_other_lives(t *testing.T) {
	slow := func(o *Options) { o.Detection = 3 * time.Second }
	a := mustStart(t, "a", nil, slow)
	first := mustStart(t, "x", list(a), slow)
	sees(t, a, "a", "x")
	second := mustStart(t, "x", list(a), slow, func(o *Options) { o.Self.Zone = "second" })
	require.False(t, isClosed(second.Joined()))
	var refused *RefusedError
	require.ErrorAs(t, second.Refusal(), &refused)
	require.Equal(t, NameTaken, refused.Cause)
	n, _ := a.View().Node("x")
	require.Empty(t, n.Zone, "the first keeps the name")

	require.NoError(t, first.Close())
	sees(t, second, "a", "x")
	seesZone(t, a, "x", "second")
}

func TestHalves_of_a_cut_network_find_each_other_again(t *testing.T) {
	var w wires
	wired := func(o *Options) { o.wrap, o.Detection = w.wrap, quick }
	a := mustStart(t, "a", nil, wired)
	b := mustStart(t, "b", list(a), wired)
	c := mustStart(t, "c", list(a), wired)
	d := mustStart(t, "d", list(a), wired)
	all := list(a, b, c, d)
	for _, m := range all {
		sees(t, m, "a", "b", "c", "d")
	}
	w.cut(map[string]int{c.Address(): 1, d.Address(): 1})
	sees(t, a, "a", "b")
	sees(t, b, "a", "b")
	sees(t, c, "c", "d")
	sees(t, d, "c", "d")
	require.NoError(t, a.Publish("k", []byte("left"), 1))
	require.NoError(t, c.Publish("k", []byte("right"), 2))
	w.cut(nil)
	for _, m := range all {
		sees(t, m, "a", "b", "c", "d")
		hasFact(t, m, "k", "right")
	}
}

func hasFact(t *testing.T, m *Membership, key, want string) {
	t.Helper()
	sub := m.SubscribeFacts()
	defer sub.Close()
	waitFor(t, sub, func() error {
		if f, ok := m.Fact(key); !ok || string(f.Value) != want {
			return fmt.Errorf("%s has %v %q, not %q", m.Self().Name, f, f.Value, want)
		}
		return nil
	})
}

func TestFacts_reach_all_and_stay_when_their_node_is_gone(t *testing.T) {
	a := mustStart(t, "a", nil)
	b := mustStart(t, "b", list(a))
	c := mustStart(t, "c", list(a))
	sees(t, b, "a", "b", "c")
	require.NoError(t, b.Publish("master/main", []byte("b"), 7))
	require.NoError(t, c.Publish("master/main", []byte("c"), 6), "an older one is no error")
	for _, m := range list(a, b, c) {
		hasFact(t, m, "master/main", "b")
	}
	require.NoError(t, b.Close())
	late := mustStart(t, "late", list(a))
	hasFact(t, late, "master/main", "b")
	require.NoError(t, late.Publish("master/main", []byte("late"), 8))
	for _, m := range list(a, c, late) {
		hasFact(t, m, "master/main", "late")
	}
}

func TestSecret_keeps_others_out(t *testing.T) {
	secret := func(s string) func(*Options) { return func(o *Options) { o.Secret = s } }
	a := mustStart(t, "a", nil, secret("a secret of the cluster"))
	b := mustStart(t, "b", list(a), secret("a secret of the cluster"))
	sees(t, a, "a", "b")
	sees(t, b, "a", "b")
	for _, s := range []string{"", "another secret, as long"} {
		x := mustStart(t, "x", list(a), secret(s))
		require.False(t, isClosed(x.Joined()))
		require.Equal(t, []string{"x"}, names(x.View().Nodes()))
	}
	sees(t, a, "a", "b")
	_, err := start(t, "y", nil, secret("short"))
	require.ErrorContains(t, err, "at least 16")
}

func TestNode_that_drains_stops_acting_everywhere_at_its_second(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a := mustStart(t, "a", nil)
	b := mustStart(t, "b", list(a))
	sees(t, a, "a", "b")
	sub := a.Subscribe(Matching)
	defer sub.Close()
	at := time.Now().Add(time.Second)
	require.NoError(t, b.Drain(ctx, at))
	require.False(t, time.Now().Before(at))
	waitFor(t, sub, func() error {
		if got := names(a.View().Acting(Matching)); len(got) != 1 {
			return fmt.Errorf("a sees %v act", got)
		}
		return nil
	})
	require.Equal(t, []string{"a", "b"}, names(a.View().Nodes()), "it is still there")
}

func TestStart_refuses_what_can_not_be(t *testing.T) {
	for what, change := range map[string]func(*Options){
		"no name":           func(o *Options) { o.Self.Name = "" },
		"no cluster":        func(o *Options) { o.Self.ClusterID = "" },
		"no port":           func(o *Options) { o.Listen = "127.0.0.1" },
		"a name for a host": func(o *Options) { o.Listen = "here:0" },
		"a port too high":   func(o *Options) { o.Advertise = "127.0.0.1:70000" },
		"too many seeds":    func(o *Options) { o.Seeds = make([]string, maxSeeds+1) },
	} {
		_, err := start(t, "a", nil, change)
		require.Error(t, err, what)
	}
	a := mustStart(t, "a", nil)
	_, err := start(t, "b", nil, func(o *Options) { o.Listen = a.Address() })
	require.ErrorContains(t, err, a.Address(), "the port is taken")
}
