package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/internal/loadgen"
)

func newBenchCommand(a *app) *cobra.Command {
	var opts loadgen.Options
	var progress bool
	c := &cobra.Command{
		Use:   "bench SCENARIO",
		Short: "Put load on a server and measure",
		Long: `Put load on a server with the Go client and measure rates and latencies. The run
makes a queue of its own and removes it. Scenarios:

  add      goroutines that add one task after the other
  batch    goroutines that add one batch after the other
  drain    --count waiting tasks are worked off
  mixed    adders and a worker together, as fast as they can
  latency  --rate tasks a second and a worker that waits for them

Ctrl-C ends a run early and prints what was measured.`,
		Example: `  switchyard bench add
  switchyard bench add --concurrency 1          how long one add takes
  switchyard bench drain --count 1000000
  switchyard bench latency --rate 500 -o json`,
		ValidArgs: scenarioNames(),
		Args:      exactArgs("SCENARIO"),
		RunE: func(c *cobra.Command, args []string) error {
			opts.Scenario = loadgen.Scenario(args[0])
			for _, name := range []string{"duration", "count", "concurrency", "payload-size", "batch", "rate"} {
				f := c.Flags().Lookup(name)
				if f.Changed && strings.Trim(f.Value.String(), "0s.") == "" {
					return usageOf(c, fmt.Errorf("--%s must be more than 0", name))
				}
			}
			if _, err := opts.WithDefaults(); err != nil {
				return usageOf(c, err)
			}
			return a.bench(c.Context(), opts, progress)
		},
	}
	f := c.Flags()
	f.DurationVar(&opts.Duration, "duration", 0, "how long to add (default 10s; not for drain)")
	f.Int64Var(&opts.Count, "count", 0, "how many tasks to add at most (default: no limit; drain: 100000)")
	f.IntVarP(&opts.Concurrency, "concurrency", "c", 0, "adders, and handlers where there is a worker (default 64; batch: 1)")
	f.IntVar(&opts.PayloadBytes, "payload-size", 0, "bytes of each payload (default 256)")
	f.IntVar(&opts.Batch, "batch", 0, "tasks in a batch (default 1000)")
	f.Float64Var(&opts.Rate, "rate", 0, "tasks a second for latency (default 500)")
	f.BoolVar(&progress, "progress", false, "show the live line even when standard error is not a terminal")
	return c
}

func scenarioNames() []string {
	var names []string
	for _, s := range loadgen.Scenarios() {
		names = append(names, string(s))
	}
	return names
}

func (a *app) bench(parent context.Context, opts loadgen.Options, progress bool) error {
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, now, stop := interrupts(parent)
	defer stop()
	if err := a.reach(ctx, client); err != nil {
		return err
	}
	run, err := loadgen.New(client, opts)
	if err != nil {
		return err
	}
	p := a.startProgress(progress, 500*time.Millisecond, 500*time.Millisecond, liveLine(run))
	type result struct {
		report *loadgen.Report
		err    error
	}
	done := make(chan result, 1)
	go func() {
		report, err := run.Start(ctx)
		done <- result{report, err}
	}()
	var r result
	select {
	case r = <-done:
		p.end()
	case <-now.Done():
		p.end()
		return &exitError{code: exitInterrupted, err: fmt.Errorf("stopped at once; queue %s may be left behind", run.Queue())}
	}
	if r.report != nil && r.report.Tasks > 0 {
		if err := a.printReport(r.report); err != nil {
			return err
		}
	}
	switch {
	case r.err != nil:
		return r.err
	case r.report.Interrupted:
		return &exitError{code: exitInterrupted, err: fmt.Errorf("interrupted: the run ended before its time")}
	}
	return nil
}

// liveLine shows the rates since it was last called.
func liveLine(run *loadgen.Run) func() string {
	last, lastAdded, lastCompleted := time.Now(), int64(0), int64(0)
	return func() string {
		t, added, completed := time.Now(), run.Added(), run.Completed()
		seconds := t.Sub(last).Seconds()
		text := fmt.Sprintf("%s: added %s (%s)", run.Phase(), count(added), perSecond(float64(added-lastAdded)/seconds))
		if completed > 0 {
			text += fmt.Sprintf(", completed %s (%s)", count(completed), perSecond(float64(completed-lastCompleted)/seconds))
		}
		if q := run.Latency(); q.Count > 0 {
			text += fmt.Sprintf(", p50 %s, p99 %s", roughly(q.P50), roughly(q.P99))
		}
		last, lastAdded, lastCompleted = t, added, completed
		return text
	}
}

type quantilesView struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean_seconds"`
	P50   float64 `json:"p50_seconds"`
	P90   float64 `json:"p90_seconds"`
	P99   float64 `json:"p99_seconds"`
	P999  float64 `json:"p999_seconds"`
	Max   float64 `json:"max_seconds"`
}

type reportView struct {
	Scenario     string         `json:"scenario"`
	Concurrency  int            `json:"concurrency"`
	PayloadBytes int            `json:"payload_bytes"`
	Batch        int            `json:"batch,omitempty"`
	TargetRate   float64        `json:"target_rate,omitempty"`
	Tasks        int64          `json:"tasks"`
	Seconds      float64        `json:"seconds"`
	Rate         float64        `json:"rate"`
	Added        int64          `json:"added"`
	Completed    int64          `json:"completed"`
	Redelivered  int64          `json:"redelivered"`
	Interrupted  bool           `json:"interrupted"`
	Add          *quantilesView `json:"add_latency,omitempty"`
	Delivery     *quantilesView `json:"delivery_latency,omitempty"`
}

func viewQuantiles(q loadgen.Quantiles) *quantilesView {
	if q.Count == 0 {
		return nil
	}
	return &quantilesView{
		Count: q.Count, Mean: q.Mean.Seconds(), P50: q.P50.Seconds(), P90: q.P90.Seconds(),
		P99: q.P99.Seconds(), P999: q.P999.Seconds(), Max: q.Max.Seconds(),
	}
}

func (a *app) printReport(r *loadgen.Report) error {
	o := r.Options
	if a.json() {
		v := reportView{
			Scenario: string(o.Scenario), Concurrency: o.Concurrency, PayloadBytes: o.PayloadBytes,
			Tasks: r.Tasks, Seconds: r.Seconds, Rate: r.Rate(), Added: r.Added, Completed: r.Completed,
			Redelivered: r.Redelivered, Interrupted: r.Interrupted, Add: viewQuantiles(r.Add), Delivery: viewQuantiles(r.Delivery),
		}
		switch o.Scenario {
		case loadgen.Batch, loadgen.Drain:
			v.Batch = o.Batch
		case loadgen.Latency:
			v.TargetRate = o.Rate
		}
		return a.printJSON(v)
	}
	what := "completed"
	if o.Scenario == loadgen.Add || o.Scenario == loadgen.Batch {
		what = "added"
	}
	fmt.Fprintf(a.stdout, "%s: %s %s in %s, %s (%d at once, %d-byte payloads)\n", o.Scenario, plural(r.Tasks, "task"), what,
		roughly(time.Duration(r.Seconds*float64(time.Second))), perSecond(r.Rate()), o.Concurrency, o.PayloadBytes)
	if r.Redelivered > 0 {
		fmt.Fprintf(a.stdout, "%s came more than once\n", plural(r.Redelivered, "task"))
	}
	if r.Add.Count == 0 && r.Delivery.Count == 0 {
		return nil
	}
	t := a.newTable("LATENCY", "MEAN", "P50", "P90", "P99", "P99.9", "MAX")
	row := func(name string, q loadgen.Quantiles) {
		if q.Count > 0 {
			t.row(name, roughly(q.Mean), roughly(q.P50), roughly(q.P90), roughly(q.P99), roughly(q.P999), roughly(q.Max))
		}
	}
	name := "add"
	if o.Scenario == loadgen.Batch {
		name = fmt.Sprintf("add of %d", o.Batch)
	}
	row(name, r.Add)
	row("add to handler", r.Delivery)
	return t.flush()
}
