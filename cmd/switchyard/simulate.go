package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	simulate "github.com/switchyard-dev/switchyard/internal/simulate/balance"
)

func newSimulateCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Try out settings in virtual time, without servers",
		Example: `  switchyard simulate balance --world deploy
  switchyard simulate queue --study two`,
	}
	asGroup(c)
	c.AddCommand(newSimulateBalanceCommand(a), newSimulateQueueCommand(a))
	return c
}

// simulation is what the flags say.
type simulation struct {
	world    string
	policies []string
	seeds    int
	page     string
	pictures string

	clients, servers, workers, queue int
	mean, duration                   time.Duration
	sigma, load                      float64
}

func newSimulateBalanceCommand(a *app) *cobra.Command {
	var s simulation
	var worlds, policies strings.Builder
	for _, w := range simulate.Worlds() {
		fmt.Fprintf(&worlds, "  %-10s %s\n", w.Name, w.About)
	}
	for _, p := range simulate.Policies() {
		fmt.Fprintf(&policies, "  %-28s %s\n", p.Name, p.About)
	}
	c := &cobra.Command{
		Use:   "balance",
		Short: "Compare load balancing policies",
		Long: `Let clients with different load balancing policies send requests to servers, in
virtual time: the same seeds give the same result. Worlds:

` + worlds.String() + `
Policies:

` + policies.String() + `
docs/balancing.md says what they are and when to use which.`,
		Example: `  switchyard simulate balance
  switchyard simulate balance --world quarter --policy aperture,aperture_fixed
  switchyard simulate balance --clients 200 --servers 100 --load 0.8 --html page.html`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			w, chosen, err := s.choose(c)
			if err != nil {
				return usageOf(c, err)
			}
			return a.simulateBalance(c, w, chosen, s)
		},
	}
	f := c.Flags()
	f.StringVar(&s.world, "world", "tail", "`NAME` of what goes on")
	f.StringSliceVar(&s.policies, "policy", nil, "`NAMES` of policies (default all)")
	f.IntVar(&s.seeds, "seeds", 1, "how many runs to take the mean of, 1 to 100")
	f.StringVar(&s.page, "html", "", "write a page with plots to this `FILE`")
	f.StringVar(&s.pictures, "svg", "", "write each plot as WORLD-PLOT.svg into this `FOLDER`")
	f.IntVar(&s.clients, "clients", 0, "clients, instead of the world's")
	f.IntVar(&s.servers, "servers", 0, "servers, instead of the world's")
	f.IntVar(&s.workers, "workers", 0, "requests that a server works on at once")
	f.IntVar(&s.queue, "queue", 0, "requests that wait in a server; more are refused")
	f.DurationVar(&s.mean, "mean", 0, "mean of the service times")
	f.Float64Var(&s.sigma, "sigma", 0, "their spread: 0 is constant, 0.7 usual, 1.5 wild")
	f.Float64Var(&s.load, "load", 0, "load as a share of what all servers can do")
	f.DurationVar(&s.duration, "duration", 0, "how long a run is, in virtual time")
	return c
}

// maxSimulated bounds the requests of one run, which are held in memory while
// they are under way and take about a microsecond each.
const maxSimulated = 100_000_000

func (s simulation) choose(c *cobra.Command) (simulate.World, []simulate.Policy, error) {
	var w simulate.World
	var names []string
	for _, x := range simulate.Worlds() {
		names = append(names, x.Name)
		if x.Name == s.world {
			w = x
		}
	}
	if w.Name == "" {
		return w, nil, fmt.Errorf("unknown world %q; there are %s", s.world, strings.Join(names, ", "))
	}
	set := c.Flags().Changed
	if set("clients") {
		w.Clients, w.Shares = s.clients, nil
	}
	for flag, pair := range map[string][2]*int{"servers": {&w.Servers, &s.servers}, "workers": {&w.Workers, &s.workers}, "queue": {&w.Queue, &s.queue}} {
		if set(flag) {
			*pair[0] = *pair[1]
		}
	}
	if set("mean") {
		w.Mean = s.mean
	}
	if set("sigma") {
		w.Sigma = s.sigma
	}
	if set("load") {
		w.Load = s.load
	}
	if set("duration") {
		w.Duration = s.duration
	}
	if err := w.Check(); err != nil {
		return w, nil, err
	}
	if w.Requests() > maxSimulated {
		return w, nil, fmt.Errorf("this world makes %s requests; at most %s can be simulated: shorten --duration", count(int64(w.Requests())), count(int64(maxSimulated)))
	}
	if s.seeds < 1 || s.seeds > 100 {
		return w, nil, fmt.Errorf("--seeds must be between 1 and 100, not %d", s.seeds)
	}
	all := simulate.Policies()
	if len(s.policies) == 0 {
		return w, all, nil
	}
	names = nil
	for _, p := range all {
		names = append(names, p.Name)
	}
	var chosen []simulate.Policy
next:
	for _, name := range s.policies {
		for _, p := range all {
			if p.Name == name {
				chosen = append(chosen, p)
				continue next
			}
		}
		return w, nil, fmt.Errorf("unknown policy %q; there are %s", name, strings.Join(names, ", "))
	}
	return w, chosen, nil
}

func (a *app) simulateBalance(c *cobra.Command, w simulate.World, policies []simulate.Policy, s simulation) error {
	results := make([]*simulate.Result, 0, len(policies))
	about := map[string]string{}
	for _, p := range policies {
		var runs []*simulate.Result
		for seed := range s.seeds {
			if err := c.Context().Err(); err != nil {
				return err
			}
			r, err := simulate.Run(w, p, uint64(seed)+1)
			if err != nil {
				return err
			}
			runs = append(runs, r)
		}
		results = append(results, simulate.Average(runs))
		about[p.Name] = p.About
	}
	if s.page != "" {
		if err := writeFile(s.page, func(out io.Writer) error { return simulate.WritePage(out, w, results, about, s.seeds) }); err != nil {
			return err
		}
	}
	if s.pictures != "" {
		for _, p := range simulate.Plots(w, results) {
			name := filepath.Join(s.pictures, w.Name+"-"+p.Name+".svg")
			if err := os.WriteFile(name, []byte(p.SVG), 0o644); err != nil {
				return err
			}
		}
	}
	if a.json() {
		views := make([]simulationView, len(results))
		for i, r := range results {
			views[i] = viewSimulation(r)
		}
		return a.printJSON(views)
	}
	t := a.newTable(simulate.Header...)
	for _, r := range results {
		t.row(simulate.Row(r, about[r.Policy])...)
	}
	return t.flush()
}

type simulationView struct {
	World            string  `json:"world"`
	Policy           string  `json:"policy"`
	Requests         int     `json:"requests"`
	Failures         int     `json:"failures"`
	Attempts         int     `json:"attempts"`
	Retries          int     `json:"retries"`
	Hedges           int     `json:"hedges"`
	P50              float64 `json:"p50_ms"`
	P90              float64 `json:"p90_ms"`
	P99              float64 `json:"p99_ms"`
	P999             float64 `json:"p999_ms"`
	Max              float64 `json:"max_ms"`
	Success          float64 `json:"success"`
	Connections      float64 `json:"connections"`
	Mesh             float64 `json:"mesh"`
	Busiest          float64 `json:"busiest"`
	Idlest           float64 `json:"idlest"`
	AttemptsByServer []int   `json:"attempts_by_server"`
}

func viewSimulation(r *simulate.Result) simulationView {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return simulationView{
		World: r.World, Policy: r.Policy, Requests: r.Requests, Failures: r.Failures, Attempts: r.Attempts,
		Retries: r.Retries, Hedges: r.Hedges,
		P50: ms(r.P50), P90: ms(r.P90), P99: ms(r.P99), P999: ms(r.P999), Max: ms(r.Max),
		Success: r.Success(), Connections: r.Connections, Mesh: r.Mesh, Busiest: r.Busiest, Idlest: r.Idlest,
		AttemptsByServer: r.PerServer,
	}
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
