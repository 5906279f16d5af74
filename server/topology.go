package server

import (
	"cmp"
	"slices"
	"sync"

	"github.com/switchyard-dev/switchyard/admin"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// topology tells a router which replica sets there are: those of the nodes with storage that
// the membership has seen. A node that vanished stays in it, as it may come back and its
// replica set counts on it; one that said goodbye and comes back elsewhere is found anew.
type topology struct {
	members *membership.Membership
	sub     *membership.Subscription
	facts   *membership.Subscription
	stop    chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	nodes   map[string]membership.Node // with storage, as last seen
	removed map[string]uint64          // versions of the facts that replica sets were removed
	sets    []router.Set
	changed chan struct{}
}

func newTopology(m *membership.Membership) *topology {
	t := &topology{
		members: m, sub: m.Subscribe(0), facts: m.SubscribeFacts(), stop: make(chan struct{}), done: make(chan struct{}),
		nodes: map[string]membership.Node{}, removed: map[string]uint64{}, changed: make(chan struct{}),
	}
	t.look()
	go t.run()
	return t
}

// Sets implements router.Topology.
func (t *topology) Sets() ([]router.Set, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sets, t.changed
}

// address is where a node was last seen, "" if it never was.
func (t *topology) address(node string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodes[node].InternalAddress
}

// forget takes a replica set out whose nodes are all gone.
func (t *topology) forget(set string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	view := t.members.View()
	for name, n := range t.nodes {
		if _, alive := view.Node(name); n.ReplicaSet == set && !alive {
			delete(t.nodes, name)
		}
	}
	t.arrangeLocked()
}

func (t *topology) close() {
	close(t.stop)
	<-t.done
	t.sub.Close()
	t.facts.Close()
}

func (t *topology) run() {
	defer close(t.done)
	for {
		select {
		case <-t.sub.C():
			t.look()
		case <-t.facts.C():
			t.lookForRemoved()
		case <-t.stop:
			return
		}
	}
}

// lookForRemoved forgets the replica sets that were removed on another node, each removal once: one of
// that name may come again.
func (t *topology) lookForRemoved() {
	for _, f := range t.members.Facts() {
		set, ok := admin.RemovedSet(f)
		if !ok {
			continue
		}
		t.mu.Lock()
		old := t.removed[set]
		t.removed[set] = f.Version
		t.mu.Unlock()
		if f.Version > old {
			t.forget(set)
		}
	}
}

// look takes over what the membership sees.
func (t *topology) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.members.View().Nodes() {
		switch {
		case n.Roles.Has(membership.Storage) && n.ReplicaSet != "" && n.InternalAddress != "":
			t.nodes[n.Name] = n
		default: // a storage node that is none any more
			delete(t.nodes, n.Name)
		}
	}
	t.arrangeLocked()
}

// arrangeLocked makes the replica sets out of the nodes.
func (t *topology) arrangeLocked() {
	bySet := map[string][]router.Member{}
	for _, n := range t.nodes {
		bySet[n.ReplicaSet] = append(bySet[n.ReplicaSet], router.Member{ID: n.Name, Address: n.InternalAddress, Zone: n.Zone})
	}
	sets := make([]router.Set, 0, len(bySet))
	for name, members := range bySet {
		slices.SortFunc(members, func(a, b router.Member) int { return cmp.Compare(a.ID, b.ID) })
		sets = append(sets, router.Set{Name: name, Members: members})
	}
	slices.SortFunc(sets, func(a, b router.Set) int { return cmp.Compare(a.Name, b.Name) })
	if slices.EqualFunc(sets, t.sets, func(a, b router.Set) bool { return a.Name == b.Name && slices.Equal(a.Members, b.Members) }) {
		return
	}
	t.sets = sets
	close(t.changed)
	t.changed = make(chan struct{})
}
