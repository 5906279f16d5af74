// Package engine is the boundary between what a replica set's rows mean and how they
// are kept.
//
// An engine keeps the rows of one replica set and applies commands in one agreed
// order. It knows keys and values as bytes and nothing about buckets' states or
// functions; those are the [Machine]'s, which is package storage. The boundary is
// small on purpose, so that an engine can also be a database that runs the same
// functions in its transactions: apply a command, view a snapshot, report status.
package engine
