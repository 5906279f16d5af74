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

func settingsOf(q *v1.StoredQueue) settings {
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
	s.fairness = fairnessOf(c)
	if r := c.GetRetry(); r != nil {
		p := retryOf(r)
		s.retry = p.over(s.retry)
	}
	return s
}

func fairnessOf(c *v1.QueueConfig) fairness {
	f := fairness{}
	if c == nil {
		return f
	}
	f.limit, f.keyLimit = c.RateLimit, c.KeyRateLimit
	if len(c.GetFairnessKeys()) > 0 {
		f.keys = make(map[string]keySetting, len(c.GetFairnessKeys()))
		for _, k := range c.GetFairnessKeys() {
			set := keySetting{limit: k.RateLimit}
			if w := k.GetWeight(); w > 0 {
				set.weight = max(w, minWeight)
			}
			f.keys[k.GetKey()] = set
		}
	}
	return f
}
