package matching

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func (f *fixture) setPartitionCount(queue string, n int32) {
	f.Helper()
	_, err := f.UpdateQueue(f.ctx, &v1.UpdateQueueRequest{Namespace: "default", Queue: queue,
		Config: &v1.QueueConfig{Partitions: n}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"partitions"}}})
	require.NoError(f, err)
}

// addAgain adds tasks again, each in a call of its own and all in one, and says how many
// were not recognised.
func (f *fixture) addAgain(queue string, tasks []*v1.TaskSpec) (missed int) {
	f.Helper()
	for _, t := range tasks[:len(tasks)/2] {
		if !f.add(queue, t)[0].GetAlreadyAdded() {
			missed++
		}
	}
	for i, r := range f.add(queue, append(tasks, spec("new"))...) {
		if r.GetAlreadyAdded() != (i < len(tasks)) {
			missed++
		}
	}
	return missed
}

func someTasks(n int, v7 bool) (tasks []*v1.TaskSpec) {
	for range n {
		t := spec("x")
		if !v7 {
			t.Id = uuid.NewString()
		}
		tasks = append(tasks, t)
	}
	return tasks
}

func TestRepeatedAdd_is_recognised_after_the_number_of_partitions_has_changed(t *testing.T) {
	for _, v7 := range []bool{true, false} {
		f := newFixture(t, newStore(t, ""), nil)
		f.makeQueue("q", 4)
		tasks := someTasks(40, v7)
		f.add("q", tasks...)
		done := f.poll("q", 10, time.Second, 0) // some have ended meanwhile
		f.complete("q", done...)
		f.setPartitionCount("q", 7)
		require.Zero(t, f.addAgain("q", tasks), "more partitions")
		f.setPartitionCount("q", 3)
		require.Zero(t, f.addAgain("q", tasks), "fewer partitions, two changes later")
		f.unloadAll("q", 7)
		require.Zero(t, f.addAgain("q", tasks), "after a restart of the partitions")
	}
}

func TestRepeatedAdd_is_recognised_while_managed_scaling_changes_the_number(t *testing.T) {
	f := newFixture(t, newStore(t, ""), quickScaling)
	f.makeQueue("q", 2)
	tasks := someTasks(40, true)
	f.add("q", tasks...)
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_ON, FixedPartitions: 9})
	eventually(t, "9 partitions", func() bool { return f.hasPartitions("q", 9, true) })
	require.Zero(t, f.addAgain("q", tasks))
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_OFF})
	f.purge("q")
	eventually(t, "2 partitions, as configured", func() bool { return f.hasPartitions("q", 2, false) })
}

func TestRepeatedAdd_is_recognised_where_tasks_go_by_room(t *testing.T) {
	f := newFixture(t, newStore(t, ""), quickScaling)
	f.makeQueue("q", 8)
	f.setScaling("q", &v1.QueueScaling{Mode: v1.QueueScaling_MODE_ON, FixedPartitions: 8, BacklogCap: 64})
	f.describe("q")
	eventually(t, "the counts are managed", func() bool { return f.hasPartitions("q", 8, true) })
	for _, v7 := range []bool{true, false} {
		tasks := someTasks(20, v7)
		for _, task := range tasks {
			if v7 { // they were made a while ago
				id := uuid.MustParse(task.GetId())
				ms := binary.BigEndian.Uint64(id[:8])>>16 - 60_000
				binary.BigEndian.PutUint64(id[:8], ms<<16|uint64(id[6])<<8|uint64(id[7]))
				task.Id = id.String()
			}
		}
		// Wherever they are.
		for i, task := range tasks {
			f.addTo("q", int32(i%8), task)
		}
		require.Zero(t, f.addAgain("q", tasks))
	}
}

func TestPast_is_as_long_as_ids_are_remembered(t *testing.T) {
	q := &v1.StoredQueue{WritePartitions: 4}
	at := int64(time.Hour)
	setWritePartitions(q, 5, at)
	setWritePartitions(q, 5, at)
	require.Len(t, q.GetPastPartitions(), 1)
	require.EqualValues(t, 4, q.GetPastPartitions()[0].GetWritePartitions())
	setWritePartitions(q, 6, at+dedupWindow-1)
	require.Len(t, q.GetPastPartitions(), 2)
	setWritePartitions(q, 7, at+dedupWindow+1)
	require.Len(t, q.GetPastPartitions(), 2)
	require.EqualValues(t, 5, q.GetPastPartitions()[0].GetWritePartitions())
	for i := range 100 {
		setWritePartitions(q, int32(i+10), at+dedupWindow+1)
	}
	require.Len(t, q.GetPastPartitions(), maxPast)

	o := &owner{id: PartitionID{Number: 0}}
	o.past.Store(pastOf(&v1.StoredQueue{PastPartitions: []*v1.PastPartitions{{WritePartitions: 1000, Until: timestamp(at)}}}))
	id := func(made int64) (id taskID) {
		binary.BigEndian.PutUint64(id[:8], uint64(made/1e6)<<16)
		id[6], id[15] = 0x70, 99
		return id
	}
	require.Len(t, o.elsewhere(id(at-1e9), at+1e9, nil), 1, "it may have been added before the change")
	require.Empty(t, o.elsewhere(id(at+2*int64(clockSkew)), at+1e9, nil), "it was made after")
	require.Empty(t, o.elsewhere(id(at-1e9), at+dedupWindow, nil), "it would be forgotten")
	require.Len(t, o.elsewhere(taskID{15: 99}, at+1e9, nil), 1, "it does not tell")
}
