package matching

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rig drives a core by hand over a store in memory; each step comes to rest.
type rig struct {
	*sim
}

func newRig(t *testing.T, limits Limits) *rig {
	r := &rig{sim: &sim{
		t: t, rng: rand.New(rand.NewPCG(1, 1)), now: 1_700_000_000 * 1e9,
		store: &memStore{rows: map[string][]byte{}}, id: PartitionID{Namespace: "n", Queue: "q"},
		tasks: map[taskID]*simTask{}, bySeq: map[uint64]taskID{}, limit: limits,
	}}
	r.load()
	return r
}

func (r *rig) rest() {
	r.step()
	r.quiesce()
}

func (r *rig) addAt(runAt int64) taskID {
	id := r.newID()
	b := body{id: id, addedAt: r.now, kind: "k", runAt: runAt}
	a := &addCall{items: []addItem{{id: id, addedAt: r.now, runAt: runAt, body: b.append(nil)}}}
	a.init()
	r.core.advance(r.now, r.wall())
	r.core.add(a)
	r.rest()
	return id
}

func (r *rig) pollNow(n int) []grant {
	p := &pollCall{max: n, identity: "w", noWait: true}
	p.init()
	r.core.advance(r.now, r.wall())
	r.core.poll(p)
	r.rest()
	require.Len(r.t, p.done, 1)
	return p.granted
}

func (r *rig) endNow(kind endKind, g grant) endItem {
	e := &endCall{kind: kind, items: []endItem{{seq: g.seq, nonce: g.nonce}}}
	e.init()
	r.core.end(e)
	r.rest()
	return e.items[0]
}

func TestLease_is_not_shortened_or_lengthened_by_jumps_of_the_wall_clock(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		r := newRig(t, Limits{})
		r.addAt(0)
		g := r.pollNow(1)
		require.Len(t, g, 1)
		r.jump = int64(jump)
		r.now += int64(9 * time.Second)
		require.Empty(t, r.pollNow(1), "jump %v", jump)
		r.now += int64(2 * time.Second)
		require.Len(t, r.pollNow(1), 1, "jump %v", jump)
		require.True(t, r.endNow(endComplete, g[0]).lost)
	}
}

func TestDelayed_task_follows_the_wall_clock(t *testing.T) {
	r := newRig(t, Limits{})
	r.addAt(r.now + int64(time.Hour))
	require.Empty(t, r.pollNow(1))
	r.jump = int64(time.Hour) // the machine slept
	require.Len(t, r.pollNow(1), 1)
}

func TestSchedule_larger_than_its_window_comes_in_order(t *testing.T) {
	r := newRig(t, Limits{ScheduleWindow: 8, WindowTasks: 16})
	var want []int64
	start := r.now
	for i := range 200 {
		at := start + int64(1+(i*37)%200)*int64(time.Second)
		want = append(want, at)
		r.addAt(at)
		require.LessOrEqual(t, r.core.schedule.live, 16)
	}
	var got []int64
	for len(got) < len(want) {
		r.now += int64(time.Second)
		for _, g := range r.pollNow(100) {
			var b body
			require.NoError(t, b.decode(g.body))
			require.LessOrEqual(t, b.runAt, r.now)
			got = append(got, b.runAt)
			r.endNow(endComplete, g)
		}
		require.Less(t, r.now-start, int64(time.Hour))
	}
	require.IsIncreasing(t, got)
}

func TestWindow_bounds_the_tasks_in_memory(t *testing.T) {
	r := newRig(t, Limits{WindowTasks: 10})
	for range 500 {
		r.addAt(0)
		require.LessOrEqual(t, r.core.ready.len(), 10)
	}
	for n := 0; n < 500; n++ {
		g := r.pollNow(1)
		require.Len(t, g, 1)
		require.EqualValues(t, n+1, g[0].seq, "in the order of adding")
		require.LessOrEqual(t, r.core.ready.len(), 10)
		r.endNow(endComplete, g[0])
	}
}

func TestDescribe_counts_a_due_task_as_ready_right_after_loading(t *testing.T) {
	r := newRig(t, Limits{})
	r.addAt(r.now + int64(time.Second))
	r.addAt(r.now + int64(time.Hour))
	r.now += int64(time.Minute)
	r.load()
	d := &describeCall{}
	d.init()
	r.core.describe(d)
	require.Empty(t, d.done, "the schedule has not been read")
	r.rest()
	require.Len(t, d.done, 1)
	require.Equal(t, stateCounts{ready: 1, delayed: 1}, d.counts)
}

func TestReleased_task_keeps_its_place_in_line(t *testing.T) {
	r := newRig(t, Limits{})
	for range 3 {
		r.addAt(0)
		r.now += int64(time.Second)
	}
	g := r.pollNow(1)
	require.EqualValues(t, 1, g[0].seq)
	r.endNow(endRelease, g[0])
	again := r.pollNow(2)
	require.EqualValues(t, 1, again[0].seq)
	require.EqualValues(t, 1, again[0].attempt)
	require.EqualValues(t, 2, again[1].seq)
}

func TestRecentIDs_never_call_a_stored_id_new(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var r recentIDs
		var floor taskID
		binary.BigEndian.PutUint64(floor[:], 100)
		r.init(16, floor)
		stored := map[taskID]bool{}
		for i := range 2000 {
			var id taskID
			binary.BigEndian.PutUint64(id[:], uint64(max(0, i+100-rng.IntN(60))))
			if _, ok := r.get(id); !ok && !r.mayBeStored(id) && stored[id] {
				t.Fatalf("seed %d: id %v is stored and taken for new", seed, id)
			}
			r.add(id, int64(i))
			stored[id] = true
			require.LessOrEqual(t, len(r.cur)+len(r.prev), 16+1)
		}
	}
}

func TestStats_rates_are_of_the_last_30_seconds(t *testing.T) {
	var s stats
	now := int64(1_700_000_000 * 1e9)
	s.init(now)
	for range 60 {
		now += int64(time.Second)
		s.count(now, statAdded, 10)
	}
	require.InDelta(t, 10, s.rate(now, statAdded), 1)
	now += int64(time.Minute)
	require.Zero(t, s.rate(now, statAdded))
	require.EqualValues(t, 600, s.total[statAdded])
}

func TestPollerHistory_is_bounded_and_forgets(t *testing.T) {
	var h pollerHistory
	h.init(2)
	h.began("a", 1)
	h.ended("a", 2)
	h.began("b", 3)
	h.began("c", 4)
	require.Len(t, h.by, 2)
	h.began("c", pollerTTL+10)
	require.Contains(t, h.by, "c", "a was forgotten")
	require.NotContains(t, h.by, "a")
	require.Contains(t, h.by, "b", "b still waits")
}
