package queue

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func studyNamed(t *testing.T, name string) Study {
	t.Helper()
	for _, s := range Studies() {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no study %q", name)
	return Study{}
}

func run(t *testing.T, s Study, seed uint64) *Result {
	t.Helper()
	r, err := Run(context.Background(), s, seed, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// With all backlog on two of 32 partitions, polls by backlog take at most 1.3 times the
// ideal; polls that do not look at it, or stay where nothing is, take far longer.
func TestDrain_backlogOnTwoPartitions(t *testing.T) {
	slower := map[string]float64{}
	for _, d := range run(t, studyNamed(t, "two"), 1).Drain {
		slower[d.Policy] = d.Slower()
	}
	if slower["weighted"] > 1.3 {
		t.Errorf("%.2f times the ideal by backlog", slower["weighted"])
	}
	for _, other := range []string{"fewest", "weighted_long"} {
		if slower[other] < 3*slower["weighted"] {
			t.Errorf("%s takes only %.2f times the ideal, by backlog %.2f", other, slower[other], slower["weighted"])
		}
	}
}

// A backlog of 200,000 over 8 partitions with slow workers: the ages stay together.
func TestDrain_evenly(t *testing.T) {
	s := studyNamed(t, "even")
	s.Drain.Policies = []string{"weighted"}
	d := run(t, s, 1).Drain[0]
	if d.Done != 200_000 || d.Slower() > 1.1 {
		t.Errorf("%d tasks done in %.2f times the ideal", d.Done, d.Slower())
	}
	if d.Apart > 10*time.Second {
		t.Errorf("ages were up to %v apart", d.Apart)
	}
}

func TestDrain_manyPartitions(t *testing.T) {
	s := studyNamed(t, "wide")
	s.Drain.Tasks, s.Drain.Policies = 50_000, []string{"fewest"}
	s.Drain.Pollers = 1024
	if d := run(t, s, 1).Drain[0]; d.Done != 50_000 || d.Slower() > 1.5 {
		t.Errorf("%d of 50,000 tasks done in %.2f times the ideal", d.Done, d.Slower())
	}
}

// On a thousand nodes, what moves when nodes leave is little more than what was on
// them, for basic and for spread routing, and the load stays where it can be borne.
func TestSpread_ofTenThousandQueues(t *testing.T) {
	s := studyNamed(t, "spread")
	s.Spread.Queues = 10_000
	for _, r := range run(t, s, 1).Spread {
		sum := 0
		for _, n := range r.PerNode {
			sum += n
		}
		if sum != r.Partitions || r.Partitions < 10_000+4095 {
			t.Errorf("%s: %d partitions on nodes, there are %d", r.Routing, sum, r.Partitions)
		}
		for _, c := range r.Changes {
			limit := c.Forced
			if c.Forced == 0 { // the node that joins takes its share
				limit = 3 * r.Partitions / s.Spread.Nodes
			}
			if r.Batch == 0 && c.Forced > 0 && c.Moved != c.Forced {
				t.Errorf("basic, %s: %d moved, %d had to", c.Name, c.Moved, c.Forced)
			}
			if c.Moved == 0 || c.Moved > 4*limit {
				t.Errorf("%s, %s: %d moved, %d had to", r.Routing, c.Name, c.Moved, c.Forced)
			}
			if c.Busiest > 3 {
				t.Errorf("%s, %s: a node has %.1f times the mean load", r.Routing, c.Name, c.Busiest)
			}
		}
	}
}

func TestDay_countsFollowTheLoad(t *testing.T) {
	d := run(t, studyNamed(t, "day"), 1).Day
	if d.Stranded != 0 || d.Added-d.Done > 0 {
		t.Errorf("%d of %d tasks were done, %d are where nobody polls", d.Done, d.Added, d.Stranded)
	}
	if d.MostWrite < 40 || d.MostWrite > 60 || d.LastRead > 2 {
		t.Errorf("up to %d partitions, %d at the end", d.MostWrite, d.LastRead)
	}
	for i := range d.Load {
		each := d.Load[i] / d.Write[i]
		if each > 4500 || d.Write[i] > 4 && each < 500 {
			t.Errorf("step %d: %.0f tasks/s for each of %.0f partitions", i, each, d.Write[i])
		}
		if d.Read[i] < d.Write[i] || d.Write[i] < d.Target[i] {
			t.Errorf("step %d: read %v, write %v, target %v", i, d.Read[i], d.Write[i], d.Target[i])
		}
	}
}

func small(t *testing.T, name string) Study {
	t.Helper()
	s := studyNamed(t, name)
	switch {
	case s.Spread != nil:
		s.Spread.Nodes, s.Spread.Queues, s.Spread.Largest, s.Spread.Lost = 20, 100, 64, 2
	case s.Day != nil:
		s.Day.Length = 20 * time.Minute
	default:
		s.Drain.Partitions, s.Drain.Loaded, s.Drain.Tasks, s.Drain.Pollers, s.Drain.Clients, s.Drain.Policies = 32, 4, 500, 8, 2, nil
	}
	return s
}

func TestRun_sameSeedSameResult(t *testing.T) {
	for _, s := range Studies() {
		s = small(t, s.Name)
		a, b := run(t, s, 7), run(t, s, 7)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs with one seed differ", s.Name)
		}
		if c := run(t, s, 8); s.Spread == nil && reflect.DeepEqual(a, c) {
			t.Errorf("%s: another seed changes nothing", s.Name)
		}
	}
}

func TestRun_endsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, name := range []string{"spread", "two", "day"} {
		if _, err := Run(ctx, studyNamed(t, name), 1, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRun_tellsHowFarItIs(t *testing.T) {
	var told []float64
	if _, err := Run(context.Background(), small(t, "spread"), 1, func(done float64) { told = append(told, done) }); err != nil {
		t.Fatal(err)
	}
	if len(told) < 3 || !slices.IsSorted(told) || told[len(told)-1] != 1 {
		t.Errorf("%v", told)
	}
}

func TestStudy_check(t *testing.T) {
	for name, change := range map[string]func(*Study){
		"nodes":       func(s *Study) { s.Spread.Nodes = 1 },
		"queues":      func(s *Study) { s.Spread.Queues = 0 },
		"largest":     func(s *Study) { s.Spread.Largest = 5000 },
		"batch":       func(s *Study) { s.Spread.Batch = 0 },
		"lost":        func(s *Study) { s.Spread.Lost = 1000 },
		"no load":     func(s *Study) { s.Spread.Load = 0 },
		"nothing":     func(s *Study) { s.Spread = nil },
		"partitions":  func(s *Study) { d := DefaultDrain(); d.Partitions = 0; *s = Study{Drain: &d} },
		"loaded":      func(s *Study) { d := DefaultDrain(); d.Loaded = 33; *s = Study{Drain: &d} },
		"tasks":       func(s *Study) { d := DefaultDrain(); d.Tasks = 1e7; *s = Study{Drain: &d} },
		"pollers":     func(s *Study) { d := DefaultDrain(); d.Pollers = 0; *s = Study{Drain: &d} },
		"clients":     func(s *Study) { d := DefaultDrain(); d.Clients = 65; *s = Study{Drain: &d} },
		"work":        func(s *Study) { d := DefaultDrain(); d.Work = 0; *s = Study{Drain: &d} },
		"span":        func(s *Study) { d := DefaultDrain(); d.Span = -1; *s = Study{Drain: &d} },
		"policy":      func(s *Study) { d := DefaultDrain(); d.Policies = []string{"luck"}; *s = Study{Drain: &d} },
		"length":      func(s *Study) { d := DefaultDay(); d.Length = 0; *s = Study{Day: &d} },
		"day's load":  func(s *Study) { d := DefaultDay(); d.High = -1; *s = Study{Day: &d} },
		"capacity":    func(s *Study) { d := DefaultDay(); d.Capacity = 0; *s = Study{Day: &d} },
		"day's rules": func(s *Study) { d := DefaultDay(); d.Settings.Min = -5; *s = Study{Day: &d} },
	} {
		s := studyNamed(t, "spread")
		change(&s)
		if _, err := Run(context.Background(), s, 1, nil); err == nil {
			t.Errorf("%s: it was run", name)
		}
	}
}

func TestWritePage_standsAlone(t *testing.T) {
	var results []*Result
	for _, s := range Studies() {
		results = append(results, run(t, small(t, s.Name), 1))
	}
	var b strings.Builder
	if err := WritePage(&b, results, 1); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, bad := range []string{"<script", "src=", "href=", "@import", "url(", "NaN", "Inf"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	for _, r := range results {
		if len(Plots(r)) < 2 || len(Tables(r)) == 0 || Describe(r.Study) == "" {
			t.Errorf("%s has %d plots and %d tables", r.Study.Name, len(Plots(r)), len(Tables(r)))
		}
		for _, plot := range Plots(r) {
			if !strings.Contains(text, plot.SVG) {
				t.Errorf("%s is not in the page", plot.Name)
			}
			d := xml.NewDecoder(strings.NewReader(plot.SVG))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v", plot.Name, err)
				}
			}
		}
	}
}
