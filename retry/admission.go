package retry

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// AdmissionConfig says when a client drops requests by itself because the
// servers refuse too many. There are no hidden defaults: start from
// [DefaultAdmission].
type AdmissionConfig struct {
	// Window is the time over which the share of accepted requests is averaged. 1 s
	// to 1 h.
	Window time.Duration
	// Threshold is the share of refused requests from which on requests are
	// dropped. Above 0, below 1.
	Threshold float64
	// MaxDrop is the greatest share of requests to drop. Above 0, below 1: some
	// must go out, to see when the servers accept again.
	MaxDrop float64
	// MinPerSecond is the rate of requests below which none is dropped. 0 or more.
	MinPerSecond int
}

// DefaultAdmission drops when more than half of the requests of about 2 minutes
// were refused, three quarters at most, from 5 requests a second on.
func DefaultAdmission() AdmissionConfig {
	return AdmissionConfig{Window: 2 * time.Minute, Threshold: 0.5, MaxDrop: 0.75, MinPerSecond: 5}
}

// Check returns an error that names the first field out of range, nil when all
// are fine.
func (c AdmissionConfig) Check() error {
	switch {
	case c.Window < time.Second || c.Window > time.Hour:
		return fmt.Errorf("retry: admission window is %v; it must be between 1s and 1h", c.Window)
	case !(c.Threshold > 0 && c.Threshold < 1):
		return fmt.Errorf("retry: admission threshold is %v; it must be above 0 and below 1", c.Threshold)
	case !(c.MaxDrop > 0 && c.MaxDrop < 1):
		return fmt.Errorf("retry: admission max drop is %v; it must be above 0 and below 1", c.MaxDrop)
	case c.MinPerSecond < 0:
		return fmt.Errorf("retry: admission min per second is %d; it must not be negative", c.MinPerSecond)
	}
	return nil
}

// Admission drops requests in the client while servers refuse most of them. It
// is safe for concurrent use; now is the time since some fixed moment.
type Admission struct {
	config AdmissionConfig

	mu     sync.Mutex
	accept float64 // average of 1 per accepted and 0 per refused request
	stamp  time.Duration
	rate   slidingSum // requests of the last second
}

// NewAdmission makes an admission control that starts at now.
func NewAdmission(c AdmissionConfig, now time.Duration) (*Admission, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	a := &Admission{config: c, accept: 1, stamp: now}
	a.rate.slice, a.rate.started = time.Second/budgetSlices, now
	return a, nil
}

// Admit reports whether a request may be sent. random is uniform in [0, 1).
// What it drops is NotRetryable.
func (a *Admission) Admit(now time.Duration, random float64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rate.advance(now)
	a.rate.add(1)
	floor := 1 - a.config.Threshold
	if a.accept >= floor || a.rate.sum() < int64(a.config.MinPerSecond) {
		return true
	}
	return random >= min(a.config.MaxDrop, 1-a.accept/floor)
}

// Answered records the answer to a request that was sent; refused tells that it
// was a NACK.
func (a *Admission) Answered(now time.Duration, refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rate.advance(now)
	value := 1.0
	if refused && a.rate.sum() >= int64(a.config.MinPerSecond) {
		value = 0
	}
	passed := max(now-a.stamp, 0)
	a.stamp = max(a.stamp, now)
	w := math.Exp(-float64(passed) / float64(a.config.Window))
	a.accept = value*(1-w) + a.accept*w
}

// Accepted returns the average share of accepted requests.
func (a *Admission) Accepted() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.accept
}
