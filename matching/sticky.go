package matching

import (
	"context"
	"encoding/binary"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/switchyard-dev/switchyard/api/reason"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// A sticky queue is one worker's own beside a queue: for tasks that only this worker
// should do, as long as it is there. It has one partition and no place in the tree.
//
// Only its worker's polls load it. An add to it fails at once when the worker is not
// there, so that the producer can use the queue itself. A row in the bucket of the
// queue's root says when it was last used; a root that is in use forgets those that
// were not for a day, with the tasks that are still in them.

const (
	// stickyAbsence is how long a worker may not have polled its sticky queue before
	// adds to it are refused.
	stickyAbsence = 10 * time.Second
	// stickyTime is how long a sticky queue is kept after its last use.
	stickyTime = 24 * time.Hour
	// stickyNote is how often the use of a sticky queue is noted.
	stickyNote = time.Hour
)

// spaceSticky holds when sticky queues were last used: namespace NUL queue NUL worker
// → version 1 | unix nanoseconds 8. Its number is on disk.
const spaceSticky storage.Space = 0x1f

const (
	fnStickyUse    = "matching.sticky.use"
	fnStickyForget = "matching.sticky.forget"
)

func errStickyUnavailable(id PartitionID) error {
	return reason.New(codes.FailedPrecondition, reason.StickyWorkerUnavailable, map[string]string{"queue": id.Queue, "worker": id.Sticky},
		"worker %q does not poll its sticky queue beside queue %q: add to the queue itself", id.Sticky, id.Queue)
}

// ownerToAdd returns the owner of the partition to add to. A sticky queue is not
// loaded by an add: when it is not in memory, its worker is not there.
func (e *Engine) ownerToAdd(ctx context.Context, id PartitionID) (*owner, error) {
	if id.Sticky == "" {
		return e.owner(ctx, id, loadCreate)
	}
	if !e.owns(id) {
		return nil, errNotOwned
	}
	o := e.present(id)
	if o == nil || o.waiting.Load() == 0 && e.steady()-o.polledAt.Load() > int64(stickyAbsence) {
		return nil, errStickyUnavailable(id)
	}
	return o, nil
}

// addSticky runs fn with a sticky queue's owner if its worker is there.
func (e *Engine) addSticky(ctx context.Context, id PartitionID, fn func(*owner) error) error {
	o, err := e.ownerToAdd(ctx, id)
	if err != nil {
		return err
	}
	if err = fn(o); err == errUnloaded {
		return errStickyUnavailable(id)
	}
	return err
}

func stickyPrefix(id PartitionID) []byte { return append(queueKey(id.Namespace, id.Queue), 0) }

func stickyKey(id PartitionID) []byte { return append(stickyPrefix(id), id.Sticky...) }

// noteSticky writes down when a sticky queue is in use.
func (q *Queues) noteSticky(ctx context.Context, id PartitionID, now int64) error {
	home := id.sibling(0)
	row := binary.BigEndian.AppendUint64([]byte{rowVersion}, uint64(now))
	_, err := q.router.Call(ctx, q.bucketOf(home), router.CallRW, fnStickyUse, queueArgs(home.Hash(), stickyKey(id), row))
	return err
}

// stickyQueues lists the sticky queues beside a queue that were last used before a
// time.
func (q *Queues) stickyQueues(ctx context.Context, home PartitionID, before int64) (ids []PartitionID, err error) {
	err = q.router.View(ctx, q.bucketOf(home), router.CallMR, func(v *storage.View) error {
		ids = nil
		from := stickyPrefix(home)
		to := append(queueKey(home.Namespace, home.Queue), 1)
		var bad error
		err := v.Scan(spaceSticky, from, to, false, func(key, value []byte) bool {
			if len(value) != 9 || value[0] != rowVersion {
				bad = corrupt("sticky queue")
				return false
			}
			if int64(binary.BigEndian.Uint64(value[1:])) < before {
				ids = append(ids, PartitionID{Namespace: home.Namespace, Queue: home.Queue, Sticky: string(key[len(from):])})
			}
			return true
		})
		if err == nil {
			err = bad
		}
		return err
	})
	return ids, q.storeError(err)
}

// dropSticky deletes a sticky queue, unless it has tasks and force is not set.
func (q *Queues) dropSticky(ctx context.Context, id PartitionID, force bool) (tasks int64, err error) {
	if tasks, err = q.dropPartition(ctx, id, force); err != nil || tasks > 0 {
		return tasks, err
	}
	home := id.sibling(0)
	_, err = q.router.Call(ctx, q.bucketOf(home), router.CallRW, fnStickyForget, queueArgs(home.Hash(), stickyKey(id), nil))
	return 0, q.storeError(err)
}

// forgetSticky deletes the sticky queues beside a queue that nobody has used for long.
func (e *Engine) forgetSticky(ctx context.Context, home PartitionID) {
	ids, err := e.stickyQueues(ctx, home, e.now()-int64(stickyTime))
	for _, id := range ids {
		if err != nil {
			break
		}
		_, err = e.dropSticky(ctx, id, true)
		e.log.Info("sticky queue forgotten", "partition", id.String(), "err", err)
	}
	if err != nil && ctx.Err() == nil {
		e.log.Warn("sticky queues were not looked through", "queue", home.String(), "err", err)
	}
}

func useSticky(tx *storage.Tx, args []byte) ([]byte, error) {
	hash, key, row, err := splitQueueArgs(args)
	if err != nil {
		return nil, err
	}
	return nil, tx.Put(spaceSticky, hash, key, row)
}

func forgetStickyRow(tx *storage.Tx, args []byte) ([]byte, error) {
	_, key, _, err := splitQueueArgs(args)
	if err != nil {
		return nil, err
	}
	return nil, tx.Delete(spaceSticky, key)
}
