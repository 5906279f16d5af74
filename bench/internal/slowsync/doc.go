// Package slowsync runs a command so that each of its syncs to disk takes longer
// by a fixed time, as on a slower disk, and counts them.
//
// It needs no cooperation of the command and works alike for programs in C,
// Erlang and Go: a seccomp filter hands every call that syncs to a supervisor,
// which waits and then lets the kernel carry the call out. Other system calls run
// untouched and at full speed. (A tracer such as strace would also stop a traced
// program at each signal, and Go's runtime sends itself many.)
//
// What counts as a sync: fsync, fdatasync, sync, syncfs, msync with MS_SYNC,
// pwritev2 with RWF_DSYNC or RWF_SYNC, and opening a file with O_DSYNC or O_SYNC.
// The last stands for the write that follows: programs that write small state
// files open, write once and close. A program that keeps such a file open and
// syncs with each write escapes the delay; DsyncOpens tells how many were opened.
// sync_file_range is not a sync: it promises no durability.
package slowsync
