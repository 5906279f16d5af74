// Package storage gives the rows of a replica set their meaning: buckets with states,
// and functions registered by name, which are the only way to data.
//
// A write function runs on every replica, in the order of the log, on one bucket. The
// bucket's state is checked in the same place of the log, so the check can never be
// stale. A read function runs on a view of one moment.
//
// # Rows
//
// A row is (bucket, space, key) → (hash, value). hash is the 32-bit hash of the row's
// sharding key, so that buckets can be split later. In the engine:
//
//	key     bucket (4 bytes, big endian) | space (1 byte) | key
//	value   hash (4 bytes, big endian) | value
//
// so a bucket is one range of keys, and a space of a bucket is one.
//
// Bucket 0 is nobody's: its space 1, "_bucket", says which buckets are here in which
// state. Space 0 of bucket 0 is the engine's.
//
// # Spaces
//
// Numbers are on disk. 0 to 15 are this package's (8 is kv's); others belong to whoever
// uses the storage.
package storage
