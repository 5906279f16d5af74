package wal

import (
	"fmt"
	"log/slog"
	"time"
)

// Durability says when an entry survives a power cut. Any of them survives the end of the process.
type Durability uint8

const (
	// DurabilityFsync: when StoreLogs returns. The default.
	DurabilityFsync Durability = iota
	// DurabilityInterval: at most SyncInterval, or MaxUnsyncedBytes, later.
	DurabilityInterval
	// DurabilityNone: when the operating system likes. For tests: a log that was ever used like this may look damaged after a
	// power cut.
	DurabilityNone
)

func (d Durability) String() string {
	switch d {
	case DurabilityFsync:
		return "fsync"
	case DurabilityInterval:
		return "interval"
	case DurabilityNone:
		return "none"
	}
	return fmt.Sprintf("Durability(%d)", uint8(d))
}

// Defaults and limits of Options.
const (
	DefaultSegmentBytes     = 64 << 20
	MinSegmentBytes         = 4 << 10
	MaxSegmentBytes         = 1 << 30
	DefaultSyncInterval     = 100 * time.Millisecond
	DefaultMaxUnsyncedBytes = 16 << 20
	// firstSegmentBytes is the size of a new log's first segment; each further one is four times as large until
	// SegmentBytes, so that a new log need not wait for much to be written.
	firstSegmentBytes = 1 << 20
)

// Options are the settings of a log. The zero value is usable.
type Options struct {
	// SegmentBytes is the size of a segment file: MinSegmentBytes to MaxSegmentBytes, 0 for DefaultSegmentBytes. It may be
	// changed between two runs.
	SegmentBytes int64
	Durability   Durability
	// SyncInterval is the time between two syncs of DurabilityInterval, 0 for DefaultSyncInterval.
	SyncInterval time.Duration
	// MaxUnsyncedBytes bounds what DurabilityInterval can lose: beyond it StoreLogs syncs by itself. 0 for the default.
	MaxUnsyncedBytes int64
	// MustHave is the highest index that the log is known to have held and made durable, such as the applied index of the
	// state it feeds. A log that ends before it is damaged, even where its end looks like an unfinished write. 0 for none;
	// pass 0 when the state up to that index came with a snapshot from elsewhere.
	MustHave uint64
	// FS is the file system, nil for the machine's.
	FS FS
	// Logger gets what a person should know, nil for none.
	Logger *slog.Logger
	// OnLowSpace is called when the next segment cannot be prepared: the log goes on until the current segment is full, and
	// keeps trying to prepare one. It runs on a goroutine of the log and must not call the log.
	OnLowSpace func(error)
	// OnSync is called after each sync of entries with how long it took. It must be quick and must not call the log.
	OnSync func(time.Duration)
}

func (o *Options) setDefaults() error {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.SegmentBytes < MinSegmentBytes || o.SegmentBytes > MaxSegmentBytes {
		return fmt.Errorf("write-ahead log: segment size %d is not within %d to %d bytes", o.SegmentBytes, MinSegmentBytes, MaxSegmentBytes)
	}
	o.SegmentBytes &^= 4095
	if o.Durability > DurabilityNone {
		return fmt.Errorf("write-ahead log: unknown durability %v", o.Durability)
	}
	if o.SyncInterval == 0 {
		o.SyncInterval = DefaultSyncInterval
	}
	if o.MaxUnsyncedBytes == 0 {
		o.MaxUnsyncedBytes = DefaultMaxUnsyncedBytes
	}
	if o.SyncInterval < 0 || o.MaxUnsyncedBytes < 0 {
		return fmt.Errorf("write-ahead log: sync interval %v and unsynced bytes %d must not be negative", o.SyncInterval, o.MaxUnsyncedBytes)
	}
	if o.FS == nil {
		o.FS = OS
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
