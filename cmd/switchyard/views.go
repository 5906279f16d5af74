package main

import (
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// The shapes of the JSON output, documented in docs/cli.md. Fields may be added,
// never renamed or removed. Times are RFC 3339 in UTC, durations are seconds,
// what is not known is left out.

type countsView struct {
	Ready   int64 `json:"ready"`
	Delayed int64 `json:"delayed"`
	Leased  int64 `json:"leased"`
	Dead    int64 `json:"dead"`
}

type retryView struct {
	InitialBackoff *float64 `json:"initial_backoff_seconds,omitempty"`
	MaxBackoff     *float64 `json:"max_backoff_seconds,omitempty"`
	Multiplier     float64  `json:"multiplier,omitempty"`
	Jitter         *float64 `json:"jitter,omitempty"`
}

type configView struct {
	LeaseTime   *float64     `json:"lease_time_seconds,omitempty"`
	MaxAttempts int32        `json:"max_attempts,omitempty"`
	TimeToLive  *float64     `json:"time_to_live_seconds,omitempty"`
	Partitions  int32        `json:"partitions,omitempty"`
	Retry       *retryView   `json:"retry,omitempty"`
	Scaling     *scalingView `json:"scaling,omitempty"`

	RateLimit    *float64          `json:"rate_limit,omitempty"`
	KeyRateLimit *float64          `json:"key_rate_limit,omitempty"`
	FairnessKeys []fairnessKeyView `json:"fairness_keys,omitempty"`
}

type queueView struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Paused    bool        `json:"paused"`
	CreatedAt *time.Time  `json:"created_at,omitempty"`
	UpdatedAt *time.Time  `json:"updated_at,omitempty"`
	Config    configView  `json:"config"`
	Counts    *countsView `json:"counts,omitempty"`

	WritePartitions int32 `json:"write_partitions"`
	ReadPartitions  int32 `json:"read_partitions"`
}

type statsView struct {
	BacklogAge     *float64 `json:"backlog_age_seconds,omitempty"`
	AddRate        float64  `json:"add_rate"`
	DispatchRate   float64  `json:"dispatch_rate"`
	CompleteRate   float64  `json:"complete_rate"`
	FailRate       float64  `json:"fail_rate"`
	SyncMatchShare float64  `json:"sync_match_share"`
	RateLimited    bool     `json:"rate_limited,omitempty"`
}

type pollerView struct {
	Identity   string     `json:"identity"`
	LastPollAt *time.Time `json:"last_poll_at,omitempty"`
	Waiting    int32      `json:"waiting"`
}

type partitionView struct {
	Partition    int32      `json:"partition"`
	Counts       countsView `json:"counts"`
	RangeID      int64      `json:"range_id"`
	LoadedTasks  int64      `json:"loaded_tasks"`
	WaitingPolls int32      `json:"waiting_polls"`

	Loaded     bool           `json:"loaded"`
	Stats      *statsView     `json:"stats,omitempty"`
	Priorities []priorityView `json:"priorities,omitempty"`
	Pollers    []pollerView   `json:"pollers,omitempty"`
}

type descriptionView struct {
	queueView
	Stats      statsView          `json:"stats"`
	Priorities []priorityView     `json:"priorities"`
	Pollers    []pollerView       `json:"pollers"`
	Partitions []partitionView    `json:"partitions"`
	Scaling    *scalingStatusView `json:"scaling,omitempty"`
}

type taskView struct {
	ID            string            `json:"id"`
	Namespace     string            `json:"namespace"`
	Queue         string            `json:"queue"`
	Kind          string            `json:"kind"`
	State         string            `json:"state"`
	Attempt       *int32            `json:"attempt,omitempty"`
	MaxAttempts   int32             `json:"max_attempts,omitempty"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	AddedAt       *time.Time        `json:"added_at,omitempty"`
	RunAt         *time.Time        `json:"run_at,omitempty"`
	LeaseDeadline *time.Time        `json:"lease_deadline,omitempty"`
	Worker        string            `json:"worker,omitempty"`
	LastError     string            `json:"last_error,omitempty"`
	DeadAt        *time.Time        `json:"dead_at,omitempty"`
	ExpiresAt     *time.Time        `json:"expires_at,omitempty"`

	Priority       int32   `json:"priority,omitempty"`
	FairnessKey    string  `json:"fairness_key,omitempty"`
	FairnessWeight float32 `json:"fairness_weight,omitempty"`
}

func viewTime(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	v := t.AsTime()
	return &v
}

func viewSeconds(d *durationpb.Duration) *float64 {
	if d == nil {
		return nil
	}
	v := d.AsDuration().Seconds()
	return &v
}

func viewCounts(c *v1.QueueCounts) countsView {
	return countsView{Ready: c.GetReady(), Delayed: c.GetDelayed(), Leased: c.GetLeased(), Dead: c.GetDead()}
}

func viewQueue(q *v1.Queue) queueView {
	c := q.GetConfig()
	v := queueView{
		Namespace: q.GetNamespace(),
		Name:      q.GetName(),
		Paused:    q.GetPaused(),
		CreatedAt: viewTime(q.GetCreatedAt()),
		UpdatedAt: viewTime(q.GetUpdatedAt()),

		WritePartitions: q.GetWritePartitions(),
		ReadPartitions:  q.GetReadPartitions(),

		Config: configView{
			LeaseTime:   viewSeconds(c.GetLeaseTime()),
			MaxAttempts: c.GetMaxAttempts(),
			TimeToLive:  viewSeconds(c.GetTimeToLive()),
			Partitions:  c.GetPartitions(),
			Scaling:     viewScaling(c.GetScaling()),

			FairnessKeys: viewFairnessKeys(c.GetFairnessKeys()),
		},
	}
	if c != nil {
		v.Config.RateLimit, v.Config.KeyRateLimit = c.RateLimit, c.KeyRateLimit
	}
	if r := c.GetRetry(); r != nil {
		v.Config.Retry = &retryView{
			InitialBackoff: viewSeconds(r.GetInitialBackoff()),
			MaxBackoff:     viewSeconds(r.GetMaxBackoff()),
			Multiplier:     r.GetMultiplier(),
			Jitter:         r.Jitter,
		}
	}
	return v
}

func viewStats(s *v1.QueueStats) statsView {
	return statsView{
		BacklogAge:     viewSeconds(s.GetBacklogAge()),
		AddRate:        s.GetAddRate(),
		DispatchRate:   s.GetDispatchRate(),
		CompleteRate:   s.GetCompleteRate(),
		FailRate:       s.GetFailRate(),
		SyncMatchShare: s.GetSyncMatchShare(),
		RateLimited:    s.GetRateLimited(),
	}
}

func viewPollers(pollers []*v1.Poller) []pollerView {
	out := []pollerView{}
	for _, p := range pollers {
		out = append(out, pollerView{Identity: p.GetIdentity(), LastPollAt: viewTime(p.GetLastPollAt()), Waiting: p.GetWaiting()})
	}
	return out
}

func viewDescription(d *v1.DescribeQueueResponse) descriptionView {
	counts := viewCounts(d.GetCounts())
	v := descriptionView{
		queueView:  viewQueue(d.GetQueue()),
		Stats:      viewStats(d.GetStats()),
		Scaling:    viewScalingStatus(d.GetScaling()),
		Priorities: viewPriorities(d.GetPriorities()),
		Pollers:    viewPollers(d.GetPollers()),
		Partitions: []partitionView{},
	}
	v.Counts = &counts
	for _, p := range d.GetPartitions() {
		w := partitionView{
			Partition: p.GetPartition(), Counts: viewCounts(p.GetCounts()), RangeID: p.GetRangeId(),
			LoadedTasks: p.GetLoadedTasks(), WaitingPolls: p.GetWaitingPolls(), Loaded: p.GetLoaded(),
		}
		if p.GetLoaded() {
			stats := viewStats(p.GetStats())
			w.Stats, w.Priorities, w.Pollers = &stats, viewPriorities(p.GetPriorities()), viewPollers(p.GetPollers())
		}
		v.Partitions = append(v.Partitions, w)
	}
	return v
}

func viewTask(t *v1.Task) taskView {
	v := taskView{
		ID: t.GetId(), Namespace: t.GetNamespace(), Queue: t.GetQueue(), Kind: t.GetKind(),
		State: stateName(t.GetState()), MaxAttempts: t.GetMaxAttempts(),
		Headers: t.GetHeaders(), AddedAt: viewTime(t.GetAddedAt()), RunAt: viewTime(t.GetRunAt()),
		LeaseDeadline: viewTime(t.GetLeaseDeadline()), Worker: t.GetWorkerIdentity(),
		LastError: t.GetLastError(), DeadAt: viewTime(t.GetDeadAt()), ExpiresAt: viewTime(t.GetExpiresAt()),
		Priority: t.GetPriority(), FairnessKey: t.GetFairnessKey(), FairnessWeight: t.GetFairnessWeight(),
	}
	if t.GetMaxAttempts() == 0 {
		return v // it has ended: only its end is known
	}
	v.Attempt = &t.Attempt
	// A payload that is text reads as text; anything else is base64.
	if p := t.GetPayload(); utf8.Valid(p) {
		s := string(p)
		v.Payload = &s
	} else {
		v.PayloadBase64 = p
	}
	return v
}

// stateName is the word for a state: "ready", "dead".
func stateName(s v1.TaskState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "TASK_STATE_"))
}
