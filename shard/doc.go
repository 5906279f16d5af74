// Package shard holds the rules of virtual buckets: how a sharding key becomes a
// bucket, which states a bucket can be in and what each state allows, and the
// errors that everything built on buckets answers with.
//
// The package is pure: it does no I/O, reads no clock and rolls no dice.
package shard
