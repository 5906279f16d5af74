// Package membership says which nodes the cluster has, what each of them does, and where
// it is reached; and it spreads small facts that all nodes should know.
//
// A Membership is a node's place in the cluster. Start makes one that finds the others by
// gossip (SWIM with Lifeguard's improvements, by hashicorp/memberlist), Static one with a
// fixed list of nodes, Single one of this node alone. All give immutable snapshots of what
// is known (View), tell subscribers when it changes, and keep facts.
//
// What a node sees is its own view: two nodes may differ for a moment. Nothing may rely on
// it for correctness; it says where to ask, and the store fences.
//
// # Who is let in
//
// A node that names another cluster, or another number of buckets, is refused on both
// sides, with a RefusedError that says why, and nothing of what it knows is taken over.
// So is a node with the name of one that is alive at another address.
//
// # Coming and going
//
// Seeds are asked for ever, with growing pauses, so nodes may start in any order. Nodes
// that vanish without goodbye are asked again too, so that the halves of a network that
// was cut find each other. A node that leaves can say beforehand from which second on it
// does nothing more (Drain), so that all nodes change their minds together; a start time
// does the same for a node that comes.
//
// # Facts
//
// A fact is a small value under a key that everybody gets: for example who is master of
// a replica set. It carries a version; the highest version wins, of equal ones that of the
// node whose name is greater. Facts stay when the node that told them is gone.
//
// Sources: Das, Gupta, Motivala, "SWIM", DSN 2002; Dadgar, Phillips, Currey, "Lifeguard",
// 2018.
package membership
