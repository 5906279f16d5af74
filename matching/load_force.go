package matching

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// A backlog in a partition that is not in memory is found only by a poll that comes
// to that very partition. So a root, when it is loaded, has the other partitions of
// its queue loaded; what they have and cannot hand out they offer to the root. Only
// roots ask and a root is never asked, so nothing cascades.

const (
	// fanOut bounds how many partitions of a queue are asked at a time.
	fanOut = 16
	// forceLoadTimeout bounds the asking of one partition.
	forceLoadTimeout = 30 * time.Second
)

// rootLoaded has the other partitions loaded if o is a root.
func (e *Engine) rootLoaded(o *owner) {
	if !o.id.isRoot() || e.options.NoForceLoad || o.partitionCounts().GetRead() <= 1 {
		return
	}
	e.background(func(ctx context.Context) { e.forceLoadOthers(ctx, o) })
}

// background runs fn until it returns or the engine stops.
func (e *Engine) background(fn func(context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopping {
		return
	}
	e.workers.Go(func() { fn(e.hops) })
}

func (e *Engine) forceLoadOthers(ctx context.Context, o *owner) {
	var g errgroup.Group
	g.SetLimit(fanOut)
	for n := int32(1); n < o.partitionCounts().GetRead(); n++ {
		id := o.id.sibling(n)
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, forceLoadTimeout)
			defer cancel()
			peer, _, err := e.peers.Owner(id)
			if err == nil {
				var resp *v1.ForceLoadPartitionResponse
				resp, err = peer.ForceLoadPartition(ctx, &v1.ForceLoadPartitionRequest{Namespace: id.Namespace, Queue: id.Queue, Partition: n})
				e.metrics.forced(resp, err)
			}
			if err != nil && ctx.Err() == nil {
				e.log.Debug("partition was not loaded for its root", "partition", id.String(), "err", err)
			}
			return nil // the others are asked all the same
		})
	}
	_ = g.Wait() // no task returns an error
}

// ForceLoadPartition implements v1.MatchingServiceServer. A partition that has no
// task is left alone: it would only take memory.
func (e *Engine) ForceLoadPartition(ctx context.Context, req *v1.ForceLoadPartitionRequest) (*v1.ForceLoadPartitionResponse, error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: req.GetPartition()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	if id.isRoot() {
		return nil, reason.New(codes.InvalidArgument, reason.InvalidForward, nil, "a root is not loaded by force: it is the one that asks")
	}
	if o := e.present(id); o != nil {
		o.keep()
		o.internal(rootIsLoaded{})
		return &v1.ForceLoadPartitionResponse{WasLoaded: true}, nil
	}
	if !e.owns(id) {
		return nil, errNotOwned
	}
	m, ok, err := e.storedMeta(ctx, id)
	if err != nil {
		return nil, err
	}
	if n := m.counts; !ok || n.fresh+n.scheduled+n.leased == 0 {
		return &v1.ForceLoadPartitionResponse{Empty: true}, nil
	}
	if _, err := e.owner(ctx, id, loadUse); err != nil {
		return nil, err
	}
	return &v1.ForceLoadPartitionResponse{}, nil
}

// keep keeps a partition that has tasks in memory: it counts as used.
func (o *owner) keep() {
	if o.working.Load() {
		o.mu.Lock()
		o.lastUsed = o.engine.steady()
		o.mu.Unlock()
	}
}

// storedMeta reads a partition's meta row; not ok when there is none.
func (q *Queues) storedMeta(ctx context.Context, id PartitionID) (m meta, ok bool, err error) {
	err = q.router.View(ctx, q.bucketOf(id), router.CallMR, func(v *storage.View) error {
		var row []byte
		row, ok, err = v.Get(spaceMeta, []byte(id.Key()))
		if err != nil || !ok {
			return err
		}
		return m.decode(row)
	})
	return m, ok, q.storeError(err)
}

// ForceUnloadPartition implements v1.MatchingServiceServer. The partition is loaded
// again by the next call to it.
func (e *Engine) ForceUnloadPartition(ctx context.Context, req *v1.ForceUnloadPartitionRequest) (*v1.ForceUnloadPartitionResponse, error) {
	id := PartitionID{Namespace: req.GetNamespace(), Queue: req.GetQueue(), Number: req.GetPartition(), Sticky: req.GetStickyWorker()}
	if err := checkNumber(id.Number); err != nil {
		return nil, err
	}
	o := e.present(id)
	if o == nil {
		return &v1.ForceUnloadPartitionResponse{}, nil
	}
	o.stop()
	select {
	case <-o.exited:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	e.forget(o)
	return &v1.ForceUnloadPartitionResponse{WasLoaded: true}, nil
}

// refreshRows has partitions read their queue's row again, each queue's once for all
// that are here.
func (e *Engine) refreshRows() {
	if e.options.Peers == nil {
		return // whoever changes a row is here and tells everybody
	}
	now := e.steady()
	due := map[queueName][]*owner{}
	for _, o := range e.inMemory() {
		select {
		case <-o.loaded:
		default:
			continue
		}
		switch {
		case o.loadErr != nil || now-o.refreshed < int64(e.options.RefreshTime):
			continue
		case o.refreshed != 0: // else it has been read just now, to load it
			n := queueName{o.id.Namespace, o.id.Queue}
			due[n] = append(due[n], o)
		}
		o.refreshed = now
	}
	if len(due) == 0 {
		return
	}
	e.background(func(ctx context.Context) {
		for n, owners := range due {
			q, err := e.getQueue(ctx, n.namespace, n.queue)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				e.log.Debug("a queue's row was not read again", "queue", n.queue, "err", err)
				continue
			}
			for _, o := range owners {
				o.configure(q)
			}
		}
	})
}

// lookAfterQueues lets each root that is in use do what its queue needs: partitions
// with work that went idle, since nobody called them, are kept or loaded again, and
// partitions that are to go are dropped once they are empty.
func (e *Engine) lookAfterQueues() {
	now := e.steady()
	for _, o := range e.inMemory() {
		select {
		case <-o.loaded:
		default:
			continue
		}
		if o.id.Sticky != "" && o.loadErr == nil && now-o.lookedAfter > int64(stickyNote) {
			o.lookedAfter = now
			e.background(func(ctx context.Context) { _ = e.noteSticky(ctx, o.id, e.now()) }) // again in an hour
		}
		if !o.id.isRoot() || o.loadErr != nil || now-o.lookedAfter < int64(e.options.IdleTime)/2 {
			continue
		}
		o.lookedAfter = now
		e.background(func(ctx context.Context) { e.forgetSticky(ctx, o.id) })
		counts := o.counts.Load()
		if counts.GetRead() > 1 && !e.options.NoForceLoad {
			e.background(func(ctx context.Context) { e.forceLoadOthers(ctx, o) })
		}
		if counts.GetRead() > counts.GetWrite() && counts.GetVersion() == 0 {
			e.background(func(ctx context.Context) { e.shrink(ctx, o.id) })
		}
	}
}
