package matching

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func (f *fixture) addSticky(queue, worker string, tasks ...*v1.TaskSpec) error {
	_, err := f.AddTasks(f.ctx, &v1.AddTasksRequest{Namespace: "default", Queue: queue, StickyWorker: worker, Tasks: tasks})
	return err
}

func stickyPoll(queue, worker string, wait time.Duration) *v1.PollTasksRequest {
	req := pollRequest(queue, 10, wait)
	req.StickyWorker = worker
	return req
}

func TestSticky_an_add_fails_at_once_when_the_worker_is_not_there_and_loads_nothing(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	require.Equal(t, reason.StickyWorkerUnavailable, reason.Of(f.addSticky("q", "host:1", spec("x"))))
	require.Empty(t, f.inMemory())
}

func TestSticky_tasks_go_to_their_worker_only(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 4)
	_, err := f.PollTasks(f.ctx, stickyPoll("q", "host:1", 0))
	require.NoError(t, err)
	require.NoError(t, f.addSticky("q", "host:1", spec("mine")))
	require.Equal(t, reason.StickyWorkerUnavailable, reason.Of(f.addSticky("q", "host:2", spec("x"))), "each worker has its own")
	require.Empty(t, f.poll("q", 10, 0, 0), "the queue's other workers do not get it")
	resp, err := f.PollTasks(f.ctx, stickyPoll("q", "host:1", 10*time.Second))
	require.NoError(t, err)
	require.Len(t, resp.GetTasks(), 1)
	f.add("q", spec("normal"))
	normal := f.poll("q", 1, 10*time.Second, 0)
	for i, why := range f.complete("q", resp.GetTasks()[0], normal[0]) {
		require.Empty(t, why, "token %d goes where its lease is", i)
	}
}

func TestSticky_an_add_is_refused_when_the_worker_has_not_polled_for_ten_seconds(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 1)
	_, err := f.PollTasks(f.ctx, stickyPoll("q", "w", 0))
	require.NoError(t, err)
	o := f.present(PartitionID{Namespace: "default", Queue: "q", Sticky: "w"})
	require.NoError(t, f.addSticky("q", "w", spec("x")))
	o.polledAt.Store(f.steady() - int64(stickyAbsence) - 1)
	require.Equal(t, reason.StickyWorkerUnavailable, reason.Of(f.addSticky("q", "w", spec("x"))))
}

func TestSticky_a_queue_is_forgotten_a_day_after_its_last_use(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 1)
	id := PartitionID{Namespace: "default", Queue: "q", Sticky: "w"}
	_, err := f.PollTasks(f.ctx, stickyPoll("q", "w", 0))
	require.NoError(t, err)
	require.NoError(t, f.addSticky("q", "w", spec("x")))
	f.forgetSticky(f.ctx, id.sibling(0))
	require.NotNil(t, f.present(id), "it was used just now")

	require.NoError(t, f.noteSticky(f.ctx, id, time.Now().Add(-25*time.Hour).UnixNano()))
	f.forgetSticky(f.ctx, id.sibling(0))
	require.Nil(t, f.present(id))
	_, ok, err := f.storedMeta(f.ctx, id)
	require.NoError(t, err)
	require.False(t, ok, "its rows are gone")
	ids, err := f.stickyQueues(f.ctx, id.sibling(0), 1<<62)
	require.NoError(t, err)
	require.Empty(t, ids)
}

func TestSticky_queues_go_with_their_queue(t *testing.T) {
	f := newFixture(t, newStore(t, ""), nil)
	f.makeQueue("q", 1)
	_, err := f.PollTasks(f.ctx, stickyPoll("q", "w", 0))
	require.NoError(t, err)
	require.NoError(t, f.addSticky("q", "w", spec("x")))
	_, err = f.DeleteQueue(f.ctx, &v1.DeleteQueueRequest{Namespace: "default", Queue: "q"})
	require.Equal(t, reason.QueueNotEmpty, reason.Of(err))
	_, err = f.DeleteQueue(f.ctx, &v1.DeleteQueueRequest{Namespace: "default", Queue: "q", Force: true})
	require.NoError(t, err)
	_, ok, err := f.storedMeta(f.ctx, PartitionID{Namespace: "default", Queue: "q", Sticky: "w"})
	require.NoError(t, err)
	require.False(t, ok)
}
