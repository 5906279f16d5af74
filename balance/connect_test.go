package balance

import (
	"math"
	"slices"
	"testing"
	"time"
)

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
