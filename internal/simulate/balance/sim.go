package balance

import (
	"math/rand/v2"
	"time"

	"github.com/switchyard-dev/switchyard/internal/simulate/events"
)

// Policy makes clients.
type Policy struct {
	Name, About string
	// New makes a client's chooser. env is that client's view of the world.
	New func(env Env) Chooser
	// Retry and Hedge put the rest of the client stack around it. Hedge is the
	// share of extra load that backup requests may make; 0 means none.
	Retry bool
	Hedge float64
	// Budget, if false, lets retries go without one.
	NoBudget bool
}

// Env is what a chooser gets to know of the world.
type Env struct {
	Client, Clients int
	Now             func() time.Duration
	Rand            func() uint64
	// After runs f once that much time has passed.
	After func(d time.Duration, f func())
	// Connect and Release open and close the client's connection to a server.
	Connect, Release func(server int)
}

// tick is the length of a step of the series in results.
const tick = 500 * time.Millisecond

type sim struct {
	events.Queue
	world    World
	policy   Policy
	seed     uint64
	servers  []*server
	clients  []*client
	attempts int
	result   *Result
	latency  histogram
	steps    []histogram
}

// Run lets a policy act in a world. The same seed gives the same result.
func Run(w World, p Policy, seed uint64) (*Result, error) {
	if err := w.Check(); err != nil {
		return nil, err
	}
	s := &sim{world: w, policy: p, seed: seed, result: &Result{World: w.Name, Policy: p.Name}}
	s.steps = make([]histogram, int(w.Duration/tick)+1)
	s.result.Steps = make([]Step, len(s.steps))
	for i := range s.world.Servers {
		s.addServer(i)
	}
	for i := range s.world.Clients {
		share := 1 / float64(w.Clients)
		if w.Shares != nil {
			share = w.Shares[i]
		}
		s.addClient(i, w.Clients, share*w.rate())
	}
	for _, r := range w.Resize {
		s.After(r.At, func() { s.resize(r) })
	}
	s.observe()
	s.Run(w.Duration)
	s.finish()
	return s.result, nil
}

func (s *sim) random(kind, id int) *rand.Rand {
	return rand.New(rand.NewPCG(s.seed<<32|uint64(kind), uint64(id)*0x9e3779b97f4a7c15+s.seed))
}

func (s *sim) addServer(id int) {
	v := &server{sim: s, id: id, rand: s.random(1, id), inflight: map[*attempt]struct{}{}}
	for _, f := range s.world.Faults {
		if f.Server == id {
			v.faults = append(v.faults, f)
			if f.Down {
				s.After(f.From-s.Now, v.goDown)
			}
		}
	}
	s.servers = append(s.servers, v)
}

func (s *sim) ids() []int {
	ids := make([]int, len(s.servers))
	for i := range ids {
		ids[i] = i
	}
	return ids
}

func (s *sim) addClient(id, total int, rate float64) {
	c := &client{sim: s, id: id, rand: s.random(2, id), rate: rate, conns: make([]connection, len(s.servers))}
	choose := s.random(3, id)
	c.chooser = s.policy.New(Env{
		Client: id, Clients: total,
		Now: func() time.Duration { return s.Now }, Rand: choose.Uint64,
		After:   s.After,
		Connect: c.connect, Release: c.release,
	})
	if s.policy.Retry || s.policy.Hedge > 0 {
		s.stack(c)
	}
	c.chooser.Servers(s.ids())
	s.clients = append(s.clients, c)
	c.run()
}

// Peers is a Chooser that can hear of a change of the number of clients.
type Peers interface{ Peers(id, total int) }

// resize keeps the total load as it is when the number of clients changes.
func (s *sim) resize(r Resize) {
	if r.Clients >= 0 {
		total := 0.0
		for _, c := range s.clients {
			total += c.rate
			if c.id >= r.Clients {
				c.stopped = true
			}
		}
		s.clients = s.clients[:min(len(s.clients), r.Clients)]
		for _, c := range s.clients {
			c.rate = total / float64(r.Clients)
			if p, ok := c.chooser.(Peers); ok {
				p.Peers(c.id, r.Clients)
			}
		}
		for i := len(s.clients); i < r.Clients; i++ {
			s.addClient(i, r.Clients, total/float64(r.Clients))
		}
	}
	if r.Servers >= 0 {
		for i := len(s.servers); i < r.Servers; i++ {
			s.addServer(i)
		}
		ids := s.ids()[:r.Servers]
		for _, c := range s.clients {
			for len(c.conns) < len(s.servers) {
				c.conns = append(c.conns, connection{})
			}
			c.chooser.Servers(ids)
		}
	}
}

func (s *sim) measuring() bool { return s.Now >= s.world.Warmup }

func (s *sim) step() *Step { return &s.result.Steps[int(s.Now/tick)] }

func (s *sim) requested() { s.step().Requests++ }

func (s *sim) attempted() {
	s.step().Attempts++
	if s.measuring() {
		s.result.Attempts++
	}
}

func (s *sim) ended(k *call, ok bool) {
	d := s.Now - k.start
	s.steps[int(s.Now/tick)].add(d)
	if !ok {
		s.step().Failures++
	}
	if k.start < s.world.Warmup {
		return
	}
	s.result.Requests++
	s.latency.add(d)
	if !ok {
		s.result.Failures++
	}
}

// observe takes samples of what is not an event.
func (s *sim) observe() {
	step := s.step()
	for _, c := range s.clients {
		step.Connections += c.open
		if a, ok := c.chooser.(interface{ Aperture() int }); ok {
			step.Aperture += float64(a.Aperture()) / float64(len(s.clients))
		}
	}
	s.After(tick, s.observe)
}
