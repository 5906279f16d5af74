package raftengine

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftrpc"
	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

// Durability says when a command counts as logged.
type Durability int

const (
	// Fsync: after its log entry was synced to the disk. Survives loss of power.
	Fsync Durability = iota
	// Interval: after its log entry was handed to the operating system, which is told
	// to write it out every Options.SyncInterval. Survives the end of the process, and
	// loses up to that time when the machine loses power.
	Interval
)

func (d Durability) String() string {
	if d == Interval {
		return "interval"
	}
	return "fsync"
}

// Options of Open. The zero value of a field is its default.
type Options struct {
	// Dir is the folder of the engine; it is made when missing. Not used with Memory.
	Dir string
	// Memory keeps everything in memory: for tests and trials.
	Memory bool
	// Machine gives commands their meaning. Required.
	Machine engine.Machine
	// ClusterID names the cluster. On a new folder it is recorded, or made up when
	// empty; on an old one it must be the recorded one, or empty.
	ClusterID string
	// BucketCount is the cluster's number of buckets, recorded in a new folder; an old
	// folder must have the same. 1 to MaxBucketCount, default 3000.
	BucketCount uint32
	// Durability and SyncInterval (default 100 ms) say when a command counts as logged.
	Durability   Durability
	SyncInterval time.Duration

	// Transport connects this engine to the other members of its group, and says who it
	// is. The engine closes it. Without, the engine is a group of one for itself, made
	// when the folder is new.
	Transport *raftrpc.Transport
	// HeartbeatTimeout is how long a member waits for a sign of its master before it
	// stands for election (up to twice as long, by chance); heartbeats come about ten
	// times as often. Default 300 ms. LeaseTimeout is how long a master goes on without a
	// majority, at most HeartbeatTimeout, default five sixths of it. ElectionTimeout is
	// how long an election may take before it is tried again, at least HeartbeatTimeout,
	// which is its default.
	HeartbeatTimeout, LeaseTimeout, ElectionTimeout time.Duration
	// HangTimeout is how long one write to the disk may take before Status warns, and before
	// a master of several lets another member take its place (default 5 s, 10 ms to 10 m).
	HangTimeout time.Duration
	// TrailingBytes is how much of the log stays behind a snapshot for members that were
	// away for a short time (default half of SnapshotBytes). For members that answer and
	// lag behind it is up to four times as much. Others get a snapshot. A group of one
	// keeps nothing.
	TrailingBytes int64

	// MaxInFlight bounds commands proposed and not done (default 16384), and
	// MaxInFlightBytes their arguments (default 256 MiB). More are refused with
	// OVERLOADED.
	MaxInFlight      int
	MaxInFlightBytes int64
	// MaxArgs bounds the arguments of one command, in bytes (default 64 MiB).
	MaxArgs int

	// SnapshotBytes is how much is logged between two snapshots (default 128 MiB; with
	// Memory 16 MiB). It bounds the log and the time of a restart.
	SnapshotBytes int64
	// CacheBytes is the size of Pebble's block cache (default 64 MiB).
	CacheBytes int64
	// MemTableBytes is the size of one of Pebble's memtables (default 64 MiB), of which
	// there are up to four while the disk is busy.
	MemTableBytes uint64

	// Logger takes what the engine has to say. Default: nothing.
	Logger *slog.Logger
	// OnFatal is called once, on a goroutine of its own, when the engine has met an
	// error that it cannot go on with. It should report the error and end the process.
	OnFatal func(error)
	// Now is the clock that commands are stamped with. Default time.Now.
	Now func() time.Time

	// fs is Pebble's file system and logFS the log's; tests inject faults here.
	fs    vfs.FS
	logFS wal.FS
	// segmentBytes is the size of the log's files, 0 for its default.
	segmentBytes int64
	closeGrace   time.Duration
}

// DefaultBucketCount is the number of buckets when none is given.
const DefaultBucketCount = 3000

// MaxBucketCount is the largest number of buckets.
const MaxBucketCount = 1 << 20

// setDefaults fills what is zero and checks the rest.
func (o *Options) setDefaults() error {
	bad := func(format string, args ...any) error {
		return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf(format, args...)}
	}
	if o.Machine == nil {
		return bad("a machine is needed")
	}
	if !o.Memory && o.Dir == "" {
		return bad("a folder for the data is needed, or memory mode")
	}
	if o.BucketCount == 0 {
		o.BucketCount = DefaultBucketCount
	}
	if o.BucketCount > MaxBucketCount {
		return bad("bucket_count %d is over the limit of %d", o.BucketCount, MaxBucketCount)
	}
	if o.Durability != Fsync && o.Durability != Interval {
		return bad("durability %d is not known", o.Durability)
	}
	if o.SyncInterval == 0 {
		o.SyncInterval = 100 * time.Millisecond
	}
	if o.SyncInterval < time.Millisecond || o.SyncInterval > time.Minute {
		return bad("sync interval %v is not between 1ms and 1m", o.SyncInterval)
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 16384
	}
	if o.MaxInFlightBytes == 0 {
		o.MaxInFlightBytes = 256 << 20
	}
	if o.MaxArgs == 0 {
		o.MaxArgs = 64 << 20
	}
	if o.SnapshotBytes == 0 {
		o.SnapshotBytes = 128 << 20
		if o.Memory {
			o.SnapshotBytes = 16 << 20
		}
	}
	if o.TrailingBytes == 0 {
		o.TrailingBytes = max(o.SnapshotBytes/2, 1)
	}
	if err := o.setTimeouts(); err != nil {
		return err
	}
	if o.Transport != nil && int64(o.MaxArgs)+1<<20 > o.Transport.MaxRequestBytes() {
		return bad("arguments of %d bytes do not fit a request between members, which has at most %d", o.MaxArgs, o.Transport.MaxRequestBytes())
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 64 << 20
	}
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{"commands in flight", int64(o.MaxInFlight)}, {"bytes in flight", o.MaxInFlightBytes}, {"bytes of arguments", int64(o.MaxArgs)},
		{"bytes between snapshots", o.SnapshotBytes}, {"bytes of cache", o.CacheBytes}, {"bytes behind a snapshot", o.TrailingBytes},
	} {
		if limit.value < 1 {
			return bad("the limit of %s is %d; it must be at least 1", limit.name, limit.value)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnFatal == nil {
		o.OnFatal = func(error) {}
	}
	if o.closeGrace == 0 {
		o.closeGrace = closeGrace
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// soloHeartbeat is for a group of one without a transport, where timeouts only cost
// ticks of timers.
const soloHeartbeat = 2 * time.Second

func (o *Options) setTimeouts() error {
	if o.HeartbeatTimeout == 0 {
		o.HeartbeatTimeout = 300 * time.Millisecond
		if o.Transport == nil {
			o.HeartbeatTimeout = soloHeartbeat
		}
	}
	if o.LeaseTimeout == 0 {
		o.LeaseTimeout = o.HeartbeatTimeout * 5 / 6
	}
	if o.ElectionTimeout == 0 {
		o.ElectionTimeout = o.HeartbeatTimeout
	}
	if o.HangTimeout == 0 {
		o.HangTimeout = 5 * time.Second
	}
	if o.HangTimeout < 10*time.Millisecond || o.HangTimeout > 10*time.Minute {
		return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("hang timeout %v is not between 10ms and 10m", o.HangTimeout)}
	}
	if o.HeartbeatTimeout < 10*time.Millisecond || o.HeartbeatTimeout > time.Minute {
		return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("heartbeat timeout %v is not between 10ms and 1m", o.HeartbeatTimeout)}
	}
	if o.LeaseTimeout < 5*time.Millisecond || o.LeaseTimeout > o.HeartbeatTimeout {
		return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("lease timeout %v is not between 5ms and the heartbeat timeout of %v", o.LeaseTimeout, o.HeartbeatTimeout)}
	}
	if o.ElectionTimeout < o.HeartbeatTimeout || o.ElectionTimeout > 10*time.Minute {
		return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("election timeout %v is not between the heartbeat timeout of %v and 10m", o.ElectionTimeout, o.HeartbeatTimeout)}
	}
	return nil
}
