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
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
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
	// Partitions is how many a new queue has that does not say. Default 4.
	Partitions int
	// Peers finds the owners of partitions; nil when all are in this process.
	Peers Peers
	// Owns says whether a partition belongs to this node; nil when all do. It must
	// be quick. When its answers change, call OwnershipChanged.
	Owns func(PartitionID) bool
	// OwnershipDelay is how long after a change partitions that are not owned any
	// more are unloaded, so that a ring that is still moving can settle. Default
	// 500 ms.
	OwnershipDelay time.Duration
	// NoForceLoad switches off that a root, when it is loaded, has its queue's other
	// partitions loaded. Their backlog then waits until somebody happens to poll
	// them; it is for tests and comparisons.
	NoForceLoad bool
	// Forwarding bounds what partitions send to each other.
	Forwarding Forwarding
	// Scaling sets the pace of managed partition counts.
	Scaling Scaling
	// RefreshTime is how often partitions read their queue's row again when there are
	// other nodes: one of them may have changed it and not have reached everybody.
	// Default 1 minute.
	RefreshTime time.Duration
	// IdleTime without use after which a partition leaves memory. Default 5 minutes.
	IdleTime time.Duration
	// MaxPartitions is the most partitions in memory. Default 100,000.
	MaxPartitions int
	// Limits of each partition.
	Limits Limits
}

// Engine owns partitions: it loads them when they are used and unloads them when
// they are not. It implements MatchingService, the calls aimed at one partition, and
// with its Queues also the calls of TaskService, CallService and QueueService, with
// requests that have been checked already. All methods may be called from any
// goroutine.
type Engine struct {
	*Queues
	v1.UnimplementedMatchingServiceServer

	options Options
	metrics *metrics
	steady  func() int64 // the wall clock at the start, without jumps since
	// write gives a batch to the store; benchmarks put another store in its place.
	write    func(b shard.BucketID, args []byte, done func(result []byte, err error))
	readRows func(ctx context.Context, o *owner, request any) (answer any, err error)
	polls    pollTable
	calls    callTable
	hops     context.Context // over when the engine stops
	endHops  context.CancelFunc
	workers  sync.WaitGroup // of loads and changes of ownership
	changed  chan struct{}  // ownership may have changed

	mu       sync.Mutex
	owners   map[PartitionID]*owner
	deleting map[PartitionID]struct{} // being deleted: not to be loaded
	stopping bool
	seed     *rand.Rand // for uids and the cores' randomness; under mu

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
	if o.RefreshTime <= 0 {
		o.RefreshTime = time.Minute
	}
	if o.MaxPartitions <= 0 {
		o.MaxPartitions = 100_000
	}
	if o.OwnershipDelay <= 0 {
		o.OwnershipDelay = 500 * time.Millisecond
	}
	o.Limits = o.Limits.withDefaults()
	o.Forwarding = o.Forwarding.withDefaults()
	e := &Engine{
		options: o, changed: make(chan struct{}, 1),
		owners: map[PartitionID]*owner{}, deleting: map[PartitionID]struct{}{},
		seed:        rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		janitorStop: make(chan struct{}), janitorDone: make(chan struct{}),
	}
	began := time.Now()
	e.steady = func() int64 { return began.UnixNano() + int64(time.Since(began)) }
	e.write = func(b shard.BucketID, args []byte, done func([]byte, error)) {
		o.Router.CallRWAsync(b, fnWrite, args, done)
	}
	e.readRows = e.read
	var err error
	if e.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("matching: metrics: %w", err)
	}
	if o.Peers == nil {
		o.Peers = localPeers{e}
	}
	e.Queues, err = NewQueues(QueuesOptions{
		Router: o.Router, Peers: o.Peers, Logger: o.Logger, AutoCreateQueues: o.AutoCreateQueues, Partitions: o.Partitions,
	})
	if err != nil {
		return nil, err
	}
	e.polls.init(rand.Uint64())
	e.hops, e.endHops = context.WithCancel(context.Background())
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
	e.calls.stop()
	for _, o := range owners {
		o.unload()
	}
	defer e.endHops()
	for _, o := range owners {
		select {
		case <-o.exited:
		case <-ctx.Done():
			return fmt.Errorf("matching: partition %v still has writes under way: %w", o.id, ctx.Err())
		}
	}
	e.endHops()
	done := make(chan struct{})
	go func() {
		e.workers.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("matching: work in the background is still under way: %w", ctx.Err())
	}
}

// storeError turns the store's errors into those that callers get. What a function of
// this package returned keeps its reason, also when it ran on another node.
func (q *Queues) storeError(err error) error {
	var known *reason.Error // errors of the store are such, too
	if err == nil || errors.As(err, &known) {
		return err
	}
	if reason.Of(err) != "" {
		return reason.From(err)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, errCorruptRow):
		return reason.New(codes.DataLoss, reason.StorageFailed, nil, "%v", err)
	}
	return reason.New(codes.Unavailable, reason.StorageFailed, nil, "the store failed: %v", err)
}
