package rebalancer

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-dev/switchyard/shard"
)

// Store is what a rebalancer asks and tells. All methods may be called from any goroutine.
type Store interface {
	// Master reports whether this node is its replica set's master. It does not wait.
	Master() bool
	// Known returns the names of all replica sets that were ever seen and not forgotten, this one
	// included. It does not wait.
	Known() []string
	// Changed returns a channel that is closed when something changes that a rebalancer should know:
	// mastership, the known replica sets and which of them answer, weights, locks, pins, on and off;
	// not when buckets move. Each call returns the channel for what changes from then on.
	Changed() <-chan struct{}
	// Sets asks the masters of all known replica sets, each once, and waits for all of them, for at
	// most a few seconds. A set that does not answer has Err.
	Sets(ctx context.Context) ([]Set, error)
	// Movable returns the buckets that a replica set could send now: ACTIVE or READONLY and not moving.
	Movable(ctx context.Context, replicaSet string) ([]Bucket, error)
	// Send moves buckets and returns when each has arrived or failed, with an error when not all
	// arrived.
	Send(ctx context.Context, source, destination string, buckets []shard.BucketID) (Sent, error)
}

// Sent is what became of a list of buckets.
type Sent struct {
	// Moved is how many arrived.
	Moved int
	// Served is how many calls the source served meanwhile, of whatever bucket.
	Served uint64
}

// Options of New.
type Options struct {
	// Store is required.
	Store Store
	// ReplicaSet is the name of this node's replica set. Required.
	ReplicaSet string
	// BucketCount returns the cluster's number of buckets as it is now. Required.
	BucketCount func() uint32
	// Threshold is the imbalance, in percent, that starts moving buckets. Default 1. Once it has
	// started it goes on until the counts are perfect.
	Threshold float64
	// Limits of what is under way at once.
	Limits Limits
	// Idle is how often it looks when nothing has changed. Default 10 s.
	Idle time.Duration
	// Logger takes what it does. Default: nothing.
	Logger *slog.Logger
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Waits of the shell.
const (
	defaultIdle      = 10 * time.Second
	defaultThreshold = 1.0
	// settle is the least time between two looks, so that a burst of changes makes one.
	settle = 20 * time.Millisecond
	// firstBackoff doubles with every failure in a row, up to lastBackoff.
	firstBackoff = 250 * time.Millisecond
	lastBackoff  = 10 * time.Second
	// foreignWait is how often it looks whether moves that are not its own have ended, and patience how long
	// it waits for that; then it goes on without those buckets.
	foreignWait = 500 * time.Millisecond
	patience    = 30 * time.Second
)

// Rebalancer spreads the buckets. All methods may be called from any goroutine.
type Rebalancer struct {
	o       Options
	log     *slog.Logger
	metrics *metrics
	wake    chan struct{}

	mu     sync.Mutex
	status Status
	job    job

	// Of Run's goroutine.
	failures     int
	foreignSince time.Time
	said         string
}

// New returns a rebalancer, for Run.
func New(o Options) (*Rebalancer, error) {
	if o.Store == nil || o.ReplicaSet == "" || o.BucketCount == nil || !(o.Threshold >= 0) || o.Idle < 0 {
		return nil, &shard.Error{Code: shard.InvalidConfig,
			Reason: "a rebalancer needs a store, the name of its replica set, a bucket count, and a threshold and waits that are not negative"}
	}
	if o.Threshold == 0 {
		o.Threshold = defaultThreshold
	}
	if o.Idle == 0 {
		o.Idle = defaultIdle
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Limits = o.Limits.withDefaults()
	r := &Rebalancer{o: o, log: o.Logger, wake: make(chan struct{}, 1)}
	r.status = Status{On: true, Phase: Idle, Reason: "it has not looked yet"}
	var err error
	if r.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, err
	}
	return r, nil
}

// Wake makes it look now.
func (r *Rebalancer) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, which is the error it returns.
func (r *Rebalancer) Run(ctx context.Context) error {
	for {
		changed := r.o.Store.Changed()
		wait := r.round(ctx, changed)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.wake:
		case <-changed:
		}
		timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settle):
		}
	}
}

// Chosen returns the replica set whose master rebalances: the smallest of the names.
func Chosen(known []string) string {
	chosen := ""
	for _, name := range known {
		if chosen == "" || name < chosen {
			chosen = name
		}
	}
	return chosen
}

// here reports whether this node is the one that rebalances.
func (r *Rebalancer) here() (bool, string) {
	where := Chosen(r.o.Store.Known())
	return where == r.o.ReplicaSet && r.o.Store.Master(), where
}

// backoff returns the wait after a failure.
func (r *Rebalancer) backoff() time.Duration {
	d := min(firstBackoff<<min(r.failures, 10), lastBackoff)
	r.failures++
	return d
}
