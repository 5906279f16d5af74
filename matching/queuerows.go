package matching

import (
	"bytes"
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// A queue's row is a version byte and a switchyard.v1.StoredQueue.

func encodeQueue(q *v1.StoredQueue) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{rowVersion}, q)
}

func decodeQueue(row []byte) (*v1.StoredQueue, error) {
	if len(row) == 0 || row[0] != rowVersion {
		return nil, corrupt("queue")
	}
	q := &v1.StoredQueue{}
	if err := proto.Unmarshal(row[1:], q); err != nil {
		return nil, fmt.Errorf("%w: %w", corrupt("queue"), err)
	}
	return q, nil
}

func (q *Queues) namespaceBucket(namespace string) shard.BucketID {
	return shard.BucketOf(namespaceHash(namespace), q.router.BucketCount())
}

func queueNotFound(queue string) error {
	return reason.New(codes.NotFound, reason.QueueNotFound, map[string]string{"queue": queue}, "queue %q does not exist", queue)
}

// errNoStore: see QueuesOptions.Router.
var errNoStore = reason.New(codes.Unimplemented, reason.InvalidRequest, nil, "a client without a way to the store does only what concerns tasks: ask a frontend")

// getQueue reads a queue's row.
func (q *Queues) getQueue(ctx context.Context, namespace, queue string) (row *v1.StoredQueue, err error) {
	row, _, err = q.getQueueRow(ctx, namespace, queue)
	return row, err
}

// getQueueRow also returns the row as it is stored.
func (q *Queues) getQueueRow(ctx context.Context, namespace, queue string) (decoded *v1.StoredQueue, stored []byte, err error) {
	if q.router == nil {
		return nil, nil, errNoStore
	}
	err = q.router.View(ctx, q.namespaceBucket(namespace), router.CallMR, func(v *storage.View) error {
		row, ok, err := v.Get(spaceQueues, queueKey(namespace, queue))
		if err != nil {
			return err
		}
		if !ok {
			return queueNotFound(queue)
		}
		stored = bytes.Clone(row)
		decoded, err = decodeQueue(stored)
		return err
	})
	return decoded, stored, q.storeError(err)
}

// callQueue runs one of the functions on queue rows.
func (q *Queues) callQueue(ctx context.Context, fn string, queue *v1.StoredQueue) error {
	row, err := encodeQueue(queue)
	if err != nil {
		return err
	}
	_, err = q.callQueueRow(ctx, fn, queue, row)
	return err
}

func (q *Queues) callQueueRow(ctx context.Context, fn string, queue *v1.StoredQueue, row []byte) ([]byte, error) {
	if q.router == nil {
		return nil, errNoStore
	}
	args := queueArgs(namespaceHash(queue.GetNamespace()), queueKey(queue.GetNamespace(), queue.GetName()), row)
	result, err := q.router.Call(ctx, q.namespaceBucket(queue.GetNamespace()), router.CallRW, fn, args)
	return result, q.storeError(err)
}

func (q *Queues) createQueue(ctx context.Context, namespace, queue string, c *v1.QueueConfig) (*v1.StoredQueue, error) {
	now := timestamp(q.now())
	if c == nil {
		c = &v1.QueueConfig{}
	}
	n := c.GetPartitions()
	if n == 0 {
		n = int32(q.partitions)
	}
	row := &v1.StoredQueue{Namespace: namespace, Name: queue, Config: c, CreatedAt: now, UpdatedAt: now, WritePartitions: n, ReadPartitions: n}
	if err := q.callQueue(ctx, fnQueueCreate, row); err != nil {
		if reason.Of(err) == reason.QueueAlreadyExists {
			err = reason.New(codes.AlreadyExists, reason.QueueAlreadyExists, map[string]string{"queue": queue}, "queue %q exists already", queue)
		}
		return nil, err
	}
	return row, nil
}

// changeQueue reads a queue's row, lets change alter it, writes it back unless
// somebody else changed it meanwhile (then it starts again), and tells the queue's
// partitions.
func (q *Queues) changeQueue(ctx context.Context, namespace, queue string, change func(*v1.StoredQueue) error) (*v1.StoredQueue, error) {
	for {
		row, stored, err := q.getQueueRow(ctx, namespace, queue)
		if err != nil {
			return nil, err
		}
		if err := change(row); err != nil {
			return nil, err
		}
		row.UpdatedAt = timestamp(q.now())
		fresh, err := encodeQueue(row)
		if err != nil {
			return nil, err
		}
		result, err := q.callQueueRow(ctx, fnQueueSwap, row, swapArgs(stored, fresh))
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(result, swapped) {
			continue
		}
		q.forgetCounts(namespace, queue)
		q.configure(ctx, row)
		return row, nil
	}
}
