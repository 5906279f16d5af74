package matching

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// ring says which engine of a test owns a partition; tests move partitions.
type ring struct {
	mu      sync.Mutex
	owner   func(PartitionID) int
	engines []*Engine
	far     bool // all are on other nodes
	calls   map[string]int
}

func (r *ring) ownerOf(id PartitionID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owner(id)
}

func (r *ring) setOwner(fn func(PartitionID) int) {
	r.mu.Lock()
	r.owner = fn
	engines := r.engines
	r.mu.Unlock()
	for _, e := range engines {
		e.OwnershipChanged()
	}
}

// peersOf is the ring as one engine sees it.
type peersOf struct {
	*ring
	self int
}

func (p peersOf) Owner(id PartitionID) (v1.MatchingServiceServer, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.owner(id)
	if n < 0 {
		return nil, false, reason.New(codes.Unavailable, reason.NotReady, nil, "nobody owns partition %v", id)
	}
	return p.engines[n], n == p.self && !p.far, nil
}

// newCluster starts engines over one store, which own all partitions by fn.
func newCluster(t testing.TB, n int, fn func(PartitionID) int, change func(*Options)) (*ring, []*fixture) {
	t.Helper()
	store := newStore(t, "")
	r := &ring{owner: fn, calls: map[string]int{}, engines: make([]*Engine, n)}
	fs := make([]*fixture, n)
	for i := range n {
		fs[i] = newFixture(t, store, func(o *Options) {
			o.Peers = peersOf{r, i}
			o.Owns = func(id PartitionID) bool { return r.ownerOf(id) == i }
			o.OwnershipDelay = time.Millisecond
			if change != nil {
				change(o)
			}
		})
		r.mu.Lock()
		r.engines[i] = fs[i].Engine
		r.mu.Unlock()
	}
	return r, fs
}

// makeQueue creates a queue with so many partitions.
func (f *fixture) makeQueue(name string, partitions int) {
	f.Helper()
	_, err := f.CreateQueue(f.ctx, &v1.CreateQueueRequest{Namespace: "default", Queue: name, Config: &v1.QueueConfig{Partitions: int32(partitions)}})
	require.NoError(f, err)
}

// addTo adds tasks to one partition.
func (f *fixture) addTo(queue string, n int32, tasks ...*v1.TaskSpec) {
	f.Helper()
	_, err := f.PartitionAddTasks(f.ctx, &v1.PartitionAddTasksRequest{
		Header:  &v1.PartitionHeader{Partition: n},
		Request: &v1.AddTasksRequest{Namespace: "default", Queue: queue, Tasks: tasks},
	})
	require.NoError(f, err)
}

func (f *fixture) unloadAll(queue string, partitions int32) {
	f.Helper()
	for n := range partitions {
		_, err := f.ForceUnloadPartition(f.ctx, &v1.ForceUnloadPartitionRequest{Namespace: "default", Queue: queue, Partition: n})
		require.NoError(f, err)
	}
}

func (f *fixture) isLoaded(queue string, n int32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.owners[PartitionID{Namespace: "default", Queue: queue, Number: n}]
	return ok
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func pollRequest(queue string, max int, wait time.Duration) *v1.PollTasksRequest {
	return &v1.PollTasksRequest{Namespace: "default", Queue: queue, Identity: "test", MaxTasks: int32(max), Wait: durationpb.New(wait)}
}

// work polls a queue with one poll at a time and completes what it gets.
func (f *fixture) work(ctx context.Context, queue string, max int, wait time.Duration, each func(*v1.LeasedTask)) {
	for ctx.Err() == nil {
		resp, err := f.PollTasks(ctx, pollRequest(queue, max, wait))
		if err != nil {
			if ctx.Err() == nil {
				f.Errorf("poll: %v", err)
			}
			return
		}
		for _, t := range resp.GetTasks() {
			each(t)
		}
		if len(resp.GetTasks()) > 0 && ctx.Err() == nil {
			f.complete(queue, resp.GetTasks()...)
		}
	}
}

// forceLoadStory adds 1,000 tasks to 16 partitions on so many nodes, unloads all of
// them, and returns how long a single new worker, whose one poll comes to the same
// partition each time and takes up to most tasks, took for the first and for the last.
func forceLoadStory(t *testing.T, nodes, most int, off bool, patience time.Duration) (first, last time.Duration, got int) {
	_, fs := newCluster(t, nodes, func(id PartitionID) int { return int(id.Number) % nodes }, func(o *Options) { o.NoForceLoad = off })
	f := fs[0]
	f.makeQueue("q", 16)
	for i := range 10 {
		var tasks []*v1.TaskSpec
		for j := range 100 {
			tasks = append(tasks, spec(fmt.Sprint(i*100+j)))
		}
		f.add("q", tasks...)
	}
	for n := range int32(16) {
		_, err := fs[int(n)%nodes].ForceUnloadPartition(f.ctx, &v1.ForceUnloadPartitionRequest{Namespace: "default", Queue: "q", Partition: n})
		require.NoError(t, err)
	}
	at := fs[5%nodes]
	ctx, stop := context.WithTimeout(f.ctx, patience)
	defer stop()
	begin := time.Now()
	for got < 1000 {
		resp, err := at.PartitionPollTasks(ctx, &v1.PartitionPollTasksRequest{Header: &v1.PartitionHeader{Partition: 5}, Request: pollRequest("q", most, 20*time.Second)})
		if ctx.Err() != nil {
			break
		}
		require.NoError(t, err)
		tasks := resp.GetResponse().GetTasks()
		require.NotEmpty(t, tasks)
		f.complete("q", tasks...)
		if got == 0 {
			first = time.Since(begin)
		}
		got += len(tasks)
		last = time.Since(begin)
	}
	return first, last, got
}

func TestForceLoad_brings_a_backlog_of_unloaded_partitions_to_a_single_new_worker(t *testing.T) {
	first, last, n := forceLoadStory(t, 1, 10, false, 30*time.Second)
	t.Logf("%d tasks, first after %v, last after %v", n, first, last)
	require.Equal(t, 1000, n)
}

func TestForceLoad_brings_a_backlog_on_three_nodes_to_a_worker_that_takes_one_task_at_a_time(t *testing.T) {
	first, last, n := forceLoadStory(t, 3, 1, false, 30*time.Second)
	t.Logf("%d tasks, first after %v, last after %v", n, first, last)
	require.Equal(t, 1000, n)
}

func TestForceLoad_switched_off_leaves_a_backlog_to_luck(t *testing.T) {
	first, last, n := forceLoadStory(t, 1, 10, true, 2*time.Second)
	t.Logf("%d tasks, first after %v, last after %v", n, first, last)
	require.Greater(t, n, 0)
	require.Less(t, n, 500, "without it, the worker gets what the root and its own partition have")
}
