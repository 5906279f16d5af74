package balance

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

func used(b *Balancer) (out []int) {
	for i, s := range b.NodeStats() {
		if s.Results[Success]+uint64(s.Outstanding) > 0 {
			out = append(out, i)
		}
	}
	return out
}

func sequential(t *testing.T, b *Balancer, n int) {
	t.Helper()
	for range n {
		pick(t, b).Done(Success)
	}
}

func (b *Balancer) setSize(k int) { b.band.size.Store(int64(k)) }

func TestWindow_sizeFollowsTheSet(t *testing.T) {
	b, _ := newTest(t, Config{Policy: Aperture{Min: 100}}, 99)
	if got := b.Stats().LogicalAperture; got != 99 {
		t.Errorf("99 servers: %d", got)
	}
	b, _ = newTest(t, Config{Policy: Aperture{Min: 100}}, 101)
	if got := b.Stats().LogicalAperture; got != 100 {
		t.Errorf("101 servers: %d", got)
	}
	b.setSize(200)
	if got := b.Stats().LogicalAperture; got != 101 {
		t.Errorf("wider than the set: %d", got)
	}
}

func TestWindow_usesSoManyServers(t *testing.T) {
	for size, want := range map[int]int{1: 1, 2: 2, 4: 4} {
		b, _ := newTest(t, Config{Policy: Aperture{}}, 10)
		b.band.next.Store(math.MaxInt64)
		b.setSize(size)
		sequential(t, b, 1000)
		if got := used(b); len(got) != want {
			t.Errorf("size %d: servers %v", size, got)
		}
	}
}

func TestWindow_healthyServersMoveIn(t *testing.T) {
	for _, bad := range []Status{Closed, Busy} {
		b, _ := newTest(t, Config{Policy: Aperture{Min: 4}}, 10)
		sequential(t, b, 1000)
		first := used(b)
		if len(first) != 4 {
			t.Fatalf("used %v", first)
		}
		before := b.NodeStats()
		b.Nodes()[first[0]].SetStatus(bad)
		b.Nodes()[first[1]].SetStatus(bad)
		sequential(t, b, 1000)
		after := b.NodeStats()
		for _, i := range first[:2] {
			if after[i].Results != before[i].Results {
				t.Errorf("%v server got requests", bad)
			}
		}
		if got := used(b); len(got) != 6 {
			t.Errorf("%v: used %v, want two more", bad, got)
		}
		// Eight closed: only the two that are open.
		for i, n := range b.Nodes() {
			if i < 8 {
				n.SetStatus(Closed)
			} else {
				n.SetStatus(Open)
			}
		}
		before = b.NodeStats()
		sequential(t, b, 1000)
		for i, s := range b.NodeStats()[:8] {
			if s.Results != before[i].Results {
				t.Errorf("closed server %d got requests", i)
			}
		}
	}
}

func TestWindow_allClosed(t *testing.T) {
	b, _ := newTest(t, Config{Policy: Aperture{}}, 10)
	for _, n := range b.Nodes() {
		n.SetStatus(Closed)
	}
	sequential(t, b, 1000)
	if got := used(b); len(got) != 1 {
		t.Errorf("used %v, want exactly one", got)
	}
	opened := 0
	if used(b)[0] == 0 {
		opened = 1
	}
	b.Nodes()[opened].SetStatus(Open)
	sequential(t, b, 1000)
	if s := b.NodeStats()[opened]; s.Results[Success] != 1000 {
		t.Errorf("the only open server got %d of 1000", s.Results[Success])
	}
}

func TestWindow_statusLooksAtAll(t *testing.T) {
	b, _ := newTest(t, Config{Policy: Aperture{}}, 2)
	sequential(t, b, 1)
	in := used(b)[0]
	b.Nodes()[in].SetStatus(Busy)
	if b.Status() != Open {
		t.Errorf("status %v", b.Status())
	}
	if p := pick(t, b); p.Node() == b.Nodes()[in] {
		t.Error("the busy one was chosen")
	}
}

func TestWindow_weights(t *testing.T) {
	list := endpoints(10)
	sum := 0.0
	for i := range list {
		list[i].Weight = float64(i%4) + 0.5
		sum += list[i].Weight
	}
	b, _ := newTest(t, Config{Policy: Aperture{Min: 10}}, 0)
	update(t, b, list)
	d := (*b.dist.Load()).(*window)
	drawn := map[*Node]float64{}
	random := seeded(5)
	for range 200_000 {
		drawn[d.list[d.at(uint32(random()>>32), 1)].node]++
	}
	for i, n := range b.Nodes() {
		want := list[i].Weight / sum
		if got := drawn[n] / 200_000; math.Abs(got/want-1) > 0.12 {
			t.Errorf("weight %v: drawn %.4f, want %.4f", list[i].Weight, got, want)
		}
	}
}

func TestWindow_followsTheLoadBandAtOnce(t *testing.T) {
	const n = 60
	b, _ := newTest(t, Config{Policy: Aperture{Smooth: -1}}, n)
	var sizes []int
	for c := 2; c <= n; c++ {
		sizes = append(sizes, c)
	}
	for c := n; c >= 2; c-- {
		sizes = append(sizes, c)
	}
	for _, c := range sizes {
		mean := 0.0 // of the load of the servers in use, over the rounds
		for range 100 {
			held := hold(t, b, nil, c)
			k := float64(b.Stats().LogicalAperture)
			if math.Abs(float64(c)/1.125-k) > 1 {
				t.Errorf("%d at once: aperture %v, want %.1f ± 1", c, k, float64(c)/1.125)
			}
			loaded := 0.0
			for _, n := range b.Nodes() {
				if n.Load() > 0 {
					loaded++
				}
			}
			mean += float64(c) / loaded / 100
			for _, p := range held {
				p.Done(Success)
			}
		}
		if math.Abs(mean-1.125) > 1 {
			t.Errorf("%d at once: a server in use has %.2f on average, want 1.125 ± 1", c, mean)
		}
	}
}

// Steady concurrency: each time one request ends, another starts.
func steady(t *testing.T, b *Balancer, clock *fakeClock, held []Pick, d time.Duration) {
	t.Helper()
	for end := clock.Now() + d; clock.Now() < end; {
		clock.Add(10 * time.Millisecond)
		held[0].Done(Success)
		copy(held, held[1:])
		held[len(held)-1] = pick(t, b)
	}
}

func TestWindow_smoothsTheLoad(t *testing.T) {
	for concurrency, want := range map[int][3]int{10: {6, 8, 8}, 40: {23, 31, 35}} {
		b, clock := newTest(t, Config{Policy: Aperture{}}, 100)
		held := hold(t, b, nil, concurrency)
		for i, d := range []time.Duration{15 * time.Second, 15 * time.Second, 30 * time.Second} {
			steady(t, b, clock, held, d)
			if got := b.Stats().LogicalAperture; got < want[i]-1 || got > want[i]+1 {
				t.Errorf("%d at once, step %d: aperture %d, want %d ± 1", concurrency, i, got, want[i])
			}
		}
		steady(t, b, clock, held, 60*time.Second)
		before := b.Stats().LogicalAperture
		steady(t, b, clock, held, 60*time.Second)
		if got := b.Stats().LogicalAperture; got != before {
			t.Errorf("%d at once: aperture moved from %d to %d", concurrency, before, got)
		}
	}
}

func TestWindow_keepsItsSizeWhenRebuilt(t *testing.T) {
	for forget, want := range map[bool]int{false: 35, true: 1} {
		b, clock := newTest(t, Config{Policy: Aperture{ForgetSize: forget}}, 100)
		held := hold(t, b, nil, 40)
		steady(t, b, clock, held, 90*time.Second)
		update(t, b, endpoints(101))
		if got := b.Stats().LogicalAperture; got < want-1 || got > want+1 {
			t.Errorf("forget %v: aperture %d after an update, want %d", forget, got, want)
		}
	}
}

// ---- deterministic ----

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

// Pairs of clusters with the figures of the reference.
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
		for _, e := range (*b.dist.Load()).(*ring).slice {
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

// ---- connections ----

type recorder struct {
	connects, releases []*Node
}

func (r *recorder) Connect(n *Node) { r.connects = append(r.connects, n) }
func (r *recorder) Release(n *Node) { r.releases = append(r.releases, n) }

func TestConnections_eagerOnceForEachThatComesIn(t *testing.T) {
	for _, lazy := range []bool{false, true} {
		var r recorder
		b, _ := newTest(t, Config{Policy: Aperture{Peer: Peer{0, 1}, Lazy: lazy}, Connections: &r}, 2)
		update(t, b, endpoints(3))
		want := 3
		if lazy {
			want = 0
		}
		if len(r.connects) != want {
			t.Errorf("lazy %v: %d connects, want %d", lazy, len(r.connects), want)
		}
	}
	// The right ones, whatever the order.
	var r recorder
	b, _ := newTest(t, Config{Policy: Aperture{Min: 4}, Connections: &r}, 20)
	sequential(t, b, 500)
	for _, i := range used(b) {
		if !slices.Contains(r.connects, b.Nodes()[i]) {
			t.Errorf("server %d is in use and was not connected", i)
		}
	}
	if len(r.connects) != 4 {
		t.Errorf("%d connects, want 4", len(r.connects))
	}
}

func TestConnections_idleOnesOutsideExpireOnce(t *testing.T) {
	var r recorder
	b, clock := newTest(t, Config{Policy: Aperture{Min: 5, Smooth: time.Hour}, Connections: &r}, 20)
	b.band.next.Store(math.MaxInt64) // the size is set by hand here
	b.setSize(10)
	sequential(t, b, 1000)
	if len(used(b)) != 10 {
		t.Fatalf("used %v", used(b))
	}
	held := hold(t, b, nil, 200) // all ten
	b.setSize(5)
	inside := (*b.dist.Load()).entries()
	keep := map[*Node]Pick{}
	for _, p := range held {
		if _, ok := keep[p.Node()]; !ok {
			keep[p.Node()] = p
		} else {
			p.Done(Success)
		}
	}
	busy := (*b.dist.Load()).(*window).list[7].node
	for n, p := range keep {
		if n != busy {
			p.Done(Success)
		}
	}
	clock.Add(150 * time.Second / 4)
	b.Tick()
	if len(r.releases) != 0 {
		t.Fatalf("%d released after a quarter of the idle time", len(r.releases))
	}
	clock.Add(150 * time.Second)
	b.Tick()
	if len(r.releases) != 4 {
		t.Errorf("%d released, want the 4 that are idle and outside", len(r.releases))
	}
	for _, e := range inside {
		if slices.Contains(r.releases, e.node) {
			t.Error("one inside the aperture was released")
		}
	}
	b.Tick()
	clock.Add(time.Hour)
	b.Tick()
	if len(r.releases) != 4 {
		t.Errorf("%d released while one had a request", len(r.releases))
	}
	keep[busy].Done(Success)
	b.Tick()
	if len(r.releases) != 5 || b.Stats().Expired != 5 {
		t.Errorf("%d released, %d counted; want 5", len(r.releases), b.Stats().Expired)
	}
}

func TestQueue_admitsOneForEachThatEnds(t *testing.T) {
	q := NewQueue(2)
	var running []func()
	for range 4 {
		q.Do(func(done func()) { running = append(running, done) })
	}
	if len(running) != 2 || q.Waiting() != 2 {
		t.Fatalf("%d run, %d wait", len(running), q.Waiting())
	}
	for want := 3; want <= 4; want++ {
		running[0]()
		running[0]() // twice is once
		running = running[1:]
		if len(running) != 2 || q.Waiting() != 4-want {
			t.Errorf("after an end: %d run, %d wait", len(running), q.Waiting())
		}
	}
}
