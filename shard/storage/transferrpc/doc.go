// Package transferrpc carries the messages of transfers, by which buckets move, between
// the masters of replica sets: TransferService over a storage, and the way to the
// services of the others through a router. What the messages say is told in package
// shard, and what they do in package storage.
//
// A storage needs its Link when it is opened, and a router may need the storage: so a Link
// is made first, given to the storage, and gets its router last, by Attach.
package transferrpc
