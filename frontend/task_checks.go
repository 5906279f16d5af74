package frontend

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// minBackoff is the shortest backoff of a retry policy.
const minBackoff = time.Millisecond

// maxMultiplier is the largest multiplier of a retry policy.
const maxMultiplier = 1000

// itemOverhead is what a task costs in a request beyond its own bytes.
const itemOverhead = 64

// checkTask checks one task and puts its id into lower case. A right task costs
// no allocation.
func (l *Limits) checkTask(t *v1.TaskSpec, now time.Time) error {
	if t == nil {
		return invalid(reason.InvalidRequest, "tasks", "the task is missing")
	}
	if t.Id != "" { // the hot case by hand: a right id is not touched
		if ok, upper := parseID(t.Id); !ok || upper {
			if err := checkID("id", &t.Id); err != nil {
				return err
			}
		}
	}
	if len(t.Payload) > l.PayloadBytes {
		return tooLarge(reason.PayloadTooLarge, "payload", l.PayloadBytes,
			"the payload is %d bytes; at most %d are allowed, keep large data elsewhere and send its address", len(t.Payload), l.PayloadBytes)
	}
	if err := l.checkKind(t.Kind); err != nil {
		return err
	}
	if len(t.Headers) > 0 {
		if err := l.checkHeaders(t.Headers); err != nil {
			return err
		}
	}
	if t.RunAt != nil {
		if err := l.checkRunAt(t.RunAt, now); err != nil {
			return err
		}
	}
	if t.Priority != 0 || t.FairnessKey != "" || t.FairnessWeight != 0 {
		if err := checkShare(t); err != nil {
			return err
		}
	}
	return l.checkOptions(t.LeaseTime, t.MaxAttempts, t.Retry, t.TimeToLive)
}

// maxFairnessKey is the longest fairness key in bytes, and maxFairnessKeys the most of
// them in a queue's configuration.
const (
	maxFairnessKey  = 64
	maxFairnessKeys = 1000
)

// maxRate is the highest rate limit, tasks per second, and maxWeight the highest weight.
const (
	maxRate   = 1e9
	maxWeight = 1e6
)

// checkShare checks what says when a task's turn is.
func checkShare(t *v1.TaskSpec) error {
	if t.Priority < 0 {
		return invalid(reason.InvalidPriority, "priority", "priority is %d; it must be between 1 and 5, or 0 for the default", t.Priority)
	}
	if err := checkFairnessKey("fairness_key", t.FairnessKey); err != nil {
		return err
	}
	return checkWeight("fairness_weight", float64(t.FairnessWeight))
}

func checkFairnessKey(field, key string) error {
	if len(key) > maxFairnessKey {
		return tooLarge(reason.InvalidFairness, field, maxFairnessKey, "%s is %d bytes long; at most %d are allowed", field, len(key), maxFairnessKey)
	}
	return nil
}

func checkWeight(field string, w float64) error {
	if !(w >= 0 && w <= maxWeight) { // NaN fails too
		return invalid(reason.InvalidFairness, field, "%s is %v; it must be between 0.001 and %.0f, or 0 for the default", field, w, maxWeight)
	}
	return nil
}

// checkRate checks a rate limit, which may be nil.
func checkRate(field string, rate *float64) error {
	if rate != nil && !(*rate >= 0 && *rate <= maxRate) {
		return invalid(reason.InvalidRateLimit, field, "%s is %v; it must be between 0 and %.0f tasks per second", field, *rate, maxRate)
	}
	return nil
}

// checkFairness checks what a queue's configuration says of rates and keys.
func checkFairness(c *v1.QueueConfig) error {
	if err := checkRate("rate_limit", c.RateLimit); err != nil {
		return err
	}
	if err := checkRate("key_rate_limit", c.KeyRateLimit); err != nil {
		return err
	}
	if n := len(c.FairnessKeys); n > maxFairnessKeys {
		return tooLarge(reason.InvalidFairness, "fairness_keys", maxFairnessKeys, "the queue has settings for %d fairness keys; at most %d are allowed", n, maxFairnessKeys)
	}
	seen := make(map[string]struct{}, len(c.FairnessKeys))
	for _, k := range c.FairnessKeys {
		if err := checkFairnessKey("fairness_keys.key", k.GetKey()); err != nil {
			return err
		}
		if _, twice := seen[k.GetKey()]; twice {
			return invalid(reason.InvalidFairness, "fairness_keys", "the fairness key %q is set twice", k.GetKey())
		}
		seen[k.GetKey()] = struct{}{}
		if err := checkWeight("fairness_keys.weight", k.GetWeight()); err != nil {
			return err
		}
		if err := checkRate("fairness_keys.rate_limit", k.RateLimit); err != nil {
			return err
		}
	}
	return nil
}

// checkKind checks the name of a handler.
func (l *Limits) checkKind(kind string) error {
	switch {
	case kind == "":
		return invalid(reason.InvalidKind, "kind", "the kind is empty; it names the handler of the task")
	case len(kind) > l.KindBytes:
		return tooLarge(reason.InvalidKind, "kind", l.KindBytes, "the kind is %d bytes long; at most %d are allowed", len(kind), l.KindBytes)
	}
	for i := 0; i < len(kind); i++ {
		if charClass[kind[i]]&charControl != 0 {
			return invalid(reason.InvalidKind, "kind", "the kind %q has a control character", kind)
		}
	}
	return nil
}

// checkHeaders checks the headers of one task.
func (l *Limits) checkHeaders(headers map[string]string) error {
	if len(headers) > l.HeaderCount {
		return tooLarge(reason.InvalidHeader, "headers", l.HeaderCount,
			"the task has %d headers; at most %d are allowed", len(headers), l.HeaderCount)
	}
	size := 0
	for name, value := range headers {
		if name == "" {
			return invalid(reason.InvalidHeader, "headers", "a header has no name")
		}
		for i := 0; i < len(name); i++ {
			if charClass[name[i]]&charControl != 0 {
				return invalid(reason.InvalidHeader, "headers", "the header name %q has a control character", shorten(name))
			}
		}
		size += len(name) + len(value)
	}
	if size > l.HeaderBytes {
		return tooLarge(reason.InvalidHeader, "headers", l.HeaderBytes,
			"the headers are %d bytes; at most %d are allowed", size, l.HeaderBytes)
	}
	return nil
}

// checkOptions checks what a task and a queue's configuration have in common.
func (l *Limits) checkOptions(lease *durationpb.Duration, attempts int32, retry *v1.RetryPolicy, ttl *durationpb.Duration) error {
	if lease != nil {
		if err := l.checkLease("lease_time", lease); err != nil {
			return err
		}
	}
	if attempts < 0 || int(attempts) > l.MaxAttempts {
		return tooLarge(reason.InvalidMaxAttempts, "max_attempts", l.MaxAttempts,
			"max_attempts is %d; it must be between 1 and %d, or 0 for the default", attempts, l.MaxAttempts)
	}
	if ttl != nil {
		if err := checkDuration(reason.InvalidDuration, "time_to_live", ttl, time.Millisecond, l.TimeToLive); err != nil {
			return err
		}
	}
	if retry != nil {
		return l.checkRetry(retry)
	}
	return nil
}

// checkRetry checks a retry policy.
func (l *Limits) checkRetry(p *v1.RetryPolicy) error {
	if p.InitialBackoff != nil {
		if err := checkDuration(reason.InvalidRetryPolicy, "retry.initial_backoff", p.InitialBackoff, minBackoff, l.Delay); err != nil {
			return err
		}
	}
	if p.MaxBackoff != nil {
		if err := checkDuration(reason.InvalidRetryPolicy, "retry.max_backoff", p.MaxBackoff, minBackoff, l.Delay); err != nil {
			return err
		}
		if p.InitialBackoff != nil && p.MaxBackoff.AsDuration() < p.InitialBackoff.AsDuration() {
			return invalid(reason.InvalidRetryPolicy, "retry.max_backoff", "retry.max_backoff (%v) is shorter than retry.initial_backoff (%v)",
				p.MaxBackoff.AsDuration(), p.InitialBackoff.AsDuration())
		}
	}
	if m := p.Multiplier; m != 0 && !(m >= 1 && m <= maxMultiplier) { // NaN fails too
		return invalid(reason.InvalidRetryPolicy, "retry.multiplier", "retry.multiplier is %v; it must be between 1 and %d", m, maxMultiplier)
	}
	if p.Jitter != nil && !(*p.Jitter >= 0 && *p.Jitter <= 1) {
		return invalid(reason.InvalidRetryPolicy, "retry.jitter", "retry.jitter is %v; it must be between 0 and 1", *p.Jitter)
	}
	return nil
}

// checkConfig checks a queue's configuration, which may be nil.
func (l *Limits) checkConfig(c *v1.QueueConfig) error {
	if c == nil {
		return nil
	}
	if err := checkFairness(c); err != nil {
		return err
	}
	return l.checkOptions(c.LeaseTime, c.MaxAttempts, c.Retry, c.TimeToLive)
}

// checkMask checks the paths of an update mask.
func checkMask(paths []string) error {
	for _, p := range paths {
		switch p {
		case "lease_time", "max_attempts", "time_to_live", "partitions", "scaling", "retry", "rate_limit", "key_rate_limit", "fairness_keys",
			"retry.initial_backoff", "retry.max_backoff", "retry.multiplier", "retry.jitter":
		default:
			return invalid(reason.InvalidUpdateMask, "update_mask",
				"update_mask has the path %q; known are lease_time, max_attempts, time_to_live, partitions, scaling, rate_limit, key_rate_limit, fairness_keys, retry and retry.initial_backoff, .max_backoff, .multiplier, .jitter", shorten(p))
		}
	}
	return nil
}

// taskBytes is about what a task takes in a request.
func taskBytes(t *v1.TaskSpec) int64 {
	n := int64(itemOverhead + len(t.Payload) + len(t.Kind) + len(t.FairnessKey))
	for name, value := range t.Headers {
		n += int64(len(name) + len(value))
	}
	return n
}
