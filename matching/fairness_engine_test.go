package matching

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func sharedSpecs(n int, key string, priority int32) []*v1.TaskSpec {
	specs := make([]*v1.TaskSpec, n)
	for i := range specs {
		specs[i] = spec(fmt.Sprint(i))
		specs[i].FairnessKey, specs[i].Priority = key, priority
	}
	return specs
}

func (f *fixture) update(queue string, c *v1.QueueConfig, paths ...string) {
	f.Helper()
	_, err := f.UpdateQueue(f.ctx, &v1.UpdateQueueRequest{Namespace: "default", Queue: queue, Config: c, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}})
	require.NoError(f, err)
}

func TestFairness_holds_over_a_backlog_in_the_store_and_a_restart(t *testing.T) {
	r := newStore(t, "")
	small := func(o *Options) { o.Limits.WindowTasks = 100 }
	f := newFixture(t, r, small)
	const big, keys, each = 2000, 10, 20
	for range big / 500 {
		f.add("q", sharedSpecs(500, "big", 0)...)
	}
	for i := range keys {
		f.add("q", sharedSpecs(each, fmt.Sprint("small", i), 0)...)
	}
	f.add("q", sharedSpecs(5, "urgent", 1)...)
	require.NoError(t, f.Stop(f.ctx))

	f = newFixture(t, r, small)
	require.Equal(t, "urgent", f.get("q", f.poll("q", 1, 0, 0)[0].GetId()).GetFairnessKey())
	done, left := 0, keys*each
	for left > 0 {
		got := f.poll("q", 20, 0, 0)
		require.NotEmpty(t, got)
		f.complete("q", got...)
		for i, task := range got {
			if done+i < 4 {
				require.EqualValues(t, 1, task.GetPriority())
			}
			if k := task.GetFairnessKey(); k != "big" && k != "urgent" {
				left--
			}
		}
		done += len(got)
	}
	require.LessOrEqual(t, done, 5+(keys+1)*each*3/2)
}

func TestRateLimit_of_a_queue_over_its_partitions(t *testing.T) {
	for _, partitions := range []int{1, 4} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			f := newFixture(t, newStore(t, ""), nil)
			f.makeQueue("q", partitions)
			rate := 20.0
			f.update("q", &v1.QueueConfig{RateLimit: &rate}, "rate_limit")
			f.add("q", sharedSpecs(100, "", 0)...)
			begun := time.Now()
			n := 0
			for n < 50 {
				got := f.poll("q", 100, 5*time.Second, 0)
				n += len(got)
				f.complete("q", got...)
			}
			// At the beginning each partition has a token, and later a second's at most.
			require.Greater(t, time.Since(begun), time.Duration(float64(n-20-partitions)/rate*float64(time.Second)))
			rate = 0
			f.update("q", &v1.QueueConfig{RateLimit: &rate}, "rate_limit")
			require.True(t, f.describe("q").GetStats().GetRateLimited())

			f.update("q", &v1.QueueConfig{}, "rate_limit")
			for n < 100 {
				got := f.poll("q", 100, 5*time.Second, 0)
				require.NotEmpty(t, got)
				n += len(got)
				f.complete("q", got...)
			}
			require.False(t, f.describe("q").GetStats().GetRateLimited())
		})
	}
}

func TestRateLimit_of_keys_through_the_queue(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.Limits.WindowTasks = 50 })
	zero := 0.0
	f.makeQueue("q", 1)
	f.update("q", &v1.QueueConfig{FairnessKeys: []*v1.FairnessKey{{Key: "stopped", RateLimit: &zero}, {Key: "b", Weight: 3}}}, "fairness_keys")
	f.add("q", sharedSpecs(300, "stopped", 0)...)
	f.add("q", append(sharedSpecs(200, "a", 0), sharedSpecs(200, "b", 0)...)...)
	n := map[string]int{}
	for range 20 {
		got := f.poll("q", 10, 5*time.Second, 0)
		require.NotEmpty(t, got)
		for _, task := range got {
			n[task.GetFairnessKey()]++
		}
		f.complete("q", got...)
	}
	require.Zero(t, n["stopped"])
	require.InDelta(t, 3, float64(n["b"])/float64(n["a"]), 0.3)
	f.update("q", &v1.QueueConfig{}, "fairness_keys")
	require.Eventually(t, func() bool {
		got := f.poll("q", 100, time.Second, 0)
		for _, task := range got {
			n[task.GetFairnessKey()]++
		}
		f.complete("q", got...)
		return n["stopped"] == 300 && n["a"] == 200 && n["b"] == 200
	}, 30*time.Second, time.Millisecond)
}

func TestDescribe_shows_priorities_and_partitions(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	f.add("q", sharedSpecs(100, "", 1)...)
	f.add("q", sharedSpecs(50, "", 9)...)
	got := f.poll("q", 10, 5*time.Second, 0)
	require.NotEmpty(t, got)
	d := f.describe("q")
	require.Len(t, d.GetPriorities(), 2)
	require.EqualValues(t, 1, d.GetPriorities()[0].GetPriority())
	require.EqualValues(t, 5, d.GetPriorities()[1].GetPriority())
	require.EqualValues(t, 150-len(got), d.GetPriorities()[0].GetReady()+d.GetPriorities()[1].GetReady())
	require.EqualValues(t, 150-len(got), d.GetCounts().GetReady())
	require.Positive(t, d.GetPriorities()[0].GetAddRate())
	require.Positive(t, d.GetPriorities()[1].GetBacklogAge().AsDuration())
	require.Len(t, d.GetPollers(), 1)
	require.Len(t, d.GetPartitions(), 4)
	pollers := 0
	for i, p := range d.GetPartitions() {
		require.Equal(t, i == 0, p.Parent == nil)
		require.Zero(t, p.GetParent())
		require.True(t, p.GetLoaded())
		require.Positive(t, p.GetStats().GetAddRate())
		pollers += len(p.GetPollers())
	}
	require.Positive(t, pollers)
}

func TestListQueues_counts_due_tasks_of_a_queue_that_is_not_loaded_as_ready(t *testing.T) {
	r := newStore(t, "")
	f := newFixture(t, r, nil)
	soon, late := spec("soon"), spec("late")
	soon.RunAt = timestamppb.New(time.Now().Add(50 * time.Millisecond))
	late.RunAt = timestamppb.New(time.Now().Add(time.Hour))
	f.add("q", soon, late)
	require.NoError(t, f.Stop(f.ctx))
	f = newFixture(t, r, nil)
	require.Eventually(t, func() bool {
		resp, err := f.ListQueues(f.ctx, &v1.ListQueuesRequest{Namespace: "default", PageSize: 10})
		require.NoError(t, err)
		c := resp.GetQueues()[0].GetCounts()
		require.EqualValues(t, 2, c.GetReady()+c.GetDelayed())
		return c.GetReady() == 1
	}, 30*time.Second, 5*time.Millisecond)
}
