// Package router sends calls to the replica set that has their bucket.
//
// It keeps nothing on disk. A call names a bucket, a mode (write or read, and which
// members may answer a read), a function and its arguments. The router finds the replica set
// and its master and, until the caller's context ends, follows the bucket when it moves, waits
// while it changes hands, and looks for the new master when the old one is lost.
//
// # What it knows
//
// The router listens to every member of every replica set (storagerpc: Discover). The members
// say who is master, and masters say which buckets they have, and each change of that as it
// happens. What a call meets on its way teaches the router too. A bucket that nobody has told
// of makes it ask everybody, once for all who wait.
//
// # Who waits
//
// Calls that wait for a bucket stand in one queue. The first asks again after a pause that
// grows; the others ask rarely. News of the bucket, or the first one's success, wake all. So a
// bucket that cannot be written costs a few requests a second, whatever the number of callers.
//
// # One process
//
// A replica set in the same process is a *storage.Storage that is called directly, and a
// router that has only such (one node) has no goroutines and no connections.
package router
