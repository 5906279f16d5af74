package balance

import (
	"math/rand/v2"
	"time"

	core "github.com/switchyard-dev/switchyard/balance"
)

// server works on attempts.
type server struct {
	sim      *sim
	id       int
	rand     *rand.Rand
	faults   []Fault
	busy     int
	queue    []*attempt
	inflight map[*attempt]struct{} // sent and not answered, wherever they are
	life     int                   // goes up when it goes down
	received int
}

// cold is for how long a server that came back is slower.
const cold = 10 * time.Second

func (v *server) active(f *Fault) bool {
	return v.sim.Now >= f.From && (f.To == 0 || v.sim.Now < f.To)
}

func (v *server) down() bool {
	for i := range v.faults {
		if f := &v.faults[i]; f.Down && v.active(f) {
			return true
		}
	}
	return false
}

func (v *server) factor() float64 {
	x := 1.0
	for i := range v.faults {
		f := &v.faults[i]
		if f.Slow > 0 && v.active(f) {
			x *= f.Slow
		}
		if age := v.sim.Now - f.To; f.Cold > 0 && f.To > 0 && age >= 0 && age < cold {
			x *= 1 + (f.Cold-1)*(1-float64(age)/float64(cold))
		}
	}
	return x
}

// receive takes what came over the network.
func (v *server) receive(a *attempt) {
	if v.sim.measuring() {
		v.received++
	}
	for i := range v.faults {
		if f := &v.faults[i]; f.Failing > 0 && v.active(f) && (f.FailShare == 0 || v.rand.Float64() < f.FailShare) {
			v.sim.After(f.Failing, func() { v.answer(a, core.Failure) })
			return
		}
	}
	switch {
	case v.busy < v.sim.world.Workers:
		v.work(a)
	case len(v.queue) < v.sim.world.Queue:
		v.queue = append(v.queue, a)
	default:
		v.answer(a, core.Refused)
	}
}

func (v *server) work(a *attempt) {
	v.busy++
	life := v.life
	d := time.Duration(float64(v.sim.world.service(v.rand)) * v.factor())
	v.sim.After(d, func() {
		if v.life != life {
			return
		}
		v.busy--
		v.answer(a, core.Success)
		for len(v.queue) > 0 && v.busy < v.sim.world.Workers {
			next := v.queue[0]
			v.queue = v.queue[1:]
			if next.over { // given up by its client meanwhile
				continue
			}
			v.work(next)
		}
	})
}

func (v *server) answer(a *attempt, o core.Outcome) {
	life := v.life
	v.sim.After(v.sim.world.Network, func() {
		if v.life == life {
			delete(v.inflight, a)
			a.answered(o, false)
		}
	})
}

// goDown cuts all connections. Requests on them fail at once.
func (v *server) goDown() {
	v.life++
	v.busy, v.queue = 0, nil
	lost := make([]*attempt, 0, len(v.inflight))
	for a := range v.inflight {
		lost = append(lost, a)
	}
	v.inflight = map[*attempt]struct{}{}
	sortAttempts(lost)
	for _, c := range v.sim.clients {
		c.connectionLost(v.id)
	}
	for _, a := range lost {
		a.answered(core.Failure, true)
	}
}
