package scenario

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/bench/internal/load"
	"github.com/switchyard-dev/switchyard/bench/internal/system"
)

// Options size the scenarios.
type Options struct {
	Duration        time.Duration // of each timed scenario
	LatencyDuration time.Duration
	LatencyRate     int // adds per second
	Adders          int
	Workers         int
	Batch           int
	Drain           int           // tasks to drain
	DrainLimit      time.Duration // the drain is cut short after this
	WarmUp          time.Duration
}

// Defaults are the sizes that the tables are made with.
func Defaults() Options {
	return Options{
		Duration: 5 * time.Second, LatencyDuration: 10 * time.Second, LatencyRate: 500, Adders: 64, Workers: 64,
		Batch: 1000, Drain: 100_000, DrainLimit: 30 * time.Second, WarmUp: 500 * time.Millisecond,
	}
}

// Result is what one scenario measured.
type Result struct {
	Scenario string  `json:"scenario"`
	Tasks    int64   `json:"tasks"`
	Seconds  float64 `json:"seconds"`
	// Tasks per second, where the rate is the point.
	Rate float64 `json:"rate,omitempty"`
	// Microseconds, where the latency is the point.
	P50 float64 `json:"p50_us,omitempty"`
	P99 float64 `json:"p99_us,omitempty"`
	// Per second while adders and workers ran at the same time.
	AddRate              float64 `json:"add_rate,omitempty"`
	CompletedWhileAdding float64 `json:"completed_while_adding,omitempty"`

	Duplicates int64 `json:"duplicates"`
	// Syncs of the server during the scenario, when they were counted.
	Syncs int64  `json:"syncs,omitempty"`
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`
}

// Sync slows and counts the server's syncs; its zero value does neither.
type Sync struct {
	// Slow switches the delay on or off; nil when there is none.
	Slow func(on bool)
	// Count returns the syncs so far; nil when they are not counted.
	Count func() int64
}

func (s Sync) slow(on bool) {
	if s.Slow != nil {
		s.Slow(on)
	}
}

func (s Sync) count() int64 {
	if s.Count == nil {
		return 0
	}
	return s.Count()
}

type run struct {
	o    Options
	q    system.Queue
	l    *load.Ledger
	sync Sync
	// startSyncs is set by scenarios that measure only a part of their time.
	startSyncs int64
}

var scenarios = map[string]func(context.Context, *run) (Result, error){
	"serial":     serialAdd,
	"concurrent": concurrentAdd,
	"batch":      batchAdd,
	"drain":      drain,
	"together":   together,
	"latency":    addToHandler,
}

var order = []string{"serial", "concurrent", "batch", "drain", "together", "latency"}

// Names returns the scenarios in the order in which they run.
func Names() []string { return append([]string(nil), order...) }

// Title says what a scenario of that size measures.
func Title(name string, o Options) string {
	switch name {
	case "serial":
		return "serial add, p50 / p99"
	case "concurrent":
		return fmt.Sprintf("%d concurrent adders", o.Adders)
	case "batch":
		return fmt.Sprintf("batches of %d", o.Batch)
	case "drain":
		return fmt.Sprintf("drain %d with %d workers", o.Drain, o.Workers)
	case "together":
		return fmt.Sprintf("%d adders and %d workers together, completed", o.Adders, o.Workers)
	case "latency":
		return fmt.Sprintf("add to handler at %d/s, p50 / p99", o.LatencyRate)
	}
	return name
}

// Run runs one scenario on a new queue of the server.
func Run(ctx context.Context, server system.Server, name string, o Options, s Sync) Result {
	f := scenarios[name]
	if f == nil {
		return Result{Scenario: name, Error: fmt.Sprintf("no such scenario; there are: %s", strings.Join(order, ", "))}
	}
	ctx, cancel := context.WithTimeout(ctx, o.Duration+o.LatencyDuration+2*o.DrainLimit+2*time.Minute)
	defer cancel()
	fail := func(err error) Result { return Result{Scenario: name, Error: err.Error()} }
	s.slow(false)
	if err := warmUp(ctx, server, o, name); err != nil {
		return fail(fmt.Errorf("warm-up: %w", err))
	}
	q, err := server.Queue(ctx, "bench-"+name)
	if err != nil {
		return fail(err)
	}
	r := &run{o: o, q: q, l: load.NewLedger(), sync: s}
	s.slow(true)
	r.startSyncs = s.count()
	result, err := f(ctx, r)
	result.Scenario = name
	result.Duplicates = r.l.Duplicates()
	s.slow(false)
	if err != nil {
		result.Error = err.Error()
	}
	if err := q.Close(ctx); err != nil && result.Error == "" {
		result.Error = fmt.Sprintf("close the queue: %v", err)
	}
	return result
}

// warmUp brings connections and caches up on a queue of its own.
func warmUp(ctx context.Context, server system.Server, o Options, name string) error {
	if o.WarmUp <= 0 {
		return nil
	}
	q, err := server.Queue(ctx, "warm-up-"+name)
	if err != nil {
		return err
	}
	o.Adders = 16
	r := &run{o: o, q: q, l: load.NewLedger()}
	workers, err := q.Work(ctx, 16, func(p []byte) { r.l.Handle(p) })
	if err != nil {
		return err
	}
	added, _, err := r.add(ctx, time.Now().Add(o.WarmUp))
	if err == nil {
		err = r.drained(ctx, workers, added, time.Now().Add(o.DrainLimit))
	}
	if stopErr := workers.Stop(ctx); err == nil {
		err = stopErr
	}
	if closeErr := q.Close(ctx); err == nil {
		err = closeErr
	}
	return err
}

// quantile of sorted durations, in microseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q * float64(len(sorted)))
	return float64(sorted[min(i, len(sorted)-1)]) / float64(time.Microsecond)
}

func sortDurations(d []time.Duration) {
	sort.Slice(d, func(i, j int) bool { return d[i] < d[j] })
}
