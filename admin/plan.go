package admin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/membership"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/rebalancer"
)

// Wanted is what an operator says about the store to be made.
type Wanted struct {
	// ReplicaSets is how many there must be, Members how many each must have; 0: not checked.
	ReplicaSets, Members int
	// Weights of the replica sets that have another one than 1.
	Weights map[string]float64
}

// Found is what a replica set says of itself before it is made.
type Found struct {
	// Members are the nodes that are set up for it.
	Members []membership.Node
	// ClusterID is that for which it was made, empty before.
	ClusterID string
	// Known are the replica sets that it knows.
	Known []string
	// Weight of one that was made.
	Weight float64
	// Buckets are those that are here in any state.
	Buckets []shard.BucketID
}

// Planned is what is to be made of a replica set.
type Planned struct {
	Name string
	// Members are all that it gets.
	Members []engine.Member
	Weight  float64
	Buckets []shard.BucketID
	// Done: it is made already.
	Done bool
}

// group puts the nodes with storage together by their replica sets, and checks that they can be
// members.
func group(nodes []membership.Node) (map[string][]membership.Node, error) {
	sets := map[string][]membership.Node{}
	addresses := map[string]string{}
	for _, n := range nodes {
		if !n.Roles.Has(membership.Storage) {
			continue
		}
		switch other := addresses[n.InternalAddress]; {
		case n.ReplicaSet == "":
			return nil, misconfigured("", "node %s has the role storage and no replica set", n.Name)
		case n.InternalAddress == "":
			return nil, misconfigured(n.ReplicaSet, "node %s does not say where other nodes reach it", n.Name)
		case other != "":
			return nil, misconfigured(n.ReplicaSet, "nodes %s and %s have the same address for nodes, %s", other, n.Name, n.InternalAddress)
		case n.Member != "" && n.Member != n.Name:
			return nil, misconfigured(n.ReplicaSet, "node %s calls its member %s; the id of a member is the name of its node", n.Name, n.Member)
		}
		addresses[n.InternalAddress] = n.Name
		sets[n.ReplicaSet] = append(sets[n.ReplicaSet], n)
	}
	return sets, nil
}

// checkWanted compares the sets with what the operator expects.
func checkWanted(w Wanted, sets map[string][]membership.Node) error {
	names := slices.Sorted(maps.Keys(sets))
	for name, weight := range w.Weights {
		if _, ok := sets[name]; !ok {
			return noSet(name, names)
		}
		if err := checkWeight(name, weight); err != nil {
			return err
		}
	}
	switch {
	case w.ReplicaSets < 0 || w.Members < 0:
		return misconfigured("", "%d replica sets of %d members cannot be expected", w.ReplicaSets, w.Members)
	case len(sets) == 0:
		return misconfigured("", "no node with the role storage is there")
	case w.ReplicaSets != 0 && len(sets) != w.ReplicaSets:
		return misconfigured("", "%d replica sets are expected, and nodes of %d are there: %s; see: switchyard cluster members", w.ReplicaSets, len(sets), strings.Join(names, ", "))
	}
	for _, name := range names {
		if err := checkMembers(name, sets[name], w.Members); err != nil {
			return err
		}
	}
	return nil
}

func checkMembers(name string, nodes []membership.Node, want int) error {
	if want != 0 && len(nodes) != want {
		return misconfigured(name, "%d members are expected in each replica set, and %d are there: %s", want, len(nodes), strings.Join(nodeNames(nodes), ", "))
	}
	if len(nodes) > engine.MaxMembers {
		return misconfigured(name, "%d nodes are set up for it, and it can have %d members: %s", len(nodes), engine.MaxMembers, strings.Join(nodeNames(nodes), ", "))
	}
	return nil
}

func checkWeight(set string, weight float64) error {
	_, err := rebalancer.Perfect([]rebalancer.Set{{Name: set, Weight: weight}})
	return err
}

func nodeNames(nodes []membership.Node) []string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	slices.Sort(names)
	return names
}

func newMembers(nodes []membership.Node) []engine.Member {
	out := make([]engine.Member, len(nodes))
	for i, n := range nodes {
		out[i] = engine.Member{ID: n.Name, Address: n.InternalAddress, Voter: true}
	}
	slices.SortFunc(out, func(a, b engine.Member) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Plan says what is to be made of replica sets: which members each gets, and which of the buckets
// 1 to count. A replica set that has buckets keeps them; those that nobody has are dealt out among
// the sets that are not made yet, by their weights. NON_EMPTY when the store exists.
func Plan(clusterID string, count uint32, w Wanted, found map[string]Found) ([]Planned, error) {
	names := slices.Sorted(maps.Keys(found))
	free, err := unowned(clusterID, count, names, found)
	if err != nil {
		return nil, err
	}
	done := 0
	for _, name := range names {
		if found[name].ClusterID != "" {
			done++
		}
	}
	if done > 0 {
		if err := resumable(names, found, done, len(free)); err != nil {
			return nil, err
		}
	}
	plans := make([]Planned, len(names))
	var open []rebalancer.Set // that are not made yet
	var index []int
	for i, name := range names {
		f := found[name]
		plans[i] = Planned{Name: name, Members: newMembers(f.Members), Weight: 1, Buckets: f.Buckets, Done: f.ClusterID != ""}
		if weight, ok := w.Weights[name]; ok {
			plans[i].Weight = weight
		}
		if plans[i].Done {
			plans[i].Weight = f.Weight
			continue
		}
		if len(f.Buckets) > 0 {
			continue // it was cut short after them, or ran by itself: it keeps them and gets no more
		}
		open, index = append(open, rebalancer.Set{Name: name, Weight: plans[i].Weight}), append(index, i)
	}
	switch {
	case len(free) == 0:
		return plans, nil
	case len(open) == 0:
		return nil, &shard.Error{Code: shard.NonEmpty, Reason: fmt.Sprintf("%d buckets are on no replica set, and none is empty that could get them", len(free))}
	}
	// All that are free count as the first one's, so that all of them are placed.
	open[0].Counts[shard.Active] = len(free)
	shares, err := rebalancer.Perfect(open)
	if err != nil {
		return nil, err
	}
	for k, i := range index {
		plans[i].Buckets = free[:shares[k]:shares[k]]
		free = free[shares[k]:]
	}
	return plans, nil
}

// unowned returns the buckets that no set has. It is an error when two have one, or when one is of another
// cluster.
func unowned(clusterID string, count uint32, names []string, found map[string]Found) (free []shard.BucketID, err error) {
	owner := make([]string, count+1)
	for _, name := range names {
		f := found[name]
		if f.ClusterID != "" && f.ClusterID != clusterID {
			return nil, misconfigured(name, "it was made for cluster %s, not for %s", f.ClusterID, clusterID)
		}
		for _, b := range f.Buckets {
			if owner[b] != "" && f.ClusterID == "" {
				return nil, &shard.Error{Code: shard.NonEmpty, Bucket: b, ReplicaSet: name, Reason: fmt.Sprintf("%s has the bucket too; a replica set that is to be part of the cluster must be empty", owner[b])}
			}
			owner[b] = name
		}
	}
	for b := uint32(1); b <= count; b++ {
		if owner[b] == "" {
			free = append(free, shard.BucketID(b))
		}
	}
	return free, nil
}

// resumable says whether what is there is a bootstrap that was cut short, which may go on.
func resumable(names []string, found map[string]Found, done, free int) error {
	var others []string
	for _, name := range names {
		if found[name].ClusterID == "" {
			others = append(others, name)
			continue
		}
		// One that is known and not here may have buckets that seem to be free.
		for _, known := range found[name].Known {
			if _, ok := found[known]; !ok {
				return &shard.Error{Code: shard.NonEmpty, ReplicaSet: name, Reason: fmt.Sprintf("it knows of replica set %s, of which no node is there", known)}
			}
		}
	}
	switch {
	case len(others) == 0:
		return &shard.Error{Code: shard.NonEmpty, Reason: fmt.Sprintf("all %d replica sets are part of the cluster", done)}
	case free == 0 && !planned(others, names, found):
		return &shard.Error{Code: shard.NonEmpty, Reason: "the buckets are all somewhere; add replica sets that came later with: switchyard cluster add-set " + others[0]}
	case !planned(others, names, found):
		return &shard.Error{Code: shard.NonEmpty, Reason: fmt.Sprintf("replica set %s was not part of the bootstrap that was begun; stop its nodes until that is done, and then add it", others[0])}
	}
	return nil
}

// planned says that every set that was made knows all the others: they were in its plan.
func planned(others, names []string, found map[string]Found) bool {
	for _, name := range names {
		if found[name].ClusterID == "" {
			continue
		}
		for _, other := range others {
			if !slices.Contains(found[name].Known, other) {
				return false
			}
		}
	}
	return true
}

func (p Planned) message() *v1.PlannedReplicaSet {
	out := &v1.PlannedReplicaSet{Name: p.Name, Weight: p.Weight, Buckets: spansOf(slices.Clone(p.Buckets)), BucketCount: uint32(len(p.Buckets)), Done: p.Done}
	for _, m := range p.Members {
		out.Members = append(out.Members, &v1.StorageMember{Id: m.ID, Address: m.Address, Voter: m.Voter})
	}
	return out
}
