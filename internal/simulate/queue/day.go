package queue

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/switchyard-dev/switchyard/matching/scaling"
)

// Day is a queue whose load changes, with managed partition counts.
type Day struct {
	// Length of it all. The load goes from Low to High tasks per second and back like
	// a day, with a spike of Spike times the load for SpikeTime in the middle.
	Length    time.Duration
	Low, High float64
	Spike     float64
	SpikeTime time.Duration
	// Capacity is how many tasks per second one partition can take and hand out.
	Capacity float64
	// Noise is the spread of the load around that, as a share.
	Noise float64
	// Settings of the scaling.
	Settings scaling.Settings
}

// DefaultDay is the usual one: with the default rules, from less than one partition's
// load to that of 40.
func DefaultDay() Day {
	return Day{
		Length: 24 * time.Hour, Low: 800, High: 60_000, Spike: 1.5, SpikeTime: 10 * time.Minute, Capacity: 5000, Noise: 0.05,
		Settings: scaling.Settings{Mode: scaling.On, Configured: 4, Max: 128},
	}
}

// Check says what is wrong with a day.
func (d Day) Check() error {
	switch {
	case d.Length < time.Minute || d.Length > 7*24*time.Hour:
		return fmt.Errorf("a day must be between 1m and 168h, not %v", d.Length)
	case !(d.Low >= 0 && d.High >= d.Low && d.High <= 1e7):
		return fmt.Errorf("the load must go from 0 or more up to at most 10,000,000 tasks/s, not from %v to %v", d.Low, d.High)
	case !(d.Capacity > 0):
		return fmt.Errorf("a partition's capacity must be above 0, not %v", d.Capacity)
	}
	return d.Settings.Check()
}

// load is the mean load at a moment.
func (d Day) load(at time.Duration) float64 {
	x := float64(at) / float64(d.Length)
	l := d.Low + (d.High-d.Low)*(1-math.Cos(2*math.Pi*x))/2
	if from := d.Length / 2; at >= from && at < from+d.SpikeTime {
		l *= d.Spike
	}
	return l
}

// DayResult is what happened.
type DayResult struct {
	// Step is the time between two samples.
	Step                time.Duration
	Load                []float64 // tasks per second, the mean of the step
	Read, Write, Target []float64
	Backlog             []float64 // at the end of the step
	// Added tasks, how many of them were handed out, and the changes of the counts.
	Added, Done int64
	Changes     int
	// MostWrite is the highest write count, and LastRead the count at the end.
	MostWrite, LastRead int32
	// Behind is for how long in all partitions got more than they can take.
	Behind time.Duration
	// Stranded is how many tasks were left where nobody polls; always 0.
	Stranded int64
}

// daySteps is how many samples a day has.
const daySteps = 480

const dayTick = 200 * time.Millisecond

// RunDay lets a queue live through a day. The same seed gives the same result.
func RunDay(ctx context.Context, d Day, seed uint64) (*DayResult, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	start := int64(time.Hour)
	m, err := scaling.New(d.Settings, nil, start, rng.Uint64())
	if err != nil {
		return nil, err
	}
	set := d.Settings.WithDefaults()
	var backlog [scaling.MaxPartitions]float64
	r := &DayResult{Step: d.Length / daySteps}
	read, write := set.ConfiguredRead, set.Configured
	propose := func(now int64) {
		p := m.Propose(now, now)
		if p == nil {
			return
		}
		m.Commit(now, p)
		r.Changes++
		if read, write = p.After.Read, p.After.Write; !p.After.Managed() {
			read, write = set.ConfiguredRead, set.Configured
		}
		r.MostWrite = max(r.MostWrite, write)
	}
	next, added, ticks := r.Step, 0.0, 0.0
	seconds := dayTick.Seconds()
	for at := time.Duration(0); at < d.Length; at += dayTick {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		now := start + int64(at)
		load := max(d.load(at)*(1+d.Noise*rng.NormFloat64()), 0)
		mean := load * seconds / float64(write)
		behind := false
		for p := range read {
			n := 0.0
			if p < write {
				n = poisson(rng, mean)
			}
			r.Added += int64(n)
			added += n
			served := min(backlog[p]+n, d.Capacity*seconds)
			backlog[p] += n - served
			r.Done += int64(served)
			behind = behind || backlog[p] > d.Capacity*seconds
			if p == 0 {
				m.Observe(now, int(n))
			}
		}
		if behind {
			r.Behind += dayTick
		}
		if due, ok := m.Wake(); ok && now >= due {
			c := m.Counts()
			for p := range m.Round(now, rng.Uint64()) {
				empty := backlog[p] < 1
				m.Answer(now, scaling.Report{Partition: p, Read: c.Read, Write: c.Write, Version: c.Version, Empty: empty, Backlog: int64(backlog[p])})
			}
		}
		propose(now)
		ticks++
		if at+dayTick >= next {
			sum := 0.0
			for p := range read {
				sum += backlog[p]
			}
			target, _, _ := m.Targets()
			r.Load = append(r.Load, added/(ticks*seconds))
			r.Read, r.Write, r.Target = append(r.Read, float64(read)), append(r.Write, float64(write)), append(r.Target, float64(target))
			r.Backlog = append(r.Backlog, sum)
			added, ticks, next = 0, 0, next+r.Step
		}
	}
	for _, n := range backlog[read:] {
		r.Stranded += int64(n)
	}
	r.LastRead = read
	return r, nil
}

// poisson rolls a number of events with that mean; the normal distribution stands in
// for it when the mean is large.
func poisson(rng *rand.Rand, mean float64) float64 {
	if mean > 50 {
		return math.Max(0, math.Round(mean+math.Sqrt(mean)*rng.NormFloat64()))
	}
	limit, p, n := math.Exp(-mean), 1.0, -1.0
	for p > limit {
		p *= rng.Float64()
		n++
	}
	return n
}
