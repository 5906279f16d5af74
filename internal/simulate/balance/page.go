package balance

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/internal/simulate/page"
)

func milli(d time.Duration) float64 { return d.Seconds() * 1000 }

// Plot is one picture.
type Plot = page.Plot

// Plots draws the results of one world: quantiles, load per server, and over time
// p99, failures, connections and, if there is one, the size of the aperture.
func Plots(w World, results []*Result) []Plot {
	if len(results) == 0 {
		return nil // no scale has anything to span
	}
	plots := []Plot{
		{Name: "quantiles", SVG: quantilesPlot("Latency of logical requests: "+w.Name, results)},
		{Name: "servers", SVG: serversPlot("Attempts per server: "+w.Name, results)},
		{Name: "p99", SVG: page.Chart{Title: "p99 latency over time: " + w.Name, XUnit: "seconds", YUnit: "ms", Log: true, Lines: curves(results, func(s Step) float64 {
			if s.Requests == 0 {
				return math.NaN()
			}
			return milli(s.P99)
		})}.Draw()},
		{Name: "connections", SVG: page.Chart{Title: "Open connections of all clients together: " + w.Name, XUnit: "seconds", Log: true,
			Lines: curves(results, func(s Step) float64 { return float64(s.Connections) })}.Draw()},
	}
	for _, r := range results {
		if r.Failures > 0 {
			plots = append(plots, Plot{Name: "failures", SVG: page.Chart{Title: "Failed logical requests: " + w.Name, XUnit: "seconds", YUnit: "%", Lines: curves(results, func(s Step) float64 {
				return 100 * float64(s.Failures) / math.Max(float64(s.Requests), 1)
			})}.Draw()})
			break
		}
	}
	var apertures []*Result
	for _, r := range results {
		for _, s := range r.Steps {
			if s.Aperture > 0 {
				apertures = append(apertures, r)
				break
			}
		}
	}
	if len(apertures) > 0 {
		plots = append(plots, Plot{Name: "aperture", SVG: page.Chart{Title: "Servers in the aperture, mean of all clients: " + w.Name, XUnit: "seconds",
			Lines: curves(apertures, func(s Step) float64 { return s.Aperture })}.Draw()})
	}
	return plots
}

func curves(results []*Result, value func(Step) float64) []page.Line {
	out := make([]page.Line, 0, len(results))
	for _, r := range results {
		l := page.Line{Name: r.Policy}
		// The last step is not a whole one.
		for i := range max(len(r.Steps)-1, 0) {
			l.X = append(l.X, float64(i)*tick.Seconds())
			l.Y = append(l.Y, value(r.Steps[i]))
		}
		out = append(out, l)
	}
	return out
}

// Header names the columns of Row.
var Header = []string{"policy", "p50", "p90", "p99", "p99.9", "success", "extra load", "mesh", "busiest", "what it is"}

// Row is a result as text, by the columns of Header.
func Row(r *Result, about string) []string {
	f := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", milli(d)) }
	return []string{
		r.Policy, f(r.P50), f(r.P90), f(r.P99), f(r.P999), fmt.Sprintf("%.3f %%", math.Floor(1e5*r.Success())/1e3),
		fmt.Sprintf("%.1f %%", 100*r.Extra()), fmt.Sprintf("%.1f %%", 100*r.Mesh), fmt.Sprintf("%.2f ×", r.Busiest), about,
	}
}

// WritePage writes a page that needs nothing else: what the world is, a table, and
// the plots. about has a sentence for each policy by name.
func WritePage(out io.Writer, w World, results []*Result, about map[string]string, seeds int) error {
	p := page.New("Switchyard: load balancing, "+w.Name, "Load balancing in the world “"+w.Name+"”")
	p.Paragraph(capital(w.About) + ".")
	warmup, mean := "", "One run."
	if w.Warmup > 0 {
		warmup = fmt.Sprintf(", of which the first %v do not count", w.Warmup)
	}
	if seeds > 1 {
		mean = fmt.Sprintf("Figures are the mean of %d seeds, plots show the first.", seeds)
	}
	p.Paragraph(fmt.Sprintf("%d clients and %d servers with %d workers and a queue of %d each; service times of mean %v, lognormal with sigma %v; %.0f %% load, %.0f requests a second for %v%s. %s",
		w.Clients, w.Servers, w.Workers, w.Queue, w.Mean, w.Sigma, 100*w.Load, w.rate(), w.Duration, warmup, mean))
	rows := make([][]string, len(results))
	for i, r := range results {
		rows[i] = Row(r, about[r.Policy])
	}
	p.Table(Header, rows)
	p.HTML(`<dl><dt>extra load</dt><dd>attempts beyond one per request: retries and backup requests</dd>
<dt>mesh</dt><dd>open connections, as a share of every client with every server</dd>
<dt>busiest</dt><dd>the busiest server's attempts over the mean</dd></dl>
`)
	for _, plot := range Plots(w, results) {
		p.Plot(plot)
	}
	return p.Write(out)
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
