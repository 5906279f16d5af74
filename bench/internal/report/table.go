package report

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/bench/internal/scenario"
	"github.com/switchyard-dev/switchyard/bench/internal/system"
)

// Modes in the order of the tables, with their titles.
var modes = []struct{ name, title string }{
	{"fsync", "Synced before it is acknowledged"},
	{"fsync-slow", "The same, each sync slower"},
	{"relaxed", "Relaxed"},
}

// median of the rounds' values, 0 for none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	n := len(values)
	if n%2 == 1 {
		return values[n/2]
	}
	return (values[n/2-1] + values[n/2]) / 2
}

// cell is the median of one system's rounds in one mode and scenario.
type cell struct {
	rate, p50, p99 float64
	rounds         int
	failed         string
	cut            bool
}

func (f *File) cell(mode, name, sys string) cell {
	var c cell
	var rates, p50s, p99s []float64
	for _, run := range f.Runs {
		if run.Mode != mode || run.System != sys {
			continue
		}
		for _, r := range run.Results {
			if r.Scenario != name {
				continue
			}
			if r.Error != "" {
				c.failed = r.Error
				continue
			}
			c.rounds++
			c.cut = c.cut || r.Note != ""
			rates, p50s, p99s = append(rates, r.Rate), append(p50s, r.P50), append(p99s, r.P99)
		}
	}
	c.rate, c.p50, c.p99 = median(rates), median(p50s), median(p99s)
	return c
}

func isLatency(name string) bool { return name == "serial" || name == "latency" }

func (c cell) text(name string) string {
	switch {
	case c.rounds == 0 && c.failed != "":
		return "failed"
	case c.rounds == 0:
		return "–"
	case isLatency(name):
		return fmt.Sprintf("%s / %s", duration(c.p50), duration(c.p99))
	}
	s := rate(c.rate)
	if c.cut {
		s += " (cut)"
	}
	return s
}

func rate(v float64) string {
	switch {
	case v >= 10_000:
		v = float64(int(v/100+0.5)) * 100
	case v >= 1000:
		v = float64(int(v/10+0.5)) * 10
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s + "/s"
}

func duration(us float64) string {
	switch {
	case us >= 10_000:
		return fmt.Sprintf("%.0f ms", us/1000)
	case us >= 1000:
		return fmt.Sprintf("%.1f ms", us/1000)
	}
	return fmt.Sprintf("%.0f µs", us)
}

// confirms tells whether a system confirms completions.
func confirms(sys string) bool { return sys != "rabbitmq" }

// ratio compares Switchyard with the best of the others: for rates its multiple of
// theirs, for latencies its share of theirs, p50 and p99. Where completions are
// measured, the best is first that of those that confirm them.
func (f *File) ratio(mode, name string, peers []string) string {
	own := f.cell(mode, name, "switchyard")
	if own.rounds == 0 {
		return "–"
	}
	best := func(value func(cell) float64, higher bool, use func(string) bool) float64 {
		var b float64
		for _, p := range peers {
			if c := f.cell(mode, name, p); c.rounds > 0 && use(p) {
				if v := value(c); b == 0 || (v > b) == higher {
					b = v
				}
			}
		}
		return b
	}
	all := func(string) bool { return true }
	times := func(v, of float64) string {
		if of == 0 {
			return "–"
		}
		return fmt.Sprintf("%.2f×", v/of)
	}
	if isLatency(name) {
		return times(own.p50, best(func(c cell) float64 { return c.p50 }, false, all)) + " / " +
			times(own.p99, best(func(c cell) float64 { return c.p99 }, false, all))
	}
	byRate := func(c cell) float64 { return c.rate }
	if name == "drain" || name == "together" {
		return times(own.rate, best(byRate, true, confirms)) + " (" + times(own.rate, best(byRate, true, all)) + " with RabbitMQ)"
	}
	return times(own.rate, best(byRate, true, all))
}

// The marks between which WriteInto puts the tables.
const (
	beginMark = "<!-- results begin -->\n"
	endMark   = "<!-- results end -->"
)

// WriteInto replaces what stands between the marks in a file by the tables.
func (f *File) WriteInto(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := bytes.Cut(old, []byte(beginMark))
	_, tail, ok2 := bytes.Cut(rest, []byte(endMark))
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the marks %q and %q", path, strings.TrimSpace(beginMark), endMark)
	}
	var b bytes.Buffer
	b.Write(head)
	b.WriteString(beginMark + "\n")
	f.Table(&b)
	b.WriteString("\n" + endMark)
	b.Write(tail)
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// Table writes all as Markdown.
func (f *File) Table(w io.Writer) {
	fmt.Fprintf(w, "%s: %s, %d cores, %.0f GB, Linux %s, %s, %s. fdatasync p50 %s, p99 %s",
		f.Started.UTC().Format("2006-01-02"), f.Machine.CPU, f.Machine.Cores, f.Machine.MemoryGB, f.Machine.Kernel, f.Machine.Disk, f.Machine.Go,
		duration(f.Disk.P50), duration(f.Disk.P99))
	if f.SlowedDisk != nil {
		fmt.Fprintf(w, "; slowed by %s: p50 %s, p99 %s", f.SlowSync, duration(f.SlowedDisk.P50), duration(f.SlowedDisk.P99))
	}
	fmt.Fprintf(w, ". Medians of the rounds.\n")
	for _, mode := range modes {
		var present []string
		for _, name := range system.Names() {
			if slices.ContainsFunc(f.Runs, func(r Run) bool { return r.Mode == mode.name && r.System == name }) {
				present = append(present, name)
			}
		}
		if len(present) == 0 {
			continue
		}
		peers := slices.DeleteFunc(slices.Clone(present), func(s string) bool { return s == "switchyard" })
		own := len(peers) < len(present)
		fmt.Fprintf(w, "\n### %s\n\n| scenario | %s |", mode.title, strings.Join(present, " | "))
		if own {
			fmt.Fprint(w, " Switchyard to the best |")
		}
		fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---|", len(present)+btoi(own)))
		for _, name := range scenario.Names() {
			fmt.Fprintf(w, "| %s |", scenario.Title(name, f.Options))
			for _, s := range present {
				fmt.Fprintf(w, " %s |", f.cell(mode.name, name, s).text(name))
			}
			if own {
				fmt.Fprintf(w, " %s |", f.ratio(mode.name, name, peers))
			}
			fmt.Fprintln(w)
		}
	}
	f.systems(w)
	f.problems(w)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (f *File) systems(w io.Writer) {
	fmt.Fprintf(w, "\n### Versions and settings\n\n| system | version | mode | settings |\n|---|---|---|---|\n")
	for _, name := range system.Names() {
		for _, mode := range modes {
			i := slices.IndexFunc(f.Runs, func(r Run) bool { return r.Mode == mode.name && r.System == name })
			if i >= 0 && mode.name != "fsync-slow" { // the same as fsync
				fmt.Fprintf(w, "| %s | %s | %s | %s |\n", name, f.Runs[i].Version, mode.name, strings.Join(f.Runs[i].Settings, "; "))
			}
		}
	}
}

func (f *File) problems(w io.Writer) {
	first := true
	for _, run := range f.Runs {
		for _, r := range run.Results {
			var what []string
			if r.Error != "" {
				what = append(what, "failed: "+r.Error)
			}
			if r.Note != "" {
				what = append(what, r.Note)
			}
			if r.Duplicates > 0 {
				what = append(what, fmt.Sprintf("%d tasks were handled again", r.Duplicates))
			}
			if len(what) == 0 {
				continue
			}
			if first {
				fmt.Fprintf(w, "\n### Notes\n\n")
				first = false
			}
			fmt.Fprintf(w, "- %s, %s, %s, round %d: %s\n", run.System, run.Mode, r.Scenario, run.Round, strings.Join(what, "; "))
		}
	}
}
