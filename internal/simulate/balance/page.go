package balance

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"
)

func milli(d time.Duration) float64 { return d.Seconds() * 1000 }

// Plot is one picture.
type Plot struct {
	// Name is a short word for file names.
	Name string
	// SVG is the whole picture.
	SVG string
}

// Plots draws the results of one world: quantiles, load per server, and over time
// p99, failures, connections and, if there is one, the size of the aperture.
func Plots(w World, results []*Result) []Plot {
	if len(results) == 0 {
		return nil // no scale has anything to span
	}
	plots := []Plot{
		{"quantiles", quantilesPlot("Latency of logical requests: "+w.Name, results)},
		{"servers", serversPlot("Attempts per server: "+w.Name, results)},
		{"p99", lines("p99 latency over time: "+w.Name, "ms", curves(results, func(s Step) float64 {
			if s.Requests == 0 {
				return math.NaN()
			}
			return milli(s.P99)
		}), true)},
		{"connections", lines("Open connections of all clients together: "+w.Name, "", curves(results, func(s Step) float64 { return float64(s.Connections) }), true)},
	}
	for _, r := range results {
		if r.Failures > 0 {
			plots = append(plots, Plot{"failures", lines("Failed logical requests: "+w.Name, "%", curves(results, func(s Step) float64 {
				return 100 * float64(s.Failures) / math.Max(float64(s.Requests), 1)
			}), false)})
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
		plots = append(plots, Plot{"aperture", lines("Servers in the aperture, mean of all clients: "+w.Name, "", curves(apertures, func(s Step) float64 { return s.Aperture }), false)})
	}
	return plots
}

func curves(results []*Result, value func(Step) float64) []Line {
	out := make([]Line, 0, len(results))
	for _, r := range results {
		l := Line{Name: r.Policy}
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
	var b strings.Builder
	b.WriteString(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Switchyard: load balancing, ` + html.EscapeString(w.Name) + `</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid #e4e4e4; white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
svg { max-width: 100%; height: auto; margin: .6rem 0; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem; }
</style></head><body>
`)
	fmt.Fprintf(&b, "<h1>Load balancing in the world “%s”</h1>\n<p>%s.</p>\n", html.EscapeString(w.Name), html.EscapeString(capital(w.About)))
	warmup, mean := "", "One run."
	if w.Warmup > 0 {
		warmup = fmt.Sprintf(", of which the first %v do not count", w.Warmup)
	}
	if seeds > 1 {
		mean = fmt.Sprintf("Figures are the mean of %d seeds, plots show the first.", seeds)
	}
	fmt.Fprintf(&b, "<p>%d clients and %d servers with %d workers and a queue of %d each; service times of mean %v, lognormal with sigma %v; %.0f %% load, %.0f requests a second for %v%s. %s</p>\n",
		w.Clients, w.Servers, w.Workers, w.Queue, w.Mean, w.Sigma, 100*w.Load, w.rate(), w.Duration, warmup, mean)
	b.WriteString("<div class=\"scroll\"><table><thead><tr>")
	for _, h := range Header {
		fmt.Fprintf(&b, "<th>%s</th>", html.EscapeString(h))
	}
	b.WriteString("</tr></thead><tbody>\n")
	for _, r := range results {
		b.WriteString("<tr>")
		for _, cell := range Row(r, about[r.Policy]) {
			fmt.Fprintf(&b, "<td>%s</td>", html.EscapeString(cell))
		}
		b.WriteString("</tr>\n")
	}
	b.WriteString("</tbody></table></div>\n")
	b.WriteString(`<dl><dt>extra load</dt><dd>attempts beyond one per request: retries and backup requests</dd>
<dt>mesh</dt><dd>open connections, as a share of every client with every server</dd>
<dt>busiest</dt><dd>the busiest server's attempts over the mean</dd></dl>
`)
	for _, p := range Plots(w, results) {
		fmt.Fprintf(&b, "<section id=\"%s\">%s</section>\n", p.Name, p.SVG)
	}
	b.WriteString("</body></html>\n")
	_, err := io.WriteString(out, b.String())
	return err
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
