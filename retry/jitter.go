package retry

import "time"

// uniform draws from [0, width).
func uniform(width time.Duration, draw func() float64) time.Duration {
	if width <= 0 {
		return 0
	}
	return min(time.Duration(float64(width)*draw()), width-1)
}

// shifted is d·2^k, at most limit.
func shifted(d time.Duration, k uint, limit time.Duration) time.Duration {
	if k > 62 || d > limit>>k {
		return limit
	}
	return d << k
}

type fullJitter struct {
	start, limit time.Duration
	k            uint
}

// ExponentialJittered draws the n-th wait, n from 1, from [0, start·2^(n-1)),
// and from [0, limit) once that is less. Every wait is random, the first and
// those at the limit too, so that clients which failed together do not come
// back together. A limit of 0 means Unlimited.
//
// [ExponentialJitteredCompounding] is how Finagle does it.
func ExponentialJittered(start, limit time.Duration) Schedule {
	return fullJitter{max(start, 0), ceiling(limit), 0}
}

func (f fullJitter) Next(draw func() float64) (time.Duration, Schedule, bool) {
	wait := uniform(shifted(f.start, f.k, f.limit), draw)
	f.k = min(f.k+1, 63)
	return wait, f, true
}

type compounding struct {
	prev, limit time.Duration
	k           uint
}

// ExponentialJitteredCompounding waits start, then draws the n-th wait after it
// from [0, prev·2^n), prev being the last wait drawn; as soon as prev·2^n
// reaches limit it waits limit for ever, without jitter. It is kept to compare
// with Finagle: one small draw makes all later waits small, and at the
// limit all clients wait the same. Use [ExponentialJittered].
func ExponentialJitteredCompounding(start, limit time.Duration) Schedule {
	limit = ceiling(limit)
	return compounding{min(max(start, 0), limit), limit, 1}
}

func (c compounding) Next(draw func() float64) (time.Duration, Schedule, bool) {
	wait := c.prev
	width := shifted(c.prev, c.k, c.limit)
	if width >= c.limit {
		return wait, constant(c.limit), true
	}
	c.prev = uniform(width, draw)
	c.k++
	return wait, c, true
}

type equalJitter struct {
	next, start, limit time.Duration
	k                  uint
	stuck              bool
}

// EqualJittered waits start, then draws the n-th wait after it from [h, 2·h)
// with h = start·2^(n-1): half is sure, half is random. At the limit it draws
// from [limit/2, limit). A limit of 0 means Unlimited.
func EqualJittered(start, limit time.Duration) Schedule {
	limit = ceiling(limit)
	start = max(start, 0)
	return equalJitter{next: min(start, limit), start: start, limit: limit}
}

// EqualJitteredToLimit is [EqualJittered] as Finagle does it: once a wait
// reaches limit, all that follow are limit, without jitter.
func EqualJitteredToLimit(start, limit time.Duration) Schedule {
	e := EqualJittered(start, limit).(equalJitter)
	e.stuck = true
	return e
}

func (e equalJitter) Next(draw func() float64) (time.Duration, Schedule, bool) {
	wait := e.next
	half := shifted(e.start, e.k, e.limit)
	e.k = min(e.k+1, 63)
	switch {
	case e.stuck:
		if half >= e.limit {
			return wait, constant(e.limit), true
		}
		random := uniform(half, draw)
		if half >= e.limit-random {
			return wait, constant(e.limit), true
		}
		e.next = half + random
	case half >= e.limit-half:
		half = e.limit / 2
		e.next = half + uniform(e.limit-half, draw)
	default:
		e.next = half + uniform(half, draw)
	}
	return wait, e, true
}

type decorrelated struct{ prev, limit time.Duration }

// DecorrelatedJittered waits start, then draws each wait from [prev, 3·prev),
// prev being the wait before, with limit as the upper end once that is less.
// Waits never shrink and tend to limit. A limit of 0 means Unlimited.
func DecorrelatedJittered(start, limit time.Duration) Schedule {
	limit = ceiling(limit)
	return decorrelated{min(max(start, 0), limit), limit}
}

func (d decorrelated) Next(draw func() float64) (time.Duration, Schedule, bool) {
	wait := d.prev
	top := d.limit
	if d.prev < d.limit/3 {
		top = 3 * d.prev
	}
	d.prev += uniform(top-d.prev, draw)
	return wait, d, true
}
