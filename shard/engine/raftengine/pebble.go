package raftengine

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// pebbleOptions are tuned for rows that are written once, read once in order and then
// deleted, at 100,000 and more a second.
func (e *Engine) pebbleOptions(fsys vfs.FS, r *rows) *pebble.Options {
	o := &e.opts
	po := &pebble.Options{
		FS:                 fsys,
		Logger:             pebbleLog{e},
		FormatMajorVersion: pebble.FormatNewest,
		DisableWAL:         true, // the Raft log is the write-ahead log
		CacheSize:          o.CacheBytes,
		MemTableSize:       o.MemTableBytes,
		// A flush that waits for a busy disk must not stop the applying at once.
		MemTableStopWritesThreshold: 4,
		// Compact early: a drained queue is tombstones, and they cost until they meet
		// their rows further down.
		L0CompactionThreshold: 4,
		L0StopWritesThreshold: 64,
		LBaseMaxBytes:         64 << 20,
		MaxOpenFiles:          4096,
		CompactionConcurrencyRange: func() (int, int) {
			return 1, 2
		},
		EventListener: e.pebbleEvents(r),
	}
	po.TargetFileSizes[0] = 8 << 20
	for i := range po.Levels {
		po.Levels[i].BlockSize = 16 << 10
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		po.Levels[i].FilterType = pebble.TableFilter
	}
	// Tables of which a good part is tombstones are compacted even when nothing else asks for it.
	po.Experimental.NumDeletionsThreshold = 64
	po.Experimental.DeletionSizeRatioThreshold = 0.3
	po.Experimental.TombstoneDenseCompactionThreshold = 0.05
	return po
}

// pebbleEvents listens for what must stop the engine. Pebble calls it with its own lock
// held, so nothing here calls Pebble back.
func (e *Engine) pebbleEvents(r *rows) *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			if e.closing.Load() || r.retired.Load() || errors.Is(err, pebble.ErrCancelledCompaction) || errors.Is(err, vfs.ErrUnsupported) {
				return
			}
			e.fail(fmt.Errorf("rows: %w", err))
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			e.fail(fmt.Errorf("rows: table %s is corrupt: %w", info.Path, info.Details))
		},
		DiskSlow: func(info pebble.DiskSlowInfo) {
			e.opts.Logger.Warn("the disk is slow", "operation", info.OpType.String(), "path", info.Path, "duration", info.Duration)
		},
		LowDiskSpace: func(info pebble.LowDiskSpaceInfo) {
			e.opts.Logger.Warn("the disk is nearly full", "available_bytes", info.AvailBytes, "total_bytes", info.TotalBytes)
		},
		FlushBegin: func(pebble.FlushInfo) {
			// The rows must never be ahead of the log on the disk: a restart after a loss
			// of power takes its place in the log from the rows.
			if e.opts.Durability != Interval || e.log == nil || r.retired.Load() {
				return
			}
			if err := e.log.Sync(); err != nil {
				e.fail(fmt.Errorf("log: %w", err))
			}
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			e.metrics.stalls.Add(1)
			e.opts.Logger.Warn("writing rows waits for the disk", "reason", info.Reason)
		},
	}
}
