// Package router sends calls to the replica set that has their bucket.
//
// It keeps nothing on disk. A call names a bucket, a mode (write or read, and which
// replicas may answer a read), a function and its arguments; the router finds the
// replica set and follows the bucket when it moves. Replica sets are behind the
// interface [ReplicaSet]; one in the same process is a *storage.Storage.
package router
