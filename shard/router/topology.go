package router

// Member is a member of a replica set, as the topology knows it.
type Member struct {
	// ID is unique in the cluster: the name of its node.
	ID string
	// Address is where its StorageService is, host:port.
	Address string
	// Zone is where it stands; empty when that does not matter.
	Zone string
}

// Set is a replica set, as the topology knows it.
type Set struct {
	Name    string
	Members []Member
}

// Topology says which replica sets there are. Its methods may be called from any goroutine.
type Topology interface {
	// Sets returns the replica sets as they are now, and a channel that is closed when there
	// is something newer; nil when there never is. Members that do not answer at the moment
	// are among them. The caller does not change what it gets.
	Sets() (sets []Set, changed <-chan struct{})
}

// Static returns a topology that does not change.
func Static(sets ...Set) Topology { return static(sets) }

type static []Set

func (s static) Sets() ([]Set, <-chan struct{}) { return s, nil }
