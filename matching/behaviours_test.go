package matching

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
)

// docs/behaviours.md says which test holds which behaviour; each of them exists.
func TestBehaviours_the_tests_that_the_docs_name_are_there(t *testing.T) {
	const repo = ".."
	tests := map[string]bool{}
	require.NoError(t, filepath.WalkDir(repo, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bench" && filepath.Dir(path) == repo) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			return nil
		}
		dir, rel := filepath.Rel(repo, filepath.Dir(path))
		if rel != nil {
			return rel
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(`).FindAllSubmatch(text, -1) {
			tests[filepath.ToSlash(dir)+" "+string(m[1])] = true
		}
		return err
	}))
	text, err := os.ReadFile(filepath.Join(repo, "docs", "behaviours.md"))
	require.NoError(t, err)
	n := 0
	for _, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| behaviour") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		require.Len(t, cells, 3, line)
		dir := strings.Trim(cells[1], " `")
		for _, name := range strings.Split(cells[2], ",") {
			name = strings.Trim(name, " `")
			require.True(t, tests[dir+" "+name], "%s has no test %q (%s)", dir, name, cells[0])
			n++
		}
	}
	require.Greater(t, n, 100)
}

func TestParent_equals_the_vectors(t *testing.T) {
	var vectors struct{ Parent map[string][]int32 }
	text, err := os.ReadFile("testdata/partition_tree.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &vectors))
	all := vectors.Parent[fmt.Sprint(TreeDegree)]
	require.Greater(t, len(all), 100)
	for n, want := range all {
		parent, ok := Parent(int32(n))
		require.Equal(t, want >= 0, ok, "partition %d", n)
		if ok {
			require.Equal(t, want, parent, "partition %d", n)
		}
	}
	for _, n := range []int32{-1, MaxPartitions} {
		_, ok := Parent(n)
		require.False(t, ok, "no partition can have the number %d", n)
	}
}

func TestPolls_that_wait_are_served_in_the_order_in_which_they_came(t *testing.T) {
	r := newRig(t, Limits{})
	var polls []*pollCall
	for range 5 {
		p := &pollCall{max: 1, identity: "w"}
		p.init()
		r.core.advance(r.now, r.wall())
		r.core.poll(p)
		r.rest()
		polls = append(polls, p)
	}
	r.core.cancelPoll(polls[1])
	for i, p := range polls {
		if i == 1 {
			require.Empty(t, p.granted, "it was cancelled")
			continue
		}
		require.False(t, answered(&p.call))
		r.addAt(0)
		require.True(t, answered(&p.call), "poll %d", i)
		require.Len(t, p.granted, 1)
	}
}

func TestForward_an_offered_task_waits_for_the_limit_of_its_own_partition_only(t *testing.T) {
	s := newTree(t, 0, 1)
	parent, child := s.nodes[0], s.nodes[1]
	limit := func(n *treeNode, rate float64) {
		q := n.core.queue
		q.limit = &rate
		n.core.configure(q, 1)
	}
	limit(parent, 0)
	parent.put() // it may not go
	p := parent.ask(time.Minute)
	id := child.put()
	s.deliverAll()
	require.Equal(t, []string{id.String()}, taskIDs(parent.got(p)), "the parent lets nothing out of its own, and does not count what is not its own")

	limit(child, 0)
	p = parent.ask(time.Minute)
	child.put()
	s.deliverAll()
	require.Nil(t, parent.got(p))
	limit(child, 100)
	s.pass(time.Second)
	s.deliverAll()
	require.Len(t, taskIDs(parent.got(p)), 1)
}

// Were each of them looked at for each match, this would take hours.
func TestMatch_among_many_tasks_and_polls_that_wait_and_may_not_meet_takes_no_longer(t *testing.T) {
	const n = 50_000
	r := newRig(t, Limits{WindowTasks: 3 * n, WindowBytes: 1 << 30, WaitingPolls: 2 * n, RecentIDs: 4 * n})
	r.setLimits(fairness{keyLimit: ptr(0.0), keys: map[string]keySetting{"free": {limit: ptr(1e9)}}})
	for i := 0; i < n; i += 1000 {
		var shares []taskShare
		for k := range 1000 {
			shares = append(shares, taskShare{key: fmt.Sprint(i + k)})
		}
		r.addShares(shares...)
	}
	var polls []*pollCall
	r.core.advance(r.now, r.wall())
	for range n {
		p := &pollCall{max: 1, identity: "w"}
		p.init()
		r.core.poll(p)
		polls = append(polls, p)
	}
	r.rest()
	require.False(t, answered(&polls[0].call))
	for i, p := range polls[:1000] {
		r.now += int64(time.Millisecond)
		r.addShares(taskShare{key: "free"})
		require.True(t, answered(&p.call), "poll %d", i)
	}
}

func TestIdle_descriptions_do_not_keep_a_partition_in_memory_but_a_poll_does(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) { o.IdleTime = 100 * time.Millisecond })
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.poll("q", 1, time.Second, 0)
	}()
	eventually(t, "the poll waits", func() bool {
		o := f.present(root("default", "q"))
		return o != nil && o.waiting.Load() == 1
	})
	o := f.present(root("default", "q"))
	<-done
	require.Equal(t, o, f.present(root("default", "q")), "it stayed in memory ten times as long as it may be idle")
	eventually(t, "it is unloaded", func() bool {
		_, err := f.DescribePartition(f.ctx, &v1.DescribePartitionRequest{Namespace: "default", Queue: "q", OnlyIfLoaded: true})
		require.NoError(t, err)
		return !f.isLoaded("q", 0)
	})
}

func TestOverload_what_is_beyond_a_partitions_limits_is_refused_at_once(t *testing.T) {
	f := newFixture(t, newStore(t, ""), func(o *Options) {
		o.Limits = Limits{WaitingPolls: 2, PendingCalls: 5, PendingBytes: 1, BatchBytes: 1, WritesInFlight: 1}
	})
	f.makeQueue("q", 1)
	write := f.write
	var gate sync.RWMutex // of writes
	f.write = func(b shard.BucketID, args []byte, done func([]byte, error)) {
		go func() {
			gate.RLock()
			defer gate.RUnlock()
			write(b, args, done)
		}()
	}
	ctx, stop := context.WithCancel(f.ctx)
	polls := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := f.PollTasks(ctx, pollRequest("q", 1, 10*time.Minute))
			polls <- err
		}()
	}
	require.Equal(t, reason.Overloaded, reason.Of(<-polls), "the third poll")
	stop()
	<-polls
	<-polls

	gate.Lock()
	adds := make(chan error, 1000)
	n := 0
	for refused := false; !refused; n++ {
		go func() {
			_, err := f.AddTasks(f.ctx, &v1.AddTasksRequest{Namespace: "default", Queue: "q", Tasks: []*v1.TaskSpec{spec("x")}})
			adds <- err
		}()
		select {
		case err := <-adds:
			require.Equal(t, reason.Overloaded, reason.Of(err), "%v after %d", err, n)
			refused = true
		case <-time.After(10 * time.Millisecond):
			require.Less(t, n, 1000)
		}
	}
	gate.Unlock()
	taken := 0
	for range n - 1 { // the others
		if err := <-adds; err == nil {
			taken++
		} else {
			require.Equal(t, reason.Overloaded, reason.Of(err))
		}
	}
	require.GreaterOrEqual(t, taken, 5, "those that waited")
	require.EqualValues(t, taken, f.describe("q").GetCounts().GetReady())
}
