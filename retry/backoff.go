package retry

import (
	"fmt"
	"math"
	"time"
)

// Backoff is an exponential backoff with jitter. The wait after the n-th failed
// attempt, n from 1, is
//
//	b = min(Initial * Multiplier^(n-1), Max)
//	wait uniform in [b * (1 - Jitter), b]
//
// The zero value always waits 0. Values are safe for concurrent use as long as
// nobody changes their fields.
type Backoff struct {
	// Initial is the wait after the first failure, without jitter. 0 or more.
	Initial time.Duration
	// Max bounds the wait. 0 means no bound other than time.Duration's own.
	Max time.Duration
	// Multiplier is what each further failure multiplies the wait with, 1 or
	// more. Smaller values, and NaN, count as 1: a wait never shrinks.
	Multiplier float64
	// Jitter is the share of the wait that is random, 0 to 1. With 1 the wait is
	// anything from 0 to b.
	Jitter float64
}

// Delay returns the wait after the failure of the given attempt, 1 for the
// first; smaller numbers count as 1. random is a uniform number in [0, 1) that
// decides the jitter: 0 gives the longest wait.
//
// The result is never negative and never more than Max.
func (b Backoff) Delay(attempt int, random float64) time.Duration {
	wait := b.base(attempt)
	if b.Jitter > 0 && random > 0 {
		wait -= wait * min(b.Jitter, 1) * min(random, 1)
	}
	return duration(wait)
}

// Base returns the wait after the failure of the given attempt without jitter:
// the longest that Delay returns.
func (b Backoff) Base(attempt int) time.Duration { return duration(b.base(attempt)) }

func (b Backoff) base(attempt int) float64 {
	wait := float64(max(b.Initial, 0))
	if attempt > 1 && b.Multiplier > 1 {
		// math.Pow reaches +Inf for large attempts, which the bounds below cut; 0
		// times that would be NaN.
		if wait > 0 {
			wait *= math.Pow(b.Multiplier, float64(attempt-1))
		}
	}
	if b.Max > 0 {
		wait = min(wait, float64(b.Max))
	}
	return min(wait, math.MaxInt64)
}

// duration converts nanoseconds, cut to what a time.Duration can hold.
func duration(ns float64) time.Duration {
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

// Check returns an error that names the first field out of range, nil when all
// are fine.
func (b Backoff) Check() error {
	switch {
	case b.Initial < 0:
		return fmt.Errorf("retry: initial backoff is %v; it must not be negative", b.Initial)
	case b.Max < 0:
		return fmt.Errorf("retry: max backoff is %v; it must not be negative", b.Max)
	case b.Max > 0 && b.Initial > b.Max:
		return fmt.Errorf("retry: initial backoff %v is more than max backoff %v", b.Initial, b.Max)
	case !(b.Multiplier >= 1) || math.IsInf(b.Multiplier, 0):
		return fmt.Errorf("retry: multiplier is %v; it must be a number of at least 1", b.Multiplier)
	case !(b.Jitter >= 0 && b.Jitter <= 1):
		return fmt.Errorf("retry: jitter is %v; it must be between 0 and 1", b.Jitter)
	}
	return nil
}
