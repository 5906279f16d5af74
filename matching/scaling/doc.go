// Package scaling decides how many partitions a queue has.
//
// A Manager belongs to a queue's root partition. It is told of added tasks and of
// what each partition says about itself, and proposes new counts from time to time;
// a proposal takes effect only after it has been stored (Commit). New tasks go to
// the first Write partitions, polls to the first Read ones. When there are to be
// fewer partitions, the write count falls first, by steps; a partition that takes no
// tasks any more is polled on until it says that it is empty, and only then the read
// count falls. So no task is ever in a partition that nobody polls.
//
// It is pure: it does no I/O, reads no clock and rolls no dice. A Manager belongs to
// one goroutine or lock.
package scaling
