package balance

import (
	"math"
	"testing"
)

func p2cScenario(t *testing.T, n int) *Balancer {
	t.Helper()
	b, _ := newTest(t, Config{Panic: PanicAtMajority, Rand: seeded(12345678)}, n)
	return b
}

func TestP2C_balancesHeldRequests(t *testing.T) {
	b := p2cScenario(t, scenarioServers)
	m := newMeter()
	hold(t, b, m, scenarioRequests)
	m.even(t, b.Nodes(), epsilon)
}

func TestP2C_balancesRequestsThatComeAndGo(t *testing.T) {
	b := p2cScenario(t, scenarioServers)
	m := newMeter()
	random := seeded(3)
	var held []Pick
	for i := range scenarioRequests {
		if i%3 == 0 || random()&1 == 0 {
			held = append(held, pick(t, b))
			m.change(held[len(held)-1].Node())
		} else if len(held) > 0 {
			held[0].Done(Success)
			m.change(held[0].Node())
			held = held[1:]
		}
	}
	m.even(t, b.Nodes(), epsilon)
}

func TestP2C_aNewServerCatchesUp(t *testing.T) {
	b := p2cScenario(t, scenarioServers)
	hold(t, b, nil, scenarioRequests)
	update(t, b, endpoints(scenarioServers+1))
	hold(t, b, nil, scenarioRequests)
	nodes := b.Nodes()
	for _, n := range nodes {
		if d := math.Abs(float64(n.Load() - nodes[0].Load())); d > epsilon {
			t.Fatalf("%s has %d, %s has %d", n.Address(), n.Load(), nodes[0].Address(), nodes[0].Load())
		}
	}
}

func TestP2C_aRemovedServerGetsNothing(t *testing.T) {
	b := p2cScenario(t, scenarioServers)
	hold(t, b, nil, scenarioRequests)
	gone := b.Nodes()[scenarioServers-1]
	before := gone.Load()
	update(t, b, endpoints(scenarioServers-1))
	hold(t, b, nil, scenarioRequests)
	if gone.Load() != before {
		t.Errorf("load went from %d to %d", before, gone.Load())
	}
}

func TestP2C_aClosedServerGetsNothingUntilItOpens(t *testing.T) {
	b := p2cScenario(t, scenarioServers)
	m := newMeter()
	held := hold(t, b, m, scenarioRequests)
	down := b.Nodes()[0]
	before := down.Load()
	down.SetStatus(Closed)
	hold(t, b, m, scenarioRequests)
	if down.Load() != before {
		t.Fatalf("closed: load went from %d to %d", before, down.Load())
	}
	m.even(t, b.Nodes()[1:], epsilon)

	for _, p := range held {
		if p.Node() == down {
			p.Done(Success)
		}
	}
	if down.Load() != 0 {
		t.Fatalf("load %d after its requests ended", down.Load())
	}
	hold(t, b, nil, scenarioRequests)
	down.SetStatus(Open)
	hold(t, b, nil, scenarioRequests)
	// It was empty and two choices let it catch up at twice the pace of the others.
	if got := float64(down.Load()); math.Abs(got-2*scenarioRequests/scenarioServers) > 6*epsilon {
		t.Errorf("load %v after it opened again, want 2000 ± 60", got)
	}
}

func TestP2C_panicsWhenAllAreClosed(t *testing.T) {
	b := p2cScenario(t, scenarioServers)
	for _, n := range b.Nodes() {
		n.SetStatus(Closed)
	}
	m := newMeter()
	hold(t, b, m, scenarioRequests)
	m.even(t, b.Nodes(), epsilon)
	if got := b.Stats().Panicked; got != scenarioRequests {
		t.Fatalf("%d panics, want one per request", got)
	}
	for _, n := range b.Nodes()[:scenarioServers/2] {
		n.SetStatus(Open)
	}
	hold(t, b, nil, scenarioRequests)
	// 0.25^5 of 100,000 is 98.
	if got := b.Stats().Panicked - scenarioRequests; got == 0 || got > 130 {
		t.Errorf("%d panics with half of the servers open, want about 98", got)
	}
}

func TestP2C_oneServerGetsAll(t *testing.T) {
	b := p2cScenario(t, 1)
	hold(t, b, nil, 1000)
	if got := b.Nodes()[0].Load(); got != 1000 {
		t.Errorf("load %d", got)
	}
}

func TestP2C_countsDrawsThatTellNothing(t *testing.T) {
	for name, c := range map[string]Config{"p2c": {}, "aperture": {Policy: Aperture{Peer: Peer{0, 1}}}} {
		b, _ := newTest(t, c, 2)
		pick(t, b).Done(Success)
		pick(t, b).Done(Success)
		if got := b.Stats().Idle; got != 2 {
			t.Errorf("%s: two requests to two idle servers: %d, want 2", name, got)
		}
		p := pick(t, b)
		pick(t, b).Done(Success)
		p.Done(Success)
		if got := b.Stats().Idle; got != 3 {
			t.Errorf("%s: with one server in use: %d, want 3", name, got)
		}
	}
}
