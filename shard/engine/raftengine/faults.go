package raftengine

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// WithLogFS returns the options with another file system below the log: for tests that put
// faults there.
func (o Options) WithLogFS(fs wal.FS) Options {
	o.logFS = fs
	return o
}

// WithFS returns the options with another file system below all but the log: for tests that
// put faults there.
func (o Options) WithFS(fs vfs.FS) Options {
	o.fs = fs
	return o
}

// WithCloseGrace returns the options with another time that Close waits for a disk or a view
// after its context has ended: for tests that open the folder again.
func (o Options) WithCloseGrace(d time.Duration) Options {
	o.closeGrace = d
	return o
}
