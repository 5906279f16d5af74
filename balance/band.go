package balance

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// band watches how many requests a client has outstanding and sizes its aperture,
// so that the average endpoint in it has between low and high.
//
// The load is sampled now and then instead of at every request: a sample adds up
// all nodes, and nothing is shared by requests meanwhile.
type band struct {
	low, high float64
	window    time.Duration // 0: the load of this moment, sampled at every change
	min       int

	next atomic.Int64 // no sample before
	size atomic.Int64 // random aperture: how many endpoints
	// extra is how many laps of the ring the deterministic aperture takes beyond
	// those that its minimum needs.
	extra atomic.Int64

	mu      sync.Mutex
	ema     float64
	last    time.Duration
	started bool
}

// samplesPerWindow is how often the load is looked at.
const samplesPerWindow = 100

func newBand(a Aperture) *band {
	d := &band{low: a.Low, high: a.High, window: a.Smooth, min: max(a.Min, 1)}
	d.size.Store(int64(d.min))
	return d
}

// sample is called at changes of the load. own is subtracted from it: a sample
// taken at the start of a request sees that one always, one at the end never.
func (d *band) sample(b *Balancer, now time.Duration, own float64) {
	if d.window > 0 {
		if int64(now) < d.next.Load() || !d.mu.TryLock() {
			return
		}
		d.next.Store(int64(now + max(d.window/samplesPerWindow, time.Millisecond)))
	} else {
		d.mu.Lock()
		own = 0
	}
	total := 0
	nodes := *b.all.Load()
	for _, n := range nodes {
		total += n.Load()
	}
	load := math.Max(float64(total)-own, 0)
	switch {
	case d.window == 0:
		d.ema = load
	case !d.started:
		d.started, d.last = true, now
	case now > d.last:
		w := math.Exp(-float64(now-d.last) / float64(d.window))
		d.ema = load*(1-w) + d.ema*w
		d.last = now
	}
	rebuild := false
	switch dist := (*b.dist.Load()).(type) {
	case *window:
		d.resize(b, int64(len(nodes)))
	case *ring:
		rebuild = d.relap(b, dist)
	}
	d.mu.Unlock()
	if rebuild {
		b.dirty.Store(true)
		b.settle()
	}
}

func (d *band) average() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ema
}

// resize widens or narrows the random aperture. It does not narrow where it would
// have to widen again: with few endpoints one more or less is more than the band.
func (d *band) resize(b *Balancer, n int64) {
	least := min(int64(d.min), n)
	k := d.size.Load()
	for {
		switch avg := d.ema / float64(k); {
		case avg >= d.high && k < n:
			k++
			b.count.widened.Add(1)
		case avg <= d.low && k > least && d.ema/float64(k-1) < d.high:
			k--
			b.count.narrowed.Add(1)
		default:
			d.size.Store(k)
			return
		}
		if d.window == 0 { // there will be another sample soon enough
			d.size.Store(k)
			return
		}
	}
}

// clamp keeps the size within what the set allows.
func (d *band) clamp(n int, forget bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.size.Load()
	if forget {
		k = 1
	}
	d.size.Store(max(1, min(max(k, int64(d.min)), int64(n))))
}

// relap decides how many laps the deterministic aperture takes. Laps come in coarse
// steps, so a lap is given up only if the load stays low without it.
func (d *band) relap(b *Balancer, r *ring) bool {
	if a := b.config.Policy.(Aperture); a.Fixed || r.total == 0 {
		return false
	}
	extra := d.extra.Load()
	size := func(extra int64) float64 {
		return float64(r.n) * math.Min(1, float64(int64(r.least)+extra)/float64(r.total))
	}
	before := extra
	for size(extra) < float64(r.n) && d.ema/size(extra) >= d.high {
		extra++
		b.count.widened.Add(1)
	}
	for extra > 0 && d.ema/size(extra-1) <= d.low {
		extra--
		b.count.narrowed.Add(1)
	}
	d.extra.Store(extra)
	return extra != before
}
