package balance

import "testing"

func TestRoundRobin_takesTurnsAmongTheOpen(t *testing.T) {
	b, _ := newTest(t, Config{Policy: RoundRobin{}}, scenarioServers)
	m := newMeter()
	hold(t, b, m, scenarioRequests)
	m.even(t, b.Nodes(), epsilon)

	down := b.Nodes()[7]
	before := down.Load()
	down.SetStatus(Closed)
	for _, p := range hold(t, b, nil, 1000) {
		if p.Node() == down {
			t.Fatal("a closed node was chosen")
		}
	}
	down.SetStatus(Open)
	hold(t, b, nil, 1000)
	if got := down.Load() - before; got != 10 {
		t.Errorf("%d requests of 1000 after it opened again, want 10", got)
	}
}
