// Package admin is the cluster as its operators see it: it implements v1.ClusterService.
//
// A Service keeps nothing. It asks the members of the replica sets through the node's router, and
// the membership which nodes there are, so every node answers the same for the whole cluster,
// also before the store is bootstrapped. What it changes, it changes with the masters' own
// operations, which are safe whoever asks for them; so two operators on two nodes do no harm.
//
// # Bootstrapping
//
// The nodes say in their configuration which replica set they belong to; Plan groups them and
// deals the buckets out. Each replica set is made in one call to one of its members: first the
// Raft group, then the names of all replica sets of the plan, weight, buckets, and at last the
// cluster's id, which says that the replica set is done. When that is cut short, the next
// bootstrap finds which sets are done, and that none of those that were planned is missing, and
// goes on with the rest. Only buckets that nobody has are dealt out.
//
// # Checking
//
// Masters say which buckets they have. A bucket in the middle of a move may look as if it had no
// owner or two, because the two sides are asked one after the other; so what looks wrong is
// looked at again until it is right or nothing changes any more. Rows of a replica are compared
// with the master's between two equal readings of the master, at an index that the replica
// has reached: then a difference is one.
package admin
