package balance

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeClock is moved by hand.
type fakeClock struct {
	mu  sync.Mutex
	now time.Duration
}

func (c *fakeClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += d
}

func seeded(seed uint64) Rand {
	r := rand.New(rand.NewPCG(seed, seed))
	return r.Uint64
}

func newTest(t *testing.T, c Config, n int) (*Balancer, *fakeClock) {
	t.Helper()
	clock := &fakeClock{now: time.Second}
	if c.Clock == nil {
		c.Clock = clock.Now
	}
	if c.Rand == nil {
		c.Rand = seeded(7)
	}
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	update(t, b, endpoints(n))
	return b, clock
}

func update(t *testing.T, b *Balancer, list []Endpoint) {
	t.Helper()
	if err := b.Update(list); err != nil {
		t.Fatal(err)
	}
}

func pick(t *testing.T, b *Balancer) Pick {
	t.Helper()
	p, err := b.Pick()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPick_emptySetIsAlwaysTheSameError(t *testing.T) {
	for name, c := range policies() {
		b, _ := newTest(t, c, 0)
		for range 2 {
			if _, err := b.Pick(); err != ErrNoEndpoints {
				t.Errorf("%s: %v", name, err)
			}
		}
		if b.Status() != Closed {
			t.Errorf("%s: an empty balancer is %v", name, b.Status())
		}
		update(t, b, endpoints(3))
		pick(t, b).Done(Success)
		update(t, b, nil)
		if _, err := b.Pick(); err != ErrNoEndpoints {
			t.Errorf("%s: emptied: %v", name, err)
		}
	}
}

func TestClose_endsPicksButNotRequests(t *testing.T) {
	var registry Registry
	drained := 0
	b, _ := newTest(t, Config{Registry: &registry, OnDrained: func(*Node) { drained++ }}, 3)
	p := pick(t, b)
	if len(registry.Balancers()) != 1 {
		t.Fatal("not registered")
	}
	b.Close()
	b.Close()
	if _, err := b.Pick(); err != ErrClosed {
		t.Errorf("Pick after Close: %v", err)
	}
	if err := b.Update(endpoints(2)); err != ErrClosed {
		t.Errorf("Update after Close: %v", err)
	}
	if len(registry.Balancers()) != 0 {
		t.Error("still registered")
	}
	if drained != 2 {
		t.Errorf("%d drained before the request ended, want 2", drained)
	}
	p.Done(Success)
	if drained != 3 {
		t.Errorf("%d drained, want 3", drained)
	}
}

func TestUpdate_refusesBadEndpoints(t *testing.T) {
	for want, list := range map[string][]Endpoint{
		"empty address":   {{Address: ""}},
		"weight -1":       {{Address: "a", Weight: -1}},
		"weight NaN":      {{Address: "a", Weight: math.NaN()}},
		"weight +Inf":     {{Address: "a", Weight: math.Inf(1)}},
		"a is listed":     {{Address: "a"}, {Address: "a"}},
		"a (replica 2) i": {{Address: "a", Replica: 2}, {Address: "a", Replica: 2}},
	} {
		b, _ := newTest(t, Config{}, 2)
		err := b.Update(list)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", list, err, want)
		}
		if b.Stats().Size != 2 {
			t.Errorf("%v: the set changed", list)
		}
	}
	if got := Deduplicate([]Endpoint{{Address: "a"}, {Address: "b"}, {Address: "a"}}); len(got) != 2 {
		t.Errorf("Deduplicate left %v", got)
	}
}

func TestConfig_checkNamesTheField(t *testing.T) {
	for want, c := range map[string]Config{
		"decay":        {Decay: time.Microsecond},
		"success bias": {SuccessBias: -1},
		"panic mode":   {Panic: 6},
		"load metric":  {Load: 9},
		"heap":         {Policy: Heap{}, Load: PeakEWMA},
		"min":          {Policy: Aperture{Min: -1}},
		"band":         {Policy: Aperture{Low: 2, High: 1}},
		"peer id":      {Policy: Aperture{Peer: Peer{ID: 3, Total: 3}}},
		"peer total":   {Policy: Aperture{Peer: Peer{ID: 3}}},
		"smooth":       {Policy: Aperture{Smooth: 2 * time.Hour}},
		"fail-fast":    {FailFast: &FailFast{Initial: -1}},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one about %q", c, err, want)
		}
	}
}

func TestDone_twiceCountsOnce(t *testing.T) {
	b, _ := newTest(t, Config{}, 1)
	p := pick(t, b)
	p.Done(Success)
	p.Done(Success)
	if s := b.Stats(); s.Outstanding != 0 || s.Open != 1 {
		t.Errorf("%+v", s)
	}
}

func TestPickDone_allocatesNothing(t *testing.T) {
	for name, c := range policies() {
		c.Rand = seeded(1)
		b, _ := newTest(t, c, 40)
		avoid := []*Node{b.Nodes()[0]}
		if n := testing.AllocsPerRun(200, func() {
			p, _ := b.Pick()
			q, _ := b.PickAvoiding(avoid)
			q.Done(Failure)
			p.Done(Success)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestPickDone_readTheClockOnceEach(t *testing.T) {
	for name, c := range policies() {
		reads := 0
		c.Clock = func() time.Duration { reads++; return time.Duration(reads) * time.Millisecond }
		b, _ := newTest(t, c, 10)
		b.Nodes()[3].SetStatus(Busy)
		for range 100 {
			reads = 0
			p := pick(t, b)
			if reads > 1 {
				t.Fatalf("%s: Pick read the clock %d times", name, reads)
			}
			reads = 0
			p.Done(Failure)
			if reads > 1 {
				t.Fatalf("%s: Done read the clock %d times", name, reads)
			}
		}
	}
}

// Everything at once, for the race detector and the invariants.
func TestBalancer_concurrentUse(t *testing.T) {
	for name, c := range policies() {
		t.Run(name, func(t *testing.T) {
			c.Accrual = ConsecutiveFailures(3, ConstantSentence(time.Millisecond))
			c.FailFast = &FailFast{Initial: time.Millisecond, Max: time.Millisecond}
			b, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			update(t, b, endpoints(20))
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(g), 1))
					var held []Pick
					for range 2000 {
						p, err := b.PickAvoiding(nil)
						if err != nil {
							t.Error(err)
							return
						}
						held = append(held, p)
						if len(held) > r.IntN(8) {
							held[0].Done(Outcome(r.IntN(6)))
							held = held[1:]
						}
					}
					for _, p := range held {
						p.Done(Success)
					}
				})
			}
			wg.Go(func() {
				for i := range 300 {
					list := endpoints(20 + i%7)[i%5:]
					if name == "p2c_weighted" || name == "heap" || name == "round_robin" {
						for k := range list {
							list[k].Weight = float64(1 + (k+i)%3)
						}
					}
					if err := b.Update(list); err != nil {
						t.Error(err)
					}
					b.Nodes()[i%4].SetStatus(Status(i % 3))
					b.Tick()
					if err := b.SetPeer(Peer{i % 3, 3}); err != nil {
						t.Error(err)
					}
					b.Stats()
					b.NodeStats()
				}
			})
			wg.Wait()
			if s := b.Stats(); s.Outstanding != 0 {
				t.Errorf("%d requests left: %+v", s.Outstanding, s)
			}
			if b.heaps != nil {
				for _, n := range b.Nodes() {
					if n.heap.load != 0 {
						t.Errorf("heap load %d", n.heap.load)
					}
				}
			}
		})
	}
}

func TestUpdate_onlyTheNewestOfThoseThatWaitIsApplied(t *testing.T) {
	b, _ := newTest(t, Config{}, 1)
	before := b.Stats().Updates
	b.mu.Lock()
	var wg sync.WaitGroup
	for _, n := range []int{5, 6, 7} {
		list := endpoints(n)
		wg.Go(func() {
			if err := b.Update(list); err != nil {
				t.Error(err)
			}
		})
		for p := b.pending.Load(); p == nil || len(*p) != n; p = b.pending.Load() {
			runtime.Gosched()
		}
	}
	b.mu.Unlock()
	wg.Wait()
	if s := b.Stats(); s.Updates != before+1 || s.Size != 7 {
		t.Errorf("%d updates, size %d; want 1 and 7", s.Updates-before, s.Size)
	}
}
