package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// result of a run. Without load, moved and known alone are there.
type result struct {
	moved                 time.Duration // from the beginning until all buckets are where they belong
	known                 time.Duration // and from then until the router knows it
	capacity              float64       // writes per second
	before, during, after window
	figures               figures
}

// figures are what is printed of the windows.
type figures struct {
	rates   [3]float64
	p50s    [3]time.Duration
	p999s   [3]time.Duration
	longest time.Duration
	failed  int
}

func (r *result) work() {
	if r.capacity == 0 || r.figures.rates[0] != 0 {
		return
	}
	for i, w := range []window{r.before, r.during, r.after} {
		r.figures.rates[i], r.figures.p50s[i], r.figures.p999s[i] = w.rate(), w.quantile(0.5), w.quantile(0.999)
		r.figures.failed += w.failed + w.lost
	}
	r.figures.longest = r.during.quantile(1)
}

func (r *result) head() string {
	head := "| run | moved in | known to routers after |"
	line := "|---|---|---|"
	if r.capacity > 0 {
		head += " capacity /s | writes/s before, during, after | change | p50 ms | p99.9 ms before, during, after | factor | longest during | failed |"
		line += "---|---|---|---|---|---|---|---|"
	}
	return head + "\n" + line + "\n"
}

func (r *result) row(name string) string {
	r.work()
	out := fmt.Sprintf("| %s | %.3f s | %.3f s |", name, r.moved.Seconds(), r.known.Seconds())
	if r.capacity > 0 {
		f := r.figures
		out += fmt.Sprintf(" %.0f | %.0f, %.0f, %.0f | %+.1f %% | %s, %s, %s | %s, %s, %s | %.2f | %s ms | %d |",
			r.capacity, f.rates[0], f.rates[1], f.rates[2], (f.rates[1]/f.rates[0]-1)*100,
			ms(f.p50s[0]), ms(f.p50s[1]), ms(f.p50s[2]), ms(f.p999s[0]), ms(f.p999s[1]), ms(f.p999s[2]),
			float64(f.p999s[1])/float64(f.p999s[0]), ms(f.longest), f.failed)
	}
	return out + "\n"
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e6) }

// median is that of each figure by itself.
func median(all []result) *result {
	m := &result{
		moved: middle(all, func(r result) time.Duration { return r.moved }),
		known: middle(all, func(r result) time.Duration { return r.known }),
	}
	m.capacity = middle(all, func(r result) float64 { return r.capacity })
	for i := range 3 {
		m.figures.rates[i] = middle(all, func(r result) float64 { return r.figures.rates[i] })
		m.figures.p50s[i] = middle(all, func(r result) time.Duration { return r.figures.p50s[i] })
		m.figures.p999s[i] = middle(all, func(r result) time.Duration { return r.figures.p999s[i] })
	}
	m.figures.longest = middle(all, func(r result) time.Duration { return r.figures.longest })
	m.figures.failed = middle(all, func(r result) int { return r.figures.failed })
	return m
}

func middle[T cmp.Ordered](all []result, of func(result) T) T {
	values := make([]T, len(all))
	for i, r := range all {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
