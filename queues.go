package switchyard

import (
	"context"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// Queues manages the queues of a client's namespace.
type Queues struct{ c *Client }

// Queues returns the calls that manage queues.
func (c *Client) Queues() Queues { return Queues{c} }

// QueueConfig is what a queue's tasks take when they do not say otherwise.
// Fields left at zero take the server's default.
type QueueConfig struct {
	// LeaseTime: 30 s by default.
	LeaseTime time.Duration
	// MaxAttempts: 25 by default.
	MaxAttempts int
	// Retry: 1 s to 1 h, doubling, a quarter of it random, by default.
	Retry *RetryPolicy
	// TTL is how long after it was added a task may start; for ever by default.
	TTL time.Duration
	// Partitions that take new tasks, 1 to 4096. By default 4 in a cluster and 1 on a
	// node by itself, fixed when the queue is created.
	Partitions int
	// RateLimit is the most tasks that are handed out per second, with bursts of one
	// second; 0 stops handing out, nil is no limit. KeyRateLimit is the same for each
	// fairness key, times its weight.
	RateLimit, KeyRateLimit *float64
	// FairnessKeys says what holds for single fairness keys, at most 1000 of them.
	FairnessKeys []FairnessKey
	// Scaling lets the number of partitions follow the load; nil for off.
	Scaling *Scaling
}

// FairnessKey is what a queue's configuration says of one fairness key.
type FairnessKey struct {
	// Key; empty for the tasks without one.
	Key string
	// Weight instead of the one that tasks say; 0 for what they say.
	Weight float64
	// RateLimit instead of the queue's KeyRateLimit, and not times the weight.
	RateLimit *float64
}

func (c QueueConfig) proto() *v1.QueueConfig {
	return &v1.QueueConfig{
		LeaseTime:   durationProto(c.LeaseTime),
		MaxAttempts: int32(min(max(c.MaxAttempts, -1), 1<<30)),
		Retry:       c.Retry.proto(),
		TimeToLive:  durationProto(c.TTL),
		Partitions:  int32(min(max(c.Partitions, -1), 1<<30)),

		RateLimit:    c.RateLimit,
		KeyRateLimit: c.KeyRateLimit,
		FairnessKeys: fairnessKeysProto(c.FairnessKeys),
		Scaling:      c.Scaling.proto(),
	}
}

func fairnessKeysProto(keys []FairnessKey) []*v1.FairnessKey {
	var out []*v1.FairnessKey
	for _, k := range keys {
		out = append(out, &v1.FairnessKey{Key: k.Key, Weight: k.Weight, RateLimit: k.RateLimit})
	}
	return out
}

func fairnessKeysOf(keys []*v1.FairnessKey) []FairnessKey {
	var out []FairnessKey
	for _, k := range keys {
		out = append(out, FairnessKey{Key: k.GetKey(), Weight: k.GetWeight(), RateLimit: k.RateLimit})
	}
	return out
}

// Queue is a queue as it is set up.
type Queue struct {
	Namespace, Name      string
	Config               QueueConfig
	Paused               bool
	CreatedAt, UpdatedAt time.Time
	// WritePartitions take new tasks, ReadPartitions are polled: more of them while
	// partitions that are to go still have tasks.
	WritePartitions, ReadPartitions int
}

func queueOf(q *v1.Queue) Queue {
	config := q.GetConfig()
	if config == nil {
		config = &v1.QueueConfig{}
	}
	return Queue{
		Namespace: q.GetNamespace(),
		Name:      q.GetName(),
		Config: QueueConfig{
			LeaseTime:   config.GetLeaseTime().AsDuration(),
			MaxAttempts: int(config.GetMaxAttempts()),
			Retry:       retryPolicyOf(config.GetRetry()),
			TTL:         config.GetTimeToLive().AsDuration(),
			Partitions:  int(config.GetPartitions()),

			RateLimit:    config.RateLimit,
			KeyRateLimit: config.KeyRateLimit,
			FairnessKeys: fairnessKeysOf(config.GetFairnessKeys()),
			Scaling:      scalingOf(config.GetScaling()),
		},
		Paused:    q.GetPaused(),
		CreatedAt: timeOf(q.GetCreatedAt()),
		UpdatedAt: timeOf(q.GetUpdatedAt()),

		WritePartitions: int(q.GetWritePartitions()),
		ReadPartitions:  int(q.GetReadPartitions()),
	}
}

// QueueCounts counts tasks by state; Delayed includes those that wait for a
// retry.
type QueueCounts struct{ Ready, Delayed, Leased, Dead int64 }

func countsOf(c *v1.QueueCounts) QueueCounts {
	return QueueCounts{Ready: c.GetReady(), Delayed: c.GetDelayed(), Leased: c.GetLeased(), Dead: c.GetDead()}
}

// QueueSummary is a queue in a list.
type QueueSummary struct {
	Queue
	Counts QueueCounts
}

// QueueStats tells what a queue is doing. Rates are tasks per second over the
// last 30 s.
type QueueStats struct {
	// BacklogAge is how long the oldest ready task has waited.
	BacklogAge                                    time.Duration
	AddRate, DispatchRate, CompleteRate, FailRate float64
	// SyncMatchShare is the share of dispatched tasks that met a waiting poller.
	SyncMatchShare float64
	// RateLimited says that tasks wait for a rate limit.
	RateLimited bool
}

// PriorityStats tells about the tasks of one priority; see QueueStats.
type PriorityStats struct {
	Priority              int
	Ready                 int64
	BacklogAge            time.Duration
	AddRate, DispatchRate float64
	SyncMatchShare        float64
}

// Poller is somebody who polled a queue within the last 5 minutes.
type Poller struct {
	Identity   string
	LastPollAt time.Time
	// Waiting polls at the moment.
	Waiting int
}

// Partition is one slice of a queue.
type Partition struct {
	Number  int
	Counts  QueueCounts
	RangeID int64
	// LoadedTasks are ready tasks held in memory.
	LoadedTasks  int64
	WaitingPolls int
	// Loaded says that the partition is in memory; Stats, Priorities and Pollers are
	// only of one that is.
	Loaded     bool
	Stats      QueueStats
	Priorities []PriorityStats
	Pollers    []Poller
}

// QueueDescription is all that there is to know of a queue.
type QueueDescription struct {
	Queue
	Counts     QueueCounts
	Stats      QueueStats
	Priorities []PriorityStats
	Pollers    []Poller
	Partitions []Partition
	// Scaling is what managed scaling does.
	Scaling ScalingStatus
}

// Create makes a queue. ErrQueueAlreadyExists if there is one of that name.
func (q Queues) Create(ctx context.Context, name string, config QueueConfig) (Queue, error) {
	var out Queue
	err := q.c.do(ctx, "create queue", quote(name), func(ctx context.Context, repeated bool) error {
		response, err := q.c.queues.CreateQueue(ctx, &v1.CreateQueueRequest{
			Namespace: q.c.opts.namespace, Queue: name, Config: config.proto()})
		if err == nil {
			out = queueOf(response.GetQueue())
			return nil
		}
		if repeated && Reason(err) == reason.QueueAlreadyExists { // by the first try
			described, err := q.c.queues.DescribeQueue(ctx, &v1.DescribeQueueRequest{Namespace: q.c.opts.namespace, Queue: name})
			out = queueOf(described.GetQueue())
			return err
		}
		return err
	})
	return out, err
}

// Update changes a queue's configuration. With fields, named as in the wire's
// QueueConfig ("lease_time", "max_attempts", "retry", "retry.jitter",
// "time_to_live", "partitions", "rate_limit", "key_rate_limit", "fairness_keys",
// "scaling"), only those are set; without, the whole configuration is replaced.
func (q Queues) Update(ctx context.Context, name string, config QueueConfig, fields ...string) (Queue, error) {
	var mask *fieldmaskpb.FieldMask
	if len(fields) > 0 {
		mask = &fieldmaskpb.FieldMask{Paths: fields}
	}
	var out Queue
	err := q.c.do(ctx, "update queue", quote(name), func(ctx context.Context, _ bool) error {
		response, err := q.c.queues.UpdateQueue(ctx, &v1.UpdateQueueRequest{
			Namespace: q.c.opts.namespace, Queue: name, Config: config.proto(), UpdateMask: mask})
		out = queueOf(response.GetQueue())
		return err
	})
	return out, err
}

// Delete removes a queue. One that has tasks is refused with ErrQueueNotEmpty
// unless force is set; then its tasks go with it.
func (q Queues) Delete(ctx context.Context, name string, force bool) error {
	return q.c.do(ctx, "delete queue", quote(name), func(ctx context.Context, repeated bool) error {
		_, err := q.c.queues.DeleteQueue(ctx, &v1.DeleteQueueRequest{Namespace: q.c.opts.namespace, Queue: name, Force: force})
		if repeated && Reason(err) == reason.QueueNotFound { // by the first try
			return nil
		}
		return err
	})
}

// List goes over all queues in the order of their names. An error ends it.
func (q Queues) List(ctx context.Context) iter.Seq2[QueueSummary, error] {
	return pages(func(token string) (page []QueueSummary, next string, err error) {
		err = q.c.do(ctx, "list", "queues", func(ctx context.Context, _ bool) error {
			response, err := q.c.queues.ListQueues(ctx, &v1.ListQueuesRequest{Namespace: q.c.opts.namespace, PageToken: token})
			for _, entry := range response.GetQueues() {
				page = append(page, QueueSummary{queueOf(entry.GetQueue()), countsOf(entry.GetCounts())})
			}
			next = response.GetNextPageToken()
			return err
		})
		return page, next, err
	})
}

// Describe tells a queue's configuration, counts, rates and pollers.
func (q Queues) Describe(ctx context.Context, name string) (*QueueDescription, error) {
	var out *QueueDescription
	err := q.c.do(ctx, "describe queue", quote(name), func(ctx context.Context, _ bool) error {
		response, err := q.c.queues.DescribeQueue(ctx, &v1.DescribeQueueRequest{Namespace: q.c.opts.namespace, Queue: name})
		if err == nil {
			out = descriptionOf(response)
		}
		return err
	})
	return out, err
}

func descriptionOf(r *v1.DescribeQueueResponse) *QueueDescription {
	out := &QueueDescription{
		Queue:      queueOf(r.GetQueue()),
		Counts:     countsOf(r.GetCounts()),
		Stats:      statsOf(r.GetStats()),
		Priorities: prioritiesOf(r.GetPriorities()),
		Pollers:    pollersOf(r.GetPollers()),
		Scaling: ScalingStatus{
			Target: int(r.GetScaling().GetTarget()), Largest: int(r.GetScaling().GetLargest()),
			ShadowTarget: int(r.GetScaling().GetShadowTarget()), AddRate: r.GetScaling().GetAddRate(),
		},
	}
	for _, p := range r.GetPartitions() {
		out.Partitions = append(out.Partitions, Partition{
			Number:       int(p.GetPartition()),
			Counts:       countsOf(p.GetCounts()),
			RangeID:      p.GetRangeId(),
			LoadedTasks:  p.GetLoadedTasks(),
			WaitingPolls: int(p.GetWaitingPolls()),
			Loaded:       p.GetLoaded(),
			Stats:        statsOf(p.GetStats()),
			Priorities:   prioritiesOf(p.GetPriorities()),
			Pollers:      pollersOf(p.GetPollers()),
		})
	}
	return out
}

func statsOf(s *v1.QueueStats) QueueStats {
	return QueueStats{
		BacklogAge:     s.GetBacklogAge().AsDuration(),
		AddRate:        s.GetAddRate(),
		DispatchRate:   s.GetDispatchRate(),
		CompleteRate:   s.GetCompleteRate(),
		FailRate:       s.GetFailRate(),
		SyncMatchShare: s.GetSyncMatchShare(),
		RateLimited:    s.GetRateLimited(),
	}
}

func prioritiesOf(stats []*v1.PriorityStats) []PriorityStats {
	var out []PriorityStats
	for _, s := range stats {
		out = append(out, PriorityStats{
			Priority: int(s.GetPriority()), Ready: s.GetReady(), BacklogAge: s.GetBacklogAge().AsDuration(),
			AddRate: s.GetAddRate(), DispatchRate: s.GetDispatchRate(), SyncMatchShare: s.GetSyncMatchShare(),
		})
	}
	return out
}

func pollersOf(pollers []*v1.Poller) []Poller {
	var out []Poller
	for _, p := range pollers {
		out = append(out, Poller{p.GetIdentity(), timeOf(p.GetLastPollAt()), int(p.GetWaiting())})
	}
	return out
}

// Pause stops handing out a queue's tasks. Adding, completing and failing go on.
func (q Queues) Pause(ctx context.Context, name string) (Queue, error) {
	var out Queue
	err := q.c.do(ctx, "pause queue", quote(name), func(ctx context.Context, _ bool) error {
		response, err := q.c.queues.PauseQueue(ctx, &v1.PauseQueueRequest{Namespace: q.c.opts.namespace, Queue: name})
		out = queueOf(response.GetQueue())
		return err
	})
	return out, err
}

// Resume ends a pause.
func (q Queues) Resume(ctx context.Context, name string) (Queue, error) {
	var out Queue
	err := q.c.do(ctx, "resume queue", quote(name), func(ctx context.Context, _ bool) error {
		response, err := q.c.queues.ResumeQueue(ctx, &v1.ResumeQueueRequest{Namespace: q.c.opts.namespace, Queue: name})
		out = queueOf(response.GetQueue())
		return err
	})
	return out, err
}

// Purge removes all waiting tasks (ready, delayed, retrying), with includeDead
// the dead ones too, and returns how many. Leased tasks stay with their workers.
// When the call had to be repeated, the number may miss those of the first try.
func (q Queues) Purge(ctx context.Context, name string, includeDead bool) (int64, error) {
	var purged int64
	err := q.c.do(ctx, "purge queue", quote(name), func(ctx context.Context, _ bool) error {
		response, err := q.c.queues.PurgeQueue(ctx, &v1.PurgeQueueRequest{
			Namespace: q.c.opts.namespace, Queue: name, IncludeDead: includeDead})
		purged = response.GetPurged()
		return err
	})
	return purged, err
}

// DeadTasks goes over a queue's dead tasks, the longest dead first. An error
// ends it.
func (q Queues) DeadTasks(ctx context.Context, name string) iter.Seq2[*TaskInfo, error] {
	return pages(func(token string) (page []*TaskInfo, next string, err error) {
		err = q.c.do(ctx, "list the dead tasks of queue", quote(name), func(ctx context.Context, _ bool) error {
			response, err := q.c.queues.ListDeadTasks(ctx, &v1.ListDeadTasksRequest{
				Namespace: q.c.opts.namespace, Queue: name, PageToken: token})
			for _, task := range response.GetTasks() {
				page = append(page, taskInfoOf(task))
			}
			next = response.GetNextPageToken()
			return err
		})
		return page, next, err
	})
}

// Redrive chooses the dead tasks that RedriveDead makes ready again.
type Redrive struct {
	// IDs of the tasks; empty for all, the longest dead first.
	IDs []string
	// Limit is the most tasks; 0 for no limit.
	Limit int64
}

// RedriveDead makes dead tasks ready again, with all their attempts, and returns
// how many. When the call had to be repeated, the number may miss those of the
// first try.
func (q Queues) RedriveDead(ctx context.Context, name string, which Redrive) (int64, error) {
	var redriven int64
	err := q.c.do(ctx, "redrive the dead tasks of queue", quote(name), func(ctx context.Context, _ bool) error {
		response, err := q.c.queues.RedriveDeadTasks(ctx, &v1.RedriveDeadTasksRequest{
			Namespace: q.c.opts.namespace, Queue: name, Ids: which.IDs, Limit: which.Limit})
		redriven = response.GetRedriven()
		return err
	})
	return redriven, err
}

// pages goes over a list that comes in pages.
func pages[T any](fetch func(token string) (page []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for token := ""; ; {
			page, next, err := fetch(token)
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			for _, item := range page {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" || next == token {
				return
			}
			token = next
		}
	}
}
