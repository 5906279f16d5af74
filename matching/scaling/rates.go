package scaling

import (
	"math"
	"time"
)

// buckets is into how many parts a window is divided.
const buckets = 10

// window counts events over a length of time, in ten closed buckets and an open one.
type window struct {
	length  time.Duration
	since   int64 // when counting began
	open    int64 // number of the open bucket; bucket i begins at i × length/10
	counts  [buckets + 1]float64
	started bool
}

func (w *window) step() int64 { return int64(w.length) / buckets }

// add counts n events at now. Time that went back counts as no time.
func (w *window) add(now int64, n float64) {
	w.turn(now)
	w.counts[mod(w.open)] += n
}

func (w *window) turn(now int64) {
	b := floorDiv(now, w.step())
	if !w.started {
		w.started, w.open, w.since = true, b, now
		return
	}
	for n := 0; w.open < b; n++ {
		if n > buckets { // all are empty by now
			w.open = b
			break
		}
		w.open++
		w.counts[mod(w.open)] = 0
	}
}

// rate is the mean per second over the closed buckets; not ok until the whole window
// has been observed.
func (w *window) rate(now int64) (perSecond float64, ok bool) {
	if !w.started {
		return 0, false
	}
	w.turn(now)
	if (w.open-buckets)*w.step() < w.since {
		return 0, false
	}
	sum := 0.0
	for i, n := range w.counts {
		if i != mod(w.open) {
			sum += n
		}
	}
	return sum / (float64(buckets*w.step()) / 1e9), true
}

func mod(b int64) int { return int((b%(buckets+1) + buckets + 1) % (buckets + 1)) }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// rates follows the rate of adds for each rule.
type rates struct {
	up, down []Rule
	windows  []*window // by length
}

func (r *rates) init(up, down []Rule, now int64) {
	old := r.windows
	*r = rates{up: up, down: down}
	for _, rule := range append(append([]Rule{}, up...), down...) {
		if r.find(rule.Window) != nil {
			continue
		}
		var w *window
		for _, o := range old { // what was observed stays
			if o.length == rule.Window {
				w = o
			}
		}
		if w == nil {
			w = &window{length: rule.Window}
			w.turn(now)
		}
		r.windows = append(r.windows, w)
	}
}

func (r *rates) find(length time.Duration) *window {
	for _, w := range r.windows {
		if w.length == length {
			return w
		}
	}
	return nil
}

func (r *rates) add(now int64, n float64) {
	for _, w := range r.windows {
		w.add(now, n)
	}
}

// decide moves base to where the rules want it. A rule that lowers it is looked at
// only when every window has been observed in full, and one that raises it when its
// own has; what raises it wins.
func (r *rates) decide(now int64, base int32) int32 {
	all := true
	for _, w := range r.windows {
		_, ok := w.rate(now)
		all = all && ok
	}
	if all {
		for _, rule := range r.down {
			rate, _ := r.find(rule.Window).rate(now)
			base = min(base, max(1, partitionsFor(rate, rule.Rate)))
		}
	}
	for _, rule := range r.up {
		if rate, ok := r.find(rule.Window).rate(now); ok {
			base = max(base, partitionsFor(rate, rule.Rate))
		}
	}
	return base
}

func partitionsFor(rate, each float64) int32 {
	return int32(math.Min(math.Round(rate/each), MaxPartitions))
}
