// Package routed lets a node's rebalancer work on a real cluster: it asks and tells the masters of all
// replica sets through a router.
//
// # Which replica sets there are
//
// Each master notes, for good, every replica set that the topology shows and that belongs to the same
// cluster. A rebalancer does nothing unless all that were ever noted answer, so a replica set that is
// down, or cut off, is missed and not taken for one that never was.
//
// # On and off
//
// Whether to rebalance is a fact of every replica set, with a number. The highest number counts. It is
// the time of the request, or one more than the highest that was found, whichever is more; so one master that
// could be told is enough, and a replica set that was down meanwhile has no say. The rebalancer that
// works brings the others up to date.
package routed
