package membership

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Role is a set of things that a node does.
type Role uint8

// The roles.
const (
	// Frontend nodes take the requests of users.
	Frontend Role = 1 << iota
	// Matching nodes own partitions of queues.
	Matching
	// Storage nodes are members of a replica set.
	Storage

	roles = 3
)

// Has says whether the set has all of r.
func (s Role) Has(r Role) bool { return s&r == r }

// String gives the names of the roles: "frontend,matching".
func (s Role) String() string {
	var names []string
	for i, n := range [roles]string{"frontend", "matching", "storage"} {
		if s.Has(1 << i) {
			names = append(names, n)
		}
	}
	if s>>roles != 0 {
		names = append(names, fmt.Sprintf("unknown(%#x)", uint8(s>>roles<<roles)))
	}
	return strings.Join(names, ",")
}

// The longest names, in bytes. Together they fit what gossip carries for a node.
const (
	MaxName      = 63  // of a node, a member, a replica set or a zone
	MaxClusterID = 64  // of a cluster
	MaxAddress   = 100 // of an address
)

// Node is what a node tells of itself. Nodes can be compared with ==.
type Node struct {
	// Name is unique in the cluster. Required.
	Name string
	// ClusterID says which cluster the node is of. Required with gossip.
	ClusterID string
	// BucketCount is the number of buckets of the cluster's store, 0 when the node does
	// not know it.
	BucketCount uint32
	// Doubling is the bucket_count from before, while the node's store is doubling it, else
	// 0. Nodes with that one and with its double can then be in one cluster.
	Doubling uint32
	// Roles are what the node does.
	Roles Role
	// PublicAddress is where users reach it, InternalAddress where nodes do; host:port.
	PublicAddress, InternalAddress string
	// ReplicaSet is the replica set of a node with storage, and Member its id there.
	ReplicaSet, Member string
	// Zone is where the node is, for placing; any name.
	Zone string
	// Start and Stop are the unix seconds from which on, and until which, the node acts in
	// its roles; 0 for always. All nodes see the change at the same second, if their clocks
	// are right.
	Start, Stop int64
}

// Acts says whether the node acts in its roles at a time.
func (n Node) Acts(now time.Time) bool {
	s := now.Unix()
	return s >= n.Start && (n.Stop == 0 || s < n.Stop)
}

// check says what is wrong with a node.
func (n Node) check() error {
	if n.Name == "" {
		return fmt.Errorf("membership: a node needs a name")
	}
	for _, f := range [...]struct {
		what, value string
		most        int
	}{
		{"name", n.Name, MaxName}, {"cluster id", n.ClusterID, MaxClusterID},
		{"public address", n.PublicAddress, MaxAddress}, {"internal address", n.InternalAddress, MaxAddress},
		{"replica set", n.ReplicaSet, MaxName}, {"member id", n.Member, MaxName}, {"zone", n.Zone, MaxName},
	} {
		if len(f.value) > f.most {
			return fmt.Errorf("membership: the %s %.20q... has %d bytes, %d are allowed", f.what, f.value, len(f.value), f.most)
		}
		if !utf8.ValidString(f.value) {
			return fmt.Errorf("membership: the %s %q is not valid UTF-8", f.what, f.value)
		}
	}
	switch {
	case n.Roles>>roles != 0:
		return fmt.Errorf("membership: node %s has roles that are not known: %v", n.Name, n.Roles)
	case n.Doubling != 0 && n.BucketCount != n.Doubling && uint64(n.BucketCount) != 2*uint64(n.Doubling):
		return fmt.Errorf("membership: node %s has a bucket_count of %d, and its store doubles %d", n.Name, n.BucketCount, n.Doubling)
	case n.Start < 0 || n.Stop < 0:
		return fmt.Errorf("membership: node %s starts at %d and stops at %d; neither may be negative", n.Name, n.Start, n.Stop)
	}
	return nil
}
