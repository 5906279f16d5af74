package balance

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// ringOf makes a deterministic aperture over servers in the order given.
func ringOf(t *testing.T, servers, id, clients int) *Balancer {
	t.Helper()
	b, _ := newTest(t, Config{Policy: Aperture{Peer: Peer{id, clients}, KeepOrder: true}}, servers)
	return b
}

func seq(from, to int) (out []int) {
	for i := from; i <= to; i++ {
		out = append(out, i)
	}
	return out
}

func TestRing_usesItsPart(t *testing.T) {
	b := ringOf(t, 24, 0, 12)
	sequential(t, b, 2000)
	if got := used(b); !slices.Equal(got, seq(0, 11)) {
		t.Errorf("client 0 of 12, 24 servers: used %v, want 0–11", got)
	}

	b = ringOf(t, 18, 1, 4)
	sequential(t, b, 200_000)
	if got := used(b); !slices.Equal(got, seq(4, 17)) {
		t.Errorf("client 1 of 4, 18 servers: used %v, want 4–17", got)
	}
	s := b.NodeStats()
	count := func(i int) float64 { return float64(s[i].Results[Success]) }
	if r := count(4) / count(5); math.Abs(r-0.5) > 0.05 {
		t.Errorf("the half-covered server got %.3f of a whole one's", r)
	}
	if r := count(17) / count(12); math.Abs(r-1) > 0.1 {
		t.Errorf("two whole servers: %.3f", r)
	}
}

// With held requests the load, not the draw, decides.
func TestRing_edgeGetsItsFractionUnderLoad(t *testing.T) {
	b := ringOf(t, 18, 1, 4)
	hold(t, b, nil, 20_000)
	s := b.NodeStats()
	if r := float64(s[4].Outstanding) / float64(s[5].Outstanding); math.Abs(r-0.5) > 0.05 {
		t.Errorf("the half-covered server holds %.3f of a whole one's", r)
	}
}

func TestRing_coversAllServersEqually(t *testing.T) {
	worst := 0.0
	for clients := 1; clients <= 80; clients++ {
		for servers := 1; servers <= 80; servers++ {
			weights := make([]float64, servers)
			for i := range weights {
				weights[i] = 1
			}
			laps := leastLaps(defaultRingMin, servers, clients)
			cover := make([]float64, servers)
			for id := range clients {
				part, err := overlaps(weights, Peer{id, clients}, laps)
				if err != nil {
					t.Fatal(err)
				}
				sum := 0.0
				for i, o := range part {
					cover[i] += o
					sum += o
				}
				if want := math.Min(1, float64(laps)/float64(clients)); math.Abs(sum-want) > 1e-9 {
					t.Fatalf("client %d of %d, %d servers: overlaps sum to %v, want %v", id, clients, servers, sum, want)
				}
			}
			worst = math.Max(worst, slices.Max(cover)/slices.Min(cover)-1)
		}
	}
	t.Logf("worst max/min - 1: %.2g", worst)
	if worst >= 1e-9 {
		t.Errorf("servers are covered unequally: max/min - 1 = %v", worst)
	}
}

func TestRing_coversByWeight(t *testing.T) {
	weights := []float64{0.5, 1, 1.5, 2, 3, 0.25, 1, 1, 4, 2}
	cover := make([]float64, len(weights))
	const clients = 7
	for id := range clients {
		part, err := overlaps(weights, Peer{id, clients}, 3)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range part {
			cover[i] += o / weights[i]
		}
	}
	if r := slices.Max(cover)/slices.Min(cover) - 1; r > 1e-9 {
		t.Errorf("cover per weight differs by %v", r)
	}
	whole, err := overlaps(weights, Peer{1, 4}, 4)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, o := range whole {
		sum += o
	}
	if math.Abs(sum-1) > 1e-4 || slices.Min(whole) <= 0 {
		t.Errorf("all laps: overlaps %v", whole)
	}
	part, err := overlaps(make([]float64, 15), Peer{2, 5}, 4)
	if err != nil {
		t.Fatal(err)
	}
	sum = 0
	for _, o := range part {
		sum += o
	}
	if math.Abs(sum-0.8) > 1e-4 {
		t.Errorf("15 servers of weight 0, 5 clients: width %v, want 0.8", sum)
	}
}

func TestNormalise(t *testing.T) {
	got, err := normalise([]float64{0.5, 1, 1.5, 2})
	if err != nil || !slices.Equal(got, []float64{0.1, 0.2, 0.3, 0.4}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := normalise([]float64{1, -1}); err == nil {
		t.Error("a negative weight passed")
	}
	if got, err := normalise([]float64{0, 0}); err != nil || got[0] != 0.5 {
		t.Errorf("all zero: %v, %v", got, err)
	}
}

// Pairs of clusters with the figures of Finagle's tests.
func TestRing_clusterPairs(t *testing.T) {
	for _, c := range []struct {
		clients, servers, laps int
		width                  float64
		least, most, total     int
	}{
		{1, 50, 1, 1, 50, 50, 50},
		{3, 50, 1, 0.3333, 17, 18, 52},
		{20, 50, 5, 0.25, 13, 13, 260},
		{50, 50, 12, 0.24, 12, 12, 600},
		{100, 50, 24, 0.24, 12, 13, 1250},
		{7, 100, 1, 0.1429, 15, 16, 106},
		{100, 1000, 2, 0.02, 20, 20, 2000},
		{1000, 100, 120, 0.12, 12, 13, 12900},
	} {
		weights := make([]float64, c.servers)
		laps := leastLaps(defaultRingMin, c.servers, c.clients)
		least, most, total := c.servers, 0, 0
		for id := range c.clients {
			part, err := overlaps(weights, Peer{id, c.clients}, laps)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, o := range part {
				if o > 0 {
					n++
				}
			}
			least, most, total = min(least, n), max(most, n), total+n
		}
		width := math.Min(1, float64(laps)/float64(c.clients))
		if laps != c.laps || math.Abs(width-c.width) > 1e-4 || least != c.least || most != c.most || total != c.total {
			t.Errorf("%d clients, %d servers: laps %d, width %.4f, %d–%d servers, %d connections; want %d, %.4f, %d–%d, %d",
				c.clients, c.servers, laps, width, least, most, total, c.laps, c.width, c.least, c.most, c.total)
		}
	}
}

func TestRing_balancesAFewServers(t *testing.T) {
	for _, p := range []Peer{{0, 1}, {0, 3}} {
		b, clock := newTest(t, Config{Policy: Aperture{Peer: p}}, 3)
		for range 3000 {
			p := pick(t, b)
			clock.Add(time.Millisecond)
			p.Done(Success)
		}
		for _, s := range b.NodeStats() {
			if math.Abs(float64(s.Results[Success])-1000) > 50 {
				t.Errorf("client %v: %s got %d of 3000", p, s.Address, s.Results[Success])
			}
		}
	}
}

func TestRing_orderIsTheSameInEveryClient(t *testing.T) {
	order := func(list []Endpoint) (out []string) {
		b, _ := newTest(t, Config{Policy: Aperture{Peer: Peer{5, 10}}, Rand: seeded(uint64(len(out)))}, 0)
		update(t, b, list)
		for _, e := range (*b.dist.Load()).(*ring).list {
			out = append(out, e.node.Address())
		}
		return append(out, fmt.Sprint(b.Stats().VectorHash))
	}
	list := endpoints(30)
	first := order(list)
	slices.Reverse(list)
	if !slices.Equal(order(list), first) {
		t.Error("the order depends on the order given")
	}
	Sort(list)
	if slices.Equal(list, endpoints(30)) {
		t.Error("neighbouring addresses stay neighbours")
	}
}

func TestRing_peerChangesRebuild(t *testing.T) {
	b := ringOf(t, 20, 0, 5)
	before := b.Stats()
	for _, c := range []struct {
		p        Peer
		rebuilds uint64
	}{{Peer{0, 5}, 0}, {Peer{1, 5}, 1}, {Peer{1, 5}, 1}, {Peer{1, 6}, 2}} {
		if err := b.SetPeer(c.p); err != nil {
			t.Fatal(err)
		}
		if got := b.Stats().Rebuilds - before.Rebuilds; got != c.rebuilds {
			t.Errorf("%v: %d rebuilds, want %d", c.p, got, c.rebuilds)
		}
	}
	if err := b.SetPeer(Peer{5, 5}); err == nil {
		t.Error("client 5 of 5 passed")
	}
	if got := b.Stats().Peer; got != (Peer{1, 6}) {
		t.Errorf("peer %v", got)
	}
	if err := b.SetPeer(Peer{}); err != nil || b.Stats().Deterministic {
		t.Errorf("forgetting the peer: %v, deterministic %v", err, b.Stats().Deterministic)
	}
}

func TestRing_statusIsThatOfThePart(t *testing.T) {
	b := ringOf(t, 24, 0, 12)
	for _, n := range b.Nodes()[:12] {
		n.SetStatus(Busy)
	}
	if b.Status() != Busy {
		t.Errorf("all in the part are busy: %v", b.Status())
	}
	before := b.Stats()
	pick(t, b)
	if s := b.Stats(); s.Panicked != 1 || s.Rebuilds != before.Rebuilds {
		t.Errorf("%d panics, %d rebuilds; want 1 and none", s.Panicked, s.Rebuilds-before.Rebuilds)
	}
	b.Nodes()[3].SetStatus(Open)
	if b.Status() != Open {
		t.Errorf("one is open: %v", b.Status())
	}
}

func TestRing_widensForAClientWithMoreLoadThanItsPart(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		b, clock := newTest(t, Config{Policy: Aperture{Peer: Peer{3, 20}, Fixed: fixed}}, 50)
		held := hold(t, b, nil, 10)
		steady(t, b, clock, held, time.Minute)
		if s := b.Stats(); s.PhysicalAperture != 13 {
			t.Errorf("fixed %v, little load: %d servers", fixed, s.PhysicalAperture)
		}
		held = append(held, hold(t, b, nil, 30)...)
		steady(t, b, clock, held, 2*time.Minute)
		s := b.Stats()
		if want := 34; fixed && s.PhysicalAperture != 13 || !fixed && (s.PhysicalAperture < want || s.PhysicalAperture > want+6) {
			t.Errorf("fixed %v, 40 at once: %d servers", fixed, s.PhysicalAperture)
		}
		for _, p := range held[10:] {
			p.Done(Success)
		}
		held = held[:10]
		steady(t, b, clock, held, 2*time.Minute)
		if s := b.Stats(); s.PhysicalAperture > 16 {
			t.Errorf("fixed %v: still %d servers after the load went away", fixed, s.PhysicalAperture)
		}
	}
}
