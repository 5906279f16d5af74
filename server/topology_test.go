package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/switchyard-dev/switchyard/membership"
)

func TestTopology_forgetsReplicaSetsThatWereRemovedElsewhere(t *testing.T) {
	m, err := membership.Single(membership.Node{Name: "a1", Roles: membership.Storage, ReplicaSet: "a", InternalAddress: "127.0.0.1:1"})
	require.NoError(t, err)
	defer m.Close()
	top := newTopology(m)
	defer top.close()
	// A node that was seen and is gone.
	gone := membership.Node{Name: "c1", Roles: membership.Storage, ReplicaSet: "c", InternalAddress: "127.0.0.1:2"}
	see := func() {
		top.mu.Lock()
		defer top.mu.Unlock()
		top.nodes[gone.Name] = gone
		top.arrangeLocked()
	}
	names := func() (out []string) {
		sets, _ := top.Sets()
		for _, s := range sets {
			out = append(out, s.Name)
		}
		return out
	}
	see()
	require.Equal(t, []string{"a", "c"}, names())
	require.NoError(t, m.Publish("removed-set/a", []byte{1}, 1)) // it is alive
	require.NoError(t, m.Publish("removed-set/c", []byte{1}, 7))
	require.Eventually(t, func() bool { return len(names()) == 1 }, 30*time.Second, 5*time.Millisecond)
	require.Equal(t, []string{"a"}, names())
	// It comes again and goes without being removed: that one is kept in mind.
	see()
	top.lookForRemoved()
	require.Equal(t, []string{"a", "c"}, names())
}
