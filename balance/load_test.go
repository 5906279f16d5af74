package balance

import (
	"fmt"
	"math"
	"testing"
	"time"
)

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
