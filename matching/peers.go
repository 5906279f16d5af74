package matching

import (
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Peers finds the owner of any partition. Implementations are safe for concurrent
// use.
type Peers interface {
	// Owner returns the way to the partition's owner: the Engine itself when it is
	// in this process (local), else a client. It looks nothing up over the network.
	// An error means that there is no owner at the moment; it should carry the
	// reason NOT_READY.
	Owner(id PartitionID) (service v1.MatchingServiceServer, local bool, err error)
}

// localPeers is a cluster of one: every partition is here.
type localPeers struct{ engine *Engine }

func (p localPeers) Owner(PartitionID) (v1.MatchingServiceServer, bool, error) {
	return p.engine, true, nil
}
