package router

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

// Router sends calls to replica sets. All methods may be called from any goroutine.
type Router struct {
	opts  Options
	count uint32
	// routes is the replica set of each bucket, as far as known; seqs counts the news of each.
	routes []atomic.Pointer[replicaSet]
	seqs   []atomic.Uint32
	waits  queues

	// sets are all replica sets, in the order in which they were made known. The slice is
	// replaced, never changed.
	sets    atomic.Pointer[[]*replicaSet]
	changed bell

	mu       sync.Mutex // serialises changes of sets and, with news of buckets, of routes
	watchers map[*member]context.CancelFunc

	sweeping sweep

	ctx    context.Context // ended by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New makes a router. With a topology it begins to find out in the background where buckets
// are; calls that come before wait. Close it then.
func New(opts Options) (*Router, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	count, err := opts.bucketCount()
	if err != nil {
		return nil, err
	}
	r := &Router{opts: opts, count: count, routes: make([]atomic.Pointer[replicaSet], count+1), seqs: make([]atomic.Uint32, count+1), watchers: map[*member]context.CancelFunc{}}
	r.sets.Store(new([]*replicaSet))
	r.ctx, r.cancel = context.WithCancel(context.Background())
	for _, st := range opts.ReplicaSets {
		if err := r.addWhole(st); err != nil {
			return nil, err
		}
	}
	for _, s := range r.all() {
		r.lookInto(s)
	}
	if opts.Topology != nil {
		sets, changed := opts.Topology.Sets()
		if err := r.follow(sets); err != nil {
			r.Close()
			return nil, err
		}
		if changed != nil {
			r.wg.Add(1)
			go r.followTopology(changed)
		}
	}
	return r, nil
}

// addWhole adds a replica set that has its one member in this process.
func (r *Router) addWhole(st ReplicaSet) error {
	name := st.ReplicaSet()
	if slices.Contains(r.RouteAll(), name) {
		return &shard.Error{Code: shard.InvalidConfig, ReplicaSet: name, Reason: "the name stands twice"}
	}
	srv, err := storagerpc.NewServer(storagerpc.ServerOptions{Storage: st, Member: name})
	if err != nil {
		return err
	}
	s := newSet(name, &r.changed)
	s.whole = st
	m := &member{Member: Member{ID: name}, link: direct{srv}, local: st, up: true}
	s.setMembers([]*member{m}, func(*member) int { return 0 })
	sets := append(slices.Clone(r.all()), s)
	r.sets.Store(&sets)
	return nil
}

// Close ends what runs in the background, and the connections. Calls in flight fail.
func (r *Router) Close() {
	r.cancel()
	r.mu.Lock()
	sets := r.all()
	r.sets.Store(new([]*replicaSet))
	for _, stop := range r.watchers {
		stop()
	}
	r.mu.Unlock()
	for _, s := range sets {
		for _, m := range *s.members.Load() {
			_ = m.link.close()
		}
		s.close()
	}
	r.wg.Wait()
}

func (r *Router) all() []*replicaSet { return *r.sets.Load() }

// set returns a replica set by its name, or nil.
func (r *Router) set(name string) *replicaSet {
	for _, s := range r.all() {
		if s.name == name {
			return s
		}
	}
	return nil
}

// BucketCount returns the cluster's number of buckets.
func (r *Router) BucketCount() uint32 { return r.count }

// BucketID returns the bucket of a sharding key, by MPCRC32. Several parts are a list.
func (r *Router) BucketID(key ...any) (shard.BucketID, error) {
	hash, err := shard.MPCRC32(key...)
	if err != nil {
		return 0, err
	}
	return shard.BucketOf(hash, r.count), nil
}

// Route returns the name of the replica set that has a bucket, as far as known here and
// now; NO_ROUTE_TO_BUCKET when it is not known.
func (r *Router) Route(b shard.BucketID) (string, error) {
	if err := r.check(b); err != nil {
		return "", err
	}
	s := r.routes[b].Load()
	if s == nil {
		if s = r.look(b); s == nil {
			return "", &shard.Error{Code: shard.NoRouteToBucket, Bucket: b}
		}
	}
	return s.name, nil
}

// RouteAll returns the names of all replica sets, in the order in which they became known.
func (r *Router) RouteAll() []string {
	sets := r.all()
	names := make([]string, len(sets))
	for i, s := range sets {
		names[i] = s.name
	}
	return names
}

// Changed returns a channel that is closed when a replica set comes or goes, has another master, other
// members, or a member that answers again or no more; and when its master says that its weight or lock, what
// it knows of other replica sets, whether to rebalance, or the number of its pinned buckets is another. Not
// when buckets move.
func (r *Router) Changed() <-chan struct{} { return r.changed.wait() }

func (r *Router) check(b shard.BucketID) error {
	if b < 1 || uint32(b) > r.count {
		return &shard.Error{Code: shard.NoRouteToBucket, Bucket: b, Reason: fmt.Sprintf("buckets are numbered 1 to %d", r.count)}
	}
	return nil
}

// look looks for a bucket in the replica sets that are whole in this process, and notes where
// it is.
func (r *Router) look(b shard.BucketID) *replicaSet {
	for _, s := range r.all() {
		if s.whole == nil {
			continue
		}
		if state, _ := s.whole.BucketState(b); state.CanRead() || state == shard.Receiving {
			r.routes[b].Store(s)
			return s
		}
	}
	return nil
}

// lookInto notes which buckets a replica set in this process has.
func (r *Router) lookInto(s *replicaSet) {
	for b := shard.BucketID(1); uint32(b) <= r.count; b++ {
		if r.routes[b].Load() == nil {
			if state, _ := s.whole.BucketState(b); state.CanRead() || state == shard.Receiving {
				r.routes[b].Store(s)
			}
		}
	}
}
