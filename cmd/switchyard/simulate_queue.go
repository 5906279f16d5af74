package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	queues "github.com/switchyard-dev/switchyard/internal/simulate/queue"
)

// queueSimulation is what the flags say.
type queueSimulation struct {
	studies, policies   []string
	seed                uint64
	page, pictures      string
	progress            bool
	nodes, queues       int
	batch, lost         int
	partitions, loaded  int
	tasks, pollers      int
	clients             int
	work, span, dayTime time.Duration
	low, high           float64
}

func newSimulateQueueCommand(a *app) *cobra.Command {
	var s queueSimulation
	var studies, policies strings.Builder
	for _, x := range queues.Studies() {
		fmt.Fprintf(&studies, "  %-8s %s\n", x.Name, x.About)
	}
	for _, p := range queues.Policies() {
		fmt.Fprintf(&policies, "  %-14s %s\n", p.Name, p.About)
	}
	c := &cobra.Command{
		Use:   "queue",
		Short: "Try out a large cluster's queues: spread, draining, scaling",
		Long: `Run the queues of a large cluster in virtual time, with the code that decides in a
node: the same seed gives the same result. Studies:

` + studies.String() + `
Ways to choose the partitions of polls:

` + policies.String() + `
docs/partitions.md says what they are about.`,
		Example: `  switchyard simulate queue --html page.html
  switchyard simulate queue --study spread --nodes 50 --queues 2000 --batch 16
  switchyard simulate queue --study two --pollers 200 --work 1s`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			chosen, err := s.choose(c)
			if err != nil {
				return usageOf(c, err)
			}
			return a.simulateQueue(c.Context(), chosen, s)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&s.studies, "study", nil, "`NAMES` of studies (default all)")
	f.StringSliceVar(&s.policies, "policy", nil, "`NAMES` of ways to choose the partitions of polls, instead of the study's")
	f.Uint64Var(&s.seed, "seed", 1, "where randomness begins")
	f.StringVar(&s.page, "html", "", "write a page with plots to this `FILE`")
	f.StringVar(&s.pictures, "svg", "", "write each plot as STUDY-PLOT.svg into this `FOLDER`")
	f.BoolVar(&s.progress, "progress", false, "show progress even when standard error is not a terminal")
	f.IntVar(&s.nodes, "nodes", 0, "spread: matching nodes, instead of the study's")
	f.IntVar(&s.queues, "queues", 0, "spread: queues")
	f.IntVar(&s.batch, "batch", 0, "spread: size of the batches of spread routing")
	f.IntVar(&s.lost, "lost", 0, "spread: nodes that are lost at once")
	f.IntVar(&s.partitions, "partitions", 0, "partitions of the queue, or of the busiest queue")
	f.IntVar(&s.loaded, "loaded", 0, "draining: partitions that hold the backlog")
	f.IntVar(&s.tasks, "tasks", 0, "draining: tasks of the backlog")
	f.IntVar(&s.pollers, "pollers", 0, "draining: polls at a time")
	f.IntVar(&s.clients, "clients", 0, "draining: processes that the pollers are spread over")
	f.DurationVar(&s.work, "work", 0, "draining: mean time of work on a task")
	f.DurationVar(&s.span, "span", 0, "draining: time within which the backlog was added")
	f.DurationVar(&s.dayTime, "duration", 0, "day: its length")
	f.Float64Var(&s.low, "low", 0, "day: the least load in tasks per second")
	f.Float64Var(&s.high, "high", 0, "day: the most")
	return c
}

// choose returns the studies, with what the flags change in them.
func (s queueSimulation) choose(c *cobra.Command) ([]queues.Study, error) {
	all := queues.Studies()
	var names []string
	for _, x := range all {
		names = append(names, x.Name)
	}
	chosen := all
	if len(s.studies) > 0 {
		chosen = nil
		for _, name := range s.studies {
			i := slices.Index(names, name)
			if i < 0 {
				return nil, fmt.Errorf("unknown study %q; there are %s", name, strings.Join(names, ", "))
			}
			chosen = append(chosen, all[i])
		}
	}
	// Which flags each kind of study has.
	used := map[string]bool{}
	for i := range chosen {
		set := func(flag string, change func()) {
			if c.Flags().Changed(flag) {
				used[flag] = true
				change()
			}
		}
		switch x := &chosen[i]; {
		case x.Spread != nil:
			set("nodes", func() { x.Spread.Nodes = s.nodes })
			set("queues", func() { x.Spread.Queues = s.queues })
			set("batch", func() { x.Spread.Batch = s.batch })
			set("lost", func() { x.Spread.Lost = s.lost })
			set("partitions", func() { x.Spread.Largest = s.partitions })
			if x.Spread.Lost >= x.Spread.Nodes && !c.Flags().Changed("lost") {
				x.Spread.Lost = 1
			}
		case x.Drain != nil:
			all := x.Drain.Loaded == x.Drain.Partitions
			set("partitions", func() { x.Drain.Partitions = s.partitions })
			if all {
				x.Drain.Loaded = x.Drain.Partitions
			}
			set("loaded", func() { x.Drain.Loaded = s.loaded })
			set("tasks", func() { x.Drain.Tasks = s.tasks })
			set("pollers", func() { x.Drain.Pollers = s.pollers; x.Drain.Clients = min(x.Drain.Clients, s.pollers) })
			set("clients", func() { x.Drain.Clients = s.clients })
			set("work", func() { x.Drain.Work = s.work })
			set("span", func() { x.Drain.Span = s.span })
			set("policy", func() { x.Drain.Policies = s.policies })
		case x.Day != nil:
			set("duration", func() { x.Day.Length = s.dayTime })
			set("low", func() { x.Day.Low = s.low })
			set("high", func() { x.Day.High = s.high })
		}
		if err := chosen[i].Check(); err != nil {
			return nil, fmt.Errorf("study %s: %w", chosen[i].Name, err)
		}
	}
	for _, flag := range []string{"nodes", "queues", "batch", "lost", "partitions", "loaded", "tasks", "pollers", "clients", "work", "span", "policy", "duration", "low", "high"} {
		if c.Flags().Changed(flag) && !used[flag] {
			return nil, fmt.Errorf("--%s means nothing to the studies chosen: %s", flag, strings.Join(s.studies, ", "))
		}
	}
	return chosen, nil
}

func (a *app) simulateQueue(ctx context.Context, studies []queues.Study, s queueSimulation) error {
	var results []*queues.Result
	for _, study := range studies {
		var percent atomic.Int64
		p := a.startProgress(s.progress, time.Second, 500*time.Millisecond, func() string {
			return fmt.Sprintf("%s: %d %%", study.Name, percent.Load())
		})
		r, err := queues.Run(ctx, study, s.seed, func(done float64) { percent.Store(int64(100 * done)) })
		p.end()
		if err != nil {
			if errors.Is(err, context.Canceled) {
				return err
			}
			return fmt.Errorf("study %s: %w", study.Name, err)
		}
		results = append(results, r)
	}
	if s.page != "" {
		if err := writeFile(s.page, func(out io.Writer) error { return queues.WritePage(out, results, s.seed) }); err != nil {
			return err
		}
	}
	if s.pictures != "" {
		for _, r := range results {
			for _, p := range queues.Plots(r) {
				if err := os.WriteFile(filepath.Join(s.pictures, p.Name+".svg"), []byte(p.SVG), 0o644); err != nil {
					return err
				}
			}
		}
	}
	if a.json() {
		views := make([]queueSimulationView, len(results))
		for i, r := range results {
			views[i] = viewQueueSimulation(r)
		}
		return a.printJSON(views)
	}
	for i, r := range results {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		fmt.Fprintf(a.stdout, "%s: %s\n%s\n", r.Study.Name, r.Study.About, queues.Describe(r.Study))
		for _, x := range queues.Tables(r) {
			fmt.Fprintln(a.stdout)
			t := a.newTable(x.Header...)
			for _, row := range x.Rows {
				t.row(row...)
			}
			if err := t.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

type queueSimulationView struct {
	Study  string       `json:"study"`
	Spread []spreadView `json:"spread,omitempty"`
	Drain  []drainView  `json:"drain,omitempty"`
	Day    *dayView     `json:"day,omitempty"`
}

type spreadView struct {
	Routing     string       `json:"routing"`
	Batch       int          `json:"batch"`
	Partitions  int          `json:"partitions"`
	Least       int          `json:"least_per_node"`
	Most        int          `json:"most_per_node"`
	MostLargest int          `json:"most_of_largest_queue"`
	Busiest     float64      `json:"busiest"`
	Changes     []changeView `json:"changes"`
}

type changeView struct {
	Change      string  `json:"change"`
	Moved       int     `json:"moved"`
	Forced      int     `json:"forced"`
	LoadMoved   float64 `json:"load_moved"`
	Busiest     float64 `json:"busiest"`
	MostLargest int     `json:"most_of_largest_queue"`
}

type drainView struct {
	Policy string  `json:"policy"`
	Tasks  int     `json:"tasks"`
	Done   int     `json:"done"`
	Took   float64 `json:"took_seconds,omitempty"`
	Ideal  float64 `json:"ideal_seconds"`
	Slower float64 `json:"over_ideal"`
	Apart  float64 `json:"ages_apart_seconds"`
}

type dayView struct {
	Added    int64   `json:"added"`
	Done     int64   `json:"done"`
	Changes  int     `json:"changes"`
	Most     int32   `json:"most_partitions"`
	Last     int32   `json:"last_partitions"`
	Behind   float64 `json:"overloaded_seconds"`
	Stranded int64   `json:"stranded"`
}

func viewQueueSimulation(r *queues.Result) queueSimulationView {
	v := queueSimulationView{Study: r.Study.Name}
	for _, s := range r.Spread {
		x := spreadView{Routing: s.Routing, Batch: s.Batch, Partitions: s.Partitions, Least: slices.Min(s.PerNode), Most: slices.Max(s.PerNode),
			MostLargest: slices.Max(s.Largest), Busiest: s.Busiest()}
		for _, c := range s.Changes {
			x.Changes = append(x.Changes, changeView{c.Name, c.Moved, c.Forced, c.Load, c.Busiest, c.Most})
		}
		v.Spread = append(v.Spread, x)
	}
	for _, d := range r.Drain {
		v.Drain = append(v.Drain, drainView{d.Policy, d.Tasks, d.Done, d.Took.Seconds(), d.Ideal.Seconds(), d.Slower(), d.Apart.Seconds()})
	}
	if d := r.Day; d != nil {
		v.Day = &dayView{d.Added, d.Done, d.Changes, d.MostWrite, d.LastRead, d.Behind.Seconds(), d.Stranded}
	}
	return v
}
