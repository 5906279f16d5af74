package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/switchyard-dev/switchyard/frontend"
	"github.com/switchyard-dev/switchyard/matching"
)

// DefaultListen is the address that a node listens on and that clients dial
// when they are not told otherwise.
const DefaultListen = "127.0.0.1:7480"

// Durability modes.
const (
	// DurabilityFsync: a write is acknowledged after it is on stable storage.
	DurabilityFsync = "fsync"
	// DurabilityInterval: the log is synced every SyncInterval; a crash of the
	// machine may lose what was acknowledged since. A crash of the process
	// alone loses nothing.
	DurabilityInterval = "interval"
)

// Roles of a node.
const (
	RoleFrontend = "frontend"
	RoleMatching = "matching"
	RoleStorage  = "storage"
)

// Config is the configuration of a node. The yaml names are the names of the
// settings; a nested one is named with dots ("log.level"). docs/configuration.md
// lists all of them.
type Config struct {
	// Listen is the address to listen on, "host:port"; port 0 picks a free one.
	Listen string `yaml:"listen"`
	// Advertise is where clients reach the node, "host:port", if that is not Listen.
	Advertise string `yaml:"advertise"`
	// Roles says what the node runs. A node by itself runs all three.
	Roles []string `yaml:"roles"`
	// Node says which node this is.
	Node NodeConfig `yaml:"node"`
	// Cluster makes the node part of a cluster.
	Cluster ClusterConfig `yaml:"cluster"`
	// DataDir is the folder of the node's data; it is made when missing.
	DataDir string `yaml:"data_dir"`
	// Memory keeps all data in memory: it is gone when the node stops.
	Memory bool `yaml:"memory"`
	// Durability is "fsync" or "interval".
	Durability string `yaml:"durability"`
	// SyncInterval is the time between two syncs of the log with durability
	// "interval".
	SyncInterval time.Duration `yaml:"sync_interval"`
	// BucketCount is the number of virtual buckets, set when the data folder
	// is made.
	BucketCount int `yaml:"bucket_count"`
	// AutoCreateQueues makes a queue when the first task is added to it or the
	// first worker polls it.
	AutoCreateQueues bool `yaml:"auto_create_queues"`
	// ShutdownTimeout is how long a stopping node waits for calls in progress.
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout"`
	// Pprof serves /debug/pprof.
	Pprof bool `yaml:"pprof"`
	// Log says what is logged and how.
	Log LogConfig `yaml:"log"`
	// Matching bounds the task queues.
	Matching MatchingConfig `yaml:"matching"`
	// Storage tunes the storage engine.
	Storage StorageConfig `yaml:"storage"`
	// Rebalancer spreads the buckets over the replica sets.
	Rebalancer RebalancerConfig `yaml:"rebalancer"`
	// Limits bounds requests and work in progress.
	Limits frontend.Limits `yaml:"limits"`
}

// LogConfig says what is logged and how.
type LogConfig struct {
	// Level is "debug", "info", "warn" or "error".
	Level string `yaml:"level"`
	// Format is "text" or "json".
	Format string `yaml:"format"`
}

// MatchingConfig bounds what the task queues keep in memory and take on, most of
// it for each partition of a queue.
type MatchingConfig struct {
	// Partitions is how many a new queue has that does not say. 0 is 1 on a node by
	// itself, where more only cost, and matching.DefaultPartitions in a cluster.
	Partitions int `yaml:"partitions"`
	// Spread is how many partitions of a queue are laid on successive nodes of the ring;
	// 0 places each by itself. All nodes of a cluster must have the same.
	Spread SpreadConfig `yaml:"spread"`
	// IdleTime without use after which a partition leaves memory.
	IdleTime time.Duration `yaml:"idle_time"`
	// MaxPartitions is the most partitions in memory on the node.
	MaxPartitions int `yaml:"max_partitions"`
	// Leases is the most tasks of a partition in workers' hands at a time;
	// further polls wait.
	Leases int `yaml:"leases"`
	// WaitingPolls is the most polls that wait at a partition.
	WaitingPolls int `yaml:"waiting_polls"`
	// WindowTasks and WindowBytes bound the ready tasks of a partition that are
	// in memory; the rest stays in the store.
	WindowTasks int `yaml:"window_tasks"`
	WindowBytes int `yaml:"window_bytes"`
	// PendingCalls and PendingBytes bound what waits to be written at a partition.
	PendingCalls int `yaml:"pending_calls"`
	PendingBytes int `yaml:"pending_bytes"`
	// PollBytes is about the most that one poll returns. The default fits into
	// the 4 MiB that gRPC clients take when they are not told otherwise.
	PollBytes int `yaml:"poll_bytes"`
}

// StorageConfig tunes the storage engine.
type StorageConfig struct {
	// BlockCacheBytes bounds the cache of table blocks.
	BlockCacheBytes int64 `yaml:"block_cache_bytes"`
	// MemtableBytes is the size of one table in memory.
	MemtableBytes int64 `yaml:"memtable_bytes"`
	// SnapshotLogBytes is how much new log leads to a snapshot, after which the
	// log is cut. It bounds the time of a restart after a crash.
	SnapshotLogBytes int64 `yaml:"snapshot_log_bytes"`
	// InFlightCommands and InFlightBytes bound the writes in progress.
	InFlightCommands int   `yaml:"in_flight_commands"`
	InFlightBytes    int64 `yaml:"in_flight_bytes"`
	// CopyBytesPerSecond is how fast the buckets that move away are copied at most. It is
	// less while the node's writes take longer for it.
	CopyBytesPerSecond int64 `yaml:"copy_bytes_per_second"`
}

// DefaultConfig returns the configuration of a node that is not configured.
func DefaultConfig() Config {
	return Config{
		Listen:           DefaultListen,
		Roles:            []string{RoleFrontend, RoleMatching, RoleStorage},
		DataDir:          "./switchyard-data",
		Durability:       DurabilityFsync,
		SyncInterval:     100 * time.Millisecond,
		BucketCount:      3000,
		AutoCreateQueues: true,
		ShutdownTimeout:  10 * time.Second,
		Log:              LogConfig{Level: "info", Format: "text"},
		Matching: MatchingConfig{
			Spread:        SpreadConfig{Size: 8},
			IdleTime:      5 * time.Minute,
			MaxPartitions: 100_000,
			Leases:        100_000,
			WaitingPolls:  10_000,
			WindowTasks:   8192,
			WindowBytes:   16 << 20,
			PendingCalls:  10_000,
			PendingBytes:  32 << 20,
			PollBytes:     3_500_000,
		},
		Cluster: ClusterConfig{
			Listen:       DefaultClusterListen,
			Gossip:       DefaultGossip,
			ReplicaSet:   "s1",
			AlignChanges: time.Second,
			Detection:    1500 * time.Millisecond,
		},
		Rebalancer: RebalancerConfig{Threshold: 1, MaxSending: 100, MaxReceiving: 100, MaxSendingBytes: 64 << 20, BusyShare: 0.2},
		Storage: StorageConfig{
			BlockCacheBytes:    64 << 20,
			MemtableBytes:      64 << 20,
			SnapshotLogBytes:   128 << 20,
			InFlightCommands:   16384,
			InFlightBytes:      256 << 20,
			CopyBytesPerSecond: 90 << 20,
		},
		Limits: frontend.DefaultLimits(),
	}
}

// Validate returns an error that names the setting which is wrong.
func (c Config) Validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen: %q is not host:port: %w", c.Listen, err)
	}
	for _, r := range c.Roles {
		switch r {
		case RoleFrontend, RoleMatching, RoleStorage:
		default:
			return fmt.Errorf("roles: %q is not a role; known are frontend, matching, storage", r)
		}
	}
	if err := c.validateCluster(); err != nil {
		return err
	}
	if c.DataDir == "" && !c.Memory {
		return errors.New("data_dir: it is empty; name a folder, or set memory")
	}
	if c.Durability != DurabilityFsync && c.Durability != DurabilityInterval {
		return fmt.Errorf("durability: %q is neither fsync nor interval", c.Durability)
	}
	if _, err := c.Log.level(); err != nil {
		return fmt.Errorf("log.level: %w", err)
	}
	if f := c.Log.Format; f != "text" && f != "json" {
		return fmt.Errorf("log.format: %q is neither text nor json", f)
	}
	for _, d := range []struct {
		name             string
		value, low, high time.Duration
	}{
		{"sync_interval", c.SyncInterval, time.Millisecond, time.Minute},
		{"matching.idle_time", c.Matching.IdleTime, time.Second, 24 * time.Hour},
		{"shutdown_timeout", c.ShutdownTimeout, 0, time.Hour},
	} {
		if d.value < d.low || d.value > d.high {
			return fmt.Errorf("%s: it is %v and must be between %v and %v", d.name, d.value, d.low, d.high)
		}
	}
	for _, n := range []struct {
		name             string
		value, low, high int64
	}{
		{"bucket_count", int64(c.BucketCount), 1, 1_000_000},
		{"storage.block_cache_bytes", c.Storage.BlockCacheBytes, 1 << 20, 1 << 40},
		{"storage.memtable_bytes", c.Storage.MemtableBytes, 1 << 20, 1 << 30},
		{"storage.snapshot_log_bytes", c.Storage.SnapshotLogBytes, 1 << 20, 1 << 40},
		{"storage.in_flight_commands", int64(c.Storage.InFlightCommands), 1, 10_000_000},
		{"storage.in_flight_bytes", c.Storage.InFlightBytes, 1 << 20, 1 << 40},
		{"storage.copy_bytes_per_second", c.Storage.CopyBytesPerSecond, 1 << 20, 1 << 40},
		{"matching.partitions", int64(c.Matching.Partitions), 0, matching.MaxPartitions},
		{"matching.max_partitions", int64(c.Matching.MaxPartitions), 1, 10_000_000},
		{"matching.leases", int64(c.Matching.Leases), 1, 100_000_000},
		{"matching.waiting_polls", int64(c.Matching.WaitingPolls), 1, 10_000_000},
		{"matching.window_tasks", int64(c.Matching.WindowTasks), 16, 10_000_000},
		{"matching.window_bytes", int64(c.Matching.WindowBytes), 1 << 16, 1 << 34},
		{"matching.pending_calls", int64(c.Matching.PendingCalls), 1, 10_000_000},
		{"matching.pending_bytes", int64(c.Matching.PendingBytes), 1 << 16, 1 << 34},
		{"matching.poll_bytes", int64(c.Matching.PollBytes), 1 << 10, 1 << 30},
	} {
		if n.value < n.low || n.value > n.high {
			return fmt.Errorf("%s: it is %d and must be between %d and %d", n.name, n.value, n.low, n.high)
		}
	}
	if err := c.Limits.Validate(); err != nil {
		return fmt.Errorf("limits.%w", err)
	}
	return nil
}

// level returns the level that Level names.
func (c LogConfig) level() (slog.Level, error) {
	switch c.Level {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%q is none of debug, info, warn, error", c.Level)
}
