// Package matching keeps task queues: it takes tasks, matches them with waiting
// pollers in memory, and keeps what finds no poller in a durable backlog.
//
// # A queue and its partitions
//
// A queue is split into partitions; a partition is owned by one node at a time
// and all its rows lie in one bucket of the store. The owner decides everything
// in memory and writes the outcome; the store only fences: a write carries the
// range id that the owner took when it loaded the partition, and a write with an
// older range id is refused. An owner that is told so unloads at once.
//
// # The core and its shell
//
// The core (core*.go) is a state machine without I/O, clock or randomness of its
// own. It takes requests, changes its state at once, and appends the rows that
// make the change durable to the batch that is being built. The answers to those
// requests are tied to that batch: nobody hears of a change before it is durable.
// Since batches are applied in the order in which they are built, a later change
// may build on an earlier one that is still in flight. If a write fails, the whole
// partition is dropped from memory and loaded again from the store, so that memory
// can never be ahead of the truth for long.
//
// The shell (owner.go) is one goroutine per partition. It hands requests to the
// core, submits batches while a bounded number is in flight, and runs the reads
// that the core asks for. Concurrent adds, leases and completions share batches,
// and so share the fsync: the cost of a write is paid per batch.
//
// # The rows of a partition
//
// Every row's key starts with the partition's uid, 8 bytes given out when the
// partition is first used, so that a queue that is deleted and created again never
// meets its old rows.
//
//	space     key                   value
//	queues    namespace NUL queue   configuration of a queue (in the bucket of the namespace)
//	meta      partition key         uid, range id, next sequence number, watermarks, counts
//	backlog   uid level seq         body of a task that was ready when it was added
//	parked    uid seq               body of a task that was delayed when it was added
//	leases    uid seq               lease: attempt, deadline, nonce, worker
//	schedule  uid time seq          a task that waits for a time: attempt, last error
//	when      uid seq               the time under which a task is in schedule
//	dead      uid seq               a dead task: attempts, error, time of death
//	ids       uid task-id           sequence number by task id; how the task ended
//	ended     uid time nonce        ids of the tasks that one write ended
//
// A body is written once and never moves. What happens to a task is said by at
// most one small row beside it: none while it is fresh in the backlog, else leases,
// schedule (with when), or dead.
//
// Fresh tasks are read in order of sequence number from a watermark kept in the
// meta row, so loading a partition costs the same however many tasks came and went
// before.
package matching
