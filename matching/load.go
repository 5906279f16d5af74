package matching

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// How partitions get into memory and leave it.

// loading says what a partition is loaded for.
type loading uint8

const (
	loadUse    loading = iota // by a call to it
	loadCreate                // the same, and the queue may be created
	loadDrop                  // to be deleted, with or without its queue's row
)

func createIf(create bool) loading {
	if create {
		return loadCreate
	}
	return loadUse
}

var errStopping = reason.New(codes.Unavailable, reason.ShuttingDown, nil, "the server is shutting down: try again")

var errDeleting = reason.New(codes.Unavailable, reason.PartitionMoved, nil, "the queue is being deleted: try again")

var errNotOwned = reason.New(codes.Unavailable, reason.PartitionMoved, nil, "the queue's partition belongs to another node: try again")

func (e *Engine) owns(id PartitionID) bool { return e.options.Owns == nil || e.options.Owns(id) }

// owner returns the loaded owner of a partition.
func (e *Engine) owner(ctx context.Context, id PartitionID, why loading) (*owner, error) {
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
		case <-o.loaded: // nearly always
		default:
			select {
			case <-o.loaded:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
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
	if !e.owns(id) {
		e.mu.Unlock()
		return nil, errNotOwned
	}
	if len(e.owners) >= e.options.MaxPartitions {
		e.mu.Unlock()
		return nil, reason.New(codes.ResourceExhausted, reason.Overloaded, nil,
			"%d partitions are in memory, which is the limit: use fewer queues at a time", e.options.MaxPartitions)
	}
	o := &owner{
		engine: e, id: id, key: id.Key(), bucket: shard.BucketOf(id.Hash(), e.router.BucketCount()), limits: e.options.Limits,
		loaded: make(chan struct{}), signal: make(chan struct{}, 1), exited: make(chan struct{}),
		lastUsed: e.steady(),
	}
	o.hops, o.endHops = context.WithCancel(e.hops)
	o.offers, o.endOffers = context.WithCancel(o.hops)
	uid := e.seed.Uint64()
	rng := rand.New(rand.NewPCG(e.seed.Uint64(), e.seed.Uint64()))
	e.owners[id] = o
	e.mu.Unlock()

	// Loading serves everyone who waits for it, so it has a deadline of its own.
	go e.load(o, uid, rng, why)
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
func (e *Engine) load(o *owner, uid uint64, rng *rand.Rand, why loading) {
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	c, err := e.loadCore(ctx, o, uid, rng, why)
	if err != nil {
		o.loadErr = e.storeError(err)
		o.endHops()
		e.forget(o)
		close(o.exited)
		close(o.loaded)
		return
	}
	e.metrics.loaded(o)
	go func() {
		o.run(c)
		o.endHops()
		if o.fault != nil && reason.Of(o.fault) != reason.StorageFailed {
			e.log.Info("partition unloaded", "partition", o.id.String(), "cause", o.fault)
		}
		e.forget(o)
	}()
	close(o.loaded)
	if why != loadDrop {
		e.rootLoaded(o)
	}
}

func (e *Engine) loadCore(ctx context.Context, o *owner, uid uint64, rng *rand.Rand, why loading) (*core, error) {
	if _, err := e.queueToLoad(ctx, o.id, why); err != nil {
		return nil, err
	}
	row, err := e.router.Call(ctx, o.bucket, router.CallRW, fnTake, takeArgs(o.id.Hash(), uid, o.id.Key()))
	if err != nil {
		return nil, err
	}
	// The queue may have been deleted just before the partition was taken; then
	// nobody would ever delete the row that this has made.
	q, err := e.queueToLoad(ctx, o.id, min(why, loadDrop))
	if err != nil {
		return nil, err
	}
	var from loaded
	if err := from.meta.decode(row); err != nil {
		return nil, err
	}
	o.uid, o.rangeID = from.meta.uid, from.meta.rangeID
	err = e.look(ctx, o, func(v *storage.View) error { return from.read(v) })
	if err != nil {
		return nil, err
	}
	if o.id.Sticky != "" && why != loadDrop {
		if err := e.noteSticky(ctx, o.id, e.now()); err != nil {
			return nil, err
		}
		o.lookedAfter = e.steady()
	}
	e.log.Debug("partition loaded", "partition", o.id.String(), "range_id", o.rangeID)
	st := settingsOf(q)
	o.settings.Store(&st)
	o.setCounts(q)
	c := newCore(e.steady(), e.now(), o.id, st, o.limits, rng, from)
	c.fwd.init(c, o.id, e.options.Forwarding)
	if why != loadDrop {
		o.scale(q)
	}
	return c, nil
}

// queueToLoad reads the row of a partition's queue, and refuses partitions that the
// queue does not have before anything is written for them.
func (e *Engine) queueToLoad(ctx context.Context, id PartitionID, why loading) (*v1.StoredQueue, error) {
	q, err := e.getQueue(ctx, id.Namespace, id.Queue)
	if reason.Of(err) == reason.QueueNotFound {
		switch {
		case why == loadDrop:
			return &v1.StoredQueue{}, nil
		case why == loadCreate && e.autoCreate:
			q, err = e.createQueue(ctx, id.Namespace, id.Queue, nil)
			if reason.Of(err) == reason.QueueAlreadyExists {
				q, err = e.getQueue(ctx, id.Namespace, id.Queue)
			}
		}
	}
	switch {
	case err != nil:
		return nil, err
	case why == loadDrop:
		return q, nil
	case q.GetDeleting():
		return nil, errDeleting
	}
	if counts := rowCounts(q); id.Number >= counts.GetRead() {
		return nil, staleCounts(counts, id, "has no partition %d", id.Number)
	}
	return q, nil
}

// setCounts takes the counts over from a queue's row.
func (o *owner) setCounts(q *v1.StoredQueue) {
	if o.id.Sticky == "" {
		o.past.Store(pastOf(q))
		o.learnCounts(rowCounts(q))
	}
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
	if l.passes, err = readPasses(v, uid); err != nil {
		return err
	}
	l.scheduleEmpty = true
	return v.Scan(spaceSchedule, start[:8], end, false, func(_, _ []byte) bool {
		l.scheduleEmpty = false
		return false
	})
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

// present returns a partition's owner if it is in memory and loaded or about to be.
func (e *Engine) present(id PartitionID) *owner {
	e.mu.Lock()
	o := e.owners[id]
	e.mu.Unlock()
	if o == nil {
		return nil
	}
	<-o.loaded // bounded by loadTimeout
	if o.loadErr != nil {
		return nil
	}
	return o
}

// inMemory returns all owners.
func (e *Engine) inMemory() []*owner {
	e.mu.Lock()
	defer e.mu.Unlock()
	owners := make([]*owner, 0, len(e.owners))
	for _, o := range e.owners {
		owners = append(owners, o)
	}
	return owners
}

// janitor does what is due from time to time: it unloads partitions that are idle or
// not owned any more, and lets roots look after their queues.
func (e *Engine) janitor() {
	defer close(e.janitorDone)
	ticker := time.NewTicker(min(max(e.options.IdleTime/10, time.Millisecond), 30*time.Second))
	defer ticker.Stop()
	settled := time.NewTimer(time.Hour)
	defer settled.Stop()
	for {
		select {
		case <-e.janitorStop:
			return
		case <-ticker.C:
			e.unloadIdle()
			e.unloadForeign() // in case nobody told
			e.lookAfterQueues()
			e.refreshRows()
		case <-e.changed:
			settled.Reset(e.options.OwnershipDelay)
		case <-settled.C:
			e.unloadForeign()
		}
	}
}

// OwnershipChanged says that Owns may answer differently now.
func (e *Engine) OwnershipChanged() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// unloadForeign unloads the partitions that belong to other nodes. Their waiting
// polls end empty; the pollers find the new owner.
func (e *Engine) unloadForeign() {
	if e.options.Owns == nil {
		return
	}
	for _, o := range e.inMemory() {
		if !e.owns(o.id) {
			e.log.Debug("partition belongs to another node", "partition", o.id.String())
			o.unload()
		}
	}
	e.calls.dropForeign(e.owns)
}

func (e *Engine) unloadIdle() {
	before := e.steady() - int64(e.options.IdleTime)
	for _, o := range e.inMemory() {
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
		o, err := e.owner(ctx, id, createIf(create))
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
