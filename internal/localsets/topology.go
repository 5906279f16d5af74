package localsets

import (
	"slices"
	"sync"

	"github.com/switchyard-dev/switchyard/shard/router"
)

// topology is a router.Topology to which sets can be added.
type topology struct {
	mu      sync.Mutex
	sets    []router.Set
	changed chan struct{}
}

// Sets implements router.Topology.
func (t *topology) Sets() (sets []router.Set, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sets, t.changed
}

func (t *topology) add(s router.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sets = append(slices.Clone(t.sets), s)
	close(t.changed)
	t.changed = make(chan struct{})
}
