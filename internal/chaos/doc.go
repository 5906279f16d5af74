// Package chaos has the tests of the whole store under faults: three replica sets of three
// members in one process, which talk gRPC over a network that can be cut, stalled and slowed
// down in each direction between any two, on disks that can hang and lose what was not synced.
// Clients work on keys through routers of several nodes while buckets move; what they saw must
// be linearizable, and nothing that was acknowledged may be missing in the end.
//
// The short form is part of the tests. The long form is
//
//	make chaos SEED=7 DURATION=2m
//
// It prints the seed, what was done to the cluster, and how the clients fared. When a history
// is not linearizable it is written to a folder with porcupine's picture of it.
package chaos
