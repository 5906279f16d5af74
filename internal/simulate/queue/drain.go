package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/switchyard-dev/switchyard/internal/simulate/events"
	"github.com/switchyard-dev/switchyard/matching"
	"github.com/switchyard-dev/switchyard/matching/routing"
	"github.com/switchyard-dev/switchyard/matching/scaling"
)

// Drain is a backlog that workers work off.
type Drain struct {
	// Partitions of the queue, of which the last Loaded hold the backlog of Tasks. It
	// was added within Span, ending before the workers come.
	Partitions, Loaded, Tasks int
	Span                      time.Duration
	// Pollers wait for one task each, work on it for Work on average (exponentially
	// distributed) and poll again. They are spread over Clients processes, each of
	// which counts its own polls.
	Pollers, Clients int
	Work             time.Duration
	// Wait is how long a poll waits for a task.
	Wait time.Duration
	// Hop is how long a call takes, one way, and Write how long a write to the store.
	Hop, Write time.Duration
	// Refresh is how often clients hear of the backlogs.
	Refresh time.Duration
	// Forwarding between partitions.
	Forwarding matching.Forwarding
	// Policies are those of Policies that are compared, by name; none for all.
	Policies []string
}

// DefaultDrain is a backlog on two of 32 partitions.
func DefaultDrain() Drain {
	return Drain{
		Partitions: 32, Loaded: 2, Tasks: 20_000, Pollers: 64, Clients: 4, Work: 50 * time.Millisecond, Wait: time.Minute,
		Hop: 200 * time.Microsecond, Write: time.Millisecond, Refresh: 23 * time.Second,
	}
}

// maxTasks bounds a backlog, which is held in memory.
const maxTasks = 1_000_000

// lead is how long before the workers the backlog is complete.
const lead = 30 * time.Second

// Check says what is wrong with a drain.
func (d Drain) Check() error {
	switch {
	case d.Partitions < 1 || d.Partitions > matching.MaxPartitions:
		return fmt.Errorf("partitions must be between 1 and %d, not %d", matching.MaxPartitions, d.Partitions)
	case d.Loaded < 1 || d.Loaded > d.Partitions:
		return fmt.Errorf("between 1 and all of the %d partitions can hold the backlog, not %d", d.Partitions, d.Loaded)
	case d.Tasks < 1 || d.Tasks > maxTasks:
		return fmt.Errorf("tasks must be between 1 and 1,000,000, not %d", d.Tasks)
	case d.Pollers < 1 || d.Pollers > 100_000:
		return fmt.Errorf("pollers must be between 1 and 100,000, not %d", d.Pollers)
	case len(d.Policies) > 0 && !slices.Equal(d.Policies, known(d.Policies)):
		return fmt.Errorf("unknown policy among %v; there are %v", d.Policies, known(nil))
	case d.Clients < 1 || d.Clients > d.Pollers:
		return fmt.Errorf("clients must be between 1 and the %d pollers, not %d", d.Pollers, d.Clients)
	case d.Span < 0 || d.Span > 24*time.Hour:
		return fmt.Errorf("the span must be between 0 and 24h, not %v", d.Span)
	case d.Work <= 0 || d.Work > time.Hour:
		return fmt.Errorf("work must be above 0 and at most 1h, not %v", d.Work)
	}
	return nil
}

// Ideal is how long it would take if no poller ever waited: each task costs its work
// and the way to it, a call there and back and the write of its lease.
func (d Drain) Ideal() time.Duration {
	each := d.Work + 2*d.Hop + d.Write
	return time.Duration(float64(d.Tasks) / float64(d.Pollers) * float64(each))
}

// DrainResult is what happened with one policy.
type DrainResult struct {
	Policy string
	// Took is until the last task was done; 0 if that was not within Limit.
	Took, Limit, Ideal time.Duration
	Tasks, Done        int
	// Apart is the most by which the ages of the partitions' oldest tasks differed,
	// while a twentieth of the backlog was left.
	Apart time.Duration
	// Step is the time between two samples: the tasks that wait, the share of pollers
	// at work, and the ages of the oldest tasks: of the partition where it is the
	// youngest, and the oldest, of those with backlog.
	Step             time.Duration
	Backlog, Busy    []float64
	Youngest, Oldest []float64
}

// Slower is how much longer than ideal it took; a drain that did not end counts with
// what it got done.
func (r *DrainResult) Slower() float64 {
	took, part := r.Took, 1.0
	if took == 0 {
		took, part = r.Limit, float64(r.Tasks)/float64(max(r.Done, 1))
	}
	return float64(took) / float64(r.Ideal) * part
}

type drainSim struct {
	events.Queue
	Drain
	q      *matching.SimQueue
	levels []byte
	result *DrainResult
	busy   int
}

// drainSteps is how many samples the ideal time has.
const drainSteps = 50

// RunDrain lets pollers that choose partitions by a policy work a backlog off, for at
// most limit times the ideal time. told hears how far it is, as a share.
func RunDrain(ctx context.Context, d Drain, p Policy, limit float64, seed uint64, told func(done float64)) (*DrainResult, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	s := &drainSim{Drain: d, levels: make([]byte, d.Partitions)}
	start := int64(time.Hour)
	var err error
	s.q, err = matching.NewSimQueue(matching.SimOptions{
		Partitions: d.Partitions, Write: d.Write, Hop: d.Hop, Forwarding: d.Forwarding, Seed: seed,
		Now: func() int64 { return start + int64(s.Now) }, After: s.After,
	})
	if err != nil {
		return nil, err
	}
	s.fill()
	s.Run(d.Span + lead)
	ideal := d.Ideal()
	s.result = &DrainResult{Policy: p.Name, Tasks: d.Tasks, Ideal: ideal, Limit: time.Duration(limit * float64(ideal)), Step: ideal / drainSteps}
	s.refresh()
	rng := rand.New(rand.NewPCG(seed, 7))
	for c := range d.Clients {
		reader := &reader{policy: p, random: routing.NewSequence(rng.Uint64()), polls: make([]int32, d.Partitions)}
		for i := c; i < d.Pollers; i += d.Clients {
			// They do not all come at once.
			s.After(time.Duration(rng.Int64N(int64(d.Work))), func() { s.poll(reader, wait{left: d.Wait}, rng) })
		}
	}
	s.sample()
	n := 0
	s.RunWhile(s.Now+s.result.Limit, func() bool {
		if n++; n%100_000 == 0 {
			told(float64(s.result.Done) / float64(d.Tasks))
			if ctx.Err() != nil {
				return false
			}
		}
		return s.result.Took == 0
	})
	return s.result, ctx.Err()
}

// fill plans the adds of the backlog: turn by turn to each partition that gets some,
// a few tasks at a time, evenly over the span.
func (s *drainSim) fill() {
	batch := min(max(s.Tasks/s.Loaded/100, 1), 10)
	at, p := 0, 0
	for at < s.Tasks {
		n, to := min(batch, s.Tasks-at), int32(s.Partitions-1-p)
		s.After(time.Duration(float64(s.Span)*float64(at)/float64(s.Tasks)), func() { s.q.Add(to, n) })
		at, p = at+n, (p+1)%s.Loaded
	}
}

// refresh is a round of the root: clients hear of the backlogs.
func (s *drainSim) refresh() {
	for p := range s.levels {
		s.levels[p] = scaling.NextLevel(s.q.Backlog(int32(p)), s.levels[p])
	}
	s.After(s.Refresh, s.refresh)
}

func (s *drainSim) poll(reader *reader, w wait, rng *rand.Rand) {
	p, turn := reader.begin(s.levels, &w)
	began := s.Now
	s.After(s.Hop, func() {
		s.q.Poll(p, turn, func(t *matching.SimTask) {
			s.After(s.Hop, func() {
				reader.end(p)
				if t == nil {
					if w.left -= s.Now - began; w.left <= 0 {
						w = wait{left: s.Wait}
					}
					s.poll(reader, w, rng)
					return
				}
				s.busy++
				s.After(time.Duration(rng.ExpFloat64()*float64(s.Work)), func() {
					s.busy--
					s.q.Complete(t)
					s.done()
					s.poll(reader, wait{left: s.Wait}, rng)
				})
			})
		})
	})
}

func (s *drainSim) done() {
	s.result.Done++
	if s.result.Done == s.Tasks {
		s.result.Took = s.Now - s.Span - lead
	}
}

func (s *drainSim) sample() {
	r := s.result
	waiting := 0.0
	var youngest, oldest time.Duration
	for p := range int32(s.Partitions) {
		waiting += float64(s.q.Backlog(p))
		if int(p) >= s.Partitions-s.Loaded && s.q.Backlog(p) > 0 {
			age := s.q.Age(p)
			oldest = max(oldest, age)
			if youngest == 0 || age < youngest {
				youngest = age
			}
		}
	}
	r.Backlog = append(r.Backlog, waiting)
	r.Busy = append(r.Busy, float64(s.busy)/float64(s.Pollers))
	r.Youngest, r.Oldest = append(r.Youngest, youngest.Seconds()), append(r.Oldest, oldest.Seconds())
	if waiting >= float64(s.Tasks)/20 {
		r.Apart = max(r.Apart, oldest-youngest)
	}
	s.After(r.Step, s.sample)
}
