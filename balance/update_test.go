package balance

import (
	"testing"
	"time"
)

func TestUpdate_countsAndKeepsNodes(t *testing.T) {
	e := endpoints(5)
	b, _ := newTest(t, Config{}, 3)
	first := b.Nodes()
	update(t, b, []Endpoint{e[0], e[2]})
	update(t, b, e[:3])
	if s := b.Stats(); s.Size != 3 || s.Adds != 4 || s.Removes != 1 {
		t.Errorf("%+v", s)
	}
	if got := b.Nodes(); got[0] != first[0] || got[2] != first[2] || got[1] == first[1] {
		t.Error("nodes that stayed are not the same, or the one that left is")
	}

	before := b.Stats()
	update(t, b, []Endpoint{e[2], e[0], e[1]})
	if s := b.Stats(); s.Updates != before.Updates+1 || s.Rebuilds != before.Rebuilds {
		t.Errorf("a new order of the same endpoints: %d updates, %d rebuilds", s.Updates-before.Updates, s.Rebuilds-before.Rebuilds)
	}

	kept := b.Nodes()
	update(t, b, []Endpoint{e[0], e[1], e[2], e[3], e[4]})
	got := b.Nodes()
	for i := range 3 {
		if got[i].Address() != e[i].Address || got[i] != nodeOf(kept, e[i].Address) {
			t.Errorf("node %d is not the old one of %s", i, e[i].Address)
		}
	}
}

func nodeOf(nodes []*Node, address string) *Node {
	for _, n := range nodes {
		if n.Address() == address {
			return n
		}
	}
	return nil
}

func TestUpdate_aWeightChangesInPlace(t *testing.T) {
	for name, c := range map[string]Config{"p2c": {}, "heap": {Policy: Heap{}}, "round robin": {Policy: RoundRobin{}}} {
		connects := 0
		c.OnAdd = func(*Node) { connects++ }
		b, _ := newTest(t, c, 3)
		held := hold(t, b, nil, 6)
		n := b.Nodes()[0]
		for w := 1.0; w <= 5; w++ {
			list := endpoints(3)
			list[0].Weight = w
			update(t, b, list)
		}
		if b.Nodes()[0] != n || connects != 3 || b.Stats().Removes != 0 {
			t.Errorf("%s: a weight that changed made a new node", name)
		}
		if n.Load() == 0 {
			t.Errorf("%s: the load is gone", name)
		}
		for _, p := range held {
			p.Done(Success)
		}
		if s := b.Stats(); s.Outstanding != 0 || s.WeightClasses != 2 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// Five clients, each 150 sequential requests a step; no server gets more than twice
// its even share.
func TestAnyPolicy_spreadsLoadThroughDeploysAndResizes(t *testing.T) {
	steps := []struct {
		name  string
		sets  [][2]int // servers from, to
		bound int
	}{
		{"ten servers", [][2]int{{0, 10}}, 155},
		{"rolling deploy", [][2]int{{0, 10}, {5, 15}, {10, 20}}, 450},
		{"shrink", [][2]int{{0, 10}, {0, 5}}, 300},
		{"expand", [][2]int{{0, 10}, {0, 15}}, 300},
	}
	configs := map[string]func(client int) Config{
		"heap":          func(int) Config { return Config{Policy: Heap{}} },
		"round robin":   func(int) Config { return Config{Policy: RoundRobin{}} },
		"p2c":           func(int) Config { return Config{} },
		"p2c peak ewma": func(int) Config { return Config{Load: PeakEWMA} },
		"aperture":      func(int) Config { return Config{Policy: Aperture{Min: 5}} },
		"deterministic": func(i int) Config { return Config{Policy: Aperture{Min: 5, Peer: Peer{i, 5}}} },
	}
	for name, config := range configs {
		for _, step := range steps {
			count := map[string]int{}
			var clients []*Balancer
			var clocks []*fakeClock
			for i := range 5 {
				c := config(i)
				c.Rand = seeded(uint64(i) + 1)
				b, clock := newTest(t, c, 0)
				clients, clocks = append(clients, b), append(clocks, clock)
			}
			all := endpoints(20)
			for _, set := range step.sets {
				for i, b := range clients {
					update(t, b, all[set[0]:set[1]])
					for range 150 {
						p := pick(t, b)
						count[p.Address()]++
						clocks[i].Add(time.Millisecond)
						p.Done(Success)
					}
				}
			}
			bound := step.bound
			if name == "aperture" {
				// Five random windows of five may well overlap more than that: up to
				// 5 × 150 / 5 requests a step.
				bound = max(bound, 150*len(step.sets)+5)
			}
			for address, n := range count {
				if n > bound {
					t.Errorf("%s, %s: %s got %d requests, more than %d", name, step.name, address, n, bound)
				}
			}
		}
	}
}
