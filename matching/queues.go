package matching

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// QueuesOptions configure Queues.
type QueuesOptions struct {
	// Router leads to the store, where the rows of queues are. Without one, as in a client
	// outside of the cluster, queues learn their counts from their roots; they are not
	// created, and calls about queues as a whole fail.
	Router *router.Router
	// Peers finds the owners of partitions. Required.
	Peers Peers
	// Logger; default slog.Default().
	Logger *slog.Logger
	// AutoCreateQueues makes adding to, and polling, a queue that does not exist
	// create it.
	AutoCreateQueues bool
	// Partitions is how many a new queue has that does not say. Default 4.
	Partitions int
}

// Queues does what concerns a queue as a whole, on any node: it chooses partitions
// for adds and polls, sends each lease's end to where the lease is, and asks all
// partitions where all have to be asked. It implements the calls of TaskService,
// CallService and QueueService. All methods may be called from any goroutine.
type Queues struct {
	router     *router.Router
	peers      Peers
	log        *slog.Logger
	autoCreate bool
	partitions int
	now        func() int64 // wall clock, unix nanoseconds
	table      queueTable
}

// NewQueues makes Queues. It needs no stopping.
func NewQueues(o QueuesOptions) (*Queues, error) {
	if o.Peers == nil {
		return nil, errors.New("matching: peers are needed")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Partitions == 0 {
		o.Partitions = DefaultPartitions
	}
	if err := checkPartitions(int32(min(max(o.Partitions, -1), MaxPartitions+1))); err != nil {
		return nil, err
	}
	return &Queues{router: o.Router, peers: o.Peers, log: o.Logger, autoCreate: o.AutoCreateQueues, partitions: o.Partitions,
		now: func() int64 { return time.Now().UnixNano() }}, nil
}

// bucketOf is the bucket in which a partition's rows are.
func (q *Queues) bucketOf(id PartitionID) shard.BucketID {
	return shard.BucketOf(id.Hash(), q.router.BucketCount())
}

func checkPartitions(n int32) error {
	if n < 0 || n > MaxPartitions {
		return reason.New(codes.InvalidArgument, reason.InvalidPartition, nil, "a queue cannot have %d partitions: choose 1 to %d, or 0 for the default", n, MaxPartitions)
	}
	return nil
}

// public is a queue's row as clients see it.
func public(row *v1.StoredQueue) *v1.Queue {
	return &v1.Queue{Namespace: row.GetNamespace(), Name: row.GetName(), Config: row.GetConfig(), Paused: row.GetPaused(),
		CreatedAt: row.GetCreatedAt(), UpdatedAt: row.GetUpdatedAt(), WritePartitions: row.GetWritePartitions(),
		ReadPartitions: row.GetReadPartitions(), Deleting: row.GetDeleting()}
}

// setPartitions follows a change of the configured number. More partitions are
// there at once; fewer are added to at once, and polled until the others are empty.
func (q *Queues) setPartitions(row *v1.StoredQueue) {
	if n := row.GetConfig().GetPartitions(); n > 0 && !managed(row) {
		setWritePartitions(row, n, q.now())
		row.ReadPartitions = max(n, row.GetReadPartitions())
	}
}

// CreateQueue makes a queue; see QueueService.
func (q *Queues) CreateQueue(ctx context.Context, req *v1.CreateQueueRequest) (*v1.CreateQueueResponse, error) {
	if err := checkPartitions(req.GetConfig().GetPartitions()); err != nil {
		return nil, err
	}
	if err := checkScaling(req.GetConfig()); err != nil {
		return nil, err
	}
	row, err := q.createQueue(ctx, req.GetNamespace(), req.GetQueue(), req.GetConfig())
	if err != nil {
		return nil, err
	}
	return &v1.CreateQueueResponse{Queue: public(row)}, nil
}

// UpdateQueue changes a queue's configuration; see QueueService.
func (q *Queues) UpdateQueue(ctx context.Context, req *v1.UpdateQueueRequest) (*v1.UpdateQueueResponse, error) {
	row, err := q.changeQueue(ctx, req.GetNamespace(), req.GetQueue(), func(row *v1.StoredQueue) error {
		c := req.GetConfig()
		if c == nil {
			c = &v1.QueueConfig{}
		}
		if err := checkPartitions(c.GetPartitions()); err != nil {
			return err
		}
		if err := checkScaling(c); err != nil {
			return err
		}
		if len(req.GetUpdateMask().GetPaths()) == 0 {
			row.Config = proto.CloneOf(c)
			q.setPartitions(row)
			return nil
		}
		if row.Config == nil {
			row.Config = &v1.QueueConfig{}
		}
		for _, path := range req.GetUpdateMask().GetPaths() {
			if err := updatePath(row.Config, c, path); err != nil {
				return err
			}
		}
		q.setPartitions(row)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.UpdateQueueResponse{Queue: public(row)}, nil
}

// updatePath copies one field.
func updatePath(to, from *v1.QueueConfig, path string) error {
	if strings.HasPrefix(path, "retry.") && to.Retry == nil {
		to.Retry = &v1.RetryPolicy{}
	}
	switch path {
	case "lease_time":
		to.LeaseTime = from.GetLeaseTime()
	case "max_attempts":
		to.MaxAttempts = from.GetMaxAttempts()
	case "time_to_live":
		to.TimeToLive = from.GetTimeToLive()
	case "partitions":
		to.Partitions = from.GetPartitions()
	case "scaling":
		to.Scaling = from.GetScaling()
	case "rate_limit":
		to.RateLimit = from.RateLimit
	case "key_rate_limit":
		to.KeyRateLimit = from.KeyRateLimit
	case "fairness_keys":
		to.FairnessKeys = from.GetFairnessKeys()
	case "retry":
		to.Retry = from.GetRetry()
	case "retry.initial_backoff":
		to.Retry.InitialBackoff = from.GetRetry().GetInitialBackoff()
	case "retry.max_backoff":
		to.Retry.MaxBackoff = from.GetRetry().GetMaxBackoff()
	case "retry.multiplier":
		to.Retry.Multiplier = from.GetRetry().GetMultiplier()
	case "retry.jitter":
		to.Retry.Jitter = from.GetRetry().Jitter
	default:
		return reason.New(codes.InvalidArgument, reason.InvalidUpdateMask, map[string]string{"path": path}, "the update mask names %q, which no queue has", path)
	}
	return nil
}

// PauseQueue stops handing out tasks; see QueueService.
func (q *Queues) PauseQueue(ctx context.Context, req *v1.PauseQueueRequest) (*v1.PauseQueueResponse, error) {
	row, err := q.changeQueue(ctx, req.GetNamespace(), req.GetQueue(), func(q *v1.StoredQueue) error { q.Paused = true; return nil })
	if err != nil {
		return nil, err
	}
	return &v1.PauseQueueResponse{Queue: public(row)}, nil
}

// ResumeQueue hands out tasks again; see QueueService.
func (q *Queues) ResumeQueue(ctx context.Context, req *v1.ResumeQueueRequest) (*v1.ResumeQueueResponse, error) {
	row, err := q.changeQueue(ctx, req.GetNamespace(), req.GetQueue(), func(q *v1.StoredQueue) error { q.Paused = false; return nil })
	if err != nil {
		return nil, err
	}
	return &v1.ResumeQueueResponse{Queue: public(row)}, nil
}

// ListQueues lists a namespace's queues by name; see QueueService.
func (q *Queues) ListQueues(ctx context.Context, req *v1.ListQueuesRequest) (*v1.ListQueuesResponse, error) {
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil {
		return nil, reason.New(codes.InvalidArgument, reason.InvalidPageToken, nil, "the page token is not one that ListQueues returned")
	}
	if q.router == nil {
		return nil, errNoStore
	}
	ns := req.GetNamespace()
	resp := &v1.ListQueuesResponse{}
	var rows []*v1.StoredQueue
	err = q.router.View(ctx, q.namespaceBucket(ns), router.CallMR, func(v *storage.View) error {
		rows, resp.NextPageToken = nil, "" // a view may run again
		from := queueKey(ns, string(after))
		if len(after) > 0 {
			from = append(from, 0)
		}
		var bad error
		err := v.Scan(spaceQueues, from, append([]byte(ns), 1), false, func(_, value []byte) bool {
			if len(rows) >= int(req.GetPageSize()) {
				last := rows[len(rows)-1].GetName()
				resp.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(last))
				return false
			}
			var row *v1.StoredQueue
			if row, bad = decodeQueue(value); bad != nil {
				return false
			}
			rows = append(rows, row)
			return true
		})
		if err == nil {
			err = bad
		}
		return err
	})
	if err != nil {
		return nil, q.storeError(err)
	}
	var g errgroup.Group
	g.SetLimit(fanOut)
	for _, row := range rows {
		entry := &v1.ListQueuesResponse_Entry{Queue: public(row)}
		resp.Queues = append(resp.Queues, entry)
		g.Go(func() error {
			all, err := q.describePartitions(ctx, row, false)
			entry.Counts = mergeCounts(all)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return resp, nil
}

func (c stateCounts) proto() *v1.QueueCounts {
	return &v1.QueueCounts{Ready: c.ready, Delayed: c.delayed, Leased: c.leased, Dead: c.dead}
}
