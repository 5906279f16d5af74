package retry

import (
	"math"
	"time"
)

// Schedule is a sequence of waits, with or without an end. Values are immutable
// and safe for concurrent use: Next returns what follows and changes nothing.
type Schedule interface {
	// Next returns the first wait of the sequence, never negative, and the
	// sequence after it; ok is false when the sequence has ended. draw returns
	// uniform random numbers in [0, 1); it is called only by jittered schedules
	// and may be nil for the others.
	Next(draw func() float64) (wait time.Duration, rest Schedule, ok bool)
}

// Unlimited as a schedule's longest wait means that only time.Duration's own
// range bounds it.
const Unlimited time.Duration = math.MaxInt64

// ceiling reads a longest wait: nothing, or less, means Unlimited.
func ceiling(limit time.Duration) time.Duration {
	if limit <= 0 {
		return Unlimited
	}
	return limit
}

type constant time.Duration

// Constant waits d before each attempt, for ever. A negative d counts as 0.
func Constant(d time.Duration) Schedule { return constant(max(d, 0)) }

func (c constant) Next(func() float64) (time.Duration, Schedule, bool) {
	return time.Duration(c), c, true
}

type linear struct{ next, offset, limit time.Duration }

// Linear waits start, start+offset, start+2·offset …, but never longer than
// limit; a limit of 0 means Unlimited. Negative values count as 0.
func Linear(start, offset, limit time.Duration) Schedule {
	limit = ceiling(limit)
	return linear{min(max(start, 0), limit), max(offset, 0), limit}
}

func (l linear) Next(func() float64) (time.Duration, Schedule, bool) {
	wait := l.next
	if l.limit-l.next > l.offset {
		l.next += l.offset
	} else {
		l.next = l.limit
	}
	return wait, l, true
}

type exponential struct {
	next       time.Duration
	multiplier float64
	limit      time.Duration
}

// Exponential waits start, then each time multiplier times the wait before, but
// never longer than limit; a limit of 0 means Unlimited. A multiplier of 0
// makes all waits after the first 0; negative values and NaN count as 0.
func Exponential(start time.Duration, multiplier float64, limit time.Duration) Schedule {
	limit = ceiling(limit)
	if !(multiplier > 0) {
		multiplier = 0
	}
	return exponential{min(max(start, 0), limit), multiplier, limit}
}

func (e exponential) Next(func() float64) (time.Duration, Schedule, bool) {
	wait := e.next
	if wait > 0 { // 0 times an infinite multiplier would be NaN
		e.next = min(duration(float64(wait)*e.multiplier), e.limit)
	}
	return wait, e, true
}

type backoffSchedule struct {
	backoff Backoff
	attempt int
}

// Schedule returns the waits that Delay computes for attempts 1, 2, 3 …
func (b Backoff) Schedule() Schedule { return backoffSchedule{b, 1} }

func (b backoffSchedule) Next(draw func() float64) (time.Duration, Schedule, bool) {
	random := 0.0
	if b.backoff.Jitter > 0 {
		random = draw()
	}
	wait := b.backoff.Delay(b.attempt, random)
	if b.attempt < math.MaxInt {
		b.attempt++
	}
	return wait, b, true
}

type take struct {
	of   Schedule
	left int
}

// Take ends s after n waits.
func Take(s Schedule, n int) Schedule { return take{s, n} }

func (t take) Next(draw func() float64) (time.Duration, Schedule, bool) {
	if t.left <= 0 {
		return 0, t, false
	}
	wait, rest, ok := t.of.Next(draw)
	return wait, take{rest, t.left - 1}, ok
}

type takeUntil struct {
	of   Schedule
	left time.Duration
}

// TakeUntil ends s as soon as its waits sum up to total. A wait begins while
// the sum is less, so the last one may lead beyond total: 1 s, 2 s, 3 s, 4 s …
// until 9 s ends after 10 s.
func TakeUntil(s Schedule, total time.Duration) Schedule { return takeUntil{s, total} }

func (t takeUntil) Next(draw func() float64) (time.Duration, Schedule, bool) {
	if t.left <= 0 {
		return 0, t, false
	}
	wait, rest, ok := t.of.Next(draw)
	return wait, takeUntil{rest, t.left - wait}, ok
}

type concat struct{ first, second Schedule }

// Concat waits as first says, and as second says once first has ended.
func Concat(first, second Schedule) Schedule { return concat{first, second} }

func (c concat) Next(draw func() float64) (time.Duration, Schedule, bool) {
	wait, rest, ok := c.first.Next(draw)
	if !ok {
		return c.second.Next(draw)
	}
	return wait, concat{rest, c.second}, true
}

// FromFunc asks f for each wait, for ever. f is handed the source of random
// numbers and must be safe for concurrent use if the schedule is; negative
// results count as 0.
func FromFunc(f func(draw func() float64) time.Duration) Schedule { return fromFunc(f) }

type fromFunc func(draw func() float64) time.Duration

func (f fromFunc) Next(draw func() float64) (time.Duration, Schedule, bool) {
	return max(f(draw), 0), f, true
}
