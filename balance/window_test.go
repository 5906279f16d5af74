package balance

import (
	"math"
	"testing"
	"time"
)

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
