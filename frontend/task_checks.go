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
	return l.checkOptions(t.LeaseTime, t.MaxAttempts, t.Retry, t.TimeToLive)
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
	return l.checkOptions(c.LeaseTime, c.MaxAttempts, c.Retry, c.TimeToLive)
}

// checkMask checks the paths of an update mask.
func checkMask(paths []string) error {
	for _, p := range paths {
		switch p {
		case "lease_time", "max_attempts", "time_to_live", "partitions", "scaling", "retry",
			"retry.initial_backoff", "retry.max_backoff", "retry.multiplier", "retry.jitter":
		default:
			return invalid(reason.InvalidUpdateMask, "update_mask",
				"update_mask has the path %q; known are lease_time, max_attempts, time_to_live, partitions, scaling, retry and retry.initial_backoff, .max_backoff, .multiplier, .jitter", shorten(p))
		}
	}
	return nil
}

// taskBytes is about what a task takes in a request.
func taskBytes(t *v1.TaskSpec) int64 {
	n := int64(itemOverhead + len(t.Payload) + len(t.Kind))
	for name, value := range t.Headers {
		n += int64(len(name) + len(value))
	}
	return n
}
