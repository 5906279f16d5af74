package wal

import (
	"errors"
	"fmt"
	"syscall"
)

var (
	// ErrFailed is wrapped by every error of a log that has failed for good.
	ErrFailed = errors.New("the write-ahead log has failed")
	// ErrClosed is returned by a log after Close.
	ErrClosed = errors.New("the write-ahead log is closed")
	// ErrCorrupt is wrapped by every CorruptionError.
	ErrCorrupt = errors.New("the write-ahead log is damaged")
	// ErrNotContiguous refuses entries that do not follow the last one.
	ErrNotContiguous = errors.New("log entries must have consecutive indexes")
	// ErrTooLarge refuses an entry of more than 1 GiB.
	ErrTooLarge = errors.New("log entry too large")
	// ErrMiddle refuses to delete entries that are neither first nor last.
	ErrMiddle = errors.New("only the first or the last entries of the log can be deleted")
)

// FailedError says what made a log fail for good. It wraps ErrFailed and the cause.
type FailedError struct {
	Op   string // "write", "sync", …
	File string
	Err  error
}

func (e *FailedError) Error() string {
	hint := "stop the node, check the disk and start it again"
	if errors.Is(e.Err, syscall.ENOSPC) || errors.Is(e.Err, syscall.EDQUOT) {
		hint = "free disk space and start the node again"
	}
	return fmt.Sprintf("%v: %s %s: %v; nothing was acknowledged after it: %s", ErrFailed, e.Op, e.File, e.Err, hint)
}

func (e *FailedError) Unwrap() []error { return []error{ErrFailed, e.Err} }

// CorruptionError says that bytes which were durable are no longer there. The log is not opened.
type CorruptionError struct {
	File   string
	Offset int64 // of the first frame that is not there
	// NextIndex is the index that the log can be read up to, exclusively: entries from here are damaged.
	NextIndex uint64
	// LastIndex is the last index known to have been written, 0 if unknown.
	LastIndex uint64
	Detail    string
}

func (e *CorruptionError) Error() string {
	span := fmt.Sprintf("entries from index %d on", e.NextIndex)
	if e.LastIndex >= e.NextIndex && e.LastIndex > 0 {
		span = fmt.Sprintf("entries from index %d to at least %d", e.NextIndex, e.LastIndex)
	}
	return fmt.Sprintf("%v: %s at byte %d: %s; %s were acknowledged and cannot be read. Nothing was changed. "+
		"Copy the folder, then restore it from a replica or a backup; as a last resort repair the log, which cuts it there and loses what follows",
		ErrCorrupt, e.File, e.Offset, e.Detail, span)
}

func (e *CorruptionError) Unwrap() error { return ErrCorrupt }
