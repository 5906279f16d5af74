package loadgen

import (
	"fmt"
	"slices"
	"time"
)

// Scenario is a kind of load.
type Scenario string

// The scenarios.
const (
	// Add: goroutines that add one task after the other.
	Add Scenario = "add"
	// Batch: goroutines that add one batch after the other.
	Batch Scenario = "batch"
	// Drain: tasks that wait are worked off.
	Drain Scenario = "drain"
	// Mixed: adders and a worker at the same time, both as fast as they can.
	Mixed Scenario = "mixed"
	// Latency: tasks come at a steady rate and a worker waits for them.
	Latency Scenario = "latency"
)

// Scenarios lists all scenarios.
func Scenarios() []Scenario { return []Scenario{Add, Batch, Drain, Mixed, Latency} }

// Limits of the options.
const (
	MaxConcurrency  = 10_000
	MaxPayloadBytes = 16 << 20
	MaxBatch        = 10_000
	MaxRate         = 1_000_000
	MaxCount        = 1_000_000_000
	// MinPayloadBytes is room for the time and the number that every payload
	// carries.
	MinPayloadBytes = 16
)

// Options say what load to make. Fields that are 0 take the scenario's default.
type Options struct {
	Scenario Scenario
	// Duration is how long to add; it has no meaning for Drain. Default 10 s.
	Duration time.Duration
	// Count is how many tasks to add at most; for Drain how many are drained.
	// Default: no limit, 100,000 for Drain.
	Count int64
	// Concurrency is the number of adders, and of handlers where there is a
	// worker. Default 64, 1 for Batch.
	Concurrency int
	// PayloadBytes is the size of each payload. Default 256.
	PayloadBytes int
	// Batch is the number of tasks in a batch, for Batch and for the filling of
	// Drain. Default 1000.
	Batch int
	// Rate is the number of tasks a second for Latency. Default 500.
	Rate float64
}

// WithDefaults fills in what is 0 and checks the rest.
func (o Options) WithDefaults() (Options, error) {
	if !slices.Contains(Scenarios(), o.Scenario) {
		return o, fmt.Errorf("there is no scenario %q; there are add, batch, drain, mixed and latency", o.Scenario)
	}
	if o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Count == 0 {
		o.Count = MaxCount
		if o.Scenario == Drain {
			o.Count = 100_000
		}
	}
	if o.Concurrency == 0 {
		o.Concurrency = 64
		if o.Scenario == Batch {
			o.Concurrency = 1
		}
	}
	if o.PayloadBytes == 0 {
		o.PayloadBytes = 256
	}
	if o.Batch == 0 {
		o.Batch = 1000
	}
	if o.Rate == 0 {
		o.Rate = 500
	}
	switch {
	case o.Duration < 0:
		return o, fmt.Errorf("the duration is %v and must be more than 0", o.Duration)
	case o.Count < 0 || o.Count > MaxCount:
		return o, fmt.Errorf("the count is %d and must be 1 to %d", o.Count, MaxCount)
	case o.Concurrency < 0 || o.Concurrency > MaxConcurrency:
		return o, fmt.Errorf("the concurrency is %d and must be 1 to %d", o.Concurrency, MaxConcurrency)
	case o.PayloadBytes < MinPayloadBytes || o.PayloadBytes > MaxPayloadBytes:
		return o, fmt.Errorf("the payload size is %d and must be %d to %d bytes", o.PayloadBytes, MinPayloadBytes, MaxPayloadBytes)
	case o.Batch < 0 || o.Batch > MaxBatch:
		return o, fmt.Errorf("the batch is %d and must be 1 to %d tasks", o.Batch, MaxBatch)
	case o.Rate < 0 || o.Rate > MaxRate:
		return o, fmt.Errorf("the rate is %v and must be more than 0 and at most %d a second", o.Rate, MaxRate)
	}
	return o, nil
}

// Report is what was measured.
type Report struct {
	Options Options
	// Tasks of the measured part: completed ones where there is a worker, added
	// ones elsewhere. Seconds is how long that part took.
	Tasks   int64
	Seconds float64
	// Added counts all tasks that were added, Completed all that were completed,
	// Redelivered those that a handler saw more than once.
	Added, Completed, Redelivered int64
	// Interrupted: the run ended before its time.
	Interrupted bool
	// Add is the latency of an add, or of a batch; Delivery the time from before
	// the add to the handler. They are empty where the scenario has none.
	Add, Delivery Quantiles
}

// Rate is the number of tasks a second.
func (r *Report) Rate() float64 {
	if r.Seconds <= 0 {
		return 0
	}
	return float64(r.Tasks) / r.Seconds
}
