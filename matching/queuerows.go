package matching

import (
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

// A queue's row is a version byte and a switchyard.v1.Queue.

func encodeQueue(q *v1.Queue) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{rowVersion}, q)
}

func decodeQueue(row []byte) (*v1.Queue, error) {
	if len(row) == 0 || row[0] != rowVersion {
		return nil, corrupt("queue")
	}
	q := &v1.Queue{}
	if err := proto.Unmarshal(row[1:], q); err != nil {
		return nil, fmt.Errorf("%w: %w", corrupt("queue"), err)
	}
	return q, nil
}

func (e *Engine) namespaceBucket(namespace string) shard.BucketID {
	return shard.BucketOf(namespaceHash(namespace), e.router.BucketCount())
}

func queueNotFound(queue string) error {
	return reason.New(codes.NotFound, reason.QueueNotFound, map[string]string{"queue": queue}, "queue %q does not exist", queue)
}

// getQueue reads a queue's row.
func (e *Engine) getQueue(ctx context.Context, namespace, queue string) (q *v1.Queue, err error) {
	err = e.router.View(ctx, e.namespaceBucket(namespace), router.CallRO, func(v *storage.View) error {
		row, ok, err := v.Get(spaceQueues, queueKey(namespace, queue))
		if err != nil {
			return err
		}
		if !ok {
			return queueNotFound(queue)
		}
		q, err = decodeQueue(row)
		return err
	})
	return q, e.storeError(err)
}

// callQueue runs one of the functions on queue rows.
func (e *Engine) callQueue(ctx context.Context, fn string, q *v1.Queue) error {
	row, err := encodeQueue(q)
	if err != nil {
		return err
	}
	args := queueArgs(namespaceHash(q.GetNamespace()), queueKey(q.GetNamespace(), q.GetName()), row)
	_, err = e.router.Call(ctx, e.namespaceBucket(q.GetNamespace()), router.CallRW, fn, args)
	return e.storeError(err)
}

func (e *Engine) createQueue(ctx context.Context, namespace, queue string, c *v1.QueueConfig) (*v1.Queue, error) {
	now := timestamp(e.now())
	if c == nil {
		c = &v1.QueueConfig{}
	}
	q := &v1.Queue{Namespace: namespace, Name: queue, Config: c, CreatedAt: now, UpdatedAt: now}
	if err := e.callQueue(ctx, fnQueueCreate, q); err != nil {
		if reason.Of(err) == reason.QueueAlreadyExists {
			err = reason.New(codes.AlreadyExists, reason.QueueAlreadyExists, map[string]string{"queue": queue}, "queue %q exists already", queue)
		}
		return nil, err
	}
	return q, nil
}

// changeQueue reads a queue's row, lets change alter it, writes it back and tells
// the partition's owner.
func (e *Engine) changeQueue(ctx context.Context, namespace, queue string, change func(*v1.Queue) error) (*v1.Queue, error) {
	e.queueMu.Lock()
	defer e.queueMu.Unlock()
	q, err := e.getQueue(ctx, namespace, queue)
	if err != nil {
		return nil, err
	}
	if err := change(q); err != nil {
		return nil, err
	}
	q.UpdatedAt = timestamp(e.now())
	if err := e.callQueue(ctx, fnQueueUpdate, q); err != nil {
		return nil, err
	}
	s := settingsOf(q)
	if o := e.present(root(namespace, queue)); o != nil {
		o.settings.Store(&s)
		o.internal(configure{s})
	}
	return q, nil
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
