package matching

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard/engine"
	"github.com/switchyard-dev/switchyard/shard/engine/raftengine"
	"github.com/switchyard-dev/switchyard/shard/router"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testBuckets = 16

// newStore opens a real store; in memory when dir is empty.
func newStore(t testing.TB, dir string) *router.Router {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	reg := storage.NewRegistry()
	RegisterFunctions(reg)
	s, err := storage.Open(ctx, storage.Options{
		Registry: reg, BucketCount: testBuckets, ReplicaSet: "main",
		OpenEngine: func(ctx context.Context, m engine.Machine) (engine.Engine, error) {
			return raftengine.Open(ctx, raftengine.Options{Dir: dir, Memory: dir == "", Machine: m, BucketCount: testBuckets})
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	require.NoError(t, s.Bootstrap(ctx))
	r, err := router.New(router.Options{ReplicaSets: []router.ReplicaSet{s}})
	require.NoError(t, err)
	return r
}

// fixture is an engine over a real store.
type fixture struct {
	testing.TB
	*Engine
	ctx context.Context
}

func newFixture(t testing.TB, r *router.Router, change func(*Options)) *fixture {
	t.Helper()
	o := Options{Router: r, AutoCreateQueues: true, Partitions: 1}
	if change != nil {
		change(&o)
	}
	e, err := New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	f := &fixture{t, e, ctx}
	t.Cleanup(func() {
		require.NoError(t, e.Stop(ctx))
		cancel()
	})
	return f
}

func spec(payload string) *v1.TaskSpec {
	return &v1.TaskSpec{Id: uuid.Must(uuid.NewV7()).String(), Kind: "k", Payload: []byte(payload)}
}

func (f *fixture) add(queue string, tasks ...*v1.TaskSpec) []*v1.AddTasksResponse_Result {
	f.Helper()
	resp, err := f.AddTasks(f.ctx, &v1.AddTasksRequest{Namespace: "default", Queue: queue, Tasks: tasks})
	require.NoError(f, err)
	return resp.GetResults()
}

func (f *fixture) poll(queue string, n int, wait, lease time.Duration) []*v1.LeasedTask {
	f.Helper()
	req := &v1.PollTasksRequest{Namespace: "default", Queue: queue, Identity: "test", MaxTasks: int32(n), Wait: durationpb.New(wait)}
	if lease > 0 {
		req.LeaseTime = durationpb.New(lease)
	}
	resp, err := f.PollTasks(f.ctx, req)
	require.NoError(f, err)
	return resp.GetTasks()
}

func (f *fixture) complete(queue string, tasks ...*v1.LeasedTask) []string {
	f.Helper()
	req := &v1.CompleteTasksRequest{Namespace: "default", Queue: queue}
	for _, t := range tasks {
		req.LeaseTokens = append(req.LeaseTokens, t.GetLeaseToken())
	}
	resp, err := f.CompleteTasks(f.ctx, req)
	require.NoError(f, err)
	var reasons []string
	for _, r := range resp.GetResults() {
		reasons = append(reasons, r.GetError().GetReason())
	}
	return reasons
}

func (f *fixture) fail(queue string, x *v1.FailTasksRequest_Failure) *v1.FailTasksResponse_Result {
	f.Helper()
	resp, err := f.FailTasks(f.ctx, &v1.FailTasksRequest{Namespace: "default", Queue: queue, Failures: []*v1.FailTasksRequest_Failure{x}})
	require.NoError(f, err)
	return resp.GetResults()[0]
}

func (f *fixture) get(queue, id string) *v1.Task {
	f.Helper()
	resp, err := f.GetTask(f.ctx, &v1.GetTaskRequest{Namespace: "default", Queue: queue, Id: id})
	require.NoError(f, err)
	return resp.GetTask()
}

func (f *fixture) describe(queue string) *v1.DescribeQueueResponse {
	f.Helper()
	resp, err := f.DescribeQueue(f.ctx, &v1.DescribeQueueRequest{Namespace: "default", Queue: queue})
	require.NoError(f, err)
	return resp
}

func TestTask_goes_from_add_to_complete(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	s := spec("hello")
	s.Headers = map[string]string{"a": "b"}
	require.Equal(t, s.GetId(), f.add("q", s)[0].GetId())
	require.Equal(t, v1.TaskState_TASK_STATE_READY, f.get("q", s.GetId()).GetState())

	got := f.poll("q", 10, 0, 0)
	require.Len(t, got, 1)
	require.Equal(t, s.GetId(), got[0].GetId())
	require.Equal(t, "hello", string(got[0].GetPayload()))
	require.Equal(t, map[string]string{"a": "b"}, got[0].GetHeaders())
	require.EqualValues(t, 1, got[0].GetAttempt())
	require.EqualValues(t, 25, got[0].GetMaxAttempts())
	leased := f.get("q", s.GetId())
	require.Equal(t, v1.TaskState_TASK_STATE_LEASED, leased.GetState())
	require.Equal(t, "test", leased.GetWorkerIdentity())

	require.Equal(t, []string{""}, f.complete("q", got[0]))
	require.Equal(t, v1.TaskState_TASK_STATE_COMPLETED, f.get("q", s.GetId()).GetState())
	require.Equal(t, []string{reason.TaskAlreadyCompleted}, f.complete("q", got[0]))
	require.Empty(t, f.poll("q", 10, 0, 0))
}

func TestAdd_of_a_known_id_is_not_added_again(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	a, b := spec("a"), spec("b")
	r := f.add("q", a, b, a)
	require.Equal(t, []bool{false, false, true}, []bool{r[0].GetAlreadyAdded(), r[1].GetAlreadyAdded(), r[2].GetAlreadyAdded()})
	require.True(t, f.add("q", b)[0].GetAlreadyAdded())
	got := f.poll("q", 10, 0, 0)
	require.Len(t, got, 2)
	f.complete("q", got...)
	require.True(t, f.add("q", a)[0].GetAlreadyAdded(), "a completed task is recognised too")
}

func TestPoll_that_waits_gets_a_task_with_the_add(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	got := make(chan []*v1.LeasedTask)
	go func() { got <- f.poll("q", 5, 30*time.Second, 0) }()
	require.Eventually(t, func() bool { return f.describeIfThere("q").GetPartitions()[0].GetWaitingPolls() == 1 }, 10*time.Second, time.Millisecond)
	f.add("q", spec("x"), spec("y"))
	require.Len(t, <-got, 2)
	d := f.describe("q")
	require.EqualValues(t, 2, d.GetCounts().GetLeased())
	require.EqualValues(t, 1, d.GetStats().GetSyncMatchShare())
	require.Equal(t, "test", d.GetPollers()[0].GetIdentity())
}

// describeIfThere is describe for a queue that may not exist yet.
func (f *fixture) describeIfThere(queue string) *v1.DescribeQueueResponse {
	resp, err := f.DescribeQueue(f.ctx, &v1.DescribeQueueRequest{Namespace: "default", Queue: queue})
	if err != nil {
		return &v1.DescribeQueueResponse{Partitions: []*v1.PartitionDescription{{}}}
	}
	return resp
}

func TestPoll_ends_at_once_when_its_caller_goes_away(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan error)
	go func() {
		_, err := f.PollTasks(ctx, &v1.PollTasksRequest{Namespace: "default", Queue: "q", MaxTasks: 1, Wait: durationpb.New(time.Minute)})
		done <- err
	}()
	require.Eventually(t, func() bool { return f.describeIfThere("q").GetPartitions()[0].GetWaitingPolls() == 1 }, 10*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.EqualValues(t, 0, f.describe("q").GetPartitions()[0].GetWaitingPolls())
	f.add("q", spec("x"))
	require.Len(t, f.poll("q", 1, 0, 0), 1)
}

func TestLease_that_runs_out_is_delivered_again_and_its_token_is_refused(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.add("q", spec("x"))
	first := f.poll("q", 1, 0, 50*time.Millisecond)
	second := f.poll("q", 1, 10*time.Second, 0)
	require.Len(t, second, 1)
	require.EqualValues(t, 2, second[0].GetAttempt())
	require.Contains(t, second[0].GetLastError(), "lease ran out")
	require.Equal(t, []string{reason.LeaseLost}, f.complete("q", first[0]))
	require.Equal(t, []string{""}, f.complete("q", second[0]))
}

func TestLease_is_extended_and_released(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.add("q", spec("x"))
	got := f.poll("q", 1, 0, time.Second)
	resp, err := f.ExtendLeases(f.ctx, &v1.ExtendLeasesRequest{Namespace: "default", Queue: "q",
		Extensions: []*v1.ExtendLeasesRequest_Extension{{LeaseToken: got[0].GetLeaseToken(), LeaseTime: durationpb.New(time.Hour)}}})
	require.NoError(t, err)
	require.Greater(t, time.Until(resp.GetResults()[0].GetLeaseDeadline().AsTime()), 50*time.Minute)

	rel, err := f.ReleaseTasks(f.ctx, &v1.ReleaseTasksRequest{Namespace: "default", Queue: "q", LeaseTokens: [][]byte{got[0].GetLeaseToken()}})
	require.NoError(t, err)
	require.Nil(t, rel.GetResults()[0].GetError())
	again := f.poll("q", 1, 10*time.Second, 0)
	require.EqualValues(t, 1, again[0].GetAttempt(), "a released attempt does not count")
	require.Equal(t, []string{reason.LeaseLost}, f.complete("q", got[0]))
}

func TestFail_retries_with_backoff_until_the_task_is_dead(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	s := spec("x")
	s.MaxAttempts = 2
	s.Retry = &v1.RetryPolicy{InitialBackoff: durationpb.New(20 * time.Millisecond)}
	f.add("q", s)
	got := f.poll("q", 1, 0, 0)
	r := f.fail("q", &v1.FailTasksRequest_Failure{LeaseToken: got[0].GetLeaseToken(), Error: "boom"})
	require.Equal(t, v1.TaskState_TASK_STATE_RETRYING, r.GetState())
	got = f.poll("q", 1, 10*time.Second, 0)
	require.Equal(t, "boom", got[0].GetLastError())
	require.EqualValues(t, 2, got[0].GetAttempt())
	r = f.fail("q", &v1.FailTasksRequest_Failure{LeaseToken: got[0].GetLeaseToken(), Error: "boom again"})
	require.Equal(t, v1.TaskState_TASK_STATE_DEAD, r.GetState())
	require.Equal(t, []string{reason.TaskDead}, f.complete("q", got[0]))

	dead, err := f.ListDeadTasks(f.ctx, &v1.ListDeadTasksRequest{Namespace: "default", Queue: "q", PageSize: 10})
	require.NoError(t, err)
	require.Len(t, dead.GetTasks(), 1)
	require.Equal(t, "boom again", dead.GetTasks()[0].GetLastError())
	require.Equal(t, "x", string(dead.GetTasks()[0].GetPayload()))

	rd, err := f.RedriveDeadTasks(f.ctx, &v1.RedriveDeadTasksRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	require.EqualValues(t, 1, rd.GetRedriven())
	got = f.poll("q", 1, 10*time.Second, 0)
	require.EqualValues(t, 1, got[0].GetAttempt())
	require.Equal(t, []string{""}, f.complete("q", got[0]))
}

func TestFail_not_retryable_is_dead_at_once(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.add("q", spec("x"))
	got := f.poll("q", 1, 0, 0)
	r := f.fail("q", &v1.FailTasksRequest_Failure{LeaseToken: got[0].GetLeaseToken(), NotRetryable: true})
	require.Equal(t, v1.TaskState_TASK_STATE_DEAD, r.GetState())
	require.EqualValues(t, 1, f.describe("q").GetCounts().GetDead())
}

func TestDelayed_task_waits_for_its_time(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	s := spec("later")
	at := time.Now().Add(150 * time.Millisecond)
	s.RunAt = timestamppb.New(at)
	f.add("q", s, spec("now"))
	require.Equal(t, v1.TaskState_TASK_STATE_DELAYED, f.get("q", s.GetId()).GetState())
	require.EqualValues(t, 1, f.describe("q").GetCounts().GetDelayed())
	require.Equal(t, "now", string(f.poll("q", 10, 0, 0)[0].GetPayload()))
	got := f.poll("q", 10, 10*time.Second, 0)
	require.Equal(t, "later", string(got[0].GetPayload()))
	require.False(t, time.Now().Before(at))
}

func TestTask_older_than_its_time_to_live_is_dropped(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	s := spec("x")
	s.TimeToLive = durationpb.New(time.Millisecond)
	f.add("q", s)
	over := time.Now().Add(2 * time.Millisecond)
	require.Eventually(t, func() bool { return time.Now().After(over) }, time.Minute, time.Millisecond)
	require.Empty(t, f.poll("q", 1, 0, 0))
	require.Equal(t, v1.TaskState_TASK_STATE_EXPIRED, f.get("q", s.GetId()).GetState())
}

func TestCancel_removes_a_task_in_every_state(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	ready, delayed, leased, dead := spec("r"), spec("d"), spec("l"), spec("x")
	delayed.RunAt = timestamppb.New(time.Now().Add(time.Hour))
	f.add("q", dead)
	f.fail("q", &v1.FailTasksRequest_Failure{LeaseToken: f.poll("q", 1, 0, 0)[0].GetLeaseToken(), NotRetryable: true})
	f.add("q", leased)
	lease := f.poll("q", 1, 0, 0)
	f.add("q", ready, delayed)
	for s, want := range map[*v1.TaskSpec]v1.TaskState{
		ready: v1.TaskState_TASK_STATE_READY, delayed: v1.TaskState_TASK_STATE_DELAYED,
		leased: v1.TaskState_TASK_STATE_LEASED, dead: v1.TaskState_TASK_STATE_DEAD,
	} {
		resp, err := f.CancelTask(f.ctx, &v1.CancelTaskRequest{Namespace: "default", Queue: "q", Id: s.GetId()})
		require.NoError(t, err)
		require.Equal(t, want, resp.GetState())
		require.Equal(t, v1.TaskState_TASK_STATE_CANCELLED, f.get("q", s.GetId()).GetState())
		_, err = f.CancelTask(f.ctx, &v1.CancelTaskRequest{Namespace: "default", Queue: "q", Id: s.GetId()})
		require.Equal(t, reason.TaskCancelled, reason.Of(err))
	}
	require.Equal(t, []string{reason.TaskCancelled}, f.complete("q", lease[0]))
	require.Empty(t, f.poll("q", 10, 0, 0))
	require.True(t, stateCounts{} == countsOf(f.describe("q").GetCounts()))
}

func countsOf(c *v1.QueueCounts) stateCounts {
	return stateCounts{c.GetReady(), c.GetDelayed(), c.GetLeased(), c.GetDead()}
}

func TestPurge_removes_what_waits_and_leaves_what_is_leased(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.Limits.WindowTasks = 10 })
	f.add("q", spec("leased"))
	lease := f.poll("q", 1, 0, 0)
	for range 25 {
		var many []*v1.TaskSpec
		for range 100 {
			many = append(many, spec("x"))
		}
		many[0].RunAt = timestamppb.New(time.Now().Add(time.Hour))
		f.add("q", many...)
	}
	resp, err := f.PurgeQueue(f.ctx, &v1.PurgeQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	require.EqualValues(t, 2500, resp.GetPurged())
	require.Equal(t, stateCounts{leased: 1}, countsOf(f.describe("q").GetCounts()))
	require.Empty(t, f.poll("q", 10, 0, 0))
	f.add("q", spec("new"))
	require.Len(t, f.poll("q", 10, 0, 0), 1)
	require.Equal(t, []string{""}, f.complete("q", lease[0]))
}

func TestPause_holds_tasks_back_and_resume_lets_them_go(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.add("q", spec("x"))
	_, err := f.PauseQueue(f.ctx, &v1.PauseQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	require.Empty(t, f.poll("q", 1, 0, 0))
	got := make(chan []*v1.LeasedTask)
	go func() { got <- f.poll("q", 1, 30*time.Second, 0) }()
	require.Eventually(t, func() bool { return f.describe("q").GetPartitions()[0].GetWaitingPolls() == 1 }, 10*time.Second, time.Millisecond)
	_, err = f.ResumeQueue(f.ctx, &v1.ResumeQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	require.Len(t, <-got, 1)
}

func TestQueue_is_created_listed_updated_and_deleted(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.AutoCreateQueues = false })
	_, err := f.AddTasks(f.ctx, &v1.AddTasksRequest{Namespace: "default", Queue: "nope", Tasks: []*v1.TaskSpec{spec("x")}})
	require.Equal(t, reason.QueueNotFound, reason.Of(err))
	for i := range 5 {
		_, err := f.CreateQueue(f.ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: fmt.Sprintf("q%d", i)})
		require.NoError(t, err)
	}
	_, err = f.CreateQueue(f.ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: "q1"})
	require.Equal(t, reason.QueueAlreadyExists, reason.Of(err))
	_, err = f.CreateQueue(f.ctx, &v1.CreateQueueRequest{Namespace: "other", Queue: "q1"})
	require.NoError(t, err)

	var names []string
	token := ""
	for {
		resp, err := f.ListQueues(f.ctx, &v1.ListQueuesRequest{Namespace: "default", PageSize: 2, PageToken: token})
		require.NoError(t, err)
		for _, q := range resp.GetQueues() {
			names = append(names, q.GetQueue().GetName())
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	require.Equal(t, []string{"q0", "q1", "q2", "q3", "q4"}, names)

	f.add("q1", spec("x"))
	_, err = f.UpdateQueue(f.ctx, &v1.UpdateQueueRequest{Namespace: "default", Queue: "q1",
		Config: &v1.QueueConfig{MaxAttempts: 7}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"max_attempts"}}})
	require.NoError(t, err)
	require.EqualValues(t, 7, f.poll("q1", 1, 0, 0)[0].GetMaxAttempts())

	_, err = f.DeleteQueue(f.ctx, &v1.DeleteQueueRequest{Namespace: "default", Queue: "q1"})
	require.Equal(t, reason.QueueNotEmpty, reason.Of(err))
	_, err = f.DeleteQueue(f.ctx, &v1.DeleteQueueRequest{Namespace: "default", Queue: "q1", Force: true})
	require.NoError(t, err)
	_, err = f.DescribeQueue(f.ctx, &v1.DescribeQueueRequest{Namespace: "default", Queue: "q1"})
	require.Equal(t, reason.QueueNotFound, reason.Of(err))
	_, err = f.CreateQueue(f.ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: "q1"})
	require.NoError(t, err)
	require.Empty(t, f.poll("q1", 1, 0, 0), "a queue that was deleted and created again is empty")
	require.Equal(t, stateCounts{}, countsOf(f.describe("q1").GetCounts()))
}

func TestBacklog_larger_than_the_window_is_drained_in_order_after_a_restart(t *testing.T) {
	r := newStore(t, t.TempDir())
	limits := func(o *Options) { o.Limits = Limits{WindowTasks: 64} }
	const n = 5000
	e, err := New(Options{Router: r, AutoCreateQueues: true, Partitions: 1, Limits: Limits{WindowTasks: 64}})
	require.NoError(t, err)
	f := &fixture{t, e, context.Background()}
	for i := 0; i < n; i += 500 {
		var tasks []*v1.TaskSpec
		for j := range 500 {
			tasks = append(tasks, spec(fmt.Sprint(i+j)))
		}
		f.add("q", tasks...)
	}
	held := f.poll("q", 10, 0, time.Hour)
	require.LessOrEqual(t, f.describe("q").GetPartitions()[0].GetLoadedTasks(), int64(64))
	require.NoError(t, e.Stop(f.ctx))

	f = newFixture(t, r, limits)
	next := 10
	for next < n {
		got := f.poll("q", 100, time.Second, 0)
		require.NotEmpty(t, got)
		for _, g := range got {
			require.Equal(t, fmt.Sprint(next), string(g.GetPayload()))
			next++
		}
		f.complete("q", got...)
	}
	require.Equal(t, stateCounts{leased: 10}, countsOf(f.describe("q").GetCounts()))
	for _, why := range f.complete("q", held...) {
		require.Empty(t, why, "leases outlive a restart")
	}
}

func TestIdle_partition_leaves_memory_and_comes_back(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.IdleTime = 20 * time.Millisecond })
	f.add("q", spec("x"))
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.owners) == 0
	}, 10*time.Second, time.Millisecond)
	require.Len(t, f.poll("q", 1, 0, 0), 1)
}

func TestOlder_range_id_is_refused_and_its_owner_unloads(t *testing.T) {
	r := newStore(t, "")
	a, b := newFixture(t, r, nil), newFixture(t, r, nil)
	s := spec("x")
	a.add("q", s)
	require.Len(t, b.poll("q", 1, 0, 0), 1) // b has taken the partition

	// a still believes that it owns the partition; its next write tells it
	// otherwise, and the add is repeated under a new range id.
	require.False(t, a.add("q", spec("y"))[0].GetAlreadyAdded())
	require.True(t, a.add("q", s)[0].GetAlreadyAdded())
	require.Len(t, a.poll("q", 10, 0, 0), 1)
}

func TestConcurrent_producers_and_workers_handle_each_task_once(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.Limits.WindowTasks = 100 })
	const producers, each = 8, 500
	var wg sync.WaitGroup
	for range producers {
		wg.Go(func() {
			for i := 0; i < each; i += 5 {
				f.add("q", spec("a"), spec("b"), spec("c"), spec("d"), spec("e"))
			}
		})
	}
	var mu sync.Mutex
	seen := map[string]int{}
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for {
				got := f.poll("q", 20, 300*time.Millisecond, 0)
				mu.Lock()
				for _, g := range got {
					seen[g.GetId()]++
				}
				done := len(seen) == producers*each
				mu.Unlock()
				if len(got) > 0 {
					for _, why := range f.complete("q", got...) {
						if why != "" {
							t.Error(why)
						}
					}
				}
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	workers.Wait()
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
	require.Equal(t, stateCounts{}, countsOf(f.describe("q").GetCounts()))
}
