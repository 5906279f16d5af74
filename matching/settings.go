package matching

import (
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// settings are a queue's configuration with all defaults filled in.
type settings struct {
	leaseTime   time.Duration
	maxAttempts int32
	retry       retryPolicy
	timeToLive  time.Duration // 0: for ever
	paused      bool
	fairness
}

// What holds when neither the task nor its queue says otherwise.
const (
	DefaultLeaseTime      = 30 * time.Second
	DefaultMaxAttempts    = 25
	DefaultInitialBackoff = time.Second
	DefaultMaxBackoff     = time.Hour
	DefaultMultiplier     = 2.0
	DefaultJitter         = 0.25
)

func settingsOf(q *v1.Queue) settings {
	c := q.GetConfig()
	s := settings{
		leaseTime: DefaultLeaseTime, maxAttempts: DefaultMaxAttempts, paused: q.GetPaused(),
		retry: retryPolicy{DefaultInitialBackoff, DefaultMaxBackoff, DefaultMultiplier, DefaultJitter},
	}
	if d := c.GetLeaseTime().AsDuration(); d > 0 {
		s.leaseTime = d
	}
	if n := c.GetMaxAttempts(); n > 0 {
		s.maxAttempts = n
	}
	s.timeToLive = c.GetTimeToLive().AsDuration()
	if r := c.GetRetry(); r != nil {
		p := retryOf(r)
		s.retry = p.over(s.retry)
	}
	return s
}
