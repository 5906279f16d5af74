package matching

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard/storage/storagerpc"
)

func TestFencing_of_two_owners_the_older_learns_it_at_its_next_write_and_nothing_is_lost(t *testing.T) {
	store := newStore(t, "")
	a, b := newFixture(t, store, nil), newFixture(t, store, nil) // both believe they own everything
	a.add("q", spec("1"))
	held := a.poll("q", 1, 0, time.Hour)
	a.add("q", spec("2"))
	b.add("q", spec("3")) // takes the partition over

	_, err := a.PartitionAddTasks(a.ctx, &v1.PartitionAddTasksRequest{Request: &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: []*v1.TaskSpec{spec("4")}}})
	require.Equal(t, reason.PartitionMoved, reason.Of(err))
	require.True(t, reason.Retryable(reason.Of(err)))
	eventually(t, "it drops the partition at once", func() bool { return !a.isLoaded("q", 0) })

	require.Empty(t, b.complete("q", held...)[0], "the new owner knows the leases of the old one")
	got := map[string]bool{}
	for len(got) < 2 {
		for _, task := range b.poll("q", 10, 10*time.Second, 0) {
			got[string(task.GetPayload())] = true
		}
	}
	require.Equal(t, map[string]bool{"2": true, "3": true}, got)
}

func TestFencing_an_owner_learns_from_its_reads_that_it_lost_the_partition(t *testing.T) {
	store := newStore(t, "")
	a, b := newFixture(t, store, nil), newFixture(t, store, nil)
	s := spec("1")
	a.add("q", s)
	b.add("q", spec("2"))
	_, err := a.PartitionGetTask(a.ctx, &v1.PartitionGetTaskRequest{Request: &v1.GetTaskRequest{Namespace: "default", Queue: "q", Id: s.GetId()}})
	require.Equal(t, reason.PartitionMoved, reason.Of(err), "rows that another owner has changed do not fit to what it has in memory")
	eventually(t, "it drops the partition", func() bool { return !a.isLoaded("q", 0) })
	require.Equal(t, "1", string(a.get("q", s.GetId()).GetPayload()), "and takes it again when it is asked to")
}

func TestFencing_two_owners_of_everything_lose_and_repeat_nothing(t *testing.T) {
	store := newStore(t, "")
	fs := []*fixture{newFixture(t, store, nil), newFixture(t, store, nil)}
	fs[0].makeQueue("q", 3)
	const perCaller = 40
	var wg sync.WaitGroup
	var mu sync.Mutex
	completed := map[string]int{}
	ctx, stop := context.WithCancel(fs[0].ctx)
	var workers sync.WaitGroup
	for i := range 2 {
		f := fs[i]
		workers.Go(func() {
			for ctx.Err() == nil {
				resp, err := f.PollTasks(ctx, pollRequest("q", 5, 200*time.Millisecond))
				if err != nil {
					continue // it may have lost the partition
				}
				for _, task := range resp.GetTasks() {
					done, err := f.CompleteTasks(fs[0].ctx, &v1.CompleteTasksRequest{Namespace: "default", Queue: "q", LeaseTokens: [][]byte{task.GetLeaseToken()}})
					if err == nil && done.GetResults()[0].GetError() == nil {
						mu.Lock()
						completed[task.GetId()]++
						mu.Unlock()
					}
				}
			}
		})
	}
	ids := make([][]string, 4)
	for i := range 4 {
		wg.Go(func() {
			for range perCaller {
				s := spec("x")
				fs[i%2].add("q", s)
				ids[i] = append(ids[i], s.GetId())
			}
		})
	}
	wg.Wait()
	eventually(t, "all are completed", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(completed) == 4*perCaller
	})
	stop()
	workers.Wait()
	for _, all := range ids {
		for _, id := range all {
			require.Equal(t, 1, completed[id], "task %s", id)
		}
	}
}

func TestStoreError_aFunctionOnAnotherNodeKeepsItsReason(t *testing.T) {
	err := new(Queues).storeError(storagerpc.DecodeError(storagerpc.EncodeError(errMoved)))
	if reason.Of(err) != reason.PartitionMoved {
		t.Errorf("%v has the reason %q", err, reason.Of(err))
	}
}
