package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// Mode says what a call may do and who may answer it.
type Mode int

// Modes of a call. While a replica set has one member, all reads go to it.
const (
	// CallRW writes, on the master.
	CallRW Mode = iota
	// CallRO reads, from the master first.
	CallRO
	// CallBRO reads, balanced over all replicas.
	CallBRO
	// CallRE reads, from a replica first.
	CallRE
	// CallBRE reads, balanced over replicas other than the master.
	CallBRE
)

var modeNames = [...]string{"RW", "RO", "BRO", "RE", "BRE"}

func (m Mode) String() string {
	if m >= 0 && int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// ReplicaSet is what the router needs of a replica set. *storage.Storage is one.
type ReplicaSet interface {
	// ReplicaSet returns its name, unique in the cluster.
	ReplicaSet() string
	// BucketCount returns the number of buckets of its cluster.
	BucketCount() uint32
	// Write, WriteAsync and Read run functions; see package storage.
	Write(ctx context.Context, bucket shard.BucketID, fn string, args []byte) ([]byte, error)
	WriteAsync(bucket shard.BucketID, fn string, args []byte, done func([]byte, error))
	Read(ctx context.Context, bucket shard.BucketID, fn string, args []byte) ([]byte, error)
	// BucketState returns the state of a bucket there, and where a SENT one went.
	BucketState(bucket shard.BucketID) (shard.State, string)
	// BucketCounts returns how many buckets are in each state there.
	BucketCounts() map[shard.State]int
	// Status returns its condition.
	Status() engine.Status
}

// local is a replica set in this process, whose rows can be seen without a call.
type local interface {
	View(ctx context.Context, bucket shard.BucketID, fn func(*storage.View) error) error
}

// maxPauses is how many times the first pause between two tries the longest one is.
const maxPauses = 64

// Options of New. The zero value of a field is its default.
type Options struct {
	// ReplicaSets are those of the cluster, at least one.
	ReplicaSets []ReplicaSet
	// RetryPause is the first pause before a call that met a bucket on the move is tried
	// again (default 1 ms). It doubles up to 64 times that.
	RetryPause time.Duration
	// MaxTries bounds the tries of one call (default 1000); the call's deadline does too.
	MaxTries int
	// CallTimeout bounds a Call whose context has no deadline (default 30 s). A View
	// has its context alone: it is in this process and waits for nobody but the disk.
	CallTimeout time.Duration
}

// Router sends calls to replica sets. All methods may be called from any goroutine.
type Router struct {
	opts Options
	// routes is the replica set of each bucket, as far as known.
	routes []atomic.Pointer[route]
	known  []*route
}

// route is a place that buckets can be.
type route struct {
	set   ReplicaSet
	local local // nil when in another process
	name  string
}

// New makes a router.
func New(opts Options) (*Router, error) {
	if len(opts.ReplicaSets) == 0 {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: "a router needs a replica set"}
	}
	if opts.RetryPause == 0 {
		opts.RetryPause = time.Millisecond
	}
	if opts.MaxTries == 0 {
		opts.MaxTries = 1000
	}
	if opts.CallTimeout == 0 {
		opts.CallTimeout = 30 * time.Second
	}
	if opts.CallTimeout < 0 || opts.RetryPause < 0 || opts.MaxTries < 0 {
		return nil, &shard.Error{Code: shard.InvalidConfig, Reason: fmt.Sprintf("retry pause %v, tries %d and call timeout %v must not be negative", opts.RetryPause, opts.MaxTries, opts.CallTimeout)}
	}
	count := opts.ReplicaSets[0].BucketCount()
	r := &Router{opts: opts, routes: make([]atomic.Pointer[route], count+1)}
	for _, set := range opts.ReplicaSets {
		name := set.ReplicaSet()
		if set.BucketCount() != count {
			return nil, &shard.Error{Code: shard.InvalidConfig, ReplicaSet: name, Reason: fmt.Sprintf("it has bucket_count %d, others have %d", set.BucketCount(), count)}
		}
		if slices.Contains(r.RouteAll(), name) {
			return nil, &shard.Error{Code: shard.InvalidConfig, ReplicaSet: name, Reason: "the name stands twice"}
		}
		l, _ := set.(local)
		r.known = append(r.known, &route{set, l, name})
	}
	r.discover()
	return r, nil
}

// discover asks every replica set for its buckets.
func (r *Router) discover() {
	for b := shard.BucketID(1); int(b) < len(r.routes); b++ {
		r.find(b)
	}
}

// find looks for the replica set that has a bucket and notes it. Nil when none has.
func (r *Router) find(b shard.BucketID) *route {
	for _, k := range r.known {
		if s, _ := k.set.BucketState(b); s.CanRead() || s == shard.Receiving {
			r.routes[b].Store(k)
			return k
		}
	}
	return nil
}

// BucketCount returns the cluster's number of buckets.
func (r *Router) BucketCount() uint32 { return uint32(len(r.routes) - 1) }

// BucketID returns the bucket of a sharding key, by MPCRC32. Several parts are a list.
func (r *Router) BucketID(key ...any) (shard.BucketID, error) {
	hash, err := shard.MPCRC32(key...)
	if err != nil {
		return 0, err
	}
	return shard.BucketOf(hash, r.BucketCount()), nil
}

// Route returns the name of the replica set that has a bucket.
func (r *Router) Route(b shard.BucketID) (string, error) {
	k, err := r.route(b)
	if err != nil {
		return "", err
	}
	return k.name, nil
}

// RouteAll returns the names of all replica sets, in the order in which they were given.
func (r *Router) RouteAll() []string {
	names := make([]string, len(r.known))
	for i, k := range r.known {
		names[i] = k.name
	}
	return names
}

func (r *Router) route(b shard.BucketID) (*route, error) {
	if b < 1 || int(b) >= len(r.routes) {
		return nil, &shard.Error{Code: shard.NoRouteToBucket, Bucket: b, Reason: fmt.Sprintf("buckets are numbered 1 to %d", len(r.routes)-1)}
	}
	if k := r.routes[b].Load(); k != nil {
		return k, nil
	}
	if k := r.find(b); k != nil {
		return k, nil
	}
	return nil, &shard.Error{Code: shard.NoRouteToBucket, Bucket: b}
}

// Call runs a function on a bucket and waits for its result. Within ctx it waits out a
// move of the bucket and follows it. A write whose outcome is unknown is not repeated.
// When ctx ends before the result of a write is there, args must stay as they are.
func (r *Router) Call(ctx context.Context, b shard.BucketID, mode Mode, fn string, args []byte) (result []byte, err error) {
	if mode < CallRW || mode > CallBRE {
		return nil, &shard.Error{Code: shard.InvalidArguments, Bucket: b, Reason: mode.String() + " is not a mode"}
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.opts.CallTimeout)
		defer cancel()
	}
	err = r.try(ctx, b, func(k *route) error {
		if mode == CallRW {
			result, err = k.set.Write(ctx, b, fn, args)
		} else {
			result, err = k.set.Read(ctx, b, fn, args)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// try calls do with the bucket's replica set until the outcome is not one that passes.
func (r *Router) try(ctx context.Context, b shard.BucketID, do func(*route) error) error {
	pause := r.opts.RetryPause
	for n := 1; ; n++ {
		k, err := r.route(b)
		if err == nil {
			err = do(k)
		}
		var e *shard.Error
		if err == nil || !errors.As(err, &e) || n >= r.opts.MaxTries {
			return err
		}
		switch e.Code {
		case shard.WrongBucket:
			// Forget the route; the destination may be known, else everybody is asked.
			r.forget(b, k, e.Destination)
			if r.routes[b].Load() == nil && r.find(b) == nil {
				return err
			}
		case shard.TransferIsInProgress, shard.MissingMaster, shard.BucketIsLocked:
		default:
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w while waiting: %w", ctx.Err(), err)
		}
		pause = min(2*pause, maxPauses*r.opts.RetryPause)
	}
}

// forget drops the route of a bucket, if it still is k, for the one of a destination.
func (r *Router) forget(b shard.BucketID, k *route, destination string) {
	var next *route
	for _, o := range r.known {
		if o.name == destination {
			next = o
		}
	}
	r.routes[b].CompareAndSwap(k, next)
}

// CallRWAsync runs a write function and calls done with its outcome. It does not wait,
// and done never runs inside it: it runs on a goroutine of the engine and must be quick.
// Commands of one goroutine are applied in the order of its calls. args belongs to the
// engine until done ran. Unlike Call it does not repeat anything: a bucket on the move
// is an error for the caller to handle.
func (r *Router) CallRWAsync(b shard.BucketID, fn string, args []byte, done func(result []byte, err error)) {
	k, err := r.route(b)
	if err != nil {
		go done(nil, err)
		return
	}
	k.set.WriteAsync(b, fn, args, done)
}

// View calls fn with a view of a bucket's rows at this moment, without a call: for
// readers that read much. CallRW is a view of the master's rows, as CallRO prefers. fn runs
// again when the bucket moves meanwhile. The bucket must be on a replica set in this
// process, else the answer is NO_ROUTE_TO_BUCKET.
func (r *Router) View(ctx context.Context, b shard.BucketID, mode Mode, fn func(*storage.View) error) error {
	if mode < CallRW || mode > CallBRE {
		return &shard.Error{Code: shard.InvalidArguments, Bucket: b, Reason: mode.String() + " is not a mode"}
	}
	return r.try(ctx, b, func(k *route) error {
		if k.local == nil {
			return &shard.Error{Code: shard.NoRouteToBucket, Bucket: b, ReplicaSet: k.name, Reason: "the replica set is in another process"}
		}
		return k.local.View(ctx, b, fn)
	})
}
