package matching

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// ---- loading ----------------------------------------------------------------

func TestLoading_a_partition_is_loaded_by_its_first_call_only(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	for n := range int32(4) {
		require.False(t, f.isLoaded("q", n))
	}
	f.addTo("q", 2, spec("x"))
	require.True(t, f.isLoaded("q", 2))
	require.False(t, f.isLoaded("q", 1))
}

func TestLoading_a_root_has_only_partitions_with_work_loaded_and_counts_them(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 25)
	f.addTo("q", 2, spec("x"))
	f.addTo("q", 4, spec("x")) // not one whose parent is no root: its offers load the parent
	f.addTo("q", 3, spec("x"))
	f.unloadAll("q", 25)
	f.addTo("q", 3, spec("x")) // in memory already
	forced := func(result string) float64 { return testutil.ToFloat64(f.metrics.forces.WithLabelValues(result)) }
	before := [3]float64{forced("loaded"), forced("unnecessary"), forced("empty")}
	f.addTo("q", 0, spec("x"))
	eventually(t, "all are asked", func() bool {
		return forced("loaded") == before[0]+2 && forced("unnecessary") == before[1]+1 && forced("empty") == before[2]+21
	})
	require.True(t, f.isLoaded("q", 2))
	require.True(t, f.isLoaded("q", 4))
	require.False(t, f.isLoaded("q", 5), "what has no work stays out of memory")
	require.Zero(t, forced("failed"))
}

func TestLoading_by_force_never_takes_a_root_and_does_not_cascade(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	for n := range int32(4) {
		f.addTo("q", n, spec("x"))
	}
	f.unloadAll("q", 4)
	_, err := f.ForceLoadPartition(f.ctx, &v1.ForceLoadPartitionRequest{Namespace: "default", Queue: "q"})
	require.Equal(t, reason.InvalidForward, reason.Of(err))
	_, err = f.ForceLoadPartition(f.ctx, &v1.ForceLoadPartitionRequest{Namespace: "default", Queue: "q", Partition: 1})
	require.NoError(t, err)
	require.True(t, f.isLoaded("q", 1))
	require.False(t, f.isLoaded("q", 0), "a partition that was loaded by force loads no other")
	require.False(t, f.isLoaded("q", 2))
}

func TestLoading_an_idle_partition_with_work_is_kept_while_its_root_is_used(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.IdleTime = 200 * time.Millisecond })
	f.makeQueue("q", 2)
	later := spec("later")
	later.RunAt = timestamp(time.Now().Add(1500 * time.Millisecond).UnixNano())
	f.addTo("q", 1, later)
	p, err := f.PartitionPollTasks(f.ctx, &v1.PartitionPollTasksRequest{Request: pollRequest("q", 1, 30*time.Second)}) // at the root
	require.NoError(t, err)
	require.Equal(t, later.GetId(), p.GetResponse().GetTasks()[0].GetId(), "a task that comes due much later than its partition went idle")
}

func TestLoading_partitions_of_another_node_are_unloaded_and_their_polls_end(t *testing.T) {
	r, fs := newCluster(t, 2, func(PartitionID) int { return 0 }, nil)
	fs[0].makeQueue("q", 1)
	fs[0].add("q", spec("x"))
	polled := make(chan *v1.PartitionPollTasksResponse, 1)
	go func() {
		resp, err := fs[0].PartitionPollTasks(fs[0].ctx, &v1.PartitionPollTasksRequest{Request: pollRequest("empty", 1, 30*time.Second)})
		if err != nil {
			t.Error(err)
		}
		polled <- resp
	}()
	eventually(t, "the poll waits", func() bool {
		o := fs[0].present(root("default", "empty"))
		return o != nil && o.waiting.Load() == 1
	})
	r.setOwner(func(PartitionID) int { return 1 })
	require.Empty(t, (<-polled).GetResponse().GetTasks())
	eventually(t, "both are unloaded", func() bool { return !fs[0].isLoaded("q", 0) && !fs[0].isLoaded("empty", 0) })
	require.Zero(t, testutil.ToFloat64(fs[0].metrics.partitions))
	require.Zero(t, testutil.ToFloat64(fs[0].metrics.tasks.WithLabelValues("default", "q", "ready")), "metrics of a partition leave with it")

	_, err := fs[0].PartitionPollTasks(fs[0].ctx, &v1.PartitionPollTasksRequest{Request: pollRequest("q", 1, time.Second)})
	require.Equal(t, reason.PartitionMoved, reason.Of(err), "the old owner sends its callers elsewhere")
	require.Len(t, fs[0].poll("q", 1, 10*time.Second, 0), 1, "where the queue is found")
	require.True(t, fs[1].isLoaded("q", 0))
}

func TestLoading_metrics_of_forwards_are_registered(t *testing.T) {
	reg := prometheus.NewRegistry()
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.Registerer = reg })
	f.makeQueue("q", 4)
	go func() { f.add("q", spec("x")) }()
	require.Len(t, f.poll("q", 1, 20*time.Second, 0), 1)
	_, err := reg.Gather()
	require.NoError(t, err)
}

func TestLoading_a_partition_that_was_not_told_of_a_change_finds_out_by_itself(t *testing.T) {
	r, fs := newCluster(t, 2, func(id PartitionID) int { return int(id.Number) % 2 }, func(o *Options) {
		o.RefreshTime, o.IdleTime = 20*time.Millisecond, 200*time.Millisecond
	})
	fs[0].makeQueue("q", 2)
	fs[1].addTo("q", 1, spec("x"))
	r.mu.Lock()
	there := r.owner
	r.owner = func(id PartitionID) int { return int(id.Number)%2 - int(id.Number)%2*2 } // node 1 cannot be reached
	r.mu.Unlock()
	_, err := fs[0].PauseQueue(fs[0].ctx, &v1.PauseQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	r.mu.Lock()
	r.owner = there
	r.mu.Unlock()
	eventually(t, "the partition is paused", func() bool {
		resp, err := fs[1].PartitionPollTasks(fs[1].ctx, &v1.PartitionPollTasksRequest{Header: &v1.PartitionHeader{Partition: 1}, Request: pollRequest("q", 1, 0)})
		if err != nil {
			return false
		}
		tasks := resp.GetResponse().GetTasks()
		if len(tasks) > 0 {
			_, err := fs[1].ReleaseTasks(fs[1].ctx, &v1.ReleaseTasksRequest{Namespace: "default", Queue: "q", LeaseTokens: [][]byte{tasks[0].GetLeaseToken()}})
			require.NoError(t, err)
		}
		return len(tasks) == 0 && fs[1].present(PartitionID{Namespace: "default", Queue: "q", Number: 1}).settings.Load().paused
	})
}

// ---- counts -----------------------------------------------------------------

func TestCounts_a_client_that_is_too_far_off_is_refused_with_the_right_ones(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 8)
	add := func(n int32, counts *v1.PartitionCounts) (*v1.PartitionAddTasksResponse, error) {
		return f.PartitionAddTasks(f.ctx, &v1.PartitionAddTasksRequest{Header: &v1.PartitionHeader{Partition: n, Counts: counts},
			Request: &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: []*v1.TaskSpec{spec("x")}}})
	}
	for _, c := range []struct {
		write int32
		ok    bool
	}{{8, true}, {7, true}, {9, true}, {6, true}, {12, true}, {5, false}, {13, false}, {1, false}, {2_000_000_000, false}, {0, true}, {-5, true}} {
		resp, err := add(0, &v1.PartitionCounts{Read: max(c.write, 1), Write: c.write})
		if !c.ok {
			require.Equal(t, reason.StalePartitionCounts, reason.Of(err), "write count %d", c.write)
			require.Equal(t, int32(8), CountsFromError(err).GetWrite())
			continue
		}
		require.NoError(t, err, "write count %d", c.write)
		if c.write != 8 {
			require.EqualValues(t, 8, resp.GetCounts().GetWrite(), "the answer brings the right ones")
		} else {
			require.Nil(t, resp.GetCounts())
		}
	}
	_, err := add(8, nil)
	require.Equal(t, reason.StalePartitionCounts, reason.Of(err), "a partition that the queue does not have")
	require.False(t, f.isLoaded("q", 8))
	for _, n := range []int32{-1, MaxPartitions, 2_000_000_000} {
		_, err = add(n, nil)
		require.Equal(t, reason.InvalidPartition, reason.Of(err))
	}
}

func TestCounts_a_client_with_old_ones_tries_once_more_by_itself(t *testing.T) {
	store := newStore(t, "")
	f := newFixture(t, store, nil)
	f.makeQueue("q", 16)
	f.add("q", spec("x"))
	f.table.get(queueName{"default", "q"}).known.Store(knownCounts(&v1.PartitionCounts{Read: 64, Write: 64}))
	for range 20 {
		f.add("q", spec("x"))
		f.table.get(queueName{"default", "q"}).known.Store(knownCounts(&v1.PartitionCounts{Read: 2, Write: 2}))
	}
	got := 0
	for got < 21 {
		got += len(f.poll("q", 100, 10*time.Second, 0))
	}
}

func TestCounts_fewer_partitions_are_added_to_at_once_and_polled_until_they_are_empty(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.IdleTime = 100 * time.Millisecond })
	f.makeQueue("q", 6)
	for n := range int32(6) {
		f.addTo("q", n, spec(fmt.Sprint(n)))
	}
	resp, err := f.UpdateQueue(f.ctx, &v1.UpdateQueueRequest{Namespace: "default", Queue: "q", Config: &v1.QueueConfig{Partitions: 2},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"partitions"}}})
	require.NoError(t, err)
	require.EqualValues(t, 2, resp.GetQueue().GetWritePartitions())
	require.EqualValues(t, 6, resp.GetQueue().GetReadPartitions())
	_, err = f.PartitionAddTasks(f.ctx, &v1.PartitionAddTasksRequest{Header: &v1.PartitionHeader{Partition: 5},
		Request: &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: []*v1.TaskSpec{spec("x")}}})
	require.Equal(t, reason.StalePartitionCounts, reason.Of(err))

	got := map[string]bool{}
	for len(got) < 6 {
		for _, task := range f.poll("q", 1, 10*time.Second, 0) {
			got[string(task.GetPayload())] = true
			f.complete("q", task)
		}
	}
	eventually(t, "the empty partitions go", func() bool {
		f.poll("q", 1, 0, 0) // the queue is in use
		return f.describe("q").GetQueue().GetReadPartitions() == 2
	})
	require.Len(t, f.describe("q").GetPartitions(), 2)
}

func TestCounts_of_a_queue_are_within_the_limits(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	for _, n := range []int32{-1, MaxPartitions + 1} {
		_, err := f.CreateQueue(f.ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: "q", Config: &v1.QueueConfig{Partitions: n}})
		require.Equal(t, reason.InvalidPartition, reason.Of(err))
	}
	f.makeQueue("q", MaxPartitions)
	s := spec("x")
	f.add("q", s)
	require.Equal(t, s.GetId(), f.get("q", s.GetId()).GetId())
}

// ---- forwarded calls --------------------------------------------------------

func TestForwarded_calls_that_are_not_from_a_neighbour_are_refused(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 45)
	for _, c := range []struct {
		name           string
		target, source int32
		hop            v1.Hop
	}{
		{"a root lends to nobody", 0, 0, v1.Hop_HOP_LENT},
		{"a grandchild", 0, 21, v1.Hop_HOP_LENT},
		{"a sibling", 2, 1, v1.Hop_HOP_LENT},
		{"a parent that lends", 1, 0, v1.Hop_HOP_LENT},
		{"a source that cannot be", 0, -1, v1.Hop_HOP_LENT},
		{"another that cannot be", 0, 1 << 30, v1.Hop_HOP_LENT},
		{"a root is not polled by a parent", 0, 0, v1.Hop_HOP_PULLED},
		{"nor a child by its child", 0, 1, v1.Hop_HOP_PULLED},
		{"a hop that is none", 0, 1, v1.Hop(77)},
	} {
		h := &v1.PartitionHeader{Partition: c.target, Hop: c.hop, Source: c.source}
		_, err := f.PartitionPollTasks(f.ctx, &v1.PartitionPollTasksRequest{Header: h, Request: pollRequest("q", 1, time.Second)})
		require.Equal(t, reason.InvalidForward, reason.Of(err), c.name)
		_, err = f.PartitionCall(f.ctx, &v1.PartitionCallRequest{Header: h, Request: callRequest("q", "x", time.Second)})
		require.Equal(t, reason.InvalidForward, reason.Of(err), c.name)
	}
	for _, source := range []int32{0, 21, -1, 1 << 30} {
		_, err := f.OfferTasks(f.ctx, &v1.OfferTasksRequest{Namespace: "default", Queue: "q", Partition: 0, Source: source, Hold: durationpb.New(time.Second)})
		require.Equal(t, reason.InvalidForward, reason.Of(err), "offer of %d", source)
	}
}

func TestForwarded_tasks_reach_a_poll_at_any_partition_of_a_deep_tree(t *testing.T) {
	for _, far := range []bool{false, true} {
		r, fs := newCluster(t, 2, func(id PartitionID) int { return int(id.Number) % 2 }, nil)
		r.far = far
		f := fs[0]
		f.makeQueue("q", 64)
		for i := range int32(6) {
			from, to := i*10+3, 63-i*10
			ctx, cancel := context.WithCancel(f.ctx)
			got := make(chan string, 1)
			go func() {
				resp, err := fs[to%2].PartitionPollTasks(ctx, &v1.PartitionPollTasksRequest{Header: &v1.PartitionHeader{Partition: to}, Request: pollRequest("q", 1, 30*time.Second)})
				if err != nil || len(resp.GetResponse().GetTasks()) != 1 {
					t.Errorf("poll at %d: %v, %v", to, resp, err)
					got <- ""
					return
				}
				got <- resp.GetResponse().GetTasks()[0].GetId()
			}()
			s := spec("x")
			fs[from%2].addTo("q", from, s)
			require.Equal(t, s.GetId(), <-got, "from partition %d to a poll at %d", from, to)
			cancel()
		}
	}
}

// ---- polls ------------------------------------------------------------------

func TestPoll_that_does_not_wait_finds_a_task_in_any_partition(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.NoForceLoad = true })
	f.makeQueue("q", 16)
	for n := range int32(16) {
		f.addTo("q", n, spec("x"))
		require.Len(t, f.poll("q", 1, 0, 0), 1)
	}
	require.Empty(t, f.poll("q", 1, 0, 0))
}

func TestPoll_is_cancelled_by_its_id_also_when_it_was_lent(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 22)
	for _, n := range []int32{0, 3, 21} {
		ended := make(chan *v1.PartitionPollTasksResponse, 1)
		go func() {
			resp, err := f.PartitionPollTasks(f.ctx, &v1.PartitionPollTasksRequest{Header: &v1.PartitionHeader{Partition: n}, PollId: "mine", Request: pollRequest("q", 1, 50*time.Second)})
			if err != nil {
				t.Error(err)
			}
			ended <- resp
		}()
		eventually(t, "it waits at the root", func() bool {
			o := f.present(root("default", "q"))
			return o != nil && o.waiting.Load() == 1
		})
		resp, err := f.CancelPoll(f.ctx, &v1.CancelPollRequest{Namespace: "default", Queue: "q", Partition: n, PollId: "mine"})
		require.NoError(t, err)
		require.True(t, resp.GetFound())
		require.Empty(t, (<-ended).GetResponse().GetTasks())
		eventually(t, "it has left the root", func() bool { return f.present(root("default", "q")).waiting.Load() == 0 })
	}
}

func TestPoll_whose_cancellation_came_first_ends_at_once(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	resp, err := f.CancelPoll(f.ctx, &v1.CancelPollRequest{PollId: "early"})
	require.NoError(t, err, "an id that nobody knows is no error")
	require.False(t, resp.GetFound())
	polled, err := f.PartitionPollTasks(f.ctx, &v1.PartitionPollTasksRequest{PollId: "early", Request: pollRequest("q", 1, 50*time.Second)})
	require.NoError(t, err)
	require.Empty(t, polled.GetResponse().GetTasks())
}

func TestPoll_of_a_worker_is_cancelled_in_all_partitions_and_refused_for_a_while(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			resp, err := f.PollTasks(f.ctx, pollRequest("q", 1, 50*time.Second))
			if err != nil || len(resp.GetTasks()) > 0 {
				t.Errorf("poll: %v, %v", resp, err)
			}
		})
	}
	other := make(chan []*v1.LeasedTask, 1)
	go func() {
		req := pollRequest("q", 1, 50*time.Second)
		req.Identity = "other"
		resp, err := f.PollTasks(f.ctx, req)
		if err != nil {
			t.Error(err)
		}
		other <- resp.GetTasks()
	}()
	eventually(t, "all wait", func() bool {
		n := int32(0)
		for _, p := range f.describe("q").GetPollers() {
			n += p.GetWaiting()
		}
		return n == 9
	})
	for range 2 {
		wg.Go(func() {
			resp, err := f.PollCalls(f.ctx, &v1.PollCallsRequest{Namespace: "default", Queue: "q", Identity: "test", Wait: durationpb.New(50 * time.Second)})
			if err != nil || len(resp.GetCalls()) > 0 {
				t.Errorf("poll for calls: %v, %v", resp, err)
			}
		})
	}
	wg.Go(func() {
		resp, err := f.PollTasks(f.ctx, stickyPoll("q", "mine", 50*time.Second))
		if err != nil || len(resp.GetTasks()) > 0 {
			t.Errorf("sticky poll: %v, %v", resp, err)
		}
	})
	eventually(t, "the sticky poll and those for calls wait", func() bool {
		o := f.present(PartitionID{Namespace: "default", Queue: "q", Sticky: "mine"})
		f.calls.mu.Lock()
		defer f.calls.mu.Unlock()
		polls := 0
		for _, l := range f.calls.lines {
			polls += len(l.polls)
		}
		return o != nil && o.waiting.Load() == 1 && polls == 2
	})
	resp, err := f.EndWorkerPolls(f.ctx, &v1.EndWorkerPollsRequest{Namespace: "default", Queue: "q", Identity: "test"})
	require.NoError(t, err)
	require.EqualValues(t, 11, resp.GetEnded())
	wg.Wait()
	_, err = f.PollTasks(f.ctx, pollRequest("q", 1, time.Second))
	require.Equal(t, reason.WorkerCancelled, reason.Of(err))
	f.add("q", spec("x"))
	require.Len(t, <-other, 1, "the polls of others go on")
}

func TestPoll_counts_once_in_the_history_wherever_it_was_forwarded_to(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	ctx, cancel := context.WithCancel(f.ctx)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _, _ = f.PollTasks(ctx, pollRequest("q", 1, 50*time.Second)) })
	}
	eventually(t, "one poller with four polls", func() bool {
		p := f.describe("q").GetPollers()
		return len(p) == 1 && p[0].GetWaiting() == 4
	})
	cancel()
	wg.Wait()
	eventually(t, "it is remembered without polls", func() bool {
		p := f.describe("q").GetPollers()
		return len(p) == 1 && p[0].GetWaiting() == 0 && p[0].GetIdentity() == "test"
	})
}

// ---- the whole queue --------------------------------------------------------

func TestQueue_calls_reach_all_its_partitions(t *testing.T) {
	_, fs := newCluster(t, 3, func(id PartitionID) int { return int(id.Number) % 3 }, nil)
	f := fs[1]
	f.makeQueue("q", 5)
	var ids []string
	for n := range int32(5) {
		for i := range 4 {
			s := spec(fmt.Sprint(i))
			s.MaxAttempts = 1
			fs[n%3].addTo("q", n, s)
			ids = append(ids, s.GetId())
		}
	}
	require.Equal(t, stateCounts{ready: 20}, countsOf(f.describe("q").GetCounts()))
	require.Equal(t, "2", string(f.get("q", ids[18]).GetPayload()), "a task by its id, wherever it is")
	_, err := f.GetTask(f.ctx, &v1.GetTaskRequest{Namespace: "default", Queue: "q", Id: spec("").GetId()})
	require.Equal(t, reason.TaskNotFound, reason.Of(err))
	cancelled, err := f.CancelTask(f.ctx, &v1.CancelTaskRequest{Namespace: "default", Queue: "q", Id: ids[11]})
	require.NoError(t, err)
	require.Equal(t, v1.TaskState_TASK_STATE_READY, cancelled.GetState())

	_, err = f.PauseQueue(f.ctx, &v1.PauseQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	require.Empty(t, f.poll("q", 100, 0, 0))
	_, err = f.ResumeQueue(f.ctx, &v1.ResumeQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)

	var failures []*v1.FailTasksRequest_Failure
	for len(failures) < 19 {
		for _, task := range f.poll("q", 100, 10*time.Second, time.Minute) {
			failures = append(failures, &v1.FailTasksRequest_Failure{LeaseToken: task.GetLeaseToken(), Error: "no"})
		}
	}
	failed, err := f.FailTasks(f.ctx, &v1.FailTasksRequest{Namespace: "default", Queue: "q", Failures: failures})
	require.NoError(t, err)
	for _, r := range failed.GetResults() {
		require.Equal(t, v1.TaskState_TASK_STATE_DEAD, r.GetState())
	}

	dead := map[string]bool{}
	for token := ""; ; {
		resp, err := f.ListDeadTasks(f.ctx, &v1.ListDeadTasksRequest{Namespace: "default", Queue: "q", PageSize: 3, PageToken: token})
		require.NoError(t, err)
		require.LessOrEqual(t, len(resp.GetTasks()), 3)
		for _, task := range resp.GetTasks() {
			require.False(t, dead[task.GetId()])
			dead[task.GetId()] = true
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	require.Len(t, dead, 19)
	redriven, err := f.RedriveDeadTasks(f.ctx, &v1.RedriveDeadTasksRequest{Namespace: "default", Queue: "q", Ids: []string{ids[0], ids[19]}})
	require.NoError(t, err)
	require.EqualValues(t, 2, redriven.GetRedriven())
	redriven, err = f.RedriveDeadTasks(f.ctx, &v1.RedriveDeadTasksRequest{Namespace: "default", Queue: "q", Limit: 10})
	require.NoError(t, err)
	require.EqualValues(t, 10, redriven.GetRedriven())
	purged, err := f.PurgeQueue(f.ctx, &v1.PurgeQueueRequest{Namespace: "default", Queue: "q"})
	require.NoError(t, err)
	require.EqualValues(t, 12, purged.GetPurged())

	_, err = f.DeleteQueue(f.ctx, &v1.DeleteQueueRequest{Namespace: "default", Queue: "q"})
	require.Equal(t, reason.QueueNotEmpty, reason.Of(err))
	_, err = f.DeleteQueue(f.ctx, &v1.DeleteQueueRequest{Namespace: "default", Queue: "q", Force: true})
	require.NoError(t, err)
	f.makeQueue("q", 5)
	require.Equal(t, stateCounts{}, countsOf(f.describe("q").GetCounts()), "nothing is left in any partition")
}

func TestAdd_of_a_batch_keeps_the_order_of_its_results_and_recognises_what_is_there(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 8)
	var tasks []*v1.TaskSpec
	for range 50 {
		tasks = append(tasks, spec("x"))
	}
	f.add("q", tasks[10:20]...)
	for i, r := range f.add("q", tasks...) {
		require.Equal(t, tasks[i].GetId(), r.GetId())
		require.Equal(t, i >= 10 && i < 20, r.GetAlreadyAdded())
	}
}
