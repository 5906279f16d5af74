package queue

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Study is a question that a simulation answers.
type Study struct {
	Name, About string
	// One of these is set.
	Spread *Spread
	Drain  *Drain
	Day    *Day
	// Limit is how many times the ideal time a Drain is given.
	Limit float64
}

// Studies are the known ones.
func Studies() []Study {
	spread, two, day := DefaultSpread(), DefaultDrain(), DefaultDay()
	even, wide := two, two
	even.Partitions, even.Loaded, even.Tasks, even.Span, even.Work = 8, 8, 200_000, 10*time.Minute, 500*time.Millisecond
	even.Policies = []string{"fewest", "weighted"}
	wide.Partitions, wide.Loaded, wide.Tasks, wide.Work = 4096, 4096, 200_000, 2*time.Second
	wide.Pollers, wide.Clients, wide.Policies = 4096, 32, []string{"fewest", "weighted"}
	return []Study{
		{Name: "spread", About: "where the partitions of many queues lie on many nodes, and what moves when nodes come and go", Spread: &spread},
		{Name: "two", About: "a backlog on two partitions of 32: how polls find it", Drain: &two, Limit: 10},
		{Name: "even", About: "a large backlog and slow workers: whether all partitions are worked off alike", Drain: &even, Limit: 2},
		{Name: "wide", About: "a backlog on all 4,096 partitions of one queue", Drain: &wide, Limit: 4},
		{Name: "day", About: "how the number of partitions follows a day's load, with a spike in the middle", Day: &day},
	}
}

// Check says what is wrong with a study.
func (s Study) Check() error {
	switch {
	case s.Spread != nil:
		return s.Spread.Check()
	case s.Drain != nil:
		return s.Drain.Check()
	case s.Day != nil:
		return s.Day.Check()
	}
	return fmt.Errorf("study %q has nothing to simulate", s.Name)
}

// Result is the answer to a study.
type Result struct {
	Study  Study
	Spread []*SpreadResult
	Drain  []*DrainResult
	Day    *DayResult
}

// Run carries a study out. told hears how far it is, as a share; it may be nil. The
// same seed gives the same result.
func Run(ctx context.Context, s Study, seed uint64, told func(done float64)) (*Result, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if told == nil {
		told = func(float64) {}
	}
	r := &Result{Study: s}
	var err error
	switch {
	case s.Spread != nil:
		r.Spread, err = RunSpread(ctx, *s.Spread, told)
	case s.Day != nil:
		r.Day, err = RunDay(ctx, *s.Day, seed)
	default:
		policies := slices.DeleteFunc(Policies(), func(p Policy) bool {
			return len(s.Drain.Policies) > 0 && !slices.Contains(s.Drain.Policies, p.Name)
		})
		for i, p := range policies {
			var d *DrainResult
			d, err = RunDrain(ctx, *s.Drain, p, s.Limit, seed, func(done float64) { told((float64(i) + done) / float64(len(policies))) })
			if err != nil {
				break
			}
			r.Drain = append(r.Drain, d)
		}
	}
	if err != nil {
		return nil, err
	}
	told(1)
	return r, nil
}
