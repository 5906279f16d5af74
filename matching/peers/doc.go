// Package peers connects the engines of a cluster: it implements matching.Peers over the
// membership of the cluster, the ring of its matching nodes and gRPC.
//
// The owner of a partition is what matching/routing says for the nodes that act as matching
// nodes in this node's view. A snapshot of ring and connections is made anew when the view
// changes; finding an owner reads it without a lock. The engine is told of each change, and
// while a change of the batch size is under way each second.
//
// A connection to a node that is gone is closed some time later, so that calls which it
// still answers end well, and is taken up again if the node comes back before.
package peers
