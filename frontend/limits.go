package frontend

import (
	"fmt"
	"time"
)

// DefaultNamespace is the namespace of a request that names none.
const DefaultNamespace = "default"

// Limits bounds what a request may ask for and how much may be in progress. The
// yaml names are the names of the settings.
type Limits struct {
	// PayloadBytes is the largest payload of one task.
	PayloadBytes int `yaml:"payload_bytes"`
	// BatchItems is the largest number of items in one request.
	BatchItems int `yaml:"batch_items"`
	// RequestBytes is the largest request, as protobuf.
	RequestBytes int `yaml:"request_bytes"`
	// NameBytes is the longest namespace or queue name.
	NameBytes int `yaml:"name_bytes"`
	// KindBytes is the longest task kind.
	KindBytes int `yaml:"kind_bytes"`
	// IdentityBytes is the longest poller identity.
	IdentityBytes int `yaml:"identity_bytes"`
	// HeaderCount is the largest number of headers of one task.
	HeaderCount int `yaml:"header_count"`
	// HeaderBytes is the largest sum of header names and values of one task.
	HeaderBytes int `yaml:"header_bytes"`
	// ErrorBytes is where the error text of a failed attempt is cut.
	ErrorBytes int `yaml:"error_bytes"`
	// PollTasks is the largest number of tasks that one poll may ask for.
	PollTasks int `yaml:"poll_tasks"`
	// PollWait is the longest wait of a poll; DefaultPollWait is the wait of a
	// poll that does not say.
	PollWait        time.Duration `yaml:"poll_wait"`
	DefaultPollWait time.Duration `yaml:"default_poll_wait"`
	// MinLeaseTime and MaxLeaseTime bound lease times.
	MinLeaseTime time.Duration `yaml:"min_lease_time"`
	MaxLeaseTime time.Duration `yaml:"max_lease_time"`
	// Delay is the longest time from now to run_at, and the longest backoff and
	// retry delay.
	Delay time.Duration `yaml:"delay"`
	// TimeToLive is the longest time to live.
	TimeToLive time.Duration `yaml:"time_to_live"`
	// MaxAttempts is the largest number of attempts.
	MaxAttempts int `yaml:"max_attempts"`
	// PageSize is the largest page of a list; DefaultPageSize is the page of a
	// list that does not say.
	PageSize        int `yaml:"page_size"`
	DefaultPageSize int `yaml:"default_page_size"`
	// RequestTimeout ends a call other than a poll whose caller set no deadline.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// InFlightRequests is how many requests other than polls may be in progress
	// on the node.
	InFlightRequests int `yaml:"in_flight_requests"`
	// InFlightPolls is how many polls may be in progress on the node.
	InFlightPolls int `yaml:"in_flight_polls"`
	// InFlightBytes is how many bytes of tasks may be on their way into the
	// store on the node.
	InFlightBytes int64 `yaml:"in_flight_bytes"`
}

// DefaultLimits returns the limits of a server that is not configured.
func DefaultLimits() Limits {
	return Limits{
		PayloadBytes:     1 << 20,
		BatchItems:       10_000,
		RequestBytes:     16 << 20,
		NameBytes:        255,
		KindBytes:        255,
		IdentityBytes:    255,
		HeaderCount:      64,
		HeaderBytes:      16 << 10,
		ErrorBytes:       4 << 10,
		PollTasks:        1000,
		PollWait:         60 * time.Second,
		DefaultPollWait:  20 * time.Second,
		MinLeaseTime:     100 * time.Millisecond,
		MaxLeaseTime:     12 * time.Hour,
		Delay:            365 * 24 * time.Hour,
		TimeToLive:       10 * 365 * 24 * time.Hour,
		MaxAttempts:      1000,
		PageSize:         1000,
		DefaultPageSize:  100,
		RequestTimeout:   60 * time.Second,
		InFlightRequests: 10_000,
		InFlightPolls:    20_000,
		InFlightBytes:    256 << 20,
	}
}

// Validate returns an error that names the setting which is out of range.
func (l Limits) Validate() error {
	for _, n := range []struct {
		name             string
		value, low, high int64
	}{
		{"payload_bytes", int64(l.PayloadBytes), 1, 64 << 20},
		{"batch_items", int64(l.BatchItems), 1, 1_000_000},
		{"request_bytes", int64(l.RequestBytes), 1 << 10, 1 << 30},
		{"name_bytes", int64(l.NameBytes), 1, 255},
		{"kind_bytes", int64(l.KindBytes), 1, 255},
		{"identity_bytes", int64(l.IdentityBytes), 1, 4096},
		{"header_count", int64(l.HeaderCount), 0, 10_000},
		{"header_bytes", int64(l.HeaderBytes), 0, 1 << 20},
		{"error_bytes", int64(l.ErrorBytes), 1, 1 << 20},
		{"poll_tasks", int64(l.PollTasks), 1, 100_000},
		{"max_attempts", int64(l.MaxAttempts), 1, 1_000_000},
		{"page_size", int64(l.PageSize), 1, 100_000},
		{"default_page_size", int64(l.DefaultPageSize), 1, int64(l.PageSize)},
		{"in_flight_requests", int64(l.InFlightRequests), 1, 10_000_000},
		{"in_flight_polls", int64(l.InFlightPolls), 1, 10_000_000},
		{"in_flight_bytes", l.InFlightBytes, int64(l.RequestBytes), 1 << 40},
	} {
		if n.value < n.low || n.value > n.high {
			return fmt.Errorf("%s is %d; it must be between %d and %d", n.name, n.value, n.low, n.high)
		}
	}
	year := 365 * 24 * time.Hour
	for _, d := range []struct {
		name             string
		value, low, high time.Duration
	}{
		{"poll_wait", l.PollWait, 0, time.Hour},
		{"default_poll_wait", l.DefaultPollWait, 0, l.PollWait},
		{"min_lease_time", l.MinLeaseTime, time.Millisecond, l.MaxLeaseTime},
		{"max_lease_time", l.MaxLeaseTime, time.Millisecond, year},
		{"request_timeout", l.RequestTimeout, time.Millisecond, time.Hour},
		{"delay", l.Delay, 0, 10 * year},
		{"time_to_live", l.TimeToLive, time.Second, 100 * year},
	} {
		if d.value < d.low || d.value > d.high {
			return fmt.Errorf("%s is %v; it must be between %v and %v", d.name, d.value, d.low, d.high)
		}
	}
	if l.PayloadBytes > l.RequestBytes {
		return fmt.Errorf("payload_bytes (%d) is larger than request_bytes (%d)", l.PayloadBytes, l.RequestBytes)
	}
	return nil
}
