package retry

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// waits returns up to n waits of a schedule.
func waits(s Schedule, n int, draw func() float64) []time.Duration {
	var out []time.Duration
	for range n {
		wait, rest, ok := s.Next(draw)
		if !ok {
			break
		}
		out = append(out, wait)
		s = rest
	}
	return out
}

// script returns the given draws in order and fails the test beyond them.
func script(t *testing.T, draws ...float64) func() float64 {
	return func() float64 {
		if len(draws) == 0 {
			t.Fatal("more draws than expected")
		}
		d := draws[0]
		draws = draws[1:]
		return d
	}
}

func TestSchedules_withoutJitter(t *testing.T) {
	for name, c := range map[string]struct {
		schedule Schedule
		unit     time.Duration
		want     []int64
		ends     bool
	}{
		"constant":                     {Constant(3 * ms), ms, []int64{3, 3, 3}, false},
		"constant, negative":           {Constant(-1), ms, []int64{0, 0}, false},
		"linear":                       {Linear(7*ms, 10*ms, 0), ms, []int64{7, 17, 27, 37, 47}, false},
		"linear to a limit":            {Linear(9*ms, 30*ms, 99*ms), ms, []int64{9, 39, 69, 99, 99}, false},
		"linear by 0":                  {Linear(9*ms, 0, 99*ms), ms, []int64{9, 9, 9}, false},
		"linear that starts too high":  {Linear(100*ms, 1, 99*ms), ms, []int64{99, 99}, false},
		"linear to the end of time":    {Linear(1, math.MaxInt64, 0), 1, []int64{1, math.MaxInt64, math.MaxInt64}, false},
		"exponential":                  {Exponential(2*ms, 2, 0), ms, []int64{2, 4, 8, 16, 32}, false},
		"exponential to a limit":       {Exponential(2*ms, 2, 15*ms), ms, []int64{2, 4, 8, 15, 15}, false},
		"exponential by 0":             {Exponential(2*ms, 0, 0), ms, []int64{2, 0, 0}, false},
		"exponential by 1":             {Exponential(2*ms, 1, 0), ms, []int64{2, 2, 2}, false},
		"exponential by NaN":           {Exponential(2*ms, math.NaN(), 0), ms, []int64{2, 0}, false},
		"exponential from 0, infinite": {Exponential(0, math.Inf(1), 0), ms, []int64{0, 0}, false},
		"exponential, overflow":        {Exponential(time.Hour, 1e18, 0), 1, []int64{int64(time.Hour), math.MaxInt64, math.MaxInt64}, false},
		"backoff":                      {Backoff{Initial: ms, Max: 5 * ms, Multiplier: 2}.Schedule(), ms, []int64{1, 2, 4, 5, 5}, false},
		"take":                         {Take(Constant(ms), 2), ms, []int64{1, 1}, true},
		"take none":                    {Take(Constant(ms), -1), ms, nil, true},
		"take of what ends":            {Take(Take(Constant(ms), 1), 5), ms, []int64{1}, true},
		"take until":                   {TakeUntil(Linear(time.Second, time.Second, 0), 9*time.Second), time.Second, []int64{1, 2, 3, 4}, true},
		"take until 0":                 {TakeUntil(Constant(ms), 0), ms, nil, true},
		"concat": {Concat(Take(Constant(1*ms), 1), Concat(Take(Linear(2*ms, ms, 0), 2), Constant(4*ms))), ms,
			[]int64{1, 2, 3, 4, 4, 4}, false},
		"concat of two that end": {Concat(Take(Constant(1*ms), 1), Take(Constant(2*ms), 1)), ms, []int64{1, 2}, true},
		"from a function":        {FromFunc(func(func() float64) time.Duration { return -ms }), ms, []int64{0, 0}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := len(c.want)
			if c.ends {
				n++
			}
			var got []int64
			for _, w := range waits(c.schedule, n, nil) {
				got = append(got, int64(w/c.unit))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestJittered_drawByDraw(t *testing.T) {
	for name, c := range map[string]struct {
		schedule Schedule
		draws    []float64
		want     []int64 // ms
	}{
		"exponential: from [0, 1·2^k), at the limit from [0, limit)": {
			ExponentialJittered(100*ms, 300*ms), []float64{0.5, 0.5, 0.5, 0.25, 0.9}, []int64{50, 100, 150, 75, 270}},
		"exponential, as Finagle: on the last draw, at the limit for ever": {
			ExponentialJitteredCompounding(100*ms, 3000*ms), []float64{0.5, 0.25, 0.5}, []int64{100, 100, 100, 400, 3000, 3000}},
		"equal: half sure, half random, at the limit too": {
			EqualJittered(100*ms, 500*ms), []float64{0.5, 0.25, 0.5, 0, 0.9}, []int64{100, 150, 250, 375, 250}},
		"equal, as Finagle: at the limit for ever": {
			EqualJitteredToLimit(100*ms, 500*ms), []float64{0.5, 0.25, 0.5}, []int64{100, 150, 250, 500, 500}},
		"decorrelated: from [prev, 3·prev)": {
			DecorrelatedJittered(10*ms, 100*ms), []float64{0.5, 0.5, 0.5, 0}, []int64{10, 20, 40, 70}},
		"backoff": {
			Backoff{Initial: 100 * ms, Max: 300 * ms, Multiplier: 2, Jitter: 0.5}.Schedule(), []float64{0.5, 0.5, 0}, []int64{75, 150, 300}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int64
			for _, w := range waits(c.schedule, len(c.want), script(t, c.draws...)) {
				got = append(got, w.Milliseconds())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v ms, want %v", got, c.want)
			}
		})
	}
}

// means averages the first n waits of a schedule over many runs, in units.
func means(s Schedule, n int, unit time.Duration) []float64 {
	rng := rand.New(rand.NewPCG(1, 2))
	const runs = 40000
	out := make([]float64, n)
	for range runs {
		for i, w := range waits(s, n, rng.Float64) {
			out[i] += float64(w) / float64(unit) / runs
		}
	}
	return out
}

func TestJittered_meansOfTheReference(t *testing.T) {
	for name, c := range map[string]struct {
		schedule Schedule
		unit     time.Duration
		want     []float64
	}{
		"exponential": {ExponentialJitteredCompounding(time.Second, 32*time.Second), time.Second,
			[]float64{1, 1, 2, 9.7, 23.8, 30, 31.7, 32}},
		"equal":        {EqualJitteredToLimit(5*time.Second, 300*time.Second), time.Second, []float64{5, 7.5, 15, 30, 60, 120, 239, 300}},
		"decorrelated": {DecorrelatedJittered(5*ms, 200*ms), ms, []float64{5, 10, 20, 40, 77, 121, 156, 177, 188}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, got := range means(c.schedule, len(c.want), c.unit) {
				if math.Abs(got-c.want[i]) > 0.02*c.want[i]+0.05 {
					t.Errorf("mean of wait %d is %.2f, want %.2f", i+1, got, c.want[i])
				}
			}
		})
	}
}

// What ExponentialJittered does better: the share of clients that wait within
// 1 % of each other at the limit, and the mean that follows the curve.
func TestExponentialJittered_keepsItsJitterAtTheLimit(t *testing.T) {
	spread := func(s Schedule) float64 {
		rng := rand.New(rand.NewPCG(3, 4))
		at := map[int64]int{}
		for range 10000 {
			w := waits(s, 12, rng.Float64)
			at[int64(w[11]/(320*ms))]++ // hundredths of the limit
		}
		most := 0
		for _, n := range at {
			most = max(most, n)
		}
		return float64(most) / 10000
	}
	if got := spread(ExponentialJitteredCompounding(time.Second, 32*time.Second)); got < 0.99 {
		t.Errorf("Finagle's: %.3f of the clients come back together, want almost all", got)
	}
	if got := spread(ExponentialJittered(time.Second, 32*time.Second)); got > 0.02 {
		t.Errorf("ours: %.3f of the clients come back together, want 0.01", got)
	}
	for i, got := range means(ExponentialJittered(time.Second, 32*time.Second), 8, time.Second) {
		want := min(math.Pow(2, float64(i)), 32) / 2
		if math.Abs(got-want) > 0.02*want {
			t.Errorf("mean of wait %d is %.2f, want %.2f", i+1, got, want)
		}
	}
}

func FuzzSchedules_stayWithinBounds(f *testing.F) {
	f.Add(int64(time.Second), int64(time.Minute), int64(time.Second), 2.0, uint64(1))
	f.Add(int64(-5), int64(0), int64(math.MaxInt64), math.Inf(1), uint64(2))
	f.Add(int64(math.MaxInt64), int64(3), int64(-1), math.NaN(), uint64(3))
	f.Fuzz(func(t *testing.T, start, limit, offset int64, multiplier float64, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s, l, o := time.Duration(start), time.Duration(limit), time.Duration(offset)
		for i, schedule := range []Schedule{
			Linear(s, o, l), Exponential(s, multiplier, l), ExponentialJittered(s, l), ExponentialJitteredCompounding(s, l),
			EqualJittered(s, l), EqualJitteredToLimit(s, l), DecorrelatedJittered(s, l),
		} {
			list := waits(schedule, 80, rng.Float64)
			if len(list) != 80 {
				t.Fatalf("schedule %d ended", i)
			}
			for k, w := range list {
				if w < 0 || limit > 0 && w > l {
					t.Fatalf("schedule %d: wait %d is %v, limit %v", i, k, w, l)
				}
			}
		}
	})
}
