package matching

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// Options configure an Engine.
type Options struct {
	// Router leads to the store. Its storages must have been opened with a registry
	// that went through RegisterFunctions. Required.
	Router *router.Router
	// Logger; default slog.Default().
	Logger *slog.Logger
	// Registerer takes the engine's metrics; nil for none.
	Registerer prometheus.Registerer
	// AutoCreateQueues makes adding to, and polling, a queue that does not exist
	// create it.
	AutoCreateQueues bool
	// IdleTime without use after which a partition leaves memory. Default 5 minutes.
	IdleTime time.Duration
	// MaxPartitions is the most partitions in memory. Default 100,000.
	MaxPartitions int
	// Limits of each partition.
	Limits Limits
}

// Engine owns partitions: it loads them when they are used and unloads them when
// they are not. It implements the calls of TaskService and QueueService, with
// requests that have been checked already. All methods may be called from any
// goroutine.
type Engine struct {
	router  *router.Router
	log     *slog.Logger
	options Options
	metrics *metrics
	now     func() int64 // wall clock, unix nanoseconds
	steady  func() int64 // the same at the start, without jumps since

	mu       sync.Mutex
	owners   map[PartitionID]*owner
	deleting map[PartitionID]struct{} // being deleted: not to be loaded
	stopping bool
	seed     *rand.Rand // for uids and the cores' randomness; under mu

	queueMu sync.Mutex // serialises changes of queue rows

	janitorStop chan struct{}
	janitorDone chan struct{}
}

// New makes an engine. Stop it before its store.
func New(o Options) (*Engine, error) {
	if o.Router == nil {
		return nil, errors.New("matching: Options.Router is missing")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.IdleTime <= 0 {
		o.IdleTime = 5 * time.Minute
	}
	if o.MaxPartitions <= 0 {
		o.MaxPartitions = 100_000
	}
	o.Limits = o.Limits.withDefaults()
	e := &Engine{
		router: o.Router, log: o.Logger, options: o, now: func() int64 { return time.Now().UnixNano() },
		owners: map[PartitionID]*owner{}, deleting: map[PartitionID]struct{}{},
		seed:        rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		janitorStop: make(chan struct{}), janitorDone: make(chan struct{}),
	}
	began := time.Now()
	e.steady = func() int64 { return began.UnixNano() + int64(time.Since(began)) }
	var err error
	if e.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("matching: metrics: %w", err)
	}
	go e.janitor()
	return e, nil
}

// Stop ends waiting polls, refuses new calls, writes what is under way and takes
// all partitions out of memory. Leases stay: they are in the store. It returns
// ctx's error if that takes too long; partitions then end on their own.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	first := !e.stopping
	e.stopping = true
	owners := make([]*owner, 0, len(e.owners))
	for _, o := range e.owners {
		owners = append(owners, o)
	}
	e.mu.Unlock()
	if first {
		close(e.janitorStop)
	}
	<-e.janitorDone
	for _, o := range owners {
		o.unload()
	}
	for _, o := range owners {
		select {
		case <-o.exited:
		case <-ctx.Done():
			return fmt.Errorf("matching: partition %v still has writes under way: %w", o.id, ctx.Err())
		}
	}
	return nil
}

// unload stops an owner whether it is loaded yet or not.
func (o *owner) unload() {
	select {
	case <-o.loaded:
		if o.loadErr == nil {
			o.stop()
		}
	default:
		go func() {
			if <-o.loaded; o.loadErr == nil {
				o.stop()
			}
		}()
	}
}

var errStopping = reason.New(codes.Unavailable, reason.ShuttingDown, nil, "the server is shutting down: try again")

var errDeleting = reason.New(codes.Unavailable, reason.PartitionMoved, nil, "the queue is being deleted: try again")

// owner returns the loaded owner of a partition.
func (e *Engine) owner(ctx context.Context, id PartitionID, create bool) (*owner, error) {
	e.mu.Lock()
	for {
		if e.stopping {
			e.mu.Unlock()
			return nil, errStopping
		}
		o := e.owners[id]
		if o == nil {
			if _, ok := e.deleting[id]; ok {
				e.mu.Unlock()
				return nil, errDeleting
			}
			break
		}
		e.mu.Unlock()
		select {
		case <-o.loaded:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if o.loadErr != nil {
			return nil, o.loadErr
		}
		select {
		case <-o.exited: // about to leave the table
			e.forget(o)
			e.mu.Lock()
			continue
		default:
			return o, nil
		}
	}
	if len(e.owners) >= e.options.MaxPartitions {
		e.mu.Unlock()
		return nil, reason.New(codes.ResourceExhausted, reason.Overloaded, nil,
			"%d partitions are in memory, which is the limit: use fewer queues at a time", e.options.MaxPartitions)
	}
	o := &owner{
		engine: e, id: id, bucket: shard.BucketOf(id.Hash(), e.router.BucketCount()), limits: e.options.Limits,
		loaded: make(chan struct{}), signal: make(chan struct{}, 1), exited: make(chan struct{}),
		lastUsed: e.steady(),
	}
	uid := e.seed.Uint64()
	rng := rand.New(rand.NewPCG(e.seed.Uint64(), e.seed.Uint64()))
	e.owners[id] = o
	e.mu.Unlock()

	// Loading serves everyone who waits for it, so it has a deadline of its own.
	go e.load(o, uid, rng, create)
	select {
	case <-o.loaded:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if o.loadErr != nil {
		return nil, o.loadErr
	}
	return o, nil
}

func (e *Engine) forget(o *owner) {
	e.mu.Lock()
	if e.owners[o.id] == o {
		delete(e.owners, o.id)
	}
	e.mu.Unlock()
}

const loadTimeout = 30 * time.Second

// load takes the partition and starts its goroutine.
func (e *Engine) load(o *owner, uid uint64, rng *rand.Rand, create bool) {
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	c, err := e.loadCore(ctx, o, uid, rng, create)
	if err != nil {
		o.loadErr = e.storeError(err)
		e.forget(o)
		close(o.exited)
		close(o.loaded)
		return
	}
	e.metrics.loaded(o)
	go func() {
		o.run(c)
		if o.fault != nil && reason.Of(o.fault) != reason.StorageFailed {
			e.log.Info("partition unloaded", "partition", o.id.String(), "cause", o.fault)
		}
		e.forget(o)
	}()
	close(o.loaded)
}

func (e *Engine) loadCore(ctx context.Context, o *owner, uid uint64, rng *rand.Rand, create bool) (*core, error) {
	q, err := e.getQueue(ctx, o.id.Namespace, o.id.Queue)
	if reason.Of(err) == reason.QueueNotFound && create && e.options.AutoCreateQueues {
		q, err = e.createQueue(ctx, o.id.Namespace, o.id.Queue, nil)
		if reason.Of(err) == reason.QueueAlreadyExists {
			q, err = e.getQueue(ctx, o.id.Namespace, o.id.Queue)
		}
	}
	if err != nil {
		return nil, err
	}
	row, err := e.router.Call(ctx, o.bucket, router.CallRW, fnTake, takeArgs(o.id.Hash(), uid, o.id.Key()))
	if err != nil {
		return nil, err
	}
	var from loaded
	if err := from.meta.decode(row); err != nil {
		return nil, err
	}
	o.uid, o.rangeID = from.meta.uid, from.meta.rangeID
	err = e.router.View(ctx, o.bucket, router.CallRO, func(v *storage.View) error { return from.read(v) })
	if err != nil {
		return nil, err
	}
	e.log.Debug("partition loaded", "partition", o.id.String(), "range_id", o.rangeID)
	st := settingsOf(q)
	o.settings.Store(&st)
	return newCore(e.steady(), e.now(), o.id, st, o.limits, rng, from), nil
}

// read fills in what a core needs besides its meta row.
func (l *loaded) read(v view) error {
	uid := l.meta.uid
	start, end := appendSeqKey(nil, uid, 0), uidEnd(uid)
	var bad error
	err := v.Scan(spaceLeases, start, end, false, func(key, value []byte) bool {
		s := storedLease{seq: lastSeq(key)}
		bad = s.lease.decode(value)
		l.leases = append(l.leases, s)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	err = v.Scan(spaceIDs, start[:8], end, true, func(key, _ []byte) bool {
		copy(l.lastID[:], key[8:])
		return false
	})
	if err != nil {
		return err
	}
	l.scheduleEmpty = true
	return v.Scan(spaceSchedule, start[:8], end, false, func(_, _ []byte) bool {
		l.scheduleEmpty = false
		return false
	})
}

// storeError turns the store's errors into those that callers get.
func (e *Engine) storeError(err error) error {
	var known *reason.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, errCorruptRow):
		return reason.New(codes.DataLoss, reason.StorageFailed, nil, "%v", err)
	}
	return reason.New(codes.Unavailable, reason.StorageFailed, nil, "the store failed: %v", err)
}

// janitor unloads idle partitions.
func (e *Engine) janitor() {
	defer close(e.janitorDone)
	ticker := time.NewTicker(min(max(e.options.IdleTime/10, time.Millisecond), time.Minute))
	defer ticker.Stop()
	for {
		select {
		case <-e.janitorStop:
			return
		case <-ticker.C:
			e.unloadIdle()
		}
	}
}

func (e *Engine) unloadIdle() {
	before := e.steady() - int64(e.options.IdleTime)
	e.mu.Lock()
	owners := make([]*owner, 0, len(e.owners))
	for _, o := range e.owners {
		owners = append(owners, o)
	}
	e.mu.Unlock()
	for _, o := range owners {
		o.mu.Lock()
		idle := o.lastUsed < before && o.waiting.Load() == 0
		o.mu.Unlock()
		if idle {
			o.unload()
		}
	}
}

// retryUnloaded calls fn with the partition's owner, again when the partition left
// memory before it took the call.
func (e *Engine) retryUnloaded(ctx context.Context, id PartitionID, create bool, fn func(*owner) error) error {
	for {
		o, err := e.owner(ctx, id, create)
		if err != nil {
			return err
		}
		if err = fn(o); err != errUnloaded {
			return err
		}
		select {
		case <-o.exited:
		case <-ctx.Done():
			return ctx.Err()
		}
		e.forget(o)
	}
}
