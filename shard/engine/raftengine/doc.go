// Package raftengine is the default engine: a Raft group over hashicorp/raft, with
// the rows in Pebble.
//
// # The way of a command
//
// Propose puts a command in a queue and hands it to Raft. Raft's one thread takes all
// that waits, writes it to the log with one sync, and passes it on to the goroutine
// that applies; meanwhile the next commands gather. Applying writes rows into a Pebble
// batch without a sync, because the log is the write-ahead log and Pebble's own is
// off. The callers are answered by the goroutine that applies, one after the other, so
// nothing waits on a goroutine of its own.
//
// # What is durable
//
// Every Pebble batch also holds the number of the last command in it. Pebble writes its
// tables in the order of the batches, so after a crash the rows are those of some
// prefix of the log, and its number says which. The engine starts from there and
// applies the rest of the log; what is in the rows already is never applied twice.
//
// A snapshot is a Pebble checkpoint: hard links to the tables, not a copy of the rows.
// It is taken after a certain number of logged bytes, and always after the rows were
// flushed; only then is the log before it dropped. So at every moment rows on disk plus
// log are everything that was acknowledged.
//
// # The folder
//
//	meta.json    format version, cluster id, bucket count, id of this member
//	LOCK         held while a process uses the folder
//	log/         the Raft log, and Raft's vote
//	rows/        Pebble
//	snapshots/   the newest checkpoint, and one in the making (tmp-…)
//
// # When something breaks
//
// A failed write or sync, a full disk or a corrupt table ends the engine: it refuses
// everything from then on with STORE_FAILED, keeps saying why in Status, and calls
// Options.OnFatal, which should end the process. A restart replays the log. It never
// goes on after an error of which it cannot know what was kept.
//
// A disk that hangs gives no error. A master of several whose write takes longer than
// Options.HangTimeout falls silent, so that another one is elected, and goes on as a
// replica when its disk does.
//
// # Several members
//
// With Options.Transport the engine is one member of a group of up to seven. The master is
// Raft's leader: it alone takes commands, and others answer NON_MASTER with its name. A
// master that loses its place answers OUTCOME_UNKNOWN to commands that were with Raft. A
// read that must see every acknowledged write calls ReadBarrier first, which asks a
// majority and writes nothing. A member that is too far behind, or has lost its disk, gets
// a snapshot: the files of a checkpoint. Its rows count from the moment at which meta.json
// names their folder; before it a start finds the old ones. Without a transport the group is this member alone.
package raftengine
