package membership

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStatic_list_is_seen_at_once_and_must_fit(t *testing.T) {
	self := Node{Name: "b", Roles: Matching, BucketCount: 16}
	m, err := Static(self, []Node{{Name: "a", Roles: Matching | Storage}, self})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	require.Equal(t, []string{"a", "b"}, names(m.View().Nodes()))
	require.Equal(t, []string{"a"}, names(m.View().Acting(Storage)))
	require.Empty(t, m.View().Acting(Frontend))
	require.True(t, isClosed(m.Joined()))
	require.Empty(t, m.Address())
	_, ok := m.View().Node("c")
	require.False(t, ok)

	for _, bad := range []Node{{}, {Name: "b", Roles: Storage}, {Name: "x", ClusterID: "other"}, {Name: "x", BucketCount: 8},
		{Name: strings.Repeat("x", MaxName+1)}, {Name: "x\xff"}, {Name: "x", Roles: 1 << 7}, {Name: "x", Stop: -1}} {
		_, err := Static(self, []Node{bad})
		require.Error(t, err, "%+v", bad)
	}
}

func TestSubscription_hears_only_of_its_role(t *testing.T) {
	m, err := Single(Node{Name: "a", Roles: Matching})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	matching, storage, facts := m.Subscribe(Matching), m.Subscribe(Storage), m.SubscribeFacts()
	for _, s := range []*Subscription{matching, storage, facts} {
		require.True(t, isClosed(s.C()), "there is something to look at, at first")
		require.False(t, isClosed(s.C()))
	}
	require.NoError(t, m.Update(t.Context(), func(n *Node) { n.PublicAddress = "a:1" }))
	require.True(t, isClosed(matching.C()))
	require.False(t, isClosed(storage.C()))
	require.False(t, isClosed(facts.C()))
	require.NoError(t, m.Publish("k", []byte("v"), 1))
	require.True(t, isClosed(facts.C()))
	require.NoError(t, m.Publish("k", []byte("v"), 1))
	require.False(t, isClosed(facts.C()), "that is no news")
	require.False(t, isClosed(matching.C()))
	matching.Close()
	require.NoError(t, m.Leave(t.Context()))
	require.False(t, isClosed(matching.C()), "closed")
	require.Empty(t, m.View().Nodes())
	require.Error(t, m.Update(t.Context(), func(n *Node) { n.Name = "b" }))
}

func TestNode_acts_between_its_start_and_its_stop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().Unix()
		m, err := Static(Node{Name: "a", Roles: Matching}, []Node{{Name: "b", Roles: Matching, Start: now + 100, Stop: now + 200}})
		require.NoError(t, err)
		sub := m.Subscribe(Matching)
		<-sub.C()
		require.Equal(t, []string{"a"}, names(m.View().Acting(Matching)))
		<-sub.C()
		require.Equal(t, now+100, time.Now().Unix())
		require.Equal(t, []string{"a", "b"}, names(m.View().Acting(Matching)))
		require.Equal(t, []string{"a", "b"}, names(m.View().Nodes()))
		<-sub.C()
		require.Equal(t, now+200, time.Now().Unix())
		require.Equal(t, []string{"a"}, names(m.View().Acting(Matching)))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, m.Drain(ctx, time.Now().Add(time.Hour)), context.DeadlineExceeded)
		require.NoError(t, m.Close())
	})
}

func TestMeta_holds_the_longest_node_and_reads_back_the_same(t *testing.T) {
	name := strings.Repeat("n", MaxName)
	n := Node{
		Name: name, ClusterID: strings.Repeat("c", MaxClusterID), BucketCount: 1<<32 - 1, Doubling: 1<<32 - 1, Roles: Frontend | Matching | Storage,
		PublicAddress: strings.Repeat("p", MaxAddress), InternalAddress: strings.Repeat("i", MaxAddress),
		ReplicaSet: name, Member: name, Zone: name, Start: 1 << 36, Stop: 1 << 37,
	}
	require.NoError(t, n.check())
	meta := n.appendMeta(nil)
	require.LessOrEqual(t, len(meta), 512, "what gossip carries for a node")
	got, err := nodeOf(name, meta)
	require.NoError(t, err)
	require.Equal(t, n, got)
	got, err = nodeOf(name, append(meta, "of a later version"...))
	require.NoError(t, err)
	require.Equal(t, n, got)
	for i := range meta {
		_, err := nodeOf(name, meta[:i])
		require.Error(t, err, "cut at %d", i)
	}
}

func FuzzMessages_from_others_do_no_harm(f *testing.F) {
	f.Add(Node{Name: "a", ClusterID: "c", Zone: "z"}.appendMeta(nil))
	f.Add(appendFacts(nil, "c", Fact{"k", []byte("v"), 1, "a"}, Fact{"l", nil, 2, "b"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := nodeOf("a", b); err == nil {
			again, err := nodeOf("a", n.appendMeta(nil))
			require.NoError(t, err)
			require.Equal(t, n, again)
		}
		if list, err := readFacts(b, "c"); err == nil {
			again, err := readFacts(appendFacts(nil, "c", list...), "c")
			require.NoError(t, err)
			require.Equal(t, list, again)
		}
	})
}

func TestFacts_end_the_same_in_whatever_order_they_come(t *testing.T) {
	list := []Fact{
		{"k", []byte("1"), 1, "z"}, {"k", []byte("2"), 2, "a"}, {"k", []byte("3"), 2, "b"}, {"k", []byte("4"), 2, "b"}, {"k", nil, 2, "b"},
	}
	for shift := range list {
		have := facts{}
		for i := range list {
			_, err := have.merge(list[(i+shift)%len(list)])
			require.NoError(t, err)
		}
		require.Equal(t, list[3], have["k"])
	}
}

func TestFacts_are_bounded(t *testing.T) {
	have := facts{}
	for _, f := range []Fact{{"", nil, 1, "a"}, {strings.Repeat("k", MaxFactKey+1), nil, 1, "a"}, {"k", make([]byte, MaxFactValue+1), 1, "a"}, {"k", nil, 1, ""}} {
		_, err := have.merge(f)
		require.Error(t, err)
	}
	for i := range MaxFacts {
		_, err := have.merge(Fact{Key: string(rune(0x1000 + i)), Node: "a"})
		require.NoError(t, err)
	}
	_, err := have.merge(Fact{Key: "one more", Node: "a"})
	require.ErrorContains(t, err, "limit")
	fresh, err := have.merge(Fact{Key: string(rune(0x1000)), Node: "a", Version: 1})
	require.NoError(t, err)
	require.True(t, fresh, "those that are there can still change")
	_, err = readFacts(appendFacts(nil, "other", Fact{"k", nil, 1, "a"}), "c")
	require.ErrorContains(t, err, "other")
}
