package balance

import (
	"fmt"
	"math/rand/v2"
	"time"

	core "github.com/switchyard-dev/switchyard/balance"
	"github.com/switchyard-dev/switchyard/retry"
)

// chooser is a balance.Balancer.
type chooser struct {
	env      Env
	b        *core.Balancer
	nodes    []*core.Node
	avoiding []*core.Node
}

// connections opens connections through the world.
type connections struct{ env Env }

func (c connections) Connect(n *core.Node) {
	c.env.Connect(n.Value().(int))
}

func (c connections) Release(n *core.Node) { c.env.Release(n.Value().(int)) }

// newChooser makes a balancer out of a configuration. The deterministic aperture
// gets the client's place.
func newChooser(config core.Config, deterministic bool) func(Env) Chooser {
	return func(env Env) Chooser {
		c := config
		c.Clock, c.Rand = env.Now, env.Rand
		c.OnDrained = func(n *core.Node) { env.Release(n.Value().(int)) }
		if a, ok := c.Policy.(core.Aperture); ok {
			c.Connections = connections{env}
			if deterministic {
				a.Peer = core.Peer{ID: env.Client, Total: env.Clients}
			}
			c.Policy = a
		}
		b, err := core.New(c)
		if err != nil {
			panic(fmt.Sprintf("simulate: policy does not work: %v", err))
		}
		x := &chooser{env: env, b: b}
		if c.Connections != nil {
			x.tick()
		}
		return x
	}
}

func (x *chooser) tick() { x.env.After(max(x.b.Tick(), time.Millisecond), x.tick) }

func (x *chooser) Servers(ids []int) {
	list := make([]core.Endpoint, len(ids))
	for i, id := range ids {
		list[i] = core.Endpoint{Address: fmt.Sprintf("10.0.%d.%d:80", id/250, id%250), Value: id}
	}
	if err := x.b.Update(list); err != nil {
		panic(fmt.Sprintf("simulate: %v", err))
	}
	for _, n := range x.b.Nodes() {
		id := n.Value().(int)
		for len(x.nodes) <= id {
			x.nodes = append(x.nodes, nil)
		}
		x.nodes[id] = n
	}
}

func (x *chooser) Pick(avoid []int) (Choice, bool) {
	x.avoiding = x.avoiding[:0]
	for _, id := range avoid {
		x.avoiding = append(x.avoiding, x.nodes[id])
	}
	p, err := x.b.PickAvoiding(x.avoiding)
	if err != nil {
		return Choice{}, false
	}
	return Choice{Server: p.Value().(int), Done: p.Done}, true
}

func (x *chooser) Connected(id int, up bool) {
	status := core.Open
	if !up {
		status = core.Busy
	}
	if id < len(x.nodes) && x.nodes[id] != nil {
		x.nodes[id].SetStatus(status)
	}
}

func (x *chooser) Peers(id, total int) {
	if err := x.b.SetPeer(core.Peer{ID: id, Total: total}); err != nil {
		panic(fmt.Sprintf("simulate: %v", err))
	}
}

func (x *chooser) Aperture() int { return x.b.Stats().PhysicalAperture }

// noPeers hides Peers.
type noPeers struct{ *chooser }

func (noPeers) Peers(int, int) {}

// Policies are all that are named: first those that are a balancer and nothing
// else, then those with the rest of the stack around it.
func Policies() []Policy {
	random := newChooser(core.Config{Policy: core.Aperture{Min: 5}}, false)
	noBackups := Stack("stack_without_backups", core.Config{Policy: core.Aperture{}, Load: core.PeakEWMA})
	noBackups.Hedge = 0
	noBackups.About = "deterministic aperture, peak_ewma, with health and retries"
	return []Policy{
		{Name: "round_robin", About: "round robin", New: newChooser(core.Config{Policy: core.RoundRobin{}}, false)},
		{Name: "heap", About: "least loaded of all", New: newChooser(core.Config{Policy: core.Heap{}}, false)},
		{Name: "p2c_least_loaded", About: "two choices, least loaded", New: newChooser(core.Config{}, false)},
		{Name: "p2c_peak_ewma", About: "two choices, peak EWMA", New: newChooser(core.Config{Load: core.PeakEWMA}, false)},
		{Name: "random_aperture", About: "random aperture, least loaded", New: func(e Env) Chooser { return noPeers{random(e).(*chooser)} }},
		{Name: "aperture", About: "deterministic aperture, least loaded", New: newChooser(core.Config{Policy: core.Aperture{}}, true)},
		{Name: "aperture_fixed", About: "the same as in Finagle: it never widens", New: newChooser(core.Config{Policy: core.Aperture{Fixed: true}}, true)},
		{Name: "aperture_peak_ewma", About: "deterministic aperture, peak EWMA", New: newChooser(core.Config{Policy: core.Aperture{}, Load: core.PeakEWMA}, true)},
		{Name: "p2c_peak_ewma_success", About: "two choices, peak EWMA with a success bias", New: newChooser(core.Config{Load: core.PeakEWMA, SuccessBias: 2}, false)},
		Stack("stack_p2c_least_loaded", core.Config{}),
		Stack("stack_p2c_peak_ewma", core.Config{Load: core.PeakEWMA}),
		Stack("stack_aperture_least_loaded", core.Config{Policy: core.Aperture{}}),
		noBackups,
		Stack("stack", core.Config{Policy: core.Aperture{}, Load: core.PeakEWMA}),
	}
}

// stackHedge is the extra load that the whole stack's backups may make.
const stackHedge = 0.05

// Stack is a policy with everything around it: health, success bias, retries with
// a budget, backup requests.
func Stack(name string, c core.Config) Policy {
	c.Accrual = core.DefaultFailureAccrual()
	c.FailFast = &core.FailFast{}
	c.SuccessBias = 1
	if c.Load == core.PeakEWMA {
		c.SuccessBias = 2
	}
	about := c.Load.String()
	if c.Policy != nil {
		about = "deterministic aperture, " + about
	}
	about += ", with health, retries and backup requests"
	return Policy{
		Name: name, About: about, New: newChooser(c, true),
		Retry: true, Hedge: stackHedge,
	}
}

// stack gives a client retries and backup requests.
func (s *sim) stack(c *client) {
	budget := retry.InfiniteBudget()
	if !s.policy.NoBudget {
		var err error
		if budget, err = retry.NewBudget(retry.DefaultBudget()); err != nil {
			panic(fmt.Sprintf("simulate: %v", err))
		}
	}
	draw := rand.New(rand.NewPCG(s.seed, uint64(c.id)))
	policy := retry.DefaultPolicy()
	if s.policy.Retry {
		r, err := retry.NewRetrier(policy, budget, nil, draw.Float64)
		if err != nil {
			panic(fmt.Sprintf("simulate: %v", err))
		}
		c.retrier = r
	}
	if s.policy.Hedge > 0 {
		h, err := retry.NewHedger(retry.HedgeConfig{MaxExtraLoad: s.policy.Hedge}, budget, s.Now)
		if err != nil {
			panic(fmt.Sprintf("simulate: %v", err))
		}
		c.hedger = h
	}
}
