package matching

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func TestBadInput_partition_numbers_out_of_range_are_refused_by_every_call(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	for _, n := range []int32{-1, MaxPartitions, 1 << 30} {
		h := &v1.PartitionHeader{Partition: n}
		calls := map[string]func() error{
			"add": func() error {
				_, err := f.PartitionAddTasks(f.ctx, &v1.PartitionAddTasksRequest{Header: h, Request: &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: []*v1.TaskSpec{spec("x")}}})
				return err
			},
			"poll": func() error {
				_, err := f.PartitionPollTasks(f.ctx, &v1.PartitionPollTasksRequest{Header: h, Request: pollRequest("q", 1, 0)})
				return err
			},
			"complete": func() error {
				_, err := f.PartitionCompleteTasks(f.ctx, &v1.PartitionCompleteTasksRequest{Header: h, Request: &v1.CompleteTasksRequest{Namespace: "default", Queue: "q", LeaseTokens: [][]byte{{1}}}})
				return err
			},
			"call": func() error {
				_, err := f.PartitionCall(f.ctx, &v1.PartitionCallRequest{Header: h, Request: &v1.CallRequest{Namespace: "default", Queue: "q"}})
				return err
			},
			"poll calls": func() error {
				_, err := f.PartitionPollCalls(f.ctx, &v1.PartitionPollCallsRequest{Header: h, Request: &v1.PollCallsRequest{Namespace: "default", Queue: "q"}})
				return err
			},
			"offer": func() error {
				_, err := f.OfferTasks(f.ctx, &v1.OfferTasksRequest{Namespace: "default", Queue: "q", Partition: n, Source: 1})
				return err
			},
			"cancel worker": func() error {
				_, err := f.CancelWorkerPolls(f.ctx, &v1.CancelWorkerPollsRequest{Namespace: "default", Queue: "q", Partition: n, Identity: "w"})
				return err
			},
			"force load": func() error {
				_, err := f.ForceLoadPartition(f.ctx, &v1.ForceLoadPartitionRequest{Namespace: "default", Queue: "q", Partition: n})
				return err
			},
			"configure": func() error {
				_, err := f.ConfigurePartition(f.ctx, &v1.ConfigurePartitionRequest{Namespace: "default", Queue: "q", Partition: n})
				return err
			},
			"publish": func() error {
				_, err := f.PublishCounts(f.ctx, &v1.PublishCountsRequest{Namespace: "default", Queue: "q", Partition: n})
				return err
			},
			"drop": func() error {
				_, err := f.DropPartition(f.ctx, &v1.DropPartitionRequest{Namespace: "default", Queue: "q", Partition: n, Force: true})
				return err
			},
			"describe": func() error {
				_, err := f.DescribePartition(f.ctx, &v1.DescribePartitionRequest{Namespace: "default", Queue: "q", Partition: n})
				return err
			},
			"purge": func() error {
				_, err := f.PurgePartition(f.ctx, &v1.PurgePartitionRequest{Namespace: "default", Queue: "q", Partition: n})
				return err
			},
			"redrive": func() error {
				_, err := f.RedrivePartition(f.ctx, &v1.RedrivePartitionRequest{Partition: n, Request: &v1.RedriveDeadTasksRequest{Namespace: "default", Queue: "q"}})
				return err
			},
		}
		for name, call := range calls {
			require.Contains(t, []string{reason.InvalidPartition, reason.InvalidForward}, reason.Of(call()), "%s at %d", name, n)
		}
	}
	require.Empty(t, f.inMemory(), "nothing was loaded for them")
}

func TestBadInput_forwarded_calls_that_claim_to_be_from_a_root_or_no_neighbour_are_refused(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 30)
	for _, c := range []struct {
		to, from int32
		hop      v1.Hop
	}{
		{0, 0, v1.Hop_HOP_LENT}, {3, 0, v1.Hop_HOP_LENT}, {0, 25, v1.Hop_HOP_LENT}, {0, -1, v1.Hop_HOP_LENT}, {0, MaxPartitions, v1.Hop_HOP_LENT},
		{0, 0, v1.Hop_HOP_PULLED}, {0, 1, v1.Hop_HOP_PULLED}, {25, 0, v1.Hop_HOP_PULLED}, {3, 1, v1.Hop(77)},
	} {
		h := &v1.PartitionHeader{Partition: c.to, Source: c.from, Hop: c.hop}
		_, err := f.PartitionPollTasks(f.ctx, &v1.PartitionPollTasksRequest{Header: h, Request: pollRequest("q", 1, 0)})
		require.Equal(t, reason.InvalidForward, reason.Of(err), "a poll, %+v", c)
		_, err = f.PartitionCall(f.ctx, &v1.PartitionCallRequest{Header: h, Request: &v1.CallRequest{Namespace: "default", Queue: "q"}})
		require.Equal(t, reason.InvalidForward, reason.Of(err), "a call, %+v", c)
		_, err = f.PartitionAddTasks(f.ctx, &v1.PartitionAddTasksRequest{Header: h, Request: &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: []*v1.TaskSpec{spec("x")}}})
		require.Equal(t, reason.InvalidForward, reason.Of(err), "an add, %+v", c)
	}
	for _, source := range []int32{0, 25, -1, MaxPartitions} {
		_, err := f.OfferTasks(f.ctx, &v1.OfferTasksRequest{Namespace: "default", Queue: "q", Partition: 0, Source: source})
		require.Equal(t, reason.InvalidForward, reason.Of(err), "an offer from %d", source)
	}
	// A header that says that it is forwarded does not get around the counts.
	h := &v1.PartitionHeader{Partition: 0, StickyWorker: "w", Hop: v1.Hop_HOP_LENT, Source: 1}
	_, err := f.PartitionPollTasks(f.ctx, &v1.PartitionPollTasksRequest{Header: h, Request: pollRequest("q", 1, 0)})
	require.Equal(t, reason.InvalidForward, reason.Of(err), "sticky queues forward nothing")
}

func TestBadInput_counts_in_headers_that_lie_change_nothing(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	f.addTo("q", 0, spec("x"))
	poll := func(c *v1.PartitionCounts) (*v1.PartitionPollTasksResponse, error) {
		return f.PartitionPollTasks(f.ctx, &v1.PartitionPollTasksRequest{Header: &v1.PartitionHeader{Partition: 0, Counts: c}, Request: pollRequest("q", 1, 0)})
	}
	for _, lie := range []*v1.PartitionCounts{
		{Read: 1 << 30, Write: 1 << 30}, {Read: 1 << 30, Write: 1, Version: 1 << 60, BacklogCap: 1, Backlog: make([]byte, 1000), BacklogVersion: 1 << 60},
	} {
		_, err := poll(lie)
		require.Equal(t, reason.StalePartitionCounts, reason.Of(err), "%v", lie)
		require.EqualValues(t, 4, CountsFromError(err).GetRead(), "and is told the right ones")
	}
	for _, nonsense := range []*v1.PartitionCounts{{Read: -5, Write: -5}, {Read: 1, Write: 2}, {BacklogCap: -1}, {Read: 4, Write: 4, Version: -9, BacklogVersion: -9}} {
		resp, err := poll(nonsense)
		require.NoError(t, err, "%v counts as not known", nonsense)
		require.EqualValues(t, 4, resp.GetCounts().GetRead())
	}
	// What partitions are told by others than their root is looked at too.
	for _, lie := range []*v1.PartitionCounts{nil, {Read: MaxPartitions + 1, Write: 1, Version: 5}, {Read: 1, Write: 2, Version: 5}, {Read: 2, Write: 2}} {
		_, err := f.PublishCounts(f.ctx, &v1.PublishCountsRequest{Namespace: "default", Queue: "q", Partition: 0, Counts: lie})
		require.NoError(t, err)
	}
	require.EqualValues(t, 4, f.present(root("default", "q")).partitionCounts().GetRead())
}
