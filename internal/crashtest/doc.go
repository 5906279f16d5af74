// Package crashtest drives the built program from outside, as an unkind world
// would: it kills the server with SIGKILL in the middle of load, tears and
// damages its log between runs, fills its disk, stops it while workers wait, and
// lets workers vanish or freeze. What every client asked and was told goes into
// a history, and internal/history judges it.
//
// The same is done to a cluster of three nodes, whose wires are cut besides, each direction by
// itself (Linux only).
//
// The package holds tests only. They build the program once, use loopback ports
// and temporary folders, and are left out by `go test -short`. SIGKILL leaves the
// operating system's cache alone, so what a power cut does to unsynced bytes is
// tested in shard/engine/wal, on a file system that forgets them.
package crashtest
