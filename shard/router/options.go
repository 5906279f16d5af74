package router

import (
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// ReplicaSet is a replica set of one member in this process. *storage.Storage is one.
type ReplicaSet = storagerpc.Storage

// maxPauses is how many times the first pause between two tries the longest one is.
const maxPauses = 64

// Options of New. The zero value of a field is its default.
type Options struct {
	// ReplicaSets are whole replica sets in this process. They are called without a network.
	ReplicaSets []ReplicaSet
	// Topology says where the other replica sets are. Nil when all are in ReplicaSets.
	Topology Topology
	// Local serves the member of one of the topology's replica sets that is in this process.
	// The member is called without a network.
	Local *storagerpc.Server
	// ClusterID is what all replica sets must have; empty: it is not checked.
	ClusterID string
	// BucketCount is what all replica sets must have. It may be left out when there is one
	// in this process.
	BucketCount uint32
	// Zone is where this process stands, and ZoneDistance how far zones are from each
	// other: nearer replicas answer first. Default: 0 within one zone, else 1.
	Zone         string
	ZoneDistance func(from, to string) int
	// Dial are options of the gRPC connections, credentials above all; Secure says that
	// there are credentials among them. Without, connections are in the clear.
	Dial   []grpc.DialOption
	Secure bool

	// RetryPause is the first pause before a call that met a bucket on the move is tried
	// again (default 1 ms). It doubles up to 64 times that. News of the bucket end it early.
	RetryPause time.Duration
	// MaxTries bounds the tries of one call (default 1000); the call's deadline does too.
	MaxTries int
	// CallTimeout bounds a Call whose context has no deadline (default 30 s), and a View of
	// a bucket in another process.
	CallTimeout time.Duration
	// ConnectTimeout bounds connecting to a member (default 2 s). Silence is after how long
	// without a word a member counts as lost (default 2 s).
	ConnectTimeout, Silence time.Duration
	// MaxCalls and MaxBytes bound the calls in flight to one member, and the bytes of their
	// arguments (default 16384 and 256 MiB). More are refused with OVERLOADED.
	MaxCalls int
	MaxBytes int64
	// Logger takes what happens to replica sets. Default: nothing.
	Logger *slog.Logger
}

func (o *Options) setDefaults() error {
	if len(o.ReplicaSets) == 0 && o.Topology == nil {
		return &shard.Error{Code: shard.InvalidConfig, Reason: "a router needs a replica set or a topology"}
	}
	if o.RetryPause == 0 {
		o.RetryPause = time.Millisecond
	}
	if o.MaxTries == 0 {
		o.MaxTries = 1000
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = 30 * time.Second
	}
	if o.ZoneDistance == nil {
		o.ZoneDistance = func(from, to string) int {
			if from == to {
				return 0
			}
			return 1
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CallTimeout < 0 || o.RetryPause < 0 || o.MaxTries < 0 || o.ConnectTimeout < 0 || o.Silence < 0 || o.MaxCalls < 0 || o.MaxBytes < 0 {
		return &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf(
			"retry pause %v, tries %d, call timeout %v, connect timeout %v, silence %v, calls %d and bytes %d must not be negative",
			o.RetryPause, o.MaxTries, o.CallTimeout, o.ConnectTimeout, o.Silence, o.MaxCalls, o.MaxBytes)}
	}
	return nil
}

// bucketCount finds the one bucket_count of all that is in this process and of the options.
func (o *Options) bucketCount() (uint32, error) {
	count, from := o.BucketCount, "the router"
	check := func(name string, n uint32) error {
		if count == 0 {
			count, from = n, name
		}
		if n != count {
			return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: name, Reason: fmt.Sprintf("it has bucket_count %d, %s has %d", n, from, count)}
		}
		return nil
	}
	for _, set := range o.ReplicaSets {
		if err := check(set.ReplicaSet(), set.BucketCount()); err != nil {
			return 0, err
		}
	}
	if o.Local != nil {
		if err := check(o.Local.Storage().ReplicaSet(), o.Local.Storage().BucketCount()); err != nil {
			return 0, err
		}
	}
	if count == 0 {
		return 0, &shard.Error{Code: shard.InvalidConfig, Reason: "a router that has no replica set in its process needs a bucket_count"}
	}
	return count, nil
}
