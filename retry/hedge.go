package retry

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// HedgeConfig says when a backup request is sent: a second attempt while the
// first is still under way. Only for idempotent requests.
type HedgeConfig struct {
	// MaxExtraLoad is the share of requests that may have a backup, above 0, below
	// 1. A backup is sent when a request takes longer than all but this share.
	MaxExtraLoad float64
	// MinDelay is the shortest time before a backup; 0 means 1 ms.
	MinDelay time.Duration
	// MaxDelay is the latency from which on backups are not worth it: none is sent
	// while the percentile is as long; 0 means 2 s.
	MaxDelay time.Duration
	// Refresh is how often the delay is computed; 0 means 3 s.
	Refresh time.Duration
	// Window is how long latencies are collected before a new window begins; three
	// count. 0 means 10 s.
	Window time.Duration
	// MinSamples is how many latencies must be known before the first backup; 0
	// means as many as it takes for MaxExtraLoad of them to be one, at least 20.
	MinSamples int
	// BlindStart makes the delay MinDelay between Refresh and Window after the
	// start, when no window has ended yet, as in Finagle: only the budget
	// limits backups then.
	BlindStart bool
}

func (c HedgeConfig) withDefaults() HedgeConfig {
	if c.MinDelay == 0 {
		c.MinDelay = time.Millisecond
	}
	if c.MaxDelay == 0 {
		c.MaxDelay = 2 * time.Second
	}
	if c.Refresh == 0 {
		c.Refresh = 3 * time.Second
	}
	if c.Window == 0 {
		c.Window = 10 * time.Second
	}
	if c.MinSamples == 0 {
		c.MinSamples = max(20, int(min(math.Ceil(1/c.MaxExtraLoad), math.MaxInt32)))
	}
	return c
}

// Check returns an error that names the first field out of range, nil when all
// are fine.
func (c HedgeConfig) Check() error {
	if !(c.MaxExtraLoad > 0 && c.MaxExtraLoad < 1) {
		return fmt.Errorf("retry: hedge max extra load is %v; it must be above 0 and below 1", c.MaxExtraLoad)
	}
	c = c.withDefaults()
	switch {
	case c.MinDelay < 0:
		return fmt.Errorf("retry: hedge min delay is %v; it must not be negative", c.MinDelay)
	case c.MaxDelay <= c.MinDelay:
		return fmt.Errorf("retry: hedge max delay is %v; it must be more than min delay %v", c.MaxDelay, c.MinDelay)
	case c.Refresh < time.Millisecond || c.Refresh > time.Hour:
		return fmt.Errorf("retry: hedge refresh is %v; it must be between 1ms and 1h", c.Refresh)
	case c.Window < time.Millisecond || c.Window > time.Hour:
		return fmt.Errorf("retry: hedge window is %v; it must be between 1ms and 1h", c.Window)
	case c.MinSamples < 0:
		return fmt.Errorf("retry: hedge min samples is %d; it must not be negative", c.MinSamples)
	}
	return nil
}

// NoHedge is the delay of a backup that is not sent.
const NoHedge time.Duration = math.MaxInt64

// Hedger decides when a request gets a backup. It is safe for concurrent use;
// now is the time since some fixed moment.
type Hedger struct {
	config  HedgeConfig
	own     *Budget
	client  *Budget
	latency *Digest
	delay   atomic.Int64
	next    atomic.Int64 // when the delay is computed again
	learned atomic.Bool  // the delay rests on samples
}

// NewHedger makes a hedger that starts at now. Backups draw on a budget of their
// own, which allows MaxExtraLoad, and on the client's budget, which the retries
// draw on too; nil means that the latter does not matter.
func NewHedger(c HedgeConfig, client *Budget, now time.Duration) (*Hedger, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	if client == nil {
		client = InfiniteBudget()
	}
	own, err := NewBudget(BudgetConfig{TTL: 10 * time.Second, Share: c.MaxExtraLoad})
	if err != nil {
		return nil, err
	}
	latency, err := NewDigest(c.Window)
	if err != nil {
		return nil, err
	}
	latency.started = now
	h := &Hedger{config: c, own: own, client: client, latency: latency}
	h.delay.Store(int64(NoHedge))
	h.next.Store(int64(now + c.Refresh))
	return h, nil
}

// Begin starts a request and returns how long after now its backup is due, or
// NoHedge.
func (h *Hedger) Begin(now time.Duration) time.Duration {
	h.own.Deposit(now)
	h.refresh(now)
	return time.Duration(h.delay.Load())
}

// Delay returns how long a request that starts now waits for its backup.
func (h *Hedger) Delay() time.Duration { return time.Duration(h.delay.Load()) }

// refresh computes the delay when it is due.
func (h *Hedger) refresh(now time.Duration) {
	next := h.next.Load()
	if int64(now) < next || !h.next.CompareAndSwap(next, int64(now+h.config.Refresh)) {
		return
	}
	q := 1 - h.config.MaxExtraLoad
	delay, known := h.latency.Quantile(now, q, !h.config.BlindStart)
	switch {
	case !h.config.BlindStart && known < h.config.MinSamples:
		// Too few: what was learned before stays. A client that had a quiet half
		// minute is not a new one.
		return
	case digestCell(delay) >= digestCell(h.config.MaxDelay):
		delay = NoHedge
	default:
		delay = max(delay, h.config.MinDelay)
	}
	h.learned.Store(true)
	h.delay.Store(int64(delay))
}

// Send reports whether a backup may be sent now, and pays for it.
func (h *Hedger) Send(now time.Duration) bool {
	if !h.own.Withdraw(now) {
		return false
	}
	if !h.client.Withdraw(now) {
		h.own.Return(now)
		return false
	}
	return true
}

// Record adds the latency of an attempt: of successes, of timeouts, and of those
// that were given up because another had answered. Other failures are left out,
// so that quick ones do not draw the delay down.
func (h *Hedger) Record(now, latency time.Duration) {
	h.latency.Record(now, min(latency, h.config.MaxDelay))
	if !h.config.BlindStart && !h.learned.Load() && h.latency.Count(now, true) >= h.config.MinSamples {
		// The first delay is due as soon as enough is known.
		h.next.Store(int64(now))
	}
}
