package matching

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func quickScaling(o *Options) {
	o.Scaling = Scaling{Interval: 50 * time.Millisecond, DrainBuffer: 20 * time.Millisecond, Cooldown: 10 * time.Millisecond}
}

// setScaling changes a queue's settings of scaling.
func (f *fixture) setScaling(queue string, s *v1.QueueScaling) {
	f.Helper()
	_, err := f.UpdateQueue(f.ctx, &v1.UpdateQueueRequest{Namespace: "default", Queue: queue,
		Config: &v1.QueueConfig{Scaling: s}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"scaling"}}})
	require.NoError(f, err)
}

// hasPartitions says whether a queue has so many, managed or not.
func (f *fixture) hasPartitions(queue string, n int32, managed bool) bool {
	f.Helper()
	f.describe(queue) // loads the root
	q, err := f.getQueue(f.ctx, "default", queue)
	require.NoError(f, err)
	return q.GetReadPartitions() == n && q.GetWritePartitions() == n && (len(q.GetScalingState()) > 0) == managed
}

// A queue that goes from 1 to 32 partitions and back, on two nodes, while tasks are
// added and worked off, loses none and repeats none.
func TestScaling_from_1_to_32_partitions_and_back_loses_nothing(t *testing.T) {
	_, fs := newCluster(t, 2, func(id PartitionID) int { return int(id.Number) % 2 }, quickScaling)
	f := fs[0]
	f.makeQueue("q", 1)
	var (
		added   sync.Map
		seen    sync.Map
		nAdded  atomic.Int64
		nSeen   atomic.Int64
		repeats atomic.Int64
		adding  = make(chan struct{})
		wg      sync.WaitGroup
	)
	for i := range 4 {
		wg.Go(func() {
			f := fs[i%2]
			for n := 0; ; n++ {
				select {
				case <-adding:
					return
				case <-time.After(2 * time.Millisecond):
				}
				tasks := make([]*v1.TaskSpec, 1+n%5)
				for k := range tasks {
					tasks[k] = spec("x")
				}
				resp, err := f.AddTasks(f.ctx, &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: tasks})
				if err != nil {
					// Changed twice while the call was under way: it may be tried again.
					if reason.Of(err) != reason.StalePartitionCounts {
						t.Errorf("add: %v", err)
						return
					}
					continue
				}
				for k, r := range resp.GetResults() {
					if r.GetAlreadyAdded() {
						t.Errorf("task %s was there already", tasks[k].GetId())
					}
					added.Store(r.GetId(), true)
					nAdded.Add(1)
				}
			}
		})
	}
	ctx, stop := context.WithCancel(f.ctx)
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() {
			f := fs[i%2]
			for ctx.Err() == nil {
				resp, err := f.PollTasks(ctx, pollRequest("q", 10, 200*time.Millisecond))
				if err != nil && ctx.Err() == nil && reason.Of(err) != reason.StalePartitionCounts {
					t.Errorf("poll: %v", err)
					return
				}
				done := &v1.CompleteTasksRequest{Namespace: "default", Queue: "q"}
				for _, task := range resp.GetTasks() {
					if _, again := seen.LoadOrStore(task.GetId(), true); again {
						repeats.Add(1)
					} else {
						nSeen.Add(1)
					}
					done.LeaseTokens = append(done.LeaseTokens, task.GetLeaseToken())
				}
				if len(done.GetLeaseTokens()) == 0 {
					continue
				}
				if _, err := f.CompleteTasks(f.ctx, done); err != nil {
					t.Errorf("complete: %v", err)
				}
			}
		})
	}
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_ON, FixedPartitions: 32})
	eventually(t, "32 partitions", func() bool { return f.hasPartitions("q", 32, true) })
	upTo := nAdded.Load()
	eventually(t, "tasks were added to them", func() bool { return nAdded.Load() > upTo+300 })
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_ON, FixedPartitions: 1})
	eventually(t, "one partition", func() bool { return f.hasPartitions("q", 1, true) })
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_OFF})
	eventually(t, "control is back with the configuration", func() bool { return f.hasPartitions("q", 1, false) })
	close(adding)
	wg.Wait()
	eventually(t, "all tasks are done", func() bool { return nSeen.Load() >= nAdded.Load() })
	stop()
	workers.Wait()
	added.Range(func(id, _ any) bool {
		if _, ok := seen.Load(id); !ok {
			t.Errorf("task %s was lost", id)
		}
		return true
	})
	if n := repeats.Load(); n > 0 {
		t.Errorf("%d tasks came twice", n)
	}
}

func TestScaling_follows_the_rate_of_adds(t *testing.T) {
	f := newFixture(t, newStore(t, ""), quickScaling)
	f.makeQueue("q", 1)
	second := durationpb.New(time.Second)
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_ON, MaxPartitions: 4,
		Up: []*v1.QueueScaling_Rule{{Window: second, Rate: 20}}, Down: []*v1.QueueScaling_Rule{{Window: second, Rate: 10}}})
	eventually(t, "4 partitions", func() bool {
		f.add("q", spec("a"), spec("b"), spec("c"), spec("d"), spec("e"), spec("f"), spec("g"), spec("h"))
		return f.hasPartitions("q", 4, true)
	})
	eventually(t, "the description says so", func() bool { return f.describe("q").GetScaling().GetTarget() == 4 })
	require.EqualValues(t, 1, f.describe("q").GetQueue().GetConfig().GetPartitions())
	f.purge("q")
	eventually(t, "one partition when nothing is added", func() bool { return f.hasPartitions("q", 1, true) })
}

func (f *fixture) purge(queue string) {
	f.Helper()
	_, err := f.PurgeQueue(f.ctx, &v1.PurgeQueueRequest{Namespace: "default", Queue: queue, IncludeDead: true})
	require.NoError(f, err)
}

// A partition with a task, even a delayed or a dead one, stays among those that are
// polled and listed.
func TestScaling_draining_partition_stays_until_it_is_empty(t *testing.T) {
	f := newFixture(t, newStore(t, ""), quickScaling)
	f.makeQueue("q", 4)
	late := spec("late")
	late.RunAt = timestamppb.New(time.Now().Add(time.Hour))
	f.addTo("q", 2, late)
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_ON, FixedPartitions: 1})
	counts := func() (read, write int32) {
		d, err := f.DescribeQueue(f.ctx, &v1.DescribeQueueRequest{Namespace: "default", Queue: "q"})
		require.NoError(t, err)
		return d.GetQueue().GetReadPartitions(), d.GetQueue().GetWritePartitions()
	}
	eventually(t, "3 partitions to poll", func() bool { read, write := counts(); return read == 3 && write == 2 })
	// However often it is asked.
	asked := f.asked("q")
	eventually(t, "some rounds", func() bool { return f.asked("q") > asked+5 })
	read, _ := counts()
	require.EqualValues(t, 3, read)
	f.purge("q")
	eventually(t, "one partition", func() bool { return f.hasPartitions("q", 1, true) })
}

// asked is when the root was last seen to look.
func (f *fixture) asked(queue string) int64 {
	f.mu.Lock()
	o := f.owners[PartitionID{Namespace: "default", Queue: queue}]
	f.mu.Unlock()
	return o.scaler.Load().rounds.Load()
}

// A draining partition that is not in memory, and one whose owner cannot be reached,
// are looked up in the store.
func TestScaling_draining_unloaded_or_unreachable_partition_does_not_block(t *testing.T) {
	r, fs := newCluster(t, 1, func(PartitionID) int { return 0 }, quickScaling)
	f := fs[0]
	f.makeQueue("q", 4)
	for n := range int32(4) {
		f.addTo("q", n, spec(fmt.Sprint(n)))
	}
	f.purge("q")
	f.unloadAll("q", 4)
	r.setOwner(func(id PartitionID) int { return min(-int(id.Number)+1, 0) }) // nobody owns 2 and 3
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_ON, FixedPartitions: 1})
	f.addTo("q", 0, spec("root"))
	eventually(t, "one partition", func() bool {
		q, err := f.getQueue(f.ctx, "default", "q")
		require.NoError(t, err)
		return q.GetReadPartitions() == 1
	})
}

func TestScaling_shadow_mode_only_tells(t *testing.T) {
	f := newFixture(t, newStore(t, ""), quickScaling)
	f.makeQueue("q", 2)
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_SHADOW, FixedPartitions: 7})
	f.add("q", spec("a"))
	eventually(t, "a shadow target", func() bool {
		d, err := f.DescribeQueue(f.ctx, &v1.DescribeQueueRequest{Namespace: "default", Queue: "q"})
		require.NoError(t, err)
		return d.GetScaling().GetShadowTarget() == 7
	})
	require.True(t, f.hasPartitions("q", 2, false))
}

func TestScaling_settings_that_cannot_be_are_refused(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 1)
	for _, s := range []*v1.QueueScaling{
		{MinPartitions: 5, MaxPartitions: 2},
		{FixedPartitions: -1},
		{MaxPartitions: 10_000},
		{Up: []*v1.QueueScaling_Rule{{Rate: 1}}},
		{Mode: 99},
	} {
		_, err := f.CreateQueue(f.ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: "r", Config: &v1.QueueConfig{Scaling: s}})
		require.Equal(t, reason.InvalidScaling, reason.Of(err), "%v", s)
		_, err = f.UpdateQueue(f.ctx, &v1.UpdateQueueRequest{Namespace: "default", Queue: "q", Config: &v1.QueueConfig{Scaling: s}})
		require.Equal(t, reason.InvalidScaling, reason.Of(err), "%v", s)
	}
}

// Another owner of the root goes on with what is stored, and an update of something
// else leaves managed counts alone.
func TestScaling_another_owner_goes_on(t *testing.T) {
	r, fs := newCluster(t, 2, func(PartitionID) int { return 0 }, quickScaling)
	fs[0].makeQueue("q", 2)
	fs[0].setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_ON, FixedPartitions: 6})
	fs[0].add("q", spec("a"))
	eventually(t, "6 partitions", func() bool { return fs[0].hasPartitions("q", 6, true) })
	_, err := fs[0].UpdateQueue(fs[0].ctx, &v1.UpdateQueueRequest{Namespace: "default", Queue: "q",
		Config: &v1.QueueConfig{MaxAttempts: 3}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"max_attempts"}}})
	require.NoError(t, err)
	require.True(t, fs[0].hasPartitions("q", 6, true))
	r.setOwner(func(PartitionID) int { return 1 })
	fs[1].setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_ON, FixedPartitions: 3})
	fs[1].purge("q")
	eventually(t, "3 partitions", func() bool { return fs[1].hasPartitions("q", 3, true) })
	fs[1].setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_OFF})
	eventually(t, "2 partitions, as configured", func() bool { return fs[1].hasPartitions("q", 2, false) })
}
