package queue

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/switchyard-dev/switchyard/internal/simulate/page"
)

// Table is a result in rows of text.
type Table struct {
	Header []string
	Rows   [][]string
}

// Tables are the figures of a result.
func Tables(r *Result) []Table {
	switch {
	case r.Spread != nil:
		return spreadTables(r)
	case r.Day != nil:
		d := r.Day
		return []Table{{
			[]string{"tasks", "changes", "most partitions", "at the end", "overloaded for", "stranded"},
			[][]string{{count(d.Added), fmt.Sprint(d.Changes), fmt.Sprint(d.MostWrite), fmt.Sprint(d.LastRead), d.Behind.String(), fmt.Sprint(d.Stranded)}},
		}}
	}
	t := Table{Header: []string{"polls", "took", "ideal", "over ideal", "ages apart", "what it is"}}
	for _, d := range r.Drain {
		about := ""
		for _, p := range Policies() {
			if p.Name == d.Policy {
				about = p.About
			}
		}
		took := round(d.Took)
		if d.Took == 0 {
			took = fmt.Sprintf("over %s (%.0f %% done)", round(d.Limit), 100*float64(d.Done)/float64(d.Tasks))
		}
		apart := "–"
		if r.Study.Drain.Span > 0 {
			apart = round(d.Apart)
		}
		t.Rows = append(t.Rows, []string{d.Policy, took, round(d.Ideal), fmt.Sprintf("%.2f ×", d.Slower()), apart, about})
	}
	return []Table{t}
}

func spreadTables(r *Result) []Table {
	where := Table{Header: []string{"routing", "partitions", "per node", "busiest node", "of the largest queue"}}
	moves := Table{Header: []string{"routing", "moved", "had to", "load moved", "busiest node", "of the largest queue", "change"}}
	for _, s := range r.Spread {
		where.Rows = append(where.Rows, []string{s.name(), count(int64(s.Partitions)),
			fmt.Sprintf("%d to %d", slices.Min(s.PerNode), slices.Max(s.PerNode)), fmt.Sprintf("%.2f × mean load", s.Busiest()),
			fmt.Sprintf("%d to %d per node", slices.Min(s.Largest), slices.Max(s.Largest))})
		for _, c := range s.Changes {
			moves.Rows = append(moves.Rows, []string{s.name(), share(c.Moved, s.Partitions), share(c.Forced, s.Partitions), fmt.Sprintf("%.2f %%", 100*c.Load),
				fmt.Sprintf("%.2f × mean load", c.Busiest), fmt.Sprintf("at most %d per node", c.Most), c.Name})
		}
	}
	return []Table{where, moves}
}

func (r *SpreadResult) name() string {
	if r.Batch == 0 {
		return r.Routing
	}
	return fmt.Sprintf("%s, batch %d", r.Routing, r.Batch)
}

func share(n, of int) string {
	return fmt.Sprintf("%s (%.2f %%)", count(int64(n)), 100*float64(n)/float64(of))
}

func round(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// count writes a number with commas.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func number(v float64) string {
	if v >= 100 {
		return count(int64(v + 0.5))
	}
	return page.Number(v)
}

// Plots draws a result.
func Plots(r *Result) []page.Plot {
	name := func(what string) string { return r.Study.Name + "-" + what }
	switch {
	case r.Spread != nil:
		return []page.Plot{
			{Name: name("partitions"), SVG: perNode("Partitions per node", r.Spread, func(s *SpreadResult, n int) float64 { return float64(s.PerNode[n]) })},
			{Name: name("load"), SVG: perNode("Load per node", r.Spread, func(s *SpreadResult, n int) float64 { return s.Load[n] })},
			{Name: name("largest"), SVG: perNode("Partitions of the largest queue per node", r.Spread, func(s *SpreadResult, n int) float64 { return float64(s.Largest[n]) })},
		}
	case r.Day != nil:
		d := r.Day
		line := func(name string, y []float64) page.Line {
			l := page.Line{Name: name, Y: y}
			for i := range y {
				l.X = append(l.X, (time.Duration(i+1) * d.Step).Hours())
			}
			return l
		}
		return []page.Plot{
			{Name: name("load"), SVG: page.Chart{Title: "Load", XUnit: "hours", YUnit: "tasks/s", Lines: []page.Line{line("added", d.Load)}}.Draw()},
			{Name: name("partitions"), SVG: page.Chart{Title: "Partitions", XUnit: "hours", Lines: []page.Line{line("polled", d.Read), line("added to", d.Write), line("target", d.Target)}}.Draw()},
			{Name: name("backlog"), SVG: page.Chart{Title: "Tasks that wait", XUnit: "hours", Lines: []page.Line{line("all partitions", d.Backlog)}}.Draw()},
		}
	}
	var backlog, busy, apart []page.Line
	for _, d := range r.Drain {
		line := func(y []float64) page.Line {
			l := page.Line{Name: d.Policy, Y: y}
			for i := range y {
				l.X = append(l.X, (time.Duration(i) * d.Step).Seconds())
			}
			return l
		}
		percent, spread := make([]float64, len(d.Busy)), make([]float64, len(d.Oldest))
		for i := range d.Busy {
			percent[i], spread[i] = 100*d.Busy[i], d.Oldest[i]-d.Youngest[i]
		}
		backlog, busy, apart = append(backlog, line(d.Backlog)), append(busy, line(percent)), append(apart, line(spread))
	}
	plots := []page.Plot{
		{Name: name("backlog"), SVG: page.Chart{Title: "Tasks that wait", XUnit: "seconds", Lines: backlog}.Draw()},
		{Name: name("busy"), SVG: page.Chart{Title: "Pollers at work", XUnit: "seconds", YUnit: "%", Lines: busy}.Draw()},
	}
	if r.Study.Drain.Span > 0 {
		plots = append(plots, page.Plot{Name: name("ages"), SVG: page.Chart{Title: "How far the ages of the partitions' oldest tasks are apart", XUnit: "seconds", YUnit: "s", Lines: apart}.Draw()})
	}
	return plots
}

// perNode draws a bar for each node, in order of size. At most 500 nodes are drawn, and
// the ends always are.
func perNode(title string, results []*SpreadResult, value func(*SpreadResult, int) float64) string {
	b := page.Bars{Title: title, Caption: "one bar per node, by size; dashed: the mean"}
	for _, r := range results {
		all := make([]float64, len(r.PerNode))
		for n := range all {
			all[n] = value(r, n)
		}
		slices.Sort(all)
		slices.Reverse(all)
		sum := 0.0
		for _, v := range all {
			sum += v
		}
		mean := sum / float64(len(all))
		row := page.BarRow{Name: r.name(), Note: fmt.Sprintf("%s to %s, mean %s", number(all[len(all)-1]), number(all[0]), number(mean))}
		const most = 500
		if len(all) > most {
			b.Caption = fmt.Sprintf("bars for %d of %d nodes, by size; dashed: the mean", most, len(all))
		}
		for i := range min(len(all), most) {
			row.Values = append(row.Values, all[i*(len(all)-1)/max(min(len(all), most)-1, 1)])
		}
		b.Rows = append(b.Rows, row)
	}
	return b.Draw()
}

// Describe says in a sentence what is simulated.
func Describe(s Study) string {
	switch {
	case s.Spread != nil:
		x := s.Spread
		return fmt.Sprintf("%s queues on %s nodes, the busiest with %s partitions, %s tasks a second in all; load and partitions of a queue fall with its rank.",
			count(int64(x.Queues)), count(int64(x.Nodes)), count(int64(x.Largest)), count(int64(x.Load)))
	case s.Day != nil:
		x := s.Day
		return fmt.Sprintf("From %s to %s tasks a second and back within %v, %v × as many for %v in the middle; a partition can take %s a second.",
			count(int64(x.Low)), count(int64(x.High)), x.Length, x.Spike, x.SpikeTime, count(int64(x.Capacity)))
	case s.Drain != nil:
		x := s.Drain
		span := ""
		if x.Span > 0 {
			span = fmt.Sprintf(", added within %v", x.Span)
		}
		return fmt.Sprintf("%s tasks on %s of %s partitions%s; %s pollers in %d processes, %v of work for each task; a poll waits up to %v.",
			count(int64(x.Tasks)), count(int64(x.Loaded)), count(int64(x.Partitions)), span, count(int64(x.Pollers)), x.Clients, x.Work, x.Wait)
	}
	return ""
}

// WritePage writes a page that needs nothing else, with the results of all studies.
func WritePage(out io.Writer, results []*Result, seed uint64) error {
	p := page.New("Switchyard: queues of a large cluster", "Queues of a large cluster, simulated")
	p.Paragraph(fmt.Sprintf("In virtual time, with seed %d. The ring, managed scaling and the partitions themselves are those of a node, and so is the code that chooses partitions; a server polls by fewest so far, not by backlog.", seed))
	for _, r := range results {
		p.Heading(r.Study.Name + ": " + r.Study.About)
		p.Paragraph(Describe(r.Study))
		for _, t := range Tables(r) {
			p.Table(t.Header, t.Rows)
		}
		for _, plot := range Plots(r) {
			p.Plot(plot)
		}
	}
	return p.Write(out)
}
