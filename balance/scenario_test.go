package balance

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// The scenarios here are those of the reference's own suite. R requests, of which
// most are held: their load accumulates.
const (
	scenarioServers  = 100
	scenarioRequests = 100_000
	epsilon          = 0.0001 * scenarioRequests
)

// meter averages each node's load over all its changes.
type meter struct {
	sum, changes map[*Node]float64
}

func newMeter() *meter { return &meter{map[*Node]float64{}, map[*Node]float64{}} }

func (m *meter) change(n *Node) {
	m.sum[n] += float64(n.Load())
	m.changes[n]++
}

func (m *meter) mean(n *Node) float64 { return m.sum[n] / math.Max(m.changes[n], 1) }

// even checks that mean loads are within e of the first one's.
func (m *meter) even(t *testing.T, nodes []*Node, e float64) {
	t.Helper()
	for _, n := range nodes {
		if d := math.Abs(m.mean(n) - m.mean(nodes[0])); d > e {
			t.Fatalf("%s has a mean load of %.1f, %s of %.1f: more than %v apart", n.Address(), m.mean(n), nodes[0].Address(), m.mean(nodes[0]), e)
		}
	}
}

func hold(t *testing.T, b *Balancer, m *meter, requests int) []Pick {
	t.Helper()
	picks := make([]Pick, requests)
	for i := range picks {
		picks[i] = pick(t, b)
		if m != nil {
			m.change(picks[i].Node())
		}
	}
	return picks
}

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

func TestStats_followEachStep(t *testing.T) {
	b, _ := newTest(t, Config{}, 0)
	check := func(step string, size, open, outstanding int, adds, removes uint64) {
		t.Helper()
		s := b.Stats()
		if s.Size != size || s.Open != open || s.Outstanding != outstanding || s.Adds != adds || s.Removes != removes {
			t.Errorf("%s: %+v", step, s)
		}
	}
	check("empty", 0, 0, 0, 0, 0)
	update(t, b, endpoints(2))
	check("two added", 2, 2, 0, 2, 0)
	p := pick(t, b)
	check("one request", 2, 2, 1, 2, 0)
	b.Nodes()[0].SetStatus(Busy)
	check("one busy", 2, 1, 1, 2, 0)
	b.Nodes()[0].SetStatus(Open)
	p.Done(Success)
	check("request ended", 2, 2, 0, 2, 0)
	update(t, b, endpoints(1))
	check("one removed", 1, 1, 0, 2, 1)
}

// The share of picks that panic is u^(2·mode).
func TestPanic_shareByMode(t *testing.T) {
	for mode := PanicAt10Percent; mode <= PanicAtMajority; mode++ {
		for percent := 10; percent <= 100; percent += 10 {
			b, _ := newTest(t, Config{Panic: mode}, 100)
			for _, n := range b.Nodes()[:percent] {
				n.SetStatus(Closed)
			}
			const requests = 20_000
			hold(t, b, nil, requests)
			want := math.Pow(float64(percent)/100, 2*float64(mode))
			if got := float64(b.Stats().Panicked) / requests; math.Abs(got-want) > 0.012 {
				t.Errorf("mode %d, %d %% closed: %.3f of picks panicked, want %.3f", mode, percent, got, want)
			}
		}
	}
	b, _ := newTest(t, Config{}, 2)
	if b.Stats().Panic != PanicAt50Percent {
		t.Errorf("default mode %d", b.Stats().Panic)
	}
	always, _ := newTest(t, Config{Panic: PanicAlways}, 2)
	always.Nodes()[0].SetStatus(Closed)
	always.Nodes()[1].SetStatus(Closed)
	pick(t, always)
	if always.Stats().Panicked != 1 {
		t.Error("PanicAlways did not count")
	}
}

func TestStatus_isTheBestOfTheNodes(t *testing.T) {
	for _, c := range []struct {
		nodes []Status
		want  Status
	}{
		{nil, Closed},
		{[]Status{Closed, Closed}, Closed},
		{[]Status{Closed, Busy}, Busy},
		{[]Status{Busy, Open, Closed}, Open},
	} {
		b, _ := newTest(t, Config{}, len(c.nodes))
		for i, s := range c.nodes {
			b.Nodes()[i].SetStatus(s)
		}
		if got := b.Status(); got != c.want {
			t.Errorf("%v: %v, want %v", c.nodes, got, c.want)
		}
	}
}

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

func TestHeap_scenarios(t *testing.T) {
	loads := func(b *Balancer) (out []int) {
		for _, n := range b.Nodes() {
			out = append(out, n.Load())
		}
		return out
	}
	all := func(b *Balancer, want int, but ...int) {
		t.Helper()
		for i, n := range b.Nodes() {
			if n.Load() != want && !containsInt(but, i) {
				t.Fatalf("loads %v, want %d each", loads(b), want)
			}
		}
	}
	const n = 10
	b, _ := newTest(t, Config{Policy: Heap{}}, n)
	hold(t, b, nil, n)
	all(b, 1)
	held := hold(t, b, nil, n)
	all(b, 2)
	held[3].Done(Success)
	if p := pick(t, b); p.Node() != held[3].Node() {
		t.Error("the node whose request ended is not the next")
	}

	b, _ = newTest(t, Config{Policy: Heap{}}, n)
	hold(t, b, nil, n)
	b.Nodes()[1].SetStatus(Closed)
	b.Nodes()[4].SetStatus(Closed)
	hold(t, b, nil, 2*(n-2))
	all(b, 3, 1, 4)
	if l := loads(b); l[1] != 1 || l[4] != 1 {
		t.Errorf("closed nodes got requests: %v", l)
	}

	b, _ = newTest(t, Config{Policy: Heap{}}, n)
	hold(t, b, nil, n)
	for _, x := range b.Nodes() {
		x.SetStatus(Closed)
	}
	hold(t, b, nil, 100*n)
	all(b, 101)
	b.Nodes()[5].SetStatus(Open)
	hold(t, b, nil, 100)
	all(b, 101, 5)
	if got := b.Nodes()[5].Load(); got != 201 {
		t.Errorf("the only open node has %d, want 201", got)
	}

	b, _ = newTest(t, Config{Policy: Heap{}}, 2)
	hold(t, b, nil, 4)
	b.Nodes()[0].SetStatus(Closed)
	b.Nodes()[1].SetStatus(Closed)
	hold(t, b, nil, 1000)
	all(b, 502)
	b.Nodes()[0].SetStatus(Open)
	hold(t, b, nil, 1000)
	if l := loads(b); l[0] != 1502 || l[1] != 502 {
		t.Errorf("loads %v, want 1502 and 502", l)
	}
	other := b.Nodes()[1]
	update(t, b, endpoints(2)[1:])
	hold(t, b, nil, 1000)
	if other.Load() != 1502 {
		t.Errorf("load %d, want 1502", other.Load())
	}

	b, _ = newTest(t, Config{Policy: Heap{}}, n)
	held = hold(t, b, nil, 2*n)
	update(t, b, endpoints(n+1))
	for range 2 {
		if p := pick(t, b); p.Node() != b.Nodes()[n] {
			t.Error("the new node is not next")
		}
	}
	update(t, b, endpoints(n + 1)[1:])
	for _, p := range held {
		p.Done(Success)
	}
	for i, x := range b.Nodes() {
		if want := map[bool]int{true: 2}[i == n-1]; x.Load() != want || int(x.heap.load) != want {
			t.Errorf("node %d has %d (heap: %d), want %d", i, x.Load(), x.heap.load, want)
		}
	}

	counter := uint64(0)
	b, _ = newTest(t, Config{Policy: Heap{}, Rand: func() uint64 { counter++; return counter << 63 }}, 2)
	for range 100 {
		pick(t, b).Done(Success)
	}
	if s := b.NodeStats(); s[0].Results[Success] != 50 || s[1].Results[Success] != 50 {
		t.Errorf("sequential requests over two idle servers: %v, %v", s[0].Results, s[1].Results)
	}
}

func containsInt(list []int, x int) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

// The heap's order holds after any sequence of operations.
func FuzzHeap(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 250, 251, 5, 6, 252, 7})
	f.Fuzz(func(t *testing.T, ops []byte) {
		b, _ := newTest(t, Config{Policy: Heap{}}, 6)
		var held []Pick
		for _, op := range ops {
			switch {
			case op < 120:
				p := pick(t, b)
				for _, n := range b.Nodes() {
					if n.Status() == Open && p.Node().Status() != Open || (n.Status() == Open) == (p.Node().Status() == Open) && n.weight == p.Node().weight && n.Load() < p.Node().Load()-1 {
						t.Fatalf("chose %s with %d while %s had %d", p.Address(), p.Node().Load()-1, n.Address(), n.Load())
					}
				}
				held = append(held, p)
			case op < 200 && len(held) > 0:
				i := int(op) % len(held)
				held[i].Done(Success)
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
			case op < 230:
				b.Nodes()[int(op)%len(b.Nodes())].SetStatus(Status(op % 3))
			default:
				list := endpoints(8)[op%3 : 5+op%4]
				list[0].Weight = float64(1 + op%2)
				update(t, b, list)
			}
			for _, n := range b.Nodes() {
				if int(n.heap.load) != n.Load() || n.heap.in.nodes[n.heap.pos] != n {
					t.Fatalf("%s: heap load %d, load %d", n.Address(), n.heap.load, n.Load())
				}
			}
		}
	})
}

func TestWeightClasses_shareByWeightTimesMembers(t *testing.T) {
	for name, policy := range map[string]Policy{
		"p2c classes": P2C{WeightClasses: true}, "p2c": P2C{}, "heap": Heap{}, "round robin": RoundRobin{},
	} {
		var list []Endpoint
		sum := 0.0
		for _, c := range []struct {
			weight  float64
			members int
		}{{1, 1000}, {2, 5}, {10, 150}} {
			for i := range c.members {
				list = append(list, Endpoint{Address: fmt.Sprintf("%v-%d", c.weight, i), Weight: c.weight})
				sum += c.weight
			}
		}
		b, _ := newTest(t, Config{Policy: policy}, 0)
		update(t, b, list)
		const requests = 100_000
		got := map[float64]float64{}
		for range requests {
			p := pick(t, b)
			got[p.Node().weight]++
			p.Done(Success)
		}
		for weight, members := range map[float64]float64{1: 1000, 2: 5, 10: 150} {
			if share, want := got[weight]/requests, weight*members/sum; math.Abs(share-want) > 0.01 {
				t.Errorf("%s: weight %v got %.3f of the requests, want %.3f", name, weight, share, want)
			}
		}
	}
}

func TestWeightClasses_loadPerWeightIsEven(t *testing.T) {
	for name, policy := range map[string]Policy{"p2c classes": P2C{WeightClasses: true}, "p2c": P2C{}, "heap": Heap{}} {
		list := endpoints(503)
		for i := range 3 {
			list[i].Weight = float64(i + 2)
		}
		b, _ := newTest(t, Config{Policy: policy}, 0)
		update(t, b, list)
		hold(t, b, nil, scenarioRequests)
		want := float64(scenarioRequests) / (500 + 2 + 3 + 4)
		for i, n := range b.Nodes()[:3] {
			if got := float64(n.Load()) / float64(i+2); math.Abs(got/want-1) > 0.1 {
				t.Errorf("%s: %.1f per unit of weight %d, want %.1f", name, got, i+2, want)
			}
		}
	}
}

func TestWeightClasses_aBusyClassIsLeftOut(t *testing.T) {
	list := endpoints(4)
	list[0].Weight, list[1].Weight = 5, 5
	b, _ := newTest(t, Config{Policy: RoundRobin{}}, 0)
	update(t, b, list)
	b.Nodes()[0].SetStatus(Busy)
	b.Nodes()[1].SetStatus(Busy)
	hold(t, b, nil, 1000)
	if b.Nodes()[0].Load()+b.Nodes()[1].Load() != 0 {
		t.Error("the busy class got requests")
	}
	if b.Stats().BusyClasses == 0 {
		t.Error("not counted")
	}
	b.Nodes()[2].SetStatus(Busy)
	b.Nodes()[3].SetStatus(Busy)
	pick(t, b) // all are busy: still served
}

// Peak EWMA: one request per tick, latencies in ticks.
func ewmaRun(t *testing.T, n int, latency func(i int) int, readsDecay bool) map[*Node]int {
	t.Helper()
	now := time.Duration(0)
	b, err := New(Config{Load: PeakEWMA, Decay: time.Hour, ReadsDecay: readsDecay, Clock: func() time.Duration { return now }, Rand: seeded(99), Panic: PanicAtMajority})
	if err != nil {
		t.Fatal(err)
	}
	b.tau = 150
	update(t, b, endpoints(n))
	index := map[*Node]int{}
	for i, x := range b.Nodes() {
		index[x] = i
	}
	counts := map[*Node]int{}
	due := map[time.Duration][]Pick{}
	for range scenarioRequests {
		for _, p := range due[now] {
			p.Done(Success)
		}
		delete(due, now)
		p := pick(t, b)
		counts[p.Node()]++
		end := now + time.Duration(latency(index[p.Node()]))
		due[end] = append(due[end], p)
		now++
	}
	return counts
}

func TestPeakEWMA_scenarios(t *testing.T) {
	for _, reads := range []bool{false, true} {
		t.Run(fmt.Sprintf("readsDecay=%v", reads), func(t *testing.T) {
			counts := ewmaRun(t, 100, func(int) int { return 5 }, reads)
			for n, c := range counts {
				if math.Abs(float64(c)-1000) > 100 {
					t.Errorf("equal servers: %s got %d of about 1000", n.Address(), c)
				}
			}
			counts = ewmaRun(t, 101, func(i int) int {
				if i == 100 {
					return 2 * scenarioRequests
				}
				return 1
			}, reads)
			for n, c := range counts {
				if n.Address() == endpoints(101)[100].Address && c != 1 {
					t.Errorf("the silent server was asked %d times, want once", c)
				}
			}
			counts = ewmaRun(t, 101, func(i int) int {
				if i == 100 {
					return 10
				}
				return 5
			}, reads)
			for n, c := range counts {
				if n.Address() == endpoints(101)[100].Address {
					share := float64(c) / (scenarioRequests / 101.0)
					t.Logf("the server of twice the latency got %.2f of an even share", share)
					if share < 0.3 || share > 0.7 {
						t.Errorf("a server of twice the latency got %.2f of an even share, want about half", share)
					}
				}
			}
		})
	}
}

func TestPeakEWMA_costTrace(t *testing.T) {
	b, clock := newTest(t, Config{Load: PeakEWMA}, 1)
	n := b.Nodes()[0]
	cost := func() float64 {
		e := b.newEntry(n, 1)
		now := clock.Now()
		return math.Exp(b.score(&e, n.word.Load(), now) - float64(now)/b.tau)
	}
	near := func(what string, want float64) {
		t.Helper()
		if got := cost(); math.Abs(got-want) > 0.001*want {
			t.Errorf("%s: %.5g, want %.5g", what, got, want)
		}
	}
	if cost() != 0 {
		t.Errorf("new and idle: %v, want 0", cost())
	}
	p := pick(t, b)
	near("outstanding, without an answer yet", 1.407e14)
	clock.Add(10 * time.Millisecond)
	p.Done(Success)
	near("answered in 10 ms", 1e7)
	clock.Add(10 * time.Second)
	near("10 s later", 3.679e6)
	p = pick(t, b)
	clock.Add(100 * time.Millisecond)
	p.Done(Success)
	near("after a peak of 100 ms", 1e8)
	p = pick(t, b)
	clock.Add(5 * time.Millisecond)
	p.Done(Success)
	near("after an answer in 5 ms", 0.9995e8)
	clock.Add(6931472 * time.Microsecond)
	near("a half-life later", 0.9995e8/2)
	clock.Add(-time.Hour)
	p = pick(t, b)
	p.Done(Success) // a clock that goes backwards changes nothing for the worse
	if c := cost(); math.IsNaN(c) || c < 0 {
		t.Errorf("after the clock went backwards: %v", c)
	}
}

func TestPeakEWMA_aRequestGivenUpShowsAtLeastHowLongItTook(t *testing.T) {
	b, clock := newTest(t, Config{Load: PeakEWMA}, 1)
	wait := func(d time.Duration, o Outcome, want time.Duration) {
		t.Helper()
		p := pick(t, b)
		clock.Add(d)
		p.Done(o)
		if got := b.NodeStats()[0].Latency; math.Abs(float64(got-want)) > 0.01*float64(want) {
			t.Errorf("%v after %v: latency %v, want %v", o, d, got, want)
		}
	}
	wait(10*time.Millisecond, Success, 10*time.Millisecond)
	wait(50*time.Millisecond, Ignored, 50*time.Millisecond)
	wait(time.Millisecond, Ignored, 50*time.Millisecond)
}

func TestPeakEWMA_survivesChangesOfMembership(t *testing.T) {
	for name, policy := range map[string]Policy{"p2c": P2C{}, "aperture": Aperture{Min: 3}, "deterministic": Aperture{Peer: Peer{0, 2}}} {
		b, clock := newTest(t, Config{Policy: policy, Load: PeakEWMA}, 10)
		for range 200 {
			p := pick(t, b)
			clock.Add(20 * time.Millisecond)
			p.Done(Success)
		}
		before := b.NodeStats()
		update(t, b, endpoints(9))
		update(t, b, endpoints(12))
		for i, s := range b.NodeStats()[:9] {
			if s.Latency != before[i].Latency {
				t.Errorf("%s: %s: latency %v before, %v after", name, s.Address, before[i].Latency, s.Latency)
			}
		}
	}
}
