package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// pageSize is how much of a list is fetched at once.
const pageSize = 1000

func newQueueCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "queue",
		Short: "Create, look at, change, pause, empty and delete queues",
		Example: `  switchyard queue list
  switchyard queue describe thumbnails
  switchyard queue create thumbnails --max-attempts 5 --backoff 2s
  switchyard queue dead thumbnails`,
	}
	asGroup(c)
	c.AddCommand(
		newQueueListCommand(a), newQueueDescribeCommand(a), newQueueCreateCommand(a), newQueueUpdateCommand(a),
		newQueuePauseCommand(a), newQueueResumeCommand(a), newQueuePurgeCommand(a), newQueueDeleteCommand(a),
		newQueueDeadCommand(a), newQueueRedriveCommand(a), newQueueEndPollsCommand(a),
	)
	return c
}

func newQueueListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the queues of a namespace with their counts",
		Example: `  switchyard queue list
  switchyard queue list -o json | jq -r '.[] | select(.counts.dead > 0).name'`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withConn(func(conn *conn) error { return a.listQueues(c.Context(), conn) })
		},
	}
}

func (a *app) listQueues(ctx context.Context, conn *conn) error {
	array := &arrayWriter{out: a.stdout}
	t := a.newTable()
	rows := 0
	for token := ""; ; {
		call, cancel := context.WithTimeout(ctx, a.timeout)
		resp, err := conn.queues.ListQueues(call, &v1.ListQueuesRequest{Namespace: a.namespace, PageSize: pageSize, PageToken: token})
		cancel()
		if err != nil {
			return err
		}
		for _, e := range resp.GetQueues() {
			counts := viewCounts(e.GetCounts())
			if a.json() {
				q := viewQueue(e.GetQueue())
				q.Counts = &counts
				if err := array.add(q); err != nil {
					return err
				}
				continue
			}
			if rows == 0 {
				t.row("NAME", "READY", "DELAYED", "LEASED", "DEAD", "STATE")
			}
			rows++
			t.row(e.GetQueue().GetName(), count(counts.Ready), count(counts.Delayed), count(counts.Leased), count(counts.Dead), queueState(e.GetQueue()))
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	if a.json() {
		return array.close()
	}
	if rows == 0 {
		fmt.Fprintf(a.stderr, "No queues in namespace %q. Adding a task makes one: switchyard add QUEUE PAYLOAD\n", a.namespace)
	}
	return t.flush()
}

func queueState(q *v1.Queue) string {
	if q.GetPaused() {
		return "paused"
	}
	return "running"
}

func newQueueDescribeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "describe QUEUE",
		Aliases: []string{"get", "show"},
		Short:   "Show a queue's settings, counts, rates and workers",
		Example: "  switchyard queue describe thumbnails",
		Args:    exactArgs("QUEUE"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.queues.DescribeQueue(ctx, &v1.DescribeQueueRequest{Namespace: a.namespace, Queue: args[0]})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(viewDescription(resp))
				}
				return a.printDescription(resp)
			})
		},
	}
}

func (a *app) printDescription(d *v1.DescribeQueueResponse) error {
	q, n, s := d.GetQueue(), d.GetCounts(), d.GetStats()
	t := a.newTable()
	t.field("Queue", q.GetName())
	t.field("Namespace", q.GetNamespace())
	t.field("State", queueState(q))
	t.field("Created", viewTimeText(viewTime(q.GetCreatedAt())))
	a.configFields(t, q.GetConfig())
	if w, r := q.GetWritePartitions(), q.GetReadPartitions(); w == r {
		t.field("Partitions", count(w))
	} else {
		t.field("Partitions", fmt.Sprintf("%d take tasks, %d are polled", w, r))
	}
	scalingField(t, q, d.GetScaling())
	t.field("Ready", count(n.GetReady()))
	t.field("Delayed", count(n.GetDelayed()))
	t.field("Leased", count(n.GetLeased()))
	t.field("Dead", count(n.GetDead()))
	if age := s.GetBacklogAge().AsDuration(); age > 0 {
		t.field("Oldest ready", roughly(age))
	}
	t.field("Rates, last 30 s", fmt.Sprintf("added %s, handed out %s, completed %s, failed %s",
		perSecond(s.GetAddRate()), perSecond(s.GetDispatchRate()), perSecond(s.GetCompleteRate()), perSecond(s.GetFailRate())))
	t.field("Matched at once", fmt.Sprintf("%.0f%%", 100*s.GetSyncMatchShare()))
	if s.GetRateLimited() {
		t.field("Rate limit", "tasks wait for it")
	}
	if err := t.flush(); err != nil {
		return err
	}
	if err := a.printPriorities(d.GetPriorities()); err != nil {
		return err
	}
	if len(d.GetPollers()) > 0 {
		fmt.Fprintln(a.stdout)
		t = a.newTable("WORKER", "LAST POLL", "WAITING")
		for _, p := range d.GetPollers() {
			t.row(printable(p.GetIdentity(), 80), viewTimeText(viewTime(p.GetLastPollAt())), count(p.GetWaiting()))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(d.GetPartitions()) > 1 {
		return a.printPartitions(d.GetPartitions())
	}
	return nil
}

// printPriorities prints a row for each priority, unless all tasks have the usual one.
func (a *app) printPriorities(stats []*v1.PriorityStats) error {
	if len(stats) == 0 || len(stats) == 1 && stats[0].GetPriority() == usualPriority {
		return nil
	}
	fmt.Fprintln(a.stdout)
	t := a.newTable("PRIORITY", "READY", "OLDEST", "ADDED", "HANDED OUT", "AT ONCE")
	for _, s := range stats {
		t.row(count(s.GetPriority()), count(s.GetReady()), ageText(s.GetBacklogAge()), perSecond(s.GetAddRate()), perSecond(s.GetDispatchRate()),
			fmt.Sprintf("%.0f%%", 100*s.GetSyncMatchShare()))
	}
	return t.flush()
}

// usualPriority is that of tasks that do not say.
const usualPriority = 3

func ageText(d *durationpb.Duration) string {
	if d.AsDuration() <= 0 {
		return "-"
	}
	return roughly(d.AsDuration())
}

// printPartitions prints the tree of a queue's partitions, each below its parent.
func (a *app) printPartitions(all []*v1.PartitionDescription) error {
	fmt.Fprintln(a.stdout)
	t := a.newTable("PARTITION", "READY", "DELAYED", "LEASED", "DEAD", "OLDEST", "ADDED", "HANDED OUT", "AT ONCE", "IN MEMORY", "WAITING POLLS")
	children := map[int32][]*v1.PartitionDescription{}
	for _, p := range all {
		parent := int32(-1)
		if p.Parent != nil {
			parent = p.GetParent()
		}
		children[parent] = append(children[parent], p)
	}
	var show func(parent int32, indent string)
	show = func(parent int32, indent string) {
		for _, p := range children[parent] {
			n, s := p.GetCounts(), p.GetStats()
			row := []string{indent + count(p.GetPartition()), count(n.GetReady()), count(n.GetDelayed()), count(n.GetLeased()), count(n.GetDead())}
			if p.GetLoaded() {
				row = append(row, ageText(s.GetBacklogAge()), perSecond(s.GetAddRate()), perSecond(s.GetDispatchRate()), fmt.Sprintf("%.0f%%", 100*s.GetSyncMatchShare()))
			} else {
				row = append(row, "-", "-", "-", "-")
			}
			t.row(append(row, count(p.GetLoadedTasks()), count(p.GetWaitingPolls()))...)
			if p.GetPartition() > parent { // a tree has no loops
				show(p.GetPartition(), indent+"  ")
			}
		}
	}
	show(-1, "")
	return t.flush()
}

func (a *app) configFields(t *table, c *v1.QueueConfig) {
	if c.GetLeaseTime() != nil {
		t.field("Lease time", c.GetLeaseTime().AsDuration().String())
	}
	if c.GetMaxAttempts() > 0 {
		t.field("Max attempts", count(c.GetMaxAttempts()))
	}
	if r := c.GetRetry(); r != nil {
		var parts []string
		if r.GetInitialBackoff() != nil {
			parts = append(parts, "after "+r.GetInitialBackoff().AsDuration().String())
		}
		if r.GetMultiplier() > 0 {
			parts = append(parts, fmt.Sprintf("times %g each", r.GetMultiplier()))
		}
		if r.GetMaxBackoff() != nil {
			parts = append(parts, "at most "+r.GetMaxBackoff().AsDuration().String())
		}
		if r.Jitter != nil {
			parts = append(parts, fmt.Sprintf("jitter %g", r.GetJitter()))
		}
		t.field("Retries", strings.Join(parts, ", "))
	}
	if c.GetTimeToLive() != nil {
		t.field("Time to live", c.GetTimeToLive().AsDuration().String())
	}
	a.fairnessFields(t, c)
}

func viewTimeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// configFlags are the settings of a queue as flags.
type configFlags struct {
	leaseTime, ttl time.Duration
	maxAttempts    int32
	partitions     int32
	retry          retryFlags
	scaling        scalingFlags
	fairness       fairnessFlags
}

func (f *configFlags) add(c *cobra.Command) {
	c.Flags().DurationVar(&f.leaseTime, "lease-time", 0, "how long a worker holds a task before it goes to another (server's default: 30s)")
	c.Flags().Int32Var(&f.maxAttempts, "max-attempts", 0, "attempts before a task is dead (server's default: 25)")
	c.Flags().DurationVar(&f.ttl, "ttl", 0, "drop tasks that have not started so long after they were added (server's default: never)")
	c.Flags().Int32Var(&f.partitions, "partitions", 0, "partitions that take new tasks, 1 to 4096 (server's default: 1 on a node by itself, 4 in a cluster)")
	f.retry.add(c)
	f.scaling.add(c)
	f.fairness.add(c)
}

// config returns the settings and the paths of those that were given.
func (f *configFlags) config(c *cobra.Command) (*v1.QueueConfig, []string, error) {
	cfg := &v1.QueueConfig{MaxAttempts: f.maxAttempts, Partitions: f.partitions}
	var paths []string
	given := func(flag, path string) bool {
		if !c.Flags().Changed(flag) {
			return false
		}
		paths = append(paths, path)
		return true
	}
	given("max-attempts", "max_attempts")
	given("partitions", "partitions")
	if given("lease-time", "lease_time") {
		cfg.LeaseTime = durationpb.New(f.leaseTime)
	}
	if given("ttl", "time_to_live") {
		cfg.TimeToLive = durationpb.New(f.ttl)
	}
	given("backoff", "retry.initial_backoff")
	given("max-backoff", "retry.max_backoff")
	given("backoff-multiplier", "retry.multiplier")
	given("jitter", "retry.jitter")
	cfg.Retry = f.retry.policy(c)
	more, err := f.scaling.config(c, cfg)
	if err != nil {
		return nil, nil, err
	}
	fair, err := f.fairness.config(c, cfg)
	return cfg, append(append(paths, more...), fair...), err
}

// retryFlags are a retry policy as flags.
type retryFlags struct {
	backoff, maxBackoff time.Duration
	multiplier, jitter  float64
}

func (f *retryFlags) add(c *cobra.Command) {
	c.Flags().DurationVar(&f.backoff, "backoff", 0, "wait before the first retry (server's default: 1s)")
	c.Flags().DurationVar(&f.maxBackoff, "max-backoff", 0, "longest wait before a retry (server's default: 1h)")
	c.Flags().Float64Var(&f.multiplier, "backoff-multiplier", 0, "how much longer each wait is than the one before (server's default: 2)")
	c.Flags().Float64Var(&f.jitter, "jitter", 0, "share of a wait that is random, 0 to 1 (server's default: 0.25)")
}

// policy returns the policy, nil when none of its flags was given.
func (f *retryFlags) policy(c *cobra.Command) *v1.RetryPolicy {
	var p *v1.RetryPolicy
	given := func(flag string) bool {
		if !c.Flags().Changed(flag) {
			return false
		}
		if p == nil {
			p = &v1.RetryPolicy{}
		}
		return true
	}
	if given("backoff") {
		p.InitialBackoff = durationpb.New(f.backoff)
	}
	if given("max-backoff") {
		p.MaxBackoff = durationpb.New(f.maxBackoff)
	}
	if given("backoff-multiplier") {
		p.Multiplier = f.multiplier
	}
	if given("jitter") {
		p.Jitter = &f.jitter
	}
	return p
}

func newQueueCreateCommand(a *app) *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use:   "create QUEUE",
		Short: "Create a queue",
		Long: `Create a queue. Settings that are not given take the server's defaults. A task
may bring its own.`,
		Example: `  switchyard queue create thumbnails
  switchyard queue create mails --max-attempts 5 --backoff 10s --max-backoff 10m --ttl 24h`,
		Args: exactArgs("QUEUE"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, _, err := flags.config(c)
			if err != nil {
				return usageOf(c, err)
			}
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.queues.CreateQueue(ctx, &v1.CreateQueueRequest{Namespace: a.namespace, Queue: args[0], Config: cfg})
				return a.queueDone(resp.GetQueue(), err, "created queue %s")
			})
		},
	}
	flags.add(c)
	return c
}

func newQueueUpdateCommand(a *app) *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use:   "update QUEUE",
		Short: "Change settings of a queue",
		Long: `Change settings of a queue. Only the settings that are given change; a value of 0
brings the server's default back. Tasks that are in the queue keep what they
were added with.`,
		Example: "  switchyard queue update thumbnails --max-attempts 3 --lease-time 2m",
		Args:    exactArgs("QUEUE"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, paths, err := flags.config(c)
			if err != nil {
				return usageOf(c, err)
			}
			if len(paths) == 0 {
				return usageOf(c, errors.New("nothing to change: give at least one setting"))
			}
			// Zero means "not set" on the wire.
			if flags.leaseTime == 0 {
				cfg.LeaseTime = nil
			}
			if flags.ttl == 0 {
				cfg.TimeToLive = nil
			}
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.queues.UpdateQueue(ctx, &v1.UpdateQueueRequest{
					Namespace: a.namespace, Queue: args[0], Config: cfg, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
				})
				return a.queueDone(resp.GetQueue(), err, "updated queue %s")
			})
		},
	}
	flags.add(c)
	return c
}

// queueDone prints what became of a queue.
func (a *app) queueDone(q *v1.Queue, err error, format string) error {
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(viewQueue(q))
	}
	_, err = fmt.Fprintf(a.stdout, format+"\n", q.GetName())
	return err
}

func newQueuePauseCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "pause QUEUE",
		Short: "Stop handing out tasks of a queue",
		Long: `Stop handing out tasks of a queue. Adding goes on, and workers may end the tasks
that they hold.`,
		Example: "  switchyard queue pause thumbnails",
		Args:    exactArgs("QUEUE"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.queues.PauseQueue(ctx, &v1.PauseQueueRequest{Namespace: a.namespace, Queue: args[0]})
				return a.queueDone(resp.GetQueue(), err, "paused queue %s")
			})
		},
	}
}

func newQueueResumeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "resume QUEUE",
		Short:   "Hand out tasks of a paused queue again",
		Example: "  switchyard queue resume thumbnails",
		Args:    exactArgs("QUEUE"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.call(c.Context(), func(ctx context.Context, conn *conn) error {
				resp, err := conn.queues.ResumeQueue(ctx, &v1.ResumeQueueRequest{Namespace: a.namespace, Queue: args[0]})
				return a.queueDone(resp.GetQueue(), err, "resumed queue %s")
			})
		},
	}
}
