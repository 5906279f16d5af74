package matching

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// taskShare is what a task says about its turn.
type taskShare struct {
	level  uint8
	key    string
	weight float32
}

// addShares adds tasks in one call; their payload is the number of their place in all
// that the rig has added, and their kind the key.
func (r *rig) addShares(shares ...taskShare) {
	a := &addCall{}
	a.init()
	for _, s := range shares {
		r.seq++
		var id taskID
		binary.BigEndian.PutUint64(id[:], uint64(r.now/1e6)<<16|0x7000)
		binary.BigEndian.PutUint32(id[12:], r.seq)
		b := body{id: id, addedAt: r.now, kind: s.key, level: s.level, fairKey: s.key, weight: s.weight,
			payload: binary.BigEndian.AppendUint32(nil, r.seq)}
		a.items = append(a.items, addItem{id: id, addedAt: r.now, body: b.append(nil)})
	}
	r.core.advance(r.now, r.wall())
	r.core.add(a)
	r.rest()
	require.NoError(r.t, a.err)
}

func repeat(n int, s taskShare) []taskShare { return slices.Repeat([]taskShare{s}, n) }

// work polls up to n tasks, completes them, and returns what they are.
func (r *rig) work(n int) (done []body) {
	for _, g := range r.pollNow(n) {
		var b body
		require.NoError(r.t, b.decode(g.body))
		done = append(done, b)
		require.False(r.t, r.endNow(endComplete, g).lost)
	}
	return done
}

// workAll works everything off, n at a time.
func (r *rig) workAll(n int) (done []body) {
	for {
		got := r.work(n)
		if len(got) == 0 {
			return done
		}
		done = append(done, got...)
	}
}

func number(b body) uint32 { return binary.BigEndian.Uint32(b.payload) }

func keysOf(done []body) map[string]int {
	n := map[string]int{}
	for _, b := range done {
		n[b.fairKey]++
	}
	return n
}

func TestPriority_lower_goes_first_and_none_is_the_default(t *testing.T) {
	for _, window := range []int{4, 1000} { // only some in memory, or all
		r := newRig(t, Limits{WindowTasks: window})
		for range 5 {
			r.addShares(taskShare{level: 5}, taskShare{level: 4}, taskShare{}, taskShare{level: 2}, taskShare{level: 1}, taskShare{level: 3})
		}
		var levels []uint8
		var last [maxLevel + 1]uint32
		for _, b := range r.workAll(3) {
			level := b.level
			if level == 0 {
				level = defaultLevel
			}
			require.Greater(t, number(b), last[level], "within a priority, in the order of adding")
			last[level] = number(b)
			levels = append(levels, level)
		}
		require.Len(t, levels, 30)
		require.IsNonDecreasing(t, levels, "window %d", window)
	}
}

func TestPriority_of_a_retry_is_that_of_its_task(t *testing.T) {
	r := newRig(t, Limits{})
	r.addShares(taskShare{level: 1})
	g := r.pollNow(1)
	r.addShares(repeat(10, taskShare{})...)
	require.False(t, r.endNow(endFail, g[0]).dead)
	r.now += int64(time.Minute)
	r.step()
	r.quiesce()
	require.EqualValues(t, 1, r.work(1)[0].level)
}

// The window decides what is in memory, not what goes next.
func TestOrder_does_not_depend_on_what_is_in_memory(t *testing.T) {
	for seed := range uint64(20) {
		var orders [2][]uint32
		for i, limits := range []Limits{{}, {WindowTasks: 7, BatchBytes: 900}} {
			rng := rand.New(rand.NewPCG(seed, 5))
			r := newRig(t, limits)
			for range 60 {
				var some []taskShare
				for range rng.IntN(30) {
					some = append(some, taskShare{uint8(rng.IntN(maxLevel + 1)), string(rune('a' + rng.IntN(6))), float32(rng.IntN(4))})
				}
				r.addShares(some...)
				for n := rng.IntN(20); n > 0; {
					done := r.work(n)
					for _, b := range done {
						orders[i] = append(orders[i], number(b))
					}
					if n -= len(done); len(done) == 0 {
						break
					}
				}
			}
			for _, b := range r.workAll(5) {
				orders[i] = append(orders[i], number(b))
			}
		}
		require.Equal(t, orders[0], orders[1], "seed %d", seed)
	}
}

func TestFairness_small_keys_are_not_kept_waiting_by_a_large_one(t *testing.T) {
	const big, small, each = 100_000, 99, 100
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			r := newRig(t, Limits{RecentIDs: 1000})
			for range big / 1000 {
				r.addShares(repeat(1000, taskShare{key: "big"})...)
			}
			for i := range small {
				r.addShares(repeat(each, taskShare{key: fmt.Sprint(i)})...)
			}
			if restart {
				r.load()
				r.rest()
			}
			done, left := 0, small*each
			for left > 0 {
				got := r.work(50)
				require.NotEmpty(t, got)
				done += len(got)
				left -= len(got) - keysOf(got)["big"]
			}
			fair := (small + 1) * each
			t.Logf("the small ones were done after %d tasks, %.2f of equal sharing", done, float64(done)/float64(fair))
			require.LessOrEqual(t, float64(done), 1.5*float64(fair))
			require.LessOrEqual(t, r.core.ready.len(), 8192*9/8)
		})
	}
}

func TestFairness_weights_make_shares(t *testing.T) {
	weights := map[string]float32{"a": 1, "b": 2, "c": 5}
	for _, own := range []bool{true, false} { // said by the tasks, or by the queue
		r := newRig(t, Limits{WindowTasks: 200})
		if !own {
			r.fairness.keys = map[string]keySetting{"a": {weight: 1}, "b": {weight: 2}, "c": {weight: 5}}
			r.load()
		}
		for _, key := range []string{"c", "a", "b"} {
			s := taskShare{key: key}
			if own {
				s.weight = weights[key]
			}
			for range 5 {
				r.addShares(repeat(1000, s)...)
			}
		}
		var got []body
		for len(got) < 4000 {
			got = append(got, r.work(20)...)
		}
		n := keysOf(got)
		for key, w := range weights {
			want := float64(len(got)) * float64(w) / 8
			require.InEpsilon(t, want, float64(n[key]), 0.05, "key %s, weights of tasks %v", key, own)
		}
	}
}

// Keys that come and go, one task at a time, do not keep one waiting that has many.
func TestFairness_new_keys_do_not_starve_old_ones(t *testing.T) {
	r := newRig(t, Limits{})
	r.addShares(repeat(200, taskShare{key: "old"})...)
	// One task goes for each new key, so that more and more of them wait: the old one
	// has one of n shares when n keys have tasks.
	old, share := 0, 0.0
	for i := range 2000 {
		r.addShares(taskShare{key: fmt.Sprint("new", i)})
		share += 1 / float64(r.core.ready.len()-(200-old)+1)
		old += keysOf(r.work(1))["old"]
	}
	require.InEpsilon(t, share, float64(old), 0.1)
}

func TestFairness_a_key_that_waits_in_line_keeps_its_order_after_a_restart(t *testing.T) {
	r := newRig(t, Limits{WindowTasks: 10})
	for range 20 {
		r.addShares(append(repeat(50, taskShare{key: "a"}), repeat(2, taskShare{})...)...)
	}
	r.work(7)
	r.load()
	for range 5 {
		r.addShares(taskShare{key: "a"}, taskShare{})
	}
	last := map[string]uint32{}
	for _, b := range r.workAll(4) {
		require.Greater(t, number(b), last[b.fairKey], "of key %q", b.fairKey)
		last[b.fairKey] = number(b)
	}
	require.Len(t, last, 2)
	r.now += int64(time.Hour)
	r.step()
	r.quiesce()
	require.Zero(t, r.count(spacePasses), "what is of no use is swept")
}

func TestFairness_with_more_keys_than_are_remembered(t *testing.T) {
	// A key that fills its place over and over gains nothing from being forgotten.
	r := newRig(t, Limits{FairnessKeys: 50, WindowTasks: 500})
	rng := rand.New(rand.NewPCG(1, 1))
	var got []body
	for range 300 {
		shares := repeat(4, taskShare{key: "greedy"})
		for range 8 {
			shares = append(shares, taskShare{key: fmt.Sprint(rng.IntN(400))})
		}
		r.addShares(shares...)
		got = append(got, r.work(8)...)
		require.LessOrEqual(t, r.core.passes.n, 51)
	}
	// 8 are done of 12 that come each round; the others ask for 8 of 400 keys, so a
	// fair part leaves greedy little.
	n := keysOf(got)
	require.Less(t, n["greedy"], len(got)/8)
	require.Equal(t, 300*12, len(got)+len(r.workAll(100)))
}

func TestRetry_takes_the_next_turn_of_its_key(t *testing.T) {
	r := newRig(t, Limits{})
	r.addShares(append(repeat(50, taskShare{key: "a"}), repeat(50, taskShare{key: "b"})...)...)
	first := r.pollNow(1)
	var b body
	require.NoError(t, b.decode(first[0].body))
	require.Equal(t, "a", b.fairKey)
	r.endNow(endRelease, first[0])
	r.rest()
	next := r.work(4)
	keys := keysOf(next)
	require.Equal(t, 2, keys["a"])
	require.Equal(t, 2, keys["b"])
	again := slices.IndexFunc(next, func(x body) bool { return x.id == b.id })
	require.GreaterOrEqual(t, again, 0, "the released task was among the next")
}

func (r *rig) setLimits(f fairness) {
	r.fairness = f
	q := r.core.queue
	q.fairness = f
	r.core.configure(q, r.core.ready.rates.share)
	r.rest()
}

// rate works for some seconds and returns how many tasks went out in each.
func (r *rig) rate(seconds int) (counts []map[string]int) {
	for range seconds {
		n := map[string]int{}
		for range 100 {
			r.now += int64(10 * time.Millisecond)
			r.core.advance(r.now, r.wall())
			for key, k := range keysOf(r.work(100)) {
				n[key] += k
			}
		}
		counts = append(counts, n)
	}
	return counts
}

func TestRateLimit_of_a_queue_binds_from_the_first_task_after_loading(t *testing.T) {
	r := newRig(t, Limits{WindowTasks: 20})
	r.setLimits(fairness{limit: ptr(5.0)})
	r.addShares(repeat(400, taskShare{})...)
	r.load() // in a world where the limit stands already
	require.Len(t, r.work(100), 1, "right after loading")
	total := 0
	for _, n := range r.rate(10) {
		require.LessOrEqual(t, n[""], 6)
		total += n[""]
	}
	require.InDelta(t, 50, total, 2)

	r.now += int64(time.Hour)
	r.step()
	require.Len(t, r.work(100), 5, "a burst is no more than a second")

	r.setLimits(fairness{limit: ptr(0.0)})
	r.now += int64(time.Hour)
	require.Empty(t, r.work(1), "0 stops")
	r.setLimits(fairness{})
	require.Greater(t, len(r.work(100)), 10, "no limit")
}

func TestRateLimit_is_shared_by_partitions(t *testing.T) {
	r := newRig(t, Limits{})
	r.setLimits(fairness{limit: ptr(40.0)})
	r.core.setShare(0.25)
	r.addShares(repeat(400, taskShare{})...)
	r.rate(1)
	for _, n := range r.rate(5) {
		require.InDelta(t, 10, n[""], 1)
	}
}

func TestRateLimit_of_keys_lets_the_others_pass(t *testing.T) {
	r := newRig(t, Limits{WindowTasks: 40})
	r.setLimits(fairness{keyLimit: ptr(10.0), keys: map[string]keySetting{"slow": {limit: ptr(1.0)}, "free": {limit: ptr(1e6)}, "stopped": {limit: ptr(0.0)}}})
	r.addShares(repeat(500, taskShare{key: "slow"})...)
	r.addShares(repeat(500, taskShare{key: "stopped"})...)
	r.addShares(repeat(500, taskShare{key: "a"})...)
	r.addShares(repeat(500, taskShare{key: "heavy", weight: 2})...)
	r.addShares(repeat(500, taskShare{key: "free"})...)
	r.rate(2)
	for _, n := range r.rate(10) {
		require.InDelta(t, 1, n["slow"], 1)
		require.InDelta(t, 10, n["a"], 1)
		require.InDelta(t, 20, n["heavy"], 1)
		require.Zero(t, n["stopped"])
	}
	require.Zero(t, r.core.ready.lanes[defaultLevel].keys["free"].fresh, "it was not kept waiting")
	// What was only in the store comes back when the limit goes, in order.
	r.setLimits(fairness{})
	last := map[string]uint32{}
	n := 0
	for _, b := range r.workAll(50) {
		require.Greater(t, number(b), last[b.fairKey])
		last[b.fairKey] = number(b)
		n++
	}
	require.EqualValues(t, 0, r.core.m.counts.fresh)
	require.Greater(t, n, 900)
}

func TestRateLimit_of_many_keys_does_not_starve_one_behind_them(t *testing.T) {
	r := newRig(t, Limits{WindowTasks: 64})
	r.setLimits(fairness{keyLimit: ptr(0.1), keys: map[string]keySetting{"free": {limit: ptr(1000.0)}}})
	for i := range 10 {
		r.addShares(repeat(100, taskShare{key: fmt.Sprint(i)})...)
	}
	r.addShares(repeat(2000, taskShare{key: "free"})...)
	r.rate(1)
	free := 0
	for _, n := range r.rate(2) {
		free += n["free"]
	}
	require.Greater(t, free, 900)
}

func TestRateLimit_tokens_are_not_spent_on_tasks_that_are_dropped(t *testing.T) {
	r := newRig(t, Limits{})
	r.setLimits(fairness{limit: ptr(1.0)})
	a := &addCall{}
	a.init()
	for i := range 50 {
		b := body{id: r.newID(), addedAt: r.now, kind: "k"}
		if i < 49 {
			b.expiresAt = r.now + 1
		}
		a.items = append(a.items, addItem{id: b.id, addedAt: r.now, body: b.append(nil)})
	}
	r.core.add(a)
	r.rest()
	r.now += int64(time.Second)
	require.Len(t, r.work(10), 1)
}

func TestRateLimit_describe_says_that_tasks_wait_for_it(t *testing.T) {
	r := newRig(t, Limits{})
	r.setLimits(fairness{limit: ptr(1.0)})
	r.addShares(repeat(10, taskShare{level: 2})...)
	r.work(10)
	d := &describeCall{}
	d.init()
	r.core.describe(d)
	require.Len(t, d.done, 1)
	require.True(t, d.limited)
	require.EqualValues(t, 9, d.levels[2].ready)
	require.NotZero(t, d.levels[2].oldest)
	require.NotZero(t, d.levels[2].rates[statDispatched])
	require.Zero(t, d.levels[3])
}

func TestBucket(t *testing.T) {
	second := int64(time.Second)
	b := newBucket(10, 0, 0)
	take := func(now int64) (n int) {
		for {
			ok, at := b.ready(now)
			if !ok {
				require.Greater(t, at, now)
				return n
			}
			b.take()
			n++
		}
	}
	require.Equal(t, 1, take(0))
	require.Equal(t, 10, take(10*second), "no more than a second's")
	require.Equal(t, 0, take(10*second))
	require.Equal(t, 5, take(10*second+second/2))
	ok, at := b.ready(10*second + second/2)
	require.False(t, ok)
	ok, _ = b.ready(at)
	require.True(t, ok, "at the time that it said")
	b.setRate(0.5, at)
	take(at)
	require.Equal(t, 0, take(at+second))
	require.Equal(t, 1, take(at+2*second+1000))
	require.Equal(t, 1, take(at+100*second), "one has room however slow")
	b.setRate(0, at+100*second)
	require.Equal(t, 0, take(at+1000*second))
}
